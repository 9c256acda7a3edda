//! What holds for every input, stated once: proptest draws inputs for these on stable Rust (`text_properties.rs`,
//! `heredoc.rs`), libFuzzer looks for them by coverage (`rust/fuzz`). Each panics where it does not hold.
// Each of those programs uses a part of them.
#![allow(dead_code)]

use std::borrow::Cow;

use agentkit_core::heredoc::{Event, HeredocStream, Reply, parse_tool_calls, render_tool_call};
use agentkit_core::json::{
    ArgumentsKind, Outcome, check_arguments, loose_json, rejected_arguments, repair_json,
};
use agentkit_core::neutralize::{Style, neutralize, restore};
use agentkit_core::repetition::{Options, Repetition, RepetitionGuard};
use agentkit_core::slots::{capture_slots, expand_slots, section_names};
use agentkit_core::special_tokens::SpecialTokens;
use agentkit_core::tight::{decode_tight, encode_tight};
use agentkit_core::truncate::truncate_middle;
use serde_json::Value;

/// `text` read by `serde_json`; `None` where it is JSON that `serde_json` does not hold (numbers beyond a double, more
/// than 127 levels).
fn json(text: &str) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) if beyond_the_reader(&error) => None,
        Err(error) => panic!("no strict JSON ({error}): {text:?}"),
    }
}

fn beyond_the_reader(error: &serde_json::Error) -> bool {
    let said = error.to_string();
    said.starts_with("number out of range") || said.starts_with("recursion limit exceeded")
}

fn is_object(text: &str) -> bool {
    json(text).is_none_or(|value| value.is_object())
}

/// After neutralizing nothing is found, and joiners come off exactly; for `set` and for the default.
pub fn neutralizing(tokens: &[String], text: &str) {
    let own = SpecialTokens::new(tokens.iter().cloned());
    for set in [&own, SpecialTokens::default_set()] {
        let clean = set.find(text).next().is_none();
        let out = neutralize(text, set, Style::Entity).expect("entities always do");
        assert_eq!(set.find(&out).count(), 0, "{out:?}");
        assert_eq!(matches!(out, Cow::Borrowed(_)), clean);
        if let Ok(out) = neutralize(text, set, Style::Joiner) {
            assert_eq!(set.find(&out).count(), 0, "{out:?}");
            assert_eq!(restore(&out), text);
        }
    }
}

/// `find` is leftmost longest: as trying every token at every place.
pub fn finding(tokens: &[String], text: &str) {
    let set = SpecialTokens::new(tokens.iter().cloned());
    let got: Vec<_> = set.find(text).map(|(start, end, _)| (start, end)).collect();
    let mut want = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let here = text.get(at..).and_then(|rest| {
            tokens
                .iter()
                .filter(|token| !token.is_empty() && rest.starts_with(token.as_str()))
                .map(String::len)
                .max()
        });
        match here {
            Some(length) => {
                want.push((at, at + length));
                at += length;
            }
            None => at += 1,
        }
    }
    assert_eq!(got, want);
}

/// Sections are pieces of the text, and placeholders are replaced where they are known and nowhere else.
pub fn slots(text: &str) {
    let slots = capture_slots(text);
    let mut names: Vec<&str> = slots.sections.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    assert_eq!(names, section_names(text));
    for (name, value) in &slots.sections {
        assert!(text.contains(&format!("<{name}>{value}</{name}>")));
    }
    assert_eq!(
        names.is_empty(),
        matches!(slots.output, Cow::Borrowed(_)),
        "{:?}",
        slots.output
    );
    assert_eq!(expand_slots(text, |_| None::<&str>), text);
    let known = |name: &str| (name == "a").then_some("{a}<x>");
    assert_eq!(expand_slots(text, known), text.replace("{a}", "{a}<x>"));
}

