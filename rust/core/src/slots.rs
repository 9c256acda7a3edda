//! Sections of a tool result by name, and the placeholders that show them to the user.
//!
//! A section is `<name>…</name>`, closed by the first closing tag of that name; an unclosed or
//! mismatched tag is text. Sections inside a section count as well, to a depth of [`MAX_DEPTH`].

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::ops::Range;

use memchr::memchr_iter;
use rustc_hash::FxHashMap;

/// The name of the whole result.
pub const OUTPUT: &str = "OUTPUT";

/// Deeper sections stay text. It bounds the work: each level is looked at once.
pub const MAX_DEPTH: usize = 8;

/// What `{OUTPUT}` and `{name}` stand for after one tool result.
#[derive(Debug, PartialEq, Eq)]
pub struct Slots<'a> {
    /// The whole, without the tags of its sections.
    pub output: Cow<'a, str>,
    /// Sections by name in order of first appearance; of several of one name the last counts. A value
    /// is the text between the tags as it stands, tags of inner sections included.
    pub sections: Vec<(&'a str, &'a str)>,
}

/// One section: its name, and where its tags and its text lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    pub name: &'a str,
    open: usize,
    pub text: Range<usize>,
    close: usize,
}

/// A tag of a section, `<name>` or `</name>`.
struct Tag {
    start: usize,
    end: usize,
    /// For an opening tag the index of the first closing tag of its name after it, or [`OPEN`].
    closer: usize,
}

impl Tag {
    fn name<'t>(&self, text: &'t str) -> &'t str {
        let mark = if self.closer == CLOSING { 2 } else { 1 };
        &text[self.start + mark..self.end - 1]
    }
}

/// In place of an index: an opening tag without a closer; a closing tag.
const OPEN: usize = usize::MAX;
const CLOSING: usize = usize::MAX - 1;

/// Sections of `result` and the whole without their tags.
///
/// ```
/// let slots = agentkit_core::slots::capture_slots("ran: <stdout>ok</stdout>");
/// assert_eq!(slots.output, "ran: ok");
/// assert_eq!(slots.sections, [("stdout", "ok")]);
/// ```
pub fn capture_slots(result: &str) -> Slots<'_> {
    let found = sections(result);
    let mut places: FxHashMap<&str, usize> = FxHashMap::default();
    let mut named: Vec<(&str, &str)> = Vec::new();
    for section in &found {
        let text = &result[section.text.clone()];
        match places.entry(section.name) {
            Entry::Occupied(place) => named[*place.get()].1 = text,
            Entry::Vacant(place) => {
                place.insert(named.len());
                named.push((section.name, text));
            }
        }
    }
    let output = if found.is_empty() {
        Cow::Borrowed(result)
    } else {
        let mut output = String::with_capacity(length_without_tags(result, &found));
        without_tags(result, &found, |piece| output.push_str(piece));
        Cow::Owned(output)
    };
    Slots {
        output,
        sections: named,
    }
}

/// Bytes of what [`without_tags`] gives.
pub fn length_without_tags(text: &str, sections: &[Section<'_>]) -> usize {
    let tags = |section: &Section<'_>| {
        section.text.start - section.open + section.close - section.text.end
    };
    text.len() - sections.iter().map(tags).sum::<usize>()
}

/// Gives to `push` the pieces of `text` without the tags of `sections`, which are all those that [`sections`] finds in it.
pub fn without_tags<'t>(text: &'t str, sections: &[Section<'_>], mut push: impl FnMut(&'t str)) {
    let mut done = 0;
    // Ends of the sections that are open, the innermost last.
    let mut open: Vec<Range<usize>> = Vec::new();
    let mut leave_out = |tag: Range<usize>| {
        push(&text[done..tag.start]);
        done = tag.end;
    };
    for section in sections {
        while let Some(close) = open.pop_if(|close| close.end <= section.open) {
            leave_out(close);
        }
        leave_out(section.open..section.text.start);
        open.push(section.text.end..section.close);
    }
    while let Some(close) = open.pop() {
        leave_out(close);
    }
    push(&text[done..]);
}

