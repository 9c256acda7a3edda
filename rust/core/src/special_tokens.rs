//! Which spellings a chat template or tokenizer takes for control tokens.
//!
//! [`SpecialTokens`] finds them; [`crate::neutralize`] breaks them.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use aho_corasick::packed;
use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind, Anchored, Input, MatchKind};

use crate::code_points::Firsts;

/// Control tokens by model family. `<|` and `<｜` stand for every spelling that begins so.
///
/// The rows are what the families' own tokenizers mark as special. The default set holds only
/// spellings that ordinary text does not use; what a family adds beyond it (`<s>` is HTML, `[ARGS]` is
/// a usage line) stands in the second list of its row.
const FAMILIES: &[(&str, &[&str], &[&str])] = &[
    (
        "apertus",
        &[
            "<|assistant_start|>",
            "<|assistant_end|>",
            "<|user_start|>",
            "<|user_end|>",
            "<|system_start|>",
            "<|system_end|>",
            "<|developer_start|>",
            "<|developer_end|>",
            "<|inner_prefix|>",
            "<|inner_suffix|>",
            "<|tools_prefix|>",
            "<|tools_suffix|>",
        ],
        &["<s>", "</s>"],
    ),
    (
        "chatml",
        &[
            "<|im_start|>",
            "<|im_end|>",
            "<|im_sep|>",
            "<|im_middle|>",
            "<|endoftext|>",
        ],
        &[],
    ),
    (
        "cohere",
        &[
            "<|START_OF_TURN_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
            "<|SYSTEM_TOKEN|>",
            "<|USER_TOKEN|>",
            "<|CHATBOT_TOKEN|>",
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            "<|START_TOOL_RESULT|>",
            "<|END_TOOL_RESULT|>",
            "<BOS_TOKEN>",
            "<EOS_TOKEN>",
            "<EOP_TOKEN>",
        ],
        &["<PAD>", "<UNK>", "<CLS>", "<SEP>"],
    ),
    (
        "deepseek",
        &[
            "<｜",
            "<｜begin▁of▁sentence｜>",
            "<｜end▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜fim▁begin｜>",
            "<｜fim▁hole｜>",
            "<｜fim▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁outputs▁begin｜>",
            "<｜tool▁outputs▁end｜>",
            "<｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜>",
            "<｜tool▁sep｜>",
            "<｜DSML｜",
            "<|EOT|>",
        ],
        &[],
    ),
    (
        "exaone",
        &[
            "[|system|]",
            "[|user|]",
            "[|assistant|]",
            "[|tool|]",
            "[|endofturn|]",
            "[BOS]",
        ],
        &["[PAD]", "[UNK]"],
    ),
    (
        "falcon",
        &[
            "<|system|>",
            "<|user|>",
            "<|assistant|>",
            "<|endoftext|>",
            ">>QUESTION<<",
            ">>ANSWER<<",
            ">>TITLE<<",
            ">>ABSTRACT<<",
            ">>INTRODUCTION<<",
            ">>SUMMARY<<",
            ">>COMMENT<<",
            ">>PREFIX<<",
            ">>SUFFIX<<",
            ">>MIDDLE<<",
            ">>DOMAIN<<",
        ],
        &[],
    ),
    (
        "gemma",
        &[
            "<start_of_turn>",
            "<end_of_turn>",
            "<start_of_image>",
            "<end_of_image>",
            "<image_soft_token>",
            "<start_of_audio>",
            "<end_of_audio>",
            "<start_function_call>",
            "<end_function_call>",
            "<start_function_response>",
            "<end_function_response>",
            "<start_function_declaration>",
            "<end_function_declaration>",
            "<|turn>",
            "<turn|>",
            "<|channel>",
            "<channel|>",
            "<|tool>",
            "<tool|>",
            "<|tool_call>",
            "<tool_call|>",
            "<|tool_response>",
            "<tool_response|>",
            "<bos>",
            "<eos>",
        ],
        &["<pad>", "<unk>", "<mask>"],
    ),
    (
        "glm",
        &[
            "<|system|>",
            "<|user|>",
            "<|assistant|>",
            "<|observation|>",
            "<|endoftext|>",
            "<|begin_of_image|>",
            "<|end_of_image|>",
            "[gMASK]",
            "[sMASK]",
            "<sop>",
            "<eop>",
        ],
        &["[MASK]"],
    ),
    (
        "gpt-oss",
        &[
            "<|startoftext|>",
            "<|endoftext|>",
            "<|start|>",
            "<|end|>",
            "<|message|>",
            "<|channel|>",
            "<|constrain|>",
            "<|call|>",
            "<|return|>",
            "<|endofprompt|>",
        ],
        &[],
    ),
    (
        "granite",
        &[
            "<|start_of_role|>",
            "<|end_of_role|>",
            "<|end_of_text|>",
            "<|tool_call|>",
            "<|start_of_cite|>",
            "<|end_of_cite|>",
            "<|start_of_plugin|>",
            "<|end_of_plugin|>",
            "<fim_prefix>",
            "<fim_middle>",
            "<fim_suffix>",
            "<fim_pad>",
        ],
        &["<filename>", "<reponame>", "<empty_output>"],
    ),
    (
        "kimi",
        &[
            "<|im_system|>",
            "<|im_user|>",
            "<|im_assistant|>",
            "<|im_middle|>",
            "<|im_end|>",
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            "<|tool_call_argument_begin|>",
            "[EOS]",
            "[EOT]",
            "[BOS]",
        ],
        &["[PAD]", "[UNK]"],
    ),
    (
        "llama2",
        &["<<SYS>>", "<</SYS>>", "[INST]", "[/INST]"],
        &["<s>", "</s>", "<unk>"],
    ),
    (
        "llama3",
        &[
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
            "<|python_tag|>",
            "<|finetune_right_pad_id|>",
            "<|image|>",
        ],
        &[],
    ),
    (
        "llama4",
        &[
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|header_start|>",
            "<|header_end|>",
            "<|eot|>",
            "<|eom|>",
            "<|python_start|>",
            "<|python_end|>",
            "<|image_start|>",
            "<|image_end|>",
        ],
        &[],
    ),
    ("minimax", &["]~b]", "]~!b[", "[e~[", "]!d~[", "]!p~["], &[]),
    (
        "mistral",
        &[
            "[INST]",
            "[/INST]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_CALLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
            "[TOOL_CONTENT]",
            "[SYSTEM_PROMPT]",
            "[/SYSTEM_PROMPT]",
            "[MODEL_SETTINGS]",
            "[/MODEL_SETTINGS]",
            "[CALL_ID]",
            "[BEGIN_AUDIO]",
            "[IMG_BREAK]",
            "[IMG_END]",
            "[THINK]",
            "[/THINK]",
        ],
        &[
            "[ARGS]",
            "[IMG]",
            "[AUDIO]",
            "[TRANSCRIBE]",
            "[PREFIX]",
            "[MIDDLE]",
            "[SUFFIX]",
            "<s>",
            "</s>",
            "<unk>",
            "<pad>",
        ],
    ),
    (
        "nemotron",
        &[
            "<extra_id_0>",
            "<extra_id_1>",
            "<SPECIAL_10>",
            "<SPECIAL_11>",
            "<SPECIAL_12>",
            "<|im_start|>",
            "<|im_end|>",
        ],
        &["<s>", "</s>"],
    ),
    (
        "phi",
        &[
            "<|system|>",
            "<|user|>",
            "<|assistant|>",
            "<|end|>",
            "<|endoftext|>",
            "<|im_start|>",
            "<|im_sep|>",
            "<|im_end|>",
            "<|tool|>",
            "<|/tool|>",
            "<|tool_call|>",
            "<|/tool_call|>",
            "<|tool_response|>",
        ],
        &["<s>", "</s>"],
    ),
    (
        "qwen",
        &[
            "<|im_start|>",
            "<|im_end|>",
            "<|endoftext|>",
            "<|object_ref_start|>",
            "<|object_ref_end|>",
            "<|box_start|>",
            "<|box_end|>",
            "<|quad_start|>",
            "<|quad_end|>",
            "<|vision_start|>",
            "<|vision_end|>",
            "<|vision_pad|>",
            "<|image_pad|>",
            "<|video_pad|>",
            "<|fim_prefix|>",
            "<|fim_middle|>",
            "<|fim_suffix|>",
            "<|fim_pad|>",
            "<|repo_name|>",
            "<|file_sep|>",
        ],
        &[],
    ),
    (
        "seed",
        &[
            "<seed:bos>",
            "<seed:eos>",
            "<seed:pad>",
            "<seed:think>",
            "</seed:think>",
            "<seed:tool_call>",
            "</seed:tool_call>",
            "<seed:cot_budget_reflect>",
            "</seed:cot_budget_reflect>",
        ],
        &[],
    ),
    (
        "starcoder",
        &[
            "<|endoftext|>",
            "<fim_prefix>",
            "<fim_middle>",
            "<fim_suffix>",
            "<fim_pad>",
            "<repo_name>",
            "<file_sep>",
            "<issue_start>",
            "<issue_comment>",
            "<issue_closed>",
            "<jupyter_start>",
            "<jupyter_text>",
            "<jupyter_code>",
            "<jupyter_output>",
            "<commit_before>",
            "<commit_msg>",
            "<commit_after>",
        ],
        &["<filename>", "<gh_stars>", "<empty_output>"],
    ),
];

