//! A new `str` of pieces whose length is known.

use std::cell::Cell;
use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// Shorter texts are made by way of a buffer.
const SHORT: usize = 4096;
/// Larger buffers go back to the system.
const KEPT: usize = 4 << 20;

thread_local! {
    static BUFFER: Cell<String> = const { Cell::new(String::new()) };
}

/// The `str` of `length` bytes that `pieces` pushes; `ascii` says that all of them are ASCII.
pub fn new_text<'py>(
    py: Python<'py>,
    length: usize,
    ascii: bool,
    pieces: impl FnOnce(&mut dyn FnMut(&str)),
) -> PyResult<Bound<'py, PyString>> {
    if ascii
        && length >= SHORT
        && let Some((text, room)) = unwritten_ascii(py, length)?
    {
        let mut at = 0;
        pieces(&mut |piece| {
            assert!(piece.len() <= length - at, "a piece too many");
            // SAFETY: so much room is left, in an object that `piece` is no part of.
            unsafe {
                room.add(at)
                    .copy_from_nonoverlapping(NonNull::from(piece).cast(), piece.len());
            }
            at += piece.len();
        });
        assert_eq!(at, length, "the pieces are as long together as was said");
        return Ok(text);
    }
    // Each thread keeps its buffer: the system gives a new large one page by page, and that takes longer than filling it.
    let mut buffer = BUFFER.take();
    buffer.reserve(length);
    pieces(&mut |piece| buffer.push_str(piece));
    let text = PyString::new(py, &buffer);
    if buffer.capacity() <= KEPT {
        buffer.clear();
        BUFFER.set(buffer);
    }
    Ok(text)
}

/// An ASCII `str` that nobody has seen yet, and where its `length` bytes are to be written.
///
/// `None` where the bytes are not the object's own. Python's own writers fill a new `str` in place as well; of the stable
/// ABI only `PyUnicode_WriteChar` does, character by character, and by way of a buffer a long text is copied twice.
fn unwritten_ascii<'py>(
    py: Python<'py>,
    length: usize,
) -> PyResult<Option<(Bound<'py, PyString>, NonNull<u8>)>> {
    let blank = intern!(py, " ");
    let count = length.try_into()?;
    // SAFETY: the object is a `str`; the call gives a new reference, or NULL with an exception set. More than one blank is
    // a new `str`.
    let mut text = unsafe { ffi::PySequence_Repeat(blank.as_ptr(), 2) };
    if text.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: `text` is a `str` that only we hold, which the call may move; on failure it gives it back and sets NULL.
    let text = unsafe {
        let failed = ffi::PyUnicode_Resize(&raw mut text, count);
        Bound::from_owned_ptr_or_opt(py, text).filter(|_| failed == 0)
    };
    let Some(text) = text else {
        return Err(PyErr::fetch(py));
    };
    let text = text.cast_into::<PyString>()?;
    let mut size = 0;
    // SAFETY: the object is a `str`, and `size` outlives the call.
    let bytes = unsafe { ffi::PyUnicode_AsUTF8AndSize(text.as_ptr(), &raw mut size) };
    let header = (bytes as usize).wrapping_sub(text.as_ptr() as usize);
    if size != count || header > 128 {
        return Ok(None);
    }
    // The object is ours alone and not hashed; its bytes are written before they are read, while the GIL is held.
    Ok(NonNull::new(bytes.cast_mut().cast()).map(|room| (text, room)))
}
