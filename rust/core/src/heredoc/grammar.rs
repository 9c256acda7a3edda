//! The language as GBNF, for llama.cpp.
//!
//! Facts of llama.cpp that shape the text: rule names know no underscore, a repetition above 2,000 is an
//! error or silently unbounded, repetitions that enclose repetitions multiply (so what is repeated
//! is always a rule of its own), and there is no "text without this string", so that lines which may not
//! begin with a mark are spelled out letter by letter.

use std::collections::HashMap;
use std::fmt::Write;

use crate::json::Value;

use super::render::{
    MAX_BARE_KEY, TAGS, body_fits, header_name, key_text, push_json, quoted, wants_body,
};
use super::schema::{Accepts, Items, Tool};

/// Most calls of a batch and most parameters of a tool: llama.cpp's repetition limit is 2,000.
pub const MAX_REPEAT: usize = 1_000;

/// Digits of a number, before and after the point. Python reads no integer of more than 4,300.
pub(super) const MAX_DIGITS: usize = 400;

/// What a tool set cannot be turned into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarError {
    TooManyCalls(usize),
    TooManyParameters(String, usize),
    /// Neither prose nor a call is allowed.
    Nothing,
    NoName,
}

impl std::fmt::Display for GrammarError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooManyCalls(count) => write!(
                f,
                "max_calls is {count}; a grammar can bound a batch to at most {MAX_REPEAT} calls"
            ),
            Self::TooManyParameters(name, count) => write!(
                f,
                "tool {name:?} has {count} parameters; a grammar can bound at most {MAX_REPEAT}"
            ),
            Self::Nothing => f.write_str(
                "nothing can be written: there is no tool or max_calls is 0, and allow_prose is false",
            ),
            Self::NoName => f.write_str("a tool has an empty name"),
        }
    }
}

/// Checks that a grammar of these tools can be written; gives whether it has calls.
pub(super) fn check(
    tools: &[Tool],
    max_calls: usize,
    allow_prose: bool,
) -> Result<bool, GrammarError> {
    if max_calls > MAX_REPEAT {
        return Err(GrammarError::TooManyCalls(max_calls));
    }
    for tool in tools {
        if tool.name.is_empty() {
            return Err(GrammarError::NoName);
        }
        if tool.parameters.len() > MAX_REPEAT {
            return Err(GrammarError::TooManyParameters(
                tool.name.clone(),
                tool.parameters.len(),
            ));
        }
    }
    let calls = !tools.is_empty() && max_calls > 0;
    if calls || allow_prose {
        Ok(calls)
    } else {
        Err(GrammarError::Nothing)
    }
}

/// The ways in which an enumerated value may be written.
pub(super) fn spellings(value: &Value, top: bool) -> Vec<String> {
    match value {
        Value::String(text) => {
            let mut all = vec![quoted(text)];
            if top && wants_body(text) {
                all.extend(
                    TAGS.iter()
                        .filter(|tag| body_fits(text, tag))
                        .map(|tag| format!("~~~{tag}\n{text}\n~~~{tag}\n")),
                );
            }
            all
        }
        Value::Number(text) => {
            let whole = text.strip_suffix(".0").filter(|whole| {
                whole
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || byte == b'-')
            });
            std::iter::once(text.as_str())
                .chain(whole)
                .map(str::to_owned)
                .collect()
        }
        other => {
            let mut out = String::new();
            push_json(&mut out, other);
            vec![out]
        }
    }
}

