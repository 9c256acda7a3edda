//! Entries as they come in: as records of a host's own making, or as one MessagePack array of maps, read without
//! copying a text.
//!
//! MessagePack because its strings carry their length: reading an entry is a handful of slices, where
//! JSON would have to be scanned and unescaped.

use std::borrow::Cow;
use std::fmt;

/// What an entry records. Kinds of a host's own are notifications that show their name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    User,
    Assistant,
    Call,
    Result,
    Marker,
    Notice,
}

/// One piece of multimodal content: text, or an image (with its URL).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    Text(Cow<'a, str>),
    Image(Cow<'a, str>),
}

/// One durable record, borrowed from the bytes it came in.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    pub id: Cow<'a, str>,
    pub kind: Kind,
    pub content: Cow<'a, str>,
    pub parts: Vec<Part<'a>>,
    pub reasoning: Cow<'a, str>,
    pub call_id: Cow<'a, str>,
    pub tool_name: Cow<'a, str>,
    pub tag: Cow<'a, str>,
    pub created_at: i64,
}

impl Default for Record<'_> {
    fn default() -> Self {
        Self {
            id: Cow::Borrowed(""),
            kind: Kind::Notice,
            content: Cow::Borrowed(""),
            parts: Vec::new(),
            reasoning: Cow::Borrowed(""),
            call_id: Cow::Borrowed(""),
            tool_name: Cow::Borrowed(""),
            tag: Cow::Borrowed(""),
            created_at: 0,
        }
    }
}

impl<'a> Record<'a> {
    /// The kind by its name. One that is none of ours is shown as the tag, where there is no other; so this comes
    /// after the tag.
    pub fn set_kind(&mut self, name: impl Into<Cow<'a, str>>) {
        let name = name.into();
        self.kind = kind_of(name.as_bytes());
        if self.kind == Kind::Notice && self.tag.is_empty() {
            self.tag = name;
        }
    }

    /// The history's order: time, then a marker before what it does not cover, then id.
    pub fn key(&self) -> (i64, bool, &str) {
        (self.created_at, self.kind != Kind::Marker, &self.id)
    }

    pub fn into_owned(self) -> Record<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        Record {
            id: own(self.id),
            kind: self.kind,
            content: own(self.content),
            parts: self
                .parts
                .into_iter()
                .map(|part| match part {
                    Part::Text(text) => Part::Text(own(text)),
                    Part::Image(url) => Part::Image(own(url)),
                })
                .collect(),
            reasoning: own(self.reasoning),
            call_id: own(self.call_id),
            tool_name: own(self.tool_name),
            tag: own(self.tag),
            created_at: self.created_at,
        }
    }
}

/// The bytes are not an array of entries.
#[derive(Debug)]
pub struct DecodeError(pub String);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All entries of a MessagePack array, in its order. Unknown fields are skipped, a missing or null field
/// is empty, a number where text belongs is its decimal text.
pub fn decode(bytes: &[u8]) -> Result<Vec<Record<'_>>, DecodeError> {
    let mut reader = Reader { bytes, at: 0 };
    let count = reader.array_len()?;
    // A count in the input is not a size to trust: an entry takes at least one byte.
    let mut records = Vec::with_capacity(count.min(bytes.len()));
    for _ in 0..count {
        // Filled where it stands: a record is too large to be moved about.
        records.push(Record::default());
        if let Some(record) = records.last_mut() {
            reader.record(record)?;
        }
    }
    Ok(records)
}

const MAX_DEPTH: usize = 64;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

enum Value<'a> {
    Nil,
    Int(i64),
    Text(Cow<'a, str>),
    Array(usize),
    Map(usize),
    Other,
}

/// The text as it is where it is UTF-8, else with replacement characters.
#[inline]
fn checked(bytes: &[u8]) -> Cow<'_, str> {
    // The plain check is several times faster than the lossy one, and nearly always enough.
    match simdutf8::basic::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(bytes),
    }
}

fn kind_of(name: &[u8]) -> Kind {
    match name {
        b"user" => Kind::User,
        b"assistant" => Kind::Assistant,
        b"tool_call" => Kind::Call,
        b"tool_result" => Kind::Result,
        b"compaction" => Kind::Marker,
        _ => Kind::Notice,
    }
}

