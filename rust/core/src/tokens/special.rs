//! Finding special tokens in a text before anything else is done with it.
//!
//! llama.cpp takes the special tokens one by one, the longest first, and cuts every occurrence of each
//! out of what is left of the text. The same result is had here in one pass: matches of an automaton that
//! may overlap form a cluster, and within a cluster the longest token wins, the leftmost of equals. Tokens
//! that repeat one character (Gemma has one for each number of newlines up to 31) would make clusters
//! of any size and are found by counting instead.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, MatchKind};

use super::vocab::{Vocab, attr};

/// A cluster with more matches than this is resolved token by token.
const MANY: usize = 4096;

/// Part of a text: a special token, or text that is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fragment {
    Token(u32),
    Text(Range<usize>),
}

/// Which special tokens are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// CONTROL, UNKNOWN and USER_DEFINED: `parse_special` of llama.cpp.
    All,
    /// USER_DEFINED only: what llama.cpp always finds.
    UserDefined,
    /// USER_DEFINED tokens that are nothing but blanks: all that is looked for in text of others.
    Blank,
}

#[derive(Clone)]
struct Pattern {
    id: u32,
    text: Box<[u8]>,
    strip_left: bool,
    strip_right: bool,
}

/// Tokens that are one ASCII character so many times, which no other token looked for contains.
struct Runs {
    /// Times and id, the most first.
    sizes: Vec<(usize, u32)>,
    /// For a run of this length, up to the longest token's: place of the first of `sizes` that fits.
    fits: Vec<u32>,
}

impl Runs {
    fn number(&mut self) {
        let most = self.sizes.first().map_or(0, |&(size, _)| size);
        self.fits = (0..=most)
            .map(|len| self.sizes.partition_point(|&(size, _)| size > len) as u32)
            .collect();
    }

    /// The longest token in a run of `len`.
    #[inline(always)]
    fn longest(&self, len: usize) -> Option<(usize, u32)> {
        let place = self.fits[len.min(self.fits.len() - 1)];
        self.sizes.get(place as usize).copied()
    }
}

/// A byte that is a token by itself begins a run that may be one, another where its like follows.
const ALONE: u8 = 1;
const WITH_ITS_LIKE: u8 = 2;

struct Finder {
    /// The longest first, as llama.cpp takes them.
    patterns: Vec<Pattern>,
    automaton: Option<AhoCorasick>,
    longest: usize,
    runs: Vec<Runs>,
    /// For each byte, the place in `runs` of its family + 1.
    run_of: [u8; 256],
    /// For each byte that `run_of` knows [`ALONE`] or [`WITH_ITS_LIKE`].
    begins: [u8; 256],
}

/// Special tokens of a vocabulary, and what finds them, each built when first needed.
pub struct Specials {
    patterns: Vec<(Pattern, u8)>,
    finders: [OnceLock<Option<Finder>>; 3],
}

pub fn is_blank(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.chars().all(char::is_whitespace))
}

impl Specials {
    pub fn new(vocab: &Vocab) -> Self {
        let mut patterns: Vec<_> = vocab
            .special()
            .map(|(id, text, kind)| {
                let pattern = Pattern {
                    id,
                    text: text.into(),
                    strip_left: kind & attr::STRIP_LEFT != 0,
                    strip_right: kind & attr::STRIP_RIGHT != 0,
                };
                (pattern, kind)
            })
            .collect();
        // Stable: equals stay in the order of their ids.
        patterns.sort_by_key(|(pattern, _)| Reverse(pattern.text.len()));
        Self {
            patterns,
            finders: [const { OnceLock::new() }; 3],
        }
    }

    /// Cuts `text` at the special tokens looked for; fragments of text are never empty.
    pub fn cut(&self, text: &[u8], looked: Looked, mut piece: impl FnMut(Fragment)) {
        match self.finders[looked as usize].get_or_init(|| self.build(looked)) {
            Some(finder) => finder.cut(text, &mut piece),
            None if text.is_empty() => {}
            None => piece(Fragment::Text(0..text.len())),
        }
    }

