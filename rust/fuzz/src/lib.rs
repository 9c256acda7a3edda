//! What each fuzz target does with its bytes: they become text (and where needed sizes or tokens before it), and the
//! text goes through the properties that the tests of `agentkit-core` state.

#[path = "../../core/tests/properties/mod.rs"]
mod properties;

use agentkit_core::tokens::gguf::Header;
use agentkit_core::tokens::tokenizer::{Mode, Tokenizer};
use serde_json::Value;

/// Characters of a text where a property tries every cut, or every period.
const SHORT: usize = 200;
/// Characters of a loop that is looked at after each: its limits are told in tens of bytes.
const LOOP: usize = 100;
/// Bytes of a loop under the usual limits, the widest of which is 4 KiB.
const LONG: usize = 5_200;

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

fn short(data: &[u8]) -> String {
    text(data).chars().take(SHORT).collect()
}

/// Tokens, each ended by a NUL, and the text behind the last.
fn tokens_and_text(data: &[u8]) -> (Vec<String>, String) {
    let whole = text(data);
    let mut tokens: Vec<String> = whole.split('\0').map(str::to_owned).collect();
    let text = tokens.pop().unwrap_or_default();
    tokens.truncate(8);
    (tokens, text)
}

/// A first byte that tells how many sizes follow, the sizes, the rest.
fn sizes_and_rest(data: &[u8]) -> (Vec<usize>, &[u8]) {
    let Some((count, rest)) = data.split_first() else {
        return (Vec::new(), data);
    };
    let (sizes, rest) = rest.split_at((usize::from(*count) % 6).min(rest.len()));
    (sizes.iter().map(|size| usize::from(*size)).collect(), rest)
}

pub fn neutralize(data: &[u8]) {
    let (tokens, text) = tokens_and_text(data);
    properties::neutralizing(&tokens, &text);
}

pub fn special_tokens(data: &[u8]) {
    let (tokens, text) = tokens_and_text(data);
    properties::finding(&tokens, &text);
}

/// The first byte tells how often the text behind it stands there, so that loops are common, and which property is tried.
pub fn repetition(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let copies = usize::from(*first / 2);
    if first % 2 == 0 {
        let looped = short(rest).repeat(1 + copies % 8);
        properties::guard(&looped.chars().take(LOOP).collect::<String>());
    } else {
        let (sizes, rest) = sizes_and_rest(rest);
        let unit = text(rest);
        let long = unit.repeat(1 + copies.min(LONG / unit.len().max(1)));
        properties::guard_in_pieces(&long, &sizes);
    }
}

pub fn slots(data: &[u8]) {
    properties::slots(&text(data));
}

pub fn truncate(data: &[u8]) {
    if let Some((limit, rest)) = data.split_first_chunk::<2>() {
        let text = text(rest);
        properties::cut_text(
            &text,
            usize::from(u16::from_le_bytes(*limit)) % (text.len() + 2),
        );
    }
}

pub fn tight(data: &[u8]) {
    properties::tight(&text(data));
}

pub fn loose_json(data: &[u8]) {
    properties::judged_json(&text(data));
}

pub fn arguments(data: &[u8]) {
    properties::cutting_arguments_is_seen(&short(data));
}

pub fn tool_calls(data: &[u8]) {
    let (sizes, rest) = sizes_and_rest(data);
    let text = short(rest);
    properties::calls_are_strict(&text);
    properties::stream_equals_the_whole(&text, &sizes);
    properties::cutting_a_reply_makes_no_call(&text);
}

/// A name and the arguments behind a NUL: an object where they are JSON, else one text.
pub fn render(data: &[u8]) {
    let whole = text(data);
    let (name, rest) = whole.split_once('\0').unwrap_or(("f", &whole));
    // Deeper values than the parser reads, or numbers that change when they are read, are no matter of rendering.
    let arguments = match serde_json::from_str::<Value>(rest) {
        Ok(value) if value.is_object() && !has_float(&value) => value,
        _ => serde_json::json!({ "path": "a.py", "content": rest, rest: [rest, {rest: 1}] }),
    };
    if !name.is_empty() {
        properties::rendering_round_trips(name, &arguments);
    }
}

fn has_float(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.iter().any(has_float),
        Value::Object(pairs) => pairs.values().any(has_float),
        _ => false,
    }
}

/// A file opens or is refused; a vocabulary that opens tokenizes to ids of its own.
pub fn gguf(data: &[u8]) {
    let Ok(header) = Header::read(data) else {
        return;
    };
    for key in header.keys() {
        assert!(header.get(key).is_some());
    }
    let Ok(tokenizer) = Tokenizer::new(&header) else {
        return;
    };
    for text in [
        "",
        " ",
        "the the\n\n<|end|> <tool>",
        "é日😀\u{301} 123 don't \0\u{2581}",
        "</s><s>\n",
    ] {
        for mode in [Mode::Plain, Mode::ParseSpecial, Mode::Untrusted] {
            let ids = tokenizer.encode(text, mode);
            assert_eq!(ids.len(), tokenizer.count(text, mode));
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab.size()));
            assert!(tokenizer.decode(ids.iter().map(|&id| id as i32)).is_ok());
        }
    }
}
