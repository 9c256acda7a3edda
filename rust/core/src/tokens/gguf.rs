//! The header of a GGUF file: its metadata, and nothing of its weights.
//!
//! Reading goes as far as the header does and no further, so a file of 100 GB costs what its header
//! costs. Strings stay where they were read and are handed out as slices. Whatever a damaged file
//! claims, memory stays below twice what was really read, and reading stops at [`HEADER_LIMIT`].

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

/// A header larger than this is refused. The largest seen (a vocabulary of 262,144 tokens with its
/// merges) are near 20 MB.
pub const HEADER_LIMIT: usize = 256 << 20;
/// More keys than this are refused; files in use have a few dozen.
pub const KEY_LIMIT: u64 = 1 << 16;
/// First read, in bytes: holds the header of most models up to a vocabulary of 50,000 tokens.
const FIRST_READ: usize = 2 << 20;

/// Why a header could not be read.
#[derive(Debug)]
pub enum GgufError {
    /// The operating system refused.
    Io(io::Error),
    /// The bytes are not a GGUF header, or a damaged one.
    Damaged { offset: usize, message: String },
}

impl fmt::Display for GgufError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(out, "{error}"),
            Self::Damaged { offset, message } => {
                write!(out, "not a usable GGUF file: {message} (at byte {offset})")
            }
        }
    }
}

impl std::error::Error for GgufError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Damaged { .. } => None,
        }
    }
}

impl From<io::Error> for GgufError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The types a value, or the elements of an array, can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    U64,
    I64,
    F64,
}

impl Kind {
    fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Bytes of one value, 0 for a string.
    fn width(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::String => 0,
        }
    }
}

const ARRAY_CODE: u32 = 9;

/// One metadata value, borrowed from its header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(&'a [u8]),
    Array(Array<'a>),
}

/// An array of metadata, borrowed from its header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    pub kind: Kind,
    pub len: usize,
    bytes: &'a [u8],
    strings: &'a [(u32, u32)],
    whole: &'a [u8],
    big_endian: bool,
}

impl<'a> Array<'a> {
    /// The element at `index`, `None` past the end.
    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        if self.kind == Kind::String {
            let &(start, len) = self.strings.get(index)?;
            let start = start as usize;
            return Some(Value::String(&self.whole[start..start + len as usize]));
        }
        let width = self.kind.width();
        let bytes = self.bytes.get(index.checked_mul(width)?..)?.get(..width)?;
        Some(number(self.kind, bytes, self.big_endian))
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Value<'a>> + use<'a> {
        let array = *self;
        (0..self.len).map(move |index| array.get(index).unwrap_or(Value::Bool(false)))
    }

    /// The strings of an array of strings; empty for any other.
    pub fn strings(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let whole = self.whole;
        self.strings
            .iter()
            .map(move |&(start, len)| &whole[start as usize..start as usize + len as usize])
    }
}

enum Stored {
    Scalar {
        kind: Kind,
        start: usize,
    },
    Text(Range<usize>),
    Array {
        kind: Kind,
        len: usize,
        start: usize,
        strings: Vec<(u32, u32)>,
    },
}

/// The metadata of one GGUF file.
pub struct Header {
    data: Vec<u8>,
    entries: Vec<(String, Stored)>,
    pub version: u32,
    pub big_endian: bool,
    pub tensor_count: u64,
    /// Bytes from the start of the file to the end of the tensor descriptions.
    pub byte_len: usize,
}

