//! The rules by which pre-tokenizers find the next piece of a text.
//!
//! Every rule is a hand-written matcher for one of the regular expressions that llama.cpp runs
//! (`src/llama-vocab.cpp` of ggml-org/llama.cpp names them by `tokenizer.ggml.pre`): no regex engine, no
//! backtracking over more than one run. A rule sees one segment: what lies past its end does not exist,
//! which is how llama.cpp behaves, also for look-ahead.

use super::unicode::{Classes, END, LETTER, MARK, NUMBER, PUNCTUATION, SPACE, SYMBOL, decode};

/// Part of a text: valid UTF-8 from end to end.
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    pub bytes: &'a [u8],
    pub classes: &'static Classes,
}

impl<'a> Segment<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            classes: Classes::get(),
        }
    }

    /// Class and length of the character at `at`; `(END, 0)` past the end.
    #[inline(always)]
    pub fn at(self, at: usize) -> (u8, usize) {
        match self.bytes.get(at) {
            None => (END, 0),
            Some(&byte) if byte < 0x80 => (self.classes.ascii[usize::from(byte)], 1),
            Some(_) => {
                let (code, width) = decode(self.bytes, at);
                (self.classes.of(code), width)
            }
        }
    }

    #[inline(always)]
    fn byte(self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// End of the run of characters from `at` whose class is in `set`.
    #[inline(always)]
    pub fn run(self, mut at: usize, set: u8) -> usize {
        while let Some(&byte) = self.bytes.get(at) {
            let (class, width) = if byte < 0x80 {
                (self.classes.ascii[usize::from(byte)], 1)
            } else {
                self.at(at)
            };
            if class & set == 0 {
                break;
            }
            at += width;
        }
        at
    }

    /// End of the run of characters from `at` whose class is not in `set`.
    #[inline(always)]
    fn run_without(self, mut at: usize, set: u8) -> usize {
        while let Some(&byte) = self.bytes.get(at) {
            let (class, width) = if byte < 0x80 {
                (self.classes.ascii[usize::from(byte)], 1)
            } else {
                self.at(at)
            };
            if class & set != 0 {
                break;
            }
            at += width;
        }
        at
    }

    /// End of the run of blanks from `at`, and where its last character begins.
    #[inline(always)]
    fn blanks(self, mut at: usize) -> (usize, usize) {
        let mut last = at;
        loop {
            let (class, width) = self.at(at);
            if class & SPACE == 0 {
                return (at, last);
            }
            last = at;
            at += width;
        }
    }

    /// The character at `at` as a `wregex` of llama.cpp sees it: blanks beyond ASCII are U+000B there.
    fn wide(self, at: usize) -> (u32, usize) {
        let (code, width) = decode(self.bytes, at);
        if code > 0x7f && self.classes.of(code) == SPACE {
            (0x0b, width)
        } else {
            (code, width)
        }
    }

    fn wide_run(self, mut at: usize, set: &[(u32, u32)]) -> usize {
        while at < self.bytes.len() {
            let (code, width) = self.wide(at);
            if !within(set, code) {
                break;
            }
            at += width;
        }
        at
    }
}

fn within(set: &[(u32, u32)], code: u32) -> bool {
    set.iter()
        .any(|&(first, last)| (first..=last).contains(&code))
}

fn is_break(byte: u8) -> bool {
    byte == b'\r' || byte == b'\n'
}

