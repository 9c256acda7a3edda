//! Messages that are not as most are: other forms, parts, orphans, empty ids, roles out of place.

use std::borrow::Cow;

use super::contents::Piece;
use super::host::{Host, Key, Kind, PlainRole, Refusal};
use super::walk::{Open, Unit, Walk};
use crate::shape::seams;
use crate::shape::stand_in::{EMPTY_RESULT, EMPTY_USER, shown_result};
use crate::shape::wire::{PER_CALL, PER_MESSAGE};

/// Stands for the name of a tool that a call does not tell.
const UNNAMED: &str = "unknown_tool";

/// A message being read: itself, or a copy once something in it had to be another.
struct Message<V> {
    at: usize,
    value: V,
    copied: bool,
    content: Option<V>,
    calls: Option<V>,
    name: Option<V>,
}

/// What a content says of itself.
struct Seen {
    tokens: usize,
    empty: bool,
    large: bool,
    text: bool,
}

/// The calls of a message, as they are shown.
struct Calls<V> {
    /// Where any of them had to be repaired.
    repaired: Option<Vec<V>>,
    tokens: usize,
    large: bool,
}

impl<V: Clone> Message<V> {
    fn set<H: Host<Value = V>>(&mut self, host: &H, key: Key, value: V) -> Result<(), H::Error> {
        if !self.copied {
            self.value = host.copy(&self.value)?;
            self.copied = true;
        }
        host.set(&self.value, key, value)
    }

    /// `None` for the given one.
    fn made(self) -> Option<V> {
        self.copied.then_some(self.value)
    }
}

