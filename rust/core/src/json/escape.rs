//! JSON string escaping, and the scan for bytes that need it.

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Marks (in the high bit of each byte) the bytes of `word` that equal `byte`. The lowest mark is exact.
fn equal_to(word: u64, byte: u8) -> u64 {
    let difference = word ^ (LOW * u64::from(byte));
    difference.wrapping_sub(LOW) & !difference & HIGH
}

/// Marks (in the high bit of each byte) the bytes of `word` that may not stand for themselves in a JSON string. The
/// lowest mark is exact.
#[inline]
pub(crate) fn special_bytes(word: u64) -> u64 {
    let control = word.wrapping_sub(LOW * 0x20) & !word & HIGH;
    control | equal_to(word, b'\\') | equal_to(word, b'"')
}

/// Index of the first byte at or after `at` that is a control character, a backslash, `"` or `quote`;
/// `bytes.len()` where there is none.
///
/// Eight bytes a step: a plain byte loop made string scanning the slowest part of reading a reply.
pub(crate) fn next_special(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while let Some(chunk) = bytes.get(at..at + 8) {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        let word = u64::from_le_bytes(word);
        let marks = special_bytes(word) | equal_to(word, quote);
        if marks != 0 {
            return at + (marks.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    bytes.get(at..).map_or(bytes.len(), |rest| {
        rest.iter()
            .position(|&byte| byte < 0x20 || byte == b'\\' || byte == b'"' || byte == quote)
            .map_or(bytes.len(), |offset| at + offset)
    })
}

/// The escape of one ASCII byte that may not stand for itself in a JSON string.
pub(crate) fn push_escape(out: &mut String, byte: u8) {
    match byte {
        b'"' => out.push_str("\\\""),
        b'\\' => out.push_str("\\\\"),
        b'\n' => out.push_str("\\n"),
        b'\r' => out.push_str("\\r"),
        b'\t' => out.push_str("\\t"),
        0x08 => out.push_str("\\b"),
        0x0c => out.push_str("\\f"),
        _ => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            out.push_str("\\u00");
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

/// Appends `text` as the inside of a JSON string (without its quotes).
pub(crate) fn push_escaped(out: &mut String, text: &str) {
    let bytes = text.as_bytes();
    out.reserve(text.len() + text.len() / 16);
    let mut copied = 0;
    loop {
        let at = next_special(bytes, copied, b'"');
        out.push_str(&text[copied..at]);
        if at == bytes.len() {
            return;
        }
        push_escape(out, bytes[at]);
        copied = at + 1;
    }
}

/// Appends `text` as a JSON string.
pub fn push_string(out: &mut String, text: &str) {
    out.push('"');
    push_escaped(out, text);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::{next_special, push_string};

    #[test]
    fn finds_what_a_byte_loop_finds() {
        for length in 0..20 {
            for at in 0..length {
                for special in [b'"', b'\\', b'\'', 0u8, 0x1f] {
                    let mut bytes = vec![b' '; length];
                    bytes[at] = special;
                    for from in 0..=length {
                        let want = if from <= at { at } else { length };
                        assert_eq!(next_special(&bytes, from, b'\''), want);
                    }
                }
            }
        }
        let high: Vec<u8> = "é日本😀\u{7f}x".repeat(9).into_bytes();
        assert_eq!(next_special(&high, 0, b'"'), high.len());
    }

    #[test]
    fn escapes() {
        let mut out = String::new();
        push_string(&mut out, "a\"\\\n\r\t\u{8}\u{c}\u{1}\u{7f}é");
        assert_eq!(out, "\"a\\\"\\\\\\n\\r\\t\\b\\f\\u0001\u{7f}é\"");
    }
}
