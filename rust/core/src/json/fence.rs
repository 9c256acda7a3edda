//! Raw bodies: `~~~tag` … `~~~tag` and backtick fences. Found in one forward scan that can stop at any
//! byte and go on when more text has come.

use memchr::memmem;

/// What a search in text that may still grow has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// Not in the text so far.
    More,
    /// The body ends at `end`; the first byte after the closing mark is `after`.
    Found { end: usize, after: usize },
}

/// An open body: where its content begins and how far the search for its closer has come.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    /// The closing mark with the line break before it.
    closer: String,
    backticks: bool,
    content: usize,
    scan: usize,
    /// A closing mark was found at `scan`; the rest of its line is judged from here. 0: none.
    tail: usize,
    comma: bool,
}

impl Fence {
    /// Reads the opening line `line` (without its line break); `content` is where the body begins.
    ///
    /// Backtick fences may be of any length and carry an info string; they close with the same number
    /// of backticks. Tildes are followed by a tag, and close with the same tag.
    pub(crate) fn open(line: &str, content: usize) -> Option<Self> {
        let line = line.trim_end_matches([' ', '\t', '\r']);
        let mark = line.bytes().next()?;
        let count = line.bytes().take_while(|&byte| byte == mark).count();
        let rest = &line[count..];
        let backticks = mark == b'`';
        let readable = if backticks {
            !rest.contains('`')
        } else {
            mark == b'~'
                && count >= 3
                && rest
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_+#.-".contains(&byte))
        };
        readable.then(|| Self {
            closer: format!("\n{}", if backticks { &line[..count] } else { line }),
            backticks,
            content,
            // From the line break before the body on, for a body of no lines.
            scan: content - 1,
            tail: 0,
            comma: false,
        })
    }

    pub(crate) fn content(&self) -> usize {
        self.content
    }

    /// Looks for the closer. Linear over all calls together.
    pub(crate) fn find(&mut self, bytes: &[u8]) -> Search {
        loop {
            if self.tail == 0 {
                match memmem::find(&bytes[self.scan..], self.closer.as_bytes()) {
                    None => {
                        let overlap = (bytes.len() + 1).saturating_sub(self.closer.len());
                        self.scan = self.scan.max(overlap);
                        return Search::More;
                    }
                    Some(offset) => {
                        self.scan += offset;
                        self.tail = self.scan + self.closer.len();
                        self.comma = false;
                    }
                }
            }
            match self.line_closes(bytes) {
                None => return Search::More,
                Some(true) => {
                    return Search::Found {
                        end: self.scan.max(self.content),
                        after: self.scan + self.closer.len(),
                    };
                }
                Some(false) => {
                    self.scan += 1;
                    self.tail = 0;
                }
            }
        }
    }

    /// Whether the rest of the line lets the mark close; `None` where the text ends before that is known.
    fn line_closes(&mut self, bytes: &[u8]) -> Option<bool> {
        let first = self.tail == self.scan + self.closer.len();
        if self.backticks && first && *bytes.get(self.tail)? == b'`' {
            return Some(false);
        }
        loop {
            match *bytes.get(self.tail)? {
                b' ' | b'\t' => {}
                b'\n' => return Some(true),
                b'\r' => return bytes.get(self.tail + 1).map(|&next| next == b'\n'),
                b',' | b'}' | b']' if self.backticks => return Some(true),
                b',' if !self.comma => self.comma = true,
                _ => return Some(false),
            }
            self.tail += 1;
        }
    }
}
