//! Finding the end of something that cannot be read.
//!
//! A bad value still has strings, bodies and brackets. They are followed from the fault on, so that what lies inside
//! a string or a body is never taken for the next call, and a cut text is told from a wrong one.

use memchr::memchr;

use super::escape::next_special;
use super::fence::{Fence, Search};
use super::loose::{Fault, is_blank};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skimmed {
    /// The text ends first.
    More,
    /// The outermost bracket closes; the byte after it, or where a terminator line begins.
    Closed(usize),
    /// The next block begins here although this one never closed.
    Next(usize),
}

#[derive(Clone, Debug)]
enum Inside {
    Nothing,
    Quoted(u8),
    Body(Fence),
}

#[derive(Clone, Debug)]
pub(crate) struct Skim {
    at: usize,
    depth: usize,
    /// The last byte that is not white space: a value begins after one of `{[,:` only.
    before: u8,
    inside: Inside,
    /// Whether raw bodies and the lines that end a block count.
    heredoc: bool,
    line_scan: usize,
}

impl Skim {
    pub(crate) fn new(text: &str, fault: &Fault, depth: usize, heredoc: bool) -> Self {
        let before = text.as_bytes()[..fault.at]
            .iter()
            .rfind(|&&byte| !is_blank(byte));
        // A fault at the start of a line: the line itself may be the mark that ends the block.
        let line_start = heredoc && fault.inside.is_none() && text[..fault.at].ends_with('\n');
        Self {
            at: fault.at - usize::from(line_start),
            depth,
            before: before.copied().unwrap_or(0),
            inside: fault.inside.map_or(Inside::Nothing, Inside::Quoted),
            heredoc,
            line_scan: 0,
        }
    }

    /// Goes on. `last` says that no more text comes; then `More` means that it ended inside.
    pub(crate) fn advance(&mut self, text: &str, last: bool) -> Skimmed {
        let bytes = text.as_bytes();
        loop {
            match &mut self.inside {
                Inside::Nothing => {}
                Inside::Quoted(quote) => {
                    let quote = *quote;
                    if !self.skip_quoted(bytes, quote) {
                        return Skimmed::More;
                    }
                    self.inside = Inside::Nothing;
                    self.before = quote;
                }
                Inside::Body(fence) => {
                    let Search::Found { after, .. } = fence.find(bytes) else {
                        return Skimmed::More;
                    };
                    self.at = after;
                    self.inside = Inside::Nothing;
                    self.before = b'~';
                }
            }
            let Some(&byte) = bytes.get(self.at) else {
                return Skimmed::More;
            };
            let value_may_begin = matches!(self.before, b'{' | b'[' | b',' | b':');
            match byte {
                b'"' => self.enter(byte),
                b'\'' if value_may_begin => self.enter(byte),
                b'~' | b'`' if self.heredoc && value_may_begin => {
                    let from = self.at.max(self.line_scan);
                    let Some(offset) = memchr(b'\n', &bytes[from..]) else {
                        self.line_scan = bytes.len();
                        return Skimmed::More;
                    };
                    let end = from + offset;
                    if let Some(fence) = Fence::open(&text[self.at..end], end + 1) {
                        self.inside = Inside::Body(fence);
                    } else {
                        self.before = byte;
                        self.at += 1;
                    }
                }
                b'\n' if self.heredoc => match line_mark(&bytes[self.at + 1..], last) {
                    LineMark::Unknown => return Skimmed::More,
                    LineMark::End => return Skimmed::Closed(self.at + 1),
                    LineMark::Call => return Skimmed::Next(self.at + 1),
                    LineMark::None => self.at += 1,
                },
                b'{' | b'[' => {
                    self.depth += 1;
                    self.before = byte;
                    self.at += 1;
                }
                b'}' | b']' => {
                    self.at += 1;
                    self.before = byte;
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Skimmed::Closed(self.at);
                    }
                }
                _ => {
                    if !is_blank(byte) {
                        self.before = byte;
                    }
                    self.at += 1;
                }
            }
        }
    }

    fn enter(&mut self, quote: u8) {
        self.at += 1;
        self.inside = Inside::Quoted(quote);
    }

    /// Moves past the closing quote; `false` where the text ends first.
    fn skip_quoted(&mut self, bytes: &[u8], quote: u8) -> bool {
        loop {
            self.at = next_special(bytes, self.at, quote);
            match bytes.get(self.at) {
                None => return false,
                Some(&byte) if byte == quote => {
                    self.at += 1;
                    return true;
                }
                Some(b'\\') if self.at + 1 == bytes.len() => return false,
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineMark {
    None,
    /// The line ends a block: `@@end`.
    End,
    /// The line begins a block: `@@call` and a blank.
    Call,
    /// The text ends before that is known.
    Unknown,
}

/// What the line that begins with `line` is. `last` says that no more text comes.
pub(crate) fn line_mark(line: &[u8], last: bool) -> LineMark {
    for (mark, word) in [
        (LineMark::End, b"@@end".as_slice()),
        (LineMark::Call, b"@@call"),
    ] {
        if let Some(rest) = line.strip_prefix(word) {
            return match (rest.first(), mark) {
                (None, _) if !last => LineMark::Unknown,
                (None, LineMark::End) => LineMark::End,
                (Some(&byte), LineMark::End) if is_blank(byte) => LineMark::End,
                (Some(b' ' | b'\t'), LineMark::Call) => LineMark::Call,
                _ => LineMark::None,
            };
        }
        if !last && word.starts_with(line) {
            return LineMark::Unknown;
        }
    }
    LineMark::None
}
