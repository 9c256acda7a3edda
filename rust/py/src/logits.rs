use agentkit_core::logits;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (logits, *, reach, most))]
pub fn best_logits<'py>(
    py: Python<'py>,
    logits: PyBuffer<f32>,
    reach: f32,
    most: usize,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    if !logits.is_c_contiguous() {
        return Err(PyValueError::new_err("the logits must lie side by side"));
    }
    // SAFETY: the buffer keeps this many f32 alive, its format was checked, and whoever calls this owns
    // the logits: nothing writes them meanwhile. Copying a megabyte of them would take longer than
    // looking through it.
    let values =
        unsafe { std::slice::from_raw_parts(logits.buf_ptr().cast::<f32>(), logits.item_count()) };
    let found = logits::best_logits(values, reach, most);
    let ids: Vec<u8> = found.iter().flat_map(|(id, _)| id.to_ne_bytes()).collect();
    let values: Vec<u8> = found.iter().flat_map(|(_, v)| v.to_ne_bytes()).collect();
    Ok((PyBytes::new(py, &ids), PyBytes::new(py, &values)))
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (logits, banned=None, *, reach, most, top_p, temperature, at))]
pub fn draw_token(
    logits: PyBuffer<f32>,
    banned: Option<PyBuffer<i64>>,
    reach: f32,
    most: usize,
    top_p: f64,
    temperature: f64,
    at: f64,
) -> PyResult<Option<u32>> {
    let contiguous =
        logits.is_c_contiguous() && banned.as_ref().is_none_or(|ids| ids.is_c_contiguous());
    if !contiguous {
        return Err(PyValueError::new_err("the logits must lie side by side"));
    }
    let how = logits::Draw {
        reach,
        most,
        top_p,
        temperature,
        at,
    };
    let (start, count) = (logits.buf_ptr().cast::<f32>(), logits.item_count());
    // SAFETY, here and below: the buffers keep this many values alive, their formats were checked, and whoever calls
    // this owns the logits: nothing else writes or reads them meanwhile. Two buffers of two types are not the same
    // memory.
    let Some(banned) = banned else {
        let values = unsafe { std::slice::from_raw_parts(start, count) };
        return Ok(logits::draw(values, how));
    };
    if logits.readonly() {
        return Err(PyBufferError::new_err("the logits cannot be written"));
    }
    let (values, ids) = unsafe {
        (
            std::slice::from_raw_parts_mut(start, count),
            std::slice::from_raw_parts(banned.buf_ptr().cast::<i64>(), banned.item_count()),
        )
    };
    Ok(logits::draw_allowed(values, ids, how))
}
