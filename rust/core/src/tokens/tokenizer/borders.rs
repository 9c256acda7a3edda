//! Where a text without words can be cut, and blanks as vocabularies without words write them.

use std::borrow::Cow;

/// U+2581, which stands for a blank in vocabularies of the SentencePiece family.
pub(super) const BLANK: &str = "\u{2581}";
/// A symbol without a token.
pub(super) const NO_TOKEN: u32 = u32::MAX;

/// Pairs of bytes that meet inside a token, at the border of two characters: where two bytes never do,
/// no token reaches across and the text can be cut. Blanks count as themselves.
pub(super) struct Borders {
    meet: Box<[[u64; 4]; 256]>,
}

impl Borders {
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Self {
        // Inside a character there is no border: what continues one meets everything.
        let mut meet = Box::new([[0, 0, u64::MAX, 0]; 256]);
        for text in texts {
            let text = replace_blanks(text);
            for place in 1..text.len() {
                let (before, after) = (text[place - 1], text[place]);
                if after & 0xc0 != 0x80 {
                    meet[usize::from(before)][usize::from(after >> 6)] |= 1 << (after & 63);
                }
            }
        }
        Self { meet }
    }

    #[inline(always)]
    pub(super) fn cut(&self, before: u8, after: u8) -> bool {
        self.meet[usize::from(before)][usize::from(after >> 6)] & (1 << (after & 63)) == 0
    }

    /// A bit for each place in `window` but its beginning, of which there are at most 64: whether the text can
    /// be cut there.
    #[inline(always)]
    pub(super) fn cuts(&self, window: &[u8]) -> u64 {
        if let Ok(window) = <&[u8; 65]>::try_from(window) {
            return self.cuts_in(window);
        }
        self.cuts_in(window)
    }

    #[inline(always)]
    fn cuts_in(&self, window: &[u8]) -> u64 {
        let mut cuts = 0;
        for (place, both) in window.windows(2).enumerate() {
            cuts |= u64::from(self.cut(both[0], both[1])) << place;
        }
        cuts
    }
}

/// `text` with every U+2581 as the blank it stands for.
pub(super) fn replace_blanks(text: &[u8]) -> Cow<'_, [u8]> {
    // Most texts do not even have its first byte.
    if memchr::memchr(BLANK.as_bytes()[0], text).is_none() {
        return Cow::Borrowed(text);
    }
    let finder = memchr::memmem::Finder::new(BLANK);
    let Some(first) = finder.find(text) else {
        return Cow::Borrowed(text);
    };
    let mut out = Vec::with_capacity(text.len());
    let mut from = 0;
    let mut next = Some(first);
    while let Some(place) = next {
        out.extend_from_slice(&text[from..from + place]);
        out.push(b' ');
        from += place + BLANK.len();
        next = finder.find(&text[from..]);
    }
    out.extend_from_slice(&text[from..]);
    Cow::Owned(out)
}

/// `text` with every blank as U+2581.
pub(super) fn escape_blanks(text: &[u8], out: &mut Vec<u8>) {
    out.clear();
    for part in text.split_inclusive(|&byte| byte == b' ') {
        match part.split_last() {
            Some((b' ', rest)) => {
                out.extend_from_slice(rest);
                out.extend_from_slice(BLANK.as_bytes());
            }
            _ => out.extend_from_slice(part),
        }
    }
}

/// Start and length of each character of valid UTF-8.
pub(super) fn characters(text: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = *text.get(at)?;
        let len = match first {
            0xf0.. => 4,
            0xe0.. => 3,
            0xc0.. => 2,
            _ => 1,
        };
        let start = at;
        at = (at + len).min(text.len());
        Some((start, at - start))
    })
}
