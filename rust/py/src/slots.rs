use agentkit_core::slots as core;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rustc_hash::FxHashMap;

use crate::new_text::new_text;
use crate::text_arg::TextArg;

#[pyfunction]
pub fn capture_slots<'py>(result: TextArg<'_, 'py>) -> PyResult<Bound<'py, PyDict>> {
    let py = result.py();
    let slots = PyDict::new(py);
    let text = result.as_str();
    let sections = core::sections(text);
    let ascii = result.is_ascii();
    // Of several sections of one name the last counts, as in a dict.
    for section in &sections {
        slots.set_item(section.name, result.piece(section.text.clone(), ascii)?)?;
    }
    if sections.is_empty() {
        slots.set_item(core::OUTPUT, result.give_back(None))?;
        return Ok(slots);
    }
    let length = core::length_without_tags(text, &sections);
    let output = new_text(py, length, ascii, |push| {
        core::without_tags(text, &sections, push);
    })?;
    slots.set_item(core::OUTPUT, output)?;
    Ok(slots)
}

#[pyfunction]
pub fn expand_slots<'py>(
    text: TextArg<'_, 'py>,
    slots: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyString>> {
    let py = text.py();
    let mut held = Vec::new();
    let mut failed = None;
    // Each name is looked up in Python once, however often it stands in the text.
    let mut known: FxHashMap<&str, Option<usize>> = FxHashMap::default();
    let places = core::placeholders(text.as_str(), |name| {
        *known.entry(name).or_insert_with(|| {
            let value = slots.get_item(name).unwrap_or_else(|error| {
                failed.get_or_insert(error);
                None
            });
            held.push(value?);
            Some(held.len() - 1)
        })
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let values = held
        .iter()
        .map(|value| value.extract::<TextArg<'_, '_>>())
        .collect::<PyResult<Vec<_>>>()?;
    if places.is_empty() {
        return Ok(text.give_back(None));
    }
    let ascii = text.is_ascii() && values.iter().all(TextArg::is_ascii);
    let values: Vec<&str> = values.iter().map(TextArg::as_str).collect();
    let length = core::expanded_length(text.as_str(), &places, &values);
    new_text(py, length, ascii, |push| {
        core::expand(text.as_str(), &places, &values, push);
    })
}

#[pyfunction]
pub fn section_names(text: TextArg<'_, '_>) -> Vec<String> {
    core::section_names(text.as_str())
        .into_iter()
        .map(str::to_owned)
        .collect()
}
