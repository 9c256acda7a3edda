//! Messages as wire JSON, written and counted, and the append-only log they live in.

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::record::Part;
use crate::json::special_bytes;

/// Counts tokens. The same text always gives the same number.
pub trait Counter {
    fn count(&self, text: &str) -> usize;
}

/// Four UTF-8 bytes a token, rounded up.
pub struct CharsByFour;

impl Counter for CharsByFour {
    fn count(&self, text: &str) -> usize {
        crate::tokens::chars_by_four(text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// Every message costs this beside its texts: what a chat template puts around it.
pub const PER_MESSAGE: usize = 4;
/// Every call costs this beside its name and arguments.
pub const PER_CALL: usize = 4;

/// Writes `text` as a JSON string, quotes included.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    out.reserve(rest.len() + rest.len() / 16 + 2);
    out.push(b'"');
    // Copied block by block, unseen, and taken back from the first byte that needs an escape: most blocks
    // have none, and a block is one load and one store.
    while let Some((block, after)) = rest.split_first_chunk::<BLOCK>() {
        out.extend_from_slice(block);
        let plain = plain_bytes(block);
        if plain == BLOCK {
            rest = after;
            continue;
        }
        out.truncate(out.len() - (BLOCK - plain));
        write_escape(out, block[plain]);
        rest = &rest[plain + 1..];
    }
    let mut done = 0;
    for (at, &byte) in rest.iter().enumerate() {
        if byte < 32 || byte == b'"' || byte == b'\\' {
            out.extend_from_slice(&rest[done..at]);
            write_escape(out, byte);
            done = at + 1;
        }
    }
    out.extend_from_slice(&rest[done..]);
    out.push(b'"');
}

/// The escapes of two bytes; nothing where a byte has none.
const SHORT: [[u8; 2]; 256] = {
    let mut table = [[0; 2]; 256];
    table[b'"' as usize] = *b"\\\"";
    table[b'\\' as usize] = *b"\\\\";
    table[b'\n' as usize] = *b"\\n";
    table[b'\r' as usize] = *b"\\r";
    table[b'\t' as usize] = *b"\\t";
    table
};

#[inline]
fn write_escape(out: &mut Vec<u8>, byte: u8) {
    let short = SHORT[usize::from(byte)];
    if short[0] != 0 {
        out.extend_from_slice(&short);
        return;
    }
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(b"\\u00");
    out.push(HEX[usize::from(byte >> 4)]);
    out.push(HEX[usize::from(byte & 15)]);
}

const BLOCK: usize = 16;

/// How many bytes at the start of a block need no escape.
#[inline]
fn plain_bytes(block: &[u8; BLOCK]) -> usize {
    // In two words: what a vector would find comes back too slowly for the step that waits for it.
    let block = u128::from_le_bytes(*block);
    let (low, high) = (
        special_bytes(block as u64),
        special_bytes((block >> 64) as u64),
    );
    if low != 0 {
        (low.trailing_zeros() / 8) as usize
    } else if high != 0 {
        8 + (high.trailing_zeros() / 8) as usize
    } else {
        BLOCK
    }
}

/// One call of an assistant message.
pub struct WireCall<'a> {
    pub id: &'a str,
    pub name: &'a str,
    /// JSON text of an object.
    pub arguments: &'a str,
}

/// Messages rendered one after another, each followed by a comma.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    pub json: Vec<u8>,
    pub marks: Vec<Mark>,
}

/// Where a message ends, and the tokens of everything up to there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    pub end: usize,
    pub tokens: usize,
}

impl Messages {
    /// Room for one message of so many bytes of text, give or take a few escapes.
    pub fn with_room(text: usize) -> Self {
        Self {
            json: Vec::with_capacity(text + text / 32 + 64),
            marks: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.marks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    pub fn tokens(&self) -> usize {
        self.marks.last().map_or(0, |mark| mark.tokens)
    }

    /// JSON of message `index`, without the comma.
    pub fn message(&self, index: usize) -> &[u8] {
        let start = self.start(index);
        &self.json[start..self.marks[index].end - 1]
    }

    pub fn message_tokens(&self, index: usize) -> usize {
        self.marks[index].tokens - self.tokens_before(index)
    }

    fn start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |last| self.marks[last].end)
    }

