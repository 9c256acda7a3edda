//! A plain list of OpenAI-format dicts, shaped. The dicts that stay as they are come back as the same objects.

use std::borrow::Cow;

use agentkit_core::shape::list::host::{Host, Key, Kind, Plain, PlainCall, PlainRole, Refusal};
use agentkit_core::shape::list::shape;
use agentkit_core::tokens::chars_by_four;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::shape::ContextOverflow;
use crate::text_arg::{TextArg, text_of};

const KEYS: usize = Key::ALL.len();

struct Messages<'py> {
    py: Python<'py>,
    /// The list as it was at the call: what other threads do to it meanwhile changes nothing here.
    messages: Bound<'py, PyTuple>,
    /// The bound `count` of a counter; `None`: the rule of four.
    count: Option<Bound<'py, PyAny>>,
    keys: [&'py Bound<'py, PyString>; KEYS],
    /// The calls of the plain message that was asked for last. Their texts are valid until anything else is done
    /// with Python; only [`Host::plain`] gives them out, for less than its own life.
    calls: Vec<PlainCall<'static>>,
}

/// A key, value or item that somebody else holds: nothing is done here that could make that end.
type Held = *mut ffi::PyObject;

/// The next key and value of a dict.
///
/// # Safety
///
/// `dict` is a dict, and stays as it is from the first call for it to the last.
unsafe fn next_of(dict: Held, place: &mut ffi::Py_ssize_t) -> Option<(Held, Held)> {
    let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: by this function's contract.
    let more = unsafe { ffi::PyDict_Next(dict, place, &raw mut key, &raw mut value) };
    (more != 0).then_some((key, value))
}

/// As [`text_of`], with `None` as no text.
///
/// # Safety
///
/// As for [`text_of`].
unsafe fn optional_text<'a>(py: Python<'_>, object: Held) -> Option<&'a str> {
    // SAFETY: by this function's contract; `None` lives for ever.
    unsafe {
        if object == ffi::Py_None() {
            return Some("");
        }
        text_of(py, object)
    }
}

impl<'py> Messages<'py> {
    /// Which of our keys it is; `None` where it is not a `str` as usual, and may be anything.
    ///
    /// # Safety
    ///
    /// The key is alive.
    #[inline(always)]
    unsafe fn key(&self, key: Held) -> Option<Option<Key>> {
        // Keys of literals and of JSON decoders are interned, so that the objects are the same.
        if let Some(place) = self.keys.iter().position(|known| known.as_ptr() == key) {
            return Some(Some(Key::ALL[place]));
        }
        // SAFETY: by this function's contract.
        let text = unsafe { text_of(self.py, key) }?;
        Some(Key::ALL.into_iter().find(|key| key.name() == text))
    }

    /// Reads a message without a handle on anything in it.
    ///
    /// # Safety
    ///
    /// `message` is alive. What is returned, and the calls, may be used until anything else is done with Python.
    unsafe fn read<'a>(&mut self, message: Held) -> Option<Plain<'a>> {
        let py = self.py;
        self.calls.clear();
        // SAFETY: the message is alive and holds what is in it. Nothing between here and the end runs code of
        // Python's, or gives a reference back; only a text with lone surrogates makes an object (an error), and
        // then nothing that was read is used.
        unsafe {
            if ffi::PyDict_CheckExact(message) == 0 {
                return None;
            }
            let (mut role, mut content, mut name, mut call_id) = ("", "", "", "");
            let mut calls = std::ptr::null_mut();
            let mut place = 0;
            while let Some((key, value)) = next_of(message, &mut place) {
                match self.key(key)? {
                    Some(Key::Role) => role = text_of(py, value)?,
                    Some(Key::Content) => content = optional_text(py, value)?,
                    Some(Key::Name) => name = optional_text(py, value)?,
                    Some(Key::ToolCallId) => call_id = optional_text(py, value)?,
                    Some(Key::ToolCalls) => calls = value,
                    Some(Key::FunctionCall | Key::Refusal) if value != ffi::Py_None() => {
                        return None;
                    }
                    _ => {}
                }
            }
            let role = match role {
                "user" => PlainRole::User,
                "assistant" => PlainRole::Assistant,
                "tool" => PlainRole::Tool,
                _ => return None,
            };
            if !calls.is_null() && calls != ffi::Py_None() {
                if ffi::PyList_CheckExact(calls) == 0 {
                    return None;
                }
                for index in 0..ffi::PyList_Size(calls) {
                    let call = self.read_call(ffi::PyList_GetItem(calls, index))?;
                    self.calls.push(call);
                }
            }
            Some(Plain {
                role,
                content,
                name,
                call_id,
                calls: &[],
            })
        }
    }

