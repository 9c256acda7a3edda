use std::sync::{Mutex, PoisonError};

use agentkit_core::repetition as core;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::text_arg::{StreamArg, TextArg};
use crate::whole::Count;

static REPETITION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

#[pyclass(frozen, module = "agentkit_fast._core")]
pub struct RepetitionGuard {
    watch: Mutex<Watch>,
    r#where: String,
}

struct Watch {
    guard: core::RepetitionGuard,
    /// The first half of a surrogate pair whose second half has not come.
    half: Option<u16>,
}

#[pymethods]
impl RepetitionGuard {
    #[new]
    #[pyo3(
        signature = (*, min_period=Count(24), max_period=Count(1024), min_reps=Count(3), min_span=Count(512), check_every=Count(256), short_span=Count(4096), r#where=None),
        text_signature = "(*, min_period=24, max_period=1024, min_reps=3, min_span=512, check_every=256, short_span=4096, where='content')"
    )]
    fn new(
        min_period: Count,
        max_period: Count,
        min_reps: Count,
        min_span: Count,
        check_every: Count,
        short_span: Count,
        r#where: Option<TextArg<'_, '_>>,
    ) -> PyResult<Self> {
        let options = core::Options {
            min_period: min_period.0,
            max_period: max_period.0,
            min_reps: min_reps.0,
            min_span: min_span.0,
            check_every: check_every.0,
            short_span: short_span.0,
        };
        let guard = core::RepetitionGuard::new(options).map_err(PyValueError::new_err)?;
        Ok(Self {
            watch: Mutex::new(Watch { guard, half: None }),
            r#where: r#where
                .as_ref()
                .map_or("content", TextArg::as_str)
                .to_owned(),
        })
    }

    #[getter]
    fn r#where(&self) -> &str {
        &self.r#where
    }

    fn push(&self, py: Python<'_>, delta: StreamArg<'_>) -> PyResult<Option<Py<PyAny>>> {
        let found = {
            let mut watch = self.lock();
            let Watch { guard, half } = &mut *watch;
            guard.push(&delta.join(half))
        };
        found.map(|found| self.describe(py, found)).transpose()
    }

    fn reset(&self) {
        let mut watch = self.lock();
        watch.guard.reset();
        watch.half = None;
    }
}

impl RepetitionGuard {
    /// A panic under the lock cannot leave half a state that matters: text is only appended.
    fn lock(&self) -> std::sync::MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
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

/// See `_core.pyi`.
#[pyclass(module = "agentkit_fast._core")]
pub struct LoopWatch {
    watch: core::LoopWatch,
}

#[pymethods]
impl LoopWatch {
    #[new]
    fn new() -> Self {
        Self {
            watch: core::LoopWatch::default(),
        }
    }

    fn push(&mut self, token: i32) -> bool {
        self.watch.push(token)
    }

    fn boundary(&self, shown: usize) -> usize {
        self.watch.boundary(shown)
    }

    fn rewind(&mut self, keep: usize) {
        self.watch.rewind(keep);
    }

    fn __len__(&self) -> usize {
        self.watch.tokens().len()
    }

    #[getter]
    fn tokens(&self) -> Vec<i32> {
        self.watch.tokens().to_vec()
    }

    #[getter]
    fn period(&self) -> usize {
        self.watch.period()
    }

    #[getter]
    fn repeating(&self) -> bool {
        self.watch.repeating()
    }
}
