//! A session's history as units, and the window made of it.
//!
//! Entries come in once. What they look like on the wire is written once, into a log that is only ever
//! appended to, and counted once. A window is the log's length at that moment and the few messages that
//! may still change, so that a build costs what is new and nothing else.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHasher;

use super::exchange::Live;
use super::merge::Merged;
use super::names::{Name, Names};
use super::options::Options;
use super::plan::Plan;
use super::record::{Kind, Record};
use super::shorten;
use super::single::single;
use super::stand_in::{Context, Counts};
use super::unit::{Body, Form, Level, Meta, Shorter, Unit, UnitKind};
use super::wire::{Counter, Log, Messages, Role, Window, read, write};

/// What became of new entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ingest {
    Done,
    /// Some sort before the end. Nothing was taken in: reset, and give the whole history again.
    Late,
}

pub struct Transcript {
    pub(super) options: Arc<Options>,
    pub(super) counts: Counts,
    pub(super) names: Names,
    /// A call id had to be made up, so ids may depend on what was there before.
    pub(super) renamed: bool,
    pub(super) taken: usize,
    /// How many there will be, as far as somebody said.
    expected: usize,
    last_key: Option<(i64, bool, String)>,
    pub(super) units: Vec<Unit>,
    pub(super) live: Option<(usize, Live<'static>)>,
    live_changed: bool,
    pub(super) last_user: Option<usize>,
    pub(super) log: Log,
    /// Which log it is: another number each time a new one begins.
    pub(super) log_epoch: u64,
    pub(super) merged: Option<Merged>,
    /// With `always_lod`: units before this one are shortened, and the user's message that was the newest then.
    pub(super) shortened: usize,
    pub(super) verbatim_user: Option<usize>,
    pub(super) users: usize,
    /// Units before this one are in the log.
    pub(super) pushed: usize,
    /// The line for what is left out: behind which unit, and the message.
    pub(super) line: Option<(usize, Messages)>,
    pub(super) silent: bool,
    pub(super) hidden: usize,
    pub(super) head: Arc<Messages>,
    pub(super) head_text: String,
    pub(super) tools_tokens: usize,
    tools_changed: bool,
    tools_text: String,
    last_window: Option<Window>,
    /// Why the next window may not extend the last one.
    pub(super) reasons: Vec<Cow<'static, str>>,
    pub(super) pending_plan: Option<Plan>,
}

/// Where new messages go: the end of the log, or a piece that is appended to it when all are rendered. The
/// counter may be slow or a host's own code, so the log is not locked while it counts.
struct Sink {
    out: Messages,
    /// Messages of the log before those of `out`.
    base: usize,
    whole: bool,
}

impl Transcript {
    pub fn new(options: Options) -> Self {
        Self {
            options: Arc::new(options),
            counts: Counts::default(),
            names: Names::default(),
            renamed: false,
            taken: 0,
            expected: 0,
            last_key: None,
            units: Vec::new(),
            live: None,
            live_changed: false,
            last_user: None,
            log: Log::default(),
            log_epoch: 0,
            merged: None,
            shortened: 0,
            verbatim_user: None,
            users: 0,
            pushed: 0,
            line: None,
            silent: false,
            hidden: 0,
            head: Arc::default(),
            head_text: String::new(),
            tools_tokens: 0,
            tools_changed: false,
            tools_text: String::new(),
            last_window: None,
            reasons: Vec::new(),
            pending_plan: None,
        }
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// How many entries were taken in.
    pub fn taken(&self) -> usize {
        self.taken
    }

    pub fn knows(&self, id: &str) -> bool {
        self.names.print_of(id).is_some()
    }

    /// Forgets the history (but not the last window, against which the next one is compared).
    pub fn reset(&mut self, reason: &'static str) {
        self.clear();
        self.reasons.push(reason.into());
    }

    /// As `reset`, where the next window need not say why: what was taken in was never shown.
    pub fn clear(&mut self) {
        self.names.clear();
        self.taken = 0;
        self.last_key = None;
        self.units.clear();
        self.live = None;
        self.last_user = None;
        self.new_log();
        self.users = 0;
        self.line = None;
        self.silent = false;
        self.renamed = false;
        self.pending_plan = None;
    }

    /// So many entries will be taken in, in pieces: only a hint.
    pub fn expect(&mut self, entries: usize) {
        // A host's odd number does not fill the memory.
        self.expected = self.taken + entries.min(1 << 20);
    }

    /// Begins another log; gives the one there was.
    pub(super) fn new_log(&mut self) -> Log {
        self.pushed = 0;
        self.log_epoch += 1;
        self.shortened = 0;
        self.verbatim_user = None;
        std::mem::take(&mut self.log)
    }

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
        for record in records {
            let print = fingerprint(&record);
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
                    meta.call = self.unique_call_id(&record, &meta);
                    if let Some((_, live)) = &mut live {
                        live.add_call(&context, record, meta);
                        self.live_changed = true;
                    }
                }
                Kind::Result => {
                    let left = match &mut live {
                        Some((_, live)) => live.add_result(&context, record, meta),
                        None => Some(record),
                    };
                    match left {
                        None => {
                            self.live_changed = true;
                            if live.as_ref().is_some_and(|(_, live)| live.answered()) {
                                self.finish(&mut context, &mut live, &mut spare, &mut sink);
                            }
                        }
                        Some(record) => {
                            self.single(
                                &mut context,
                                &mut live,
                                &mut spare,
                                &mut sink,
                                &record,
                                meta,
                            );
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
                    self.single(
                        &mut context,
                        &mut live,
                        &mut spare,
                        &mut sink,
                        &record,
                        meta,
                    );
                }
                Kind::Marker | Kind::Notice => {
                    self.single(
                        &mut context,
                        &mut live,
                        &mut spare,
                        &mut sink,
                        &record,
                        meta,
                    );
                }
            }
        }
        if more > 0 && begun == 0 && self.taken > 0 {
            // The rest will be much like the first piece: one allocation instead of a dozen, each copied.
            let ratio = more.saturating_sub(self.taken) / self.taken + 1;
            let json = sink.out.json.len();
            sink.out.json.reserve(json.saturating_mul(ratio) + json / 2);
            sink.out.marks.reserve(sink.out.marks.len() * ratio);
        }
        self.close_sink(sink);
        self.live = live.map(|(at, live)| (at, live.into_owned()));
        self.counts = counts;
        Ingest::Done
    }

