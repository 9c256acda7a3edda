//! Exchanges: the assistant's text, its calls and their results, from the first entry to the last result.

use std::borrow::Cow;
use std::mem::take;

use super::names::Names;
use super::record::Record;
use super::seams;
use super::stand_in::{Context, NO_RESULT, Piece, Sort, shown_result};
use super::unit::{Body, Form, Level, Meta, Metas, Shorter, Unit, UnitKind};
use super::wire::{Messages, PER_CALL, Role, WireCall};

pub struct Call<'a> {
    pub meta: Meta,
    /// As it is stored; what results name.
    pub stored_id: Cow<'a, str>,
    pub name: Cow<'a, str>,
    pub arguments: Piece<'a>,
    pub result: Option<(Meta, Piece<'a>)>,
}

/// The last exchange, which may still grow: further text, calls, results.
#[derive(Default)]
pub struct Live<'a> {
    pub texts: Vec<(Meta, Piece<'a>)>,
    pub reasoning: String,
    pub calls: Vec<Call<'a>>,
}

fn counted(mut meta: Meta, piece: &Piece<'_>) -> Meta {
    meta.tokens = u32::try_from(piece.tokens).unwrap_or(u32::MAX);
    meta
}

impl<'a> Live<'a> {
    /// Takes the record's texts, as `add_call` and `add_result` do: a record is too large to be moved about.
    pub fn add_text(&mut self, context: &Context<'_>, record: &mut Record<'a>, meta: Meta) {
        if !record.reasoning.is_empty() {
            if !self.reasoning.is_empty() {
                self.reasoning.push_str("\n\n");
            }
            self.reasoning.push_str(&record.reasoning);
        }
        let piece = Piece::new(context, take(&mut record.content));
        self.texts.push((counted(meta, &piece), piece));
    }

    /// `meta.call`: the call's id as the window shows it, unique within the session.
    pub fn add_call(&mut self, context: &Context<'_>, record: &mut Record<'a>, meta: Meta) {
        let text = match take(&mut record.content) {
            Cow::Borrowed(raw) => seams::arguments(raw),
            Cow::Owned(raw) => Cow::Owned(seams::arguments(&raw).into_owned()),
        };
        let arguments = Piece::new(context, text);
        self.calls.push(Call {
            meta: counted(meta, &arguments),
            arguments,
            stored_id: take(&mut record.call_id),
            name: take(&mut record.tool_name),
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

    /// Gives the result to the call it answers; false where there is none.
    pub fn add_result(
        &mut self,
        context: &Context<'_>,
        record: &mut Record<'a>,
        meta: Meta,
    ) -> bool {
        let wanted = self.calls.iter_mut().find(|call| {
            call.result.is_none()
                && if record.call_id.is_empty() {
                    record.tool_name.is_empty() || record.tool_name == call.name
                } else {
                    record.call_id == call.stored_id
                }
        });
        let Some(call) = wanted else {
            return false;
        };
        let text = match take(&mut record.content) {
            Cow::Borrowed(raw) => shown_result(context.options, raw),
            Cow::Owned(raw) => Cow::Owned(shown_result(context.options, &raw).into_owned()),
        };
        let piece = Piece::new(context, text);
        call.result = Some((counted(meta, &piece), piece));
        true
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
                    stored_id: Cow::Owned(call.stored_id.into_owned()),
                    name: Cow::Owned(call.name.into_owned()),
                    arguments: call.arguments.into_owned(),
                    result: call.result.map(|(meta, piece)| (meta, piece.into_owned())),
                })
                .collect(),
        }
    }

    /// Begins anew, with the room there is.
    pub fn clear(&mut self) {
        self.texts.clear();
        self.reasoning.clear();
        self.calls.clear();
    }

    /// Whether the shorter forms can be made from the messages alone, later: see `shorten`.
    pub fn is_plain(&self, heredoc: bool) -> bool {
        let [.., last] = self.texts.as_slice() else {
            return self.answered() && !heredoc;
        };
        self.texts.len() == 1
            && (last.1.text.is_empty() || !blank(&last.1.text))
            && (self.calls.is_empty() || (self.answered() && !heredoc))
    }

