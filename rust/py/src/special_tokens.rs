use agentkit_core::neutralize::{self, Style};
use agentkit_core::special_tokens as core;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::text_arg::TextArg;
use crate::unread::surely_clean;

/// Base of `agentkit_fast.text.SpecialTokens`, which adds the ways to get a set.
#[pyclass(frozen, subclass, module = "agentkit_fast._core")]
pub struct SpecialTokens {
    set: core::SpecialTokens,
}

impl SpecialTokens {
    pub fn set(&self) -> &core::SpecialTokens {
        &self.set
    }
}

#[pymethods]
impl SpecialTokens {
    #[new]
    fn new(tokens: &Bound<'_, PyAny>) -> PyResult<Self> {
        let spellings = tokens
            .try_iter()?
            .map(|token| Ok(token?.extract::<TextArg<'_, '_>>()?.as_str().to_owned()))
            .collect::<PyResult<Vec<String>>>()?;
        Ok(Self {
            set: core::SpecialTokens::new(spellings),
        })
    }

    #[getter]
    fn tokens(&self) -> Vec<&str> {
        self.set.tokens().iter().map(String::as_str).collect()
    }

    fn find<'a>(&'a self, text: TextArg<'a, '_>) -> Vec<(usize, usize, String)> {
        self.set
            .find(text.as_str())
            .map(|(start, end, token)| (start, end, token.to_owned()))
            .collect()
    }

    fn neutralize<'py>(&self, text: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyString>> {
        rewrite(text, &self.set, Style::Entity)
    }
}

/// Spellings of one family, as the tokenizers of the family have them.
#[pyfunction]
pub fn special_token_family(name: TextArg<'_, '_>) -> PyResult<Vec<String>> {
    let name = name.as_str();
    match core::SpecialTokens::family(name) {
        Some(set) => Ok(set.tokens().to_vec()),
        None => Err(PyValueError::new_err(format!(
            "no family of special tokens is called {name:?}; known are {}",
            core::SpecialTokens::families()
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}

/// Spellings of the default set.
#[pyfunction]
pub fn default_special_tokens() -> Vec<String> {
    core::SpecialTokens::default_set().tokens().to_vec()
}

#[pyfunction]
#[pyo3(signature = (text, *, tokens=None, style=None), text_signature = "(text, *, tokens=None, style='entity')")]
pub fn neutralize_special_tokens<'py>(
    text: &Bound<'py, PyString>,
    tokens: Option<PyRef<'_, SpecialTokens>>,
    style: Option<TextArg<'_, '_>>,
) -> PyResult<Bound<'py, PyString>> {
    let style = match style.as_ref().map_or("entity", TextArg::as_str) {
        "entity" => Style::Entity,
        "joiner" => Style::Joiner,
        other => {
            return Err(PyValueError::new_err(format!(
                "style is {other:?}; use \"entity\" or \"joiner\""
            )));
        }
    };
    match tokens {
        Some(tokens) => rewrite(text, tokens.set(), style),
        None => rewrite(text, core::SpecialTokens::default_set(), style),
    }
}

#[pyfunction]
pub fn restore_special_tokens<'py>(text: TextArg<'_, 'py>) -> Bound<'py, PyString> {
    text.replace_with(neutralize::restore)
}

fn rewrite<'py>(
    text: &Bound<'py, PyString>,
    set: &core::SpecialTokens,
    style: Style,
) -> PyResult<Bound<'py, PyString>> {
    if surely_clean(text, set, style)? {
        return Ok(text.clone());
    }
    text.extract::<TextArg<'_, '_>>()?.try_replace_with(|text| {
        neutralize::neutralize(text, set, style)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    })
}