/// A literal as GBNF writes it.
fn literal(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7f => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            // Some readers take these for the end of the line, and with it of the rule.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A line that does not begin with `mark`: every letter may be missed, but not the last.
///
/// `after` is what may follow the whole mark (empty: nothing).
fn line_without(mark: &str, after: &str) -> String {
    let mut out = String::new();
    let count = mark.chars().count();
    for (index, c) in mark.chars().enumerate() {
        if index > 0 {
            out.push('(');
        }
        let _ = write!(out, "[^{c}\\n] x");
        if index + 1 < count {
            let _ = write!(out, " | \"{c}\" ");
        } else if !after.is_empty() {
            let _ = write!(out, " | \"{c}\" {after}");
        }
    }
    out.push_str(&")?".repeat(count - 1));
    out
}

struct Gbnf {
    rules: String,
    /// Names of the rules of values, by their text.
    values: HashMap<String, String>,
}

impl Gbnf {
    fn rule(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.rules, "{name} ::= {text}");
    }

    /// The rule of the values in `accepts`. `top`: of a parameter itself, where bodies are allowed.
    fn value(&mut self, accepts: &Accepts, top: bool) -> String {
        if accepts.any {
            return if top { "vt" } else { "v" }.to_owned();
        }
        let mut ways: Vec<String> = Vec::new();
        let mut add = |on: bool, rule: &str| {
            if on {
                ways.push(rule.to_owned());
            }
        };
        add(accepts.text, if top { "st" } else { "s" });
        add(accepts.number, "n");
        add(accepts.integer && !accepts.number, "i");
        add(accepts.boolean, "b");
        add(accepts.object, "o");
        add(accepts.null, "\"null\"");
        match &accepts.array {
            None => {}
            Some(Items::Any) => ways.push("a".to_owned()),
            Some(Items::Of(items)) => {
                let item = self.value(items, false);
                ways.push(format!("\"[\" w ({item} w (\",\" w {item} w)*)? \"]\""));
            }
        }
        for value in accepts.bare_literals() {
            ways.extend(spellings(value, top).iter().map(|way| literal(way)));
        }
        if ways.is_empty() {
            // A schema that no value fits; the validator says so, the grammar must stay valid.
            return if top { "vt" } else { "v" }.to_owned();
        }
        if let [only] = ways.as_slice()
            && only.bytes().all(|byte| byte.is_ascii_alphabetic())
        {
            return only.clone();
        }
        let text = ways.join(" | ");
        if let Some(name) = self.values.get(&text) {
            return name.clone();
        }
        let name = format!("e{}", self.values.len());
        self.rule(&name, &text);
        self.values.insert(text, name.clone());
        name
    }

    fn tool(&mut self, index: usize, tool: &Tool) {
        let groups = tool.keys_by_value(
            |accepts| self.value(accepts, true),
            |name| literal(&key_text(name)),
        );
        let head = literal(&format!("{}\n{{", header_name(&tool.name)));
        if groups.is_empty() {
            self.rule(&format!("t{index}"), &format!("{head} w \"}}\""));
            return;
        }
        let pairs = match tool.parameters.len() {
            1 => format!("(t{index}p)?"),
            count => format!("(t{index}p (\",\" w t{index}p){{0,{}}})?", count - 1),
        };
        self.rule(&format!("t{index}"), &format!("{head} w {pairs} \"}}\""));
        let ways: Vec<String> = groups
            .iter()
            .map(|(value, keys)| match keys.as_slice() {
                [key] => format!("{key} \":\" w {value} w"),
                keys => format!("({}) \":\" w {value} w", keys.join(" | ")),
            })
            .collect();
        self.rule(&format!("t{index}p"), &ways.join(" | "));
    }

    fn calls(&mut self, tools: &[Tool], max_calls: usize) {
        for (index, tool) in tools.iter().enumerate() {
            self.tool(index, tool);
        }
        let names: Vec<String> = (0..tools.len()).map(|index| format!("t{index}")).collect();
        self.rule(
            "call",
            &format!("\"@@call \" ({}) \"\\n@@end\"", names.join(" | ")),
        );
        let more = match max_calls {
            1 => String::new(),
            count => format!(" (\"\\n\" \"\\n\"? call){{0,{}}}", count - 1),
        };
        self.rule("batch", &format!("call{more} \"\\n\"? \"\\n\"?"));
        self.rule("w", "[ \\t\\n]{0,20}");
        self.rule("b", "\"true\" | \"false\"");
        let integer = format!("\"-\"? (\"0\" | [1-9] [0-9]{{0,{}}})", MAX_DIGITS - 1);
        self.rule("i", &integer);
        self.rule(
            "n",
            &format!("i (\".\" [0-9]{{1,{MAX_DIGITS}}})? ([eE] [-+]? [0-9]{{1,4}})?"),
        );
        self.rule(
            "s",
            r#""\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F]))* "\"""#,
        );
        let bare = format!("[a-zA-Z_$] [a-zA-Z0-9_$]{{0,{}}}", MAX_BARE_KEY - 1);
        self.rule("k", &format!("s | {bare}"));
        self.rule("v", "o | a | s | n | b | \"null\"");
        self.rule("vt", "o | a | st | n | b | \"null\"");
        self.rule("a", "\"[\" w (v w (\",\" w v w)*)? \"]\"");
        self.rule("o", "\"{\" w (kv (\",\" w kv)*)? \"}\"");
        self.rule("kv", "k \":\" w v w");
        let bodies: Vec<String> = TAGS
            .iter()
            .map(|tag| format!("\"{tag}\\n\" l{tag}* \"~~~{tag}\\n\""))
            .collect();
        self.rule("st", &format!("s | \"~~~\" ({})", bodies.join(" | ")));
        for tag in TAGS {
            let line = line_without(&format!("~~~{tag}"), "ya");
            self.rule(&format!("l{tag}"), &format!("({line})? \"\\n\""));
        }
        // What may follow `~~~tag` in a line that is no closer: not blanks, one comma and a line break.
        self.rule("ya", "[^ \\t,\\r\\n] x | [ \\t] ya | \",\" yb | \"\\r\" yc");
        self.rule("yb", "[^ \\t\\r\\n] x | [ \\t] yb | \"\\r\" yc");
        self.rule("yc", "[^\\n] x");
    }
}

/// GBNF of all replies that may be written with `tools`: prose, or up to `max_calls` calls with prose before
/// the first. Every text it accepts is read by `parse_tool_calls` without a problem.
pub fn heredoc_grammar(
    tools: &[Tool],
    max_calls: usize,
    allow_prose: bool,
) -> Result<String, GrammarError> {
    let calls = check(tools, max_calls, allow_prose)?;
    let mut gbnf = Gbnf {
        rules: String::new(),
        values: HashMap::new(),
    };
    // Written so that within a line of prose one way to go on is live: llama.cpp keeps a stack for
    // each, and tries every token of the vocabulary on all of them.
    let root = match (allow_prose, calls) {
        (true, true) => "batch | p (\"\\n\" root?)? | \"\\n\" root?",
        (true, false) => "p (\"\\n\" root?)? | \"\\n\" root?",
        (false, _) => "batch",
    };
    gbnf.rule("root", root);
    if allow_prose {
        gbnf.rule("p", &line_without("@@call", ""));
    }
    gbnf.rule("x", "[^\\n]*");
    if calls {
        gbnf.calls(tools, max_calls);
    }
    Ok(gbnf.rules)
}
