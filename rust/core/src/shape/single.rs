//! Units of one entry: a user's message, a notification, a marker, a result that belongs to no open call.

use std::borrow::Cow;

use super::names::Names;
use super::record::{Kind, Part, Record};
use super::seams;
use super::stand_in::{Context, EMPTY_USER, MARKER_HEAD, Piece, Sort, shown_result};
use super::unit::{Body, Form, Level, Meta, Metas, Shorter, Unit, UnitKind};
use super::wire::{Messages, Role};

/// Renders the entry as the next message of `out`, whose messages begin at `base` of the log.
pub fn single(
    context: &mut Context<'_>,
    names: &Names,
    record: &Record<'_>,
    mut meta: Meta,
    out: &mut Messages,
    base: usize,
) -> Unit {
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
            Cow::Owned(format!("{MARKER_HEAD}{}", safe(&record.content))),
        ),
        Kind::Result => (UnitKind::Notice, Cow::Owned(late_result(context, record))),
        _ => (
            UnitKind::Notice,
            Cow::Owned(safe(&format!("[{}] {}", record.tag, record.content))),
        ),
    };
    let first = out.len();
    let before = out.tokens();
    let mut pending = false;
    let mut short = None;
    if kind == UnitKind::User && !record.parts.is_empty() {
        short = with_parts(context, names, record, &meta, out).map(Box::new);
    } else {
        let piece = Piece::new(context, text);
        pending = piece.is_large(context.options);
        meta.tokens = u32::try_from(piece.tokens).unwrap_or(u32::MAX);
        context.message(out, Role::User, &piece.text, piece.tokens);
    }
    let full = Form {
        body: Body::Log(base + first),
        count: 1,
        tokens: out.tokens() - before,
    };
    let mut unit = Unit::new(kind, Metas::One(meta), full);
    unit.pending = pending;
    unit.short = short;
    unit
}

/// The shorter forms of a unit of one text.
pub fn shorter_text(
    context: &mut Context<'_>,
    names: &Names,
    mut piece: Piece<'_>,
    meta: &Meta,
) -> Shorter {
    piece.prepare(context, names.get(meta.id), Sort::Text);
    let mut render = |level: Level| {
        piece.has(level).then(|| {
            let (text, tokens) = piece.at(level);
            let mut out = Messages::with_room(text.len());
            context.message(&mut out, Role::User, text, tokens);
            Form::new(out)
        })
    };
    Shorter {
        stub: render(Level::Stub),
        bare: render(Level::Bare),
    }
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
fn with_parts(
    context: &mut Context<'_>,
    names: &Names,
    record: &Record<'_>,
    meta: &Meta,
    out: &mut Messages,
) -> Option<Shorter> {
    let images = record
        .parts
        .iter()
        .filter(|part| matches!(part, Part::Image(_)))
        .count();
    let before = out.tokens();
    out.open(Role::User);
    out.parts(&record.parts);
    let texts: usize = record
        .parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => context.count(text),
            Part::Image(_) => context.options.image_tokens,
        })
        .sum();
    context.close(out, Role::User, texts);
    let full = out.tokens() - before;
    if !context.options.may_stub() {
        return None;
    }
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
    let id = names.get(meta.id);
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
        context.message(&mut out, Role::User, &line, tokens);
        (out.tokens() < full).then(|| Form::new(out))
    };
    (images > 0 || text.len() > keep).then(|| Shorter {
        stub: render(keep),
        bare: render(0),
    })
}