    /// # Safety
    ///
    /// As for [`Self::read`].
    unsafe fn read_call(&self, call: Held) -> Option<PlainCall<'static>> {
        let py = self.py;
        // SAFETY: as in `read`.
        unsafe {
            if ffi::PyDict_CheckExact(call) == 0 {
                return None;
            }
            let (mut id, mut function) = ("", std::ptr::null_mut());
            let mut place = 0;
            while let Some((key, value)) = next_of(call, &mut place) {
                match self.key(key)? {
                    Some(Key::Id) => id = text_of(py, value)?,
                    Some(Key::Function) => function = value,
                    _ => {}
                }
            }
            if function.is_null() || ffi::PyDict_CheckExact(function) == 0 {
                return None;
            }
            let (mut name, mut arguments) = (None, None);
            let mut place = 0;
            while let Some((key, value)) = next_of(function, &mut place) {
                match self.key(key)? {
                    Some(Key::Name) => name = Some(text_of(py, value)?),
                    Some(Key::Arguments) => arguments = Some(text_of(py, value)?),
                    _ => {}
                }
            }
            Some(PlainCall {
                id,
                name: name?,
                arguments: arguments?,
            })
        }
    }
}

impl<'py> Host for Messages<'py> {
    type Value = Bound<'py, PyAny>;
    type Error = PyErr;

    fn len(&self) -> usize {
        self.messages.len()
    }

    fn message(&self, at: usize) -> PyResult<Self::Value> {
        self.messages.get_item(at)
    }

