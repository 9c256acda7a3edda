//! Noticing that a model repeats itself, while it streams.
//!
//! Two channels look at the newest text every `check_every` bytes. The *exact* one asks for the
//! smallest period of the newest text. The *counting* one sees each run of digits as one symbol, so that
//! lines that differ only in a number are a cycle too; ordinary lists and logs look like that as well, so
//! it asks for far more copies, and for numbers that count (see [`is_counting`]).
//!
//! Cost: four of the newest bytes are looked up backwards, 32 places at a time; only where they recur is the common stretch measured. The work of one
//! check is bounded: text built to defeat the anchor falls back to a Z-function.

use crate::truncate::floor_char_boundary;

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

/// Stands for a run of digits; UTF-8 never holds this byte.
const NUMBER: u8 = 0xFF;

/// The counting channel's thresholds: a list of a dozen like lines is ordinary.
const COUNTING_REPS: usize = 8;
const COUNTING_SPAN: usize = 1024;
/// Lines of code or data that count are ordinary for longer.
const COUNTING_REPS_CODE: usize = 64;

/// What measuring one stretch costs besides its length, in bytes compared.
const PROBE: usize = 8;
/// Bytes that one check may compare before it falls back to the Z-function.
const COMPARE_BUDGET: usize = 32 * 1024;

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
            keep: exact.max(2 * counting).max(2 * short_span) + 2 * check_every,
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

fn has_digit(bytes: &[u8]) -> bool {
    // No early exit, so that the compiler makes vector code of it.
    bytes
        .iter()
        .fold(false, |any, byte| any | byte.is_ascii_digit())
}

/// Whether the copies of the folded `cycle` at the end of `text` are a model counting.
///
/// It is one where the cycle is mostly words, is no row of a table and no line of a log, and its numbers
/// count: each stays the same or goes on by the same step. Code and data (brackets, quotes, `=`) may
/// count for [`COUNTING_REPS_CODE`] lines and `short_span` bytes.
fn is_counting(text: &[u8], cycle: &[u8], options: &Options) -> bool {
    let Some(kind) = CycleKind::of(cycle) else {
        return false;
    };
    // Most lists that look alike do not count: a few copies show it.
    if read_copies(text, cycle, 4).counting() < 4 {
        return false;
    }
    let (least_copies, least_span) = match kind {
        CycleKind::Prose => (COUNTING_REPS, COUNTING_SPAN.max(options.min_span)),
        CycleKind::Code => (COUNTING_REPS_CODE, options.short_span),
    };
    let copies = read_copies(text, cycle, usize::MAX);
    let counting = copies.counting();
    counting >= least_copies && copies.lengths[..counting].iter().sum::<usize>() >= least_span
}

enum CycleKind {
    Prose,
    Code,
}

impl CycleKind {
    /// `None`: a row of a table, a line of a log or a dump, which may well look alike for long.
    fn of(cycle: &[u8]) -> Option<Self> {
        if !cycle.contains(&NUMBER) {
            return None;
        }
        let ring: Vec<u8> = cycle.iter().chain(cycle).copied().collect();
        let number = |byte: u8| byte == NUMBER;
        let stamped = ring
            .windows(3)
            .filter(|three| number(three[0]) && number(three[2]))
            .any(|three| matches!(three[1], b':' | b'-' | b'/'));
        let tabular = ring.windows(2).any(|two| match two[0] {
            b'|' | b'\t' => true,
            b',' | b';' => !matches!(two[1], b' '),
            _ => false,
        });
        // Columns are aligned by blanks inside a line; those at its start only indent it.
        let spaced = ring
            .split(|byte| *byte == b'\n')
            .skip(1)
            .any(|line| memchr::memmem::find(line.trim_ascii_start(), b"  ").is_some());
        if stamped || tabular || spaced {
            return None;
        }
        // Bytes outside ASCII are letters of some script often enough.
        let letters = cycle
            .iter()
            .filter(|byte| byte.is_ascii_alphabetic() || (0x80..NUMBER).contains(*byte))
            .count();
        let blanks = cycle
            .iter()
            .filter(|byte| byte.is_ascii_whitespace())
            .count();
        if letters * 2 < cycle.len() - blanks {
            return None;
        }
        let code = cycle.iter().any(|byte| {
            matches!(
                byte,
                b'=' | b'{' | b'}' | b'[' | b']' | b'<' | b'>' | b'"' | b';' | b'\\'
            )
        });
        Some(if code { Self::Code } else { Self::Prose })
    }
}

