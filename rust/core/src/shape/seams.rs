//! Where shaping uses the other parts of the core.

use std::borrow::Cow;

use crate::heredoc::render_tool_call;
use crate::json::{ArgumentsKind, check_arguments, rejected_arguments};
use crate::neutralize::{Style, neutralize as neutralize_with};
use crate::special_tokens::SpecialTokens;
pub use crate::truncate::{floor_char_boundary as floor_boundary, truncate_middle};

/// `text` with every control-token spelling made harmless.
pub fn neutralize(text: &str) -> Cow<'_, str> {
    neutralize_with(text, SpecialTokens::default_set(), Style::Entity)
        .unwrap_or(Cow::Borrowed(text))
}

/// Arguments as they may stand in a history: always the text of one JSON object.
pub fn arguments(raw: &str) -> Cow<'_, str> {
    let judged = check_arguments(raw);
    if judged.kind == ArgumentsKind::Ok {
        judged.text
    } else {
        Cow::Owned(rejected_arguments(raw, &judged.message))
    }
}

/// A call in the heredoc dialect. `arguments` is the text of one JSON object.
pub fn render_call(name: &str, arguments: &str) -> String {
    // Only arguments that are no object are refused, and those do not come here.
    render_tool_call(name, arguments)
        .unwrap_or_else(|_| format!("@@call {name}\n{arguments}\n@@end\n"))
}

pub use super::stand_in::stub_arguments as short_arguments;
