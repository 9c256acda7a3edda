//! Noticing that a model repeats itself, while it streams.
//!
//! Two channels look at the newest text every `check_every` bytes. The *exact* one asks for the
//! smallest period of the newest text. The *counting* one sees each run of digits as one symbol, so that
//! lines that differ only in a number are a cycle too; ordinary lists and logs look like that as well, so
//! it asks for far more copies, and for numbers that count (see [`is_counting`]).

mod counting;
mod period;
mod tokens;

pub use tokens::LoopWatch;

use crate::truncate::floor_char_boundary;

use counting::{COUNTING_REPS, COUNTING_SPANS_CODE, NUMBER, is_counting, read_copies};
use period::{Anchor, by_z_function, last, smallest_period};

/// When to speak up. Lengths are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Cycles shorter than this are ordinary (rules, indentation) until `short_span`.
    pub min_period: usize,
    /// Longest cycle looked for.
    pub max_period: usize,
    /// Copies of the cycle in a row.
    pub min_reps: usize,
    /// Bytes that the copies make up together.
    pub min_span: usize,
    /// How often to look.
    pub check_every: usize,
    /// Bytes after which a short or merely ornamental cycle counts too.
    pub short_span: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            min_period: 24,
            max_period: 1024,
            min_reps: 3,
            min_span: 512,
            check_every: 256,
            short_span: 4096,
        }
    }
}

impl Options {
    /// # Errors
    /// A sentence for the user about the first option that makes no sense.
    pub fn check(&self) -> Result<(), String> {
        let Self {
            min_period,
            max_period,
            min_reps,
            check_every,
            ..
        } = *self;
        if min_period == 0 {
            return Err("min_period is 0; the shortest cycle has 1 byte".to_owned());
        }
        if max_period < min_period {
            return Err(format!(
                "max_period ({max_period}) is below min_period ({min_period})"
            ));
        }
        if min_reps < 2 {
            return Err(format!(
                "min_reps is {min_reps}; one copy is no repetition, use 2 or more"
            ));
        }
        if check_every == 0 {
            return Err("check_every is 0; use 1 to look after every byte".to_owned());
        }
        let largest = [
            max_period,
            min_reps,
            self.min_span,
            check_every,
            self.short_span,
        ];
        if largest.iter().any(|value| *value > MAX_OPTION) || max_period * min_reps > MAX_OPTION {
            return Err(format!(
                "the options ask for more than {MAX_OPTION} bytes of history; use smaller ones"
            ));
        }
        Ok(())
    }
}

/// Bound on every option, and so on the memory of a guard.
const MAX_OPTION: usize = 1 << 26;

/// A cycle that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repetition {
    /// Bytes of one copy: the smallest true period.
    pub period: usize,
    /// Whole copies at the end of what was pushed.
    pub reps: usize,
    /// `(reps - 1) * period`: what can be cut from the end, leaving one copy.
    pub trailing: usize,
    /// Bytes pushed after the cycle had ended (only inside one large delta; else 0).
    pub after: usize,
    /// The newest copy.
    pub sample: String,
}

/// Watches one stream.
#[derive(Clone, Debug)]
pub struct RepetitionGuard {
    options: Options,
    /// The newest text: between `keep` and twice `keep` bytes of it.
    text: Vec<u8>,
    /// The same with each run of digits as one [`NUMBER`].
    folded: Vec<u8>,
    keep: usize,
    keep_folded: usize,
    unchecked: usize,
    found: bool,
    /// The options ask for cycles so short that two copies may share less than an [`Anchor`].
    tiny: bool,
}

