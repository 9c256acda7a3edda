//! Units: the whole things that are shown, shortened or folded together, and how each is rendered.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::options::Options;
use super::record::{Kind, Part, Record};
use super::seams;
use super::wire::{Counter, Messages, PER_CALL, PER_MESSAGE, Role, WireCall};

/// How much of a unit a window shows. Each depends on the unit alone, never on the room there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    #[default]
    Full,
    /// Large entries are pointers with a head.
    Stub,
    /// Large entries are pointers.
    Bare,
    /// Not shown.
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitKind {
    User,
    /// Assistant text, its calls, their results.
    Exchange,
    Notice,
    Marker,
}

/// An entry, as far as folding needs to know it.
#[derive(Clone, Debug)]
pub struct Meta {
    pub id: Arc<str>,
    pub created_at: i64,
}

/// Messages of a unit at one level.
#[derive(Clone, Debug)]
pub enum Body {
    Own(Messages),
    /// They are in the log, from this message on.
    Log(usize),
}

#[derive(Clone, Debug)]
pub struct Form {
    pub body: Body,
    pub count: usize,
    pub tokens: usize,
}

impl Form {
    pub fn new(messages: Messages) -> Self {
        Self {
            count: messages.len(),
            tokens: messages.tokens(),
            body: Body::Own(messages),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Unit {
    pub kind: UnitKind,
    pub level: Level,
    pub metas: Vec<Meta>,
    pub call_ids: Vec<Arc<str>>,
    pub full: Form,
    /// `None` where it would be the same as `full`.
    pub stub: Option<Box<Form>>,
    /// `None` where it would be the same as `stub`.
    pub bare: Option<Box<Form>>,
    /// With reasoning, while the unit is in the running tool loop.
    pub reasoned: Option<Box<Form>>,
    /// Texts that count as messages of the tail.
    pub messages: usize,
    pub has_calls: bool,
    pub unanswered: bool,
    /// A window with it was given out.
    pub sent: bool,
}

impl Unit {
    /// Holds the place of an exchange that is not rendered yet.
    pub fn placeholder() -> Self {
        finished(
            UnitKind::Exchange,
            Vec::new(),
            Messages::default(),
            None,
            None,
        )
    }

    pub fn form_at(&self, level: Level) -> &Form {
        match level {
            Level::Full => self.reasoned.as_deref().unwrap_or(&self.full),
            Level::Stub => self.stub.as_deref().unwrap_or(&self.full),
            Level::Bare | Level::Out => self
                .bare
                .as_deref()
                .or(self.stub.as_deref())
                .unwrap_or(&self.full),
        }
    }

    pub fn form(&self) -> &Form {
        self.form_at(self.level)
    }

    pub fn tokens_at(&self, level: Level) -> usize {
        if level == Level::Out {
            0
        } else {
            self.form_at(level).tokens
        }
    }
}

/// What rendering needs beside the entries: policy, counter, and counts that come again and again.
pub struct Context<'c> {
    pub options: &'c Options,
    pub counter: &'c dyn Counter,
    pub names: &'c mut FxHashMap<Box<str>, usize>,
}

impl Context<'_> {
    pub fn count(&self, text: &str) -> usize {
        if text.is_empty() {
            0
        } else {
            self.counter.count(text)
        }
    }

    /// The count of a text that comes again and again: a role, a tool's name.
    pub fn count_name(&mut self, name: &str) -> usize {
        if let Some(&tokens) = self.names.get(name) {
            return tokens;
        }
        let tokens = self.count(name);
        // Names are few; a host that makes up new ones all the time does not fill the memory.
        if self.names.len() < 4096 {
            self.names.insert(name.into(), tokens);
        }
        tokens
    }

    fn role(&mut self, role: Role) -> usize {
        self.count_name(role.name()) + PER_MESSAGE
    }

    /// Closes a message of `role` and `tokens` of text.
    pub fn close(&mut self, out: &mut Messages, role: Role, tokens: usize) {
        let tokens = tokens + self.role(role);
        out.close(tokens);
    }

    fn piece<'a>(&self, text: Cow<'a, str>, meta: &Meta) -> Piece<'a> {
        let id = &meta.id;
        self.with_stand_ins(
            text,
            |head, text| stub_text(id, head, text),
            |len| bare_text(id, len),
        )
    }

    fn argument_piece<'a>(&self, text: Cow<'a, str>, meta: &Meta) -> Piece<'a> {
        let id = &meta.id;
        self.with_stand_ins(
            text,
            |head, text| stub_arguments(&format!("entry {id}"), head, text),
            |len| bare_arguments(id, len),
        )
    }

    /// A text and its shorter stand-ins, each counted once.
    fn with_stand_ins<'a>(
        &self,
        text: Cow<'a, str>,
        stub: impl Fn(usize, &str) -> String,
        bare: impl Fn(usize) -> String,
    ) -> Piece<'a> {
        let tokens = self.count(&text);
        let mut piece = Piece {
            text,
            tokens,
            stub: None,
            bare: None,
        };
        if self.options.may_stub() && piece.text.len() > self.options.stub_above() {
            let pointer = stub(0, &piece.text).len() + 3;
            let head = seams::floor_boundary(&piece.text, self.options.stub_keep(pointer));
            piece.stub = self.shorter(stub(head, &piece.text), &piece.text);
        }
        if self.options.may_stub() && piece.text.len() > BARE_ABOVE {
            piece.bare = self.shorter(bare(piece.text.len()), &piece.text);
        }
        piece
    }

    fn shorter(&self, text: String, than: &str) -> Option<(Box<str>, usize)> {
        (text.len() < than.len()).then(|| {
            let tokens = self.count(&text);
            (text.into(), tokens)
        })
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

pub fn stub_arguments(id: &str, head: usize, text: &str) -> String {
    let mut out = Vec::with_capacity(head + 96);
    out.extend_from_slice(b"{\"_shortened\":");
    super::wire::write_string(
        &mut out,
        &format!("{id}, first {head} of {} bytes", text.len()),
    );
    out.extend_from_slice(b",\"_head\":");
    super::wire::write_string(&mut out, &text[..head]);
    out.push(b'}');
    String::from_utf8(out).unwrap_or_default()
}

fn bare_arguments(id: &str, len: usize) -> String {
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

#[derive(Clone, Debug)]
struct Piece<'a> {
    text: Cow<'a, str>,
    tokens: usize,
    stub: Option<(Box<str>, usize)>,
    bare: Option<(Box<str>, usize)>,
}

impl Piece<'_> {
    fn at(&self, level: Level) -> (&str, usize) {
        let short = match level {
            Level::Full => None,
            Level::Stub => self.stub.as_ref(),
            Level::Bare | Level::Out => self.bare.as_ref().or(self.stub.as_ref()),
        };
        match short {
            Some((text, tokens)) => (text, *tokens),
            None => (&self.text, self.tokens),
        }
    }

    fn into_owned(self) -> Piece<'static> {
        Piece {
            text: Cow::Owned(self.text.into_owned()),
            tokens: self.tokens,
            stub: self.stub,
            bare: self.bare,
        }
    }

    fn has(&self, level: Level) -> bool {
        match level {
            Level::Stub => self.stub.is_some(),
            Level::Bare => self.bare.is_some(),
            _ => false,
        }
    }
}