impl<H: Host> Walk<'_, H> {
    /// Takes any message in.
    pub fn read_any(&mut self, at: usize) -> Result<(), H::Error> {
        let value = self.host.message(at)?;
        if self.host.kind(&value) != Kind::Dict {
            return Err(self.host.refuse(Refusal::NoDict { at }));
        }
        let role = match self.host.get(&value, Key::Role)? {
            Some(role) => self.host.text(&role)?.map(Cow::into_owned),
            None => None,
        };
        let Some(role) = role else {
            return Err(self.no_role(at));
        };
        let mut message = Message {
            at,
            content: self.host.get(&value, Key::Content)?,
            calls: self.host.get(&value, Key::ToolCalls)?,
            name: self.host.get(&value, Key::Name)?,
            value,
            copied: false,
        };
        self.regular(&mut message, &role)?;
        match &*role {
            "assistant" => self.assistant(message),
            "tool" | "function" => self.tool(message),
            "user" => self.user(message),
            // The system prompt is first and once; what a host says so later is context.
            "system" | "developer" if self.head.is_none() && self.units.is_empty() => {
                let seen = self.content(message.content.as_ref())?;
                let tokens = seen.tokens
                    + self.contents().count(&role)?
                    + self.name(&message)?
                    + PER_MESSAGE;
                self.head = Some((message.value, tokens));
                Ok(())
            }
            other => {
                self.close()?;
                self.context(&format!("[{other}]"), &message)
            }
        }
    }

    /// Lists become lists, calls go where they belong, and a content of a kind there is not is refused.
    fn regular(&self, message: &mut Message<H::Value>, role: &str) -> Result<(), H::Error> {
        let at = message.at;
        if let Some(content) = message.content.clone() {
            match self.host.kind(&content) {
                Kind::None | Kind::Text | Kind::List => {}
                Kind::Tuple => {
                    let list = self.host.new_list(self.host.items(&content)?)?;
                    message.set(self.host, Key::Content, list.clone())?;
                    message.content = Some(list);
                }
                Kind::Dict | Kind::Other => {
                    let is = self.host.type_name(&content);
                    return Err(self.host.refuse(Refusal::Content { at, is }));
                }
            }
        }
        if let Some(calls) = message.calls.clone() {
            match self.host.kind(&calls) {
                Kind::None | Kind::List => {}
                Kind::Tuple => {
                    let list = self.host.new_list(self.host.items(&calls)?)?;
                    message.set(self.host, Key::ToolCalls, list.clone())?;
                    message.calls = Some(list);
                }
                Kind::Text | Kind::Dict | Kind::Other => {
                    let is = self.host.type_name(&calls);
                    return Err(self.host.refuse(Refusal::Calls { at, is }));
                }
            }
        }
        match role {
            "assistant" => self.older_forms(message),
            "function" => message.set(self.host, Key::Role, self.host.new_text("tool")),
            _ => Ok(()),
        }
    }

    /// The older way to write a call, and a refusal in place of a content.
    fn older_forms(&self, message: &mut Message<H::Value>) -> Result<(), H::Error> {
        if !self.list(message.calls.as_ref())?.is_empty() {
            return Ok(());
        }
        let function = self.host.get(&message.value, Key::FunctionCall)?;
        if let Some(function) = function.filter(|call| self.host.kind(call) == Kind::Dict) {
            let call = self.host.new_dict();
            self.host.set(&call, Key::Id, self.host.new_text(""))?;
            self.host
                .set(&call, Key::Type, self.host.new_text("function"))?;
            self.host.set(&call, Key::Function, function)?;
            let list = self.host.new_list(vec![call])?;
            message.set(self.host, Key::ToolCalls, list.clone())?;
            message.calls = Some(list);
            return self.host.remove(&message.value, Key::FunctionCall);
        }
        let silent = message
            .content
            .as_ref()
            .is_none_or(|content| self.host.kind(content) == Kind::None);
        let refusal = self.host.get(&message.value, Key::Refusal)?;
        if let Some(refusal) = refusal.filter(|said| self.host.kind(said) == Kind::Text)
            && silent
        {
            message.set(self.host, Key::Content, refusal.clone())?;
            message.content = Some(refusal);
        }
        Ok(())
    }

    fn list(&self, value: Option<&H::Value>) -> Result<Vec<H::Value>, H::Error> {
        match value {
            Some(value) if self.host.kind(value) == Kind::List => self.host.items(value),
            _ => Ok(Vec::new()),
        }
    }

    fn content(&self, content: Option<&H::Value>) -> Result<Seen, H::Error> {
        let mut seen = Seen {
            tokens: 0,
            empty: true,
            large: false,
            text: false,
        };
        let Some(content) = content else {
            return Ok(seen);
        };
        if let Some(text) = self.host.text(content)? {
            seen.tokens = self.contents().count(&text)?;
            seen.empty = text.trim_start().is_empty();
            seen.large = text.len() > self.large_above;
            seen.text = true;
        } else if self.host.kind(content) == Kind::List {
            seen.tokens = self.contents().tokens(content)?;
            seen.empty = self.host.items(content)?.is_empty();
            seen.large = true;
        }
        Ok(seen)
    }

    fn name(&self, message: &Message<H::Value>) -> Result<usize, H::Error> {
        let name = match &message.name {
            Some(name) => self.host.text(name)?,
            None => None,
        };
        name.map_or(Ok(0), |name| self.contents().count(&name))
    }

    fn user(&mut self, mut message: Message<H::Value>) -> Result<(), H::Error> {
        self.close()?;
        let seen = self.content(message.content.as_ref())?;
        let mut tokens = self.role_cost(PlainRole::User);
        if seen.empty {
            tokens += self.contents().count(EMPTY_USER)?;
            message.set(self.host, Key::Content, self.host.new_text(EMPTY_USER))?;
        } else {
            tokens += seen.tokens + self.name(&message)?;
        }
        let unit = Unit {
            user: true,
            text: true,
            large: seen.large,
            ..Unit::default()
        };
        self.push(message.at, message.made(), tokens, unit);
        Ok(())
    }

    /// A message of a role that cannot stand where it does, as context that begins with `head`.
    fn context(&mut self, head: &str, message: &Message<H::Value>) -> Result<(), H::Error> {
        let contents = self.contents();
        let mut text = head.to_owned();
        let mut pictures = Vec::new();
        for piece in contents.pieces(&message.value)? {
            match piece {
                Piece::Text(more) => {
                    text.push('\n');
                    text.push_str(&more);
                }
                Piece::Other(part) => pictures.push(part),
            }
        }
        if !self.options.verbatim {
            text = seams::neutralize(&text).into_owned();
        }
        let large = text.len() > self.large_above || !pictures.is_empty();
        let made = contents.made("user", &text)?;
        if !pictures.is_empty() {
            pictures.insert(0, contents.text_part(&text)?);
            let list = self.host.new_list(pictures)?;
            self.host.set(&made, Key::Content, list)?;
        }
        let tokens = contents.message_tokens(&made)? + self.role_cost(PlainRole::User);
        let unit = Unit {
            large,
            ..Unit::default()
        };
        self.push(message.at, Some(made), tokens, unit);
        Ok(())
    }

    fn assistant(&mut self, mut message: Message<H::Value>) -> Result<(), H::Error> {
        self.close()?;
        let seen = self.content(message.content.as_ref())?;
        let (mut tokens, mut large) = (seen.tokens, seen.large);
        let calls = self.list(message.calls.as_ref())?;
        if seen.empty && calls.is_empty() {
            return Ok(());
        }
        // Two texts in a row are one message.
        if let Some(last) = self.units.last().copied()
            && last.exchange
            && !last.calls
        {
            let older = self.message(last.last)?;
            (message.value, tokens) = self.contents().joined(&older, &message.value)?;
            message.copied = true;
            message.name = self.host.get(&message.value, Key::Name)?;
            large |= last.large;
            self.units.pop();
        }
        let mut unit = Unit {
            exchange: true,
            text: !seen.empty,
            calls: !calls.is_empty(),
            ..Unit::default()
        };
        tokens += self.name(&message)? + self.role_cost(PlainRole::Assistant);
        if !calls.is_empty() {
            let calls = self.calls(message.at, calls)?;
            tokens += calls.tokens;
            large |= calls.large;
            if let Some(calls) = calls.repaired {
                let calls = self.host.new_list(calls)?;
                message.set(self.host, Key::ToolCalls, calls)?;
            }
        }
        self.open_unit = self.units.len();
        unit.large = large;
        self.push(message.at, message.made(), tokens, unit);
        Ok(())
    }

    /// Opens the calls of a message.
    fn calls(&mut self, at: usize, mut calls: Vec<H::Value>) -> Result<Calls<H::Value>, H::Error> {
        let (mut tokens, mut large, mut repaired) = (0, false, false);
        for (index, call) in calls.iter_mut().enumerate() {
            if self.host.kind(call) != Kind::Dict {
                return Err(self.host.refuse(Refusal::Call { at }));
            }
            let id = self.host.get(call, Key::Id)?;
            let id = match &id {
                Some(id) => self.host.text(id)?.unwrap_or_default(),
                None => Cow::Borrowed(""),
            };
            // Two lone surrogates look the same once they are repaired; what is shown must be what was compared.
            let odd = matches!(id, Cow::Owned(_));
            let open = self.claim(at, index, &id);
            let function = self.host.get(call, Key::Function)?;
            let function = function.filter(|function| self.host.kind(function) == Kind::Dict);
            if function.is_none()
                && let Some(cost) = self.custom(call)?
            {
                tokens += cost.tokens;
                large |= cost.large;
                if open.stored.is_some() || odd {
                    repaired = true;
                    let id = self.host.new_text(self.used.get(open.id));
                    *call = self.contents().with(call, Key::Id, id)?;
                }
                self.open.push(open);
                continue;
            }
            let flat = function.is_none();
            let function = match function {
                Some(function) => function,
                None => {
                    let function = self.host.new_dict();
                    for key in [Key::Name, Key::Arguments] {
                        if let Some(value) = self.host.get(call, key)? {
                            self.host.set(&function, key, value)?;
                        }
                    }
                    function
                }
            };
            let named = self.host.get(&function, Key::Name)?;
            let name = match &named {
                Some(name) => self.host.text(name)?,
                None => None,
            }
            .unwrap_or(Cow::Owned(UNNAMED.to_owned()));
            let renamed = matches!(name, Cow::Owned(_));
            tokens += self.contents().count(&name)?;
            let given = self.host.get(&function, Key::Arguments)?;
            let (raw, bare) = match &given {
                Some(given) => match self.host.text(given)? {
                    Some(text) => (text, false),
                    None if self.host.kind(given) == Kind::None => (Cow::Borrowed(""), true),
                    // Some hosts keep the object itself.
                    None => (Cow::Owned(self.host.json(at, given)?), true),
                },
                None => (Cow::Borrowed(""), true),
            };
            let arguments = seams::arguments(&raw);
            tokens += self.contents().count(&arguments)? + PER_CALL;
            large |= arguments.len() > self.large_above;
            if open.stored.is_some() || odd || arguments != raw || bare || flat || renamed {
                repaired = true;
                let contents = self.contents();
                let id = self.host.new_text(self.used.get(open.id));
                let fresh = contents.with(call, Key::Id, id)?;
                if flat {
                    for key in [Key::Name, Key::Arguments] {
                        self.host.remove(&fresh, key)?;
                    }
                    self.host
                        .set(&fresh, Key::Type, self.host.new_text("function"))?;
                }
                let arguments = self.host.new_text(&arguments);
                let function = contents.with(&function, Key::Arguments, arguments)?;
                if renamed {
                    let name = self.host.new_text(&name);
                    self.host.set(&function, Key::Name, name)?;
                }
                self.host.set(&fresh, Key::Function, function)?;
                *call = fresh;
            }
            self.open.push(open);
        }
        Ok(Calls {
            repaired: repaired.then_some(calls),
            tokens,
            large,
        })
    }

    /// The cost of a call of a tool that takes any text, not JSON; `None` for any other.
    fn custom(&self, call: &H::Value) -> Result<Option<Seen>, H::Error> {
        let Some(custom) = self.host.get(call, Key::Custom)? else {
            return Ok(None);
        };
        let (Some(name), Some(input)) = (
            self.host.get(&custom, Key::Name)?,
            self.host.get(&custom, Key::Input)?,
        ) else {
            return Ok(None);
        };
        let (Some(name), Some(input)) = (self.host.text(&name)?, self.host.text(&input)?) else {
            return Ok(None);
        };
        let contents = self.contents();
        Ok(Some(Seen {
            tokens: contents.count(&name)? + contents.count(&input)? + PER_CALL,
            empty: false,
            large: input.len() > self.large_above,
            text: true,
        }))
    }

    /// A call's id, or one that is free where it has none, or one in use.
    fn claim(&mut self, at: usize, index: usize, id: &str) -> Open {
        if let Some(id) = self.used.claim_call(id) {
            return Open { id, stored: None };
        }
        let mut salt = 0;
        loop {
            let made = format!("call_{at}_{index}_{salt}");
            if let Some(free) = self.used.claim_call(&made) {
                return Open {
                    id: free,
                    stored: Some(id.into()),
                };
            }
            salt += 1;
        }
    }

    fn tool(&mut self, mut message: Message<H::Value>) -> Result<(), H::Error> {
        let id = self.host.get(&message.value, Key::ToolCallId)?;
        let id = match &id {
            Some(id) => self.host.text(id)?.unwrap_or_default(),
            None => Cow::Borrowed(""),
        };
        let seen = self.content(message.content.as_ref())?;
        let place = self.open.iter().position(|call| {
            let stored = call.stored.as_deref();
            id.is_empty() || stored.unwrap_or(self.used.get(call.id)) == id
        });
        let Some(place) = place else {
            let head = if id.is_empty() {
                "[late result of an unknown call]".to_owned()
            } else {
                format!("[late result of call {id}]")
            };
            return self.context(&head, &message);
        };
        let call = self.open.remove(place);
        let mut tokens = seen.tokens;
        if let Some(shown) = self.result(&message, &seen)? {
            tokens = self.contents().tokens(&shown)?;
            message.set(self.host, Key::Content, shown)?;
        }
        if matches!(id, Cow::Owned(_)) || id != self.used.get(call.id) {
            let id = self.host.new_text(self.used.get(call.id));
            message.set(self.host, Key::ToolCallId, id)?;
        }
        tokens += self.name(&message)? + self.role_cost(PlainRole::Tool);
        let at = message.at;
        self.answer(at, message.made(), tokens, seen.large);
        Ok(())
    }

    /// A tool's result as the model may see it; `None`: as it is.
    fn result(
        &self,
        message: &Message<H::Value>,
        seen: &Seen,
    ) -> Result<Option<H::Value>, H::Error> {
        let Some(content) = message.content.as_ref().filter(|_| !seen.empty) else {
            return Ok(Some(self.host.new_text(EMPTY_RESULT)));
        };
        if seen.text {
            return self.shown_text(content);
        }
        let mut changed = false;
        let mut list = self.host.items(content)?;
        for part in &mut list {
            let Some(text) = self.contents().part_text(part)? else {
                continue;
            };
            if let Some(shown) = self.shown_text(&text)? {
                changed = true;
                *part = match self.host.kind(part) {
                    Kind::Dict => self.contents().with(part, Key::Text, shown)?,
                    _ => shown,
                };
            }
        }
        if !changed {
            return Ok(None);
        }
        self.host.new_list(list).map(Some)
    }

    fn shown_text(&self, text: &H::Value) -> Result<Option<H::Value>, H::Error> {
        let text = self.host.text(text)?.unwrap_or_default();
        let shown = shown_result(self.options, &text);
        Ok((shown != text).then(|| self.host.new_text(&shown)))
    }
}