    fn build(&self, looked: Looked) -> Option<Finder> {
        let wanted = |(pattern, kind): &&(Pattern, u8)| {
            let always = kind & (attr::CONTROL | attr::UNKNOWN) == 0;
            match looked {
                Looked::All => true,
                Looked::UserDefined => always,
                Looked::Blank => always && is_blank(&pattern.text),
            }
        };
        let all: Vec<Pattern> = self
            .patterns
            .iter()
            .filter(wanted)
            .map(|(pattern, _)| pattern.clone())
            .collect();
        if all.is_empty() {
            return None;
        }
        let repeats = |pattern: &Pattern| {
            let first = pattern.text[0];
            first.is_ascii() && pattern.text.iter().all(|&byte| byte == first)
        };
        let mut elsewhere = [false; 256];
        for pattern in &all {
            if !repeats(pattern) || pattern.strip_left || pattern.strip_right {
                for &byte in &pattern.text {
                    elsewhere[usize::from(byte)] = true;
                }
            }
        }
        let mut runs: Vec<Runs> = Vec::new();
        let mut run_of = [0; 256];
        let mut patterns = Vec::new();
        for pattern in all {
            let first = usize::from(pattern.text[0]);
            if elsewhere[first] || !repeats(&pattern) {
                patterns.push(pattern);
                continue;
            }
            if run_of[first] == 0 {
                runs.push(Runs {
                    sizes: Vec::new(),
                    fits: Vec::new(),
                });
                run_of[first] = runs.len() as u8;
            }
            runs[usize::from(run_of[first]) - 1]
                .sizes
                .push((pattern.text.len(), pattern.id));
        }
        runs.iter_mut().for_each(Runs::number);
        let begins = run_of.map(
            |family: u8| match runs.get(usize::from(family).wrapping_sub(1)) {
                None => 0,
                Some(runs) if runs.sizes.iter().any(|&(size, _)| size == 1) => ALONE,
                Some(_) => WITH_ITS_LIKE,
            },
        );
        let automaton = (!patterns.is_empty())
            .then(|| {
                // Fails only past 2^31 states, which the texts of one header cannot ask for.
                AhoCorasick::builder()
                    .match_kind(MatchKind::Standard)
                    .build(patterns.iter().map(|pattern| &pattern.text))
                    .ok()
            })
            .flatten();
        let longest = patterns.first().map_or(0, |pattern| pattern.text.len());
        Some(Finder {
            patterns,
            automaton,
            longest,
            runs,
            run_of,
            begins,
        })
    }
}

impl Finder {
    /// Where in `text` the first run begins that may be a token.
    #[inline(always)]
    fn next_run(&self, text: &[u8]) -> Option<usize> {
        if self.runs.is_empty() {
            return None;
        }
        // Most single blanks are none: a search for the byte would stop at every word.
        let begins = |byte: u8, next: u8| {
            self.begins[usize::from(byte)] & (ALONE | (u8::from(byte == next) * WITH_ITS_LIKE))
        };
        let mut at = 0;
        while let Some(window) = text[at..].first_chunk::<17>() {
            let mut any = 0;
            for place in 0..16 {
                any |= begins(window[place], window[place + 1]);
            }
            if any != 0 {
                break;
            }
            at += 16;
        }
        let rest = &text[at..];
        (0..rest.len())
            .find(|&place| {
                let next = rest.get(place + 1).copied().unwrap_or(!rest[place]);
                begins(rest[place], next) != 0
            })
            .map(|place| at + place)
    }

    fn cut(&self, text: &[u8], piece: &mut impl FnMut(Fragment)) {
        let mut cutter = Cutter {
            text,
            finder: self,
            done: 0,
            taken: Vec::new(),
        };
        if let Some(automaton) = &self.automaton {
            let mut cluster: Vec<(usize, usize)> = Vec::new();
            let mut span = 0..0;
            for found in automaton.find_overlapping_iter(text) {
                // Matches come in the order of their ends: none that is still to come begins earlier.
                if found.end().saturating_sub(self.longest) >= span.end {
                    cutter.settle(&mut cluster, span.clone(), piece);
                    span = found.start()..found.end();
                }
                span = span.start.min(found.start())..found.end();
                if cluster.len() <= MANY {
                    cluster.push((found.pattern().as_usize(), found.start()));
                }
            }
            cutter.settle(&mut cluster, span, piece);
        }
        cutter.text_up_to(text.len(), piece);
    }
}

