use pyo3::prelude::*;

use crate::text_arg::TextArg;

/// Tokens in `text` by the rule "four UTF-8 bytes a token, rounded up".
#[pyfunction]
pub fn chars_by_four(text: TextArg<'_, '_>) -> usize {
    agentkit_core::tokens::chars_by_four(text.as_str())
}