/// How many bytes of a spelling the SIMD scan looks at; the rest is checked where it stops.
const SCAN_PREFIX: usize = 3;

/// A set of control-token spellings.
pub struct SpecialTokens {
    tokens: Vec<String>,
    longest: AhoCorasick,
    pub(crate) starts: Starts,
    pub(crate) firsts: Option<Firsts>,
}

static DEFAULT: LazyLock<SpecialTokens> = LazyLock::new(|| {
    let spellings = FAMILIES
        .iter()
        .flat_map(|(_, plain, _)| plain.iter().copied());
    SpecialTokens::new(spellings.chain(["<|"]))
});

impl SpecialTokens {
    /// The set of these spellings; empty ones are left out.
    pub fn new<S: Into<String>>(tokens: impl IntoIterator<Item = S>) -> Self {
        Self::of(tokens.into_iter().map(Into::into).collect())
    }

    /// By itself, and not part of each caller: compilers spend minutes on several copies of it in one unit.
    #[inline(never)]
    fn of(tokens: BTreeSet<String>) -> Self {
        let tokens: Vec<String> = tokens
            .into_iter()
            .filter(|token| !token.is_empty())
            .collect();
        let longest = automaton(&tokens, MatchKind::LeftmostLongest);
        let starts = Starts::new(&tokens);
        let firsts = Firsts::of(&tokens);
        Self {
            tokens,
            longest,
            starts,
            firsts,
        }
    }

