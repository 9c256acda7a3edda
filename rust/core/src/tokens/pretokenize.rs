//! Which rules a `tokenizer.ggml.pre` stands for, and running them.

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

/// What llama.cpp derives from the name alone, where the file does not say otherwise.
#[derive(Clone, Copy, Debug)]
pub struct PreTraits {
    pub pre: Pre,
    /// A word that is a token is that token, whatever the merges say.
    pub ignore_merges: bool,
    pub add_bos: bool,
    /// Blanks are written as U+2581, and text is not byte-encoded.
    pub escape_whitespace: bool,
}

impl PreTraits {
    /// By the value of `tokenizer.ggml.pre`; `None` for a name that is not known.
    pub fn by_name(name: &str) -> Option<Self> {
        use Pre as P;
        let pre = match name {
            "" | "default" => P::Default,
            "afmoe" => P::Afmoe,
            "bailingmoe" | "bailingmoe2" | "llada-moe" => P::Qwen2,
            "bloom" | "gpt3-finnish" | "poro-chat" => P::Bloom,
            "chameleon" => P::Chameleon,
            "chatglm-bpe" | "glm4" | "glm5" | "dbrx" | "smaug-bpe" => P::Llama3,
            "deepseek-coder" => P::DeepseekCoder,
            "deepseek-llm" => P::DeepseekLlm,
            "deepseek-v3" | "hunyuan-dense" | "hy_v4" | "joyai-llm" => P::Deepseek3,
            "exaone-moe" => P::ExaoneMoe,
            "falcon" => P::Falcon,
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es"
            | "jina-v2-de" | "a.x-4.0" | "mellum" | "modern-bert" | "jina-v1-en"
            | "jina-v2-code" | "roberta-bpe" | "mpt" | "olmo" | "jais" | "trillion"
            | "granite-docling" | "exaone4" => P::Gpt2,
            "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => P::Gpt4o,
            "granite-embed-multi-97m" => P::GraniteEmbed,
            "jais-2" => P::Jais2,
            "kimi-k2" => P::KimiK2,
            "laguna" => P::Laguna,
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" | "jina-v5-nano" => P::Llama3,
            "minicpm5" => P::Minicpm5,
            "gemma4" | "granite-embed-multi-311m" | "sarvam-moe" => P::Newlines,
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "stablelm2" | "hunyuan"
            | "solar-open" | "megrez" | "grok-2" => P::Qwen2,
            "qwen35" => P::Qwen35,
            "seed-coder" => P::SeedCoder,
            "spark2_5" => P::Spark25,
            "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone"
            | "minerva-7b" | "mellum2" => P::Starcoder,
            "superbpe" => P::Superbpe,
            "tekken" => P::Tekken,
            "tiny_aya" | "cohere2moe" => P::TinyAya,
            "ufakzeka" => P::Ufakzeka,
            "viking" => P::Viking,
            "youtu" => P::Youtu,
            _ => return None,
        };
        let llama3 = matches!(
            name,
            "llama3"
                | "llama-v3"
                | "llama-bpe"
                | "falcon3"
                | "falcon-h1"
                | "pixtral"
                | "midm-2.0"
                | "lfm2"
                | "jina-v5-nano"
        );
        Some(Self {
            pre,
            ignore_merges: llama3
                || matches!(
                    name,
                    "minicpm5" | "youtu" | "glm4" | "glm5" | "tekken" | "granite-embed-multi-97m"
                ),
            add_bos: llama3 || matches!(name, "tekken" | "chameleon"),
            escape_whitespace: pre == P::Newlines,
        })
    }
}