/// Tight text decodes to equal JSON, and is what encoding gives.
pub fn tight(text: &str) {
    if let Cow::Owned(tight) = encode_tight(text) {
        let back = decode_tight(&tight);
        // Escapes of lone surrogates are JSON that `serde_json` does not read.
        if !has_lone_escape(text) {
            assert_eq!(json(&back), json(text));
        }
        assert!(tight.len() < text.len());
    }
    if let Cow::Owned(json) = decode_tight(text) {
        assert_eq!(encode_tight(&json), text);
    }
    // Text that is JSON with a blank in front always changes; text that is none never does.
    let padded = format!(" {text}");
    let parsed = serde_json::from_str::<serde::de::IgnoredAny>(text);
    if !parsed.as_ref().is_err_and(beyond_the_reader) {
        let changed = matches!(encode_tight(&padded), Cow::Owned(_));
        assert_eq!(changed, parsed.is_ok(), "{text:?}");
    }
}

/// What is kept are the ends, what is cut is counted.
pub fn cut_text(text: &str, limit: usize) {
    let Cow::Owned(out) = truncate_middle(text, limit, "hint") else {
        assert!(limit == 0 || text.len() <= limit);
        return;
    };
    assert!(text.len() > limit);
    let marker = format!(" of {} bytes left out here. hint]\n", text.len());
    let (kept, tail) = out.rsplit_once(&marker).expect("a marker");
    let (head, cut) = kept.rsplit_once("\n[… ").expect("its beginning");
    assert!(text.starts_with(head) && text.ends_with(tail));
    assert!(head.len() + tail.len() <= limit);
    assert_eq!(cut.parse(), Ok(text.len() - head.len() - tail.len()));
}

/// The guard, given one character after the other, speaks when and as trying every period does.
pub fn guard(text: &str) {
    let options = Options {
        min_period: 4,
        max_period: 40,
        min_reps: 3,
        min_span: 24,
        check_every: 1,
        short_span: 60,
    };
    let mut guard = RepetitionGuard::new(options).expect("options");
    let mut obvious = EveryPeriod::new(options);
    let mut buffer = [0; 4];
    let mut pushed = 0;
    let mut got = None;
    for c in text.chars() {
        pushed += c.len_utf8();
        let piece = c.encode_utf8(&mut buffer);
        got = guard.push(piece);
        let want = obvious.push(piece);
        assert_eq!(got.as_ref().map(|found| (found.period, found.reps)), want);
        if got.is_some() {
            break;
        }
    }
    if let Some(found) = got {
        finding_of(&found, &text[..pushed]);
    }
}

/// Any text, in any pieces and with the usual options: no panic, and a finding that can be cut.
pub fn guard_in_pieces(text: &str, sizes: &[usize]) {
    let mut guard = RepetitionGuard::new(Options::default()).expect("options");
    let mut pushed = 0;
    for piece in pieces(text, sizes) {
        pushed += piece.len();
        if let Some(found) = guard.push(piece) {
            let end = pushed - found.after;
            assert!(text.is_char_boundary(end - found.trailing));
            assert!(found.trailing == (found.reps - 1) * found.period && found.reps >= 2);
            assert!(found.trailing < end);
            return;
        }
    }
}

fn finding_of(found: &Repetition, pushed: &str) {
    let Repetition {
        period,
        reps,
        trailing,
        ref sample,
        after,
        ..
    } = *found;
    assert_eq!(trailing, (reps - 1) * period);
    assert_eq!(after, 0);
    assert!(pushed.is_char_boundary(pushed.len() - trailing));
    assert_eq!(
        sample,
        &String::from_utf8_lossy(&pushed.as_bytes()[pushed.len() - period..])
    );
}

/// What trying every period finds: of each it counts how many of the newest bytes equal those a period before them.
struct EveryPeriod {
    options: Options,
    text: Vec<u8>,
    /// By period; a byte that differs sets it back to 0.
    same: Vec<usize>,
}

impl EveryPeriod {
    fn new(options: Options) -> Self {
        Self {
            options,
            text: Vec::new(),
            same: vec![0; options.max_period + 1],
        }
    }