    fn plain(&mut self, at: usize) -> Option<Plain<'_>> {
        // A counter is Python code.
        if self.count.is_some() {
            return None;
        }
        let message = self.messages.get_borrowed_item(at).ok()?.as_ptr();
        // SAFETY: the tuple holds the message. `self` stays borrowed for as long as what is given out lives, and
        // nothing can be done with Python here without it.
        let plain = unsafe { self.read(message) }?;
        Some(Plain {
            calls: &self.calls,
            ..plain
        })
    }

    fn count(&self, text: &str) -> PyResult<usize> {
        match &self.count {
            None => Ok(chars_by_four(text)),
            Some(count) => count.call1((text,))?.extract(),
        }
    }

    fn refuse(&self, why: Refusal) -> PyErr {
        let text = why.to_string();
        match why {
            Refusal::Overflow(_) => ContextOverflow::new_err(text),
            Refusal::NoRole { .. } => PyValueError::new_err(text),
            _ => PyTypeError::new_err(text),
        }
    }

    fn kind(&self, value: &Self::Value) -> Kind {
        if value.is_none() {
            Kind::None
        } else if value.is_instance_of::<PyString>() {
            Kind::Text
        } else if value.is_instance_of::<PyList>() {
            Kind::List
        } else if value.is_instance_of::<PyDict>() {
            Kind::Dict
        } else if value.is_instance_of::<PyTuple>() {
            Kind::Tuple
        } else {
            Kind::Other
        }
    }

    fn type_name(&self, value: &Self::Value) -> String {
        let name = value.get_type().name();
        name.map_or_else(|_| "another type".to_owned(), |name| name.to_string())
    }

    fn text<'a>(&self, value: &'a Self::Value) -> PyResult<Option<Cow<'a, str>>> {
        if !value.is_instance_of::<PyString>() {
            return Ok(None);
        }
        Ok(Some(value.extract::<TextArg<'a, 'py>>()?.into_text()))
    }

    fn get(&self, dict: &Self::Value, key: Key) -> PyResult<Option<Self::Value>> {
        match dict.cast::<PyDict>() {
            Ok(dict) => dict.get_item(self.keys[key as usize]),
            Err(_) => Ok(None),
        }
    }

    fn entries(&self, dict: &Self::Value) -> Vec<(Self::Value, Self::Value)> {
        dict.cast::<PyDict>()
            .map(|dict| dict.iter().collect())
            .unwrap_or_default()
    }

    fn items(&self, list: &Self::Value) -> PyResult<Vec<Self::Value>> {
        if let Ok(list) = list.cast::<PyList>() {
            return Ok(list.iter().collect());
        }
        Ok(list.cast::<PyTuple>()?.iter().collect())
    }

    fn json(&self, at: usize, value: &Self::Value) -> PyResult<String> {
        let py = self.py;
        let written = || -> PyResult<String> {
            let options = PyDict::new(py);
            options.set_item("ensure_ascii", false)?;
            options.set_item("separators", (",", ":"))?;
            let json = py.import("json")?;
            let text = json.call_method("dumps", (value,), Some(&options))?;
            Ok(text.extract::<TextArg<'_, '_>>()?.as_str().to_owned())
        };
        written().map_err(|error| {
            PyTypeError::new_err(format!(
                "messages[{at}]: the arguments of a tool call cannot be written as JSON: {error}"
            ))
        })
    }

    fn new_text(&self, text: &str) -> Self::Value {
        PyString::new(self.py, text).into_any()
    }

    fn new_list(&self, items: Vec<Self::Value>) -> PyResult<Self::Value> {
        Ok(PyList::new(self.py, items)?.into_any())
    }

    fn new_dict(&self) -> Self::Value {
        PyDict::new(self.py).into_any()
    }

    fn copy(&self, dict: &Self::Value) -> PyResult<Self::Value> {
        Ok(dict.cast::<PyDict>()?.copy()?.into_any())
    }

    fn set(&self, dict: &Self::Value, key: Key, value: Self::Value) -> PyResult<()> {
        dict.cast::<PyDict>()?
            .set_item(self.keys[key as usize], value)
    }

    fn remove(&self, dict: &Self::Value, key: Key) -> PyResult<()> {
        let dict = dict.cast::<PyDict>()?;
        let key = self.keys[key as usize];
        if dict.contains(key)? {
            dict.del_item(key)?;
        }
        Ok(())
    }

    fn update(&self, dict: &Self::Value, newer: &Self::Value) -> PyResult<()> {
        dict.cast::<PyDict>()?
            .update(newer.cast::<PyDict>()?.as_mapping())
    }
}

/// The shaped list; see `agentkit_fast.shaping.shape_messages`.
#[pyfunction]
#[pyo3(signature = (messages, options, tools, count=None))]
pub fn shape_list<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyList>,
    options: &Bound<'py, PyDict>,
    tools: TextArg<'_, 'py>,
    count: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let options = crate::shape::options(options)?;
    let keys: [&Bound<'py, PyString>; KEYS] = [
        intern!(py, "role"),
        intern!(py, "content"),
        intern!(py, "tool_calls"),
        intern!(py, "tool_call_id"),
        intern!(py, "name"),
        intern!(py, "function_call"),
        intern!(py, "refusal"),
        intern!(py, "id"),
        intern!(py, "type"),
        intern!(py, "function"),
        intern!(py, "arguments"),
        intern!(py, "text"),
        intern!(py, "custom"),
        intern!(py, "input"),
    ];
    let mut host = Messages {
        py,
        messages: messages.to_tuple(),
        count,
        keys,
        calls: Vec::new(),
    };
    let shown = shape(&mut host, &options, tools.as_str())?;
    PyList::new(py, shown)
}
