//! The end of the log: what cannot change any more is written there.

use std::sync::Arc;

use super::transcript::Transcript;
use super::unit::{Body, Form, Level, Shorter, Unit};
use super::wire::{Messages, read, write};

/// Where new messages go: the end of the log, or a piece that is appended to it when all are rendered. The
/// counter may be slow or a host's own code, so the log is not locked while it counts.
pub struct Sink {
    pub out: Messages,
    /// Messages of the log before those of `out`.
    pub base: usize,
    whole: bool,
}

impl Transcript {
    pub(super) fn open_sink(&mut self) -> Sink {
        // Nobody else has the log: it is written to directly.
        if let Some(log) = Arc::get_mut(&mut self.log) {
            let log = log
                .get_mut()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            return Sink {
                out: std::mem::take(log),
                base: 0,
                whole: true,
            };
        }
        Sink {
            out: Messages::default(),
            base: read(&self.log).len(),
            whole: false,
        }
    }

    pub(super) fn close_sink(&mut self, sink: Sink) {
        if sink.whole {
            *write(&self.log) = sink.out;
        } else if !sink.out.is_empty() {
            write(&self.log).append(&sink.out);
        }
    }

    /// Writes the units before `ended` that cannot change any more to the end of the log.
    pub(super) fn seal(&mut self, ended: usize, sink: &mut Sink) {
        let upto = self.settled(ended);
        while self.pushed < upto {
            let index = self.pushed;
            push(sink, &mut self.units[index]);
            if let Some((at, line)) = &self.line
                && *at == index
            {
                sink.out.append(line);
            }
            self.pushed += 1;
        }
    }

    /// The first unit that may still change.
    pub(super) fn open_from(&self) -> usize {
        self.settled(self.live.as_ref().map_or(self.units.len(), |(at, _)| *at))
    }

    /// The first unit before `ended` that may still lose its reasoning or be shortened by `always_lod`; else
    /// `ended`.
    fn settled(&self, ended: usize) -> usize {
        let mut from = ended;
        if self.options.reasoning {
            let turn = self.last_user.map_or(0, |at| at + 1);
            if let Some(at) =
                (turn.max(self.pushed)..from).find(|at| self.units[*at].reasoned.is_some())
            {
                from = at;
            }
        }
        if self.options.always_lod {
            // The newest user's message is not waited for: it may stay the newest for a thousand rounds.
            let open = |at: &usize| {
                *at >= self.shortened && self.units[*at].may_shrink() && self.last_user != Some(*at)
            };
            from = (self.pushed..from).find(open).unwrap_or(from);
        }
        from
    }
}

fn push(sink: &mut Sink, unit: &mut Unit) {
    if unit.level == Level::Out {
        return;
    }
    let first = sink.base + sink.out.len();
    let form = shown_form(unit);
    if let Body::Own(messages) = &form.body {
        sink.out.append(messages);
        form.body = Body::Log(first);
    }
}

/// The form a unit has in the log.
fn shown_form(unit: &mut Unit) -> &mut Form {
    let Unit {
        full, short, level, ..
    } = unit;
    match (*level, short.as_deref_mut()) {
        (Level::Full, _) | (_, None) => full,
        (
            Level::Bare,
            Some(Shorter {
                bare: Some(bare), ..
            }),
        ) => bare,
        (_, Some(Shorter { stub, .. })) => stub.as_mut().unwrap_or(full),
    }
}
