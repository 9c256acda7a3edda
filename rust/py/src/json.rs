use std::borrow::Cow;

use agentkit_core::json::{self, ArgumentsKind, Fault};
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::text_arg::TextArg;

import_exception!(agentkit_fast.errors, HeredocError);

/// Our exception for text that cannot be read.
pub fn heredoc_error(fault: &Fault) -> PyErr {
    let message = format!("at byte {}: {}", fault.at, fault.reason);
    HeredocError::new_err((message, fault.kind.name(), fault.at))
}

/// Texts from here on are worked on without the interpreter's lock: below, taking it back costs more
/// than other threads gain.
const DETACH_BYTES: usize = 64 * 1024;

pub fn detached<T: Send>(py: Python<'_>, bytes: usize, work: impl Send + FnOnce() -> T) -> T {
    if bytes < DETACH_BYTES {
        work()
    } else {
        py.detach(work)
    }
}

/// Strict JSON for one loose value, raw bodies included; `text` itself where it is strict already.
#[pyfunction]
pub fn loose_json<'py>(text: TextArg<'_, 'py>) -> PyResult<Bound<'py, PyString>> {
    let source = text.as_str();
    let strict = detached(text.py(), source.len(), || json::loose_json(source));
    match strict {
        Ok(Cow::Borrowed(_)) => Ok(text.give_back(None)),
        Ok(Cow::Owned(changed)) => Ok(text.give_back(Some(&changed))),
        Err(fault) => Err(heredoc_error(&fault)),
    }
}

/// `(outcome, text, repairs)`.
#[pyfunction]
pub fn repair_json<'py>(
    text: TextArg<'_, 'py>,
) -> PyResult<(&'static str, Bound<'py, PyString>, Bound<'py, PyTuple>)> {
    let py = text.py();
    let source = text.as_str();
    let repair = detached(py, source.len(), || json::repair_json(source));
    let outcome = repair.outcome;
    let repairs = PyTuple::new(py, repair.repairs.names().collect::<Vec<_>>())?;
    let strict = if outcome == json::Outcome::Ok && repair.repairs.is_empty() {
        text.give_back(None)
    } else {
        PyString::new(py, &repair.text)
    };
    Ok((outcome.name(), strict, repairs))
}

/// `(kind, text, message)`.
#[pyfunction]
pub fn check_arguments<'py>(raw: TextArg<'_, 'py>) -> (&'static str, Bound<'py, PyString>, String) {
    let py = raw.py();
    let source = raw.as_str();
    let arguments = detached(py, source.len(), || json::check_arguments(source));
    let (kind, message) = (arguments.kind, arguments.message);
    let same = matches!(&arguments.text, Cow::Borrowed(text) if std::ptr::eq(*text, source));
    let text = if kind == ArgumentsKind::Ok && same {
        raw.give_back(None)
    } else {
        PyString::new(py, &arguments.text)
    };
    (kind.name(), text, message)
}

/// A JSON object that stands in for arguments that cannot be used.
#[pyfunction]
pub fn rejected_arguments(raw: TextArg<'_, '_>, message: TextArg<'_, '_>) -> String {
    json::rejected_arguments(raw.as_str(), message.as_str())
}
