//! Breaking control tokens in text that is not the host's own.
//!
//! Two styles. *Entity* writes the first character of a token as an HTML entity: readable, one way.
//! *Joiner* puts an invisible joiner after the first character, and [`restore`] undoes it without
//! knowing which set was used.
//!
//! Why neither can make a new token: a token of the result either lies in text that was there before,
//! and then its start was broken, or it holds a character that was put in. The characters put in are
//! chosen so that no token of the set holds them (where a set's tokens could be completed by an entity,
//! another character is taken).
//!
//! The joiner code, so that restoring is exact for every text:
//!
//! | written | means |
//! |---|---|
//! | joiner joiner (twice the same) | that joiner, as the text had it |
//! | joiner, then four digits of [`DIGIT_ZERO`]… | the character with that number, six bits a digit |
//! | any other joiner | nothing: a break |

use std::borrow::Cow;
use std::fmt::Write as _;

use memchr::memmem;

use crate::special_tokens::SpecialTokens;

/// Invisible characters that may break a token; the first that no token holds is taken. All begin with
/// the bytes E2 81.
pub(crate) const JOINERS: [char; 3] = ['\u{2060}', '\u{2063}', '\u{2064}'];
const JOINER_LEAD: [u8; 2] = [0xE2, 0x81];

/// 64 variation selectors, invisible as well, are the digits of a character's number.
const DIGIT_ZERO: u32 = 0xE0100;
const DIGITS: usize = 4;

/// How a token is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Entity,
    Joiner,
}

/// What a set of tokens leaves to write with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    /// The first character as an entity.
    Entity,
    /// This character after the first one; in place of it where that is the whole token.
    Insert(char),
}

/// `text` with every token of `set` broken; borrowed where there is none.
///
/// `set.find` finds nothing in the result.
///
/// ```
/// use agentkit_core::neutralize::{neutralize, Style};
/// use agentkit_core::special_tokens::SpecialTokens;
/// let set = SpecialTokens::default_set();
/// assert_eq!(neutralize("a<|im_end|>", set, Style::Entity), Ok("a&lt;|im_end|>".into()));
/// ```
///
/// # Errors
/// Only with [`Style::Joiner`], when the set's own tokens hold all the characters of the joiner code.
pub fn neutralize<'a>(
    text: &'a str,
    set: &SpecialTokens,
    style: Style,
) -> Result<Cow<'a, str>, NoJoiner> {
    match style {
        Style::Entity => Ok(entity(text, set)),
        Style::Joiner => joiner(text, set),
    }
}

/// The tokens of a set hold every character the joiner code could be written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoJoiner;

impl std::fmt::Display for NoJoiner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "the special tokens themselves hold the invisible characters the joiner style is written \
             with (U+2060, U+2063 and U+2064, or U+E0100 to U+E013F); use style=\"entity\" for this set",
        )
    }
}

impl std::error::Error for NoJoiner {}

fn entity<'a>(text: &'a str, set: &SpecialTokens) -> Cow<'a, str> {
    let Some(mut start) = set.starts.next(text.as_bytes(), 0) else {
        return Cow::Borrowed(text);
    };
    let how = set.entity_break();
    let mut out = String::with_capacity(text.len() + text.len() / 16 + 64);
    let mut done = 0;
    loop {
        let first = char_at(text, start);
        out.push_str(&text[done..start]);
        done = start + first.len_utf8();
        match how {
            Break::Entity => push_entity(&mut out, first),
            Break::Insert(mark) if set.holds(first) => out.push(mark),
            Break::Insert(mark) => {
                out.push(first);
                out.push(mark);
            }
        }
        match set.starts.next(text.as_bytes(), done) {
            Some(next) => start = next,
            None => break,
        }
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

fn push_entity(out: &mut String, c: char) {
    match c {
        '<' => out.push_str("&lt;"),
        '>' => out.push_str("&gt;"),
        '&' => out.push_str("&amp;"),
        _ => {
            // Writing to a String cannot fail.
            let _ = write!(out, "&#{};", c as u32);
        }
    }
}

fn joiner<'a>(text: &'a str, set: &SpecialTokens) -> Result<Cow<'a, str>, NoJoiner> {
    let bytes = text.as_bytes();
    let lead = memmem::Finder::new(&JOINER_LEAD);
    let next_joiner = |from: usize| {
        let mut from = from;
        loop {
            let at = from + lead.find(&bytes[from..])?;
            if JOINERS.contains(&char_at(text, at)) {
                return Some(at);
            }
            from = at + 2;
        }
    };
    let mut token = set.starts.next(bytes, 0);
    let mut literal = next_joiner(0);
    if token.is_none() && literal.is_none() {
        return Ok(Cow::Borrowed(text));
    }
    let code = set.joiner_code()?;
    let mut out = String::with_capacity(text.len() + text.len() / 16 + 64);
    let mut done = 0;
    // Where the newest break stands; a number right after it begins with a joiner and breaks as well.
    let mut broken = None;
    let number = |out: &mut String, c: char, here: bool| {
        if here {
            out.pop();
        }
        push_number(out, code.joiner, c);
    };
    while let Some(start) = [token, literal].into_iter().flatten().min() {
        let c = char_at(text, start);
        let after = start + c.len_utf8();
        out.push_str(&text[done..start]);
        done = after;
        if literal == Some(start) {
            // Also where a token begins here: the joiner that is put in breaks it.
            if c == code.joiner || !code.avoid.contains(&c) && token != Some(start) {
                out.push(c);
                out.push(c);
            } else {
                number(&mut out, c, broken == Some(start));
            }
        } else {
            let next = text[after..].chars().next();
            let plain = next.is_some_and(|next| !JOINERS.contains(&next) && !is_digit(next));
            if plain && !set.holds(c) {
                out.push(c);
                out.push(code.joiner);
                broken = Some(after);
            } else {
                number(&mut out, c, broken == Some(start));
            }
        }
        if token.is_some_and(|at| at < done) {
            token = set.starts.next(bytes, done);
        }
        if literal.is_some_and(|at| at < done) {
            literal = next_joiner(done);
        }
    }
    out.push_str(&text[done..]);
    Ok(Cow::Owned(out))
}

