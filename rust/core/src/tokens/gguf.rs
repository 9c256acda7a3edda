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

mod value;

use value::{ARRAY_CODE, number};
pub use value::{Array, Kind, Value};

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
pub(crate) mod tests;
