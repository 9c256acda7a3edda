"use strict";
// Every text is set as text; nothing of a session is ever read as markup.
(function () {
  var data = JSON.parse(document.getElementById("data").textContent);
  var names = { system: "system and tools", full: "verbatim", stub: "stub", bare: "pointer only", marker: "summary", out: "left out" };

  function make(tag, className, text) {
    var node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }
  function number(value) { return value.toLocaleString("en"); }
  function took(ms) { return ms < 10000 ? number(ms) + " ms" : number(Math.round(ms / 100) / 10) + " s"; }
  function when(ns) { return ns > 0 ? new Date(ns / 1e6).toISOString().replace("T", " ").slice(0, 19) : ""; }

  var header = make("header");
  header.appendChild(make("h1", "", data.title));
  var sent = 0, cached = 0, generated = 0, breaks = 0, again = 0;
  data.rounds.forEach(function (round) {
    sent += round.evaluated; cached += round.cached; generated += round.generated; if (round.break_reason) breaks += 1;
    again += round.retries.length;
  });
  header.appendChild(make("p", "totals", number(data.rounds.length) + " requests; prompt tokens evaluated " + number(sent) +
    ", from the cache " + number(cached) + ", generated " + number(generated) + "; " + breaks + (breaks === 1 ? " window" : " windows") + " did not extend the one before" +
    (again ? "; asked again " + number(again) + (again === 1 ? " time" : " times") : "")));
  data.notes.forEach(function (note) { header.appendChild(make("p", "note", note)); });
  var legend = make("p", "legend");
  Object.keys(names).concat("free").forEach(function (form) {
    var item = make("span");
    item.appendChild(make("i", "swatch " + form));
    item.appendChild(document.createTextNode(names[form] || "free"));
    legend.appendChild(item);
  });
  // The thin line under each bar.
  [["cached", "prompt from the cache"], ["evaluated", "prompt evaluated"]].forEach(function (what) {
    var item = make("span");
    item.appendChild(make("i", "swatch thin " + what[0]));
    item.appendChild(document.createTextNode(what[1]));
    legend.appendChild(item);
  });
  header.appendChild(legend);
  document.body.appendChild(header);

  var panel = make("aside");
  panel.id = "panel"; panel.hidden = true;

  function open(title, segment) {
    panel.textContent = "";
    var close = make("button", "", "Close");
    close.id = "close";
    close.addEventListener("click", function () { panel.hidden = true; });
    panel.appendChild(close);
    panel.appendChild(make("h2", "", title));
    panel.appendChild(make("p", "facts", number(segment.tokens) + " tokens in this window, shown as: " + (names[segment.form] || segment.form)));
    panel.className = segment.shown.length ? "pair" : "";
    var full = make("div", "side");
    if (segment.shown.length) {
      var seen = make("div", "side");
      seen.id = "seen"; full.id = "full";
      seen.appendChild(make("h3", "", "What the model saw"));
      segment.shown.forEach(function (at) { seen.appendChild(make("pre", "", data.texts[at])); });
      panel.appendChild(seen);
      full.appendChild(make("h3", "", segment.form === "marker" ? "What it stands for" : "The full text"));
    }
    panel.appendChild(full);
    segment.entries.forEach(function (id) {
      var entry = data.entries[id];
      if (!entry) { full.appendChild(make("p", "facts", "entry " + id)); return; }
      var facts = [entry.kind, entry.tool, entry.tag, when(entry.at), number(new TextEncoder().encode(entry.content).length) + " bytes", id];
      if (entry.images) facts.push(entry.images + " image(s)");
      full.appendChild(make("p", "facts", facts.filter(Boolean).join(" · ")));
      if (entry.reasoning) full.appendChild(make("pre", "", entry.reasoning));
      full.appendChild(make("pre", "", entry.content || "(empty)"));
    });
    panel.hidden = false;
  }

  var main = make("main");
  data.rounds.forEach(function (round) {
    var box = make("section", "round" + (round.break_reason && round.number > 1 ? " broke" : ""));
    var head = make("div", "head");
    head.appendChild(make("b", "", "Request " + round.number));
    head.appendChild(make("span", "facts", [number(round.tokens) + (round.budget > 0 ? " of " + number(round.budget) : "") + " tokens",
      "evaluated " + number(round.evaluated) + (round.measured ? "" : " (estimated)"), "cached " + number(round.cached),
      "generated " + number(round.generated), round.latency_ms ? took(round.latency_ms) : "", when(round.at)].filter(Boolean).join(" · ")));
    if (round.break_reason && round.number > 1) head.appendChild(make("span", "why", round.break_reason));
    if (round.folded) head.appendChild(make("span", "why", number(round.folded) + " entries folded"));
    if (round.degraded) head.appendChild(make("span", "why", round.degraded));
    box.appendChild(head);
    round.retries.forEach(function (retry) {
      var text = "Asked again" + (retry.delay_s ? " after " + number(Math.round(retry.delay_s * 10) / 10) + " s" : "") +
        (retry.attempt ? " (request " + number(retry.attempt + 1) + ")" : "") + ": " + retry.reason;
      box.appendChild(make("p", "again", text));
    });

    var whole = Math.max(round.budget, round.tokens, 1);
    var bar = make("div", "bar");
    round.segments.forEach(function (segment) {
      if (!segment.tokens && segment.form !== "out") return;
      var part = make("button", segment.form);
      var title = segment.kind + ", " + (names[segment.form] || segment.form);
      part.style.width = 100 * segment.tokens / whole + "%";
      part.title = title + ": " + number(segment.tokens) + " tokens";
      part.setAttribute("aria-label", part.title);
      part.addEventListener("click", function () { open(title, segment); });
      bar.appendChild(part);
    });
    box.appendChild(bar);
    var cost = make("div", "cost");
    var from = make("i", "cached"), fresh = make("i", "evaluated");
    from.style.width = 100 * round.cached / whole + "%";
    fresh.style.width = 100 * round.evaluated / whole + "%";
    cost.appendChild(from); cost.appendChild(fresh);
    box.appendChild(cost);
    var reply = data.entries[round.reply_id];
    if (reply) {
      var text = (reply.tool ? reply.tool + " " : "") + reply.content;
      box.appendChild(make("p", "reply", text.length > 280 ? text.slice(0, 280) + "…" : text));
    }
    main.appendChild(box);
  });
  document.body.appendChild(main);
  document.body.appendChild(panel);
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") panel.hidden = true; });
})();
