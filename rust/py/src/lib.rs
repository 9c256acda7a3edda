//! Python face of `agentkit-core`. One file a concern; each only converts arguments, calls the core
//! and maps errors.

use pyo3::prelude::*;

mod abort;
mod beginning;
mod entries;
mod gguf;
mod heredoc;
mod json;
mod llama;
mod logits;
mod new_text;
mod repetition;
mod shape;
mod shape_list;
mod slots;
mod special_tokens;
mod text_arg;
mod tight;
mod tokens;
mod truncate;
mod unread;
mod whole;

#[pymodule]
mod _core {
    use super::*;

    #[pymodule_export]
    use crate::abort::AbortFlag;
    #[pymodule_export]
    use crate::beginning::same_beginning;
    #[pymodule_export]
    use crate::gguf::GgufHeader;
    #[pymodule_export]
    use crate::heredoc::{
        HeredocStream, heredoc_grammar, heredoc_lark, heredoc_prompt, parse_tool_calls,
        render_tool_call,
    };
    #[pymodule_export]
    use crate::json::{check_arguments, loose_json, rejected_arguments, repair_json};
    #[pymodule_export]
    use crate::llama::LlamaStep;
    #[pymodule_export]
    use crate::logits::{best_logits, draw_token};
    #[pymodule_export]
    use crate::repetition::{LoopWatch, RepetitionGuard};
    #[pymodule_export]
    use crate::shape::{Transcript, WindowHandle};
    #[pymodule_export]
    use crate::shape_list::shape_list;
    #[pymodule_export]
    use crate::slots::{capture_slots, expand_slots, section_names};
    #[pymodule_export]
    use crate::special_tokens::{
        SpecialTokens, default_special_tokens, neutralize_special_tokens, restore_special_tokens,
        special_token_family,
    };
    #[pymodule_export]
    use crate::text_arg::repair_surrogates;
    #[pymodule_export]
    use crate::tight::{decode_tight, encode_tight};
    #[pymodule_export]
    use crate::tokens::{GgufVocab, chars_by_four};
    #[pymodule_export]
    use crate::truncate::truncate_middle;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // Benchmarks refuse a debug build, and importing one warns.
        module.add("DEBUG_BUILD", cfg!(debug_assertions))
    }
}
