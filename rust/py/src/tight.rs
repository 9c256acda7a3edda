use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::text_arg::TextArg;

#[pyfunction]
pub fn encode_tight<'py>(json_text: TextArg<'_, 'py>) -> Bound<'py, PyString> {
    json_text.replace_with(agentkit_core::tight::encode_tight)
}

#[pyfunction]
pub fn decode_tight<'py>(text: TextArg<'_, 'py>) -> Bound<'py, PyString> {
    text.replace_with(agentkit_core::tight::decode_tight)
}
