//! How a Python `str` comes in.
//!
//! A `str` may hold lone surrogates, which UTF-8 cannot. They are repaired here, once, so that no
//! function of this module raises `UnicodeEncodeError` and the core sees only valid text.

use std::borrow::Cow;
use std::ops::Range;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// A borrowed `str` argument and its text as UTF-8.
pub struct TextArg<'a, 'py> {
    object: Borrowed<'a, 'py, PyString>,
    text: Cow<'a, str>,
}

impl<'a, 'py> TextArg<'a, 'py> {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn into_text(self) -> Cow<'a, str> {
        self.text
    }

    pub fn py(&self) -> Python<'py> {
        self.object.py()
    }

    /// Whether a byte of the text is a character of the `str`.
    pub fn is_ascii(&self) -> bool {
        matches!(self.text, Cow::Borrowed(text) if self.object.len().is_ok_and(|chars| chars == text.len()))
    }

    /// The bytes `range` as a `str`; `ascii` is what [`Self::is_ascii`] says.
    ///
    /// Of ASCII text Python cuts the piece itself, and need not look again for what its bytes spell.
    pub fn piece(&self, range: Range<usize>, ascii: bool) -> PyResult<Bound<'py, PyString>> {
        if ascii {
            return substring(&self.object, range);
        }
        Ok(PyString::new(self.object.py(), &self.text[range]))
    }

    /// The caller's own object where `result` is unchanged (and needed no repair), else a new `str`.
    pub fn give_back(self, result: Option<&str>) -> Bound<'py, PyString> {
        let py = self.object.py();
        match (result, &self.text) {
            (Some(changed), _) => PyString::new(py, changed),
            (None, Cow::Borrowed(_)) => self.object.to_owned(),
            (None, Cow::Owned(repaired)) => PyString::new(py, repaired),
        }
    }

    /// What `rewrite` makes of the text; the caller's own object where it borrows all of it back.
    pub fn replace_with(
        self,
        rewrite: impl for<'t> FnOnce(&'t str) -> Cow<'t, str>,
    ) -> Bound<'py, PyString> {
        let changed = match rewrite(&self.text) {
            Cow::Owned(changed) => Some(changed),
            Cow::Borrowed(_) => None,
        };
        self.give_back(changed.as_deref())
    }

    /// The same where the rewriting may fail.
    pub fn try_replace_with(
        self,
        rewrite: impl for<'t> FnOnce(&'t str) -> PyResult<Cow<'t, str>>,
    ) -> PyResult<Bound<'py, PyString>> {
        let changed = match rewrite(&self.text)? {
            Cow::Owned(changed) => Some(changed),
            Cow::Borrowed(_) => None,
        };
        Ok(self.give_back(changed.as_deref()))
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for TextArg<'a, 'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let string = object.cast::<PyString>()?;
        let text = match <&'a str>::extract(object) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(join_units(utf16_units(string)?)),
        };
        Ok(Self {
            object: string,
            text,
        })
    }
}

/// The characters `range` of `text`, copied by Python from its own form of the text.
pub fn substring<'py>(
    text: &Bound<'py, PyString>,
    range: Range<usize>,
) -> PyResult<Bound<'py, PyString>> {
    let (start, end) = (range.start.try_into()?, range.end.try_into()?);
    // SAFETY: the object is a `str`; the call gives a new reference, or NULL with an exception set.
    let piece = unsafe {
        Bound::from_owned_ptr_or_err(
            text.py(),
            ffi::PyUnicode_Substring(text.as_ptr(), start, end),
        )
    }?;
    Ok(piece.cast_into::<PyString>()?)
}

fn utf16_units(object: Borrowed<'_, '_, PyString>) -> PyResult<Vec<u16>> {
    let bytes: Vec<u8> = object
        .call_method1("encode", ("utf-16-le", "surrogatepass"))?
        .extract()?;
    Ok(bytes
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect())
}

/// Surrogate pairs joined, a lone surrogate replaced by one U+FFFD.
fn join_units(units: Vec<u16>) -> String {
    char::decode_utf16(units)
        .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

/// One piece of a text that comes in pieces: a cut may fall inside a surrogate pair.
pub enum StreamArg<'a> {
    Text(&'a str),
    Units(Vec<u16>),
}

impl<'a> StreamArg<'a> {
    /// The text of this piece after `half`, the first half of a pair that the piece before ended with. The
    /// first half of a pair that this piece ends with is left in `half`.
    pub fn join(self, half: &mut Option<u16>) -> Cow<'a, str> {
        let mut units: Vec<u16> = half.take().into_iter().collect();
        match self {
            Self::Text(text) if units.is_empty() => return Cow::Borrowed(text),
            Self::Text("") => *half = units.pop(),
            Self::Text(text) => {
                return Cow::Owned(format!("{}{text}", char::REPLACEMENT_CHARACTER));
            }
            Self::Units(more) => {
                units.extend(more);
                *half = units.pop_if(|unit| (0xd800..0xdc00).contains(unit));
            }
        }
        Cow::Owned(join_units(units))
    }
}

impl<'a> FromPyObject<'a, '_> for StreamArg<'a> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, '_, PyAny>) -> PyResult<Self> {
        let string = object.cast::<PyString>()?;
        match <&'a str>::extract(object) {
            Ok(text) => Ok(Self::Text(text)),
            Err(_) => Ok(Self::Units(utf16_units(string)?)),
        }
    }
}

/// `text` itself where it holds no surrogates, else a repaired copy.
#[pyfunction]
pub fn repair_surrogates<'py>(text: TextArg<'_, 'py>) -> Bound<'py, PyString> {
    text.give_back(None)
}

/// The UTF-8 text of a `str` that is none of a subclass; `None` for anything else, and for lone surrogates.
///
/// # Safety
///
/// The object is alive, and stays so for as long as the text is used.
pub unsafe fn text_of<'a>(py: Python<'_>, object: *mut ffi::PyObject) -> Option<&'a str> {
    // SAFETY: by this function's contract.
    unsafe {
        if ffi::PyUnicode_CheckExact(object) == 0 {
            return None;
        }
        utf8_of(py, object)
    }
}

/// The UTF-8 text of a `str`, also one of a subclass; `None` where it holds lone surrogates.
///
/// # Safety
///
/// The object is a `str`, alive, and stays so for as long as the text is used.
pub unsafe fn utf8_of<'a>(py: Python<'_>, object: *mut ffi::PyObject) -> Option<&'a str> {
    // SAFETY: by this function's contract; what is returned is the object's own UTF-8, which lives and stays as
    // long as it does.
    unsafe {
        let mut size = 0;
        let data = ffi::PyUnicode_AsUTF8AndSize(object, &raw mut size);
        if data.is_null() {
            drop(PyErr::take(py));
            return None;
        }
        let bytes = std::slice::from_raw_parts(data.cast::<u8>(), usize::try_from(size).ok()?);
        Some(std::str::from_utf8_unchecked(bytes))
    }
}
