use std::rc::Rc;

use agentkit_core::slots as core;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rustc_hash::FxHashMap;

use crate::scratch::scratch;
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
    scratch(|output| {
        core::push_without_tags(output, text, &sections);
        slots.set_item(core::OUTPUT, &*output)
    })?;
    Ok(slots)
}

#[pyfunction]
pub fn expand_slots<'py>(
    text: TextArg<'_, 'py>,
    slots: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyString>> {
    let mut failed = None;
    let expanded = scratch(|out| {
        // Each name is looked up in Python once, however often it stands in the text.
        let mut known: FxHashMap<&str, Option<Rc<str>>> = FxHashMap::default();
        let changed = core::push_expanded(out, text.as_str(), |name| {
            known
                .entry(name)
                .or_insert_with(|| {
                    look_up(slots, name).unwrap_or_else(|error| {
                        failed.get_or_insert(error);
                        None
                    })
                })
                .clone()
        });
        changed.then(|| PyString::new(text.py(), out))
    });
    match (failed, expanded) {
        (Some(error), _) => Err(error),
        (None, Some(expanded)) => Ok(expanded),
        (None, None) => Ok(text.give_back(None)),
    }
}

fn look_up(slots: &Bound<'_, PyDict>, name: &str) -> PyResult<Option<Rc<str>>> {
    let Some(value) = slots.get_item(name)? else {
        return Ok(None);
    };
    Ok(Some(Rc::from(value.extract::<TextArg<'_, '_>>()?.as_str())))
}

#[pyfunction]
pub fn section_names(text: TextArg<'_, '_>) -> Vec<String> {
    core::section_names(text.as_str())
        .into_iter()
        .map(str::to_owned)
        .collect()
}