/// The newest copies of a counting cycle, newest first.
#[derive(Default)]
struct Copies {
    /// Bytes of each copy.
    lengths: Vec<usize>,
    /// Numbers of each copy, from its end.
    values: Vec<Vec<u64>>,
    /// Bytes of the number at the very end, which may still grow and belongs to no copy.
    open: usize,
}

impl Copies {
    /// How many of the newest copies count: every number goes on by its own constant step, one of them at
    /// least by more than none.
    fn counting(&self) -> usize {
        let steps = |pair: &[Vec<u64>]| -> Vec<u64> {
            pair[0]
                .iter()
                .zip(&pair[1])
                .map(|(newer, older)| newer.wrapping_sub(*older))
                .collect()
        };
        let mut pairs = self.values.windows(2);
        let Some(first) = pairs.next().map(steps) else {
            return 0;
        };
        if first.iter().all(|step| *step == 0) {
            return 0;
        }
        2 + pairs.take_while(|pair| steps(pair) == first).count()
    }
}

/// Reads whole copies of the folded `cycle` backwards from the end of `text`, at most `limit`.
fn read_copies(text: &[u8], cycle: &[u8], limit: usize) -> Copies {
    let mut copies = Copies::default();
    let mut end = text.len();
    let mut symbols = cycle.iter().rev().cycle();
    if cycle.last() == Some(&NUMBER) {
        copies.open = digits_before(text, end);
        end -= copies.open;
        symbols.next();
    }
    while copies.lengths.len() < limit {
        let start = end;
        let mut values = Vec::new();
        for symbol in symbols.by_ref().take(cycle.len()) {
            let length = if *symbol == NUMBER {
                match digits_before(text, end) {
                    // Longer ones overflow, and nobody counts that far.
                    digits @ 1..=18 => {
                        let value = text[end - digits..end]
                            .iter()
                            .fold(0_u64, |value, byte| value * 10 + u64::from(byte - b'0'));
                        values.push(value);
                        digits
                    }
                    _ => return copies,
                }
            } else if end > 0 && text[end - 1] == *symbol {
                1
            } else {
                return copies;
            };
            end -= length;
        }
        copies.lengths.push(start - end);
        copies.values.push(values);
    }
    copies
}

fn digits_before(text: &[u8], end: usize) -> usize {
    text[..end]
        .iter()
        .rev()
        .take_while(|byte| byte.is_ascii_digit())
        .count()
}

/// The smallest period of the newest bytes that `accept(period, length)` takes, with the length of the
/// stretch that has it. Only the newest `reach` bytes are looked at.
fn smallest_period(
    text: &[u8],
    max_period: usize,
    reach: usize,
    mut accept: impl FnMut(usize, usize) -> bool,
) -> Option<(usize, usize)> {
    let text = last(text, reach);
    let n = text.len();
    if n < 2 * Anchor::WIDTH {
        return None;
    }
    let anchor = Anchor::of(text);
    let mut budget = COMPARE_BUDGET;
    let mut known: Vec<(usize, usize)> = Vec::new();
    let newest = n - Anchor::WIDTH;
    let floor = newest.saturating_sub(max_period);
    let mut below = newest;
    while let Some(at) = anchor.last_before(text, floor, below) {
        below = at;
        let period = newest - at;
        // A multiple of a period already measured has the same stretch.
        if known
            .iter()
            .any(|(shorter, length)| period.is_multiple_of(*shorter) && period <= *length)
        {
            continue;
        }
        let length = period + common_suffix(text, period);
        if length >= 2 * period {
            if accept(period, length) {
                return Some((period, length));
            }
            // Two periods whose common stretch holds both together share a smaller one, and this is the
            // smallest: nothing else can be found.
            if length >= max_period + period {
                return None;
            }
            if known.len() < 8 {
                known.push((period, length));
            }
        }
        budget = budget.saturating_sub(length - period + PROBE);
        if budget == 0 {
            return by_z_function(text, max_period, accept);
        }
    }
    None
}

