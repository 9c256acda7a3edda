//! The reader of loose JSON: one forward scan that can stop at any byte, go on when more text has come,
//! and writes strict JSON only where the text is not strict already.
//!
//! Everything that reads arguments goes through this scanner (`loose_json`, `repair_json`, `check_arguments`,
//! heredoc calls, whole or streamed), so that they cannot disagree. No recursion: nesting is a stack
//! of flags with a limit.

use std::borrow::Cow;

use memchr::memchr;

use super::escape::{next_special, push_escape, push_string};
use super::fence::{Fence, Search};

/// Levels of nesting that are read. Python's own `json` gives up at the interpreter's recursion limit of
/// 1,000, less what is on the stack already: what passes here can be loaded there.
pub const MAX_DEPTH: usize = 900;

/// Digits of a whole number that are read. Python refuses to read more (`sys.set_int_max_str_digits`).
const MAX_WHOLE_DIGITS: usize = 4_300;

const LITERALS: [&str; 6] = ["true", "false", "null", "True", "False", "None"];

/// Which extensions of JSON are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Arguments of a heredoc call: everything, raw bodies too.
    Heredoc,
    /// Arguments of a native call: no raw bodies, and a bare word at the very end is no cut key.
    Repair,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The text ends too early.
    Truncated,
    /// The text is wrong where the fault lies.
    Malformed,
}

impl FaultKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
        }
    }
}

/// Why a text could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// Byte offset of the first byte that could not be read (for `Truncated`: the end of the text).
    pub at: usize,
    /// What was expected there, as the end of a sentence that begins "at byte 12: …".
    pub reason: &'static str,
    /// The quote of the string that the fault lies in.
    pub(crate) inside: Option<u8>,
}

/// What was not strict JSON, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs(u8);

impl Repairs {
    pub const FENCE: Self = Self(1);
    pub const UNQUOTED_KEY: Self = Self(2);
    pub const SINGLE_QUOTES: Self = Self(4);
    pub const PYTHON_LITERAL: Self = Self(8);
    pub const TRAILING_COMMA: Self = Self(16);
    pub const CONTROL_CHARACTER: Self = Self(32);
    pub const LONE_SURROGATE: Self = Self(64);
    pub const BODY: Self = Self(128);

    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        [
            (Self::FENCE, "markdown_fence"),
            (Self::UNQUOTED_KEY, "unquoted_key"),
            (Self::SINGLE_QUOTES, "single_quotes"),
            (Self::PYTHON_LITERAL, "python_literal"),
            (Self::TRAILING_COMMA, "trailing_comma"),
            (Self::CONTROL_CHARACTER, "control_character"),
            (Self::LONE_SURROGATE, "lone_surrogate"),
            (Self::BODY, "raw_body"),
        ]
        .into_iter()
        .filter(move |(repair, _)| self.0 & repair.0 != 0)
        .map(|(_, name)| name)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Progress {
    /// The text ends before the value does.
    More,
    /// The value is complete; `Scanner::end` is the first byte after it.
    Done,
    Fault(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    FirstValue,
    NextValue,
    FirstKey,
    NextKey,
    Colon,
    CommaOrClose,
    Done,
}

#[derive(Clone, Debug)]
enum Token {
    None,
    Word { start: usize, scan: usize },
    Quoted { scan: usize, quote: u8 },
    Opener { start: usize, scan: usize },
    Body { start: usize, fence: Fence },
}

enum Escape {
    Until(usize),
    Lone(usize),
    Quote,
    Cut,
    Bad,
}

pub(crate) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// White space as Python's `str.strip` knows it, which counts four separators of ASCII that Unicode's
/// property leaves out.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Bytes of bare keys, literals and numbers.
const WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let letter = byte as u8;
        table[byte] = letter.is_ascii_alphanumeric()
            || matches!(letter, b'_' | b'$' | b'.' | b'+' | b'-')
            || letter >= 0x80;
        byte += 1;
    }
    table
};