impl Header {
    /// Reads the header of the file at `path`.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::read(File::open(path)?)
    }

    /// Reads a header from the start of `input`.
    pub fn read(input: impl Read) -> Result<Self, GgufError> {
        Parser {
            input,
            data: Vec::new(),
            at: 0,
            done: false,
            big_endian: false,
        }
        .header()
    }

    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|(key, _)| key.as_str())
    }

    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let (_, stored) = self.entries.iter().find(|(name, _)| name == key)?;
        Some(match stored {
            Stored::Scalar { kind, start } => number(
                *kind,
                &self.data[*start..*start + kind.width()],
                self.big_endian,
            ),
            Stored::Text(range) => Value::String(&self.data[range.clone()]),
            Stored::Array {
                kind,
                len,
                start,
                strings,
            } => Value::Array(Array {
                kind: *kind,
                len: *len,
                bytes: &self.data[*start..*start + len * kind.width()],
                strings,
                whole: &self.data,
                big_endian: self.big_endian,
            }),
        })
    }

    /// The text of `key`; bytes that are not UTF-8 become U+FFFD. An error where the type is another.
    pub fn text(&self, key: &str) -> Result<Option<String>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(bytes)) => Ok(Some(String::from_utf8_lossy(bytes).into_owned())),
            Some(_) => Err(wrong_type(key, "a string")),
        }
    }

    /// The whole number of `key`, whatever its width. An error where the type is another.
    pub fn integer(&self, key: &str) -> Result<Option<i64>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Signed(value)) => Ok(Some(value)),
            Some(Value::Unsigned(value)) => i64::try_from(value)
                .map(Some)
                .map_err(|_| wrong_type(key, "a number below 2^63")),
            Some(_) => Err(wrong_type(key, "a whole number")),
        }
    }

    pub fn boolean(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(wrong_type(key, "a boolean")),
        }
    }

    pub fn array(&self, key: &str) -> Result<Option<Array<'_>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(_) => Err(wrong_type(key, "an array")),
        }
    }

    /// The array of strings at `key`.
    pub fn string_array(&self, key: &str) -> Result<Option<Array<'_>>, GgufError> {
        match self.array(key)? {
            Some(array) if array.kind != Kind::String => {
                Err(wrong_type(key, "an array of strings"))
            }
            array => Ok(array),
        }
    }
}

fn wrong_type(key: &str, wanted: &str) -> GgufError {
    GgufError::Damaged {
        offset: 0,
        message: format!("{key} is not {wanted}"),
    }
}

fn number(kind: Kind, bytes: &[u8], big_endian: bool) -> Value<'static> {
    let mut raw = [0_u8; 8];
    for (index, &byte) in bytes.iter().enumerate() {
        let place = if big_endian {
            bytes.len() - 1 - index
        } else {
            index
        };
        raw[place] = byte;
    }
    let bits = u64::from_le_bytes(raw);
    match kind {
        Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => Value::Unsigned(bits),
        // The casts keep the low bytes, which are all that was read.
        Kind::I8 => Value::Signed(i64::from(bits as i8)),
        Kind::I16 => Value::Signed(i64::from(bits as i16)),
        Kind::I32 => Value::Signed(i64::from(bits as i32)),
        Kind::I64 => Value::Signed(bits as i64),
        Kind::F32 => Value::Float(f64::from(f32::from_bits(bits as u32))),
        Kind::F64 => Value::Float(f64::from_bits(bits)),
        Kind::Bool => Value::Bool(bits != 0),
        Kind::String => Value::String(b""),
    }
}

struct Parser<R> {
    input: R,
    data: Vec<u8>,
    at: usize,
    done: bool,
    big_endian: bool,
}

impl<R: Read> Parser<R> {
    fn header(mut self) -> Result<Header, GgufError> {
        if self.take(4, "the magic number")? != *b"GGUF" {
            return self.damaged("it does not begin with GGUF");
        }
        let raw = self.take(4, "the version")?;
        let little = u32::from_le_bytes(raw);
        // Versions are small: a swapped one has its low half empty.
        self.big_endian = little & 0xffff == 0;
        let version = if self.big_endian {
            u32::from_be_bytes(raw)
        } else {
            little
        };
        if !(2..=3).contains(&version) {
            return self.damaged(&format!(
                "its version is {version}, and versions 2 and 3 can be read"
            ));
        }
        let tensor_count = self.u64("the number of tensors")?;
        let key_count = self.u64("the number of keys")?;
        if key_count > KEY_LIMIT {
            return self.damaged(&format!(
                "it claims {key_count} keys, more than the limit of {KEY_LIMIT}"
            ));
        }
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        for index in 0..key_count {
            let range = self.text(&format!("key {index} of {key_count}"))?;
            let Ok(key) = std::str::from_utf8(&self.data[range]) else {
                return self.damaged(&format!("key {index} is not UTF-8"));
            };
            let key = key.to_owned();
            if !seen.insert(key.clone()) {
                return self.damaged(&format!("the key {key} is there twice"));
            }
            let stored = self.value(&key)?;
            entries.push((key, stored));
        }
        for index in 0..tensor_count {
            self.tensor(index, tensor_count)?;
        }
        let (byte_len, big_endian) = (self.at, self.big_endian);
        self.data.truncate(byte_len);
        self.data.shrink_to_fit();
        Ok(Header {
            data: self.data,
            entries,
            version,
            big_endian,
            tensor_count,
            byte_len,
        })
    }