fn finished(
    kind: UnitKind,
    metas: Vec<Meta>,
    full: Messages,
    stub: Option<Messages>,
    bare: Option<Messages>,
) -> Unit {
    let boxed = |form: Option<Messages>| form.map(|messages| Box::new(Form::new(messages)));
    Unit {
        kind,
        level: Level::Full,
        metas,
        call_ids: Vec::new(),
        full: Form::new(full),
        stub: boxed(stub),
        bare: boxed(bare),
        reasoned: None,
        messages: usize::from(kind == UnitKind::User),
        has_calls: false,
        unanswered: false,
        sent: false,
    }
}

/// A user entry, a notification, a marker, or a result that belongs to no open call.
pub fn single(context: &mut Context<'_>, record: &Record<'_>, meta: Meta) -> Unit {
    let verbatim = context.options.verbatim;
    let safe = |text: &str| -> String {
        if verbatim {
            text.to_owned()
        } else {
            seams::neutralize(text).into_owned()
        }
    };
    let (kind, text) = match record.kind {
        Kind::User if record.content.trim().is_empty() && record.parts.is_empty() => {
            (UnitKind::User, Cow::Borrowed(EMPTY_USER))
        }
        Kind::User => (UnitKind::User, Cow::Borrowed(&*record.content)),
        Kind::Marker => (
            UnitKind::Marker,
            Cow::Owned(format!(
                "[summary of earlier messages]\n{}",
                safe(&record.content)
            )),
        ),
        Kind::Result => (UnitKind::Notice, Cow::Owned(late_result(context, record))),
        _ => (
            UnitKind::Notice,
            Cow::Owned(safe(&format!("[{}] {}", record.tag, record.content))),
        ),
    };
    if kind == UnitKind::User && !record.parts.is_empty() {
        return with_parts(context, record, meta);
    }
    let piece = context.piece(text, &meta);
    let mut render = |level: Level| {
        let (text, tokens) = piece.at(level);
        let mut out = Messages::with_room(text.len());
        out.open(Role::User);
        out.text(text);
        context.close(&mut out, Role::User, tokens);
        out
    };
    let full = render(Level::Full);
    let stub = piece.has(Level::Stub).then(|| render(Level::Stub));
    let bare = piece.has(Level::Bare).then(|| render(Level::Bare));
    finished(kind, vec![meta], full, stub, bare)
}

