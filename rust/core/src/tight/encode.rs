use std::borrow::Cow;

use super::{
    BARE_TEXT, CLASS, CONTROL, ESCAPE, MAX_DEPTH, Place, QUOTE, bare_key, bare_value,
    number_length, scalar,
};

/// JSON `text` in tight form; borrowed where that is the same, where `text` is no JSON, and where it is
/// nested more than 128 deep.
///
/// ```
/// use agentkit_core::tight::encode_tight;
/// assert_eq!(
///     encode_tight(r#"[{"id":1,"name":"Ann"},{"id":2,"name":"Bo"}]"#),
///     "[2]id,name\n1,Ann\n2,Bo"
/// );
/// ```
pub fn encode_tight(text: &str) -> Cow<'_, str> {
    let mut encoder = Encoder {
        text: text.as_bytes(),
        at: 0,
        out: Vec::with_capacity(text.len()),
    };
    let Some(()) = encoder.document() else {
        return Cow::Borrowed(text);
    };
    match String::from_utf8(encoder.out) {
        Ok(out) if out != text => Cow::Owned(out),
        // Only whole characters and ASCII are written, so it is UTF-8 always.
        _ => Cow::Borrowed(text),
    }
}

/// Walks the JSON once and writes as it goes; `None` is "no JSON".
struct Encoder<'t> {
    text: &'t [u8],
    at: usize,
    out: Vec<u8>,
}

/// A string token: its text between the quotes, and the classes of its bytes.
#[derive(Clone, Copy)]
struct Token<'t> {
    text: &'t [u8],
    classes: u8,
}

impl<'t> Encoder<'t> {
    fn document(&mut self) -> Option<()> {
        match self.next()? {
            b'{' => self.lines()?,
            b'[' => self.array(0)?,
            b'"' => {
                let token = self.string()?;
                self.whole_string(token);
            }
            _ => self.value(Place::Line, 0)?,
        }
        self.skip_space();
        (self.at == self.text.len()).then_some(())
    }

    /// The object at the top, a line a pair.
    fn lines(&mut self) -> Option<()> {
        self.at += 1;
        if self.next()? == b'}' {
            self.at += 1;
            self.out.extend_from_slice(b"{}");
            return Some(());
        }
        loop {
            let key = self.key()?;
            self.write_key(key);
            self.out.push(b'=');
            match self.next()? {
                b'[' => self.array(1)?,
                _ => self.value(Place::Line, 1)?,
            }
            if !self.more(b'}')? {
                return Some(());
            }
            self.out.push(b'\n');
        }
    }

    /// A table where all items are objects with the keys of the first; else an array in brackets.
    fn array(&mut self, depth: usize) -> Option<()> {
        let (at, written) = (self.at, self.out.len());
        if !self.table(depth)? {
            self.at = at;
            self.out.truncate(written);
            self.value(Place::Nested, depth)?;
        }
        Some(())
    }

    fn table(&mut self, depth: usize) -> Option<bool> {
        let start = self.out.len();
        self.at += 1;
        if self.next()? != b'{' {
            return Some(false);
        }
        let mut keys: Vec<Token<'t>> = Vec::new();
        let mut cells = Vec::new();
        self.at += 1;
        if self.next()? == b'}' {
            return Some(false);
        }
        // The first row waits until the header, which it names, is written.
        loop {
            let key = self.key()?;
            if !keys.is_empty() {
                cells.push(b',');
                self.out.push(b',');
            }
            self.write_key(key);
            keys.push(key);
            std::mem::swap(&mut cells, &mut self.out);
            self.value(Place::Cell, depth + 2)?;
            std::mem::swap(&mut cells, &mut self.out);
            if !self.more(b'}')? {
                break;
            }
        }
        self.out.push(b'\n');
        self.out.append(&mut cells);
        let mut rows = 1_usize;
        while self.more(b']')? {
            if self.text[self.at] != b'{' {
                return Some(false);
            }
            self.at += 1;
            self.out.push(b'\n');
            for (index, want) in keys.iter().enumerate() {
                if self.next()? == b'}' || self.key()?.text != want.text {
                    return Some(false);
                }
                if index > 0 {
                    self.out.push(b',');
                }
                self.value(Place::Cell, depth + 2)?;
                let last = index + 1 == keys.len();
                if self.more(b'}')? == last {
                    return Some(false);
                }
            }
            rows += 1;
        }
        let count = format!("[{rows}]");
        self.out.splice(start..start, count.bytes());
        Some(true)
    }

