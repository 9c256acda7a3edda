use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::text_arg::TextArg;

#[pyfunction]
#[pyo3(signature = (text, limit, *, hint=None))]
pub fn truncate_middle<'py>(
    text: TextArg<'_, 'py>,
    limit: i64,
    hint: Option<TextArg<'_, 'py>>,
) -> Bound<'py, PyString> {
    let limit = usize::try_from(limit).unwrap_or(0);
    let hint = hint.as_ref().map_or("", TextArg::as_str);
    text.replace_with(|text| agentkit_core::truncate::truncate_middle(text, limit, hint))
}
