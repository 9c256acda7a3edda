//! The classes of characters that pre-tokenizers ask about, as llama.cpp sees them.

use std::sync::LazyLock;

use super::unicode_table::RANGES;

pub const LETTER: u8 = 1;
pub const NUMBER: u8 = 2;
pub const MARK: u8 = 4;
pub const SPACE: u8 = 8;
pub const PUNCTUATION: u8 = 16;
pub const SYMBOL: u8 = 32;
/// Stands for "past the end": a class no character has.
pub const END: u8 = 128;

/// Classes by code point: a row of 256 for each distinct block.
pub struct Classes {
    pub ascii: [u8; 256],
    rows: Vec<[u8; 256]>,
    row_of: Vec<u8>,
}

static CLASSES: LazyLock<Classes> = LazyLock::new(|| {
    let mut rows: Vec<[u8; 256]> = Vec::new();
    let mut row_of = Vec::with_capacity(0x1100);
    let mut next = RANGES.iter().peekable();
    let mut class = 0;
    for block in 0..0x1100_u32 {
        let mut row = [0; 256];
        for (low, slot) in row.iter_mut().enumerate() {
            while let Some(&&(start, kind)) = next.peek() {
                if start > block * 256 + low as u32 {
                    break;
                }
                class = kind;
                next.next();
            }
            *slot = class;
        }
        let place = rows
            .iter()
            .position(|known| *known == row)
            .unwrap_or_else(|| {
                rows.push(row);
                rows.len() - 1
            });
        row_of.push(place as u8);
    }
    assert!(
        rows.len() <= 256,
        "more distinct blocks than a byte can name"
    );
    Classes {
        ascii: rows[usize::from(row_of[0])],
        rows,
        row_of,
    }
});

impl Classes {
    pub fn get() -> &'static Self {
        &CLASSES
    }

    #[inline]
    pub fn of(&self, code: u32) -> u8 {
        match self.row_of.get((code >> 8) as usize) {
            Some(&row) => self.rows[usize::from(row)][(code & 255) as usize],
            None => 0,
        }
    }
}

/// The character that begins at `at` of valid UTF-8, and its length in bytes.
#[inline]
pub fn decode(bytes: &[u8], at: usize) -> (u32, usize) {
    let tail = |index: usize| u32::from(bytes.get(at + index).copied().unwrap_or(0) & 0x3f);
    let first = bytes[at];
    match first {
        0..0x80 => (u32::from(first), 1),
        0x80..0xe0 => (u32::from(first & 0x1f) << 6 | tail(1), 2),
        0xe0..0xf0 => (u32::from(first & 0x0f) << 12 | tail(1) << 6 | tail(2), 3),
        0xf0.. => (
            u32::from(first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3),
            4,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_characters() {
        let classes = Classes::get();
        for (letter, class) in [
            ('a', LETTER),
            ('é', LETTER),
            ('日', LETTER),
            ('7', NUMBER),
            ('²', NUMBER),
            ('٣', NUMBER),
            ('\u{301}', MARK),
            (' ', SPACE),
            ('\u{85}', SPACE),
            ('\u{3000}', SPACE),
            ('\u{200b}', 0),
            ('\0', 0),
            ('_', PUNCTUATION),
            ('+', SYMBOL),
            ('😀', SYMBOL),
            ('\u{2ffc}', SYMBOL),
            ('\u{10ffff}', 0),
        ] {
            assert_eq!(classes.of(letter as u32), class, "{letter:?}");
        }
    }

    #[test]
    fn decoding_agrees_with_the_standard_library() {
        let text = "aé日😀\u{7f}\u{80}\u{7ff}\u{800}\u{ffff}\u{10000}\u{10ffff}";
        for (at, letter) in text.char_indices() {
            assert_eq!(
                decode(text.as_bytes(), at),
                (letter as u32, letter.len_utf8())
            );
        }
    }
}