    fn open_sink(&mut self) -> Sink {
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

    fn close_sink(&mut self, sink: Sink) {
        if sink.whole {
            *write(&self.log) = sink.out;
        } else if !sink.out.is_empty() {
            write(&self.log).append(&sink.out);
        }
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
    fn place(&mut self, at: usize, mut unit: Unit) {
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

    /// Makes the shorter forms that a decision will look at.
    pub(super) fn shorten_pending(&mut self, counter: &dyn Counter) {
        for at in 0..self.units.len() {
            self.shorten_unit(counter, at);
        }
    }

    pub(super) fn shorten_unit(&mut self, counter: &dyn Counter, at: usize) {
        if !self.units[at].pending {
            return;
        }
        let options = self.options.clone();
        let mut context = Context {
            options: &options,
            counter,
            counts: &mut self.counts,
        };
        let short = match &mut self.live {
            Some((live_at, live)) if *live_at == at => {
                live.shorter(&mut context, &self.names, self.units[at].full.tokens)
            }
            _ => {
                let unit = &self.units[at];
                let mut full = Messages::default();
                copy_form(&mut full, &unit.full, &self.log);
                shorten::shorter(&mut context, &self.names, unit, &full)
            }
        };
        set_shorter(&mut self.units[at], short);
    }

    /// The system prompt, and the tools' schemas as their wire JSON (empty: none).
    pub fn set_fixed(&mut self, counter: &dyn Counter, system: &str, tools: &str) {
        if tools != self.tools_text {
            if self.last_window.is_some() {
                self.tools_changed = true;
                self.reasons.push("tool list changed".into());
            }
            self.tools_text = tools.to_owned();
            self.tools_tokens = if tools.is_empty() {
                0
            } else {
                counter.count(tools)
            };
        }
        if system != self.head_text {
            if self.last_window.is_some() {
                self.reasons.push("system prompt changed".into());
            }
            self.head_text = system.to_owned();
            let mut head = Messages::default();
            if !system.is_empty() {
                let options = self.options.clone();
                let mut context = Context {
                    options: &options,
                    counter,
                    counts: &mut self.counts,
                };
                let tokens = context.count(system);
                context.message(&mut head, Role::System, system, tokens);
            }
            self.head = Arc::new(head);
            self.merged = None;
        }
    }

    /// Brings the log up to date; tokens of the window as it stands.
    pub(super) fn settle(&mut self, counter: &dyn Counter) -> usize {
        self.render_live(counter);
        if self.options.always_lod {
            self.shorten_older(counter);
        }
        let upto = self.open_from();
        if upto > self.pushed {
            let mut sink = self.open_sink();
            self.seal(upto, &mut sink);
            self.close_sink(sink);
        }
        let open: usize = self.units[self.pushed..]
            .iter()
            .map(|unit| unit.tokens_at(unit.level))
            .sum();
        let line = match &self.line {
            Some((at, line)) if *at >= self.pushed => line.tokens(),
            _ => 0,
        };
        self.tools_tokens + self.head.tokens() + read(&self.log).tokens() + open + line
    }

    /// Writes the units before `ended` that cannot change any more to the end of the log.
    fn seal(&mut self, ended: usize, sink: &mut Sink) {
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

    /// The window as things stand, within budget or not.
    pub fn window(&mut self, counter: &dyn Counter) -> Built {
        let tokens = self.settle(counter);
        if self.merges() {
            return self.merged_window(counter);
        }
        let open = self.open_messages();
        let window = Window {
            head: self.head.clone(),
            log: self.log.clone(),
            sealed: read(&self.log).len(),
            open: Arc::new(open),
            tokens,
        };
        self.report(window)
    }

    /// The messages that are not in the log.
    pub(super) fn open_messages(&self) -> Messages {
        let mut open = Messages::default();
        for (index, unit) in self.units.iter().enumerate().skip(self.pushed) {
            if unit.level != Level::Out {
                copy_form(&mut open, unit.form(), &self.log);
            }
            if let Some((at, line)) = &self.line
                && *at == index
            {
                open.append(line);
            }
        }
        open
    }

    pub(super) fn report(&mut self, window: Window) -> Built {
        let mut built = Built {
            stable_prefix: 0,
            prefix_tokens: 0,
            break_reason: String::new(),
            window: window.clone(),
        };
        if let Some(last) = &self.last_window {
            // Templates write the tools at the start of the prompt: nothing after them can be reused.
            let (prefix, tokens) = match std::mem::take(&mut self.tools_changed) {
                true => (0, 0),
                false => window.common_prefix(last),
            };
            built.stable_prefix = prefix;
            built.prefix_tokens = tokens + if prefix > 0 { self.tools_tokens } else { 0 };
            if prefix < last.len() {
                self.reasons.dedup();
                built.break_reason = if self.reasons.is_empty() {
                    "the last exchange went on".to_owned()
                } else {
                    self.reasons.join("; ")
                };
            }
        }
        self.reasons.clear();
        for unit in self.units.iter_mut().rev() {
            if std::mem::replace(&mut unit.sent, true) {
                break;
            }
        }
        self.last_window = Some(window);
        built
    }

    pub(super) fn render_live(&mut self, counter: &dyn Counter) {
        if !std::mem::take(&mut self.live_changed) {
            return;
        }
        if let Some((at, mut live)) = self.live.take() {
            let options = self.options.clone();
            let mut context = Context {
                options: &options,
                counter,
                counts: &mut self.counts,
            };
            let mut own = Messages::default();
            let mut unit = live.render(&mut context, &self.names, &mut own, 0);
            unit.full.body = Body::Own(Box::new(own));
            if unit.pending && self.units[at].level > Level::Full {
                let tokens = unit.full.tokens;
                set_shorter(&mut unit, live.shorter(&mut context, &self.names, tokens));
            }
            self.place(at, unit);
            self.live = Some((at, live));
        }
    }

    /// The first unit that may still change.
    fn open_from(&self) -> usize {
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

/// A window and how it relates to the one before.
pub struct Built {
    pub window: Window,
    /// Messages at the start that are those of the last window.
    pub stable_prefix: usize,
    pub prefix_tokens: usize,
    /// Why the window does not extend the last one; empty when it does.
    pub break_reason: String,
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

fn set_shorter(unit: &mut Unit, short: Shorter) {
    unit.pending = false;
    if short.stub.is_some() || short.bare.is_some() {
        unit.short = Some(Box::new(short));
    }
}

pub(super) fn copy_form(out: &mut Messages, form: &Form, log: &Log) {
    match &form.body {
        Body::Own(messages) => out.append(messages),
        Body::Log(first) => out.copy(&read(log), *first, form.count),
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