    /// What no ordinary text spells: every `<|` and `<｜`, and the unambiguous tokens of all families.
    pub fn default_set() -> &'static Self {
        &DEFAULT
    }

    /// The tokens of one family, also those that are ambiguous elsewhere. `None`: no such family.
    pub fn family(name: &str) -> Option<Self> {
        FAMILIES
            .iter()
            .find(|(family, ..)| *family == name)
            .map(|(_, plain, ambiguous)| Self::new(plain.iter().chain(ambiguous.iter()).copied()))
    }

    /// Names that [`SpecialTokens::family`] knows, sorted.
    pub fn families() -> impl Iterator<Item = &'static str> {
        FAMILIES.iter().map(|(name, ..)| *name)
    }

    /// The spellings, sorted.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Every token of `text`, leftmost longest, as `(start, end, spelling)` in bytes.
    pub fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, usize, &'a str)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            // The scan for starts is several times faster than the automaton on clean text.
            let start = self.starts.next(text.as_bytes(), at)?;
            let input = Input::new(text).range(start..).anchored(Anchored::Yes);
            let end = self
                .longest
                .try_find(input)
                .ok()
                .flatten()
                .map_or(start + 1, |found| found.end());
            at = end;
            Some((start, end, &text[start..end]))
        })
    }
}

impl Default for SpecialTokens {
    fn default() -> Self {
        let default = Self::default_set();
        Self::new(default.tokens.iter().cloned())
    }
}

/// Finds where a token of the set begins, overlapping ones too.
///
/// A token that another one is a prefix of adds no start, so only the shortest ones are kept.
pub(crate) struct Starts {
    scan: Scan,
    exact: AhoCorasick,
    /// Of each prefix that is scanned for: whether it is a whole token.
    whole: Vec<bool>,
}

enum Scan {
    Nothing,
    Packed(packed::Searcher),
    Automaton(AhoCorasick),
}