fn late_result(context: &Context<'_>, record: &Record<'_>) -> String {
    let content = shown_result(context.options, &record.content);
    let name = &record.tool_name;
    let call = &record.call_id;
    let head = match (name.is_empty(), call.is_empty()) {
        (false, false) => format!("[late result of {name}, call {call}]"),
        (false, true) => format!("[late result of {name}]"),
        (true, false) => format!("[late result of call {call}]"),
        (true, true) => "[late result of an unknown call]".to_owned(),
    };
    let head = if context.options.verbatim {
        head
    } else {
        seams::neutralize(&head).into_owned()
    };
    format!("{head}\n{content}")
}

/// A user entry with images. Its stand-ins keep the text and point to the pictures.
fn with_parts(context: &mut Context<'_>, record: &Record<'_>, meta: Meta) -> Unit {
    let images = record
        .parts
        .iter()
        .filter(|part| matches!(part, Part::Image(_)))
        .count();
    let mut full = Messages::default();
    full.open(Role::User);
    full.parts(&record.parts);
    let texts: usize = record
        .parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => context.count(text),
            Part::Image(_) => context.options.image_tokens,
        })
        .sum();
    context.close(&mut full, Role::User, texts);
    let mut stub = None;
    let mut bare = None;
    if context.options.may_stub() {
        let text = if record.content.is_empty() {
            let texts: Vec<&str> = record
                .parts
                .iter()
                .filter_map(|part| match part {
                    Part::Text(text) => Some(&**text),
                    Part::Image(_) => None,
                })
                .collect();
            Cow::Owned(texts.join("\n"))
        } else {
            Cow::Borrowed(&*record.content)
        };
        let keep = seams::floor_boundary(&text, context.options.stub_keep(0));
        let id = &meta.id;
        let what = match images {
            0 => String::new(),
            1 => "1 image left out, ".to_owned(),
            count => format!("{count} images left out, "),
        };
        let mut render = |keep: usize| {
            let line = format!(
                "[shortened: entry {id}, {what}first {keep} of {} bytes of text]\n{}",
                text.len(),
                &text[..keep]
            );
            let mut out = Messages::default();
            let tokens = context.count(&line);
            out.open(Role::User);
            out.text(&line);
            context.close(&mut out, Role::User, tokens);
            (out.tokens() < full.tokens()).then_some(out)
        };
        if images > 0 || text.len() > keep {
            stub = render(keep);
            bare = render(0);
        }
    }
    finished(UnitKind::User, vec![meta], full, stub, bare)
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

struct Call<'a> {
    meta: Meta,
    /// Unique within the session; what the window shows.
    id: Arc<str>,
    /// As it is stored; what results name.
    stored_id: Cow<'a, str>,
    name: Cow<'a, str>,
    arguments: Piece<'a>,
    result: Option<(Meta, Piece<'a>)>,
}

