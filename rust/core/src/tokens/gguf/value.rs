//! What a metadata value is: its types, and reading one.

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
    pub(super) fn from_code(code: u32) -> Option<Self> {
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
    pub(super) fn width(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::String => 0,
        }
    }
}

pub(super) const ARRAY_CODE: u32 = 9;

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
    pub(super) bytes: &'a [u8],
    pub(super) strings: &'a [(u32, u32)],
    pub(super) whole: &'a [u8],
    pub(super) big_endian: bool,
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

pub(super) fn number(kind: Kind, bytes: &[u8], big_endian: bool) -> Value<'static> {
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
