//! Shorter forms, made when a decision first needs them: from the messages as they stand, so that an
//! entry's text is kept once.

use std::borrow::Cow;

use serde_json::Value;

use super::exchange::{Call, Live};
use super::names::Names;
use super::single::shorter_text;
use super::stand_in::{Context, Piece};
use super::unit::{Meta, Shorter, Unit, UnitKind};
use super::wire::Messages;

fn text_at<'v>(value: &'v Value, key: &str) -> Cow<'v, str> {
    Cow::Borrowed(value[key].as_str().unwrap_or_default())
}

fn piece<'v>(value: &'v Value, key: &str, meta: &Meta) -> Piece<'v> {
    Piece::counted(text_at(value, key), meta.tokens as usize)
}

/// The shorter forms of a unit whose full form is `full`: one text, or an exchange that `is_plain`.
pub fn shorter(context: &mut Context<'_>, names: &Names, unit: &Unit, full: &Messages) -> Shorter {
    let wire: Vec<Value> = (0..full.len())
        .map(|index| serde_json::from_slice(full.message(index)).unwrap_or_default())
        .collect();
    let ([first, ..], [head, rest @ ..]) = (unit.metas.as_slice(), wire.as_slice()) else {
        return Shorter::default();
    };
    if unit.kind != UnitKind::Exchange {
        return shorter_text(context, names, piece(head, "content", first), first);
    }
    let calls = head["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    // First the text's entry where there is one, then the calls', then the results'.
    let texts = unit.metas.as_slice().len().saturating_sub(2 * calls.len());
    let (text_metas, metas) = unit.metas.as_slice().split_at(texts);
    let (call_metas, result_metas) = metas.split_at(calls.len());
    let mut live = Live {
        texts: text_metas
            .iter()
            .map(|meta| (*meta, piece(head, "content", meta)))
            .collect(),
        reasoning: String::new(),
        calls: Vec::with_capacity(calls.len()),
    };
    for (index, call) in calls.iter().enumerate() {
        let (meta, result) = (call_metas[index], result_metas[index]);
        live.calls.push(Call {
            meta,
            stored_id: Cow::Borrowed(""),
            name: text_at(&call["function"], "name"),
            arguments: piece(&call["function"], "arguments", &meta),
            result: rest
                .get(index)
                .map(|message| (result, piece(message, "content", &result))),
        });
    }
    live.shorter(context, names, unit.full.tokens)
}
