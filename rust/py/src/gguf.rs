use std::path::{Path, PathBuf};

use agentkit_core::tokens::gguf::{GgufError, Header, Value};
use pyo3::exceptions::PyOSError;
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::PyList;

import_exception!(agentkit_fast.errors, ModelLoadError);

/// `error` as Python's: `OSError` with the file's name, or `ModelLoadError` for a damaged file.
pub fn gguf_error(error: GgufError, path: &Path) -> PyErr {
    match error {
        GgufError::Io(error) => match error.raw_os_error() {
            Some(code) => PyOSError::new_err((code, error.to_string(), path.to_path_buf())),
            None => PyOSError::new_err(format!("{}: {error}", path.display())),
        },
        error => ModelLoadError::new_err(format!("{}: {error}", path.display())),
    }
}

/// The metadata of a GGUF file.
#[pyclass(frozen, module = "agentkit_fast._core")]
pub struct GgufHeader {
    header: Header,
}

#[pymethods]
impl GgufHeader {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let header = py
            .detach(|| Header::open(&path))
            .map_err(|error| gguf_error(error, &path))?;
        Ok(Self { header })
    }

    #[getter]
    fn version(&self) -> u32 {
        self.header.version
    }

    #[getter]
    fn big_endian(&self) -> bool {
        self.header.big_endian
    }

    #[getter]
    fn tensor_count(&self) -> u64 {
        self.header.tensor_count
    }

    #[getter]
    fn byte_len(&self) -> usize {
        self.header.byte_len
    }

    fn keys(&self) -> Vec<String> {
        self.header.keys().map(str::to_owned).collect()
    }

    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.header.get(key) {
            Some(value) => to_python(py, value),
            None => Ok(default.unwrap_or_else(|| py.None().into_bound(py))),
        }
    }
}

fn to_python<'py>(py: Python<'py>, value: Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Unsigned(value) => value.into_pyobject(py)?.into_any(),
        Value::Signed(value) => value.into_pyobject(py)?.into_any(),
        Value::Float(value) => value.into_pyobject(py)?.into_any(),
        Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
        Value::String(bytes) => String::from_utf8_lossy(bytes).into_pyobject(py)?.into_any(),
        Value::Array(array) => {
            let items = array
                .iter()
                .map(|item| to_python(py, item))
                .collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, items)?.into_any()
        }
    })
}
