//! What a window is made of, for those who look rather than send.

use super::transcript::{Transcript, copy_form};
use super::unit::{Level, UnitKind};
use super::wire::Messages;

/// A unit as it stands in the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub kind: &'static str,
    pub form: &'static str,
    /// Its share of the window: 0 where it is left out.
    pub tokens: usize,
    pub entry_ids: Vec<String>,
    /// The messages that stand for it, as a JSON array; empty where they are those of its entries.
    pub shown: Vec<u8>,
}

impl Transcript {
    /// The units in order, as the last window shows them.
    ///
    /// Their tokens, the system message's and the tools' sum up to the window's, but for the one line that
    /// says how many are left out and for roles that were merged.
    pub fn layout(&self) -> Vec<Placed> {
        self.units
            .iter()
            .map(|unit| {
                let form = unit.form_at(unit.level);
                let changed = unit.kind == UnitKind::Marker;
                let shortened = match unit.level {
                    Level::Full | Level::Out => false,
                    Level::Stub | Level::Bare => unit.short.is_some(),
                };
                let mut shown = Vec::new();
                if (shortened || changed) && unit.level != Level::Out {
                    let mut messages = Messages::default();
                    copy_form(&mut messages, form, &self.log);
                    // Every message has a comma behind it; the last one goes.
                    messages.json.pop();
                    shown = [b"[", messages.json.as_slice(), b"]"].concat();
                }
                Placed {
                    shown,
                    kind: match unit.kind {
                        UnitKind::User => "user",
                        UnitKind::Exchange => "exchange",
                        UnitKind::Notice => "notice",
                        UnitKind::Marker => "marker",
                    },
                    form: match unit.level {
                        Level::Out => "out",
                        _ if unit.kind == UnitKind::Marker => "marker",
                        Level::Bare if shortened => "bare",
                        Level::Stub if shortened => "stub",
                        _ => "full",
                    },
                    tokens: match unit.level {
                        Level::Out => 0,
                        _ => form.tokens,
                    },
                    entry_ids: unit
                        .metas
                        .as_slice()
                        .iter()
                        .map(|meta| self.names.get(meta.id).to_owned())
                        .collect(),
                }
            })
            .collect()
    }
}
