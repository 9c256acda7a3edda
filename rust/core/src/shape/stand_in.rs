//! Texts and what stands in for them where there is no room: their wording, and how they are counted.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use super::options::Options;
use super::seams;
use super::unit::Level;
use super::wire::{Counter, Messages, PER_MESSAGE, Role};

/// Counts of texts that come again and again: roles, tools' names, sentences of ours.
#[derive(Debug, Default)]
pub struct Counts {
    roles: [Option<usize>; 4],
    names: FxHashMap<Box<str>, usize>,
}

/// What rendering needs beside the entries: policy, counter, and counts that come again and again.
pub struct Context<'c> {
    pub options: &'c Options,
    pub counter: &'c dyn Counter,
    pub counts: &'c mut Counts,
}

impl Context<'_> {
    pub fn count(&self, text: &str) -> usize {
        if text.is_empty() {
            0
        } else {
            self.counter.count(text)
        }
    }

    /// The count of a text that comes again and again.
    pub fn count_name(&mut self, name: &str) -> usize {
        if let Some(&tokens) = self.counts.names.get(name) {
            return tokens;
        }
        let tokens = self.count(name);
        // Names are few; a host that makes up new ones all the time does not fill the memory.
        if self.counts.names.len() < 4096 {
            self.counts.names.insert(name.into(), tokens);
        }
        tokens
    }

    /// What a message costs beside its texts.
    pub fn frame(&mut self, role: Role) -> usize {
        let known = self.counts.roles[role as usize];
        let tokens = known.unwrap_or_else(|| self.count(role.name()));
        self.counts.roles[role as usize] = Some(tokens);
        tokens + PER_MESSAGE
    }

    /// Closes a message of `role` and `tokens` of text.
    pub fn close(&mut self, out: &mut Messages, role: Role, tokens: usize) {
        let tokens = tokens + self.frame(role);
        out.close(tokens);
    }

    /// One whole message of a text that was counted.
    pub fn message(&mut self, out: &mut Messages, role: Role, text: &str, tokens: usize) {
        out.open(role);
        out.text(text);
        self.close(out, role, tokens);
    }
}

/// Below this many bytes a pointer would save nothing worth a second form.
const BARE_ABOVE: usize = 200;

/// A large entry's stand-in: pointer, length, head.
pub fn stub_text(id: &str, head: usize, text: &str) -> String {
    format!(
        "[shortened: entry {id}, first {head} of {} bytes]\n{}",
        text.len(),
        &text[..head]
    )
}

/// The shortest stand-in: pointer and length.
pub fn bare_text(id: &str, len: usize) -> String {
    format!("[shortened: entry {id}, {len} bytes]")
}

/// The stand-in of large arguments: still the text of a JSON object. `what` names where the whole is.
pub fn stub_arguments(what: &str, head: usize, text: &str) -> String {
    let mut out = Vec::with_capacity(head + 96);
    out.extend_from_slice(b"{\"_shortened\":");
    super::wire::write_string(
        &mut out,
        &format!("{what}, first {head} of {} bytes", text.len()),
    );
    out.extend_from_slice(b",\"_head\":");
    super::wire::write_string(&mut out, &text[..head]);
    out.push(b'}');
    String::from_utf8(out).unwrap_or_default()
}

/// The shortest stand-in of arguments.
pub fn bare_arguments(id: &str, len: usize) -> String {
    let mut out = Vec::with_capacity(96);
    out.extend_from_slice(b"{\"_shortened\":");
    super::wire::write_string(&mut out, &format!("entry {id}, {len} bytes"));
    out.push(b'}');
    String::from_utf8(out).unwrap_or_default()
}

/// Stands for what is left out of a window.
pub fn line_text(hidden: usize) -> String {
    format!("[{hidden} earlier messages are left out here: they did not fit]")
}

