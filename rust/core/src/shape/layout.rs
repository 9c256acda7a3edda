//! What a window is made of, for those who look rather than send.

use std::sync::Arc;

use super::transcript::Transcript;
use super::unit::{Level, UnitKind};

/// A unit as it stands in the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub kind: &'static str,
    pub form: &'static str,
    /// Its share of the window: 0 where it is left out.
    pub tokens: usize,
    pub entry_ids: Vec<Arc<str>>,
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
                let shortened = match unit.level {
                    Level::Full | Level::Out => false,
                    Level::Stub | Level::Bare => unit.stub.is_some() || unit.bare.is_some(),
                };
                Placed {
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
                    entry_ids: unit.metas.iter().map(|meta| meta.id.clone()).collect(),
                }
            })
            .collect()
    }
}
