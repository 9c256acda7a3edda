//! One pass over the list: units, what they cost, and which of the given messages they show.

use super::BARE_ABOVE;
use super::contents::Contents;
use super::host::{Host, Plain, PlainRole, Refusal};
use super::shorten::Limits;
use crate::shape::names::{Name, Names};
use crate::shape::options::Options;
use crate::shape::plan::Cost;
use crate::shape::seams;
use crate::shape::stand_in::{NO_RESULT, shown_result};
use crate::shape::wire::{PER_CALL, PER_MESSAGE};
use crate::tokens::chars_by_four;

/// The end of a chain of messages.
const NONE: u32 = u32::MAX;

/// A message as it is shown. There are as many as messages, so that it is small.
#[derive(Clone, Copy)]
pub struct Shown {
    /// Its place in the list; of one that stands for several or for none, the newest it comes from.
    at: u32,
    /// The next one of its unit.
    next: u32,
    tokens: u32,
}

#[derive(Clone, Copy, Default)]
pub struct Unit {
    pub first: u32,
    pub last: u32,
    pub tokens: u32,
    pub user: bool,
    pub exchange: bool,
    /// It counts as a text of the tail.
    pub text: bool,
    pub calls: bool,
    /// It holds something worth shortening.
    pub large: bool,
}

impl Unit {
    pub fn cost(&self) -> Cost {
        Cost {
            full: self.tokens as usize,
            user: self.user,
            exchange: self.exchange,
            messages: self.text.into(),
            calls: self.calls.into(),
            ..Cost::default()
        }
    }
}

/// A call that waits for its result.
pub struct Open {
    /// As it is shown.
    pub id: Name,
    /// As it came, where that is something else.
    pub stored: Option<Box<str>>,
}

pub struct Walk<'h, H: Host> {
    pub host: &'h mut H,
    pub options: &'h Options,
    /// Texts above this many bytes are worth shortening.
    pub large_above: usize,
    /// What a message of a role costs beside its texts.
    roles: [usize; 3],
    pub used: Names,
    /// The system prompt, with its tokens.
    pub head: Option<(H::Value, usize)>,
    shown: Vec<Shown>,
    /// Those of `shown` that are not the given ones, in order.
    made: Vec<(u32, H::Value)>,
    pub units: Vec<Unit>,
    /// Calls that wait for their results.
    pub open: Vec<Open>,
    /// The unit they are in.
    pub open_unit: usize,
}

fn is_blank(text: &str) -> bool {
    // Nearly every text begins with a letter.
    !text.as_bytes().first().is_some_and(u8::is_ascii_graphic) && text.trim_start().is_empty()
}

/// Whether what was made of a text is the text itself.
fn unchanged(made: &str, text: &str) -> bool {
    std::ptr::eq(made.as_ptr(), text.as_ptr()) && made.len() == text.len()
}

fn short(index: usize) -> u32 {
    // Four thousand million messages do not fit into a process.
    u32::try_from(index).unwrap_or(NONE)
}

impl<'h, H: Host> Walk<'h, H> {
    pub fn new(host: &'h mut H, options: &'h Options) -> Result<Self, H::Error> {
        let mut roles = [0; 3];
        for (cost, role) in roles.iter_mut().zip(["user", "assistant", "tool"]) {
            *cost = host.count(role)? + PER_MESSAGE;
        }
        let messages = host.len();
        Ok(Self {
            large_above: options.stub_above().min(BARE_ABOVE),
            host,
            options,
            roles,
            used: Names::default(),
            head: None,
            shown: Vec::with_capacity(messages),
            made: Vec::new(),
            units: Vec::with_capacity(messages / 2 + 1),
            open: Vec::new(),
            open_unit: 0,
        })
    }