impl<'a> Reader<'a> {
    fn error<T>(&self, what: &str) -> Result<T, DecodeError> {
        Err(DecodeError(format!(
            "entries could not be read at byte {}: {what}",
            self.at
        )))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        match self
            .at
            .checked_add(len)
            .and_then(|end| self.bytes.get(self.at..end))
        {
            Some(slice) => {
                self.at += len;
                Ok(slice)
            }
            None => self.error("the bytes end too early"),
        }
    }

    fn uint(&mut self, len: usize) -> Result<u64, DecodeError> {
        Ok(self
            .take(len)?
            .iter()
            .fold(0, |value, byte| (value << 8) | u64::from(*byte)))
    }

    fn text(&mut self, len: usize) -> Result<Value<'a>, DecodeError> {
        Ok(Value::Text(checked(self.take(len)?)))
    }

    /// The bytes of the string that comes next, where it is one of less than 64 KiB and all there. Nearly every
    /// field is; all others are for `value`.
    #[inline]
    fn short(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let (head, len) = match *rest {
            [tag @ 0xa0..=0xbf, ..] => (1, usize::from(tag & 0x1f)),
            [0xd9, len, ..] => (2, usize::from(len)),
            [0xda, high, low, ..] => (3, usize::from(u16::from_be_bytes([high, low]))),
            _ => return None,
        };
        let text = rest.get(head..head + len)?;
        self.at += head + len;
        Some(text)
    }

    fn value(&mut self) -> Result<Value<'a>, DecodeError> {
        let tag = self.take(1)?[0];
        match tag {
            0x00..=0x7f => Ok(Value::Int(i64::from(tag))),
            0x80..=0x8f => Ok(Value::Map(usize::from(tag & 0x0f))),
            0x90..=0x9f => Ok(Value::Array(usize::from(tag & 0x0f))),
            0xa0..=0xbf => self.text(usize::from(tag & 0x1f)),
            0xc0 => Ok(Value::Nil),
            0xc2 | 0xc3 => Ok(Value::Other),
            0xc4..=0xc6 => {
                let len = self.uint(1 << (tag - 0xc4))? as usize;
                self.take(len)?;
                Ok(Value::Other)
            }
            0xc7..=0xc9 => {
                let len = self.uint(1 << (tag - 0xc7))? as usize;
                self.take(len.saturating_add(1))?;
                Ok(Value::Other)
            }
            0xca => self.take(4).map(|_| Value::Other),
            0xcb => self.take(8).map(|_| Value::Other),
            0xcc..=0xcf => {
                let value = self.uint(1 << (tag - 0xcc))?;
                Ok(Value::Int(i64::try_from(value).unwrap_or(i64::MAX)))
            }
            0xd0 => Ok(Value::Int(i64::from(self.uint(1)? as u8 as i8))),
            0xd1 => Ok(Value::Int(i64::from(self.uint(2)? as u16 as i16))),
            0xd2 => Ok(Value::Int(i64::from(self.uint(4)? as u32 as i32))),
            0xd3 => Ok(Value::Int(self.uint(8)? as i64)),
            0xd4..=0xd8 => {
                self.take(1 + (1 << (tag - 0xd4)))?;
                Ok(Value::Other)
            }
            0xd9 => {
                let len = self.uint(1)? as usize;
                self.text(len)
            }
            0xda => {
                let len = self.uint(2)? as usize;
                self.text(len)
            }
            0xdb => {
                let len = self.uint(4)? as usize;
                self.text(len)
            }
            0xdc => Ok(Value::Array(self.uint(2)? as usize)),
            0xdd => Ok(Value::Array(self.uint(4)? as usize)),
            0xde => Ok(Value::Map(self.uint(2)? as usize)),
            0xdf => Ok(Value::Map(self.uint(4)? as usize)),
            0xc1 | 0xe0..=0xff => {
                if tag == 0xc1 {
                    self.error("a byte that is no MessagePack")
                } else {
                    Ok(Value::Int(i64::from(tag as i8)))
                }
            }
        }
    }

    fn skip(&mut self, depth: usize) -> Result<(), DecodeError> {
        let value = self.value()?;
        self.skip_rest(&value, depth)
    }

    /// Skips what `value` still holds.
    fn skip_rest(&mut self, value: &Value<'a>, depth: usize) -> Result<(), DecodeError> {
        let count = match value {
            Value::Array(count) => *count,
            Value::Map(count) => count.saturating_mul(2),
            _ => return Ok(()),
        };
        if depth >= MAX_DEPTH {
            return self.error("nested too deeply");
        }
        for _ in 0..count {
            self.skip(depth + 1)?;
        }
        Ok(())
    }

    fn array_len(&mut self) -> Result<usize, DecodeError> {
        match self.value()? {
            Value::Array(count) => Ok(count),
            _ => self.error("an array was expected"),
        }
    }

    /// A field's name; only compared, so it need not be checked to be UTF-8.
    fn name(&mut self) -> Result<&'a [u8], DecodeError> {
        if let Some(name) = self.short() {
            return Ok(name);
        }
        let value = self.value()?;
        self.skip_rest(&value, 0)?;
        Ok(match value {
            Value::Text(Cow::Borrowed(text)) => text.as_bytes(),
            _ => b"",
        })
    }

    #[inline]
    fn string(&mut self) -> Result<Cow<'a, str>, DecodeError> {
        match self.short() {
            Some(bytes) => Ok(checked(bytes)),
            None => self.any_string(),
        }
    }

    /// Of any length, or something else where text belongs.
    #[cold]
    fn any_string(&mut self) -> Result<Cow<'a, str>, DecodeError> {
        let value = self.value()?;
        self.skip_rest(&value, 0)?;
        Ok(match value {
            Value::Text(text) => text,
            Value::Int(number) => Cow::Owned(number.to_string()),
            _ => Cow::Borrowed(""),
        })
    }

    /// Goes past `name` where it comes next.
    #[inline]
    fn follows<const LEN: usize>(&mut self, name: &[u8; LEN]) -> bool {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let found = rest.first_chunk::<LEN>() == Some(name);
        if found {
            self.at += LEN;
        }
        found
    }

    /// The kind, and its name where it is none of ours.
    #[inline]
    fn kind(&mut self) -> Result<(Kind, Cow<'a, str>), DecodeError> {
        let begun = self.at;
        let kind = self.short().map_or(Kind::Notice, kind_of);
        if kind != Kind::Notice {
            return Ok((kind, Cow::Borrowed("")));
        }
        self.at = begun;
        let name = self.string()?;
        Ok((kind_of(name.as_bytes()), name))
    }

    /// Nanoseconds come as eight bytes.
    #[inline]
    fn time(&mut self) -> Result<i64, DecodeError> {
        if let Some([0xcf, digits @ ..]) = self.bytes.get(self.at..)
            && let Some(digits) = digits.first_chunk::<8>()
        {
            self.at += 9;
            return Ok(i64::try_from(u64::from_be_bytes(*digits)).unwrap_or(i64::MAX));
        }
        match self.value()? {
            Value::Int(at) => Ok(at),
            other => self.skip_rest(&other, 0).map(|()| 0),
        }
    }

    fn record(&mut self, record: &mut Record<'a>) -> Result<(), DecodeError> {
        let mut other_kind = Cow::Borrowed("");
        let fields = match self.bytes.get(self.at) {
            Some(tag @ 0x80..=0x8f) => {
                self.at += 1;
                usize::from(tag & 0x0f)
            }
            _ => match self.value()? {
                Value::Map(fields) => fields,
                _ => return self.error("an entry was expected"),
            },
        };
        // msgspec writes the fields in the struct's order and leaves out what is empty: these one after another
        // are all of nearly every entry, and comparing a name is cheaper than looking for it.
        let mut left = fields;
        if left > 0 && self.follows(b"\xa2id") {
            record.id = self.string()?;
            left -= 1;
        }
        if left > 0 && self.follows(b"\xa4kind") {
            (record.kind, other_kind) = self.kind()?;
            left -= 1;
        }
        if left > 0 && self.follows(b"\xa7content") {
            record.content = self.string()?;
            left -= 1;
        }
        if left > 0 && self.follows(b"\xactool_call_id") {
            record.call_id = self.string()?;
            left -= 1;
        }
        if left > 0 && self.follows(b"\xa9tool_name") {
            record.tool_name = self.string()?;
            left -= 1;
        }
        if left > 0 && self.follows(b"\xaacreated_at") {
            record.created_at = self.time()?;
            left -= 1;
        }
        for _ in 0..left {
            match self.name()? {
                b"id" => record.id = self.string()?,
                b"kind" => (record.kind, other_kind) = self.kind()?,
                b"content" => record.content = self.string()?,
                b"parts" => record.parts = self.parts()?,
                b"reasoning" => record.reasoning = self.string()?,
                b"tool_call_id" => record.call_id = self.string()?,
                b"tool_name" => record.tool_name = self.string()?,
                b"tag" => record.tag = self.string()?,
                b"created_at" => record.created_at = self.time()?,
                _ => self.skip(0)?,
            }
        }
        if record.kind == Kind::Notice && record.tag.is_empty() {
            record.tag = other_kind;
        }
        Ok(())
    }

    fn parts(&mut self) -> Result<Vec<Part<'a>>, DecodeError> {
        let value = self.value()?;
        let Value::Array(count) = value else {
            self.skip_rest(&value, 0)?;
            return Ok(Vec::new());
        };
        let mut parts = Vec::with_capacity(count.min(16));
        for _ in 0..count {
            let value = self.value()?;
            let Value::Map(fields) = value else {
                self.skip_rest(&value, 0)?;
                continue;
            };
            let (mut kind, mut text, mut url) =
                (Cow::Borrowed(""), Cow::Borrowed(""), Cow::Borrowed(""));
            for _ in 0..fields {
                match self.name()? {
                    b"type" => kind = self.string()?,
                    b"text" => text = self.string()?,
                    b"url" => url = self.string()?,
                    _ => self.skip(0)?,
                }
            }
            parts.push(if kind == "text" {
                Part::Text(text)
            } else {
                Part::Image(url)
            });
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[{"id":"a","kind":"odd","created_at":300,"x":[1,{"y":null}]}]`
    const SAMPLE: &[u8] =
        b"\x91\x84\xa2id\xa1a\xa4kind\xa3odd\xaacreated_at\xcd\x01\x2c\xa1x\x92\x01\x81\xa1y\xc0";

    #[test]
    fn reads_an_entry_and_skips_what_it_does_not_know() {
        let records = decode(SAMPLE).expect("valid");
        assert_eq!(records[0].id, "a");
        assert_eq!(records[0].kind, Kind::Notice);
        assert_eq!(records[0].tag, "odd");
        assert_eq!(records[0].created_at, 300);
    }

    #[test]
    fn fields_are_read_in_any_order_and_the_last_of_one_name_counts() {
        let fields: [(&[u8], &[u8]); 7] = [
            (b"\xa2id", b"\xa1a"),
            (b"\xa4kind", b"\xa9tool_call"),
            (b"\xa7content", b"\xd9\x02{}"),
            (b"\xactool_call_id", b"\xda\x00\x01k"),
            (b"\xa9tool_name", b"\xdb\x00\x00\x00\x04look"),
            (b"\xaacreated_at", b"\xcf\x00\x00\x00\x00\x00\x00\x01\x2c"),
            (b"\xa3tag", b"\x07"),
        ];
        for first in 0..fields.len() {
            for backwards in [false, true] {
                let mut bytes = b"\x91\x88".to_vec();
                // Its value is overwritten by the one that comes later.
                bytes.extend_from_slice(b"\xa2id\xc0");
                for step in 0..fields.len() {
                    let at = if backwards { fields.len() - step } else { step };
                    let (name, value) = fields[(first + at) % fields.len()];
                    bytes.extend_from_slice(name);
                    bytes.extend_from_slice(value);
                }
                let [record] = decode(&bytes).expect("valid").try_into().expect("one");
                let texts = [record.id, record.content, record.call_id, record.tool_name];
                assert_eq!(texts, ["a", "{}", "k", "look"], "from {first}");
                assert_eq!((record.kind, record.created_at), (Kind::Call, 300));
                assert_eq!(record.tag, "7");
                for end in 0..bytes.len() {
                    assert!(decode(&bytes[..end]).is_err(), "from {first} cut at {end}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_utf8_is_replaced() {
        let mut long = b"\x91\x82\xa4kind\xa1\xff\xa7content\xd9\x65".to_vec();
        long.extend([b'x'; 100]);
        long.push(0xc3);
        let records = decode(&long).expect("valid");
        assert_eq!(records[0].tag, "\u{fffd}");
        assert_eq!(records[0].content, "x".repeat(100) + "\u{fffd}");
    }

    #[test]
    fn every_cut_is_an_error_and_no_panic() {
        for end in 0..SAMPLE.len() {
            assert!(decode(&SAMPLE[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn depth_and_counts_are_bounded() {
        let mut deep = b"\x91\x81\xa1x".to_vec();
        deep.extend(std::iter::repeat_n(0x91, 100_000));
        assert!(decode(&deep).is_err());
        assert!(decode(b"\xdd\xff\xff\xff\xff").is_err());
        assert!(decode(b"\x91\x81\xa2id\xdb\xff\xff\xff\xff").is_err());
    }
}
