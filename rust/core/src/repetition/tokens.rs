//! Noticing early, in tokens, that a reply has begun to repeat itself.

use std::collections::HashMap;

/// So many tokens in a row must come again before a reply counts as repeating: a phrase, not a word.
const WINDOW: usize = 8;
/// The longest cycle, in tokens.
const LONGEST: usize = 512;

/// Follows the tokens of one reply. What the guard judges needs several copies; this tells from the second on,
/// so that text can be held back meanwhile.
#[derive(Clone, Debug, Default)]
pub struct LoopWatch {
    tokens: Vec<i32>,
    period: usize,
    /// Tokens in a row that equal the one a period before.
    run: usize,
    /// Where each window ended last.
    seen: HashMap<[i32; WINDOW], usize>,
}

impl LoopWatch {
    /// All tokens so far.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Tokens of the running cycle, 0 where there is none.
    pub fn period(&self) -> usize {
        self.period
    }

    /// Take the next token; whether the reply is now repeating, by a whole copy at least.
    pub fn push(&mut self, token: i32) -> bool {
        let at = self.tokens.len();
        self.tokens.push(token);
        if self.period > 0 && self.tokens[at - self.period] == token {
            self.run += 1;
        } else {
            (self.period, self.run) = (0, 0);
        }
        if let Some(&window) = self.tokens.last_chunk::<WINDOW>() {
            let before = self.seen.insert(window, at);
            if let Some(before) = before.filter(|before| self.period == 0 && at - before <= LONGEST)
            {
                (self.period, self.run) = (at - before, WINDOW);
            }
        }
        self.repeating()
    }

    pub fn repeating(&self) -> bool {
        self.period > 0 && self.run >= self.period.max(WINDOW)
    }

    /// How many tokens to keep so that the reply ends with a whole copy, and with all of the first `shown`.
    pub fn boundary(&self, shown: usize) -> usize {
        let first = self.tokens.len() - self.run;
        let copies = match self.period {
            0 => 0,
            period => shown.saturating_sub(first).div_ceil(period),
        };
        self.tokens.len().min(first + copies * self.period)
    }

    /// Forget all tokens but the first `keep`.
    pub fn rewind(&mut self, keep: usize) {
        self.tokens.truncate(keep);
        (self.period, self.run) = (0, 0);
        self.seen.retain(|_, at| *at < keep);
    }
}

#[cfg(test)]
mod tests {
    use super::LoopWatch;

    #[test]
    fn a_cycle_is_seen_after_a_whole_copy() {
        let mut watch = LoopWatch::default();
        assert!((0..50).all(|token| !watch.push(token)));
        let states: Vec<bool> = (0..48).map(|n| watch.push(100 + n % 12)).collect();
        assert_eq!(states.iter().position(|&state| state), Some(23));
        assert!(states[23..].iter().all(|&state| state));
        assert_eq!(watch.period(), 12);
        assert_eq!(watch.boundary(50 + 24), 74);
        assert_eq!(watch.boundary(50 + 25), 86);
        watch.rewind(74);
        assert_eq!((watch.tokens().len(), watch.period()), (74, 0));
        assert!(!watch.push(999));
    }
}