const DEEPSEEK_LETTERS: &[(u32, u32)] = &[
    (0x41, 0x5a),
    (0x61, 0x7a),
    (0xb5, 0xb5),
    (0xc0, 0xd6),
    (0xd8, 0xf6),
    (0xf8, 0x1ba),
    (0x1bc, 0x1bf),
    (0x1c4, 0x293),
    (0x295, 0x2af),
    (0x370, 0x373),
    (0x376, 0x377),
    (0x37b, 0x37d),
    (0x37f, 0x37f),
    (0x386, 0x386),
    (0x388, 0x38a),
    (0x38c, 0x38c),
    (0x38e, 0x3a1),
    (0x3a3, 0x3f5),
    (0x3f7, 0x481),
    (0x48a, 0x52f),
    (0x531, 0x556),
    (0x10a0, 0x10c5),
    (0x13a0, 0x13f5),
    (0x13f8, 0x13fd),
    (0x1c90, 0x1cba),
    (0x1cbd, 0x1cbf),
    (0x1d00, 0x1d2b),
    (0x1d6b, 0x1d77),
    (0x1d79, 0x1d9a),
    (0x1e00, 0x1f15),
    (0x1f18, 0x1f1d),
    (0x1f20, 0x1f45),
    (0x1f48, 0x1f4d),
    (0x1f50, 0x1f57),
    (0x1f59, 0x1f59),
    (0x1f5b, 0x1f5b),
    (0x1f5d, 0x1f5d),
    (0x1f5f, 0x1f7d),
    (0x1f80, 0x1fb4),
    (0x1fb6, 0x1fbc),
    (0x1fbe, 0x1fbe),
    (0x1fc2, 0x1fc4),
    (0x1fc6, 0x1fcc),
    (0x1fd0, 0x1fd3),
    (0x1fd6, 0x1fdb),
    (0x1fe0, 0x1fec),
    (0x1ff2, 0x1ff4),
    (0x1ff6, 0x1ffc),
    (0x2102, 0x2102),
    (0x2107, 0x2107),
    (0x210a, 0x2113),
    (0x2115, 0x2115),
    (0x2119, 0x211d),
    (0x2124, 0x2124),
    (0x2126, 0x2126),
    (0x2128, 0x2128),
    (0x212a, 0x212d),
    (0x212f, 0x2134),
    (0x2139, 0x2139),
    (0x213c, 0x213f),
    (0x2145, 0x2149),
    (0x214e, 0x214e),
    (0x2183, 0x2184),
    (0x2c00, 0x2c7b),
    (0x2c7e, 0x2ce4),
    (0x2ceb, 0x2cee),
    (0x2cf2, 0x2cf3),
    (0xa640, 0xa66d),
    (0xa680, 0xa69b),
    (0xa722, 0xa76f),
    (0xa771, 0xa787),
    (0xa78b, 0xa78e),
    (0xab70, 0xabbf),
    (0xfb00, 0xfb06),
    (0xfb13, 0xfb17),
    (0xff21, 0xff3a),
    (0xff41, 0xff5a),
    (0x10400, 0x1044f),
    (0x104b0, 0x104d3),
    (0x104d8, 0x104fb),
    (0x10c80, 0x10cb2),
    (0x10cc0, 0x10cf2),
    (0x118a0, 0x118df),
    (0x1e900, 0x1e943),
];
const DEEPSEEK_PUNCTUATION: &[(u32, u32)] = &[
    (0x21, 0x2f),
    (0x3a, 0x7e),
    (0xff01, 0xff0f),
    (0xff1a, 0xff5e),
    (0x2018, 0x201f),
    (0x3000, 0x3002),
];
const DEEPSEEK_EAST_ASIAN: &[(u32, u32)] = &[(0x800, 0x9fa5), (0xac00, 0xd7ff)];
const HAN_AND_KANA: &[(u32, u32)] = &[(0x4e00, 0x9fa5), (0x3040, 0x30ff)];
const HANGUL: &[(u32, u32)] = &[(0xac00, 0xd7a3), (0x3131, 0x318e)];
const FULL_WIDTH_PUNCTUATION: &[(u32, u32)] = &[
    (0xff01, 0xff01),
    (0x2026, 0x2026),
    (0x201c, 0x201d),
    (0x2018, 0x2019),
    (0x2014, 0x2014),
    (0xff1a, 0xff1b),
    (0xff0c, 0xff0c),
    (0x3001, 0x303f),
    (0xfe30, 0xfe4f),
];
const BOPOMOFO: &[(u32, u32)] = &[(0x3105, 0x312f)];
const AFMOE_ASIAN: &[(u32, u32)] = &[
    (0x4e00, 0x9fff),
    (0x3400, 0x4dbf),
    (0x8c48, 0xfaff),
    (0x3040, 0x30ff),
    (0xff65, 0xff9f),
    (0x2f00, 0x2fdf),
    (0xe40, 0xe7f),
    (0xe80, 0xeff),
    (0x1780, 0x17ff),
    (0x1000, 0x109f),
    (0xaa60, 0xaa7f),
    (0xa9e0, 0xa9ff),
    (0xac00, 0xd7af),
    (0x1100, 0x11ff),
];

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
pub mod tests {
    use super::*;

