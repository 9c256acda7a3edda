//! Where shaping uses the other parts of the core.

use std::borrow::Cow;

/// `text` with every control-token spelling made harmless.
pub fn neutralize(text: &str) -> Cow<'_, str> {
    if text.contains("<|") {
        Cow::Owned(text.replace("<|", "&lt;|"))
    } else {
        Cow::Borrowed(text)
    }
}

/// Arguments as they may stand in a history: always the text of one JSON object.
pub fn arguments(raw: &str) -> Cow<'_, str> {
    let trimmed = raw.trim();
    if trimmed.is_empty() {
        return Cow::Borrowed("{}");
    }
    if trimmed.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(trimmed).is_ok() {
        return Cow::Borrowed(raw);
    }
    let tail = &raw[ceil_boundary(raw, raw.len().saturating_sub(800))..];
    Cow::Owned(
        serde_json::json!({
            "_error": "these arguments were no JSON object, so the call was not run",
            "_raw_chars": raw.chars().count(),
            "_tail": tail,
        })
        .to_string(),
    )
}

/// Head and tail of `text` around a marker that says what was cut.
pub fn truncate_middle<'a>(text: &'a str, limit: usize, hint: &str) -> Cow<'a, str> {
    if limit == 0 || text.len() <= limit {
        return Cow::Borrowed(text);
    }
    let head = floor_boundary(text, limit - limit / 3);
    let tail = ceil_boundary(text, text.len() - limit / 3);
    Cow::Owned(format!(
        "{}\n[{} of {} bytes cut here. {hint}]\n{}",
        &text[..head],
        tail - head,
        text.len(),
        &text[tail..]
    ))
}

/// A call in the heredoc dialect.
pub fn render_call(name: &str, arguments: &str) -> String {
    format!("@@call {name}\n{arguments}\n@@end")
}

/// The largest code-point boundary at or below `at`.
pub fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The smallest code-point boundary at or above `at`.
pub fn ceil_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}
