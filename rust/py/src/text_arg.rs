//! How a Python `str` comes in.
//!
//! A `str` may hold lone surrogates, which UTF-8 cannot. They are repaired here, once, so that no
//! function of this module raises `UnicodeEncodeError` and the core sees only valid text.

use std::borrow::Cow;

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

    pub fn py(&self) -> Python<'py> {
        self.object.py()
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
            Err(_) => Cow::Owned(decode_utf16(string)?),
        };
        Ok(Self {
            object: string,
            text,
        })
    }
}

/// Surrogate pairs joined, a lone surrogate replaced by one U+FFFD.
fn decode_utf16(object: Borrowed<'_, '_, PyString>) -> PyResult<String> {
    let bytes: Vec<u8> = object
        .call_method1("encode", ("utf-16-le", "surrogatepass"))?
        .extract()?;
    let units = bytes
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    Ok(char::decode_utf16(units)
        .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect())
}

/// `text` itself where it holds no surrogates, else a repaired copy.
#[pyfunction]
pub fn repair_surrogates<'py>(text: TextArg<'_, 'py>) -> Bound<'py, PyString> {
    text.give_back(None)
}
