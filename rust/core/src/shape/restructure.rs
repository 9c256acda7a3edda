//! Bringing a window that has become too large down again: the plan applied, and remembered.

use super::ingest::fingerprint;
use super::merge::START;
use super::names::Name;
use super::plan::{
    Cost, Means, Overflow, Plan, Room, decide, first_users, newest_user, separate, tail_start,
};
use super::record::Record;
use super::single::single;
use super::stand_in::{Context, line_text};
use super::transcript::{Transcript, copy_form};
use super::unit::{Body, Form, Level, Meta, UnitKind};
use super::wire::{Counter, Log, Messages, Role};

/// What a window needs before it can be given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it fits.
    Fits,
    /// Stubs were enough.
    Shortened,
    /// The oldest units are behind a line now.
    LeftOut,
    /// Units wait to be summarized: see `fold_texts`, then `fold` or `check` again with other means.
    Fold,
}

/// A run of units that are shown alike: key of its last unit, and the level. What a plan remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub created_at: i64,
    pub marker: bool,
    pub id: String,
    pub level: Level,
}

impl Transcript {
    fn costs(&self) -> Vec<Cost> {
        let units = self.units.len();
        self.units
            .iter()
            .enumerate()
            .map(|(index, unit)| Cost {
                full: unit.tokens_at(Level::Full),
                stub: unit.tokens_at(Level::Stub),
                bare: unit.tokens_at(Level::Bare),
                level: unit.level,
                user: unit.kind == UnitKind::User,
                exchange: unit.kind == UnitKind::Exchange && unit.full.count > 0,
                messages: unit.messages as usize,
                calls: usize::from(unit.has_calls),
                pending: unit.unanswered && index + 1 == units,
                marker: unit.kind == UnitKind::Marker,
            })
            .collect()
    }

    fn room(&mut self, counter: &dyn Counter) -> Room {
        let options = self.options.clone();
        let mut context = Context {
            options: &options,
            counter,
            counts: &mut self.counts,
        };
        let line = context.count_name(&line_text(1_000_000)) + context.frame(Role::User);
        // A window that must begin with the user may need a message for it.
        let opening = if options.alternate {
            context.count_name(START) + context.frame(Role::User)
        } else {
            0
        };
        Room {
            budget: options.budget,
            target: options.target(),
            system: self.head.tokens() + opening,
            tools: self.tools_tokens,
            marker: self.marker_limit(),
            line,
            keep_messages: options.keep_messages,
            keep_calls: options.keep_calls,
            keep_first: options.keep_first,
            shorten: options.lod_above > 0 || options.always_lod,
        }
    }

    /// The most a marker may take: a real tokenizer's answer can be longer by another counter's measure.
    pub fn marker_limit(&self) -> usize {
        let limit = self.options.summary_limit();
        limit + limit / 2 + 16
    }

    /// Does what has to be done before the window fits. `again`: also when it fits as it is, because a
    /// fold that was due has failed before.
    pub fn check(
        &mut self,
        counter: &dyn Counter,
        means: Means,
        again: bool,
    ) -> Result<Step, Overflow> {
        self.pending_plan = None;
        let tokens = self.settle(counter);
        if self.options.budget == 0 {
            return Ok(Step::Fits);
        }
        if !again {
            let shown = if self.merges() {
                self.merged_tokens(counter)
            } else {
                tokens
            };
            if shown <= self.options.budget {
                return Ok(Step::Fits);
            }
        }
        self.shorten_pending(counter);
        let costs = self.costs();
        let room = self.room(counter);
        let plan = decide(&costs, &room, means)?;
        if !plan.fold.is_empty() {
            self.pending_plan = Some(plan);
            return Ok(Step::Fold);
        }
        let before: Vec<Level> = costs.iter().map(|cost| cost.level).collect();
        let out = |levels: &[Level]| levels.iter().filter(|level| **level == Level::Out).count();
        let step = if plan.levels == before {
            Step::Fits
        } else if out(&plan.levels) > out(&before) {
            Step::LeftOut
        } else {
            Step::Shortened
        };
        let changed = plan
            .levels
            .iter()
            .zip(&before)
            .filter(|(new, old)| new != old)
            .count();
        if changed > 0 {
            self.reasons.push(
                match step {
                    Step::LeftOut => format!(
                        "over budget: {} units left out",
                        out(&plan.levels) - out(&before)
                    ),
                    _ => format!("over budget: {changed} units shortened"),
                }
                .into(),
            );
        }
        self.silent = plan.silent;
        self.apply(counter, &plan.levels, true);
        Ok(step)
    }

