use std::sync::{Mutex, MutexGuard, PoisonError};

use agentkit_core::heredoc::{self, Event, GrammarError, Problem, Tool};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::json::{detached, heredoc_error};
use crate::text_arg::{StreamArg, TextArg};
use crate::whole::Count;

/// `(kind, tool_name, byte_offset, message)`.
type ProblemFields = (&'static str, String, usize, String);

fn problem_fields(problems: Vec<Problem>) -> Vec<ProblemFields> {
    problems
        .into_iter()
        .map(|problem| {
            (
                problem.kind.name(),
                problem.tool_name,
                problem.byte_offset,
                problem.message,
            )
        })
        .collect()
}

/// `([(name, arguments), …], prose, problems)`.
#[pyfunction]
#[allow(clippy::type_complexity)] // a tuple for the face to unpack, named nowhere else
pub fn parse_tool_calls<'py>(
    text: TextArg<'_, 'py>,
) -> (
    Vec<(String, String)>,
    Bound<'py, PyString>,
    Vec<ProblemFields>,
) {
    let source = text.as_str();
    let reply = detached(text.py(), source.len(), || {
        heredoc::parse_tool_calls(source)
    });
    let unchanged = reply.prose.len() == source.len();
    let prose = text.give_back((!unchanged).then_some(reply.prose.as_str()));
    let calls = reply
        .calls
        .into_iter()
        .map(|call| (call.name, call.arguments))
        .collect();
    (calls, prose, problem_fields(reply.problems))
}

#[derive(Default)]
struct Stream {
    inner: heredoc::HeredocStream,
    /// The first half of a surrogate pair whose second half has not come.
    half: Option<u16>,
}

/// A reply read piece by piece. Each event is a tuple: `(text,)`, `(index, name)` or
/// `(index, name, arguments)`.
#[pyclass(frozen, module = "agentkit_fast._core")]
pub struct HeredocStream(Mutex<Option<Stream>>);

impl HeredocStream {
    fn lock(&self) -> MutexGuard<'_, Option<Stream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl HeredocStream {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(Some(Stream::default())))
    }

    fn push<'py>(&self, py: Python<'py>, delta: StreamArg<'_>) -> PyResult<Bound<'py, PyList>> {
        let mut guard = self.lock();
        let stream = guard.as_mut().ok_or_else(|| {
            PyValueError::new_err("this HeredocStream is finished; use a new one")
        })?;
        let text = delta.join(&mut stream.half);
        let list = PyList::empty(py);
        for event in stream.inner.push(&text) {
            match event {
                Event::Prose(text) => list.append((text,))?,
                Event::Started { index, name } => list.append((index, name))?,
                Event::Ready { index, call } => list.append((index, call.name, call.arguments))?,
            }
        }
        Ok(list)
    }

    /// `(prose, released, problems)`: `prose[released:]` (code points) was not given out before. The text
    /// ends here; calls were all given out by `push`.
    fn finish(&self) -> PyResult<(String, usize, Vec<ProblemFields>)> {
        let mut stream = self.lock().take().ok_or_else(|| {
            PyValueError::new_err("this HeredocStream is finished; use a new one")
        })?;
        if stream.half.take().is_some() {
            stream.inner.push("\u{fffd}");
        }
        let (reply, released) = stream.inner.finish();
        let released = reply
            .prose
            .get(..released)
            .map_or(0, |text| text.chars().count());
        Ok((reply.prose, released, problem_fields(reply.problems)))
    }
}

fn read_tools(tools: &TextArg<'_, '_>) -> PyResult<Vec<Tool>> {
    heredoc::read_tools(tools.as_str()).map_err(|fault| {
        PyValueError::new_err(format!(
            "the tools' schemas cannot be read: at byte {} of their JSON: {}",
            fault.at, fault.reason
        ))
    })
}

fn grammar_error(error: GrammarError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// GBNF of the replies that may be written with `tools` (a JSON array of names, descriptions and schemas).
#[pyfunction]
#[pyo3(signature = (tools, *, max_calls, allow_prose))]
pub fn heredoc_grammar(
    tools: TextArg<'_, '_>,
    max_calls: Count,
    allow_prose: bool,
) -> PyResult<String> {
    heredoc::heredoc_grammar(&read_tools(&tools)?, max_calls.0, allow_prose).map_err(grammar_error)
}

/// The language of `heredoc_grammar` as Lark, for llguidance.
#[pyfunction]
#[pyo3(signature = (tools, *, max_calls, allow_prose))]
pub fn heredoc_lark(
    tools: TextArg<'_, '_>,
    max_calls: Count,
    allow_prose: bool,
) -> PyResult<String> {
    heredoc::heredoc_lark(&read_tools(&tools)?, max_calls.0, allow_prose).map_err(grammar_error)
}

/// The instruction text for `tools`.
#[pyfunction]
pub fn heredoc_prompt(tools: TextArg<'_, '_>) -> PyResult<String> {
    Ok(heredoc::heredoc_prompt(&read_tools(&tools)?))
}

/// A block that calls `name` with a JSON object.
#[pyfunction]
pub fn render_tool_call(name: TextArg<'_, '_>, arguments: TextArg<'_, '_>) -> PyResult<String> {
    heredoc::render_tool_call(name.as_str(), arguments.as_str())
        .map_err(|fault| heredoc_error(&fault))
}