/// Stands for a result that is not there.
pub const NO_RESULT: &str = "[no result: this call was interrupted before it ended]";
/// Stands for an empty text, which many servers refuse.
pub const EMPTY_USER: &str = "(empty message)";
pub const EMPTY_RESULT: &str = "(no output)";
/// Begins a summary's message.
pub const MARKER_HEAD: &str = "[summary of earlier messages]\n";

/// A text as it is shown, counted, and its shorter stand-ins once somebody needed them.
#[derive(Clone, Debug)]
pub struct Piece<'a> {
    pub text: Cow<'a, str>,
    pub tokens: usize,
    short: Option<Box<StandIns>>,
}

#[derive(Clone, Debug, Default)]
struct StandIns {
    stub: Option<(Box<str>, usize)>,
    bare: Option<(Box<str>, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Text,
    Arguments,
}

impl<'a> Piece<'a> {
    pub fn new(context: &Context<'_>, text: Cow<'a, str>) -> Self {
        let tokens = context.count(&text);
        Self::counted(text, tokens)
    }

    pub fn counted(text: Cow<'a, str>, tokens: usize) -> Self {
        Self {
            text,
            tokens,
            short: None,
        }
    }

    /// Whether a stand-in may be worth it.
    pub fn is_large(&self, options: &Options) -> bool {
        options.may_stub() && self.text.len() > options.stub_above().min(BARE_ABOVE)
    }

    /// Makes the stand-ins, each counted once. `id`: the entry's.
    pub fn prepare(&mut self, context: &Context<'_>, id: &str, sort: Sort) {
        if self.short.is_some() || !self.is_large(context.options) {
            return;
        }
        let text = &*self.text;
        let mut short = StandIns::default();
        let counted = |made: String| {
            (made.len() < text.len()).then(|| {
                let tokens = context.count(&made);
                (made.into(), tokens)
            })
        };
        if text.len() > context.options.stub_above() {
            let stub = |head: usize| match sort {
                Sort::Text => stub_text(id, head, text),
                Sort::Arguments => stub_arguments(&format!("entry {id}"), head, text),
            };
            let pointer = stub(0).len() + 3;
            let head = seams::floor_boundary(text, context.options.stub_keep(pointer));
            short.stub = counted(stub(head));
        }
        if text.len() > BARE_ABOVE {
            short.bare = counted(match sort {
                Sort::Text => bare_text(id, text.len()),
                Sort::Arguments => bare_arguments(id, text.len()),
            });
        }
        self.short = Some(Box::new(short));
    }

    /// The text at a level, and its tokens. What stands in for it was prepared before.
    pub fn at(&self, level: Level) -> (&str, usize) {
        let short = self.short.as_deref().and_then(|short| match level {
            Level::Full => None,
            Level::Stub => short.stub.as_ref(),
            Level::Bare | Level::Out => short.bare.as_ref().or(short.stub.as_ref()),
        });
        match short {
            Some((text, tokens)) => (text, *tokens),
            None => (&self.text, self.tokens),
        }
    }

    pub fn has(&self, level: Level) -> bool {
        self.short.as_deref().is_some_and(|short| match level {
            Level::Stub => short.stub.is_some(),
            Level::Bare => short.bare.is_some(),
            _ => false,
        })
    }

    pub fn into_owned(self) -> Piece<'static> {
        Piece {
            text: Cow::Owned(self.text.into_owned()),
            tokens: self.tokens,
            short: self.short,
        }
    }
}

/// A tool's result as the model sees it: never empty, cut to the policy's limit, harmless.
pub fn shown_result<'a>(options: &Options, content: &'a str) -> Cow<'a, str> {
    if content.trim().is_empty() {
        return Cow::Borrowed(EMPTY_RESULT);
    }
    let cut = match options.max_tool_result {
        0 => Cow::Borrowed(content),
        limit => seams::truncate_middle(content, limit, "{OUTPUT} stands for the whole of it."),
    };
    if options.verbatim {
        return cut;
    }
    match cut {
        Cow::Borrowed(text) => seams::neutralize(text),
        Cow::Owned(text) => Cow::Owned(seams::neutralize(&text).into_owned()),
    }
}
