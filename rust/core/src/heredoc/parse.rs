//! Reading a whole reply.

use crate::json::FaultKind;
use crate::json::arguments::{malformed_message, truncated_message};

use super::stream::Machine;

/// A complete call: `arguments` is strict JSON of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    pub arguments: String,
}

/// How a block is to be written.
const WRITE_BLOCK: &str = "Write the block again: @@call NAME, one object { key: value }, long text \
                           between ~~~ lines, then @@end.";

/// A block that is no call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `Truncated`: the block never closed. `Malformed`: it closed, but cannot be read.
    pub kind: FaultKind,
    /// The name in its header, as far as it came.
    pub tool_name: String,
    /// Where its `@@call` begins.
    pub byte_offset: usize,
    /// What the model must hear.
    pub message: String,
}

impl Problem {
    pub(super) fn truncated(tool_name: String, byte_offset: usize, end: usize) -> Self {
        let what = format!("The call of {} was", named(&tool_name));
        Self {
            kind: FaultKind::Truncated,
            message: truncated_message(&what, end - byte_offset),
            tool_name,
            byte_offset,
        }
    }

    pub(super) fn malformed(
        tool_name: String,
        byte_offset: usize,
        at: usize,
        reason: &str,
    ) -> Self {
        let what = format!("The call of {} is", named(&tool_name));
        Self {
            kind: FaultKind::Malformed,
            message: malformed_message(&what, at - byte_offset, reason, WRITE_BLOCK),
            tool_name,
            byte_offset,
        }
    }
}

fn named(tool_name: &str) -> String {
    if tool_name.is_empty() {
        "a tool".to_owned()
    } else {
        format!("`{tool_name}`")
    }
}

/// What a reply holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub calls: Vec<Call>,
    /// The text outside all blocks, without white space at its ends.
    pub prose: String,
    pub problems: Vec<Problem>,
}

/// Splits a reply into prose, calls and problems. Never fails; linear in the length of `text`.
pub fn parse_tool_calls(text: &str) -> Reply {
    let mut machine = Machine::default();
    machine.run(text, true, &mut None);
    machine.into_reply()
}
