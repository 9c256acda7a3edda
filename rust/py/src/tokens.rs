use std::path::PathBuf;

use agentkit_core::tokens::tokenizer::{Mode, Tokenizer};
use agentkit_core::tokens::vocab::{VocabError, attr};
use pyo3::exceptions::PyValueError;
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::gguf::{ModelLoadError, gguf_error};
use crate::text_arg::TextArg;

import_exception!(agentkit_fast.errors, UnsupportedTokenizer);

/// Below this many bytes a call takes less time than giving up the interpreter and getting it back
/// under contention (50 us).
const DETACH_FROM: usize = 16 << 10;

/// Tokens in `text` by the rule "four UTF-8 bytes a token, rounded up".
#[pyfunction]
pub fn chars_by_four(text: TextArg<'_, '_>) -> usize {
    agentkit_core::tokens::chars_by_four(text.as_str())
}

/// The tokenizer of a GGUF file.
#[pyclass(frozen, module = "agentkit_fast._core")]
pub struct GgufVocab {
    tokenizer: Tokenizer,
}

#[pymethods]
impl GgufVocab {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let tokenizer = py
            .detach(|| Tokenizer::open(&path))
            .map_err(|error| match error {
                VocabError::Gguf(error) => gguf_error(error, &path),
                VocabError::Damaged(_) => {
                    ModelLoadError::new_err(format!("{}: {error}", path.display()))
                }
                VocabError::Unsupported(_) => {
                    UnsupportedTokenizer::new_err(format!("{}: {error}", path.display()))
                }
            })?;
        Ok(Self { tokenizer })
    }

    fn count(&self, py: Python<'_>, text: TextArg<'_, '_>) -> usize {
        let text = text.as_str();
        if text.len() < DETACH_FROM {
            return self.tokenizer.count(text, Mode::Plain);
        }
        py.detach(|| self.tokenizer.count(text, Mode::Plain))
    }

    /// Places in characters.
    fn count_beginnings(
        &self,
        py: Python<'_>,
        text: TextArg<'_, '_>,
        places: Vec<usize>,
    ) -> PyResult<Vec<usize>> {
        let text = text.as_str();
        if !places.is_sorted() {
            return Err(PyValueError::new_err("places come in ascending order"));
        }
        let mut offsets = text
            .char_indices()
            .map(|(offset, _)| offset)
            .chain([text.len()]);
        let (mut next, mut offset) = (0, 0);
        let mut bytes = Vec::with_capacity(places.len());
        for place in places {
            while next <= place {
                offset = offsets.next().ok_or_else(|| {
                    PyValueError::new_err(format!(
                        "place {place} is behind the text's end, {}",
                        next - 1
                    ))
                })?;
                next += 1;
            }
            bytes.push(offset);
        }
        Ok(py.detach(|| self.tokenizer.count_beginnings(text, &bytes)))
    }

    /// Ids as little-endian 32-bit numbers of the machine, for numpy to look at.
    #[pyo3(signature = (text, *, parse_special=false, untrusted=false))]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        text: TextArg<'_, '_>,
        parse_special: bool,
        untrusted: bool,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let mode = match (parse_special, untrusted) {
            (false, false) => Mode::Plain,
            (true, false) => Mode::ParseSpecial,
            (false, true) => Mode::Untrusted,
            (true, true) => {
                return Err(PyValueError::new_err(
                    "untrusted text has no special tokens to parse: give one of the two",
                ));
            }
        };
        let text = text.as_str();
        let work = || -> Vec<u8> {
            let ids = self.tokenizer.encode(text, mode);
            ids.into_iter().flat_map(u32::to_ne_bytes).collect()
        };
        let raw = if text.len() < DETACH_FROM {
            work()
        } else {
            py.detach(work)
        };
        Ok(PyByteArray::new(py, &raw))
    }

    fn decode<'py>(&self, py: Python<'py>, raw: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let (ids, _) = raw.as_chunks::<4>();
        match self
            .tokenizer
            .decode(ids.iter().map(|id| i32::from_ne_bytes(*id)))
        {
            Ok(bytes) => Ok(PyBytes::new(py, &bytes)),
            Err(id) => Err(PyValueError::new_err(format!(
                "{id} is not a token of this vocabulary, whose ids go from 0 to {}",
                self.tokenizer.vocab.size() - 1
            ))),
        }
    }

    fn piece<'py>(&self, py: Python<'py>, token: i64) -> PyResult<Bound<'py, PyBytes>> {
        let piece = u32::try_from(token)
            .ok()
            .and_then(|id| self.tokenizer.piece(id));
        match piece {
            Some(bytes) => Ok(PyBytes::new(py, &bytes)),
            None => Err(PyValueError::new_err(format!(
                "{token} is not a token of this vocabulary, whose ids go from 0 to {}",
                self.tokenizer.vocab.size() - 1
            ))),
        }
    }

    /// Text, id and kind of every special token, in the order of ids.
    fn special(&self) -> Vec<(String, u32, &'static str)> {
        self.tokenizer
            .vocab
            .special()
            .map(|(id, text, kind)| {
                let kind = if kind & attr::CONTROL != 0 {
                    "control"
                } else if kind & attr::UNKNOWN != 0 {
                    "unknown"
                } else {
                    "user_defined"
                };
                (String::from_utf8_lossy(text).into_owned(), id, kind)
            })
            .collect()
    }

    #[getter]
    fn add_bos(&self) -> bool {
        self.tokenizer.vocab.add_bos
    }

    #[getter]
    fn add_eos(&self) -> bool {
        self.tokenizer.vocab.add_eos
    }

    #[getter]
    fn add_space_prefix(&self) -> bool {
        self.tokenizer.vocab.add_space_prefix
    }

    #[getter]
    fn architecture(&self) -> &str {
        &self.tokenizer.vocab.architecture
    }

    #[getter]
    fn bos_id(&self) -> Option<u32> {
        self.tokenizer.vocab.bos
    }

    #[getter]
    fn chat_template(&self) -> Option<&str> {
        self.tokenizer.vocab.chat_template.as_deref()
    }

    #[getter]
    fn context_length(&self) -> Option<u64> {
        self.tokenizer.vocab.context_length
    }

    #[getter]
    fn eog_ids(&self) -> Vec<u32> {
        self.tokenizer.vocab.eog.iter().copied().collect()
    }

    #[getter]
    fn eos_id(&self) -> Option<u32> {
        self.tokenizer.vocab.eos
    }

    #[getter]
    fn eot_id(&self) -> Option<u32> {
        self.tokenizer.vocab.eot
    }

    #[getter]
    fn model(&self) -> &str {
        &self.tokenizer.vocab.model_name
    }

    #[getter]
    fn n_tokens(&self) -> usize {
        self.tokenizer.vocab.size()
    }

    #[getter]
    fn pre(&self) -> &str {
        &self.tokenizer.vocab.pre_name
    }

    #[getter]
    fn unk_id(&self) -> Option<u32> {
        self.tokenizer.vocab.unk
    }
}
