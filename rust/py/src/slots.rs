use std::collections::HashMap;

use agentkit_core::slots as core;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::text_arg::TextArg;

#[pyfunction]
pub fn capture_slots<'py>(result: TextArg<'_, 'py>) -> PyResult<Bound<'py, PyDict>> {
    let py = result.py();
    let slots = PyDict::new(py);
    let whole = {
        let captured = core::capture_slots(result.as_str());
        for (name, text) in captured.sections {
            slots.set_item(name, text)?;
        }
        match captured.output {
            std::borrow::Cow::Owned(output) => Some(PyString::new(py, &output)),
            std::borrow::Cow::Borrowed(_) => None,
        }
    };
    match whole {
        Some(output) => slots.set_item(core::OUTPUT, output)?,
        None => slots.set_item(core::OUTPUT, result.give_back(None))?,
    }
    Ok(slots)
}

#[pyfunction]
pub fn expand_slots<'py>(
    text: TextArg<'_, 'py>,
    slots: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyString>> {
    // Each name is looked up in Python once, however often it stands in the text.
    let mut known: HashMap<String, Option<String>> = HashMap::new();
    for name in core::placeholders(text.as_str()) {
        if known.contains_key(name) {
            continue;
        }
        let value = match slots.get_item(name)? {
            Some(value) => Some(value.extract::<TextArg<'_, '_>>()?.as_str().to_owned()),
            None => None,
        };
        known.insert(name.to_owned(), value);
    }
    Ok(text.replace_with(|text| core::expand_slots(text, |name| known.get(name)?.as_deref())))
}

#[pyfunction]
pub fn section_names(text: TextArg<'_, '_>) -> Vec<String> {
    core::section_names(text.as_str())
        .into_iter()
        .map(str::to_owned)
        .collect()
}
