//! Judging and repairing the arguments of a native tool call.

use std::borrow::Cow;

use super::escape::next_special;
use super::loose::{
    Dialect, Fault, FaultKind, Progress, Repairs, Scanner, is_blank, is_number, is_word,
};
use super::skim::{Skim, Skimmed};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Ok,
    Truncated,
    Failed,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Truncated => "truncated",
            Self::Failed => "failed",
        }
    }
}

/// What `repair_json` found. `text` is strict JSON where the outcome is `Ok`, else empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair<'a> {
    pub outcome: Outcome,
    pub text: Cow<'a, str>,
    pub repairs: Repairs,
}

/// What a text holds, in full.
#[derive(Debug)]
pub(super) enum Reading<'a> {
    Object(Cow<'a, str>, Repairs),
    /// One value that is no object; its first byte.
    Other(u8),
    /// The text ends too early.
    Cut,
    /// Text after the value, from this byte on.
    Trailing(usize),
    /// Wrong here; `open` says that the text also ends inside a string or bracket.
    Bad {
        fault: Fault,
        open: bool,
    },
}

/// Whether the text is what nearly every call's arguments are: one object in strict JSON, of strings without
/// escapes, short numbers and literals. A quarter of the scanner's work, which is for all others.
fn is_flat_object(text: &str) -> bool {
    let bytes = text.as_bytes();
    let skip = |mut at: usize| {
        while bytes.get(at).is_some_and(|&byte| is_blank(byte)) {
            at += 1;
        }
        at
    };
    // The byte after the string whose opening quote is at `at`.
    let string = |at: usize| {
        let end = next_special(bytes, at + 1, b'"');
        (bytes.get(at) == Some(&b'"') && bytes.get(end) == Some(&b'"')).then_some(end + 1)
    };
    let scalar = |at: usize| {
        let rest = bytes.get(at..).unwrap_or_default();
        let word = &rest[..rest.iter().position(|&byte| !is_word(byte))?];
        let literal = matches!(word, b"true" | b"false" | b"null");
        (literal || word.len() < 32 && is_number(word)).then_some(at + word.len())
    };
    let whole = || {
        let mut at = skip(1);
        if bytes.first() != Some(&b'{') {
            return None;
        }
        if bytes.get(at) != Some(&b'}') {
            loop {
                at = skip(string(at)?);
                if bytes.get(at) != Some(&b':') {
                    return None;
                }
                at = skip(at + 1);
                at = skip(string(at).or_else(|| scalar(at))?);
                match bytes.get(at) {
                    Some(b',') => at = skip(at + 1),
                    Some(b'}') => break,
                    _ => return None,
                }
            }
        }
        Some(skip(at + 1))
    };
    whole() == Some(bytes.len())
}

pub(super) fn read(text: &str) -> Reading<'_> {
    if is_flat_object(text) {
        return Reading::Object(Cow::Borrowed(text), Repairs::default());
    }
    read_scanned(text)
}

fn read_scanned(text: &str) -> Reading<'_> {
    let Some(start) = text.bytes().position(|byte| !is_blank(byte)) else {
        return Reading::Cut;
    };
    let mark = text.as_bytes()[start];
    if mark == b'`' || mark == b'~' {
        return read_fenced(text, start, mark);
    }
    match read_value(text, start) {
        Reading::Object(_, repairs) if repairs.is_empty() => {
            Reading::Object(Cow::Borrowed(text), repairs)
        }
        other => other,
    }
}

/// One value from `start` to the end of `text`.
fn read_value(text: &str, start: usize) -> Reading<'_> {
    let mut scanner = Scanner::new(Dialect::Repair, start);
    match scanner.advance(text, true) {
        Progress::Done => {}
        Progress::More => return Reading::Cut,
        Progress::Fault(fault) if fault.kind == FaultKind::Truncated => {
            return Reading::Cut;
        }
        Progress::Fault(fault) => {
            let mut skim = Skim::new(text, &fault, scanner.depth(), false);
            let open = scanner.depth() > 0 && skim.advance(text, true) == Skimmed::More;
            return Reading::Bad { fault, open };
        }
    }
    let end = scanner.end();
    if let Some(offset) = text[end..].bytes().position(|byte| !is_blank(byte)) {
        return Reading::Trailing(end + offset);
    }
    let first = text.as_bytes().get(start).copied().unwrap_or(0);
    if first != b'{' {
        return Reading::Other(first);
    }
    let repairs = scanner.repairs;
    Reading::Object(scanner.strict(text), repairs)
}