struct Cutter<'a> {
    text: &'a [u8],
    finder: &'a Finder,
    /// Everything before has been handed out.
    done: usize,
    taken: Vec<(Range<usize>, usize)>,
}

impl Cutter<'_> {
    /// Decides one cluster of overlapping matches and hands out what is before and in it.
    fn settle(
        &mut self,
        cluster: &mut Vec<(usize, usize)>,
        span: Range<usize>,
        piece: &mut impl FnMut(Fragment),
    ) {
        if cluster.is_empty() {
            return;
        }
        self.taken.clear();
        if cluster.len() <= MANY {
            // Patterns are numbered in llama.cpp's order.
            cluster.sort_unstable();
            for &(pattern, start) in cluster.iter() {
                let end = start + self.finder.patterns[pattern].text.len();
                let place = self.taken.partition_point(|(range, _)| range.end <= start);
                if self
                    .taken
                    .get(place)
                    .is_none_or(|(range, _)| range.start >= end)
                {
                    self.taken.insert(place, (start..end, pattern));
                }
            }
        } else {
            self.settle_many(span);
        }
        cluster.clear();
        let taken = std::mem::take(&mut self.taken);
        for (range, pattern) in &taken {
            // Blanks that the token before took with it may have been this one's beginning.
            if range.start < self.done {
                continue;
            }
            let pattern = &self.finder.patterns[*pattern];
            let mut text_end = range.start;
            if pattern.strip_left {
                while text_end > self.done && is_c_space(self.text[text_end - 1]) {
                    text_end -= 1;
                }
            }
            self.text_up_to(text_end, piece);
            piece(Fragment::Token(pattern.id));
            self.done = range.end;
            if pattern.strip_right {
                while self
                    .text
                    .get(self.done)
                    .is_some_and(|&byte| is_c_space(byte))
                {
                    self.done += 1;
                }
            }
        }
        self.taken = taken;
    }

    /// The same token by token, over the gaps that are left: no memory for the matches.
    fn settle_many(&mut self, span: Range<usize>) {
        let mut gaps = vec![span];
        for (index, pattern) in self.finder.patterns.iter().enumerate() {
            let finder = memchr::memmem::Finder::new(&pattern.text);
            let mut left = Vec::new();
            for gap in gaps {
                let mut from = gap.start;
                while let Some(place) = finder.find(&self.text[from..gap.end]) {
                    let start = from + place;
                    if start > from {
                        left.push(from..start);
                    }
                    from = start + pattern.text.len();
                    self.taken.push((start..from, index));
                }
                if from < gap.end {
                    left.push(from..gap.end);
                }
            }
            gaps = left;
        }
        self.taken.sort_unstable_by_key(|(range, _)| range.start);
    }

    /// Hands out the text before `end`, with the repeated characters in it as tokens.
    fn text_up_to(&mut self, end: usize, piece: &mut impl FnMut(Fragment)) {
        let mut at = self.done;
        while let Some(found) = self.finder.next_run(&self.text[at..end]) {
            let start = at + found;
            let byte = self.text[start];
            let family = usize::from(self.finder.run_of[usize::from(byte)]);
            at = start;
            while at < end && self.text[at] == byte {
                at += 1;
            }
            let mut from = start;
            while let Some((size, id)) = self.finder.runs[family - 1].longest(at - from) {
                if from > self.done {
                    piece(Fragment::Text(self.done..from));
                }
                piece(Fragment::Token(id));
                from += size;
                self.done = from;
            }
        }
        if end > self.done {
            piece(Fragment::Text(self.done..end));
            self.done = end;
        }
    }
}

/// `isspace` of C's own locale.
fn is_c_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}