    /// The unit as it stands now, its messages written to `out`, whose messages begin at `base` of the log.
    pub fn render(
        &self,
        context: &mut Context<'_>,
        names: &Names,
        out: &mut Messages,
        base: usize,
    ) -> Unit {
        let mut metas: Vec<Meta> = Vec::with_capacity(self.texts.len() + 2 * self.calls.len());
        metas.extend(self.texts.iter().map(|(meta, _)| meta));
        metas.extend(self.calls.iter().map(|call| &call.meta));
        let results = self.calls.iter().filter_map(|call| call.result.as_ref());
        metas.extend(results.map(|(meta, _)| meta));
        let metas = match metas.as_slice() {
            [meta] => Metas::One(*meta),
            _ => Metas::Many(metas.into_boxed_slice()),
        };
        let (first, before) = (out.len(), out.tokens());
        self.write(context, names, Level::Full, false, out);
        let full = Form {
            body: Body::Log(base + first),
            count: out.len() - first,
            tokens: out.tokens() - before,
        };
        let mut unit = Unit::new(UnitKind::Exchange, metas, full);
        if context.options.reasoning && !self.reasoning.is_empty() {
            let mut reasoned = Messages::default();
            self.write(context, names, Level::Full, true, &mut reasoned);
            unit.reasoned = Some(Box::new(Form::new(reasoned)));
        }
        let options = context.options;
        unit.pending = self.texts.iter().any(|(_, piece)| piece.is_large(options))
            || self.calls.iter().any(|call| {
                call.arguments.is_large(options)
                    || call
                        .result
                        .as_ref()
                        .is_some_and(|(_, piece)| piece.is_large(options))
            });
        unit.messages = u32::from(self.texts.iter().any(|(_, text)| !blank(&text.text)));
        unit.has_calls = self.has_calls();
        unit.unanswered = self.has_calls() && !self.answered();
        unit
    }

    /// The shorter forms, where there are any.
    pub fn shorter(&mut self, context: &mut Context<'_>, names: &Names, full: usize) -> Shorter {
        for (meta, piece) in &mut self.texts {
            piece.prepare(context, names.get(meta.id), Sort::Text);
        }
        for call in &mut self.calls {
            call.arguments
                .prepare(context, names.get(call.meta.id), Sort::Arguments);
            if let Some((meta, piece)) = &mut call.result {
                piece.prepare(context, names.get(meta.id), Sort::Text);
            }
        }
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
        let mut render = |level: Level| {
            let mut out = Messages::default();
            self.write(context, names, level, false, &mut out);
            Form::new(out)
        };
        let stub = any(Level::Stub).then(|| render(Level::Stub));
        let tokens = stub.as_ref().map_or(full, |stub| stub.tokens);
        let bare = any(Level::Bare).then(|| render(Level::Bare));
        Shorter {
            stub,
            bare: bare.filter(|_| tokens > context.options.bare_above_tokens()),
        }
    }

    fn write(
        &self,
        context: &mut Context<'_>,
        names: &Names,
        level: Level,
        reasoned: bool,
        out: &mut Messages,
    ) {
        let mut texts = self
            .texts
            .iter()
            .map(|(_, piece)| piece.at(level))
            .filter(|(text, _)| !blank(text));
        let (mut text, mut tokens) = match (texts.next(), texts.next()) {
            (None, _) => (Cow::Borrowed(""), 0),
            (Some((text, tokens)), None) => (Cow::Borrowed(text), tokens),
            (Some((first, _)), Some((second, _))) => {
                let mut joined = format!("{first}\n\n{second}");
                for (text, _) in texts {
                    joined.push_str("\n\n");
                    joined.push_str(text);
                }
                let tokens = context.count(&joined);
                (Cow::Owned(joined), tokens)
            }
        };
        if text.is_empty() && self.calls.is_empty() {
            return;
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
                        id: names.get(call.meta.call),
                        name: &call.name,
                        arguments,
                    },
                );
                tokens += cost + context.count_name(&call.name) + PER_CALL;
            }
            out.close_calls();
        }
        context.close(out, Role::Assistant, tokens);
        for call in &self.calls {
            let shown = call.result.as_ref().map(|(_, piece)| piece.at(level));
            if heredoc {
                let text = format!(
                    "[result of {}]\n{}",
                    call.name,
                    shown.map_or(NO_RESULT, |(text, _)| text)
                );
                let tokens = context.count(&text);
                context.message(out, Role::User, &text, tokens);
                continue;
            }
            let (text, mut tokens) =
                shown.unwrap_or_else(|| (NO_RESULT, context.count_name(NO_RESULT)));
            out.open(Role::Tool);
            out.text(text);
            out.field("tool_call_id", names.get(call.meta.call));
            if !call.name.is_empty() {
                out.field("name", &call.name);
                tokens += context.count_name(&call.name);
            }
            context.close(out, Role::Tool, tokens);
        }
    }
}

fn blank(text: &str) -> bool {
    text.trim_start().is_empty()
}
