//! The gate that every tool call passes before it is stored or dispatched.

use std::borrow::Cow;

use super::escape::push_string;
use super::loose::is_space;
use super::repair::{Reading, read};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgumentsKind {
    Ok,
    Truncated,
    Malformed,
    NotObject,
}

impl ArgumentsKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
            Self::NotObject => "not_object",
        }
    }
}

/// What the gate says of one call's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments<'a> {
    pub kind: ArgumentsKind,
    /// Strict JSON of one object where the kind is `Ok`, else empty.
    pub text: Cow<'a, str>,
    /// What the model must hear; empty where the kind is `Ok`.
    pub message: String,
}

/// Bytes kept of the end of refused arguments: enough to see where a cut fell.
const TAIL_BYTES: usize = 800;

pub(crate) fn truncated_message(what: &str, bytes: usize) -> String {
    format!(
        "{what} cut off after {bytes} bytes, so nothing was run. Send the call again with smaller \
         arguments, or split the work over several calls."
    )
}

/// How native arguments are to be sent.
const SEND_OBJECT: &str = "Send the call again with one well-formed JSON object.";

pub(crate) fn malformed_message(what: &str, at: usize, reason: &str, instead: &str) -> String {
    format!("{what} not well-formed: at byte {at}: {reason}. Nothing was run. {instead}")
}

/// Judges `raw`, as a model or server gave it. Blank means no arguments.
pub fn check_arguments(raw: &str) -> Arguments<'_> {
    if raw.chars().all(is_space) {
        return Arguments {
            kind: ArgumentsKind::Ok,
            text: Cow::Borrowed("{}"),
            message: String::new(),
        };
    }
    let (kind, message) = match read(raw) {
        Reading::Object(text, _) => {
            return Arguments {
                kind: ArgumentsKind::Ok,
                text,
                message: String::new(),
            };
        }
        Reading::Cut | Reading::Bad { open: true, .. } => (
            ArgumentsKind::Truncated,
            truncated_message("The arguments were", raw.len()),
        ),
        Reading::Bad { fault, .. } => (
            ArgumentsKind::Malformed,
            malformed_message("The arguments are", fault.at, fault.reason, SEND_OBJECT),
        ),
        Reading::Trailing(at) => (
            ArgumentsKind::Malformed,
            malformed_message(
                "The arguments are",
                at,
                "text follows the JSON value",
                SEND_OBJECT,
            ),
        ),
        Reading::Other(first) => (
            ArgumentsKind::NotObject,
            format!(
                "The arguments are {}, but must be one well-formed JSON object such as {{\"name\": \"value\"}}. \
                 Nothing was run. Send the call again with a JSON object.",
                match first {
                    b'[' => "a JSON array",
                    b'"' | b'\'' => "a JSON string",
                    b'n' | b'N' => "null",
                    b't' | b'f' | b'T' | b'F' => "a boolean",
                    _ => "a number",
                }
            ),
        ),
    };
    Arguments {
        kind,
        text: Cow::Borrowed(""),
        message,
    }
}

/// A JSON object that stands in for arguments that cannot be used: `_error` (the message), `_raw_chars` (how
/// many characters came) and `_tail` (their last 800 bytes, never cutting a character).
pub fn rejected_arguments(raw: &str, message: &str) -> String {
    let mut from = raw.len().saturating_sub(TAIL_BYTES);
    while !raw.is_char_boundary(from) {
        from += 1;
    }
    let mut out = String::from("{\"_error\": ");
    push_string(&mut out, message);
    out.push_str(", \"_raw_chars\": ");
    out.push_str(&raw.chars().count().to_string());
    out.push_str(", \"_tail\": ");
    push_string(&mut out, &raw[from..]);
    out.push('}');
    out
}