/// The last exchange, which may still grow: further text, calls, results.
#[derive(Default)]
pub struct Live<'a> {
    texts: Vec<(Meta, Piece<'a>)>,
    reasoning: String,
    calls: Vec<Call<'a>>,
}

impl<'a> Live<'a> {
    pub fn add_text(&mut self, context: &Context<'_>, record: Record<'a>, meta: Meta) {
        if !record.reasoning.is_empty() {
            if !self.reasoning.is_empty() {
                self.reasoning.push_str("\n\n");
            }
            self.reasoning.push_str(&record.reasoning);
        }
        let piece = context.piece(record.content, &meta);
        self.texts.push((meta, piece));
    }

    pub fn add_call(
        &mut self,
        context: &Context<'_>,
        record: Record<'a>,
        meta: Meta,
        id: Arc<str>,
    ) {
        let text = match record.content {
            Cow::Borrowed(raw) => seams::arguments(raw),
            Cow::Owned(raw) => Cow::Owned(seams::arguments(&raw).into_owned()),
        };
        self.calls.push(Call {
            arguments: context.argument_piece(text, &meta),
            meta,
            id,
            stored_id: record.call_id,
            name: record.tool_name,
            result: None,
        });
    }

    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    pub fn has_results(&self) -> bool {
        self.calls.iter().any(|call| call.result.is_some())
    }

    pub fn answered(&self) -> bool {
        self.has_calls() && self.calls.iter().all(|call| call.result.is_some())
    }

    /// Gives the result to the call it answers; `Some(record)` back when there is none.
    pub fn add_result(
        &mut self,
        context: &Context<'_>,
        record: Record<'a>,
        meta: Meta,
    ) -> Option<(Record<'a>, Meta)> {
        let wanted = self.calls.iter_mut().find(|call| {
            call.result.is_none()
                && if record.call_id.is_empty() {
                    record.tool_name.is_empty() || record.tool_name == call.name
                } else {
                    record.call_id == call.stored_id
                }
        });
        let Some(call) = wanted else {
            return Some((record, meta));
        };
        let text = match record.content {
            Cow::Borrowed(raw) => shown_result(context.options, raw),
            Cow::Owned(raw) => Cow::Owned(shown_result(context.options, &raw).into_owned()),
        };
        let piece = context.piece(text, &meta);
        call.result = Some((meta, piece));
        None
    }

