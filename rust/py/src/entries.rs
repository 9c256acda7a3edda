//! Entries read where they stand.
//!
//! An `Entry` keeps its fields in slots, whose places its type declares (`Py_tp_members`). Reading them there costs a
//! load a field, where an attribute look-up is a call, and MessagePack writes every text once and has it read again.

use std::borrow::Cow;
use std::ffi::CStr;
use std::ops::Range;

use agentkit_core::shape::record::Record;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyString, PyTuple, PyType};

use crate::text_arg::utf8_of;

/// The fields a window is made of, in the order of `Slots::at` and of what `fields` gives.
const FIELDS: [&str; 9] = [
    "id",
    "kind",
    "content",
    "reasoning",
    "tool_call_id",
    "tool_name",
    "tag",
    "created_at",
    "parts",
];

/// An object that an entry or a list holds.
type Held = *mut ffi::PyObject;

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
        let py = entries.py();
        // First what the fields are: the objects lie anywhere in memory, and so the processor fetches many at once.
        let mut found = Vec::with_capacity(range.len());
        for index in range {
            let entry = entries.get_item(index).ok()?;
            // SAFETY: the list holds the entry, and the caller sees to it that it goes on to.
            found.push(unsafe { self.fields(entry.as_ptr()) }?);
        }
        let mut records = Vec::with_capacity(found.len());
        for fields in found {
            let text = |value: Held| {
                if value == self.no_text.as_ptr() {
                    return Some(Cow::Borrowed(""));
                }
                // SAFETY: `fields` has seen that it is a `str`; the entry holds what is in its slots, as before.
                unsafe { utf8_of(py, value) }.map(Cow::Borrowed)
            };
            let [
                id,
                kind,
                content,
                reasoning,
                call_id,
                tool_name,
                tag,
                created_at,
                _,
            ] = fields;
            // Filled where it stands: a record is too large to be moved about.
            records.push(Record::default());
            let record = records.last_mut()?;
            record.id = text(id)?;
            record.content = text(content)?;
            record.reasoning = text(reasoning)?;
            record.call_id = text(call_id)?;
            record.tool_name = text(tool_name)?;
            record.tag = text(tag)?;
            // SAFETY: the entry holds the number.
            record.created_at = unsafe { number(py, created_at) }?;
            record.set_kind(text(kind)?);
        }
        Some(records)
    }

    /// What is in the slots of an entry; `None` where that is not what usually is.
    ///
    /// # Safety
    /// `entry` is an object that somebody holds.
    unsafe fn fields(&self, entry: Held) -> Option<[Held; FIELDS.len()]> {
        // SAFETY: an object of this very type has these slots, each with null or an object, which it holds.
        unsafe {
            if ffi::Py_TYPE(entry) != self.entry.as_ptr().cast() {
                return None;
            }
            let fields = self
                .at
                .map(|at| entry.byte_offset(at).cast::<Held>().read());
            if fields.contains(&std::ptr::null_mut()) {
                return None;
            }
            let [
                id,
                kind,
                content,
                reasoning,
                call_id,
                tool_name,
                tag,
                created_at,
                parts,
            ] = fields;
            let texts = [id, content, reasoning, call_id, tool_name, tag];
            let usual = texts
                .into_iter()
                .all(|text| text == self.no_text.as_ptr() || ffi::PyUnicode_CheckExact(text) != 0)
                && (ffi::PyUnicode_CheckExact(kind) != 0
                    || ffi::Py_TYPE(kind) == self.kind.as_ptr().cast())
                && ffi::PyLong_CheckExact(created_at) != 0
                && parts == self.no_parts.as_ptr();
            usual.then_some(fields)
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

/// `None` where it does not fit.
///
/// # Safety
/// `value` is an `int` that somebody holds.
unsafe fn number(py: Python<'_>, value: Held) -> Option<i64> {
    // SAFETY: as the caller says.
    let number = unsafe { ffi::PyLong_AsLongLong(value) };
    (number != -1 || PyErr::take(py).is_none()).then_some(number)
}