    /// `Some((period, copies))` of the smallest period that the options ask for.
    fn push(&mut self, piece: &str) -> Option<(usize, usize)> {
        for byte in piece.bytes() {
            let n = self.text.len();
            for period in 1..=self.options.max_period.min(n) {
                let equal = self.text[n - period] == byte;
                self.same[period] = if equal { self.same[period] + 1 } else { 0 };
            }
            self.text.push(byte);
        }
        (1..self.same.len()).find_map(|period| Some((period, self.copies(period)?)))
    }

    fn copies(&self, period: usize) -> Option<usize> {
        let Options {
            min_period,
            min_reps,
            min_span,
            short_span,
            ..
        } = self.options;
        let length = period + self.same[period];
        let copies = length / period;
        let has_shorter = || {
            (1..period).any(|shorter| {
                period.is_multiple_of(shorter) && shorter + self.same[shorter] >= length
            })
        };
        if copies < min_reps.max(2) || has_shorter() {
            return None;
        }
        let span = copies * period;
        let cycle = || &self.text[self.text.len() - period..];
        let counts = span > short_span
            || period >= min_period
                && span >= min_span
                && !ornamental(cycle())
                && !wrapped(cycle(), min_period);
        counts.then_some(copies)
    }
}

/// One mark between blanks, or nothing but what rules and frames are drawn with.
fn ornamental(cycle: &[u8]) -> bool {
    // Twice, because a cycle may begin inside a character.
    let ring = String::from_utf8_lossy(&[cycle, cycle].concat()).into_owned();
    let marks: std::collections::BTreeSet<char> = ring
        .chars()
        .filter(|c| !c.is_whitespace() && *c != '\u{FFFD}')
        .collect();
    let drawn = |c: &char| {
        "-=_|+:*#~.,'`^/\\<>•·…".contains(*c)
            || ('\u{2010}'..='\u{2015}').contains(c)
            || ('\u{2500}'..='\u{259F}').contains(c)
    };
    marks.len() < 2 || marks.iter().all(drawn)
}

/// Whether blanks alone make the cycle one that counts: without them it is a short one, several times over, or a
/// short row of numbers; the rows of a table of one word may be twice as wide.
fn wrapped(cycle: &[u8], min_period: usize) -> bool {
    let text = String::from_utf8_lossy(cycle).into_owned();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let bare: Vec<u8> = cycle
        .iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let whole = cycle[0].is_ascii_whitespace() || cycle[cycle.len() - 1].is_ascii_whitespace();
    let gaps = words.len() - usize::from(!whole);
    let Some(item) = (1..=bare.len()).find(|period| {
        bare.len().is_multiple_of(*period)
            && (*period..bare.len()).all(|at| bare[at] == bare[at - period])
    }) else {
        return false;
    };
    let copies = bare.len() / item;
    let short = item + gaps.div_ceil(copies) < min_period;
    if copies > 1 {
        short || item < 2 * min_period && gaps <= copies
    } else {
        short
            && bare
                .iter()
                .all(|byte| byte.is_ascii() && !byte.is_ascii_alphabetic())
    }
}

/// `text` in pieces of so many characters, the sizes over and over.
pub fn pieces<'t>(text: &'t str, sizes: &[usize]) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    for size in sizes.iter().chain(std::iter::once(&1)).cycle() {
        if rest.is_empty() {
            break;
        }
        let end = rest.char_indices().nth((*size).max(1));
        let (piece, more) = rest.split_at(end.map_or(rest.len(), |(at, _)| at));
        pieces.push(piece);
        rest = more;
    }
    pieces
}

fn streamed(pieces: &[&str]) -> Reply {
    let mut stream = HeredocStream::new();
    let (mut prose, mut calls) = (String::new(), Vec::new());
    for piece in pieces {
        for event in stream.push(piece) {
            match event {
                Event::Prose(text) => prose.push_str(&text),
                Event::Started { index, .. } => assert_eq!(index, calls.len()),
                Event::Ready { index, call } => {
                    assert_eq!(index, calls.len());
                    calls.push(call);
                }
            }
        }
    }
    let (reply, released) = stream.finish();
    assert_eq!(&reply.prose[..released], prose);
    assert_eq!(reply.calls, calls);
    reply
}

