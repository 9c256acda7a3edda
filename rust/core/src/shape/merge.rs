//! Windows for templates whose roles must alternate, or which know no system role.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::record::Part;
use super::stand_in::Context;
use super::transcript::{Built, Transcript};
use super::wire::{Counter, Log, Messages, Role, Window, read, write};

/// Opens a conversation that would begin with the model.
pub(super) const START: &str = "(the conversation goes on)";

/// The merged messages of the log so far, only ever appended to, and what the next one begins with.
pub(super) struct Merged {
    log: Log,
    /// Messages of the transcript's log that are in.
    fed: usize,
    /// Which log they are of.
    epoch: u64,
    waiting: Vec<Waiting>,
    started: bool,
}

/// A piece of the user's message that is not written yet.
#[derive(Clone)]
enum Waiting {
    Text(Cow<'static, str>),
    /// A whole message: its JSON and tokens.
    Message(Vec<u8>, usize),
}

impl Transcript {
    pub(super) fn merges(&self) -> bool {
        self.options.alternate || !self.options.system_role
    }

    pub(super) fn merged_tokens(&mut self, counter: &dyn Counter) -> usize {
        let (log, open) = self.merged(counter);
        self.tools_tokens + read(&log).tokens() + open.tokens()
    }

    pub(super) fn merged_window(&mut self, counter: &dyn Counter) -> Built {
        let (log, open) = self.merged(counter);
        let (sealed, tokens) = {
            let log = read(&log);
            (log.len(), log.tokens())
        };
        let window = Window {
            tokens: self.tools_tokens + tokens + open.tokens(),
            head: Arc::default(),
            sealed,
            log,
            open: Arc::new(open),
        };
        self.report(window)
    }

    fn begin_merged(&self) -> Merged {
        let mut begun = Messages::default();
        let mut waiting = Vec::new();
        if self.options.system_role {
            begun.append(&self.head);
        } else if !self.head_text.is_empty() {
            waiting.push(Waiting::Text(Cow::Owned(self.head_text.clone())));
        }
        let log = Log::default();
        *write(&log) = begun;
        Merged {
            log,
            fed: 0,
            epoch: self.log_epoch,
            waiting,
            started: false,
        }
    }

    /// The merged log with all that is in the transcript's, and the messages that may still change.
    fn merged(&mut self, counter: &dyn Counter) -> (Log, Messages) {
        let kept = self.merged.take();
        let mut merged = kept
            .filter(|merged| merged.epoch == self.log_epoch)
            .unwrap_or_else(|| self.begin_merged());
        let open = self.open_messages();
        let options = self.options.clone();
        let mut context = Context {
            options: &options,
            counter,
            counts: &mut self.counts,
        };
        let mut merger = Merger {
            out: Messages::default(),
            waiting: std::mem::take(&mut merged.waiting),
            started: merged.started,
            alternate: options.alternate,
        };
        {
            let log = read(&self.log);
            for index in merged.fed..log.len() {
                merger.add(&mut context, &log, index);
            }
            merged.fed = log.len();
        }
        if !merger.out.is_empty() {
            write(&merged.log).append(&std::mem::take(&mut merger.out));
        }
        merged.waiting.clone_from(&merger.waiting);
        merged.started = merger.started;
        for index in 0..open.len() {
            merger.add(&mut context, &open, index);
        }
        merger.flush(&mut context);
        let log = merged.log.clone();
        self.merged = Some(merged);
        (log, merger.out)
    }
}

struct Merger {
    out: Messages,
    /// What the user's message has so far.
    waiting: Vec<Waiting>,
    /// A message other than the system's was written.
    started: bool,
    alternate: bool,
}

impl Merger {
    fn add(&mut self, context: &mut Context<'_>, messages: &Messages, index: usize) {
        let json = messages.message(index);
        if json.starts_with(b"{\"role\":\"user\"") {
            if !self.alternate && !self.waiting.is_empty() && self.started {
                self.flush(context);
            }
            let tokens = messages.message_tokens(index);
            self.waiting.push(Waiting::Message(json.to_vec(), tokens));
            if !self.alternate {
                self.flush(context);
            }
            return;
        }
        if self.alternate
            && self.waiting.is_empty()
            && !self.started
            && json.starts_with(b"{\"role\":\"assistant\"")
        {
            self.waiting.push(Waiting::Text(Cow::Borrowed(START)));
        }
        self.flush(context);
        self.out.copy(messages, index, 1);
        self.started = true;
    }

    fn flush(&mut self, context: &mut Context<'_>) {
        if self.waiting.is_empty() {
            return;
        }
        self.started = true;
        let waiting = std::mem::take(&mut self.waiting);
        // Nothing to merge: the message as it is, counted already.
        if let [Waiting::Message(json, tokens)] = waiting.as_slice()
            && json.starts_with(b"{\"role\":\"user\",\"content\":\"")
        {
            self.out.whole(json, *tokens);
            return;
        }
        let parts: Vec<Part<'static>> = waiting
            .into_iter()
            .flat_map(|piece| match piece {
                Waiting::Text(text) => vec![Part::Text(text)],
                Waiting::Message(json, _) => user_parts(&json),
            })
            .collect();
        let only_text = parts.iter().all(|part| matches!(part, Part::Text(_)));
        self.out.open(Role::User);
        let tokens = if only_text {
            let texts: Vec<&str> = parts
                .iter()
                .filter_map(|part| match part {
                    Part::Text(text) => Some(&**text),
                    Part::Image(_) => None,
                })
                .collect();
            let joined = texts.join("\n\n");
            self.out.text(&joined);
            context.count(&joined)
        } else {
            self.out.parts(&parts);
            parts
                .iter()
                .map(|part| match part {
                    Part::Text(text) => context.count(text),
                    Part::Image(_) => context.options.image_tokens,
                })
                .sum()
        };
        context.close(&mut self.out, Role::User, tokens);
    }
}

/// The content of a user message of ours, as parts.
fn user_parts(json: &[u8]) -> Vec<Part<'static>> {
    let Ok(mut message) = serde_json::from_slice::<Value>(json) else {
        return Vec::new();
    };
    let text = |value: &Value| Cow::Owned(value.as_str().unwrap_or_default().to_owned());
    match message["content"].take() {
        Value::String(text) => vec![Part::Text(Cow::Owned(text))],
        Value::Array(parts) => parts
            .iter()
            .map(|part| {
                if part["type"] == "text" {
                    Part::Text(text(&part["text"]))
                } else {
                    Part::Image(text(&part["image_url"]["url"]))
                }
            })
            .collect(),
        _ => Vec::new(),
    }
}
