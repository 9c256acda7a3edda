//! Writing calls in the language the model writes.

use memchr::{memchr, memmem};

use crate::json::{Fault, Value, push_string};

/// Tags of raw bodies that the grammar lets a model write.
pub(super) const TAGS: [&str; 11] = [
    "go", "java", "js", "json", "md", "py", "sh", "sql", "txt", "xml", "yaml",
];

/// File endings whose tag is another word.
const ENDINGS: [(&str, &str); 12] = [
    ("markdown", "md"),
    ("mjs", "js"),
    ("cjs", "js"),
    ("jsx", "js"),
    ("ts", "js"),
    ("tsx", "js"),
    ("pyi", "py"),
    ("bash", "sh"),
    ("zsh", "sh"),
    ("html", "xml"),
    ("svg", "xml"),
    ("yml", "yaml"),
];

/// Longest key without quotes. The grammars bound bare keys, so that a model cannot go on in one for ever.
pub(super) const MAX_BARE_KEY: usize = 64;

/// Whether `name` may stand without quotes as a key.
pub(super) fn is_identifier(name: &str) -> bool {
    if name.len() > MAX_BARE_KEY {
        return false;
    }
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_' || byte == b'$')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$')
}

pub(super) fn key_text(name: &str) -> String {
    if is_identifier(name) {
        name.to_owned()
    } else {
        quoted(name)
    }
}

pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_string(&mut out, text);
    out
}

/// A tool's name as its header writes it: a name that is no plain word is a JSON string.
pub(super) fn header_name(name: &str) -> String {
    let plain = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/' | '$' | '@'));
    if plain { name.to_owned() } else { quoted(name) }
}

/// Whether `text` can be a raw body under `tag`: no line of it looks like the closer.
pub(super) fn body_fits(text: &str, tag: &str) -> bool {
    let bytes = text.as_bytes();
    memmem::find_iter(bytes, "~~~").all(|at| {
        let starts_line = at == 0 || bytes[at - 1] == b'\n';
        !(starts_line && bytes[at + 3..].starts_with(tag.as_bytes()))
    })
}

/// Whether `text` is better written as a raw body: several lines, and nothing that cannot be seen.
///
/// Control characters are left to quoted strings, where they show as escapes; llama.cpp's grammars
/// also cannot match a NUL.
pub(super) fn wants_body(text: &str) -> bool {
    // Chunk by chunk without an exit inside, so that the compiler makes vector code of it.
    let hidden = |chunk: &[u8]| {
        chunk.iter().fold(false, |any, &byte| {
            any | ((byte < 0x20) & (byte != b'\n') & (byte != b'\t') & (byte != b'\r'))
        })
    };
    memchr(b'\n', text.as_bytes()).is_some() && !text.as_bytes().chunks(256).any(hidden)
}

/// A block that calls `name` with the JSON object `arguments`: `@@call`, the object, `@@end` and a line break.
///
/// `parse_tool_calls` gives back the name and an equal object, whatever strings it holds. Strings of several lines
/// become raw bodies, tagged by the ending of a path among the arguments; numbers keep their text.
pub fn render_tool_call(name: &str, arguments: &str) -> Result<String, Fault> {
    let value = Value::parse(arguments)?;
    let Value::Object(pairs) = &value else {
        return Err(Fault {
            kind: crate::json::FaultKind::Malformed,
            at: 0,
            reason: "a JSON object was expected",
            inside: None,
        });
    };
    let mut out = format!("@@call {}\n{{ ", header_name(name));
    out.reserve(arguments.len());
    render_pairs(&mut out, pairs);
    out.push_str("}\n@@end\n");
    Ok(out)
}

fn render_pairs(out: &mut String, pairs: &[(String, Value)]) {
    let likely = likely_tag(pairs);
    for (index, (key, value)) in pairs.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        out.push_str(&key_text(key));
        out.push_str(": ");
        let body = value
            .as_str()
            .filter(|text| wants_body(text))
            .and_then(|text| Some((text, pick_tag(text, likely)?)));
        if let Some((text, tag)) = body {
            out.push_str("~~~");
            out.push_str(tag);
            out.push('\n');
            out.push_str(text);
            out.push_str("\n~~~");
            out.push_str(tag);
            out.push('\n');
        } else {
            push_json(out, value);
            if index + 1 == pairs.len() {
                out.push(' ');
            }
        }
    }
}

/// The tag that a file name among the arguments suggests.
fn likely_tag(pairs: &[(String, Value)]) -> &'static str {
    pairs
        .iter()
        .filter_map(|(_, value)| value.as_str())
        .filter(|text| !text.contains('\n'))
        .filter_map(|text| text.rsplit_once('.'))
        .find_map(|(_, ending)| {
            let ending = ENDINGS
                .iter()
                .find(|(other, _)| *other == ending)
                .map_or(ending, |(_, tag)| tag);
            TAGS.iter().find(|&&tag| tag == ending)
        })
        .copied()
        .unwrap_or("txt")
}

fn pick_tag(text: &str, likely: &'static str) -> Option<&'static str> {
    [likely, "txt"]
        .into_iter()
        .chain(TAGS)
        .find(|tag| body_fits(text, tag))
}

/// JSON on one line, with keys bare where they may be.
pub(super) fn push_json(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(text) => out.push_str(text),
        Value::String(text) => push_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                push_json(out, item);
            }
            out.push(']');
        }
        Value::Object(pairs) => {
            out.push('{');
            for (index, (key, item)) in pairs.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                out.push_str(&key_text(key));
                out.push_str(": ");
                push_json(out, item);
            }
            out.push('}');
        }
    }
}