    pub fn into_owned(self) -> Live<'static> {
        Live {
            texts: self
                .texts
                .into_iter()
                .map(|(meta, piece)| (meta, piece.into_owned()))
                .collect(),
            reasoning: self.reasoning,
            calls: self
                .calls
                .into_iter()
                .map(|call| Call {
                    meta: call.meta,
                    id: call.id,
                    stored_id: Cow::Owned(call.stored_id.into_owned()),
                    name: Cow::Owned(call.name.into_owned()),
                    arguments: call.arguments.into_owned(),
                    result: call.result.map(|(meta, piece)| (meta, piece.into_owned())),
                })
                .collect(),
        }
    }

    /// The unit as it stands now.
    pub fn render(&self, context: &mut Context<'_>) -> Unit {
        let mut metas: Vec<Meta> = Vec::with_capacity(self.texts.len() + 2 * self.calls.len());
        metas.extend(self.texts.iter().map(|(meta, _)| meta.clone()));
        metas.extend(self.calls.iter().map(|call| call.meta.clone()));
        metas.extend(
            self.calls
                .iter()
                .filter_map(|call| call.result.as_ref().map(|(meta, _)| meta.clone())),
        );
        let any = |level: Level| {
            self.texts.iter().any(|(_, piece)| piece.has(level))
                || self.calls.iter().any(|call| {
                    call.arguments.has(level)
                        || call
                            .result
                            .as_ref()
                            .is_some_and(|(_, piece)| piece.has(level))
                })
        };
        let full = self.messages(context, Level::Full, false);
        let stub = any(Level::Stub).then(|| self.messages(context, Level::Stub, false));
        let stub_tokens = stub.as_ref().unwrap_or(&full).tokens();
        let bare = (any(Level::Bare) && stub_tokens > context.options.bare_above_tokens())
            .then(|| self.messages(context, Level::Bare, false));
        let mut unit = finished(UnitKind::Exchange, metas, full, stub, bare);
        if context.options.reasoning && !self.reasoning.is_empty() {
            let reasoned = self.messages(context, Level::Full, true);
            unit.reasoned = Some(Box::new(Form::new(reasoned)));
        }
        unit.messages = usize::from(self.texts.iter().any(|(_, text)| !blank(&text.text)));
        unit.has_calls = self.has_calls();
        unit.call_ids = self.calls.iter().map(|call| call.id.clone()).collect();
        unit.unanswered = self.has_calls() && !self.answered();
        unit
    }

    fn messages(&self, context: &mut Context<'_>, level: Level, reasoned: bool) -> Messages {
        let size: usize = self
            .calls
            .iter()
            .map(|call| {
                let result = call
                    .result
                    .as_ref()
                    .map_or(0, |(_, piece)| piece.at(level).0.len());
                result + call.arguments.at(level).0.len() + 256
            })
            .sum();
        let texts: usize = self
            .texts
            .iter()
            .map(|(_, piece)| piece.at(level).0.len() + 2)
            .sum();
        let mut out = Messages::with_room(size + texts);
        let texts: Vec<(&str, usize)> = self
            .texts
            .iter()
            .map(|(_, piece)| piece.at(level))
            .filter(|(text, _)| !blank(text))
            .collect();
        let (mut text, mut tokens): (Cow<'_, str>, usize) = match texts.as_slice() {
            [] => (Cow::Borrowed(""), 0),
            [(text, tokens)] => (Cow::Borrowed(*text), *tokens),
            many => {
                let texts: Vec<&str> = many.iter().map(|(text, _)| *text).collect();
                let joined = texts.join("\n\n");
                let tokens = context.count(&joined);
                (Cow::Owned(joined), tokens)
            }
        };
        if text.is_empty() && self.calls.is_empty() {
            return out;
        }
        let heredoc = context.options.heredoc;
        if heredoc && !self.calls.is_empty() {
            let mut whole = text.into_owned();
            for call in &self.calls {
                if !whole.is_empty() && !whole.ends_with('\n') {
                    whole.push('\n');
                }
                whole.push_str(&seams::render_call(&call.name, call.arguments.at(level).0));
            }
            whole.truncate(whole.trim_end().len());
            tokens = context.count(&whole);
            text = Cow::Owned(whole);
        }
        out.open(Role::Assistant);
        out.text(&text);
        if reasoned {
            out.field("reasoning_content", &self.reasoning);
            if context.options.count_reasoning {
                tokens += context.count(&self.reasoning);
            }
        }
        if !heredoc && !self.calls.is_empty() {
            for (index, call) in self.calls.iter().enumerate() {
                let (arguments, cost) = call.arguments.at(level);
                out.call(
                    index,
                    &WireCall {
                        id: &call.id,
                        name: &call.name,
                        arguments,
                    },
                );
                tokens += cost + context.count_name(&call.name) + PER_CALL;
            }
            out.close_calls();
        }
        context.close(&mut out, Role::Assistant, tokens);
        for call in &self.calls {
            let shown = call.result.as_ref().map(|(_, piece)| piece.at(level));
            if heredoc {
                let text = format!(
                    "[result of {}]\n{}",
                    call.name,
                    shown.map_or(NO_RESULT, |(text, _)| text)
                );
                let tokens = context.count(&text);
                out.open(Role::User);
                out.text(&text);
                context.close(&mut out, Role::User, tokens);
                continue;
            }
            let (text, mut tokens) =
                shown.unwrap_or_else(|| (NO_RESULT, context.count_name(NO_RESULT)));
            out.open(Role::Tool);
            out.text(text);
            out.field("tool_call_id", &call.id);
            if !call.name.is_empty() {
                out.field("name", &call.name);
                tokens += context.count_name(&call.name);
            }
            context.close(&mut out, Role::Tool, tokens);
        }
        out
    }
}

fn blank(text: &str) -> bool {
    text.trim().is_empty()
}
