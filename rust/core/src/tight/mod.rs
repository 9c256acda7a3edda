//! A token-lean, reversible way to write a JSON result for a model.
//!
//! | JSON | tight |
//! |---|---|
//! | an object at the top | a line `key=value` for each pair |
//! | an array of objects with the same keys, at the top or as such a value | `[N]col,col`, then N lines of cells |
//! | any other array or object | `[a,b]`, `{key:value,key:value}` |
//! | a string | without quotes, unless it could be taken for something else |
//! | a number, `true`, `false`, `null` | the text as it stands |
//!
//! A string keeps its quotes (and its JSON escapes) where it is empty, looks like a number or literal,
//! begins like an array, object or quoted string, begins or ends with a blank, holds an escape, or holds
//! what ends a value where it stands: `,` in a cell, `,` `}` `]` inside brackets. A key keeps them where
//! it is empty or holds an escape or one of `,:={}[]`, or begins or ends with a blank. A whole text that is
//! one string loses its quotes only where it is at most [`BARE_TEXT`] bytes, without blanks and `=`; its
//! line breaks then stand for themselves.
//!
//! Text is tight only where encoding what it decodes to gives it again, so other text is told apart
//! exactly, but for a word or two that stand alone.

mod decode;
mod encode;

pub use decode::decode_tight;
pub use encode::encode_tight;

/// Longest string that is written without quotes where it is the whole text.
pub const BARE_TEXT: usize = 64;

/// Deeper JSON is left as it is; it bounds the recursion.
const MAX_DEPTH: usize = 128;

/// Where a value stands, and so what ends it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The value of a pair at the top, to the end of the line.
    Line,
    /// A cell of a table.
    Cell,
    /// Inside brackets.
    Nested,
}

impl Place {
    /// Classes of bytes that a string without quotes must not hold here.
    fn forbidden(self) -> u8 {
        match self {
            Self::Line => ESCAPE,
            Self::Cell => ESCAPE | COMMA,
            Self::Nested => ESCAPE | COMMA | CLOSE,
        }
    }
}

/// `\`, which begins an escape.
const ESCAPE: u8 = 1;
/// `"`.
const QUOTE: u8 = 2;
/// A control character, which JSON strings cannot hold.
const CONTROL: u8 = 4;
const COMMA: u8 = 8;
/// `}` and `]`.
const CLOSE: u8 = 16;
/// The other characters that keys avoid: `:`, `=`, `{`, `[`.
const MARK: u8 = 32;

static CLASS: [u8; 256] = {
    let mut class = [0; 256];
    let mut byte = 0;
    while byte < 0x20 {
        class[byte] = CONTROL;
        byte += 1;
    }
    class[b'\\' as usize] = ESCAPE;
    class[b'"' as usize] = QUOTE;
    class[b',' as usize] = COMMA;
    class[b'}' as usize] = CLOSE;
    class[b']' as usize] = CLOSE;
    class[b':' as usize] = MARK;
    class[b'=' as usize] = MARK;
    class[b'{' as usize] = MARK;
    class[b'[' as usize] = MARK;
    class
};

/// Whether a string whose bytes are of `classes` stands without quotes as a value at `place`.
fn bare_value(text: &[u8], classes: u8, place: Place) -> bool {
    let (Some(first), Some(last)) = (text.first(), text.last()) else {
        return false;
    };
    classes & place.forbidden() == 0
        && !matches!(first, b' ' | b'{' | b'[')
        && *last != b' '
        && !scalar(text)
}

/// The same for a key.
fn bare_key(text: &[u8], classes: u8) -> bool {
    let (Some(first), Some(last)) = (text.first(), text.last()) else {
        return false;
    };
    classes & (ESCAPE | COMMA | CLOSE | MARK) == 0 && *first != b' ' && *last != b' '
}

/// Whether this is a JSON number, `true`, `false` or `null`.
fn scalar(text: &[u8]) -> bool {
    match text.first() {
        Some(b'-' | b'0'..=b'9') => number_length(text) == text.len(),
        Some(b't') => text == b"true",
        Some(b'f') => text == b"false",
        Some(b'n') => text == b"null",
        _ => false,
    }
}

/// Length of the JSON number at the start of `text`; 0 for none.
fn number_length(text: &[u8]) -> usize {
    let digits = |from: usize| {
        text[from..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count()
    };
    let mut at = usize::from(text.first() == Some(&b'-'));
    let whole = digits(at.min(text.len()));
    if whole == 0 || whole > 1 && text[at] == b'0' {
        return 0;
    }
    at += whole;
    if text.get(at) == Some(&b'.') {
        let fraction = digits(at + 1);
        if fraction == 0 {
            return 0;
        }
        at += 1 + fraction;
    }
    if let Some(b'e' | b'E') = text.get(at) {
        let sign = usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        let exponent = digits((at + 1 + sign).min(text.len()));
        if exponent == 0 {
            return 0;
        }
        at += 1 + sign + exponent;
    }
    at
}