    pub fn contents(&self) -> Contents<'_, H> {
        Contents {
            host: self.host,
            image_tokens: self.options.image_tokens,
        }
    }

    pub fn role_cost(&self, role: PlainRole) -> usize {
        self.roles[role as usize]
    }

    pub fn head_tokens(&self) -> usize {
        self.head.as_ref().map_or(0, |(_, tokens)| *tokens)
    }

    pub fn read_all(&mut self) -> Result<(), H::Error> {
        for at in 0..self.host.len() {
            if !self.read_plain(at) {
                self.read_any(at)?;
            }
        }
        self.close()
    }

    /// Takes a message in that needs no repair; false, with nothing done, for any other.
    fn read_plain(&mut self, at: usize) -> bool {
        let Some(Plain {
            role,
            content,
            name,
            call_id,
            calls,
        }) = self.host.plain(at)
        else {
            return false;
        };
        let blank = is_blank(content);
        let mut tokens = self.roles[role as usize] + chars_by_four(content) + chars_by_four(name);
        let mut large = content.len() > self.large_above;
        let mut unit = Unit::default();
        match role {
            PlainRole::User => {
                if blank || !self.open.is_empty() {
                    return false;
                }
                (unit.user, unit.text) = (true, true);
            }
            PlainRole::Assistant => {
                let follows_text = self
                    .units
                    .last()
                    .is_some_and(|last| last.exchange && !last.calls);
                if !self.open.is_empty() || follows_text {
                    return false;
                }
                for call in calls {
                    let id = if unchanged(&seams::arguments(call.arguments), call.arguments) {
                        self.used.claim_call(call.id)
                    } else {
                        None
                    };
                    let Some(id) = id else {
                        for call in self.open.drain(..) {
                            self.used.release_call(call.id);
                        }
                        return false;
                    };
                    tokens += chars_by_four(call.name) + chars_by_four(call.arguments) + PER_CALL;
                    large |= call.arguments.len() > self.large_above;
                    self.open.push(Open { id, stored: None });
                }
                if blank && self.open.is_empty() {
                    return false;
                }
                unit.exchange = true;
                unit.text = !blank;
                unit.calls = !self.open.is_empty();
                self.open_unit = self.units.len();
            }
            PlainRole::Tool => {
                let place = self
                    .open
                    .iter()
                    .position(|call| call.stored.is_none() && self.used.get(call.id) == call_id);
                let Some(place) = place else {
                    return false;
                };
                // An earlier call may have come with this id and been given another.
                let first = self.open[..place]
                    .iter()
                    .all(|call| call.stored.as_deref() != Some(call_id));
                if !first || blank || !unchanged(&shown_result(self.options, content), content) {
                    return false;
                }
                self.open.remove(place);
                self.answer(at, None, tokens, large);
                return true;
            }
        }
        unit.large = large;
        self.push(at, None, tokens, unit);
        true
    }

    fn show_as(&mut self, at: usize, made: Option<H::Value>, tokens: usize) -> u32 {
        let index = short(self.shown.len());
        if let Some(made) = made {
            self.made.push((index, made));
        }
        self.shown.push(Shown {
            at: short(at),
            next: NONE,
            tokens: short(tokens),
        });
        index
    }

    /// A unit of one message. `made`: what is shown in its place.
    pub fn push(&mut self, at: usize, made: Option<H::Value>, tokens: usize, unit: Unit) {
        let index = self.show_as(at, made, tokens);
        self.units.push(Unit {
            first: index,
            last: index,
            tokens: short(tokens),
            ..unit
        });
    }

    /// One more message of the unit with the open calls.
    pub fn answer(&mut self, at: usize, made: Option<H::Value>, tokens: usize, large: bool) {
        let index = self.show_as(at, made, tokens);
        let unit = &mut self.units[self.open_unit];
        self.shown[unit.last as usize].next = index;
        unit.last = index;
        unit.large |= large;
        unit.tokens = unit.tokens.saturating_add(short(tokens));
    }

    /// Answers what is still open: no result can come any more.
    pub fn close(&mut self) -> Result<(), H::Error> {
        if self.open.is_empty() {
            return Ok(());
        }
        let tokens = self.contents().count(NO_RESULT)? + self.role_cost(PlainRole::Tool);
        for call in std::mem::take(&mut self.open) {
            let made = self.contents().made("tool", NO_RESULT)?;
            let id = self.host.new_text(self.used.get(call.id));
            self.host.set(&made, super::host::Key::ToolCallId, id)?;
            let at = self.shown[self.units[self.open_unit].last as usize].at;
            self.answer(at as usize, Some(made), tokens, false);
        }
        Ok(())
    }

    pub fn message(&self, index: u32) -> Result<H::Value, H::Error> {
        match self.made.binary_search_by_key(&index, |made| made.0) {
            Ok(place) => Ok(self.made[place].1.clone()),
            Err(_) => self.host.message(self.shown[index as usize].at as usize),
        }
    }

    /// The messages of a unit, as places in `shown`.
    fn chain(&self, unit: usize) -> impl Iterator<Item = u32> {
        let mut next = self.units[unit].first;
        std::iter::from_fn(move || {
            let index = next;
            next = self.shown.get(index as usize)?.next;
            Some(index)
        })
    }

    pub fn messages_of(&self, unit: usize) -> usize {
        self.chain(unit).count()
    }

    fn shortened(
        &self,
        unit: usize,
        limits: Limits,
    ) -> impl Iterator<Item = Result<(H::Value, usize), H::Error>> {
        self.chain(unit).map(move |index| {
            let shown = self.shown[index as usize];
            self.contents().shortened(
                self.message(index)?,
                shown.tokens as usize,
                shown.at as usize,
                limits,
            )
        })
    }

    /// Tokens of a unit with its large texts shortened.
    pub fn size(&self, unit: usize, limits: Limits) -> Result<usize, H::Error> {
        self.shortened(unit, limits)
            .map(|shown| shown.map(|(_, tokens)| tokens))
            .sum()
    }

    pub fn show(
        &self,
        unit: usize,
        limits: Option<Limits>,
        out: &mut Vec<H::Value>,
    ) -> Result<(), H::Error> {
        match limits {
            None => {
                for index in self.chain(unit) {
                    out.push(self.message(index)?);
                }
            }
            Some(limits) => {
                for shown in self.shortened(unit, limits) {
                    out.push(shown?.0);
                }
            }
        }
        Ok(())
    }

    pub fn no_role(&self, at: usize) -> H::Error {
        self.host.refuse(Refusal::NoRole { at })
    }
}