/// Four of the newest bytes, some way apart, which an earlier copy must have as well.
///
/// Apart, because neighbours (`(self`) recur far more often; four, because text with few letters (a hex dump)
/// then still recurs by chance once in 64 checks only.
struct Anchor([u8; 4]);

impl Anchor {
    /// Distances from the first of the four.
    const AT: [usize; 4] = [0, 9, 16, 21];
    /// From the first of the four to the last.
    const WIDTH: usize = 22;

    fn of(text: &[u8]) -> Self {
        let start = text.len() - Self::WIDTH;
        Self(Self::AT.map(|at| text[start + at]))
    }

    /// The last index in `floor..below` where the four stand.
    fn last_before(&self, text: &[u8], floor: usize, below: usize) -> Option<usize> {
        const BLOCK: usize = 32;
        let mut below = below;
        while below >= floor + BLOCK {
            let start = below - BLOCK;
            if self.any_in(&text[start..below + Self::WIDTH])
                && let Some(at) = (start..below).rev().find(|at| self.stands_at(text, *at))
            {
                return Some(at);
            }
            below = start;
        }
        (floor..below).rev().find(|at| self.stands_at(text, *at))
    }

    /// Whether the four stand at one of the first 32 places.
    ///
    /// Written as a minimum over differences because that surely becomes vector code; as comparisons joined by
    /// `&` the compiler at times made one 32-bit comparison a place of it, eight times slower.
    fn any_in(&self, bytes: &[u8]) -> bool {
        let [first, second, third, fourth] = Self::AT.map(|at| bytes[at..].first_chunk::<32>());
        let (Some(first), Some(second), Some(third), Some(fourth)) = (first, second, third, fourth)
        else {
            return true;
        };
        let [a, b, c, d] = self.0;
        let mut least = u8::MAX;
        for index in 0..32 {
            let difference =
                (first[index] ^ a) | (second[index] ^ b) | (third[index] ^ c) | (fourth[index] ^ d);
            least = least.min(difference);
        }
        least == 0
    }

    fn stands_at(&self, text: &[u8], at: usize) -> bool {
        Self::AT.map(|offset| text[at + offset]) == self.0
    }
}

/// The newest `count` bytes, or all.
fn last(text: &[u8], count: usize) -> &[u8] {
    &text[text.len().saturating_sub(count)..]
}

/// How many of the newest bytes equal those `period` before them.
fn common_suffix(text: &[u8], period: usize) -> usize {
    let new = &text[period..];
    let old = &text[..text.len() - period];
    let mut same = 0;
    while same + 16 <= new.len() {
        let (a, b) = (new.len() - same - 16, new.len() - same);
        if new[a..b] != old[a..b] {
            break;
        }
        same += 16;
    }
    while same < new.len() && new[new.len() - 1 - same] == old[old.len() - 1 - same] {
        same += 1;
    }
    same
}

/// The same by a Z-function over the reversed text: linear whatever the text.
fn by_z_function(
    text: &[u8],
    max_period: usize,
    mut accept: impl FnMut(usize, usize) -> bool,
) -> Option<(usize, usize)> {
    let n = text.len();
    let at = |index: usize| text[n - 1 - index];
    let mut z = vec![0_usize; n];
    let (mut left, mut right) = (0, 0);
    let mut known: Vec<(usize, usize)> = Vec::new();
    for period in 1..n {
        let mut same = if period < right {
            z[period - left].min(right - period)
        } else {
            0
        };
        while period + same < n && at(same) == at(period + same) {
            same += 1;
        }
        if period + same > right {
            (left, right) = (period, period + same);
        }
        z[period] = same;
        if period > max_period {
            break;
        }
        let length = period + same;
        if length < 2 * period
            || known
                .iter()
                .any(|(shorter, length)| period.is_multiple_of(*shorter) && period <= *length)
        {
            continue;
        }
        if accept(period, length) {
            return Some((period, length));
        }
        if known.len() < 8 {
            known.push((period, length));
        }
    }
    None
}