    /// Tokens of the window as it stands.
    pub fn total(&mut self, counter: &dyn Counter) -> usize {
        let tokens = self.settle(counter);
        if self.merges() {
            self.merged_tokens(counter)
        } else {
            tokens
        }
    }

    /// Plans a fold whatever the room: everything before the tail. False: there is nothing to fold.
    pub fn plan_compaction(&mut self, counter: &dyn Counter) -> bool {
        self.settle(counter);
        self.shorten_pending(counter);
        let costs = self.costs();
        let newest = newest_user(&costs);
        let last = costs.iter().rposition(|cost| cost.exchange);
        let firsts = first_users(&costs, self.options.keep_first);
        let tail = tail_start(&costs, self.options.keep_messages, self.options.keep_calls);
        let border = last.map_or(tail, |last| tail.min(last));
        let fold: Vec<usize> = (0..costs.len())
            .filter(|index| *index < border || costs[*index].marker)
            .filter(|index| Some(*index) != newest && !firsts.contains(index))
            .collect();
        let only_marker = fold
            .iter()
            .all(|index| self.units[*index].kind == UnitKind::Marker);
        if only_marker {
            self.pending_plan = None;
            return false;
        }
        let mut levels: Vec<Level> = costs.iter().map(|cost| cost.level).collect();
        for index in &fold {
            levels[*index] = levels[*index].min(Level::Stub);
        }
        self.pending_plan = Some(Plan {
            levels,
            fold,
            silent: self.silent,
        });
        true
    }

    /// Ids of the entries that wait to be folded, with the time of the last of them.
    pub fn fold_entries(&self) -> (Vec<String>, i64) {
        let mut ids = Vec::new();
        let mut at = i64::MIN;
        for index in self.pending_plan.iter().flat_map(|plan| &plan.fold) {
            for meta in self.units[*index].metas.as_slice() {
                ids.push(self.names.get(meta.id).to_owned());
                at = at.max(meta.created_at);
            }
        }
        (ids, at)
    }

    /// What the units that wait to be folded take in the window as planned, and what is left beside them.
    pub fn fold_sizes(&self) -> (usize, usize) {
        let Some(plan) = &self.pending_plan else {
            return (0, 0);
        };
        let mut folded = vec![false; self.units.len()];
        for index in &plan.fold {
            folded[*index] = true;
        }
        let mut sizes = (0, self.tools_tokens + self.head.tokens());
        for (index, unit) in self.units.iter().enumerate() {
            let tokens = unit.tokens_at(plan.levels[index]);
            if folded[index] {
                sizes.0 += tokens;
            } else {
                sizes.1 += tokens;
            }
        }
        sizes
    }

    /// JSON of the messages that wait to be folded, unit by unit, as they stand in the window (large
    /// entries as stubs); and whether the unit is a marker.
    pub fn fold_messages(&self) -> Vec<(bool, Vec<u8>)> {
        let Some(plan) = &self.pending_plan else {
            return Vec::new();
        };
        plan.fold
            .iter()
            .map(|index| {
                let unit = &self.units[*index];
                let mut out = Messages::default();
                let level = plan.levels[*index].min(Level::Bare);
                copy_form(&mut out, unit.form_at(level), &self.log);
                (unit.kind == UnitKind::Marker, bracketed(&out))
            })
            .collect()
    }

    /// JSON of the first user message and of the newest one, as far as they stay.
    pub fn task_messages(&self) -> Vec<Vec<u8>> {
        let costs = self.costs();
        let mut at = first_users(&costs, self.options.keep_first.min(1));
        at.extend(newest_user(&costs));
        at.dedup();
        at.into_iter()
            .filter(|index| {
                self.pending_plan
                    .as_ref()
                    .is_none_or(|plan| !plan.fold.contains(index))
            })
            .map(|index| {
                let unit = &self.units[index];
                let mut out = Messages::default();
                copy_form(&mut out, unit.form_at(Level::Stub), &self.log);
                bracketed(&out)
            })
            .collect()
    }

