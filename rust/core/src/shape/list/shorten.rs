//! Messages of a list with their large texts shortened.

use super::contents::Contents;
use super::host::{Host, Key, Kind};
use crate::shape::seams;

/// Texts above so many bytes become a pointer and a head of so many.
#[derive(Clone, Copy)]
pub struct Limits {
    pub above: usize,
    pub keep: usize,
}

/// A call with its arguments shortened, and their tokens before and after.
struct Shorter<V> {
    call: V,
    before: usize,
    after: usize,
}

/// A pointer to `what`, the length of its text, and the head of it.
fn stub_of(what: &str, head: usize, text: &str, length: usize) -> String {
    format!(
        "[shortened: {what}, first {head} of {length} bytes]\n{}",
        &text[..head]
    )
}

impl<H: Host> Contents<'_, H> {
    /// A message of `tokens`, shortened. `place`: what its stub and those of its calls name.
    pub fn shortened(
        &self,
        message: H::Value,
        tokens: usize,
        place: usize,
        limits: Limits,
    ) -> Result<(H::Value, usize), H::Error> {
        let Limits { above, keep } = limits;
        let content = self.host.get(&message, Key::Content)?;
        let kind = content
            .as_ref()
            .map_or(Kind::None, |content| self.host.kind(content));
        let mut whole = String::new();
        let mut length = 0;
        let mut others = 0;
        match &content {
            Some(content) if kind == Kind::Text => {
                let text = self.host.text(content)?.unwrap_or_default();
                length = text.len();
                if length > above {
                    whole = text.into_owned();
                }
            }
            Some(content) if kind == Kind::List => {
                let mut texts = Vec::new();
                for part in self.host.items(content)? {
                    if let Some(text) = self.part_text(&part)?
                        && let Some(text) = self.host.text(&text)?
                    {
                        texts.push(text.into_owned());
                    } else {
                        others += 1;
                    }
                }
                whole = texts.join("\n");
                length = whole.len();
            }
            _ => {}
        }
        let (mut message, mut tokens) = (message, tokens);
        if length > above || kind == Kind::List {
            let head = seams::floor_boundary(&whole, keep.min(whole.len()));
            let mut what = format!("message {place}");
            if others > 0 {
                what += &format!(", without {others} parts that are no text");
            }
            let stub = stub_of(&what, head, &whole, length);
            let cost = self.count(&stub)?;
            let before = self.message_tokens(&message)?;
            if cost < before {
                message = self.with_content(&message, &stub)?;
                tokens = (tokens + cost).saturating_sub(before);
            }
        }
        self.shortened_calls(message, tokens, place, limits)
    }

    fn shortened_calls(
        &self,
        message: H::Value,
        mut tokens: usize,
        at: usize,
        limits: Limits,
    ) -> Result<(H::Value, usize), H::Error> {
        let Some(calls) = self
            .host
            .get(&message, Key::ToolCalls)?
            .filter(|calls| self.host.kind(calls) == Kind::List)
        else {
            return Ok((message, tokens));
        };
        let mut changed = false;
        let mut list = Vec::new();
        for call in self.host.items(&calls)? {
            match self.shortened_call(&call, at, limits)? {
                Some(shorter) => {
                    changed = true;
                    tokens = (tokens + shorter.after).saturating_sub(shorter.before);
                    list.push(shorter.call);
                }
                None => list.push(call),
            }
        }
        if !changed {
            return Ok((message, tokens));
        }
        let list = self.host.new_list(list)?;
        Ok((self.with(&message, Key::ToolCalls, list)?, tokens))
    }

    /// The call with its arguments shortened, where that makes it smaller.
    fn shortened_call(
        &self,
        call: &H::Value,
        at: usize,
        limits: Limits,
    ) -> Result<Option<Shorter<H::Value>>, H::Error> {
        // Of a tool that takes any text, it stands elsewhere.
        let (outer, inner) = match self.host.get(call, Key::Function)? {
            Some(_) => (Key::Function, Key::Arguments),
            None => (Key::Custom, Key::Input),
        };
        let Some(function) = self.host.get(call, outer)? else {
            return Ok(None);
        };
        let Some(raw) = self.host.get(&function, inner)? else {
            return Ok(None);
        };
        let Some(raw) = self.host.text(&raw)? else {
            return Ok(None);
        };
        if raw.len() <= limits.above {
            return Ok(None);
        }
        let head = seams::floor_boundary(&raw, limits.keep.min(raw.len()));
        let what = format!("message {at}");
        let stub = match outer {
            Key::Function => seams::short_arguments(&what, head, &raw),
            _ => stub_of(&what, head, &raw, raw.len()),
        };
        let (before, after) = (self.count(&raw)?, self.count(&stub)?);
        if after >= before {
            return Ok(None);
        }
        let function = self.with(&function, inner, self.host.new_text(&stub))?;
        let call = self.with(call, outer, function)?;
        Ok(Some(Shorter {
            call,
            before,
            after,
        }))
    }
}
