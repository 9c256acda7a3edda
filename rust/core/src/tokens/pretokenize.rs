//! Which rules a `tokenizer.ggml.pre` stands for, and running them.

mod names;
mod ranges;

pub use names::PreTraits;
use ranges::{
    AFMOE_ASIAN, BOPOMOFO, DEEPSEEK_EAST_ASIAN, DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION,
    FULL_WIDTH_PUNCTUATION, HAN_AND_KANA, HANGUL,
};

use super::rules::{self, Cased, Segment, Trail};
use super::unicode::{LETTER, MARK, NUMBER, PUNCTUATION, SPACE};

/// A pre-tokenizer of the gpt2 family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pre {
    Default,
    Afmoe,
    Bloom,
    Chameleon,
    DeepseekCoder,
    DeepseekLlm,
    Deepseek3,
    ExaoneMoe,
    Falcon,
    Gpt2,
    Gpt4o,
    GraniteEmbed,
    Jais2,
    KimiK2,
    Laguna,
    Llama3,
    Minicpm5,
    Newlines,
    Qwen2,
    Qwen35,
    SeedCoder,
    Spark25,
    Starcoder,
    Superbpe,
    Tekken,
    TinyAya,
    Ufakzeka,
    Viking,
    Youtu,
}

const GPT4O: Cased = Cased {
    letters: LETTER,
    contractions: true,
    digits: 3,
};
const TEKKEN: Cased = Cased {
    letters: LETTER,
    contractions: false,
    digits: 1,
};
const GRANITE_EMBED: Cased = Cased {
    letters: LETTER | MARK,
    contractions: true,
    digits: 3,
};