/// A Markdown fence around the whole: the inside is read, and a fence that never closes is a cut.
fn read_fenced(text: &str, start: usize, mark: u8) -> Reading<'_> {
    let bytes = text.as_bytes();
    let width = bytes[start..]
        .iter()
        .take_while(|&&byte| byte == mark)
        .count();
    let info = bytes[start + width..]
        .iter()
        .take_while(|&&byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
        .count();
    let inside = start + width + info;
    match bytes.get(inside) {
        None => return Reading::Cut,
        Some(&byte) if width >= 3 && (is_blank(byte) || byte == b'{') => {}
        Some(_) => {
            return Reading::Bad {
                fault: Fault {
                    kind: FaultKind::Malformed,
                    at: start,
                    reason: "a value was expected",
                    inside: None,
                },
                open: false,
            };
        }
    }
    let whole = text.trim_end_matches([' ', '\t', '\n', '\r']);
    let tail = whole.bytes().rev().take_while(|&byte| byte == mark).count();
    let inner_end = (whole.len() - tail).max(inside);
    let inner = &text[..inner_end];
    let Some(offset) = inner[inside..].bytes().position(|byte| !is_blank(byte)) else {
        return Reading::Cut;
    };
    match read_value(inner, inside + offset) {
        // Fewer marks than opened it: the closing fence itself was cut.
        Reading::Object(..) | Reading::Other(_) if tail < width => Reading::Cut,
        Reading::Object(..) | Reading::Other(_) if tail > width => Reading::Trailing(inner_end),
        Reading::Object(strict, mut repairs) => {
            repairs.add(Repairs::FENCE);
            Reading::Object(strict, repairs)
        }
        other => other,
    }
}

/// Strict JSON for a text that is one JSON object but for trailing commas, single quotes, Python literals,
/// unquoted keys, raw control characters in strings, escapes of lone surrogates, or a Markdown
/// fence around the whole.
///
/// Nothing that is open at the end is ever closed. Anything but one object is `Failed`, also an object with text
/// after it. Of duplicate keys all are kept as written (readers take the last).
pub fn repair_json(text: &str) -> Repair<'_> {
    let (outcome, text, repairs) = match read(text) {
        Reading::Object(strict, repairs) => (Outcome::Ok, strict, repairs),
        Reading::Cut => (Outcome::Truncated, Cow::Borrowed(""), Repairs::default()),
        Reading::Other(_) | Reading::Trailing(_) | Reading::Bad { .. } => {
            (Outcome::Failed, Cow::Borrowed(""), Repairs::default())
        }
    };
    Repair {
        outcome,
        text,
        repairs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_object_is_what_the_scanner_says_too() {
        let flat = [
            "{}",
            " { } ",
            "{\"a\":1}",
            "{ \"path\" : \"/é/b\u{7f} c'd\" ,\n\t\"n\":-1.5e+3, \"\": \"\",\"a\":true,\"b\":null }\r\n",
        ];
        let other = [
            "{\"a\":1,}",
            "{\"a\":[1]}",
            "{\"a\":{}}",
            "{\"a\":\"\\n\"}",
            "{\"a\":\"\n\"}",
            "{'a':1}",
            "{a:1}",
            "{\"a\":01}",
            "{\"a\":+1}",
            "{\"a\":True}",
            "{\"a\":1}x",
            "{\"a\":1}}",
            "[1]",
            "1",
            "\"a\"",
            "",
        ];
        for text in flat.iter().chain(&other) {
            for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
                let text = &text[..end];
                let scanned = matches!(
                    read_scanned(text),
                    Reading::Object(Cow::Borrowed(all), repairs) if all == text && repairs.is_empty()
                );
                assert!(scanned || !is_flat_object(text), "{text:?}");
            }
        }
        assert!(flat.iter().filter(|text| is_flat_object(text)).count() >= 3);
        assert!(!other.iter().any(|text| is_flat_object(text)));
    }
}
