//! A `str` whose UTF-8 nobody has asked for yet.
//!
//! Python makes the UTF-8 of a text that is not ASCII on first use, and that takes longer than all we do with it. Where a
//! look at the code points is enough it is left unmade. The stable ABI shows them in a copy only; in pieces that stay in
//! the processor's cache.

use std::cell::Cell;

use agentkit_core::neutralize::Style;
use agentkit_core::special_tokens::SpecialTokens;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::text_arg::substring;

/// Shorter texts are read as they are: the call to Python would cost as much.
const SHORT: usize = 512;
/// Code points of a piece.
const PIECE: usize = 1 << 16;

thread_local! {
    static PIECES: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

/// Whether neutralizing surely leaves `text` as it is, told without its UTF-8. Of ASCII text Python has that already.
pub fn surely_clean(
    text: &Bound<'_, PyString>,
    set: &SpecialTokens,
    style: Style,
) -> PyResult<bool> {
    let py = text.py();
    let length = text.len()?;
    let Some(shared) = set.shared_by_pieces().filter(|shared| *shared < PIECE / 4) else {
        return Ok(false);
    };
    // Windows has 16 bits in a `wchar_t`. Of a subclass no method is called.
    if cfg!(windows)
        || length < SHORT
        || !text.is_exact_instance_of::<PyString>()
        || text.call_method0(intern!(py, "isascii"))?.is_truthy()?
    {
        return Ok(false);
    }
    let mut buffer = PIECES.take();
    buffer.resize(PIECE, 0);
    let mut start = 0;
    let clean = loop {
        let end = (start + PIECE).min(length);
        let read = read_code_points(text, start, end, &mut buffer)?;
        if !set.surely_none(&buffer[..read], style) {
            break false;
        }
        if end == length {
            break true;
        }
        start = end - shared;
    };
    PIECES.set(buffer);
    Ok(clean)
}

/// Copies the code points `start..end` into `buffer`, which has room for them.
fn read_code_points(
    text: &Bound<'_, PyString>,
    start: usize,
    end: usize,
    buffer: &mut [u32],
) -> PyResult<usize> {
    let piece = substring(text, start..end)?;
    // SAFETY: at most `buffer.len()` items are written, each a `wchar_t` of 4 bytes (never called on Windows).
    let read = unsafe {
        ffi::PyUnicode_AsWideChar(
            piece.as_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len().try_into()?,
        )
    };
    usize::try_from(read).map_err(|_| PyErr::fetch(text.py()))
}