pub(crate) fn is_word(byte: u8) -> bool {
    WORD[usize::from(byte)]
}

/// A number as JSON spells it.
pub(crate) fn is_number(word: &[u8]) -> bool {
    fn digits(word: &[u8]) -> Option<&[u8]> {
        let count = word.iter().take_while(|byte| byte.is_ascii_digit()).count();
        (count > 0).then(|| &word[count..])
    }
    let word = word.strip_prefix(b"-").unwrap_or(word);
    let rest = match word {
        [b'0', rest @ ..] => Some(rest),
        _ => digits(word),
    };
    let rest = match rest {
        Some([b'.', fraction @ ..]) => digits(fraction),
        other => other,
    };
    let rest = match rest {
        Some([b'e' | b'E', b'+' | b'-', power @ ..] | [b'e' | b'E', power @ ..]) => digits(power),
        other => other,
    };
    rest.is_some_and(<[u8]>::is_empty)
}

/// A name that may stand without quotes as a key.
fn is_bare_key(word: &str) -> bool {
    if word
        .bytes()
        .all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
    {
        return true;
    }
    !word.starts_with(|first: char| first.is_numeric() || first == '-')
        && word
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | '-'))
}

/// The scan of one value, resumable.
#[derive(Clone, Debug)]
pub(crate) struct Scanner {
    dialect: Dialect,
    state: State,
    token: Token,
    /// One flag a level: whether it is an object.
    stack: Vec<bool>,
    pos: usize,
    comma: usize,
    /// Where the bare key begins whose colon has not come.
    bare_key: usize,
    start: usize,
    /// Strict JSON for `text[start..copied]`, where the text had to be changed.
    out: String,
    copied: usize,
    pub(crate) repairs: Repairs,
}

impl Scanner {
    /// A scan of the value that begins at byte `start`.
    pub(crate) fn new(dialect: Dialect, start: usize) -> Self {
        Self {
            dialect,
            state: State::Value,
            token: Token::None,
            stack: Vec::new(),
            pos: start,
            comma: 0,
            bare_key: start,
            start,
            out: String::new(),
            copied: start,
            repairs: Repairs::default(),
        }
    }

    pub(crate) fn end(&self) -> usize {
        self.pos
    }

    pub(crate) fn depth(&self) -> usize {
        self.stack.len()
    }