impl RepetitionGuard {
    /// # Errors
    /// As [`Options::check`].
    pub fn new(options: Options) -> Result<Self, String> {
        options.check()?;
        let Options {
            max_period,
            min_reps,
            min_span,
            check_every,
            short_span,
            ..
        } = options;
        let exact = (max_period * min_reps).max(min_span).max(short_span) + max_period;
        let counting = (COUNTING_REPS + 1) * max_period;
        let shared = |span: usize| span - span / min_reps;
        let least = shared(min_span.max(min_reps * options.min_period)).min(shared(short_span));
        Ok(Self {
            options,
            text: Vec::new(),
            folded: Vec::new(),
            keep: exact
                .max(2 * counting)
                .max(COUNTING_SPANS_CODE * short_span + max_period)
                + 2 * check_every,
            keep_folded: exact.max(counting) + 2 * check_every,
            unchecked: 0,
            found: false,
            tiny: least < Anchor::WIDTH,
        })
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Forget everything, also a finding.
    pub fn reset(&mut self) {
        self.text.clear();
        self.folded.clear();
        self.unchecked = 0;
        self.found = false;
    }

    /// Take the next piece of the stream. After a finding the answer is `None` until [`Self::reset`].
    #[inline]
    pub fn push(&mut self, delta: &str) -> Option<Repetition> {
        if self.found {
            return None;
        }
        if self.unchecked + delta.len() < self.options.check_every {
            self.text.extend_from_slice(delta.as_bytes());
            self.unchecked += delta.len();
            return None;
        }
        self.push_and_look(delta)
    }

    fn push_and_look(&mut self, delta: &str) -> Option<Repetition> {
        let bytes = delta.as_bytes();
        let every = self.options.check_every;
        // A token is looked at whole; a large delta at every `check_every` bytes inside it.
        let mut at = 0;
        while self.unchecked + bytes.len() - at >= every {
            let end = if bytes.len() <= every / 4 {
                bytes.len()
            } else {
                at + (every - self.unchecked)
            };
            self.text.extend_from_slice(&bytes[at..end]);
            self.fold(self.unchecked + end - at);
            self.unchecked = 0;
            at = end;
            if let Some(cycle) = self.look() {
                self.found = true;
                return self.describe(cycle, delta, at);
            }
            self.trim();
        }
        self.text.extend_from_slice(&bytes[at..]);
        self.unchecked = bytes.len() - at;
        None
    }

    /// Appends the newest `count` bytes of `text` to `folded`.
    fn fold(&mut self, count: usize) {
        let (old, new) = self.text.split_at(self.text.len() - count);
        let mut in_number = old.last().is_some_and(u8::is_ascii_digit);
        for chunk in new.chunks(64) {
            if !has_digit(chunk) {
                self.folded.extend_from_slice(chunk);
                in_number = false;
                continue;
            }
            let mut end = self.folded.len();
            self.folded.resize(end + chunk.len(), 0);
            // Without a branch, because digits among letters (a hex dump) cannot be predicted: a digit
            // after a digit is overwritten by what follows it.
            for byte in chunk {
                let digit = byte.is_ascii_digit();
                self.folded[end] = if digit { NUMBER } else { *byte };
                end += usize::from(!(digit & in_number));
                in_number = digit;
            }
            self.folded.truncate(end);
        }
    }

    fn trim(&mut self) {
        for (buffer, keep) in [
            (&mut self.text, self.keep),
            (&mut self.folded, self.keep_folded),
        ] {
            if buffer.len() >= 2 * keep {
                let start = buffer.len() - keep;
                buffer.copy_within(start.., 0);
                buffer.truncate(keep);
            }
        }
    }

    fn look(&self) -> Option<Cycle> {
        let options = &self.options;
        let accept = |period: usize, length: usize| {
            let copies = length / period;
            if copies < options.min_reps {
                return false;
            }
            let span = copies * period;
            if span > options.short_span {
                return true;
            }
            period >= options.min_period
                && span >= options.min_span
                && !ornamental(last(&self.text, period))
                && !is_short_but_wrapped(last(&self.text, period), options.min_period)
        };
        let exact = if self.tiny {
            by_z_function(last(&self.text, self.keep), options.max_period, accept)
        } else {
            smallest_period(&self.text, options.max_period, self.keep, accept)
        };
        if let Some((period, length)) = exact {
            return Some(Cycle::Exact { period, length });
        }
        let folded = &self.folded;
        memchr::memchr(NUMBER, last(folded, options.max_period))?;
        let counted = smallest_period(
            folded,
            options.max_period,
            self.keep_folded,
            |period, length| {
                length / period >= COUNTING_REPS.max(options.min_reps)
                    && is_counting(&self.text, &folded[folded.len() - period..], options)
            },
        );
        counted.map(|(period, _)| Cycle::Counting {
            folded_period: period,
        })
    }

    /// The finding, with the cycle followed to its end in the rest of `delta`.
    fn describe(&mut self, cycle: Cycle, delta: &str, at: usize) -> Option<Repetition> {
        let seen = self.text.len();
        match cycle {
            Cycle::Exact { period, .. } => self.follow_exact(period, &delta.as_bytes()[at..]),
            Cycle::Counting { folded_period } => {
                self.follow_counting(folded_period, &delta.as_bytes()[at..]);
            }
        }
        // A cycle may break off inside a character; what is cut later is cut between characters.
        let reached = at + self.text.len() - seen;
        let end = floor_char_boundary(delta, reached);
        self.text.truncate(self.text.len() - (reached - end));
        self.folded.truncate(self.folded.len() - (reached - end));
        let (period, reps) = match cycle {
            Cycle::Exact { period, length } => (period, (length + end - at) / period),
            Cycle::Counting { folded_period } => self.measure_counting(folded_period)?,
        };
        let newest = &self.text[self.text.len().checked_sub(period)?..];
        Some(Repetition {
            period,
            reps,
            trailing: (reps - 1) * period,
            after: delta.len() - end,
            sample: String::from_utf8_lossy(newest).into_owned(),
        })
    }

    /// Appends to `text` what goes on with the cycle.
    fn follow_exact(&mut self, period: usize, rest: &[u8]) {
        for byte in rest {
            if self.text[self.text.len() - period] != *byte {
                break;
            }
            self.text.push(*byte);
        }
    }

    /// The same by the folded text, which grows as well.
    fn follow_counting(&mut self, folded_period: usize, rest: &[u8]) {
        for byte in rest {
            let in_number = self.text.last().is_some_and(u8::is_ascii_digit);
            let next = self.folded[self.folded.len() - folded_period];
            let symbol = if byte.is_ascii_digit() { NUMBER } else { *byte };
            if symbol != NUMBER || !in_number {
                if symbol != next {
                    break;
                }
                self.folded.push(symbol);
            }
            self.text.push(*byte);
        }
    }

    /// Period and copies of a counting cycle in bytes, such that a cut between characters leaves a copy.
    ///
    /// The copies differ in length as numbers grow, so the newest copy's length is the measure and the
    /// cut need not fall between two copies.
    fn measure_counting(&self, folded_period: usize) -> Option<(usize, usize)> {
        let cycle = &self.folded[self.folded.len() - folded_period..];
        let copies = read_copies(&self.text, cycle, usize::MAX);
        let total: usize = copies.lengths.iter().sum::<usize>() + copies.open;
        let newest = copies.lengths.first()?;
        let to_cut = total - copies.lengths.last()?;
        let boundary = |cut: usize| self.text[self.text.len() - cut] & 0xC0 != 0x80;
        (1..=to_cut / newest)
            .rev()
            .find(|times| boundary(times * newest))
            .map(|times| (*newest, times + 1))
            // Back to the number before the open one: a boundary always.
            .or_else(|| Some((newest + copies.open, 2)))
    }
}

/// What was found at the end of the text.
#[derive(Clone, Copy, Debug)]
enum Cycle {
    /// The newest `length` bytes have this period.
    Exact { period: usize, length: usize },
    /// The newest copies in the folded text have this period.
    Counting { folded_period: usize },
}

/// Ordinary up to `short_span`, however wide it is: only white space and the characters rules and frames
/// are drawn with, or one character in lines (zeros in a wrapped dump).
fn ornamental(cycle: &[u8]) -> bool {
    // A cycle may begin inside a character; turned round it is whole, and the question is the same.
    let twice = [cycle, cycle].concat();
    let twice = String::from_utf8_lossy(&twice);
    let mut marks = twice
        .chars()
        .filter(|c| !c.is_whitespace() && *c != char::REPLACEMENT_CHARACTER);
    let Some(first) = marks.clone().next() else {
        return true;
    };
    marks.clone().all(|c| c == first)
        || marks.all(|c| {
            matches!(
                c,
                '-' | '=' | '_' | '|' | '+' | ':' | '*' | '#' | '~' | '.' | ',' | '\'' | '`' | '^'
                    | '/' | '\\' | '<' | '>' | '\u{2010}'..='\u{2015}' | '•' | '·' | '…'
                    | '\u{2500}'..='\u{259F}'
            )
        })
}

/// Whether only line breaks and indentation make the cycle a long one, which is then as ordinary as the short one.
///
/// Rows of `0.6, 0.6, 0.6,` or `/.notdef/.notdef` are a short cycle in lines; numbers one below the other are one
/// that blanks widen. Of a table's rows the cycle may be longer where it is one word (`SOME_INITIALIZER,`).
fn is_short_but_wrapped(cycle: &[u8], min_period: usize) -> bool {
    let blank = u8::is_ascii_whitespace;
    let bare: Vec<u8> = cycle.iter().copied().filter(|byte| !blank(byte)).collect();
    let item = ring_period(&bare);
    if bare.is_empty() || item >= 2 * min_period {
        return false;
    }
    let copies = bare.len() / item;
    let before = cycle[cycle.len() - 1..].iter().chain(cycle);
    let gaps = before
        .zip(cycle)
        .filter(|(before, byte)| blank(byte) && !blank(before))
        .count();
    let width = item + gaps.div_ceil(copies);
    if copies == 1 {
        // Words in lines are no table.
        let letters = |byte: &u8| byte.is_ascii_alphabetic() || !byte.is_ascii();
        return width < min_period && !bare.iter().any(letters);
    }
    width < min_period || gaps <= copies
}

/// The smallest period of `ring` that divides it, so that the ring turned by it is the same.
fn ring_period(ring: &[u8]) -> usize {
    // Of each prefix, the length of its longest border.
    let mut borders = vec![0; ring.len()];
    for at in 1..ring.len() {
        let mut border: usize = borders[at - 1];
        while border > 0 && ring[border] != ring[at] {
            border = borders[border - 1];
        }
        borders[at] = border + usize::from(ring[border] == ring[at]);
    }
    let period = ring.len() - borders.last().copied().unwrap_or(0);
    if ring.len().is_multiple_of(period.max(1)) {
        period.max(1)
    } else {
        ring.len()
    }
}

fn has_digit(bytes: &[u8]) -> bool {
    // No early exit, so that the compiler makes vector code of it.
    bytes
        .iter()
        .fold(false, |any, byte| any | byte.is_ascii_digit())
}