    /// Puts the marker in place of what it covers. False: ids have to be made anew, so the history is to
    /// be read again (the plan stays: see `levels`).
    pub fn fold(&mut self, counter: &dyn Counter, marker: &Record<'_>) -> bool {
        let Some(plan) = self.pending_plan.take() else {
            return true;
        };
        let mut folded = vec![false; self.units.len()];
        for index in &plan.fold {
            folded[*index] = true;
        }
        let options = self.options.clone();
        let mut context = Context {
            options: &options,
            counter,
            counts: &mut self.counts,
        };
        let print = fingerprint(marker);
        let Some(id) = self.names.take_in(&marker.id, print) else {
            return false;
        };
        let meta = Meta {
            id,
            created_at: marker.created_at,
            call: Name::default(),
            tokens: 0,
        };
        let mut own = Messages::default();
        let mut unit = single(&mut context, &self.names, marker, meta, &mut own, 0);
        unit.full.body = Body::Own(Box::new(own));
        // Where it sorts: before whatever is not older than the last entry it covers.
        let place = self.units.partition_point(|unit| {
            unit.first()
                .is_some_and(|first| first.created_at < marker.created_at)
        });
        let (live_at, live) = match self.live.take() {
            Some((at, live)) => (Some(at), Some(live)),
            None => (None, None),
        };
        let last_folded = plan.fold.last().copied().unwrap_or(0);
        let mut simple = true;
        let mut new_live = None;
        let mut units = Vec::with_capacity(self.units.len() - plan.fold.len() + 1);
        let mut levels = Vec::with_capacity(units.capacity());
        let mut last_user = None;
        self.users = 0;
        let mut marker_unit = Some(unit);
        for (index, unit) in std::mem::take(&mut self.units).into_iter().enumerate() {
            if index >= place
                && !folded[index]
                && let Some(unit) = marker_unit.take()
            {
                units.push(unit);
                levels.push(Level::Full);
            }
            if folded[index] {
                for meta in unit.metas.as_slice() {
                    self.names.forget(meta.id);
                    self.names.release_call(meta.call);
                    self.taken -= 1;
                }
                continue;
            }
            simple &= index > last_folded || unit.kind == UnitKind::User;
            if live_at == Some(index) {
                new_live = Some(units.len());
            }
            let mut unit = unit;
            if unit.kind == UnitKind::User {
                last_user = Some(units.len());
                unit.kept = self.users < self.options.keep_first;
                self.users += 1;
            }
            units.push(unit);
            levels.push(plan.levels[index]);
        }
        if let Some(unit) = marker_unit.take() {
            units.push(unit);
            levels.push(Level::Full);
        }
        self.units = units;
        self.live = new_live.zip(live);
        self.last_user = last_user;
        self.taken += 1;
        self.silent = false;
        self.reasons.push(
            format!(
                "over budget: {} units folded into a summary",
                plan.fold.len()
            )
            .into(),
        );
        self.apply(counter, &levels, true);
        // Without what lay between, a late result may belong to a call that is still in view, or two texts
        // be one message: where more than a prefix went, the history is read as a new process would.
        !self.renamed && simple
    }

    /// Forgets a fold that was planned.
    pub fn drop_plan(&mut self) {
        self.pending_plan = None;
    }

    /// The levels in use, run by run.
    pub fn levels(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for unit in &self.units {
            let Some(meta) = unit.first() else {
                continue;
            };
            let run = Run {
                created_at: meta.created_at,
                marker: unit.kind == UnitKind::Marker,
                id: self.names.get(meta.id).to_owned(),
                level: unit.level,
            };
            match runs.last_mut() {
                Some(last) if last.level == run.level => *last = run,
                _ => runs.push(run),
            }
        }
        // What follows the last run is shown in full anyway.
        if runs.last().is_some_and(|run| run.level == Level::Full) {
            runs.pop();
        }
        runs
    }

    /// How many units are left out of the window.
    pub fn left_out(&self) -> usize {
        self.units
            .iter()
            .filter(|unit| unit.level == Level::Out)
            .count()
    }

    pub fn silent(&self) -> bool {
        self.silent
    }

    /// The number the line names. It stays as it is until the next step.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Decides as a plan remembers it.
    pub fn set_levels(&mut self, counter: &dyn Counter, runs: &[Run], silent: bool, hidden: usize) {
        self.render_live(counter);
        let mut levels: Vec<Level> = self.units.iter().map(|unit| unit.level).collect();
        let mut run = runs.iter().peekable();
        for (index, unit) in self.units.iter().enumerate() {
            let Some(meta) = unit.first() else {
                continue;
            };
            let id = self.names.get(meta.id);
            let key = (meta.created_at, unit.kind != UnitKind::Marker, id);
            while run
                .peek()
                .is_some_and(|run| (run.created_at, !run.marker, run.id.as_str()) < key)
            {
                run.next();
            }
            match run.peek() {
                Some(run) => levels[index] = run.level,
                None => break,
            }
        }
        // Others may have come in between since; the newest user message is verbatim, always.
        if let Some(newest) = self.last_user {
            levels[newest] = Level::Full;
        }
        self.silent = silent;
        self.hidden = hidden;
        // A plan that leaves everything as it is, as that of a session within its budget does: the log stays.
        let same = self
            .units
            .iter()
            .zip(&levels)
            .all(|(unit, level)| unit.level == *level && *level != Level::Out);
        if same && self.line.is_none() {
            return;
        }
        let line = if silent {
            None
        } else {
            levels.iter().rposition(|level| *level == Level::Out)
        };
        let mut folded = vec![false; self.units.len()];
        separate(&self.costs(), &mut levels, &mut folded, false, line);
        for (index, level) in levels.iter().enumerate() {
            if *level > Level::Full {
                self.shorten_unit(counter, index);
            }
        }
        self.apply(counter, &levels, false);
    }

