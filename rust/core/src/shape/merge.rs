//! Windows for templates whose roles must alternate, or which know no system role.

use std::borrow::Cow;
use std::sync::{Arc, RwLock};

use serde_json::Value;

use super::record::Part;
use super::transcript::{Built, Transcript};
use super::unit::Context;
use super::wire::{Counter, Messages, Role, Window, read};

/// Opens a conversation that would begin with the model.
pub(super) const START: &str = "(the conversation goes on)";

impl Transcript {
    pub(super) fn merges(&self) -> bool {
        self.options.alternate || !self.options.system_role
    }

    pub(super) fn merged_tokens(&mut self, counter: &dyn Counter) -> usize {
        self.tools_tokens + self.merged(counter).tokens()
    }

    pub(super) fn merged_window(&mut self, counter: &dyn Counter) -> Built {
        let messages = self.merged(counter);
        let window = Window {
            tokens: self.tools_tokens + messages.tokens(),
            head: Arc::default(),
            sealed: messages.len(),
            log: Arc::new(RwLock::new(messages)),
            open: Arc::default(),
        };
        self.report(window)
    }

    fn merged(&mut self, counter: &dyn Counter) -> Messages {
        let options = self.options.clone();
        let open = self.open_messages();
        let log = self.log.clone();
        let log = read(&log);
        let mut context = Context {
            options: &options,
            counter,
            names: &mut self.names,
        };
        let mut merger = Merger {
            out: Messages::default(),
            waiting: Vec::new(),
            alternate: options.alternate,
        };
        if options.system_role {
            merger.out.append(&self.head);
        } else if !self.head_text.is_empty() {
            merger
                .waiting
                .push(Part::Text(Cow::Owned(self.head_text.clone())));
        }
        for messages in [&*log, &open] {
            for index in 0..messages.len() {
                merger.add(&mut context, messages, index);
            }
        }
        merger.flush(&mut context);
        merger.out
    }
}

struct Merger {
    out: Messages,
    /// What the user's message has so far.
    waiting: Vec<Part<'static>>,
    alternate: bool,
}

impl Merger {
    fn add(&mut self, context: &mut Context<'_>, messages: &Messages, index: usize) {
        let json = messages.message(index);
        if json.starts_with(b"{\"role\":\"user\"") {
            if !self.alternate && !self.waiting.is_empty() && self.started() {
                self.flush(context);
            }
            self.waiting.extend(user_parts(json));
            if !self.alternate {
                self.flush(context);
            }
            return;
        }
        if self.alternate
            && self.waiting.is_empty()
            && !self.started()
            && json.starts_with(b"{\"role\":\"assistant\"")
        {
            self.waiting.push(Part::Text(Cow::Borrowed(START)));
        }
        self.flush(context);
        self.out.copy(messages, index, 1);
    }

    /// Whether a message other than the system's was written.
    fn started(&self) -> bool {
        self.out.len() > 1
            || (self.out.len() == 1 && !self.out.message(0).starts_with(b"{\"role\":\"system\""))
    }

    fn flush(&mut self, context: &mut Context<'_>) {
        if self.waiting.is_empty() {
            return;
        }
        let parts = std::mem::take(&mut self.waiting);
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