    fn tokens_before(&self, index: usize) -> usize {
        index
            .checked_sub(1)
            .map_or(0, |last| self.marks[last].tokens)
    }

    /// Closes the message whose JSON was just written.
    pub fn close(&mut self, tokens: usize) {
        self.json.extend_from_slice(b"},");
        let tokens = self.tokens() + tokens;
        self.marks.push(Mark {
            end: self.json.len(),
            tokens,
        });
    }

    /// Adds a message that is written already, without the comma behind it.
    pub fn whole(&mut self, json: &[u8], tokens: usize) {
        self.json.extend_from_slice(json);
        self.json.push(b',');
        let tokens = self.tokens() + tokens;
        self.marks.push(Mark {
            end: self.json.len(),
            tokens,
        });
    }

    /// Copies `count` messages of `other` from `first` on.
    pub fn copy(&mut self, other: &Messages, first: usize, count: usize) {
        let (from, base) = (other.start(first), self.json.len());
        let (tokens_from, tokens_base) = (other.tokens_before(first), self.tokens());
        for mark in &other.marks[first..first + count] {
            self.marks.push(Mark {
                end: mark.end - from + base,
                tokens: mark.tokens - tokens_from + tokens_base,
            });
        }
        let end = if count == 0 {
            from
        } else {
            other.marks[first + count - 1].end
        };
        self.json.extend_from_slice(&other.json[from..end]);
    }

    pub fn append(&mut self, other: &Messages) {
        self.copy(other, 0, other.len());
    }

    pub fn open(&mut self, role: Role) {
        self.json.extend_from_slice(match role {
            Role::System => b"{\"role\":\"system\",\"content\":",
            Role::User => b"{\"role\":\"user\",\"content\":",
            Role::Assistant => b"{\"role\":\"assistant\",\"content\":",
            Role::Tool => b"{\"role\":\"tool\",\"content\":",
        });
    }

    pub fn text(&mut self, text: &str) {
        write_string(&mut self.json, text);
    }

