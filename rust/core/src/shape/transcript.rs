//! A session's history as units, and the window made of it.
//!
//! Entries come in once. What they look like on the wire is written once, into a log that is only ever
//! appended to, and counted once. A window is the log's length at that moment and the few messages that
//! may still change, so that a build costs what is new and nothing else.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use super::options::Options;
use super::plan::Plan;
use super::record::{Kind, Record};
use super::unit::{Body, Context, Form, Level, Live, Meta, Unit, single};
use super::wire::{Counter, Log, Messages, Role, Window, read};

/// How many entries are taken in before they are written on.
const SEAL_EVERY: usize = 64;

/// What became of new entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ingest {
    Done,
    /// Some sort before the end. Nothing was taken in: reset, and give the whole history again.
    Late,
}

pub struct Transcript {
    pub(super) options: Options,
    pub(super) names: FxHashMap<Box<str>, usize>,
    pub(super) known: FxHashMap<Arc<str>, u64>,
    pub(super) used_call_ids: FxHashSet<Arc<str>>,
    /// A call id had to be made up, so ids may depend on what was there before.
    pub(super) renamed: bool,
    pub(super) taken: usize,
    last_key: Option<(i64, bool, String)>,
    pub(super) units: Vec<Unit>,
    pub(super) live: Option<(usize, Live<'static>)>,
    live_changed: bool,
    pub(super) last_user: Option<usize>,
    pub(super) log: Log,
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

impl Transcript {
    pub fn new(options: Options) -> Self {
        Self {
            options,
            names: FxHashMap::default(),
            known: FxHashMap::default(),
            used_call_ids: FxHashSet::default(),
            renamed: false,
            taken: 0,
            last_key: None,
            units: Vec::new(),
            live: None,
            live_changed: false,
            last_user: None,
            log: Log::default(),
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
        self.known.contains_key(id)
    }

    /// Forgets the history (but not the last window, against which the next one is compared).
    pub fn reset(&mut self, reason: &'static str) {
        self.known.clear();
        self.used_call_ids.clear();
        self.taken = 0;
        self.last_key = None;
        self.units.clear();
        self.live = None;
        self.last_user = None;
        self.log = Log::default();
        self.pushed = 0;
        self.line = None;
        self.silent = false;
        self.renamed = false;
        self.pending_plan = None;
        self.reasons.push(reason.into());
    }

    /// Takes new entries in. They may come in any order among themselves.
    pub fn ingest(&mut self, counter: &dyn Counter, mut records: Vec<Record<'_>>) -> Ingest {
        if !records.is_sorted_by(|a, b| a.key() <= b.key()) {
            records.sort_by(|a, b| a.key().cmp(&b.key()));
        }
        // Hashed only where the id is there already: a second copy is no news.
        if !self.known.is_empty() {
            records.retain(|record| {
                self.known
                    .get(&*record.id)
                    .is_none_or(|print| *print != fingerprint(record))
            });
        }
        let fresh = records;
        if let (Some(first), Some(last)) = (fresh.first(), &self.last_key)
            && first.key() < (last.0, last.1, &last.2)
        {
            return Ingest::Late;
        }
        if let Some(last) = fresh.last() {
            let (at, entry, id) = last.key();
            self.last_key = Some((at, entry, id.to_owned()));
        }
        self.known.reserve(fresh.len());
        let mut live: Option<(usize, Live<'_>)> = self.live.take();
        let options = self.options.clone();
        let mut names = std::mem::take(&mut self.names);
        let mut context = Context {
            options: &options,
            counter,
            names: &mut names,
        };
        self.units.reserve(fresh.len() / 2);
        for (count, record) in fresh.into_iter().enumerate() {
            // What cannot change any more goes into the log while it is still in the processor's cache.
            if count % SEAL_EVERY == SEAL_EVERY - 1 && !options.always_lod {
                let ended = live.as_ref().map_or(self.units.len(), |(at, _)| *at);
                self.seal(self.settled(ended));
            }
            let print = fingerprint(&record);
            let id: Arc<str> = if record.id.is_empty() {
                format!("@{}.{}", record.created_at, self.taken).into()
            } else {
                Arc::from(&*record.id)
            };
            if self.known.get(&id) == Some(&print) {
                continue; // the same entry twice
            }
            self.known.insert(id.clone(), print);
            self.taken += 1;
            let meta = Meta {
                id,
                created_at: record.created_at,
            };
            match record.kind {
                Kind::Assistant => {
                    let joins = matches!(&live, Some((at, live))
                        if *at + 1 == self.units.len() && !live.has_calls());
                    if !joins {
                        self.begin(&mut context, &mut live);
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
                        self.begin(&mut context, &mut live);
                    }
                    let call_id = self.unique_call_id(&record, &meta);
                    if let Some((_, live)) = &mut live {
                        live.add_call(&context, record, meta, call_id);
                        self.live_changed = true;
                    }
                }
                Kind::Result => {
                    let left = match &mut live {
                        Some((_, live)) => live.add_result(&context, record, meta),
                        None => Some((record, meta)),
                    };
                    match left {
                        None => {
                            self.live_changed = true;
                            if live.as_ref().is_some_and(|(_, live)| live.answered()) {
                                self.finish(&mut context, live.take());
                            }
                        }
                        Some((record, meta)) => {
                            let unit = single(&mut context, &record, meta);
                            self.units.push(unit);
                        }
                    }
                }
                Kind::User => {
                    // What was thought before this message is left out from now on.
                    let from = self.last_user.map_or(0, |at| at + 1);
                    for unit in &mut self.units[from..] {
                        if unit.reasoned.take().is_some() && unit.sent {
                            self.reasons
                                .push("reasoning of the last turn left out".into());
                        }
                    }
                    self.last_user = Some(self.units.len());
                    let unit = single(&mut context, &record, meta);
                    self.units.push(unit);
                }
                Kind::Marker | Kind::Notice => {
                    let unit = single(&mut context, &record, meta);
                    self.units.push(unit);
                }
            }
        }
        self.live = live.map(|(at, live)| (at, live.into_owned()));
        self.names = names;
        Ingest::Done
    }

    /// Ends the live exchange and begins one at the end of the history.
    fn begin<'a>(&mut self, context: &mut Context<'_>, live: &mut Option<(usize, Live<'a>)>) {
        self.finish(context, live.take());
        *live = Some((self.units.len(), Live::default()));
        // Holds the place; rendered when the exchange is finished or a window is built.
        self.units.push(Unit::placeholder());
    }

    fn finish(&mut self, context: &mut Context<'_>, live: Option<(usize, Live<'_>)>) {
        if let Some((at, live)) = live {
            self.place(at, live.render(context));
        }
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
    fn unique_call_id(&mut self, record: &Record<'_>, meta: &Meta) -> Arc<str> {
        let mut id: Arc<str> = Arc::from(&*record.call_id);
        let mut salt = 0u64;
        while id.is_empty() || !self.used_call_ids.insert(id.clone()) {
            self.renamed = true;
            let made = hash(&[meta.id.as_bytes(), &salt.to_le_bytes()]);
            id = format!("call_{made:016x}").into();
            salt += 1;
        }
        id
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
                    names: &mut self.names,
                };
                head.open(Role::System);
                head.text(system);
                let tokens = context.count(system);
                context.close(&mut head, Role::System, tokens);
            }
            self.head = Arc::new(head);
        }
    }

    /// Brings the log up to date; tokens of the window as it stands.
    pub(super) fn settle(&mut self, counter: &dyn Counter) -> usize {
        self.render_live(counter);
        if self.options.always_lod {
            self.shorten_older();
        }
        self.seal(self.open_from());
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

    /// Writes the units before this one into the log.
    fn seal(&mut self, upto: usize) {
        if upto <= self.pushed {
            return;
        }
        let mut log = self
            .log
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let size: usize = self.units[self.pushed..upto]
            .iter()
            .map(|unit| match &unit.form().body {
                Body::Own(messages) => messages.json.len(),
                Body::Log(_) => 0,
            })
            .sum();
        log.json.reserve(size);
        for index in self.pushed..upto {
            push(&mut log, &mut self.units[index]);
            if let Some((at, line)) = &self.line
                && *at == index
            {
                log.append(line);
            }
        }
        self.pushed = upto;
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
            if let Some((at, live)) = &self.live
                && !live.has_calls()
                && at + 1 < self.units.len()
            {
                self.live = None;
            }
            return;
        }
        if let Some((at, live)) = self.live.take() {
            let options = self.options.clone();
            let mut names = std::mem::take(&mut self.names);
            let mut context = Context {
                options: &options,
                counter,
                names: &mut names,
            };
            let unit = live.render(&mut context);
            self.names = names;
            self.place(at, unit);
            // Text with something after it cannot grow any more.
            if live.has_calls() || at + 1 == self.units.len() {
                self.live = Some((at, live));
            }
        }
    }

    /// The first unit that may still change.
    fn open_from(&self) -> usize {
        self.settled(self.live.as_ref().map_or(self.units.len(), |(at, _)| *at))
    }

    /// The first unit before `ended` that may still lose its reasoning; else `ended`.
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

fn push(log: &mut Messages, unit: &mut Unit) {
    if unit.level == Level::Out {
        return;
    }
    let level = unit.level;
    let form: &mut Form = match level {
        Level::Full => &mut unit.full,
        _ => match (&mut unit.bare, &mut unit.stub) {
            (Some(bare), _) if level == Level::Bare => bare,
            (_, Some(stub)) => stub,
            _ => &mut unit.full,
        },
    };
    if let Body::Own(messages) = &form.body {
        let first = log.len();
        log.append(messages);
        form.body = Body::Log(first);
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
