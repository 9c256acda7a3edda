//! The smallest period of the newest bytes of a text.
//!
//! Four of the newest bytes are looked up backwards, 32 places at a time; only where they recur is the common
//! stretch measured. The work of one search is bounded: text built to defeat the anchor falls back to a Z-function.

/// What measuring one stretch costs besides its length, in bytes compared.
const PROBE: usize = 8;
/// Bytes that one check may compare before it falls back to the Z-function.
const COMPARE_BUDGET: usize = 32 * 1024;

/// The smallest period of the newest bytes that `accept(period, length)` takes, with the length of the
/// stretch that has it. Only the newest `reach` bytes are looked at.
pub(super) fn smallest_period(
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
pub(super) struct Anchor([u8; 4]);

impl Anchor {
    /// Distances from the first of the four.
    const AT: [usize; 4] = [0, 9, 16, 21];
    /// From the first of the four to the last.
    pub(super) const WIDTH: usize = 22;

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
pub(super) fn last(text: &[u8], count: usize) -> &[u8] {
    &text[text.len().saturating_sub(count)..]
}

/// How many of the newest bytes equal those `period` before them.
fn common_suffix(text: &[u8], period: usize) -> usize {
    let new = &text[period..];
    let old = &text[..text.len() - period];
    // Blocks of a fixed length, so that comparing two of them is a few vector instructions.
    let (mut new_rest, new_blocks) = new.as_rchunks::<16>();
    let (mut old_rest, old_blocks) = old.as_rchunks::<16>();
    let blocks = new_blocks
        .iter()
        .rev()
        .zip(old_blocks.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    if let Some(differs) = new_blocks.len().checked_sub(blocks + 1) {
        new_rest = &new_blocks[differs];
        old_rest = &old_blocks[differs];
    }
    let more = new_rest
        .iter()
        .rev()
        .zip(old_rest.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    blocks * 16 + more
}

/// The same by a Z-function over the reversed text: linear whatever the text.
pub(super) fn by_z_function(
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
