//! A small JSON tree that keeps key order and number text: for schemas and for rendering.

use super::loose::{Dialect, Fault, FaultKind, Progress, Scanner, is_blank};

/// A JSON value. Numbers are kept as they are spelled, objects in the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Bool(bool),
    Number(String),
    String(String),
    Array(Vec<Value>),
    Object(Vec<(String, Value)>),
}

impl Value {
    /// Reads strict or loose JSON text that is one value.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let fault = |at, reason| Fault {
            kind: FaultKind::Malformed,
            at,
            reason,
            inside: None,
        };
        let mut scanner = Scanner::new(Dialect::Repair, 0);
        if let Progress::Fault(fault) = scanner.advance(text, true) {
            return Err(fault);
        }
        let end = scanner.end();
        if let Some(offset) = text[end..].bytes().position(|byte| !is_blank(byte)) {
            return Err(fault(end + offset, "text follows the value"));
        }
        let strict = scanner.strict(text);
        let mut reader = Reader {
            text: &strict,
            at: 0,
        };
        reader
            .value()
            .ok_or_else(|| fault(reader.at, "a value was expected"))
    }

    /// The value of `key` in an object.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(pairs) => pairs
                .iter()
                .rev()
                .find(|(name, _)| name == key)
                .map(|(_, value)| value),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }
}

/// Reads text that the scanner has found to be strict (so nesting is bounded, and recursion with it).
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&mut self) -> Option<u8> {
        let rest = self.text.as_bytes().get(self.at..)?;
        self.at += rest.iter().take_while(|&&byte| is_blank(byte)).count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn value(&mut self) -> Option<Value> {
        match self.peek()? {
            b'{' => {
                let mut pairs = Vec::new();
                self.items(b'}', |reader| {
                    let key = reader.string()?;
                    if reader.peek()? == b':' {
                        reader.at += 1;
                    }
                    pairs.push((key, reader.value()?));
                    Some(())
                })?;
                Some(Value::Object(pairs))
            }
            b'[' => {
                let mut items = Vec::new();
                self.items(b']', |reader| {
                    items.push(reader.value()?);
                    Some(())
                })?;
                Some(Value::Array(items))
            }
            b'"' => self.string().map(Value::String),
            _ => {
                let rest = &self.text[self.at..];
                let end = rest
                    .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
                    .unwrap_or(rest.len());
                self.at += end;
                Some(match &rest[..end] {
                    "null" => Value::Null,
                    "true" => Value::Bool(true),
                    "false" => Value::Bool(false),
                    number => Value::Number(number.to_owned()),
                })
            }
        }
    }

    fn items(&mut self, close: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.at += 1;
        while self.peek()? != close {
            if self.peek()? == b',' {
                self.at += 1;
                continue;
            }
            item(self)?;
        }
        self.at += 1;
        Some(())
    }

    fn string(&mut self) -> Option<String> {
        self.peek()?;
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let stop = memchr::memchr2(b'"', b'\\', rest.as_bytes())?;
            out.push_str(&rest[..stop]);
            self.at += stop + 1;
            if rest.as_bytes()[stop] == b'"' {
                return Some(out);
            }
            let escape = *self.text.as_bytes().get(self.at)?;
            self.at += 1;
            out.push(match escape {
                b'b' => '\u{8}',
                b'f' => '\u{c}',
                b'n' => '\n',
                b'r' => '\r',
                b't' => '\t',
                b'u' => self.code_point()?,
                other => char::from(other),
            });
        }
    }

    fn code_point(&mut self) -> Option<char> {
        let unit = self.unit()?;
        let point = if (0xd800..0xdc00).contains(&unit) {
            self.at += 2;
            0x10000 + ((unit - 0xd800) << 10) + (self.unit()?.wrapping_sub(0xdc00) & 0x3ff)
        } else {
            unit
        };
        char::from_u32(point)
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }
}
