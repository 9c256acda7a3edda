//! Entries read where they stand.
//!
//! An `Entry` keeps its fields in slots, whose places its type declares (`Py_tp_members`). Reading them there costs a
//! load a field, where an attribute look-up is a call, and MessagePack writes every text once and has it read again.

use std::ffi::CStr;
use std::ops::Range;

use agentkit_core::shape::record::Record;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyString, PyTuple, PyType};

/// The fields a window is made of, in the order of `Slots::at`.
const FIELDS: [&str; 9] = [
    "id",
    "kind",
    "content",
    "parts",
    "reasoning",
    "tool_call_id",
    "tool_name",
    "tag",
    "created_at",
];

/// Where the fields are in an object whose type is exactly `Entry`.
pub struct Slots {
    entry: Py<PyType>,
    /// Its members are a kind's name.
    kind: Py<PyType>,
    at: [isize; FIELDS.len()],
    /// What nearly every field holds that holds nothing.
    no_text: Py<PyString>,
    no_parts: Py<PyTuple>,
}

static SLOTS: PyOnceLock<Option<Slots>> = PyOnceLock::new();

impl Slots {
    /// `None` where the type does not say where its fields are.
    pub fn get(py: Python<'_>) -> PyResult<Option<&Self>> {
        SLOTS
            .get_or_try_init(py, || Self::find(py))
            .map(Option::as_ref)
    }

    fn find(py: Python<'_>) -> PyResult<Option<Self>> {
        let module = py.import("agentkit_fast.entries")?;
        let entry = module.getattr("Entry")?.cast_into::<PyType>()?;
        let mut at = [0; FIELDS.len()];
        for (name, at) in FIELDS.iter().zip(&mut at) {
            match offset(&entry, name) {
                Some(offset) => *at = offset,
                None => return Ok(None),
            }
        }
        Ok(Some(Self {
            kind: module.getattr("EntryKind")?.cast_into::<PyType>()?.unbind(),
            entry: entry.unbind(),
            at,
            no_text: PyString::new(py, "").unbind(),
            no_parts: PyTuple::empty(py).unbind(),
        }))
    }

    /// The entries of `range`; `None` where one of them has anything but text and numbers: a subclass's, images,
    /// what somebody set afterwards. Those are for MessagePack.
    ///
    /// # Safety
    /// As long as the records are in use no Python code runs, and this thread stays attached to the interpreter: else
    /// the list or an entry may change, and the texts go.
    pub unsafe fn read<'a>(
        &self,
        entries: &'a Bound<'_, PyList>,
        range: Range<usize>,
    ) -> Option<Vec<Record<'a>>> {
        let mut records = Vec::with_capacity(range.len());
        for index in range {
            let entry = entries.get_item(index).ok()?;
            // SAFETY: the list holds the entry, and the caller sees to it that it goes on to.
            let fields = unsafe { self.fields(entry.as_ptr()) }?;
            // Filled where it stands: a record is too large to be moved about.
            records.push(Record::default());
            let record = records.last_mut()?;
            // SAFETY: the entry holds what is in its slots, as before.
            unsafe {
                let [
                    id,
                    kind,
                    content,
                    parts,
                    reasoning,
                    call_id,
                    tool_name,
                    tag,
                    created_at,
                ] = fields;
                if parts != self.no_parts.as_ptr() {
                    return None;
                }
                record.id = self.text(id)?.into();
                record.content = self.text(content)?.into();
                record.reasoning = self.text(reasoning)?.into();
                record.call_id = self.text(call_id)?.into();
                record.tool_name = self.text(tool_name)?.into();
                record.tag = self.text(tag)?.into();
                record.created_at = number(entries.py(), created_at)?;
                record.set_kind(self.kind(kind)?);
            }
        }
        Some(records)
    }

    /// What is in the slots of an entry.
    ///
    /// # Safety
    /// `entry` is an object that somebody holds.
    unsafe fn fields(
        &self,
        entry: *mut ffi::PyObject,
    ) -> Option<[*mut ffi::PyObject; FIELDS.len()]> {
        // SAFETY: an object of this very type has these slots, each with a pointer to an object or null.
        unsafe {
            if ffi::Py_TYPE(entry) != self.entry.as_ptr().cast() {
                return None;
            }
            let fields = self
                .at
                .map(|at| entry.byte_offset(at).cast::<*mut ffi::PyObject>().read());
            (!fields.contains(&std::ptr::null_mut())).then_some(fields)
        }
    }

    /// # Safety
    /// `value` is an object that is held as long as the text is in use.
    unsafe fn text<'a>(&self, value: *mut ffi::PyObject) -> Option<&'a str> {
        if value == self.no_text.as_ptr() {
            return Some("");
        }
        // SAFETY: as the caller says.
        unsafe {
            (ffi::PyUnicode_CheckExact(value) != 0)
                .then(|| utf8(value))
                .flatten()
        }
    }

    /// # Safety
    /// As `text`.
    unsafe fn kind<'a>(&self, value: *mut ffi::PyObject) -> Option<&'a str> {
        // SAFETY: as the caller says. A member of `EntryKind` is a `str`.
        unsafe {
            if ffi::Py_TYPE(value) == self.kind.as_ptr().cast() {
                return utf8(value);
            }
            self.text(value)
        }
    }
}

/// Where the slot of this name is in the type's objects.
fn offset(entry: &Bound<'_, PyType>, name: &str) -> Option<isize> {
    // SAFETY: the slot of a type is null or an array of members that ends with one that has no name; names are C strings.
    unsafe {
        let members = ffi::PyType_GetSlot(entry.as_ptr().cast(), ffi::Py_tp_members);
        let mut member = members.cast::<ffi::PyMemberDef>().cast_const();
        while !member.is_null() && !(*member).name.is_null() {
            let named = CStr::from_ptr((*member).name).to_bytes() == name.as_bytes();
            if named && (*member).type_code == ffi::Py_T_OBJECT_EX {
                return Some((*member).offset);
            }
            member = member.add(1);
        }
    }
    None
}

/// The text of a `str`; `None` where it holds lone surrogates.
///
/// # Safety
/// `value` is a `str`, held as long as the text is in use.
unsafe fn utf8<'a>(value: *mut ffi::PyObject) -> Option<&'a str> {
    let mut size = 0;
    // SAFETY: Python gives the bytes with their number, which stay as long as the object, and are UTF-8.
    unsafe {
        let bytes = ffi::PyUnicode_AsUTF8AndSize(value, &raw mut size);
        if bytes.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        let bytes = std::slice::from_raw_parts(bytes.cast::<u8>(), usize::try_from(size).ok()?);
        Some(std::str::from_utf8_unchecked(bytes))
    }
}

/// # Safety
/// `value` is an object that somebody holds.
unsafe fn number(py: Python<'_>, value: *mut ffi::PyObject) -> Option<i64> {
    // SAFETY: as the caller says.
    unsafe {
        if ffi::PyLong_CheckExact(value) == 0 {
            return None;
        }
        let number = ffi::PyLong_AsLongLong(value);
        if number == -1 && PyErr::take(py).is_some() {
            return None;
        }
        Some(number)
    }
}