    fn value(&mut self, key: &str) -> Result<Stored, GgufError> {
        let code = self.u32(key)?;
        if code != ARRAY_CODE {
            let kind = self.kind(code, key)?;
            if kind == Kind::String {
                return Ok(Stored::Text(self.text(key)?));
            }
            let start = self.at;
            self.need(kind.width(), key)?;
            self.at += kind.width();
            return Ok(Stored::Scalar { kind, start });
        }
        let element = self.u32(key)?;
        if element == ARRAY_CODE {
            return self.damaged(&format!(
                "{key} is an array of arrays, which no GGUF in use has"
            ));
        }
        let kind = self.kind(element, key)?;
        let claimed = self.u64(key)?;
        // An element takes a byte at least, a string eight: no honest count is larger than the header.
        let len = match usize::try_from(claimed) {
            Ok(len) if len <= HEADER_LIMIT / kind.width().max(1) => len,
            _ => return self.damaged(&format!("{key} claims {claimed} elements")),
        };
        let start = self.at;
        let mut strings = Vec::new();
        if kind == Kind::String {
            for _ in 0..len {
                let range = self.text(key)?;
                // Both fit: HEADER_LIMIT is below 2^32.
                strings.push((range.start as u32, (range.end - range.start) as u32));
            }
        } else {
            self.need(len * kind.width(), key)?;
            self.at += len * kind.width();
        }
        Ok(Stored::Array {
            kind,
            len,
            start,
            strings,
        })
    }

    /// Passes over one tensor description; nothing of it is kept.
    fn tensor(&mut self, index: u64, count: u64) -> Result<(), GgufError> {
        let what = "the tensor descriptions";
        self.text(what)?;
        let dims = self.u32(what)?;
        if dims > 8 {
            return self.damaged(&format!(
                "tensor {index} of {count} claims {dims} dimensions"
            ));
        }
        let rest = dims as usize * 8 + 4 + 8;
        self.need(rest, what)?;
        self.at += rest;
        Ok(())
    }

    fn kind(&self, code: u32, key: &str) -> Result<Kind, GgufError> {
        match Kind::from_code(code) {
            Some(kind) => Ok(kind),
            None => self.damaged(&format!("{key} has the unknown type {code}")),
        }
    }

    fn text(&mut self, what: &str) -> Result<Range<usize>, GgufError> {
        let claimed = self.u64(what)?;
        let len = match usize::try_from(claimed) {
            Ok(len) if len <= HEADER_LIMIT => len,
            _ => return self.damaged(&format!("{what} claims a string of {claimed} bytes")),
        };
        self.need(len, what)?;
        let start = self.at;
        self.at += len;
        Ok(start..self.at)
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        let raw = self.take(4, what)?;
        Ok(if self.big_endian {
            u32::from_be_bytes(raw)
        } else {
            u32::from_le_bytes(raw)
        })
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        let raw = self.take(8, what)?;
        Ok(if self.big_endian {
            u64::from_be_bytes(raw)
        } else {
            u64::from_le_bytes(raw)
        })
    }

    fn take<const N: usize>(&mut self, len: usize, what: &str) -> Result<[u8; N], GgufError> {
        self.need(len, what)?;
        let mut raw = [0; N];
        raw.copy_from_slice(&self.data[self.at..self.at + N]);
        self.at += N;
        Ok(raw)
    }

    /// Makes sure that `len` more bytes are in `data`.
    fn need(&mut self, len: usize, what: &str) -> Result<(), GgufError> {
        let end = self.at + len;
        if end <= self.data.len() {
            return Ok(());
        }
        if end > HEADER_LIMIT {
            return self.damaged(&format!(
                "its header is larger than {} MiB, in {what}",
                HEADER_LIMIT >> 20
            ));
        }
        while self.data.len() < end && !self.done {
            // Doubling, so that a claimed length never makes more room than twice the bytes that came.
            let step = self.data.len().clamp(FIRST_READ, HEADER_LIMIT);
            let got = self
                .input
                .by_ref()
                .take(step as u64)
                .read_to_end(&mut self.data)?;
            self.done = got == 0;
        }
        if self.data.len() < end {
            return self.damaged(&format!(
                "it ends after {} bytes, in {what}",
                self.data.len()
            ));
        }
        Ok(())
    }

