use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use agentkit_core::shape::options::Options;
use agentkit_core::shape::plan::Means;
use agentkit_core::shape::record;
use agentkit_core::shape::restructure::{Run, Step};
use agentkit_core::shape::transcript::{Built, Ingest, Transcript as CoreTranscript};
use agentkit_core::shape::unit::Level;
use agentkit_core::shape::wire::{CharsByFour, Counter};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::entries::Slots;
use crate::text_arg::TextArg;

pyo3::import_exception!(agentkit_fast.errors, ContextOverflow);

/// A Python counter. The core cannot fail in the middle of a count, so an error is kept and raised after.
struct PyCounter<'py> {
    count: Bound<'py, PyAny>,
    error: RefCell<Option<PyErr>>,
}

impl Counter for PyCounter<'_> {
    fn count(&self, text: &str) -> usize {
        if self.error.borrow().is_some() {
            return 0;
        }
        match self
            .count
            .call1((text,))
            .and_then(|tokens| tokens.extract::<usize>())
        {
            Ok(tokens) => tokens,
            Err(error) => {
                *self.error.borrow_mut() = Some(error);
                0
            }
        }
    }
}

/// A session's history as units, and the windows made of it.
#[pyclass(frozen, module = "agentkit_fast._core")]
pub struct Transcript {
    inner: Mutex<CoreTranscript>,
    /// The bound `count` of a counter; `None`: four bytes a token, counted here.
    count: Option<Py<PyAny>>,
}

impl Transcript {
    /// Waits for the lock without keeping other Python threads from running: its holder may be in a
    /// Python counter and need the interpreter to get on.
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, CoreTranscript> {
        self.inner
            .lock_py_attached(py)
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn counting<T>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut CoreTranscript, &dyn Counter) -> T,
    ) -> PyResult<T> {
        let mut inner = self.lock(py);
        let Some(count) = &self.count else {
            return Ok(f(&mut inner, &CharsByFour));
        };
        let counter = PyCounter {
            count: count.bind(py).clone(),
            error: RefCell::new(None),
        };
        let value = f(&mut inner, &counter);
        match counter.error.into_inner() {
            Some(error) => Err(error),
            None => Ok(value),
        }
    }
}

/// Entries that are taken in at once: their records stay in the processor's cache.
const PIECE: usize = 256;

impl Transcript {
    /// `None`, with nothing taken in, where the entries cannot be read as they stand.
    fn ingest_slots(
        &self,
        py: Python<'_>,
        slots: &Slots,
        entries: &Bound<'_, PyList>,
        range: Range<usize>,
    ) -> Option<bool> {
        if self.count.is_some() {
            return None; // it is Python code, and may change an entry
        }
        // Before anything is read: to wait for it lets other threads run.
        let mut inner = self.lock(py);
        // SAFETY: the core runs no Python code and does not wait, and the records are done with after it.
        let records = unsafe { slots.read(entries, range) }?;
        Some(inner.ingest(&CharsByFour, records) == Ingest::Done)
    }
}

/// Time, whether it is a marker, id, level.
type RunTuple = (i64, bool, String, u8);

fn get<'py, T>(options: &Bound<'py, PyDict>, name: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    match options.get_item(name)? {
        Some(value) => value
            .extract::<T>()
            .map_err(|_| PyValueError::new_err(format!("option {name} has the wrong type"))),
        None => Err(PyValueError::new_err(format!("option {name} is missing"))),
    }
}

/// The core's options, from a dict with every one of them.
pub fn options(options: &Bound<'_, PyDict>) -> PyResult<Options> {
    Ok(Options {
        budget: get(options, "budget")?,
        headroom: get(options, "headroom")?,
        keep_messages: get(options, "keep_messages")?,
        keep_calls: get(options, "keep_calls")?,
        keep_first: get(options, "keep_first")?,
        lod_above: get(options, "lod_above")?,
        always_lod: get(options, "always_lod")?,
        summary_tokens: get(options, "summary_tokens")?,
        max_tool_result: get(options, "max_tool_result")?,
        heredoc: get(options, "heredoc")?,
        verbatim: get(options, "verbatim")?,
        image_tokens: get(options, "image_tokens")?,
        reasoning: get(options, "reasoning")?,
        count_reasoning: get(options, "count_reasoning")?,
        alternate: get(options, "alternate")?,
        system_role: get(options, "system_role")?,
    })
}

#[pymethods]
impl Transcript {
    #[new]
    #[pyo3(signature = (options, count=None))]
    fn new(options: &Bound<'_, PyDict>, count: Option<Py<PyAny>>) -> PyResult<Self> {
        let options = self::options(options)?;
        Ok(Self {
            inner: Mutex::new(CoreTranscript::new(options)),
            count,
        })
    }