    fn pieces(name: &str, text: &str) -> Vec<String> {
        let pre = PreTraits::by_name(name).expect("a known name").pre;
        let mut out = Vec::new();
        pre.for_each_range(text.as_bytes(), |start, end| {
            out.push(text[start..end].to_owned())
        });
        out
    }

    #[test]
    fn known_pieces() {
        let rows: &[(&str, &str, &[&str])] = &[
            (
                "gpt-2",
                "don't  go 12 now",
                &["don", "'t", " ", " go", " 12", " now"],
            ),
            (
                "smollm",
                "ab 12  3\n",
                &["ab", " ", "1", "2", "  ", "3", "\n"],
            ),
            (
                "llama-bpe",
                "DON'T 12345 x\n\n y",
                &["DON", "'T", " ", "123", "45", " x", "\n\n", " y"],
            ),
            (
                "qwen2",
                "(foo)12 \n  \tz",
                &["(foo", ")", "1", "2", " \n", "  ", "\tz"],
            ),
            ("qwen35", "e\u{301}a \u{301}", &["e\u{301}a", " \u{301}"]),
            (
                "gpt-4o",
                "fooBar HTTPServer ÉAB's",
                &["foo", "Bar", " HTTPServer", " É", "AB's"],
            ),
            ("tekken", "fooBAR's/\n", &["foo", "BAR", "'s", "/\n"]),
            (
                "deepseek-v3",
                "a12345@foo 日本go\u{1}\u{2}",
                &["a", "123", "45", "@foo", " ", "日本", "go", "\u{1}\u{2}"],
            ),
            ("superbpe", "x1234567", &["x", "1", "234", "567"]),
            ("afmoe", "ab1234", &["ab", "1", "234"]),
            ("falcon", "a==1234", &["a", "==", "123", "4"]),
            ("gemma4", "a b\n\nc", &["a b", "\n\n", "c"]),
            ("bloom", "ab, cd", &["ab", ",", " cd"]),
            ("kimi-k2", "ab日本's", &["ab", "日本", "'s"]),
            ("exaone-moe", "ab cd 1", &["ab cd", " ", "1"]),
            ("jais-2", "       x", &["    ", "  ", " x"]),
        ];
        for (name, text, want) in rows {
            assert_eq!(pieces(name, text), *want, "{name} {text:?}");
        }
    }

    pub const NAMES: &[&str] = &[
        "default",
        "afmoe",
        "bloom",
        "chameleon",
        "deepseek-coder",
        "deepseek-llm",
        "deepseek-v3",
        "exaone-moe",
        "falcon",
        "gpt-2",
        "gpt-4o",
        "granite-embed-multi-97m",
        "jais-2",
        "kimi-k2",
        "laguna",
        "llama-bpe",
        "minicpm5",
        "gemma4",
        "qwen2",
        "qwen35",
        "seed-coder",
        "spark2_5",
        "starcoder",
        "superbpe",
        "tekken",
        "tiny_aya",
        "ufakzeka",
        "viking",
        "youtu",
    ];

    #[test]
    fn pieces_make_up_the_text() {
        let text = "Don't  STOP éA\u{301}\u{301} 12345 ٣٤٥ <sentinel:1> IMGIMGABZ ~~//\r\n\n\t x\u{3000}日本語、ok한국\u{1}\u{200d}   ";
        for name in NAMES {
            for (end, _) in text.char_indices() {
                assert_eq!(pieces(name, &text[..end]).concat(), text[..end], "{name}");
            }
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        assert!(PreTraits::by_name("llama-bpe2").is_none());
    }
}
