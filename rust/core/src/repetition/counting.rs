//! Lines that differ only in numbers: when they are a model counting, and where its copies lie.

use super::Options;

/// Stands for a run of digits; UTF-8 never holds this byte.
pub(super) const NUMBER: u8 = 0xFF;

/// The counting channel's thresholds: a list of a dozen like lines is ordinary.
pub(super) const COUNTING_REPS: usize = 8;
pub(super) const COUNTING_SPAN: usize = 1024;
/// Lines of code or data that count are ordinary for longer: a table of 256 definitions is.
pub(super) const COUNTING_REPS_CODE: usize = 64;
/// How many times `short_span` they must fill.
pub(super) const COUNTING_SPANS_CODE: usize = 3;

/// Whether the copies of the folded `cycle` at the end of `text` are a model counting.
///
/// It is one where the cycle is mostly words, is no row of a table and no line of a log, and its numbers
/// count: each stays the same or goes on by the same step. Code and data (brackets, quotes, `=`) may
/// count for [`COUNTING_REPS_CODE`] lines and [`COUNTING_SPANS_CODE`] times `short_span` bytes.
pub(super) fn is_counting(text: &[u8], cycle: &[u8], options: &Options) -> bool {
    // Most lines that look alike do not count, and three copies show it for less than their kind is told.
    if !cycle.contains(&NUMBER) || read_copies(text, cycle, 3).counting() < 3 {
        return false;
    }
    let Some(kind) = CycleKind::of(cycle) else {
        return false;
    };
    let (least_copies, least_span) = match kind {
        CycleKind::Prose => (COUNTING_REPS, COUNTING_SPAN.max(options.min_span)),
        CycleKind::Code => (COUNTING_REPS_CODE, COUNTING_SPANS_CODE * options.short_span),
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
        // The first line may be the end of one.
        let lines = || ring.split(|byte| *byte == b'\n').skip(1);
        // Columns are aligned by blanks inside a line; those at its start only indent it.
        let spaced =
            lines().any(|line| memchr::memmem::find(line.trim_ascii_start(), b"  ").is_some());
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
        let marks = cycle.len() - blanks;
        if letters * 2 < marks {
            return None;
        }
        // Few letters for words, brackets and the like, comments, calls, and lines such as `#define`.
        let code = letters * 3 < marks * 2
            || ring.windows(3).any(|three| {
                matches!(
                    three[0],
                    b'=' | b'{' | b'}' | b'[' | b']' | b'<' | b'>' | b'"' | b';' | b'\\'
                ) || matches!(three[1..], [b'/', b'*'] | [b'*', b'/'])
                    || matches!(three, [before, b'/', b'/'] if *before != b':')
                    || matches!(three, [.., name, b'('] if is_word(*name))
                    || matches!(three, [b'#', word, _] if word.is_ascii_alphabetic())
            })
            || lines().any(|line| is_number(line) || is_report(line));
        Some(if code { Self::Code } else { Self::Prose })
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == NUMBER
}

/// A line of one number, hexadecimal ones too.
fn is_number(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    line.contains(&NUMBER)
        && line
            .iter()
            .all(|byte| *byte == NUMBER || byte.is_ascii_hexdigit())
}

/// A line that begins as `PASS:` or `WARNING:` does.
fn is_report(line: &[u8]) -> bool {
    let capitals = line
        .iter()
        .take_while(|byte| byte.is_ascii_uppercase())
        .count();
    capitals >= 3 && line.get(capitals) == Some(&b':')
}

/// The newest copies of a counting cycle, newest first.
#[derive(Default)]
pub(super) struct Copies {
    /// Bytes of each copy.
    pub lengths: Vec<usize>,
    /// Numbers of each copy, from its end.
    values: Vec<Vec<u64>>,
    /// Bytes of the number at the very end, which may still grow and belongs to no copy.
    pub open: usize,
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
pub(super) fn read_copies(text: &[u8], cycle: &[u8], limit: usize) -> Copies {
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