    /// Any value; arrays and objects in brackets.
    fn value(&mut self, place: Place, depth: usize) -> Option<()> {
        match self.next()? {
            b'"' => {
                let token = self.string()?;
                if bare_value(token.text, token.classes, place) {
                    self.out.extend_from_slice(token.text);
                } else {
                    self.quoted(token);
                }
                Some(())
            }
            b'{' => self.bracketed(b'}', depth),
            b'[' => self.bracketed(b']', depth),
            b'-' | b'0'..=b'9' => {
                let length = number_length(&self.text[self.at..]);
                self.copy(length)
            }
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => None,
        }
    }

    fn bracketed(&mut self, close: u8, depth: usize) -> Option<()> {
        if depth >= MAX_DEPTH {
            return None;
        }
        self.copy(1)?;
        if self.next()? == close {
            return self.copy(1);
        }
        loop {
            if close == b'}' {
                let key = self.key()?;
                self.write_key(key);
                self.out.push(b':');
            }
            self.value(Place::Nested, depth + 1)?;
            if !self.more(close)? {
                self.out.push(close);
                return Some(());
            }
            self.out.push(b',');
        }
    }

    /// Steps over `,` (true) or `close` (false).
    fn more(&mut self, close: u8) -> Option<bool> {
        let byte = self.next()?;
        self.at += 1;
        if byte == close {
            return Some(false);
        }
        if byte != b',' {
            return None;
        }
        self.next()?;
        Some(true)
    }

    /// A key and the colon after it.
    fn key(&mut self) -> Option<Token<'t>> {
        if self.next()? != b'"' {
            return None;
        }
        let token = self.string()?;
        if self.next()? != b':' {
            return None;
        }
        self.at += 1;
        Some(token)
    }

    fn write_key(&mut self, key: Token<'_>) {
        if bare_key(key.text, key.classes) {
            self.out.extend_from_slice(key.text);
        } else {
            self.quoted(key);
        }
    }

    fn quoted(&mut self, token: Token<'_>) {
        self.out.push(b'"');
        self.out.extend_from_slice(token.text);
        self.out.push(b'"');
    }

    fn whole_string(&mut self, token: Token<'_>) {
        match bare_text(token) {
            Some(bare) => self.out.extend_from_slice(&bare),
            None => self.quoted(token),
        }
    }

    /// The string token that begins here.
    fn string(&mut self) -> Option<Token<'t>> {
        let start = self.at + 1;
        let mut at = start;
        let mut classes = 0;
        loop {
            let class = CLASS[usize::from(*self.text.get(at)?)];
            if class & (QUOTE | ESCAPE | CONTROL) == 0 {
                classes |= class;
                at += 1;
                continue;
            }
            if class == QUOTE {
                break;
            }
            if class == CONTROL {
                return None;
            }
            classes |= ESCAPE;
            at += match self.text.get(at + 1)? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
                b'u' => {
                    let digits = self.text.get(at + 2..at + 6)?;
                    if !digits.iter().all(u8::is_ascii_hexdigit) {
                        return None;
                    }
                    6
                }
                _ => return None,
            };
        }
        self.at = at + 1;
        Some(Token {
            text: &self.text[start..at],
            classes,
        })
    }

    fn literal(&mut self, word: &[u8]) -> Option<()> {
        if !self.text[self.at..].starts_with(word) {
            return None;
        }
        self.copy(word.len())
    }

    /// Copies `length` bytes, of which there is at least one.
    fn copy(&mut self, length: usize) -> Option<()> {
        if length == 0 {
            return None;
        }
        self.out
            .extend_from_slice(&self.text[self.at..self.at + length]);
        self.at += length;
        Some(())
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    /// The next byte that is no white space; stays before it.
    fn next(&mut self) -> Option<u8> {
        self.skip_space();
        self.text.get(self.at).copied()
    }
}

/// The string as a text of its own, where it needs no quotes there.
fn bare_text(token: Token<'_>) -> Option<Vec<u8>> {
    if token.text.len() > BARE_TEXT {
        return None;
    }
    let mut bare = Vec::with_capacity(token.text.len());
    let mut bytes = token.text.iter();
    while let Some(byte) = bytes.next() {
        bare.push(match byte {
            b'\\' if bytes.next() == Some(&b'n') => b'\n',
            b'\\' | b' ' | b'=' => return None,
            other => *other,
        });
    }
    let edges = [bare.first()?, bare.last()?];
    let odd = edges.contains(&&b'\n') || matches!(edges[0], b'{' | b'[') || scalar(&bare);
    (!odd).then_some(bare)
}