    /// The value as strict JSON, once it is `Done`. Borrowed where nothing had to change.
    pub(crate) fn strict(self, text: &str) -> Cow<'_, str> {
        if self.repairs.is_empty() {
            return Cow::Borrowed(&text[self.start..self.pos]);
        }
        let mut out = self.out;
        out.push_str(&text[self.copied..self.pos]);
        Cow::Owned(out)
    }

    /// Reads on. `text` is what was given before, with more at its end; `last` says that no more comes.
    pub(crate) fn advance(&mut self, text: &str, last: bool) -> Progress {
        match self.run(text, last) {
            Ok(true) => Progress::Done,
            // Nothing says that a bare word at the end is a key that was cut off.
            Ok(false) if last && self.dialect == Dialect::Repair && self.bare_key > self.start => {
                Progress::Fault(Fault {
                    kind: FaultKind::Malformed,
                    at: self.bare_key,
                    reason: "a quoted key was expected",
                    inside: None,
                })
            }
            Ok(false) if last => Progress::Fault(Fault {
                kind: FaultKind::Truncated,
                at: text.len(),
                reason: "the text ends inside the value",
                inside: None,
            }),
            Ok(false) => Progress::More,
            Err(fault) => Progress::Fault(fault),
        }
    }

    fn fault<T>(&self, at: usize, reason: &'static str) -> Result<T, Fault> {
        Err(Fault {
            kind: FaultKind::Malformed,
            at,
            reason,
            inside: None,
        })
    }

    /// `Ok(true)` when the value is complete, `Ok(false)` when the text ends first.
    fn run(&mut self, text: &str, last: bool) -> Result<bool, Fault> {
        let bytes = text.as_bytes();
        // The token that the text before ended in.
        let mut finished = match std::mem::replace(&mut self.token, Token::None) {
            Token::None => true,
            Token::Word { start, scan } => self.word(text, start, scan, last)?,
            Token::Quoted { scan, quote } => self.quoted(text, scan, quote)?,
            Token::Opener { start, scan } => self.opener(text, start, scan)?,
            Token::Body { start, fence } => self.body(text, start, fence),
        };
        while finished && self.state != State::Done {
            while bytes.get(self.pos).is_some_and(|&byte| is_blank(byte)) {
                self.pos += 1;
            }
            let Some(&byte) = bytes.get(self.pos) else {
                return Ok(false);
            };
            finished = self.step(text, byte, last)?;
        }
        Ok(finished)
    }

    /// Takes the byte at `pos`, where a token or a mark begins; `false` where the text ends inside the token.
    fn step(&mut self, text: &str, byte: u8, last: bool) -> Result<bool, Fault> {
        let at = self.pos;
        match (self.state, byte) {
            (State::Colon, b':') => {
                self.state = State::Value;
                self.bare_key = self.start;
                self.pos += 1;
            }
            (State::Colon, _) => return self.fault(at, "`:` was expected after the key"),
            (State::CommaOrClose, b',') => {
                self.comma = at;
                self.pos += 1;
                self.state = if self.in_object() {
                    State::NextKey
                } else {
                    State::NextValue
                };
            }
            (State::CommaOrClose | State::FirstKey | State::NextKey, b'}') if self.in_object() => {
                self.close(text);
            }
            (State::CommaOrClose | State::FirstValue | State::NextValue, b']')
                if !self.in_object() =>
            {
                self.close(text);
            }
            (State::CommaOrClose, _) if self.in_object() => {
                return self.fault(at, "`,` or `}` was expected");
            }
            (State::CommaOrClose, _) => return self.fault(at, "`,` or `]` was expected"),
            (_, b'"') => return self.quoted(text, at + 1, b'"'),
            (_, b'\'') => {
                self.splice(text, at, at + 1, "\"", Repairs::SINGLE_QUOTES);
                return self.quoted(text, at + 1, b'\'');
            }
            (_, byte) if is_word(byte) => return self.word(text, at, at, last),
            (State::FirstKey | State::NextKey, _) => return self.fault(at, "a key was expected"),
            (_, b'{') => self.open(true, State::FirstKey)?,
            (_, b'[') => self.open(false, State::FirstValue)?,
            (_, b'~' | b'`') if self.dialect == Dialect::Heredoc => {
                return self.opener(text, at, at);
            }
            _ => return self.fault(at, "a value was expected"),
        }
        Ok(true)
    }

    fn in_object(&self) -> bool {
        self.stack.last().copied().unwrap_or(false)
    }

    fn open(&mut self, object: bool, state: State) -> Result<(), Fault> {
        if self.stack.len() == MAX_DEPTH {
            return self.fault(self.pos, "values are nested too deep (900 levels are read)");
        }
        self.stack.push(object);
        self.pos += 1;
        self.state = state;
        Ok(())
    }

    fn close(&mut self, text: &str) {
        if matches!(self.state, State::NextKey | State::NextValue) {
            self.splice(
                text,
                self.comma,
                self.comma + 1,
                "",
                Repairs::TRAILING_COMMA,
            );
        }
        self.stack.pop();
        self.pos += 1;
        self.value_done();
    }

    fn value_done(&mut self) {
        self.state = if self.stack.is_empty() {
            State::Done
        } else {
            State::CommaOrClose
        };
    }

    fn key_or_value_done(&mut self) {
        if matches!(self.state, State::FirstKey | State::NextKey) {
            self.state = State::Colon;
        } else {
            self.value_done();
        }
    }

    /// Writes `with` for `text[from..to]`.
    fn splice(&mut self, text: &str, from: usize, to: usize, with: &str, repair: Repairs) {
        if self.out.is_empty() {
            // A page at once, but never the whole rest: it may hold many more calls.
            self.out.reserve((text.len() - self.start).min(4096) + 16);
        }
        self.out.push_str(&text[self.copied..from]);
        self.out.push_str(with);
        self.copied = to;
        self.repairs.add(repair);
    }

    /// A bare key, a literal or a number. It ends where a byte that cannot be part of it has come.
    fn word(&mut self, text: &str, start: usize, scan: usize, last: bool) -> Result<bool, Fault> {
        let rest = &text.as_bytes()[scan..];
        let end = scan
            + rest
                .iter()
                .position(|&byte| !is_word(byte))
                .unwrap_or(rest.len());
        let word = &text[start..end];
        if matches!(self.state, State::FirstKey | State::NextKey) {
            if end == text.len() {
                self.token = Token::Word { start, scan: end };
                self.bare_key = start;
                return Ok(false);
            }
            if !is_bare_key(word) {
                return self.fault(start, "a key was expected: a name or a quoted string");
            }
            self.bare_key = start;
            self.splice(text, start, start, "\"", Repairs::UNQUOTED_KEY);
            self.out.push_str(word);
            self.out.push('"');
            self.copied = end;
        } else {
            if end == text.len() && !(last && self.stack.is_empty()) {
                self.token = Token::Word { start, scan: end };
                if last && !begins_value(word) {
                    return self.fault(start, "no value begins like this");
                }
                return Ok(false);
            }
            match word {
                "true" | "false" | "null" => {}
                "True" => self.splice(text, start, end, "true", Repairs::PYTHON_LITERAL),
                "False" => self.splice(text, start, end, "false", Repairs::PYTHON_LITERAL),
                "None" => self.splice(text, start, end, "null", Repairs::PYTHON_LITERAL),
                _ if is_number(word.as_bytes()) => {
                    let digits = word.len() - usize::from(word.starts_with('-'));
                    if digits > MAX_WHOLE_DIGITS && !word.contains(['.', 'e', 'E']) {
                        return self.fault(start, "a whole number has more than 4,300 digits");
                    }
                }
                _ if end == text.len() && begins_value(word) => {
                    self.token = Token::Word { start, scan: end };
                    return Ok(false);
                }
                _ => {
                    return self.fault(
                        start,
                        "a value was expected: a string in quotes, a number, true, false, null, { or [",
                    );
                }
            }
        }
        self.pos = end;
        self.key_or_value_done();
        Ok(true)
    }

    fn quoted(&mut self, text: &str, mut scan: usize, quote: u8) -> Result<bool, Fault> {
        let bytes = text.as_bytes();
        loop {
            let at = next_special(bytes, scan, quote);
            scan = at;
            match bytes.get(at) {
                None => break,
                Some(&byte) if byte == quote => {
                    if quote == b'\'' {
                        self.splice(text, at, at + 1, "\"", Repairs::SINGLE_QUOTES);
                    }
                    self.pos = at + 1;
                    self.key_or_value_done();
                    return Ok(true);
                }
                Some(b'\\') => match read_escape(bytes, at, quote) {
                    Escape::Until(next) => scan = next,
                    Escape::Lone(next) => {
                        self.splice(text, at, next, "\\ufffd", Repairs::LONE_SURROGATE);
                        scan = next;
                    }
                    Escape::Quote => {
                        self.splice(text, at, at + 2, "'", Repairs::SINGLE_QUOTES);
                        scan = at + 2;
                    }
                    Escape::Cut => break,
                    Escape::Bad => {
                        return Err(Fault {
                            kind: FaultKind::Malformed,
                            at,
                            reason: "an unknown escape: a backslash in a quoted string is written \\\\",
                            inside: Some(quote),
                        });
                    }
                },
                Some(&byte) => {
                    let repair = if byte == b'"' {
                        Repairs::SINGLE_QUOTES
                    } else {
                        Repairs::CONTROL_CHARACTER
                    };
                    self.splice(text, at, at + 1, "", repair);
                    push_escape(&mut self.out, byte);
                    scan = at + 1;
                }
            }
        }
        self.token = Token::Quoted { scan, quote };
        Ok(false)
    }

    fn opener(&mut self, text: &str, start: usize, scan: usize) -> Result<bool, Fault> {
        let Some(offset) = memchr(b'\n', &text.as_bytes()[scan..]) else {
            self.token = Token::Opener {
                start,
                scan: text.len(),
            };
            return Ok(false);
        };
        let end = scan + offset;
        let Some(fence) = Fence::open(&text[start..end], end + 1) else {
            return self.fault(
                start,
                "a raw body opens with ~~~ and a tag, alone to the end of the line",
            );
        };
        Ok(self.body(text, start, fence))
    }

    fn body(&mut self, text: &str, start: usize, mut fence: Fence) -> bool {
        let Search::Found { end, after } = fence.find(text.as_bytes()) else {
            self.token = Token::Body { start, fence };
            return false;
        };
        let content = fence.content();
        self.splice(text, start, after, "", Repairs::BODY);
        push_string(&mut self.out, &text[content..end]);
        self.pos = after;
        self.key_or_value_done();
        true
    }
}

