//! Taking entries in: what belongs together becomes a unit, what is the same again is left.

use rustc_hash::FxHasher;

use super::exchange::Live;
use super::names::Name;
use super::record::{Kind, Record};
use super::single::single;
use super::sink::Sink;
use super::stand_in::Context;
use super::transcript::{Ingest, Transcript, set_shorter};
use super::unit::{Body, Level, Meta, Unit, UnitKind};
use super::wire::{Counter, Messages};

impl Transcript {
    /// Takes new entries in. They may come in any order among themselves.
    pub fn ingest(&mut self, counter: &dyn Counter, mut records: Vec<Record<'_>>) -> Ingest {
        if !records.is_sorted_by(|a, b| a.key() <= b.key()) {
            records.sort_by(|a, b| a.key().cmp(&b.key()));
        }
        let late = |records: &[Record<'_>]| match (records.first(), &self.last_key) {
            (Some(first), Some(last)) => first.key() <= (last.0, last.1, &last.2),
            _ => false,
        };
        if late(&records) {
            // Second copies are no news. Hashed only where the id is there already.
            records.retain(|record| {
                self.names
                    .print_of(&record.id)
                    .is_none_or(|print| print != fingerprint(record))
            });
            if let (Some(first), Some(last)) = (records.first(), &self.last_key)
                && first.key() < (last.0, last.1, &last.2)
            {
                return Ingest::Late;
            }
        }
        if let Some(last) = records.last() {
            let (at, entry, id) = last.key();
            let mut kept = self.last_key.take().map_or_else(String::new, |key| key.2);
            kept.clear();
            kept.push_str(id);
            self.last_key = Some((at, entry, kept));
        }
        let more = self.expected.saturating_sub(self.taken);
        self.names.reserve(records.len().max(more));
        self.units.reserve(records.len().max(more) / 2);
        let begun = self.taken;
        let mut live: Option<(usize, Live<'_>)> = self.live.take();
        let options = self.options.clone();
        let mut counts = std::mem::take(&mut self.counts);
        let mut context = Context {
            options: &options,
            counter,
            counts: &mut counts,
        };
        let mut sink = self.open_sink();
        let mut spare = Live::default();
        for record in &mut records {
            let print = fingerprint(record);
            let made;
            let id = if record.id.is_empty() {
                made = format!("@{}.{}", record.created_at, self.taken);
                &made
            } else {
                &*record.id
            };
            let Some(id) = self.names.take_in(id, print) else {
                continue; // the same entry twice
            };
            self.taken += 1;
            let mut meta = Meta {
                id,
                created_at: record.created_at,
                call: Name::default(),
                tokens: 0,
            };
            match record.kind {
                Kind::Assistant => {
                    let joins = matches!(&live, Some((at, live))
                        if *at + 1 == self.units.len() && !live.has_calls());
                    if !joins {
                        self.begin(&mut context, &mut live, &mut spare, &mut sink);
                    }
                    if let Some((_, live)) = &mut live {
                        live.add_text(&context, record, meta);
                        self.live_changed = true;
                    }
                }
                Kind::Call => {
                    let joins = matches!(&live, Some((at, live))
                        if *at + 1 == self.units.len() && !live.has_results());
                    if !joins {
                        self.begin(&mut context, &mut live, &mut spare, &mut sink);
                    }
                    meta.call = self.unique_call_id(record, &meta);
                    if let Some((_, live)) = &mut live {
                        live.add_call(&context, record, meta);
                        self.live_changed = true;
                    }
                }
                Kind::Result => {
                    let taken = match &mut live {
                        Some((_, live)) => live.add_result(&context, record, meta),
                        None => false,
                    };
                    if !taken {
                        self.single(&mut context, &mut live, &mut spare, &mut sink, record, meta);
                    } else {
                        self.live_changed = true;
                        if live.as_ref().is_some_and(|(_, live)| live.answered()) {
                            self.finish(&mut context, &mut live, &mut spare, &mut sink);
                        }
                    }
                }
                Kind::User => {
                    // What was thought before this message is left out from now on.
                    let from = self.last_user.map_or(0, |at| at + 1);
                    if options.reasoning {
                        for unit in &mut self.units[from..] {
                            if unit.reasoned.take().is_some() && unit.sent {
                                self.reasons
                                    .push("reasoning of the last turn left out".into());
                            }
                        }
                    }
                    self.last_user = Some(self.units.len());
                    self.single(&mut context, &mut live, &mut spare, &mut sink, record, meta);
                }
                Kind::Marker | Kind::Notice => {
                    self.single(&mut context, &mut live, &mut spare, &mut sink, record, meta);
                }
            }
        }
        if more > 0 && begun == 0 && self.taken > 0 {
            // The rest will be much like the first piece: one allocation instead of a dozen, each copied. Twice of it, as
            // the last of the dozen might be, too: what is not written to is no memory yet, and an allocator that was
            // asked for much keeps more for the next time.
            let ratio = more.saturating_sub(self.taken) / self.taken + 1;
            let json = sink.out.json.len().saturating_mul(ratio);
            sink.out.json.reserve(json.saturating_mul(2));
            sink.out.marks.reserve(sink.out.marks.len() * ratio);
        }
        self.close_sink(sink);
        self.live = live.map(|(at, live)| (at, live.into_owned()));
        self.counts = counts;
        Ingest::Done
    }

    /// A unit of one entry, at the end of the history.
    fn single<'a>(
        &mut self,
        context: &mut Context<'_>,
        live: &mut Option<(usize, Live<'a>)>,
        spare: &mut Live<'a>,
        sink: &mut Sink,
        record: &Record<'_>,
        meta: Meta,
    ) {
        // Text with something after it cannot grow any more.
        if live.as_ref().is_some_and(|(_, live)| !live.has_calls()) {
            self.finish(context, live, spare, sink);
        }
        let at = self.units.len();
        self.seal(live.as_ref().map_or(at, |(at, _)| *at), sink);
        let mut unit = if self.may_write(at) {
            self.pushed = at + 1;
            single(context, &self.names, record, meta, &mut sink.out, sink.base)
        } else {
            let mut own = Messages::default();
            let mut unit = single(context, &self.names, record, meta, &mut own, 0);
            unit.full.body = Body::Own(Box::new(own));
            unit
        };
        if unit.kind == UnitKind::User {
            unit.kept = self.users < self.options.keep_first;
            self.users += 1;
        }
        self.units.push(unit);
    }

    /// Whether a new unit may go into the log as it is: all before it are there, and it will not change.
    fn may_write(&self, at: usize) -> bool {
        self.pushed == at && !self.options.always_lod
    }

    /// Ends the live exchange and begins one at the end of the history.
    fn begin<'a>(
        &mut self,
        context: &mut Context<'_>,
        live: &mut Option<(usize, Live<'a>)>,
        spare: &mut Live<'a>,
        sink: &mut Sink,
    ) {
        self.finish(context, live, spare, sink);
        *live = Some((self.units.len(), std::mem::take(spare)));
        // Holds the place; rendered when the exchange is finished or a window is built.
        self.units.push(Unit::placeholder());
    }

    fn finish<'a>(
        &mut self,
        context: &mut Context<'_>,
        live: &mut Option<(usize, Live<'a>)>,
        spare: &mut Live<'a>,
        sink: &mut Sink,
    ) {
        let Some((at, mut ended)) = live.take() else {
            return;
        };
        self.seal(at, sink);
        let old = self.units[at].level;
        let reasoned = self.options.reasoning && !ended.reasoning.is_empty();
        let mut unit;
        if self.may_write(at) && old == Level::Full && !reasoned {
            unit = ended.render(context, &self.names, &mut sink.out, sink.base);
            self.pushed = at + 1;
        } else {
            let mut own = Messages::default();
            unit = ended.render(context, &self.names, &mut own, 0);
            unit.full.body = Body::Own(Box::new(own));
        }
        if unit.pending && (old > Level::Full || !ended.is_plain(self.options.heredoc)) {
            let tokens = unit.full.tokens;
            set_shorter(&mut unit, ended.shorter(context, &self.names, tokens));
        }
        self.place(at, unit);
        ended.clear();
        *spare = ended;
    }

    /// Puts a newly rendered exchange in its place. What was decided about it stays.
    pub(super) fn place(&mut self, at: usize, mut unit: Unit) {
        let old = &self.units[at];
        unit.level = old.level;
        unit.sent = old.sent;
        if self.last_user.is_some_and(|user| user > at) {
            unit.reasoned = None;
        }
        self.units[at] = unit;
    }

    /// The call's own id, or one made from its entry's where that is empty or taken.
    fn unique_call_id(&mut self, record: &Record<'_>, meta: &Meta) -> Name {
        if let Some(name) = self.names.claim_call(&record.call_id) {
            return name;
        }
        self.renamed = true;
        let mut salt = 0u64;
        loop {
            let made = hash(&[self.names.get(meta.id).as_bytes(), &salt.to_le_bytes()]);
            if let Some(name) = self.names.claim_call(&format!("call_{made:016x}")) {
                return name;
            }
            salt += 1;
        }
    }
}

fn hash(parts: &[&[u8]]) -> u64 {
    use std::hash::Hasher;
    let mut hasher = FxHasher::default();
    for part in parts {
        hasher.write(part);
        hasher.write_usize(part.len());
    }
    hasher.finish()
}

pub(super) fn fingerprint(record: &Record<'_>) -> u64 {
    hash(&[
        record.content.as_bytes(),
        &record.created_at.to_le_bytes(),
        &[record.kind as u8],
        record.call_id.as_bytes(),
    ])
}