/// One pass over a segment: pushes where each piece ends, relative to the segment.
type Pass = fn(Segment<'_>, &mut Vec<usize>);

/// A rule applied from left to right; what it matches nowhere lies between its matches as one piece.
#[inline(always)]
fn split(
    segment: Segment<'_>,
    ends: &mut Vec<usize>,
    rule: impl Fn(Segment<'_>, usize) -> Option<usize>,
) {
    let (mut at, mut from) = (0, 0);
    while at < segment.bytes.len() {
        match rule(segment, at) {
            Some(end) => {
                if at > from {
                    ends.push(at);
                }
                ends.push(end);
                at = end;
                from = end;
            }
            None => at += segment.at(at).1,
        }
    }
    if at > from {
        ends.push(at);
    }
}

macro_rules! pass {
    (|$segment:ident, $at:ident| $rule:expr) => {
        |segment: Segment<'_>, ends: &mut Vec<usize>| {
            split(segment, ends, |$segment: Segment<'_>, $at: usize| $rule)
        }
    };
}

const GPT2_PASS: Pass = pass!(|s, at| Some(rules::gpt2::<false>(s, at)));
const QWEN2_PASS: Pass = pass!(|s, at| Some(rules::llama3::<true, false, 1>(s, at, Trail::Breaks)));
const ONE_NUMBER: Pass = pass!(|s, at| rules::number_run(s, at, 1));
const THREE_NUMBERS: Pass = pass!(|s, at| rules::number_run(s, at, 3));
const NUMBERS: Pass = pass!(|s, at| rules::number_run(s, at, usize::MAX));
const THREE_DIGITS: Pass = pass!(|s, at| rules::three_digits(s, at));
const ONE_BREAK: Pass = pass!(|s, at| rules::one_break(s, at));
const HAN_AND_KANA_PASS: Pass = pass!(|s, at| rules::wide_class(s, at, HAN_AND_KANA));
const DEEPSEEK_EAST_ASIAN_PASS: Pass = pass!(|s, at| rules::wide_class(s, at, DEEPSEEK_EAST_ASIAN));
const DEEPSEEK3_PASS: Pass = pass!(|s, at| rules::deepseek3::<false>(s, at));

impl Pre {
    /// Pre-tokenizers that take more than one pass, in order.
    fn passes(self) -> &'static [Pass] {
        match self {
            Self::Default => {
                const {
                    &[
                        pass!(|s, at| rules::punctuation_run::<false>(s, at)),
                        GPT2_PASS,
                        NUMBERS,
                        THREE_DIGITS,
                    ]
                }
            }
            Self::Falcon => {
                const {
                    &[
                        pass!(|s, at| rules::punctuation_run::<true>(s, at)),
                        GPT2_PASS,
                        THREE_DIGITS,
                    ]
                }
            }
            Self::Afmoe => {
                const {
                    &[
                        digits_by_three,
                        pass!(|s, at| rules::wide_class(s, at, AFMOE_ASIAN)),
                        DEEPSEEK3_PASS,
                    ]
                }
            }
            Self::TinyAya => {
                const {
                    &[
                        digits_by_three,
                        pass!(|s, at| Some(rules::words_with_contractions(s, at, 3))),
                    ]
                }
            }
            Self::Bloom => const { &[pass!(|s, at| rules::bloom(s, at))] },
            Self::Viking => const { &[pass!(|s, at| rules::bloom(s, at)), ONE_NUMBER] },
            Self::Chameleon => {
                const {
                    &[
                        pass!(|s, at| rules::sentinel(s, at)),
                        pass!(|s, at| rules::image_token(s, at)),
                        pass!(|s, at| rules::chameleon_blank(s, at)),
                        ONE_NUMBER,
                        pass!(|s, at| rules::one_punctuation(s, at)),
                        GPT2_PASS,
                    ]
                }
            }
            Self::DeepseekCoder => {
                const {
                    &[
                        ONE_BREAK,
                        pass!(|s, at| rules::spaced_class(s, at, LETTER)),
                        pass!(|s, at| rules::spaced_class(s, at, PUNCTUATION)),
                        DEEPSEEK_EAST_ASIAN_PASS,
                        ONE_NUMBER,
                    ]
                }
            }
            Self::DeepseekLlm => {
                const {
                    &[
                        ONE_BREAK,
                        pass!(|s, at| rules::spaced_wide_class(s, at, DEEPSEEK_LETTERS)),
                        pass!(|s, at| rules::spaced_wide_class(s, at, DEEPSEEK_PUNCTUATION)),
                        pass!(|s, at| rules::closing_blanks(s, at)),
                        DEEPSEEK_EAST_ASIAN_PASS,
                        NUMBERS,
                    ]
                }
            }
            Self::Deepseek3 => const { &[THREE_NUMBERS, HAN_AND_KANA_PASS, DEEPSEEK3_PASS] },
            Self::Spark25 => {
                const {
                    &[
                        THREE_NUMBERS,
                        HAN_AND_KANA_PASS,
                        pass!(|s, at| rules::deepseek3::<true>(s, at)),
                        ONE_NUMBER,
                    ]
                }
            }
            Self::Jais2 => const { &[jais2] },
            Self::Laguna => const { &[lines, QWEN2_PASS] },
            Self::Minicpm5 => {
                const {
                    &[
                        THREE_NUMBERS,
                        pass!(|s, at| {
                            Some(rules::llama3::<true, false, { usize::MAX }>(
                                s,
                                at,
                                Trail::Breaks,
                            ))
                        }),
                    ]
                }
            }
            Self::Newlines => const { &[lines] },
            Self::Superbpe => const { &[NUMBERS, digits_from_the_right] },
            Self::Youtu => {
                const {
                    &[
                        pass!(|s, at| {
                            rules::wide_class(s, at, HANGUL)
                                .or_else(|| rules::wide_class(s, at, FULL_WIDTH_PUNCTUATION))
                                .or_else(|| rules::wide_class(s, at, BOPOMOFO))
                                .or_else(|| rules::wide_class(s, at, HAN_AND_KANA))
                        }),
                        pass!(|s, at| Some(rules::words_with_contractions(s, at, 1))),
                    ]
                }
            }
            _ => &[],
        }
    }

    /// Cuts `text` into pieces and hands out where each begins and ends.
    #[inline]
    pub fn for_each_range(self, text: &[u8], mut piece: impl FnMut(usize, usize)) {
        let segment = Segment::new(text);
        match self {
            Self::Gpt2 => each(segment, piece, rules::gpt2::<false>),
            Self::Starcoder => each(segment, piece, rules::gpt2::<true>),
            Self::Llama3 => {
                each(segment, piece, |s, at| {
                    rules::llama3::<true, false, 3>(s, at, Trail::Breaks)
                });
            }
            Self::Qwen2 => {
                each(segment, piece, |s, at| {
                    rules::llama3::<true, false, 1>(s, at, Trail::Breaks)
                });
            }
            Self::Qwen35 => {
                each(segment, piece, |s, at| {
                    rules::llama3::<true, true, 1>(s, at, Trail::Breaks)
                });
            }
            Self::SeedCoder => {
                each(segment, piece, |s, at| {
                    rules::llama3::<true, false, 1>(s, at, Trail::Nothing)
                });
            }
            Self::Ufakzeka => {
                each(segment, piece, |s, at| {
                    rules::llama3::<false, false, 1>(s, at, Trail::Breaks)
                });
            }
            Self::KimiK2 => each(segment, piece, rules::kimi_k2),
            Self::Gpt4o => each_some(segment, piece, |s, at| rules::cased(s, at, GPT4O)),
            Self::Tekken => each_some(segment, piece, |s, at| rules::cased(s, at, TEKKEN)),
            Self::GraniteEmbed => {
                each_some(segment, piece, |s, at| rules::cased(s, at, GRANITE_EMBED))
            }
            Self::ExaoneMoe => each_some(segment, piece, rules::exaone_moe),
            _ => {
                let mut start = 0;
                for end in self.ends(segment) {
                    piece(start, end);
                    start = end;
                }
            }
        }
    }

    fn ends(self, segment: Segment<'_>) -> Vec<usize> {
        let mut ends = vec![segment.bytes.len()];
        let mut found = Vec::new();
        for pass in self.passes() {
            let mut next = Vec::with_capacity(ends.len());
            let mut start = 0;
            for &end in &ends {
                found.clear();
                pass(
                    Segment {
                        bytes: &segment.bytes[start..end],
                        ..segment
                    },
                    &mut found,
                );
                next.extend(found.iter().map(|place| start + place));
                start = end;
            }
            ends = next;
        }
        ends
    }
}

/// A rule that matches everywhere.
#[inline(always)]
fn each(
    segment: Segment<'_>,
    mut piece: impl FnMut(usize, usize),
    rule: impl Fn(Segment<'_>, usize) -> usize,
) {
    let mut at = 0;
    while at < segment.bytes.len() {
        let end = rule(segment, at);
        piece(at, end);
        at = end;
    }
}

#[inline(always)]
fn each_some(
    segment: Segment<'_>,
    piece: impl FnMut(usize, usize),
    rule: impl Fn(Segment<'_>, usize) -> Option<usize>,
) {
    // These rules match at every character; the fallback only keeps the loop from standing still.
    each(segment, piece, |s, at| {
        rule(s, at).unwrap_or_else(|| at + s.at(at).1)
    });
}

/// `[^\n]+|[\n]+`.
fn lines(segment: Segment<'_>, ends: &mut Vec<usize>) {
    let mut at = 0;
    while at < segment.bytes.len() {
        let rest = &segment.bytes[at..];
        at += if rest[0] == b'\n' {
            rest.iter()
                .position(|&byte| byte != b'\n')
                .unwrap_or(rest.len())
        } else {
            memchr::memchr(b'\n', rest).unwrap_or(rest.len())
        };
        ends.push(at);
    }
}

/// Numbers in groups of three from the right. llama.cpp leaves what stands before a number in one piece
/// with the number's first group, and so does this.
fn digits_by_three(segment: Segment<'_>, ends: &mut Vec<usize>) {
    let mut at = 0;
    while at < segment.bytes.len() {
        let end = segment.run(at, NUMBER);
        if end == at {
            at += segment.at(at).1;
            continue;
        }
        let mut left = segment.bytes[at..end]
            .iter()
            .filter(|&&byte| byte & 0xc0 != 0x80)
            .count();
        while at < end {
            at += segment.at(at).1;
            left -= 1;
            if left % 3 == 0 {
                ends.push(at);
            }
        }
    }
    if ends.last() != Some(&segment.bytes.len()) {
        ends.push(segment.bytes.len());
    }
}

/// `(?=(\d{3})+(?!\d))`: cuts before every third ASCII digit, counted from the right of its run.
fn digits_from_the_right(segment: Segment<'_>, ends: &mut Vec<usize>) {
    let bytes = segment.bytes;
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes[at..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        for place in 0..digits {
            if (digits - place) % 3 == 0 && at + place > 0 {
                ends.push(at + place);
            }
        }
        at += digits.max(1);
    }
    ends.push(bytes.len());
}

/// JAIS 2: like Llama 3, but a run of blanks is cut into powers of two.
fn jais2(segment: Segment<'_>, ends: &mut Vec<usize>) {
    let mut at = 0;
    while at < segment.bytes.len() {
        let end = rules::llama3::<true, false, 3>(segment, at, Trail::Breaks);
        let piece = &segment.bytes[at..end];
        let blank = segment.run(at, SPACE) >= end;
        if !blank || memchr::memchr2(b'\r', b'\n', piece).is_some() {
            ends.push(end);
            at = end;
            continue;
        }
        // Up to the last blank, which the word that follows may want.
        let run_end = segment.run(at, SPACE);
        let closes = run_end == segment.bytes.len();
        let mut left = segment.bytes[at..run_end]
            .iter()
            .filter(|&&byte| byte & 0xc0 != 0x80)
            .count();
        while left > 0 {
            let fits = |size: usize| size < left || (size == left && closes);
            let size = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1]
                .into_iter()
                .find(|&size| fits(size));
            if size.is_none() && end < run_end {
                break;
            }
            let size = size.unwrap_or(1);
            for _ in 0..size {
                at += segment.at(at).1;
            }
            left -= size;
            ends.push(at);
        }
    }
}

#[cfg(test)]
pub mod tests;
