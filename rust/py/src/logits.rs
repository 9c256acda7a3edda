use agentkit_core::logits;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
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