/// Whether more letters could make `word` a literal or a number.
fn begins_value(word: &str) -> bool {
    let mut longer = word.to_owned();
    longer.push('0');
    is_number(word.as_bytes())
        || is_number(longer.as_bytes())
        || LITERALS.iter().any(|literal| literal.starts_with(word))
}

/// The four hexadecimal digits at `at`; `Err(true)` where the text ends before they are all there.
fn read_hex(bytes: &[u8], at: usize) -> Result<u32, bool> {
    let mut value = 0;
    for index in at..at + 4 {
        let &byte = bytes.get(index).ok_or(true)?;
        let digit = char::from(byte).to_digit(16).ok_or(false)?;
        value = value * 16 + digit;
    }
    Ok(value)
}

fn read_escape(bytes: &[u8], at: usize, quote: u8) -> Escape {
    match bytes.get(at + 1) {
        None => Escape::Cut,
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Escape::Until(at + 2),
        Some(b'\'') if quote == b'\'' => Escape::Quote,
        Some(b'u') => match read_hex(bytes, at + 2) {
            Err(true) => Escape::Cut,
            Err(false) => Escape::Bad,
            Ok(0xd800..=0xdbff) => read_low_half(bytes, at + 6),
            Ok(0xdc00..=0xdfff) => Escape::Lone(at + 6),
            Ok(_) => Escape::Until(at + 6),
        },
        Some(_) => Escape::Bad,
    }
}