/// Names of the sections of `text`, sorted, each once.
pub fn section_names(text: &str) -> Vec<&str> {
    let mut names: Vec<&str> = sections(text).iter().map(|section| section.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// `text` with `{name}` replaced wherever `lookup` knows the name; borrowed where nothing is replaced.
///
/// What is put in is not expanded again; every other brace stays.
pub fn expand_slots<'t, V: AsRef<str>>(
    text: &'t str,
    mut lookup: impl FnMut(&'t str) -> Option<V>,
) -> Cow<'t, str> {
    let mut out = String::new();
    let mut done = 0;
    each_placeholder(text, |range, name| {
        if let Some(value) = lookup(name) {
            if done == 0 {
                out.reserve(text.len() + text.len() / 16);
            }
            out.push_str(&text[done..range.start]);
            out.push_str(value.as_ref());
            done = range.end;
        }
    });
    if done == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

fn each_placeholder<'t>(text: &'t str, mut found: impl FnMut(Range<usize>, &'t str)) {
    let bytes = text.as_bytes();
    for open in memchr_iter(b'{', bytes) {
        let start = open + 1;
        let end = start + name_length(&bytes[start..]);
        if end > start && bytes.get(end) == Some(&b'}') {
            found(open..end + 1, &text[start..end]);
        }
    }
}

/// A placeholder, and which of some values stands in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placeholder {
    range: Range<usize>,
    value: usize,
}

/// The placeholders of `text` whose name `value_of` knows.
pub fn placeholders<'t>(
    text: &'t str,
    mut value_of: impl FnMut(&'t str) -> Option<usize>,
) -> Vec<Placeholder> {
    let mut places = Vec::new();
    each_placeholder(text, |range, name| {
        if let Some(value) = value_of(name) {
            places.push(Placeholder { range, value });
        }
    });
    places
}

/// Bytes of what [`expand`] gives.
pub fn expanded_length(text: &str, places: &[Placeholder], values: &[&str]) -> usize {
    let (old, new) = places.iter().fold((0, 0), |(old, new), place| {
        (old + place.range.len(), new + values[place.value].len())
    });
    text.len() - old + new
}

/// Gives to `push` the pieces of `text` with `values` for its placeholders.
pub fn expand<'t>(
    text: &'t str,
    places: &[Placeholder],
    values: &[&'t str],
    mut push: impl FnMut(&'t str),
) {
    let mut done = 0;
    for place in places {
        push(&text[done..place.range.start]);
        push(values[place.value]);
        done = place.range.end;
    }
    push(&text[done..]);
}

/// Every section of `text`, outer before inner; several may have one name.
pub fn sections(text: &str) -> Vec<Section<'_>> {
    let tags = tags(text);
    let mut found = Vec::with_capacity(tags.len() / 2);
    // Ranges of tags still to be looked at, with their depth; an explicit stack, so no recursion. What is inside a
    // section comes before what is after it, so that sections come in the order of the text.
    let mut todo = vec![(0..tags.len(), 1)];
    while let Some((range, depth)) = todo.pop() {
        let mut index = range.start;
        while index < range.end {
            let open = &tags[index];
            if open.closer >= range.end {
                index += 1;
                continue;
            }
            let close = &tags[open.closer];
            found.push(Section {
                name: open.name(text),
                open: open.start,
                text: open.end..close.start,
                close: close.end,
            });
            let inside = index + 1..open.closer;
            index = open.closer + 1;
            if depth < MAX_DEPTH && !inside.is_empty() {
                todo.push((index..range.end, depth));
                todo.push((inside, depth + 1));
                break;
            }
        }
    }
    found
}

/// Opening and closing tags in order, opening ones linked to their closer.
fn tags(text: &str) -> Vec<Tag> {
    let bytes = text.as_bytes();
    let mut tags: Vec<Tag> = Vec::new();
    // Whether every opening tag so far is followed by its own closing tag, as most are.
    let mut plain = true;
    let mut closing = 0;
    // No name holds a `<`, so none of them is passed over.
    for start in memchr_iter(b'<', bytes) {
        let is_closing = bytes.get(start + 1) == Some(&b'/');
        let name = start + 1 + usize::from(is_closing);
        let length = name_length(&bytes[name..]);
        let end = name + length;
        if length > 0 && bytes.get(end) == Some(&b'>') {
            let place = tags.len();
            if let Some(before) = tags.last_mut().filter(|before| before.closer == OPEN) {
                if is_closing && before.name(text) == &text[name..end] {
                    before.closer = place;
                } else {
                    plain = false;
                }
            }
            closing += usize::from(is_closing);
            tags.push(Tag {
                start,
                end: end + 1,
                closer: if is_closing { CLOSING } else { OPEN },
            });
        }
    }
    if closing == 0 {
        return Vec::new();
    }
    if !plain {
        link(text, &mut tags, closing);
    }
    tags
}

/// Links each opening tag that is not yet with the first closing tag of its name after it.
fn link(text: &str, tags: &mut [Tag], closing: usize) {
    let mut next: FxHashMap<&str, usize> = FxHashMap::default();
    next.reserve(closing);
    for index in (0..tags.len()).rev() {
        match tags[index].closer {
            CLOSING => {
                next.insert(tags[index].name(text), index);
            }
            OPEN => {
                let closer = next.get(tags[index].name(text)).copied();
                tags[index].closer = closer.unwrap_or(OPEN);
            }
            _ => {}
        }
    }
}

/// Bytes that a name may hold.
const WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_alphanumeric() || byte == b'_';
        byte += 1;
    }
    table
};

/// Length of the name at the start of `bytes`: a letter or `_`, then word characters; 0 for none.
fn name_length(bytes: &[u8]) -> usize {
    match bytes.first() {
        Some(byte) if WORD[usize::from(*byte)] && !byte.is_ascii_digit() => bytes
            .iter()
            .position(|byte| !WORD[usize::from(*byte)])
            .unwrap_or(bytes.len()),
        _ => 0,
    }
}