    /// How many entries were taken in.
    fn taken(&self, py: Python<'_>) -> usize {
        self.lock(py).taken()
    }

    fn reset(&self, py: Python<'_>, reason: &str) {
        let reason = match reason {
            "late" => "an entry sorts before the end",
            "gone" => "entries are gone from the context",
            _ => "history read anew",
        };
        self.lock(py).reset(reason);
    }

    fn expect(&self, py: Python<'_>, entries: usize) {
        self.lock(py).expect(entries);
    }

    fn clear(&self, py: Python<'_>) {
        self.lock(py).clear();
    }

    /// False: some sort before the end, and nothing was taken in.
    fn ingest(&self, py: Python<'_>, entries: &[u8]) -> PyResult<bool> {
        let records =
            record::decode(entries).map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.counting(py, |inner, counter| {
            inner.ingest(counter, records) == Ingest::Done
        })
    }

    /// As `ingest`, the entries as they are. What cannot be read as it stands, `pack` makes MessagePack of.
    fn ingest_entries(
        &self,
        py: Python<'_>,
        entries: &Bound<'_, PyList>,
        pack: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let slots = Slots::get(py)?;
        let total = entries.len();
        self.expect(py, total);
        for start in (0..total).step_by(PIECE) {
            let end = total.min(start + PIECE);
            let done =
                match slots.and_then(|slots| self.ingest_slots(py, slots, entries, start..end)) {
                    Some(done) => done,
                    None => {
                        let packed = pack.call1((entries.get_slice(start, end),))?;
                        self.ingest(py, packed.extract()?)?
                    }
                };
            if !done {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn set_fixed(
        &self,
        py: Python<'_>,
        system: TextArg<'_, '_>,
        tools: TextArg<'_, '_>,
    ) -> PyResult<()> {
        self.counting(py, |inner, counter| {
            inner.set_fixed(counter, system.as_str(), tools.as_str());
        })
    }

    fn knows_any(&self, py: Python<'_>, ids: Vec<String>) -> bool {
        let inner = self.lock(py);
        ids.iter().any(|id| inner.knows(id))
    }

    /// Those of `entries` that are new, and whether all that is known is among the others.
    fn unknown<'py>(
        &self,
        py: Python<'py>,
        entries: &Bound<'py, PyList>,
    ) -> PyResult<(Bound<'py, PyList>, bool)> {
        let inner = self.lock(py);
        let fresh = PyList::empty(py);
        let mut known = 0;
        for entry in entries.iter() {
            let id = entry.getattr(intern!(py, "id"))?;
            let text: TextArg<'_, '_> = id.extract()?;
            if !text.as_str().is_empty() && inner.knows(text.as_str()) {
                known += 1;
            } else {
                fresh.append(entry)?;
            }
        }
        Ok((fresh, known == inner.taken()))
    }

    /// One of "fits", "shortened", "left_out", "fold".
    fn check(&self, py: Python<'_>, means: &str, again: bool) -> PyResult<&'static str> {
        let means = match means {
            "fold" => Means::Fold,
            "leave_out" => Means::LeaveOut,
            _ => Means::Minimal,
        };
        let step = self.counting(py, |inner, counter| inner.check(counter, means, again))?;
        match step {
            Ok(Step::Fits) => Ok("fits"),
            Ok(Step::Shortened) => Ok("shortened"),
            Ok(Step::LeftOut) => Ok("left_out"),
            Ok(Step::Fold) => Ok("fold"),
            Err(at) => Err(ContextOverflow::new_err(format!(
                "the budget of {} tokens cannot hold what must always be sent: system prompt {}, tools {}, \
                 newest user message {} tokens. Nothing was changed. Raise the budget or shorten one of them.",
                at.budget, at.system, at.tools, at.user
            ))),
        }
    }

    fn total(&self, py: Python<'_>) -> PyResult<usize> {
        self.counting(py, |inner, counter| inner.total(counter))
    }

    fn plan_compaction(&self, py: Python<'_>) -> PyResult<bool> {
        self.counting(py, |inner, counter| inner.plan_compaction(counter))
    }

    fn drop_plan(&self, py: Python<'_>) {
        self.lock(py).drop_plan();
    }

    fn fold_entries(&self, py: Python<'_>) -> (Vec<String>, i64) {
        self.lock(py).fold_entries()
    }

    fn fold_sizes(&self, py: Python<'_>) -> (usize, usize) {
        self.lock(py).fold_sizes()
    }

    fn fold_messages<'py>(&self, py: Python<'py>) -> Vec<(bool, Bound<'py, PyBytes>)> {
        let messages = self.lock(py).fold_messages();
        messages
            .into_iter()
            .map(|(marker, json)| (marker, PyBytes::new(py, &json)))
            .collect()
    }

    fn task_messages<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let messages = self.lock(py).task_messages();
        messages
            .into_iter()
            .map(|json| PyBytes::new(py, &json))
            .collect()
    }

    fn summary_limit(&self, py: Python<'_>) -> usize {
        self.lock(py).options().summary_limit()
    }

    fn marker_limit(&self, py: Python<'_>) -> usize {
        self.lock(py).marker_limit()
    }

    /// `marker`: a MessagePack array of one entry. False: read the history anew.
    fn fold(&self, py: Python<'_>, marker: &[u8]) -> PyResult<bool> {
        let records =
            record::decode(marker).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let [marker] = records.as_slice() else {
            return Err(PyValueError::new_err("one marker is expected"));
        };
        self.counting(py, |inner, counter| inner.fold(counter, marker))
    }

    fn left_out(&self, py: Python<'_>) -> usize {
        self.lock(py).left_out()
    }

    fn levels(&self, py: Python<'_>) -> (Vec<RunTuple>, bool, usize) {
        let inner = self.lock(py);
        let runs = inner.levels();
        let runs = runs
            .into_iter()
            .map(|run| (run.created_at, run.marker, run.id, run.level as u8));
        (runs.collect(), inner.silent(), inner.hidden())
    }

    fn set_levels(
        &self,
        py: Python<'_>,
        runs: Vec<RunTuple>,
        silent: bool,
        hidden: usize,
    ) -> PyResult<()> {
        let runs: Vec<Run> = runs
            .into_iter()
            .map(|(created_at, marker, id, level)| Run {
                created_at,
                marker,
                id,
                level: match level {
                    0 => Level::Full,
                    1 => Level::Stub,
                    2 => Level::Bare,
                    _ => Level::Out,
                },
            })
            .collect();
        self.counting(py, |inner, counter| {
            inner.set_levels(counter, &runs, silent, hidden)
        })
    }

    #[allow(clippy::type_complexity)] // a row for Python, which names its fields
    fn layout<'py>(
        &self,
        py: Python<'py>,
    ) -> Vec<(
        &'static str,
        &'static str,
        usize,
        Vec<String>,
        Bound<'py, PyBytes>,
    )> {
        let placed = self.lock(py).layout();
        placed
            .into_iter()
            .map(|unit| {
                let shown = PyBytes::new(py, &unit.shown);
                (unit.kind, unit.form, unit.tokens, unit.entry_ids, shown)
            })
            .collect()
    }