/// What follows the escape of a high surrogate.
fn read_low_half(bytes: &[u8], at: usize) -> Escape {
    match (bytes.get(at), bytes.get(at + 1)) {
        (None, _) | (Some(b'\\'), None) => Escape::Cut,
        (Some(b'\\'), Some(b'u')) => match read_hex(bytes, at + 2) {
            Ok(0xdc00..=0xdfff) => Escape::Until(at + 6),
            Err(true) => Escape::Cut,
            _ => Escape::Lone(at),
        },
        _ => Escape::Lone(at),
    }
}

/// Loose JSON (the arguments of a heredoc call, or any one value) as strict JSON.
///
/// Borrowed where the text is strict already. White space around the value is kept.
pub fn loose_json(text: &str) -> Result<Cow<'_, str>, Fault> {
    let mut scanner = Scanner::new(Dialect::Heredoc, 0);
    match scanner.advance(text, true) {
        Progress::Fault(fault) => Err(fault),
        Progress::More => scanner.fault(text.len(), "the text ends inside the value"),
        Progress::Done => {
            let end = scanner.end();
            if let Some(offset) = text[end..].bytes().position(|byte| !is_blank(byte)) {
                return scanner.fault(end + offset, "text follows the value");
            }
            match scanner.strict(text) {
                Cow::Borrowed(_) => Ok(Cow::Borrowed(text)),
                changed => Ok(changed),
            }
        }
    }
}