    /// Where the verbatim tail begins by the policy's counts. It only ever moves on, so nothing before
    /// `shortened` is looked at.
    fn tail_of_units(&self) -> usize {
        let (mut messages, mut calls) = (self.options.keep_messages, self.options.keep_calls);
        let mut start = self.units.len();
        for (index, unit) in self.units.iter().enumerate().skip(self.shortened).rev() {
            let cost = (unit.messages as usize, usize::from(unit.has_calls));
            if cost.0 > messages || cost.1 > calls {
                break;
            }
            messages -= cost.0;
            calls -= cost.1;
            start = index;
        }
        start
    }

    /// With `always_lod`: whatever is not in the tail is shortened.
    pub(super) fn shorten_older(&mut self, counter: &dyn Counter) {
        let tail = self.tail_of_units();
        // The user's message that was the newest may have been passed over.
        let passed = self.verbatim_user.filter(|at| *at < self.shortened);
        let mut changed = false;
        let mut levels = None;
        for at in passed.into_iter().chain(self.shortened..tail) {
            if self.units[at].kept
                || self.last_user == Some(at)
                || self.units[at].level > Level::Full
            {
                continue;
            }
            self.shorten_unit(counter, at);
            let stubbed = self.units[at].stub().is_some();
            changed |= stubbed;
            if stubbed && at < self.pushed && levels.is_none() {
                // It is in the log already, and a new one begins.
                levels = Some(self.units.iter().map(|unit| unit.level).collect::<Vec<_>>());
            }
            match &mut levels {
                Some(levels) => levels[at] = Level::Stub,
                None => {
                    let unit = &mut self.units[at];
                    unit.level = Level::Stub;
                    if stubbed {
                        unit.full.body = Body::Own(Box::default());
                    }
                }
            }
        }
        if let Some(levels) = levels {
            self.set_unit_levels(&levels);
        }
        self.shortened = tail;
        self.verbatim_user = self.last_user;
        if changed {
            self.reasons
                .push("older entries shortened (always_lod)".into());
        }
    }

    fn apply(&mut self, counter: &dyn Counter, levels: &[Level], recount: bool) {
        self.line = None;
        self.set_unit_levels(levels);
        let last_out = self.units.iter().rposition(|unit| unit.level == Level::Out);
        if let Some(at) = last_out
            && !self.silent
        {
            if recount {
                let out = self.units.iter().filter(|unit| unit.level == Level::Out);
                self.hidden = out.map(|unit| unit.full.count).sum();
            }
            let options = self.options.clone();
            let mut context = Context {
                options: &options,
                counter,
                counts: &mut self.counts,
            };
            let text = line_text(self.hidden);
            let mut line = Messages::default();
            let tokens = context.count(&text);
            context.message(&mut line, Role::User, &text, tokens);
            self.line = Some((at, line));
        }
    }

    /// Sets the levels; a new log begins where anything in the old one changed.
    fn set_unit_levels(&mut self, levels: &[Level]) {
        let old = self.new_log();
        for (unit, level) in self.units.iter_mut().zip(levels) {
            unit.level = *level;
            let shown = match level {
                Level::Out => Level::Stub,
                level => *level,
            };
            take_out(&mut unit.full, &old);
            if let Some(form) = &mut unit.reasoned {
                take_out(form, &old);
            }
            let Some(short) = &mut unit.short else {
                continue;
            };
            for form in [&mut short.stub, &mut short.bare].into_iter().flatten() {
                take_out(form, &old);
            }
            // Nothing is shown in more detail again, so the longer form is done with.
            if shown >= Level::Stub && short.stub.is_some() {
                unit.full.body = Body::Own(Box::default());
            }
        }
    }
}

/// Gives a form its own messages again.
fn take_out(form: &mut Form, log: &Log) {
    if matches!(form.body, Body::Log(_)) {
        let mut own = Messages::default();
        copy_form(&mut own, form, log);
        form.body = Body::Own(Box::new(own));
    }
}

fn bracketed(messages: &Messages) -> Vec<u8> {
    let mut out = Vec::with_capacity(messages.json.len() + 2);
    out.push(b'[');
    out.extend_from_slice(messages.json.strip_suffix(b",").unwrap_or(&messages.json));
    out.push(b']');
    out
}