impl Starts {
    pub(crate) fn new(sorted: &[String]) -> Self {
        let mut shortest: Vec<&str> = Vec::new();
        for token in sorted {
            if !shortest.last().is_some_and(|last| token.starts_with(last)) {
                shortest.push(token);
            }
        }
        let prefixes: BTreeSet<&[u8]> = shortest
            .iter()
            .map(|token| &token.as_bytes()[..token.len().min(SCAN_PREFIX)])
            .collect();
        let mut minimal: Vec<&[u8]> = Vec::new();
        for prefix in prefixes {
            if !minimal.last().is_some_and(|last| prefix.starts_with(last)) {
                minimal.push(prefix);
            }
        }
        let scan = if minimal.is_empty() {
            Scan::Nothing
        } else {
            packed::Config::new()
                .match_kind(packed::MatchKind::LeftmostFirst)
                .builder()
                .extend(&minimal)
                .build()
                .map_or_else(
                    || Scan::Automaton(automaton(&minimal, MatchKind::LeftmostFirst)),
                    Scan::Packed,
                )
        };
        let whole = |prefix: &&[u8]| {
            shortest
                .binary_search_by(|token| token.as_bytes().cmp(prefix))
                .is_ok()
        };
        Self {
            scan,
            whole: minimal.iter().map(whole).collect(),
            exact: automaton(&shortest, MatchKind::LeftmostFirst),
        }
    }

    /// The first start at or after `from`.
    pub(crate) fn next(&self, text: &[u8], mut from: usize) -> Option<usize> {
        while from < text.len() {
            let found = match &self.scan {
                Scan::Nothing => return None,
                Scan::Packed(searcher) => {
                    searcher.find_in(text, aho_corasick::Span::from(from..text.len()))?
                }
                Scan::Automaton(automaton) => automaton.find(Input::new(text).range(from..))?,
            };
            if self.whole[found.pattern().as_usize()] || self.begins_at(text, found.start()) {
                return Some(found.start());
            }
            from = found.start() + 1;
        }
        None
    }

    pub(crate) fn begins_at(&self, text: &[u8], start: usize) -> bool {
        let input = Input::new(text).range(start..).anchored(Anchored::Yes);
        matches!(self.exact.try_find(input), Ok(Some(_)))
    }
}

fn automaton<P: AsRef<[u8]>>(patterns: &[P], kind: MatchKind) -> AhoCorasick {
    AhoCorasickBuilder::new()
        .match_kind(kind)
        .start_kind(aho_corasick::StartKind::Both)
        .kind(Some(AhoCorasickKind::ContiguousNFA))
        .build(patterns)
        // Only more than 2^31 states fail, which the spellings of a vocabulary never reach.
        .unwrap_or_else(|error| panic!("the set of special tokens is too large: {error}"))
}

#[cfg(test)]
mod tests {
    use super::SpecialTokens;

    fn found(set: &SpecialTokens, text: &str) -> Vec<(usize, usize, String)> {
        set.find(text)
            .map(|(start, end, token)| (start, end, token.to_owned()))
            .collect()
    }

    #[test]
    fn leftmost_longest() {
        let set = SpecialTokens::new(["<a", "<ab>", "b>"]);
        assert_eq!(
            found(&set, "x<ab><a>b>"),
            [
                (1, 5, "<ab>".to_owned()),
                (5, 7, "<a".to_owned()),
                (8, 10, "b>".to_owned())
            ]
        );
    }

    #[test]
    fn default_finds_every_family_and_a_bare_pipe() {
        let set = SpecialTokens::default_set();
        for (text, want) in [
            ("<|", "<|"),
            ("<|im_end|>", "<|im_end|>"),
            ("<|no_such_token|>", "<|"),
            ("<start_of_turn>", "<start_of_turn>"),
            ("<｜User｜>", "<｜User｜>"),
            ("<｜anything", "<｜"),
            ("[TOOL_CALLS]", "[TOOL_CALLS]"),
            ("<<SYS>>", "<<SYS>>"),
        ] {
            assert_eq!(found(set, text), [(0, want.len(), want.to_owned())]);
        }
        for text in [
            "</tool_response>",
            "</parameter>",
            "<s>",
            "[ARGS]",
            "a < b | c",
            "<",
            "[",
            "",
        ] {
            assert!(found(set, text).is_empty(), "{text:?}");
        }
    }

    #[test]
    fn families_hold_their_ambiguous_tokens() {
        let llama2 = SpecialTokens::family("llama2").expect("a family");
        assert_eq!(found(&llama2, "<s>[INST]").len(), 2);
        assert!(SpecialTokens::family("no such").is_none());
        for name in SpecialTokens::families() {
            assert!(SpecialTokens::family(name).is_some());
        }
    }

    #[test]
    fn the_empty_set_finds_nothing() {
        let set = SpecialTokens::new(["", ""]);
        assert!(set.tokens().is_empty());
        assert!(found(&set, "<|im_end|>").is_empty());
    }
}