    fn window(&self, py: Python<'_>) -> PyResult<WindowHandle> {
        self.counting(py, |inner, counter| WindowHandle(inner.window(counter)))
    }
}

/// What one build gave.
#[pyclass(frozen, module = "agentkit_fast._core")]
pub struct WindowHandle(Built);

#[pymethods]
impl WindowHandle {
    fn __len__(&self) -> usize {
        self.0.window.len()
    }

    #[getter]
    fn tokens(&self) -> usize {
        self.0.window.tokens
    }

    #[getter]
    fn has_reasoning(&self) -> bool {
        self.0.window.has_reasoning()
    }

    #[getter]
    fn stable_prefix(&self) -> usize {
        self.0.stable_prefix
    }

    #[getter]
    fn prefix_tokens(&self) -> usize {
        self.0.prefix_tokens
    }

    #[getter]
    fn break_reason(&self) -> &str {
        &self.0.break_reason
    }

    fn message_json<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.0
            .window
            .with_message(index, |json, _| PyBytes::new(py, json))
            .ok_or_else(|| PyIndexError::new_err("message index out of range"))
    }

    fn message_tokens(&self, index: usize) -> PyResult<usize> {
        self.0
            .window
            .with_message(index, |_, tokens| tokens)
            .ok_or_else(|| PyIndexError::new_err("message index out of range"))
    }

    fn to_json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.0.window.with_json(|pieces| joined(py, pieces))
    }
}

/// One bytes object of all pieces, written once: `PyBytes::new_with` would fill it with zeros before.
fn joined<'py>(py: Python<'py>, pieces: &[&[u8]]) -> PyResult<Bound<'py, PyBytes>> {
    let size: usize = pieces.iter().map(|piece| piece.len()).sum();
    // SAFETY: the object is new and nobody else has it, so that its bytes may be written; it has `size` of them,
    // and the pieces fill them all.
    unsafe {
        let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), isize::try_from(size)?);
        let made = Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyBytes>();
        let mut at = ffi::PyBytes_AsString(made.as_ptr()).cast::<u8>();
        for piece in pieces {
            std::ptr::copy_nonoverlapping(piece.as_ptr(), at, piece.len());
            at = at.add(piece.len());
        }
        Ok(made)
    }
}