/// A reply that comes in pieces is read as the whole is: letter by letter, and in pieces of these sizes.
pub fn stream_equals_the_whole(text: &str, sizes: &[usize]) {
    let whole = parse_tool_calls(text);
    assert_eq!(streamed(&pieces(text, &[1])), whole);
    assert_eq!(streamed(&pieces(text, sizes)), whole);
}

/// A reply that was cut holds no call that the whole does not, and keeps those that were complete.
pub fn cutting_a_reply_makes_no_call(text: &str) {
    let whole = parse_tool_calls(text).calls;
    let mut most = 0;
    for cut in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
        let calls = parse_tool_calls(&text[..cut]).calls;
        assert!(whole.starts_with(&calls), "cut at {cut}: {text:?}");
        assert!(calls.len() >= most, "cut at {cut}: {text:?}");
        most = calls.len();
    }
}

/// The arguments of every call are one strict object.
pub fn calls_are_strict(text: &str) {
    for call in parse_tool_calls(text).calls {
        assert!(is_object(&call.arguments));
    }
}

/// What the gate and the repair let through is one strict object; strict text comes back as it is.
pub fn judged_json(text: &str) {
    let repair = repair_json(text);
    let checked = check_arguments(text);
    if repair.outcome == Outcome::Ok {
        assert!(is_object(&repair.text));
        assert_eq!(checked.text, repair.text);
    }
    match checked.kind {
        ArgumentsKind::Ok => assert!(is_object(&checked.text) && checked.message.is_empty()),
        _ => assert!(checked.text.is_empty() && !checked.message.is_empty()),
    }
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(_)) if !has_lone_escape(text) => {
            assert_eq!(checked.text, text);
            assert!(repair.outcome == Outcome::Ok && repair.repairs.is_empty());
        }
        Ok(Value::Object(_)) | Err(_) => {}
        Ok(_) => assert_eq!(checked.kind, ArgumentsKind::NotObject),
    }
    if let Ok(strict) = loose_json(text) {
        json(&strict);
        assert_eq!(loose_json(&strict).expect("strict"), strict);
    }
    assert!(is_object(&rejected_arguments(text, text)));
}

fn has_lone_escape(text: &str) -> bool {
    text.contains("\\ud") || text.contains("\\uD")
}

/// Arguments that are cut are truncated, whatever else is loose about them; never something else that runs.
pub fn cutting_arguments_is_seen(text: &str) {
    let whole = check_arguments(text);
    if whole.kind != ArgumentsKind::Ok || !text.trim_start().starts_with(['{', '`', '~']) {
        return;
    }
    for cut in (0..text.len()).filter(|&at| text.is_char_boundary(at)) {
        let part = check_arguments(&text[..cut]);
        match part.kind {
            ArgumentsKind::Truncated => {}
            // Only blanks are missing, or all of it.
            ArgumentsKind::Ok if text[..cut].trim().is_empty() => assert_eq!(part.text, "{}"),
            ArgumentsKind::Ok => assert_eq!(
                json(&part.text),
                json(&whole.text),
                "cut at {cut}: {text:?}"
            ),
            other => panic!("{other:?} where {text:?} is cut at {cut}"),
        }
    }
}

/// Reading what was rendered gives the call back.
pub fn rendering_round_trips(name: &str, arguments: &Value) {
    let text = render_tool_call(name, &arguments.to_string()).expect("an object");
    let reply = parse_tool_calls(&text);
    assert!(reply.problems.is_empty(), "{text}");
    assert_eq!(reply.calls.len(), 1, "{text}");
    assert_eq!(reply.calls[0].name, name);
    assert_eq!(
        json(&reply.calls[0].arguments).as_ref(),
        Some(arguments),
        "{text}"
    );
    assert_eq!(reply.prose, "");
}