    fn damaged<T>(&self, message: &str) -> Result<T, GgufError> {
        Err(GgufError::Damaged {
            offset: self.at,
            message: message.to_owned(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Writes headers for tests, in either byte order.
    pub(crate) struct Writer {
        body: Vec<u8>,
        big: bool,
        keys: u64,
    }

    impl Writer {
        pub(crate) fn new(big: bool) -> Self {
            Self {
                body: Vec::new(),
                big,
                keys: 0,
            }
        }

        fn put<const N: usize>(&mut self, mut raw: [u8; N]) {
            if self.big {
                raw.reverse();
            }
            self.body.extend(raw);
        }

        fn raw_text(&mut self, text: &[u8]) {
            self.put((text.len() as u64).to_le_bytes());
            self.body.extend(text);
        }

        fn key(&mut self, key: &str, code: u32) {
            self.keys += 1;
            self.raw_text(key.as_bytes());
            self.put(code.to_le_bytes());
        }

        pub(crate) fn text(mut self, key: &str, value: &str) -> Self {
            self.key(key, 8);
            self.raw_text(value.as_bytes());
            self
        }

        pub(crate) fn u32(mut self, key: &str, value: u32) -> Self {
            self.key(key, 4);
            self.put(value.to_le_bytes());
            self
        }

        pub(crate) fn boolean(mut self, key: &str, value: bool) -> Self {
            self.key(key, 7);
            self.put([u8::from(value)]);
            self
        }

        pub(crate) fn f64(mut self, key: &str, value: f64) -> Self {
            self.key(key, 12);
            self.put(value.to_le_bytes());
            self
        }

        pub(crate) fn strings<T: AsRef<[u8]>>(mut self, key: &str, values: &[T]) -> Self {
            self.key(key, 9);
            self.put(8_u32.to_le_bytes());
            self.put((values.len() as u64).to_le_bytes());
            for value in values {
                self.raw_text(value.as_ref());
            }
            self
        }

        pub(crate) fn i32s(mut self, key: &str, values: &[i32]) -> Self {
            self.key(key, 9);
            self.put(5_u32.to_le_bytes());
            self.put((values.len() as u64).to_le_bytes());
            for value in values {
                self.put(value.to_le_bytes());
            }
            self
        }

        pub(crate) fn f32s(mut self, key: &str, values: &[f32]) -> Self {
            self.key(key, 9);
            self.put(6_u32.to_le_bytes());
            self.put((values.len() as u64).to_le_bytes());
            for value in values {
                self.put(value.to_le_bytes());
            }
            self
        }

        /// The file, with one tensor description behind the keys.
        pub(crate) fn finish(mut self) -> Vec<u8> {
            let body = std::mem::take(&mut self.body);
            self.body.extend(b"GGUF");
            self.put(3_u32.to_le_bytes());
            self.put(1_u64.to_le_bytes());
            self.put(self.keys.to_le_bytes());
            self.body.extend(body);
            self.raw_text(b"token_embd.weight");
            self.put(2_u32.to_le_bytes());
            self.put(64_u64.to_le_bytes());
            self.put(3_u64.to_le_bytes());
            self.put(0_u32.to_le_bytes());
            self.put(0_u64.to_le_bytes());
            self.body
        }
    }

    fn sample(big: bool) -> Vec<u8> {
        Writer::new(big)
            .text("general.architecture", "llama")
            .u32("llama.context_length", 8192)
            .boolean("tokenizer.ggml.add_bos_token", true)
            .f64("x.double", -0.5)
            .strings("tokenizer.ggml.tokens", &["a", "", "日本"])
            .i32s("tokenizer.ggml.token_type", &[1, -3, 6])
            .f32s("tokenizer.ggml.scores", &[0.0, -1.5, 2.0])
            .finish()
    }

    #[test]
    fn reads_both_byte_orders() {
        for big in [false, true] {
            let header = Header::read(&sample(big)[..]).expect("a good header");
            assert_eq!(header.version, 3);
            assert_eq!(header.big_endian, big);
            assert_eq!(header.keys().len(), 7);
            assert_eq!(
                header.text("general.architecture").expect("text"),
                Some("llama".into())
            );
            assert_eq!(
                header.integer("llama.context_length").expect("number"),
                Some(8192)
            );
            assert_eq!(
                header
                    .boolean("tokenizer.ggml.add_bos_token")
                    .expect("bool"),
                Some(true)
            );
            assert_eq!(header.get("x.double"), Some(Value::Float(-0.5)));
            assert_eq!(header.get("absent"), None);
            let tokens = header
                .string_array("tokenizer.ggml.tokens")
                .expect("array")
                .expect("there");
            assert_eq!(
                tokens.strings().collect::<Vec<_>>(),
                ["a", "", "日本"].map(str::as_bytes)
            );
            let types = header
                .array("tokenizer.ggml.token_type")
                .expect("array")
                .expect("there");
            assert_eq!(types.get(1), Some(Value::Signed(-3)));
            assert_eq!(types.get(3), None);
            let scores = header
                .array("tokenizer.ggml.scores")
                .expect("array")
                .expect("there");
            assert_eq!(scores.iter().last(), Some(Value::Float(2.0)));
            assert!(header.text("llama.context_length").is_err());
            assert!(header.integer("general.architecture").is_err());
            assert!(header.string_array("tokenizer.ggml.scores").is_err());
        }
    }

    #[test]
    fn weights_are_not_read() {
        struct Endless<'a>(&'a [u8], usize);
        impl Read for Endless<'_> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                let from = self.0.get(self.1..).unwrap_or(&[]);
                let len = from.len().min(out.len());
                out[..len].copy_from_slice(&from[..len]);
                out[len..].fill(7);
                self.1 += out.len();
                Ok(out.len())
            }
        }
        let bytes = sample(false);
        let mut input = Endless(&bytes, 0);
        let header = Header::read(&mut input).expect("a good header");
        assert_eq!(header.byte_len, bytes.len());
        assert!(input.1 <= 2 * FIRST_READ, "read {} bytes", input.1);
    }

    #[test]
    fn cut_at_every_offset() {
        for big in [false, true] {
            let bytes = sample(big);
            for end in 0..bytes.len() {
                match Header::read(&bytes[..end]) {
                    Err(GgufError::Damaged { message, .. }) => {
                        assert!(
                            message.contains(&format!("after {end} bytes")),
                            "{end}: {message}"
                        );
                    }
                    _ => panic!("cut at {end} was taken"),
                }
            }
        }
    }

    #[test]
    fn absurd_files() {
        let good = sample(false);
        let with = |at: usize, raw: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + raw.len()].copy_from_slice(raw);
            bytes
        };
        let huge = u64::MAX.to_le_bytes();
        let large = (1_u64 << 40).to_le_bytes();
        let twice = Writer::new(false).u32("k", 1).u32("k", 1).finish();
        let key_at = 24;
        let value_at = key_at + 8 + "general.architecture".len();
        for (name, bytes, want) in [
            ("magic", with(0, b"GGML"), "begin with GGUF"),
            ("version 1", with(4, &1_u32.to_le_bytes()), "version is 1"),
            ("version 4", with(4, &4_u32.to_le_bytes()), "version is 4"),
            ("version 0", with(4, &0_u32.to_le_bytes()), "version is 0"),
            ("tensors", with(8, &huge), "ends after"),
            ("keys", with(16, &huge), "keys"),
            ("key length", with(key_at, &huge), "claims a string"),
            (
                "key length beyond the limit",
                with(key_at, &large),
                "claims a string",
            ),
            (
                "type",
                with(value_at, &99_u32.to_le_bytes()),
                "unknown type 99",
            ),
            (
                "value length",
                with(value_at + 4, &(200_u64 << 20).to_le_bytes()),
                "ends after",
            ),
            ("key not UTF-8", with(key_at + 8, &[0xff]), "not UTF-8"),
            ("duplicate", twice, "there twice"),
            ("empty", Vec::new(), "ends after 0 bytes"),
        ] {
            match Header::read(&bytes[..]) {
                Err(error) => assert!(error.to_string().contains(want), "{name}: {error}"),
                Ok(_) => panic!("{name} was taken"),
            }
        }
    }

    #[test]
    fn claimed_counts_make_no_room() {
        // An array of strings that claims as many elements as the limit allows, in a file of 80 bytes.
        let mut writer = Writer::new(false);
        writer.key("k", 9);
        writer.put(8_u32.to_le_bytes());
        writer.put((HEADER_LIMIT as u64).to_le_bytes());
        assert!(Header::read(&writer.finish()[..]).is_err());
    }
}