/// `'s 't 'm 'd 're 've 'll` at `at`, where the apostrophe is.
#[inline(always)]
fn contraction(segment: Segment<'_>, at: usize, any_case: bool) -> Option<usize> {
    let fold = |byte: u8| {
        if any_case {
            byte.to_ascii_lowercase()
        } else {
            byte
        }
    };
    match (fold(segment.byte(at + 1)), fold(segment.byte(at + 2))) {
        (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
        (b'r' | b'v', b'e') | (b'l', b'l') => Some(at + 3),
        _ => None,
    }
}

/// `\s+(?!\S)|\s+` from `at`, where a blank is: the run, less its last blank where something follows.
#[inline(always)]
fn blank_tail(segment: Segment<'_>, at: usize) -> usize {
    let (end, last) = segment.blanks(at);
    if last > at && end < segment.bytes.len() {
        last
    } else {
        end
    }
}

/// GPT-2: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
///
/// With `DIGITS_APART`, as if every number had been cut out before: the common pair of passes of
/// StarCoder, SmolLM and Command-R in one.
#[inline(always)]
pub fn gpt2<const DIGITS_APART: bool>(segment: Segment<'_>, at: usize) -> usize {
    let first = segment.byte(at);
    if first == b'\''
        && let Some(end) = contraction(segment, at, false)
    {
        return end;
    }
    let from = at + usize::from(first == b' ');
    let (class, width) = segment.at(from);
    if class & LETTER != 0 {
        return segment.run(from + width, LETTER);
    }
    if class & NUMBER != 0 {
        if !DIGITS_APART {
            return segment.run(from + width, NUMBER);
        }
        if from == at {
            return at + width;
        }
        return from;
    }
    if class & (SPACE | END) == 0 {
        return segment.run_without(from + width, SPACE | LETTER | NUMBER);
    }
    let (end, last) = segment.blanks(at);
    let next = segment.at(end).0;
    let ends = next == END || (DIGITS_APART && next & NUMBER != 0);
    if last > at && !ends { last } else { end }
}

/// What may follow a run of punctuation and still belong to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Trail {
    Nothing,
    /// `[\r\n]*`
    Breaks,
    /// `[\r\n/]*`
    BreaksAndSlashes,
    /// `[\r\n/]?`
    OneBreakOrSlash,
}

impl Trail {
    #[inline(always)]
    fn end(self, segment: Segment<'_>, mut at: usize) -> usize {
        match self {
            Self::Nothing => {}
            Self::Breaks => {
                while is_break(segment.byte(at)) {
                    at += 1;
                }
            }
            Self::BreaksAndSlashes => {
                while is_break(segment.byte(at)) || segment.byte(at) == b'/' {
                    at += 1;
                }
            }
            Self::OneBreakOrSlash => {
                at += usize::from(is_break(segment.byte(at)) || segment.byte(at) == b'/');
            }
        }
        at
    }
}

/// `\p{N}{1,most}` from `at`, where a number is.
#[inline(always)]
fn numbers(segment: Segment<'_>, mut at: usize, most: usize) -> usize {
    for _ in 0..most {
        let (class, width) = segment.at(at);
        if class & NUMBER == 0 {
            break;
        }
        at += width;
    }
    at
}

