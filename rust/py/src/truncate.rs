use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::text_arg::TextArg;
use crate::whole::Limit;

#[pyfunction]
#[pyo3(signature = (text, limit, *, hint=None), text_signature = "(text, limit, *, hint='')")]
pub fn truncate_middle<'py>(
    text: TextArg<'_, 'py>,
    limit: Limit,
    hint: Option<TextArg<'_, 'py>>,
) -> Bound<'py, PyString> {
    let hint = hint.as_ref().map_or("", TextArg::as_str);
    text.replace_with(|text| agentkit_core::truncate::truncate_middle(text, limit.0, hint))
}
