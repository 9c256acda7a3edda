use std::sync::{Mutex, PoisonError};

use agentkit_core::repetition as core;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::text_arg::TextArg;

static REPETITION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

#[pyclass(frozen, module = "agentkit_fast._core")]
pub struct RepetitionGuard {
    guard: Mutex<core::RepetitionGuard>,
    r#where: String,
}

#[pymethods]
impl RepetitionGuard {
    #[new]
    #[pyo3(signature = (*, min_period=24, max_period=1024, min_reps=3, min_span=512, check_every=256, short_span=4096, r#where="content"))]
    fn new(
        min_period: usize,
        max_period: usize,
        min_reps: usize,
        min_span: usize,
        check_every: usize,
        short_span: usize,
        r#where: &str,
    ) -> PyResult<Self> {
        let options = core::Options {
            min_period,
            max_period,
            min_reps,
            min_span,
            check_every,
            short_span,
        };
        let guard = core::RepetitionGuard::new(options).map_err(PyValueError::new_err)?;
        Ok(Self {
            guard: Mutex::new(guard),
            r#where: r#where.to_owned(),
        })
    }

    #[getter]
    fn r#where(&self) -> &str {
        &self.r#where
    }

    fn push(&self, py: Python<'_>, delta: TextArg<'_, '_>) -> PyResult<Option<Py<PyAny>>> {
        let found = self.lock().push(delta.as_str());
        found.map(|found| self.describe(py, found)).transpose()
    }

    fn reset(&self) {
        self.lock().reset();
    }
}

impl RepetitionGuard {
    /// A panic under the lock cannot leave half a state that matters: text is only appended.
    fn lock(&self) -> std::sync::MutexGuard<'_, core::RepetitionGuard> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, py: Python<'_>, found: core::Repetition) -> PyResult<Py<PyAny>> {
        let class = REPETITION.import(py, "agentkit_fast.text", "Repetition")?;
        let fields = PyDict::new(py);
        fields.set_item("where", &self.r#where)?;
        fields.set_item("period", found.period)?;
        fields.set_item("reps", found.reps)?;
        fields.set_item("trailing", found.trailing)?;
        fields.set_item("sample", found.sample)?;
        fields.set_item("after", found.after)?;
        Ok(class.call((), Some(&fields))?.unbind())
    }
}