/// ` ?[^\s\p{L}\p{N}…]+` and its trail, from `at`; `None` where no such run begins.
#[inline(always)]
fn punctuation(segment: Segment<'_>, at: usize, stop: u8, trail: Trail) -> Option<usize> {
    let from = at + usize::from(segment.byte(at) == b' ');
    let (class, width) = segment.at(from);
    if class & (stop | END) != 0 {
        return None;
    }
    Some(trail.end(segment, segment.run_without(from + width, stop)))
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+` from `at`, where a blank is.
#[inline(always)]
fn breaks_then_blanks(segment: Segment<'_>, at: usize) -> usize {
    let (end, last) = segment.blanks(at);
    let run = &segment.bytes[at..end];
    if let Some(place) = memchr::memrchr2(b'\r', b'\n', run) {
        return at + place + 1;
    }
    if last > at && end < segment.bytes.len() {
        last
    } else {
        end
    }
}

/// Llama 3, Qwen and their kin:
/// `'s…|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+TRAIL|\s*[\r\n]+|\s+(?!\S)|\s+`.
///
/// `LETTERS` is `\p{L}` or `\p{L}\p{M}`; with `MARKS_ARE_LETTERS` a mark does not begin or continue
/// punctuation.
#[inline(always)]
pub fn llama3<const CONTRACTIONS: bool, const MARKS_ARE_LETTERS: bool, const DIGITS: usize>(
    segment: Segment<'_>,
    at: usize,
    trail: Trail,
) -> usize {
    let first = segment.byte(at);
    if CONTRACTIONS
        && first == b'\''
        && let Some(end) = contraction(segment, at, true)
    {
        return end;
    }
    let letters = if MARKS_ARE_LETTERS {
        LETTER | MARK
    } else {
        LETTER
    };
    let (class, width) = segment.at(at);
    if class & letters != 0 {
        return segment.run(at + width, letters);
    }
    if class & NUMBER != 0 {
        return numbers(segment, at, DIGITS);
    }
    if !is_break(first) {
        let (next, next_width) = segment.at(at + width);
        if next & letters != 0 {
            return segment.run(at + width + next_width, letters);
        }
    }
    if let Some(end) = punctuation(segment, at, SPACE | NUMBER | letters, trail) {
        return end;
    }
    breaks_then_blanks(segment, at)
}

/// EXAONE MoE: letters with their marks, and more such words after single blanks, are one piece.
pub fn exaone_moe(segment: Segment<'_>, at: usize) -> Option<usize> {
    let first = segment.byte(at);
    if first == b'\''
        && let Some(end) = contraction(segment, at, true)
    {
        return Some(end);
    }
    let (class, width) = segment.at(at);
    if class & NUMBER != 0 {
        return Some(at + width);
    }
    if !is_break(first) {
        let lead = if class & LETTER != 0 { 0 } else { width };
        let mut end = at + lead;
        while segment.at(end).0 & LETTER != 0 {
            end = segment.run(end + segment.at(end).1, MARK);
            if segment.byte(end) == b' ' && segment.at(end + 1).0 & LETTER != 0 {
                end += 1;
            }
        }
        if end > at + lead {
            return Some(end);
        }
    }
    let found = punctuation(segment, at, SPACE | NUMBER | LETTER, Trail::OneBreakOrSlash);
    Some(found.unwrap_or_else(|| breaks_then_blanks(segment, at)))
}

/// How a word that heeds case is made up, and what may follow it.
#[derive(Clone, Copy)]
pub struct Cased {
    /// What counts as a letter.
    pub letters: u8,
    /// `'s`, `'re` … in any case belong to the word before.
    pub contractions: bool,
    pub digits: usize,
}

/// GPT-4o, Tekken: words cut where lower case is followed by upper case.
///
/// llama.cpp writes "upper" as "a letter but `a-z`" and "lower" as "a letter but `A-Z`"; a letter beyond
/// ASCII is both.
#[inline(always)]
pub fn cased(segment: Segment<'_>, at: usize, rule: Cased) -> Option<usize> {
    let first = segment.byte(at);
    let (class, width) = segment.at(at);
    if class & NUMBER == 0 && !is_break(first) {
        let leads = class & LETTER == 0;
        let after = leads.then_some(at + width);
        let bare = (class & rule.letters != 0).then_some(at);
        let starts = [after, bare];
        let found = starts
            .iter()
            .flatten()
            .find_map(|&from| lower_ended(segment, from, rule.letters))
            .or_else(|| {
                starts
                    .iter()
                    .flatten()
                    .find_map(|&from| upper_run(segment, from, rule.letters))
            });
        if let Some(end) = found {
            if rule.contractions && segment.byte(end) == b'\'' {
                return Some(contraction(segment, end, true).unwrap_or(end));
            }
            return Some(end);
        }
    }
    if class & NUMBER != 0 {
        return Some(numbers(segment, at, rule.digits));
    }
    let stop = SPACE | LETTER | NUMBER;
    let found = punctuation(segment, at, stop, Trail::BreaksAndSlashes);
    Some(found.unwrap_or_else(|| breaks_then_blanks(segment, at)))
}

/// `UPPER*LOWER+` from `from`.
#[inline(always)]
fn lower_ended(segment: Segment<'_>, from: usize, letters: u8) -> Option<usize> {
    let mut at = from;
    // Where the last letter that is both upper and lower ends: what backtracking would find.
    let mut both = None;
    loop {
        let (class, width) = segment.at(at);
        let byte = segment.byte(at);
        if class & letters == 0 || byte.is_ascii_lowercase() {
            break;
        }
        at += width;
        if byte >= 0x80 {
            both = Some(at);
        }
    }
    let end = lower_run(segment, at, letters);
    if end > at { Some(end) } else { both }
}

fn lower_run(segment: Segment<'_>, mut at: usize, letters: u8) -> usize {
    loop {
        let (class, width) = segment.at(at);
        if class & letters == 0 || segment.byte(at).is_ascii_uppercase() {
            return at;
        }
        at += width;
    }
}

/// `UPPER+LOWER*` from `from`.
fn upper_run(segment: Segment<'_>, from: usize, letters: u8) -> Option<usize> {
    let mut at = from;
    loop {
        let (class, width) = segment.at(at);
        if class & letters == 0 || segment.byte(at).is_ascii_lowercase() {
            break;
        }
        at += width;
    }
    (at > from).then(|| lower_run(segment, at, letters))
}

/// Youtu and Tiny Aya: words of letters and marks with the contraction behind them.
pub fn words_with_contractions(segment: Segment<'_>, at: usize, digits: usize) -> usize {
    let first = segment.byte(at);
    let (class, width) = segment.at(at);
    let letters = LETTER | MARK;
    if class & NUMBER != 0 {
        return numbers(segment, at, digits);
    }
    if !is_break(first) && (class & letters != 0 || segment.at(at + width).0 & letters != 0) {
        let end = segment.run(at + width, letters);
        if segment.byte(end) == b'\'' {
            return contraction(segment, end, true).unwrap_or(end);
        }
        return end;
    }
    punctuation(
        segment,
        at,
        SPACE | LETTER | NUMBER,
        Trail::BreaksAndSlashes,
    )
    .unwrap_or_else(|| breaks_then_blanks(segment, at))
}

/// DeepSeek V3 and kin, third pass: `[ascii punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
///  ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`. Numbers and control characters match nothing.
#[inline(always)]
pub fn deepseek3<const SPARK: bool>(segment: Segment<'_>, at: usize) -> Option<usize> {
    let first = segment.byte(at);
    let (class, width) = segment.at(at);
    if first.is_ascii_punctuation() && segment.byte(at + 1).is_ascii_alphabetic() {
        let mut end = at + 2;
        while segment.byte(end).is_ascii_alphabetic() {
            end += 1;
        }
        return Some(end);
    }
    let letters = LETTER | MARK;
    if class & letters != 0 {
        return Some(segment.run(at + width, letters));
    }
    if class & (PUNCTUATION | SYMBOL) == 0 && !is_break(first) {
        let (next, next_width) = segment.at(at + width);
        if next & letters != 0 {
            return Some(segment.run(at + width + next_width, letters));
        }
    }
    let from = at + usize::from(first == b' ');
    let (class_from, width_from) = segment.at(from);
    if class_from & (PUNCTUATION | SYMBOL) != 0 {
        let end = segment.run(from + width_from, PUNCTUATION | SYMBOL);
        return Some(if SPARK {
            end
        } else {
            Trail::Breaks.end(segment, end)
        });
    }
    if class & SPACE == 0 {
        return None;
    }
    if SPARK {
        return Some(if is_break(first) {
            at + 1
        } else {
            blank_tail(segment, at)
        });
    }
    Some(breaks_then_blanks(segment, at))
}

/// Ideographs that Kimi K2 keeps apart from other letters.
const HAN: &[(u32, u32)] = &[
    (0x4e00, 0x9fff),
    (0x3400, 0x4dbf),
    (0x20000, 0x2a6df),
    (0x2a700, 0x2ebef),
    (0xf900, 0xfaff),
    (0x2f800, 0x2fa1f),
];

/// Kimi K2: runs of Han, words of other letters with their contraction, numbers by three.
pub fn kimi_k2(segment: Segment<'_>, at: usize) -> usize {
    let han = |at: usize| at < segment.bytes.len() && within(HAN, decode(segment.bytes, at).0);
    let letter = |at: usize| segment.at(at).0 & LETTER != 0 && !han(at);
    let first = segment.byte(at);
    let (class, width) = segment.at(at);
    if han(at) {
        let mut end = at;
        while han(end) {
            end += segment.at(end).1;
        }
        return end;
    }
    if class & NUMBER != 0 {
        return numbers(segment, at, 3);
    }
    let mut end = if letter(at) { at } else { at + width };
    if letter(at) || (!is_break(first) && letter(end)) {
        while letter(end) {
            end += segment.at(end).1;
        }
        if segment.byte(end) == b'\'' {
            return contraction(segment, end, true).unwrap_or(end);
        }
        return end;
    }
    punctuation(segment, at, SPACE | LETTER | NUMBER, Trail::Breaks)
        .unwrap_or_else(|| breaks_then_blanks(segment, at))
}

/// One or more characters of `set`, as a class of a `wregex`.
pub fn wide_class(segment: Segment<'_>, at: usize, set: &[(u32, u32)]) -> Option<usize> {
    let end = segment.wide_run(at, set);
    (end > at).then_some(end)
}

/// `\s?` and one or more characters of `set`, as a class of a `wregex`.
pub fn spaced_wide_class(segment: Segment<'_>, at: usize, set: &[(u32, u32)]) -> Option<usize> {
    let (class, width) = segment.at(at);
    if class == SPACE
        && let Some(end) = wide_class(segment, at + width, set)
    {
        return Some(end);
    }
    wide_class(segment, at, set)
}

/// `\s?` and one or more characters of the classes `set`.
pub fn spaced_class(segment: Segment<'_>, at: usize, set: u8) -> Option<usize> {
    let (class, width) = segment.at(at);
    let from = if class == SPACE { at + width } else { at };
    let end = segment.run(from, set);
    (end > from).then_some(end)
}

/// `\p{N}{1,most}`.
pub fn number_run(segment: Segment<'_>, at: usize, most: usize) -> Option<usize> {
    let end = numbers(segment, at, most);
    (end > at).then_some(end)
}

/// `[0-9][0-9][0-9]`.
pub fn three_digits(segment: Segment<'_>, at: usize) -> Option<usize> {
    let digits = segment.bytes.get(at..at + 3)?;
    digits.iter().all(u8::is_ascii_digit).then_some(at + 3)
}

/// `[\p{P}$+<=>^~|]+`, and the back-tick with `TICK`.
pub fn punctuation_run<const TICK: bool>(segment: Segment<'_>, at: usize) -> Option<usize> {
    let mut end = at;
    loop {
        let (class, width) = segment.at(end);
        let listed = match segment.byte(end) {
            b'`' => TICK,
            byte => b"$+<=>^~|".contains(&byte),
        };
        if class & PUNCTUATION == 0 && !listed {
            return (end > at).then_some(end);
        }
        end += width;
    }
}

/// `[\r\n]`.
pub fn one_break(segment: Segment<'_>, at: usize) -> Option<usize> {
    is_break(segment.byte(at)).then_some(at + 1)
}

/// `\s+$`.
pub fn closing_blanks(segment: Segment<'_>, at: usize) -> Option<usize> {
    let (end, _) = segment.blanks(at);
    (end > at && end == segment.bytes.len()).then_some(end)
}

/// ` ?[^(\s|.,!?…。，、।۔،)]+`, the rule of BLOOM and its kin.
pub fn bloom(segment: Segment<'_>, at: usize) -> Option<usize> {
    const STOPS: &[u32] = &[
        0x28, 0x29, 0x7c, 0x2e, 0x2c, 0x21, 0x3f, 0x2026, 0x3002, 0xff0c, 0x3001, 0x964, 0x6d4,
        0x60c,
    ];
    let from = at + usize::from(segment.byte(at) == b' ');
    let mut end = from;
    while end < segment.bytes.len() {
        let (code, width) = decode(segment.bytes, end);
        if segment.at(end).0 == SPACE || STOPS.contains(&code) {
            break;
        }
        end += width;
    }
    (end > from).then_some(end)
}

/// Chameleon's `<sentinel:[0-9]+>`.
pub fn sentinel(segment: Segment<'_>, at: usize) -> Option<usize> {
    let digits = at + "<sentinel:".len();
    if segment.bytes.get(at..digits)? != b"<sentinel:" {
        return None;
    }
    let mut end = digits;
    while segment.byte(end).is_ascii_digit() {
        end += 1;
    }
    (end > digits && segment.byte(end) == b'>').then_some(end + 1)
}

/// Chameleon's `(IMGIMG)((A|…|I){1,4})Z`.
pub fn image_token(segment: Segment<'_>, at: usize) -> Option<usize> {
    let letters = at + 6;
    if segment.bytes.get(at..letters)? != b"IMGIMG" {
        return None;
    }
    let mut end = letters;
    while end < letters + 4 && (b'A'..=b'I').contains(&segment.byte(end)) {
        end += 1;
    }
    (end > letters && segment.byte(end) == b'Z').then_some(end + 1)
}

/// Chameleon's `([\t\n]|    |  )`.
pub fn chameleon_blank(segment: Segment<'_>, at: usize) -> Option<usize> {
    let rest = segment.bytes.get(at..)?;
    match rest {
        [b'\t' | b'\n', ..] => Some(at + 1),
        [b' ', b' ', b' ', b' ', ..] => Some(at + 4),
        [b' ', b' ', ..] => Some(at + 2),
        _ => None,
    }
}

/// Chameleon's ``[\p{P}!-/:-@\[-`{-~]``.
pub fn one_punctuation(segment: Segment<'_>, at: usize) -> Option<usize> {
    let (class, width) = segment.at(at);
    (class & PUNCTUATION != 0 || segment.byte(at).is_ascii_punctuation()).then_some(at + width)
}