    pub fn parts(&mut self, parts: &[Part<'_>]) {
        for (index, part) in parts.iter().enumerate() {
            self.json.push(if index == 0 { b'[' } else { b',' });
            match part {
                Part::Text(text) => {
                    self.json.extend_from_slice(b"{\"type\":\"text\",\"text\":");
                    write_string(&mut self.json, text);
                    self.json.push(b'}');
                }
                Part::Image(url) => {
                    self.json
                        .extend_from_slice(b"{\"type\":\"image_url\",\"image_url\":{\"url\":");
                    write_string(&mut self.json, url);
                    self.json.extend_from_slice(b"}}");
                }
            }
        }
        self.json.push(b']');
    }

    pub fn field(&mut self, name: &str, text: &str) {
        self.json.extend_from_slice(b",\"");
        self.json.extend_from_slice(name.as_bytes());
        self.json.extend_from_slice(b"\":");
        write_string(&mut self.json, text);
    }

    pub fn call(&mut self, index: usize, call: &WireCall<'_>) {
        self.json.extend_from_slice(if index == 0 {
            b",\"tool_calls\":[{\"id\":"
        } else {
            b",{\"id\":"
        });
        write_string(&mut self.json, call.id);
        self.json
            .extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
        write_string(&mut self.json, call.name);
        self.json.extend_from_slice(b",\"arguments\":");
        write_string(&mut self.json, call.arguments);
        self.json.extend_from_slice(b"}}");
    }

    pub fn close_calls(&mut self) {
        self.json.push(b']');
    }
}

/// Messages that are only ever appended to, shared by all windows that begin with them.
pub type Log = Arc<RwLock<Messages>>;

/// The log for reading. A panic elsewhere cannot leave it half written in a way that matters: marks are
/// pushed after the bytes they speak of.
pub fn read(log: &Log) -> RwLockReadGuard<'_, Messages> {
    log.read()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The log for writing; see `read`.
pub fn write(log: &Log) -> RwLockWriteGuard<'_, Messages> {
    log.write()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What one build gave: a view that stays as it is while the transcript goes on.
#[derive(Clone, Debug)]
pub struct Window {
    /// The system message, where there is one.
    pub head: Arc<Messages>,
    pub log: Log,
    /// How many messages of the log belong to this window.
    pub sealed: usize,
    /// Messages that may still change.
    pub open: Arc<Messages>,
    /// Tokens of all messages and of the tools' schemas.
    pub tokens: usize,
}

impl Window {
    pub fn len(&self) -> usize {
        self.head.len() + self.sealed + self.open.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a message carries its reasoning: only what may still change does.
    pub fn has_reasoning(&self) -> bool {
        memchr::memmem::find(&self.open.json, b"\"reasoning_content\"").is_some()
    }

    /// Calls `f` with the JSON of message `index` and its tokens.
    pub fn with_message<T>(&self, index: usize, f: impl FnOnce(&[u8], usize) -> T) -> Option<T> {
        let mut at = index;
        if at < self.head.len() {
            return Some(f(self.head.message(at), self.head.message_tokens(at)));
        }
        at -= self.head.len();
        if at < self.sealed {
            let log = read(&self.log);
            return Some(f(log.message(at), log.message_tokens(at)));
        }
        at -= self.sealed;
        (at < self.open.len()).then(|| f(self.open.message(at), self.open.message_tokens(at)))
    }

    /// Hands the pieces of the `messages` array to `f`; together they are the array.
    pub fn with_json<T>(&self, f: impl FnOnce(&[&[u8]]) -> T) -> T {
        let log = read(&self.log);
        let sealed = &log.json[..self
            .sealed
            .checked_sub(1)
            .map_or(0, |last| log.marks[last].end)];
        let mut pieces: [&[u8]; 5] = [b"[", &self.head.json, sealed, &self.open.json, b"]"];
        // Every message has a comma behind it; the last one goes.
        if let Some(last) = pieces[1..4]
            .iter_mut()
            .rev()
            .find(|piece| !piece.is_empty())
        {
            *last = &last[..last.len() - 1];
        }
        f(&pieces)
    }

    /// The `messages` array of a request.
    pub fn to_json(&self) -> Vec<u8> {
        self.with_json(|pieces| pieces.concat())
    }

    /// How many messages at the start are byte for byte those of `last`, and their tokens.
    pub fn common_prefix(&self, last: &Window) -> (usize, usize) {
        if self.head.json != last.head.json {
            return (0, 0);
        }
        let same_log = Arc::ptr_eq(&self.log, &last.log);
        let mut at = self.head.len();
        if same_log {
            at += self.sealed.min(last.sealed);
        }
        let end = self.len().min(last.len());
        while at < end {
            // Not two guards of one lock at once: a waiting writer between them would block for ever.
            let same = if same_log {
                let mine = self.with_message(at, |json, _| json.to_vec());
                mine.is_some_and(|mine| {
                    last.with_message(at, |theirs, _| theirs == mine)
                        .unwrap_or(false)
                })
            } else {
                self.with_message(at, |mine, _| {
                    last.with_message(at, |theirs, _| theirs == mine)
                        .unwrap_or(false)
                })
                .unwrap_or(false)
            };
            if !same {
                break;
            }
            at += 1;
        }
        (at, self.tokens_of(at))
    }

    /// Tokens of the first `count` messages.
    pub fn tokens_of(&self, count: usize) -> usize {
        let head = count.min(self.head.len());
        let sealed = (count - head).min(self.sealed);
        let open = count - head - sealed;
        let upto = |messages: &Messages, count: usize| {
            count
                .checked_sub(1)
                .map_or(0, |last| messages.marks[last].tokens)
        };
        upto(&self.head, head) + upto(&read(&self.log), sealed) + upto(&self.open, open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_as_a_json_library_does() {
        let samples = [
            "",
            "plain",
            "a\"b\\c\nd\re\tf\u{1}g\u{1f}\u{7f}",
            "exactly8",
            "exactly8\"",
            "日本語 \u{80}\u{a0} and \u{10ffff}\" end",
            "\u{0}\u{8}\u{c}",
        ];
        for text in samples {
            let mut out = Vec::new();
            write_string(&mut out, text);
            let back: String = serde_json::from_slice(&out).expect("valid JSON");
            assert_eq!(back, text);
        }
    }
}
