//! The language as a Lark grammar, for llguidance.
//!
//! The same language as the GBNF, cut into tokens where that engine is quick: a line of prose, a whole raw
//! body and a string are one terminal each. A terminal takes as much as it can, so none may match a text that
//! another one has to continue.

use std::collections::HashMap;
use std::fmt::Write;

use super::grammar::{GrammarError, MAX_DIGITS, check, spellings};
use super::render::{MAX_BARE_KEY, TAGS, header_name, key_text, quoted};
use super::schema::{Accepts, Items, Tool};

/// A regular expression of the lines that do not begin with `mark`, without their line break and not
/// empty; `after` is what may follow the whole mark (empty: nothing).
fn line_without(mark: &str, after: &str) -> String {
    let mut out = String::new();
    let count = mark.chars().count();
    for (index, c) in mark.chars().enumerate() {
        out.push_str(if index > 0 { "(" } else { "(?:" });
        let _ = write!(out, "[^{c}\\n][^\\n]*");
        if index + 1 < count {
            let _ = write!(out, "|{c}");
        } else if !after.is_empty() {
            let _ = write!(out, "|{c}{after}");
        }
    }
    out.push_str(&")?".repeat(count - 1));
    out.push(')');
    out
}

/// A literal as Lark writes it: a JSON string, without raw control characters or line separators of any kind.
fn literal(text: &str) -> String {
    let mut out = String::new();
    for c in quoted(text).chars() {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

struct Lark {
    rules: String,
    values: HashMap<String, String>,
}

impl Lark {
    fn rule(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.rules, "{name}: {text}");
    }

    fn value(&mut self, accepts: &Accepts, top: bool) -> String {
        let any = if top { "top_value" } else { "value" };
        if accepts.any {
            return any.to_owned();
        }
        let mut ways: Vec<String> = Vec::new();
        let mut add = |on: bool, rule: &str| {
            if on {
                ways.push(rule.to_owned());
            }
        };
        add(accepts.text, if top { "text" } else { "STRING" });
        add(accepts.number, "NUMBER");
        add(accepts.integer && !accepts.number, "INTEGER");
        add(accepts.boolean, "boolean");
        add(accepts.object, "object");
        add(accepts.null, "\"null\"");
        match &accepts.array {
            None => {}
            Some(Items::Any) => ways.push("array".to_owned()),
            Some(Items::Of(items)) => {
                let item = self.value(items, false);
                ways.push(format!(
                    "\"[\" WS? ({item} WS? (\",\" WS? {item} WS?)*)? \"]\""
                ));
            }
        }
        for value in accepts.bare_literals() {
            ways.extend(spellings(value, top).iter().map(|way| literal(way)));
        }
        let text = match ways.as_slice() {
            [] => return any.to_owned(),
            [only] if only.bytes().all(|byte| byte.is_ascii_alphabetic()) => return only.clone(),
            _ => ways.join(" | "),
        };
        if let Some(name) = self.values.get(&text) {
            return name.clone();
        }
        let name = format!("kind_{}", self.values.len());
        self.rule(&name, &text);
        self.values.insert(text, name.clone());
        name
    }

    fn tool(&mut self, index: usize, tool: &Tool) {
        let groups = tool.keys_by_value(
            |accepts| self.value(accepts, true),
            |name| literal(&format!("{}:", key_text(name))),
        );
        let head = literal(&format!("@@call {}\n{{", header_name(&tool.name)));
        let pairs = match tool.parameters.len() {
            0 => String::new(),
            1 => format!("(pair_{index})?"),
            count => format!(
                "(pair_{index} (\",\" WS? pair_{index}){{0,{}}})?",
                count - 1
            ),
        };
        self.rule(
            &format!("tool_{index}"),
            &format!("{head} WS? {pairs} \"}}\""),
        );
        if groups.is_empty() {
            return;
        }
        let ways: Vec<String> = groups
            .iter()
            .map(|(value, keys)| format!("({}) WS? {value} WS?", keys.join(" | ")))
            .collect();
        self.rule(&format!("pair_{index}"), &ways.join(" | "));
    }

    fn calls(&mut self, tools: &[Tool], max_calls: usize) {
        for (index, tool) in tools.iter().enumerate() {
            self.tool(index, tool);
        }
        let names: Vec<String> = (0..tools.len())
            .map(|index| format!("tool_{index}"))
            .collect();
        self.rule("call", &format!("({}) \"\\n@@end\"", names.join(" | ")));
        let more = match max_calls {
            1 => String::new(),
            count => format!(" (BREAK call){{0,{}}}", count - 1),
        };
        self.rule("batch", &format!("call{more} BREAK?"));
        self.rule("boolean", "\"true\" | \"false\"");
        self.rule(
            "value",
            "object | array | STRING | NUMBER | boolean | \"null\"",
        );
        self.rule(
            "top_value",
            "object | array | text | NUMBER | boolean | \"null\"",
        );
        self.rule(
            "array",
            "\"[\" WS? (value WS? (\",\" WS? value WS?)*)? \"]\"",
        );
        self.rule("object", "\"{\" WS? (member (\",\" WS? member)*)? \"}\"");
        self.rule("member", "(STRING | NAME) \":\" WS? value WS?");
        let bodies: Vec<String> = TAGS.iter().map(|tag| tag.to_uppercase()).collect();
        self.rule("text", &format!("STRING | {}", bodies.join(" | ")));
        for tag in TAGS {
            // Not blanks, one comma and a line break after `~~~tag`: that would close.
            let after = "[ \\t]*(?:[^ \\t,\\r\\n][^\\n]*|\\r[^\\n][^\\n]*|,[ \\t]*(?:[^ \\t\\r\\n][^\\n]*|\\r[^\\n][^\\n]*))";
            let line = line_without(&format!("~~~{tag}"), after);
            let body = format!("/~~~{tag}\\n({line}?\\n)*~~~{tag}\\n/");
            self.rule(&tag.to_uppercase(), &body);
        }
        self.rule("BREAK", "/\\n{1,2}/");
        self.rule("WS", "/[ \\t\\n]{1,20}/");
        let bare = format!("[a-zA-Z_$][a-zA-Z0-9_$]{{0,{}}}", MAX_BARE_KEY - 1);
        self.rule("NAME", &format!("/{bare}/"));
        let integer = format!("-?(0|[1-9][0-9]{{0,{}}})", MAX_DIGITS - 1);
        self.rule("INTEGER", &format!("/{integer}/"));
        let number = format!("/{integer}(\\.[0-9]{{1,{MAX_DIGITS}}})?([eE][-+]?[0-9]{{1,4}})?/");
        self.rule("NUMBER", &number);
        self.rule(
            "STRING",
            r#"/"([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"/"#,
        );
    }
}

/// The language of `heredoc_grammar` as Lark, for llguidance.
pub fn heredoc_lark(
    tools: &[Tool],
    max_calls: usize,
    allow_prose: bool,
) -> Result<String, GrammarError> {
    let calls = check(tools, max_calls, allow_prose)?;
    let mut lark = Lark {
        rules: String::new(),
        values: HashMap::new(),
    };
    let root = match (allow_prose, calls) {
        (true, true) => "batch | REST | LINE+ (batch | REST)?",
        (true, false) => "REST | LINE+ REST?",
        (false, _) => "batch",
    };
    lark.rule("start", root);
    if allow_prose {
        let line = line_without("@@call", "");
        lark.rule("REST", &format!("/{line}/"));
        lark.rule("LINE", &format!("/{line}?\\n/"));
    }
    if calls {
        lark.calls(tools, max_calls);
    }
    Ok(lark.rules)
}
