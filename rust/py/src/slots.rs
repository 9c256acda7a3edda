use std::borrow::Cow;
use std::rc::Rc;

use agentkit_core::slots as core;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rustc_hash::FxHashMap;

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
    let output = match core::without_tags(text, &sections) {
        Cow::Owned(output) => Some(output),
        Cow::Borrowed(_) => None,
    };
    slots.set_item(core::OUTPUT, result.give_back(output.as_deref()))?;
    Ok(slots)
}

#[pyfunction]
pub fn expand_slots<'py>(
    text: TextArg<'_, 'py>,
    slots: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyString>> {
    // Each name is looked up in Python once, however often it stands in the text.
    let mut known: FxHashMap<String, Option<Rc<str>>> = FxHashMap::default();
    text.try_replace_with(|text| {
        let mut failed = None;
        let expanded = core::expand_slots(text, |name| {
            if let Some(value) = known.get(name) {
                return value.clone();
            }
            let value = look_up(slots, name).unwrap_or_else(|error| {
                failed.get_or_insert(error);
                None
            });
            known.insert(name.to_owned(), value.clone());
            value
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(expanded),
        }
    })
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
