//! A session's history as units, and the window made of it.
//!
//! Entries come in once. What they look like on the wire is written once, into a log that is only ever
//! appended to, and counted once. A window is the log's length at that moment and the few messages that
//! may still change, so that a build costs what is new and nothing else.

use std::borrow::Cow;
use std::sync::Arc;

use super::exchange::Live;
use super::merge::Merged;
use super::names::Names;
use super::options::Options;
use super::plan::Plan;
use super::shorten;
use super::stand_in::{Context, Counts};
use super::unit::{Body, Form, Level, Shorter, Unit};
use super::wire::{Counter, Log, Messages, Role, Window, read};

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
    pub(super) expected: usize,
    pub(super) last_key: Option<(i64, bool, String)>,
    pub(super) units: Vec<Unit>,
    pub(super) live: Option<(usize, Live<'static>)>,
    pub(super) live_changed: bool,
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

pub(super) fn set_shorter(unit: &mut Unit, short: Shorter) {
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
