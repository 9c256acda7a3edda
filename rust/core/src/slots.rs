//! Sections of a tool result by name, and the placeholders that show them to the user.
//!
//! A section is `<name>…</name>`, closed by the first closing tag of that name; an unclosed or
//! mismatched tag is text. Sections inside a section count as well, to a depth of [`MAX_DEPTH`].

use std::borrow::Cow;

use memchr::{memchr, memchr_iter};
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

/// One section: where its tags and its text lie.
struct Section<'a> {
    name: &'a str,
    open: usize,
    text: std::ops::Range<usize>,
    close: usize,
}

struct Tag<'a> {
    name: &'a str,
    start: usize,
    end: usize,
    is_closing: bool,
    /// For an opening tag the index of the first closing tag of its name after it.
    closer: Option<usize>,
}

/// Sections of `result` and the whole without their tags.
///
/// ```
/// let slots = agentkit_core::slots::capture_slots("ran: <stdout>ok</stdout>");
/// assert_eq!(slots.output, "ran: ok");
/// assert_eq!(slots.sections, [("stdout", "ok")]);
/// ```
pub fn capture_slots(result: &str) -> Slots<'_> {
    let found = sections(result);
    if found.is_empty() {
        return Slots {
            output: Cow::Borrowed(result),
            sections: Vec::new(),
        };
    }
    let mut tags: Vec<std::ops::Range<usize>> = Vec::with_capacity(found.len() * 2);
    let mut at: FxHashMap<&str, usize> = FxHashMap::default();
    let mut named: Vec<(&str, &str)> = Vec::new();
    for section in &found {
        tags.push(section.open..section.text.start);
        tags.push(section.text.end..section.close);
        let text = &result[section.text.clone()];
        match at.get(section.name) {
            Some(&index) => named[index].1 = text,
            None => {
                at.insert(section.name, named.len());
                named.push((section.name, text));
            }
        }
    }
    tags.sort_unstable_by_key(|tag| tag.start);
    let mut output = String::with_capacity(result.len());
    let mut done = 0;
    for tag in tags {
        output.push_str(&result[done..tag.start]);
        done = tag.end;
    }
    output.push_str(&result[done..]);
    Slots {
        output: Cow::Owned(output),
        sections: named,
    }
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
pub fn expand_slots<'t, 's>(
    text: &'t str,
    lookup: impl Fn(&str) -> Option<&'s str>,
) -> Cow<'t, str> {
    let mut out = String::new();
    let mut done = 0;
    for (open, name) in placeholders_at(text) {
        if let Some(value) = lookup(name) {
            out.push_str(&text[done..open]);
            out.push_str(value);
            done = open + name.len() + 2;
        }
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

/// The names that stand in braces in `text`, in order.
pub fn placeholders(text: &str) -> impl Iterator<Item = &str> {
    placeholders_at(text).map(|(_, name)| name)
}

fn placeholders_at(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let bytes = text.as_bytes();
    memchr_iter(b'{', bytes).filter_map(move |open| {
        let end = open + 1 + name_length(&bytes[open + 1..]);
        (end > open + 1 && bytes.get(end) == Some(&b'}')).then(|| (open, &text[open + 1..end]))
    })
}

/// Every section of `text`, outer before inner.
fn sections(text: &str) -> Vec<Section<'_>> {
    let tags = tags(text);
    let mut found = Vec::new();
    // Ranges of tags still to be looked at, with their depth; an explicit stack, so no recursion.
    let mut todo = vec![(0..tags.len(), 1)];
    while let Some((range, depth)) = todo.pop() {
        let mut index = range.start;
        while index < range.end {
            let open = &tags[index];
            let closer = open.closer.filter(|closer| *closer < range.end);
            let Some(closer) = closer else {
                index += 1;
                continue;
            };
            let close = &tags[closer];
            found.push(Section {
                name: open.name,
                open: open.start,
                text: open.end..close.start,
                close: close.end,
            });
            if depth < MAX_DEPTH && closer > index + 1 {
                todo.push((index + 1..closer, depth + 1));
            }
            index = closer + 1;
        }
    }
    found.sort_unstable_by_key(|section| section.open);
    found
}

/// Opening and closing tags in order, opening ones linked to their closer.
fn tags(text: &str) -> Vec<Tag<'_>> {
    let bytes = text.as_bytes();
    let mut tags = Vec::new();
    let mut from = 0;
    while let Some(at) = memchr(b'<', &bytes[from..]) {
        let start = from + at;
        let is_closing = bytes.get(start + 1) == Some(&b'/');
        let name = start + 1 + usize::from(is_closing);
        let length = name_length(&bytes[name..]);
        let end = name + length;
        from = end.max(start + 1);
        if length > 0 && bytes.get(end) == Some(&b'>') {
            from = end + 1;
            tags.push(Tag {
                name: &text[name..end],
                start,
                end: end + 1,
                is_closing,
                closer: None,
            });
        }
    }
    if !tags.iter().any(|tag| tag.is_closing) {
        return Vec::new();
    }
    let mut next: FxHashMap<&str, usize> = FxHashMap::default();
    for index in (0..tags.len()).rev() {
        if tags[index].is_closing {
            next.insert(tags[index].name, index);
        } else {
            tags[index].closer = next.get(tags[index].name).copied();
        }
    }
    tags
}

/// Length of the name at the start of `bytes`: a letter or `_`, then word characters; 0 for none.
fn name_length(bytes: &[u8]) -> usize {
    if !bytes
        .first()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_')
    {
        return 0;
    }
    bytes
        .iter()
        .position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
        .unwrap_or(bytes.len())
}