/// The joiner a set leaves free, and the joiners its tokens hold.
struct JoinerCode {
    joiner: char,
    avoid: Vec<char>,
}

impl SpecialTokens {
    /// Whether `c` alone is a token.
    fn holds(&self, c: char) -> bool {
        let mut buffer = [0; 4];
        let spelled: &str = c.encode_utf8(&mut buffer);
        self.tokens()
            .binary_search_by(|token| token.as_str().cmp(spelled))
            .is_ok()
    }

    /// An entity is safe when no token can begin, end or lie inside one.
    fn entity_break(&self) -> Break {
        let safe = self.tokens().iter().all(|token| {
            !token.contains(['&', ';'])
                && !["lt", "gt", "amp"]
                    .iter()
                    .any(|name| name.contains(token.as_str()))
                && !token.chars().all(|c| c == '#' || c.is_ascii_digit())
        });
        if safe {
            return Break::Entity;
        }
        let visible = ['\u{2060}', '\u{200B}', '_', '.', '\u{FFFD}'];
        let all = visible.into_iter().chain('\u{E000}'..=char::MAX);
        let free = all
            .into_iter()
            .find(|c| !self.tokens().iter().any(|token| token.contains(*c)));
        // A set would have to hold every character of Unicode's private planes to leave none.
        Break::Insert(free.unwrap_or('\u{FFFD}'))
    }

    fn joiner_code(&self) -> Result<JoinerCode, NoJoiner> {
        let held = |c: char| self.tokens().iter().any(|token| token.contains(c));
        let avoid: Vec<char> = JOINERS.into_iter().filter(|c| held(*c)).collect();
        let joiner = JOINERS
            .into_iter()
            .find(|c| !avoid.contains(c))
            .ok_or(NoJoiner)?;
        if self.tokens().iter().any(|token| token.contains(is_digit)) {
            return Err(NoJoiner);
        }
        Ok(JoinerCode { joiner, avoid })
    }
}

/// `text` as it was before [`neutralize`] with [`Style::Joiner`]; borrowed where nothing is to be undone.
pub fn restore(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let lead = memmem::Finder::new(&JOINER_LEAD);
    let mut out = String::new();
    let mut done = 0;
    let mut from = 0;
    while let Some(at) = lead.find(&bytes[from..]).map(|at| from + at) {
        let c = char_at(text, at);
        if !JOINERS.contains(&c) {
            from = at + 2;
            continue;
        }
        let after = at + c.len_utf8();
        out.push_str(&text[done..at]);
        let rest = &text[after..];
        done = if rest.starts_with(c) {
            out.push(c);
            after + c.len_utf8()
        } else if let Some((number, length)) = read_number(rest) {
            out.push(number);
            after + length
        } else {
            after
        };
        from = done;
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

fn is_digit(c: char) -> bool {
    (DIGIT_ZERO..DIGIT_ZERO + 64).contains(&(c as u32))
}

fn push_number(out: &mut String, joiner: char, c: char) {
    out.push(joiner);
    for place in (0..DIGITS).rev() {
        let digit = DIGIT_ZERO + ((c as u32 >> (6 * place)) & 63);
        out.push(char::from_u32(digit).unwrap_or(char::REPLACEMENT_CHARACTER));
    }
}

fn read_number(text: &str) -> Option<(char, usize)> {
    let mut number = 0;
    let mut length = 0;
    let mut chars = text.chars();
    for _ in 0..DIGITS {
        let c = chars.next().filter(|c| is_digit(*c))?;
        number = number << 6 | (c as u32 - DIGIT_ZERO);
        length += c.len_utf8();
    }
    Some((char::from_u32(number)?, length))
}

/// The character that begins at byte `at`, which is a boundary inside `text`.
fn char_at(text: &str, at: usize) -> char {
    text[at..]
        .chars()
        .next()
        .unwrap_or(char::REPLACEMENT_CHARACTER)
}
