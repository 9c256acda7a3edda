use std::borrow::Cow;

use super::{BARE_TEXT, CLASS, CONTROL, ESCAPE, MAX_DEPTH, Place, QUOTE, encode_tight, scalar};

/// The JSON of a text that [`encode_tight`] wrote; any other text is borrowed as it is.
///
/// Key order and the text of numbers are kept; white space is not.
pub fn decode_tight(text: &str) -> Cow<'_, str> {
    let mut decoder = Decoder {
        text: text.as_bytes(),
        at: 0,
        out: Vec::with_capacity(text.len() + text.len() / 2),
    };
    if decoder.document().is_none() {
        return Cow::Borrowed(text);
    }
    match String::from_utf8(decoder.out) {
        // Reading is lenient in places; what writing would not give is not ours.
        Ok(json) if json != text && encode_tight(&json) == text => Cow::Owned(json),
        _ => Cow::Borrowed(text),
    }
}

struct Decoder<'t> {
    text: &'t [u8],
    at: usize,
    out: Vec<u8>,
}

impl Decoder<'_> {
    fn document(&mut self) -> Option<()> {
        match *self.text.first()? {
            b'[' => self.block(0)?,
            b'{' => self.value(Place::Line, 0)?,
            b'"' if self.text.get(self.quoted_end(0)?) != Some(&b'=') => {
                self.value(Place::Line, 0)?;
            }
            _ if self.first_line_has_key() => self.lines()?,
            _ if scalar(self.text) => self.value(Place::Line, 0)?,
            _ => self.whole_string()?,
        }
        (self.at == self.text.len()).then_some(())
    }

    fn first_line_has_key(&self) -> bool {
        self.text[0] == b'"'
            || memchr::memchr2(b'=', b'\n', self.text).is_some_and(|at| self.text[at] == b'=')
    }

    fn lines(&mut self) -> Option<()> {
        self.out.push(b'{');
        loop {
            self.key(b'=')?;
            self.block(1)?;
            match self.text.get(self.at) {
                None => break,
                Some(b'\n') => self.at += 1,
                Some(_) => return None,
            }
            self.out.push(b',');
        }
        self.out.push(b'}');
        Some(())
    }

    /// A table or a value.
    fn block(&mut self, depth: usize) -> Option<()> {
        match self.table_rows() {
            Some(rows) => self.table(rows, depth),
            None => self.value(Place::Line, depth),
        }
    }

    /// N, where `[N]` and a column begin here.
    fn table_rows(&self) -> Option<usize> {
        let rest = self.text[self.at..].strip_prefix(b"[")?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if rest.get(digits) != Some(&b']') || matches!(rest.get(digits + 1), None | Some(b'\n')) {
            return None;
        }
        std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
    }

    fn table(&mut self, rows: usize, depth: usize) -> Option<()> {
        self.at += memchr::memchr(b']', &self.text[self.at..])? + 1;
        let mut keys: Vec<Vec<u8>> = Vec::new();
        loop {
            let start = self.out.len();
            let end = self.key_text(b',', true)?;
            keys.push(self.out.split_off(start));
            self.at += 1;
            if end == b'\n' {
                break;
            }
        }
        self.out.push(b'[');
        for row in 0..rows {
            if row > 0 {
                self.step(b'\n')?;
                self.out.push(b',');
            }
            self.out.push(b'{');
            for (index, key) in keys.iter().enumerate() {
                if index > 0 {
                    self.step(b',')?;
                    self.out.push(b',');
                }
                self.out.extend_from_slice(key);
                self.out.push(b':');
                self.value(Place::Cell, depth + 2)?;
            }
            self.out.push(b'}');
        }
        self.out.push(b']');
        Some(())
    }

    fn value(&mut self, place: Place, depth: usize) -> Option<()> {
        match self.text.get(self.at)? {
            b'"' => {
                let end = self.quoted_end(self.at)?;
                self.out.extend_from_slice(&self.text[self.at..end]);
                self.at = end;
                Some(())
            }
            b'{' => self.bracketed(b'}', depth),
            b'[' => self.bracketed(b']', depth),
            _ => {
                let rest = &self.text[self.at..];
                let length = rest
                    .iter()
                    .position(|byte| match place {
                        Place::Line => *byte == b'\n',
                        Place::Cell => matches!(byte, b'\n' | b','),
                        Place::Nested => matches!(byte, b'\n' | b',' | b'}' | b']'),
                    })
                    .unwrap_or(rest.len());
                self.bare(length)
            }
        }
    }

    fn bracketed(&mut self, close: u8, depth: usize) -> Option<()> {
        if depth >= MAX_DEPTH {
            return None;
        }
        self.out.push(self.text[self.at]);
        self.at += 1;
        if self.text.get(self.at) == Some(&close) {
            self.at += 1;
            self.out.push(close);
            return Some(());
        }
        loop {
            if close == b'}' {
                self.key(b':')?;
            }
            self.value(Place::Nested, depth + 1)?;
            let byte = *self.text.get(self.at)?;
            self.at += 1;
            self.out.push(byte);
            if byte == close {
                return Some(());
            }
            if byte != b',' {
                return None;
            }
        }
    }

    /// A key and `end` after it, as JSON.
    fn key(&mut self, end: u8) -> Option<()> {
        self.key_text(end, false)?;
        self.at += 1;
        self.out.push(b':');
        Some(())
    }

    /// A key as JSON, up to `end` (or a line break, where that may end it), which is returned.
    fn key_text(&mut self, end: u8, or_line: bool) -> Option<u8> {
        if self.text.get(self.at) == Some(&b'"') {
            let close = self.quoted_end(self.at)?;
            self.out.extend_from_slice(&self.text[self.at..close]);
            self.at = close;
        } else {
            let length = self.text[self.at..]
                .iter()
                .position(|byte| *byte == end || *byte == b'\n')?;
            self.out.push(b'"');
            self.plain(length)?;
            self.out.push(b'"');
        }
        let found = *self.text.get(self.at)?;
        (found == end || or_line && found == b'\n').then_some(found)
    }

    /// `length` bytes without quotes: a number, a literal, or a string.
    fn bare(&mut self, length: usize) -> Option<()> {
        let text = &self.text[self.at..self.at + length];
        if scalar(text) {
            self.out.extend_from_slice(text);
            self.at += length;
            return Some(());
        }
        self.out.push(b'"');
        self.plain(length)?;
        self.out.push(b'"');
        Some(())
    }

    /// Copies what stands for itself in a JSON string too.
    fn plain(&mut self, length: usize) -> Option<()> {
        let text = &self.text[self.at..self.at + length];
        let special = |byte: &u8| CLASS[usize::from(*byte)] & (ESCAPE | QUOTE | CONTROL) != 0;
        if length == 0 || text.iter().any(special) {
            return None;
        }
        self.out.extend_from_slice(text);
        self.at += length;
        Some(())
    }

    fn whole_string(&mut self) -> Option<()> {
        if self.text.len() > BARE_TEXT {
            return None;
        }
        self.out.push(b'"');
        for (index, line) in self.text.split(|byte| *byte == b'\n').enumerate() {
            if index > 0 {
                self.out.extend_from_slice(b"\\n");
                self.at += 1;
            }
            if !line.is_empty() {
                self.plain(line.len())?;
            }
        }
        self.out.push(b'"');
        Some(())
    }

    fn step(&mut self, byte: u8) -> Option<()> {
        (self.text.get(self.at) == Some(&byte)).then(|| self.at += 1)
    }

    /// Where the quoted string that begins at `start` ends.
    fn quoted_end(&self, start: usize) -> Option<usize> {
        let mut at = start + 1;
        loop {
            match self.text.get(at)? {
                b'"' => return Some(at + 1),
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
    }
}
