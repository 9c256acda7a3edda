//! The loop that both BPE and SPM come down to: merge the best adjacent pair until none is left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A stretch of the word that is one symbol.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    pub id: u32,
    pub start: u32,
    pub len: u32,
}

/// No pair.
const NONE: u32 = u32::MAX;
/// Up to here, searching the pairs one by one is faster than a heap.
const FEW: usize = 48;

/// Room for merging, used again and again.
#[derive(Default)]
pub struct Scratch {
    pub symbols: Vec<Symbol>,
    ranks: Vec<u32>,
    merged: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
    heap: BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
}

impl Scratch {
    /// Merges `symbols` in place. `pair` gives the rank of a pair (lower goes first, the leftmost of
    /// equals) and the id of what it becomes.
    pub fn merge(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        if self.symbols.len() <= FEW {
            self.merge_few(pair);
        } else {
            self.merge_many(pair);
        }
    }

    fn merge_few(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let Self {
            symbols,
            ranks,
            merged,
            ..
        } = self;
        ranks.clear();
        merged.clear();
        for both in symbols.windows(2) {
            let (rank, id) = pair(&both[0], &both[1]).unwrap_or((NONE, 0));
            ranks.push(rank);
            merged.push(id);
        }
        loop {
            let mut best = (NONE, 0);
            for (place, &rank) in ranks.iter().enumerate() {
                if rank < best.0 {
                    best = (rank, place);
                }
            }
            let (rank, place) = best;
            if rank == NONE {
                return;
            }
            symbols[place].id = merged[place];
            symbols[place].len += symbols[place + 1].len;
            symbols.remove(place + 1);
            ranks.remove(place);
            merged.remove(place);
            if place > 0 {
                (ranks[place - 1], merged[place - 1]) =
                    pair(&symbols[place - 1], &symbols[place]).unwrap_or((NONE, 0));
            }
            if place < ranks.len() {
                (ranks[place], merged[place]) =
                    pair(&symbols[place], &symbols[place + 1]).unwrap_or((NONE, 0));
            }
        }
    }

    fn merge_many(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let Self {
            symbols,
            merged,
            next,
            previous,
            heap,
            ..
        } = self;
        let count = symbols.len() as u32;
        heap.clear();
        next.clear();
        previous.clear();
        merged.clear();
        next.extend(1..=count);
        previous.extend((0..count).map(|place| place.wrapping_sub(1)));
        // The place, and the length both sides had: a pair whose sides have grown since is stale.
        let entry = |symbols: &[Symbol], left: u32, right: u32| {
            let (a, b) = (&symbols[left as usize], &symbols[right as usize]);
            pair(a, b).map(|(rank, id)| Reverse((rank, left, a.len + b.len, id)))
        };
        for right in 1..count {
            heap.extend(entry(symbols, right - 1, right));
        }
        while let Some(Reverse((_, left, len, id))) = heap.pop() {
            let right = next[left as usize];
            if symbols[left as usize].len == 0 || right >= count {
                continue;
            }
            if symbols[left as usize].len + symbols[right as usize].len != len {
                continue;
            }
            symbols[left as usize].id = id;
            symbols[left as usize].len = len;
            symbols[right as usize].len = 0;
            let after = next[right as usize];
            next[left as usize] = after;
            if after < count {
                previous[after as usize] = left;
                heap.extend(entry(symbols, left, after));
            }
            let before = previous[left as usize];
            if before < count {
                heap.extend(entry(symbols, before, left));
            }
        }
        symbols.retain(|symbol| symbol.len > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: look at every pair, merge the best, begin anew.
    fn slow(mut ids: Vec<u32>, pair: impl Fn(u32, u32) -> Option<(u32, u32)>) -> Vec<u32> {
        loop {
            let best = (1..ids.len())
                .filter_map(|right| {
                    pair(ids[right - 1], ids[right]).map(|(rank, id)| (rank, right, id))
                })
                .min();
            let Some((_, right, id)) = best else {
                return ids;
            };
            ids[right - 1] = id;
            ids.remove(right);
        }
    }

    #[test]
    fn both_loops_equal_the_definition() {
        // Symbols are sums: a pair merges where its sum has few bits, ranked by a scrambled sum.
        let pair = |a: u32, b: u32| {
            let sum = a + b;
            (sum.count_ones() <= 2).then_some((sum.wrapping_mul(0x9e37) % 97, sum))
        };
        let mut state = 1_u32;
        for len in (0..40).chain([47, 48, 49, 50, 200, 400]) {
            let ids: Vec<u32> = (0..len)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 16) % 4 + 1
                })
                .collect();
            let mut scratch = Scratch::default();
            let symbols: Vec<Symbol> = ids
                .iter()
                .enumerate()
                .map(|(start, &id)| Symbol {
                    id,
                    start: start as u32,
                    len: 1,
                })
                .collect();
            let by_symbol = |a: &Symbol, b: &Symbol| pair(a.id, b.id);
            let want = slow(ids, pair);
            for many in [false, true] {
                scratch.symbols.clone_from(&symbols);
                if many {
                    scratch.merge_many(by_symbol)
                } else {
                    scratch.merge_few(by_symbol)
                }
                let got: Vec<u32> = scratch.symbols.iter().map(|symbol| symbol.id).collect();
                assert_eq!(got, want, "{len} symbols, many: {many}");
                assert_eq!(
                    scratch.symbols.iter().map(|symbol| symbol.len).sum::<u32>(),
                    len
                );
            }
        }
    }
}
