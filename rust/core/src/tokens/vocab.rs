//! The vocabulary of a GGUF file: tokens, their kinds, and what the file says about using them.
//!
//! Kinds are corrected as llama.cpp corrects them when it loads a model (`src/llama-vocab.cpp` of
//! ggml-org/llama.cpp), for the ids of a text depend on them.

use std::collections::BTreeSet;
use std::fmt;

use super::gguf::{GgufError, Header, Kind, Value};
use super::pretokenize::PreTraits;
use super::table::{TextTable, Texts};

/// Why a vocabulary cannot be used.
#[derive(Debug)]
pub enum VocabError {
    Gguf(GgufError),
    /// The file is a good GGUF, but its vocabulary is not.
    Damaged(String),
    /// A tokenizer or pre-tokenizer kind that is not known here: refused, never counted wrongly.
    Unsupported(String),
}

impl fmt::Display for VocabError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gguf(error) => error.fmt(out),
            Self::Damaged(message) => write!(out, "not a usable vocabulary: {message}"),
            Self::Unsupported(message) => out.write_str(message),
        }
    }
}

impl std::error::Error for VocabError {}

impl From<GgufError> for VocabError {
    fn from(error: GgufError) -> Self {
        Self::Gguf(error)
    }
}

/// Kinds of a token, as bits: a corrected token can have two.
pub mod attr {
    pub const UNKNOWN: u8 = 1;
    pub const UNUSED: u8 = 2;
    pub const NORMAL: u8 = 4;
    pub const CONTROL: u8 = 8;
    pub const USER_DEFINED: u8 = 16;
    pub const BYTE: u8 = 32;
    /// Blanks before the token belong to it when it is found in a text.
    pub const STRIP_LEFT: u8 = 64;
    /// Blanks behind the token belong to it.
    pub const STRIP_RIGHT: u8 = 128;
    /// Found in a text before anything else is done.
    pub const SPECIAL: u8 = UNKNOWN | CONTROL | USER_DEFINED;
}

/// The algorithm that makes tokens of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Byte-pair merging of the gpt2 family.
    Bpe,
    /// SentencePiece's pair merging by score, of the Llama and Gemma family.
    Spm,
}

pub struct Vocab {
    pub model: Model,
    pub model_name: String,
    pub pre_name: String,
    pub traits: PreTraits,
    pub texts: Texts,
    pub attrs: Vec<u8>,
    pub scores: Vec<f32>,
    pub table: TextTable,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub eot: Option<u32>,
    pub pad: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
    pub add_space_prefix: bool,
    /// Ids that end a generation.
    pub eog: BTreeSet<u32>,
    pub chat_template: Option<String>,
    pub architecture: String,
    pub context_length: Option<u64>,
}

const MODELS_REFUSED: &[(&str, &str)] = &[
    ("bert", "WordPiece (BERT)"),
    ("t5", "Unigram (T5)"),
    ("rwkv", "RWKV"),
    ("plamo2", "PLaMo-2"),
    ("hybriddna", "hybrid DNA"),
    ("whitespace", "white-space BPE"),
    ("no_vocab", "none"),
    ("none", "none"),
];

impl Vocab {
    pub fn read(header: &Header) -> Result<Self, VocabError> {
        let Some(model_name) = header.text("tokenizer.ggml.model")? else {
            return Err(damaged("it has no tokenizer.ggml.model"));
        };
        let mut pre_name = header.text("tokenizer.ggml.pre")?.unwrap_or_default();
        let model = match model_name.as_str() {
            "llama" => Model::Spm,
            "gpt2" => Model::Bpe,
            "gemma4" => {
                pre_name = "gemma4".to_owned();
                Model::Bpe
            }
            other => {
                let known = MODELS_REFUSED.iter().find(|(name, _)| *name == other);
                let what = known.map_or(String::new(), |(_, what)| format!(", {what}"));
                return Err(VocabError::Unsupported(format!(
                    "the tokenizer {other:?}{what} is not supported; llama, gpt2 and gemma4 are"
                )));
            }
        };
        let spm = model == Model::Spm;
        let traits = match PreTraits::by_name(if spm { "default" } else { &pre_name }) {
            Some(traits) => traits,
            None => {
                return Err(VocabError::Unsupported(format!(
                    "the pre-tokenizer {pre_name:?} (tokenizer.ggml.pre) is not known"
                )));
            }
        };
        let texts = read_texts(header)?;
        let table = TextTable::new(&texts).map_err(|(first, second)| {
            damaged(&format!("tokens {first} and {second} have the same text"))
        })?;
        let attrs = read_kinds(header, texts.len())?;
        let scores = read_scores(header, texts.len(), spm)?;
        let mut vocab = Self {
            model,
            traits,
            attrs,
            scores,
            bos: Some(if spm { 1 } else { 11 }),
            eos: Some(if spm { 2 } else { 11 }),
            unk: spm.then_some(0),
            eot: None,
            pad: None,
            add_bos: spm || traits.add_bos,
            add_eos: false,
            add_space_prefix: spm,
            eog: BTreeSet::new(),
            chat_template: header.text("tokenizer.chat_template")?,
            architecture: header.text("general.architecture")?.unwrap_or_default(),
            context_length: None,
            table,
            texts,
            model_name,
            pre_name,
        };
        if vocab.model_name == "gemma4"
            || vocab.pre_name.starts_with("glm")
            || vocab.pre_name == "chatglm-bpe"
        {
            vocab.bos = None;
        }
        if vocab.model_name == "gemma4" {
            vocab.eos = None;
        }
        let length = header.integer(&format!("{}.context_length", vocab.architecture))?;
        vocab.context_length = length.and_then(|length| u64::try_from(length).ok());
        vocab.read_flags(header)?;
        vocab.correct_kinds(header)?;
        vocab.set_strips(header)?;
        Ok(vocab)
    }

    /// Number of tokens.
    pub fn size(&self) -> usize {
        self.texts.len()
    }

    pub fn id_of(&self, text: &[u8]) -> Option<u32> {
        self.table.get(&self.texts, text)
    }

    /// Id and text of every CONTROL, UNKNOWN and USER_DEFINED token, in the order of ids.
    pub fn special(&self) -> impl Iterator<Item = (u32, &[u8], u8)> {
        self.attrs
            .iter()
            .enumerate()
            .filter(|(_, kind)| **kind & attr::SPECIAL != 0)
            .map(|(id, &kind)| (id as u32, self.texts.get(id), kind))
    }

    fn read_flags(&mut self, header: &Header) -> Result<(), VocabError> {
        let known = self.size();
        let id = |name: &str, default: Option<u32>| -> Result<Option<u32>, VocabError> {
            let default = default.filter(|&id| (id as usize) < known);
            let given = header.integer(&format!("tokenizer.ggml.{name}"))?;
            // One outside the vocabulary is passed over, as llama.cpp does.
            Ok(given
                .and_then(|given| u32::try_from(given).ok())
                .filter(|&given| (given as usize) < known)
                .or(default))
        };
        self.bos = id("bos_token_id", self.bos)?;
        self.eos = id("eos_token_id", self.eos)?;
        self.eot = id("eot_token_id", None)?;
        self.unk = id("unknown_token_id", self.unk)?;
        self.pad = id("padding_token_id", None)?;
        let flag = |name: &str, default: bool| -> Result<bool, VocabError> {
            Ok(header
                .boolean(&format!("tokenizer.ggml.{name}"))?
                .unwrap_or(default))
        };
        self.add_bos = flag("add_bos_token", self.add_bos)?;
        self.add_eos = flag("add_eos_token", self.add_eos)?;
        if self.model == Model::Spm {
            self.add_space_prefix = flag("add_space_prefix", true)?;
        } else {
            self.add_space_prefix = flag("add_space_prefix", false)?;
        }
        if matches!(
            self.pre_name.as_str(),
            "gemma4" | "granite-embed-multi-311m"
        ) {
            self.add_bos = true;
        }
        Ok(())
    }

    /// What llama.cpp corrects by the spelling of tokens, and which of them end a generation.
    fn correct_kinds(&mut self, header: &Header) -> Result<(), VocabError> {
        let mut fill_ins = Vec::new();
        for (keys, spellings) in FILL_IN {
            let mut found = None;
            for key in *keys {
                let given = header.integer(&format!("tokenizer.ggml.{key}"))?;
                let given = given.and_then(|id| u32::try_from(id).ok());
                found = given.filter(|&id| (id as usize) < self.size()).or(found);
            }
            if found.is_none() {
                found = spellings
                    .iter()
                    .find_map(|text| self.id_of(text.as_bytes()));
                if let Some(id) = found {
                    self.attrs[id as usize] |= attr::CONTROL;
                }
            }
            fill_ins.push(found);
        }
        // Padding, repository and file separators of fill-in-the-middle end a generation.
        self.eog.extend(fill_ins[3..].iter().flatten());
        if self.eot.is_none() {
            self.eot = END_OF_TURN
                .iter()
                .find_map(|text| self.id_of(text.as_bytes()));
        }
        for text in END_OF_GENERATION {
            if let Some(id) = self.id_of(text.as_bytes()) {
                self.attrs[id as usize] |= attr::CONTROL;
                self.eog.insert(id);
            }
        }
        for text in HARMONY {
            if let Some(id) = self.id_of(text.as_bytes()) {
                self.attrs[id as usize] = attr::USER_DEFINED;
            }
        }
        self.eog.extend(self.eos.iter().chain(&self.eot));
        let ends = |vocab: &Self, text: &str| {
            vocab
                .id_of(text.as_bytes())
                .filter(|id| vocab.eog.contains(id))
        };
        let called = ends(self, "<|call|>").or(ends(self, "<|calls|>")).is_some();
        if let Some(end) = ends(self, "<|end|>")
            && called
            && (ends(self, "<|return|>").is_some() || ends(self, "<|flush|>").is_some())
        {
            self.eog.remove(&end);
            self.attrs[end as usize] = attr::USER_DEFINED;
        }
        if let Some(end) = ends(self, "</s>")
            && ends(self, "<|tool_response>").is_some()
        {
            self.eog.remove(&end);
            self.attrs[end as usize] = attr::NORMAL;
        }
        Ok(())
    }

    fn set_strips(&mut self, header: &Header) -> Result<(), VocabError> {
        let name = header
            .text("general.name")?
            .unwrap_or_default()
            .to_ascii_lowercase();
        let pre = &self.pre_name;
        if ["jina-v2-de", "jina-v2-es", "jina-v2-code"]
            .iter()
            .any(|part| pre.contains(part))
        {
            if let Some(id) = self.id_of(b"<mask>") {
                self.attrs[id as usize] |= attr::STRIP_LEFT;
            }
        } else if name.contains("phi-3") || name.contains("phi3") {
            for kind in &mut self.attrs {
                if *kind & attr::SPECIAL != 0 {
                    *kind |= attr::STRIP_RIGHT;
                }
            }
            for text in ["<unk>", "<s>", "<|endoftext|>"] {
                if let Some(id) = self.id_of(text.as_bytes()) {
                    self.attrs[id as usize] &= !attr::STRIP_RIGHT;
                }
            }
        } else if name.contains("modern-bert")
            && let Some(id) = self.id_of(b"[MASK]")
        {
            self.attrs[id as usize] |= attr::STRIP_LEFT;
        }
        Ok(())
    }
}

fn damaged(message: &str) -> VocabError {
    VocabError::Damaged(message.to_owned())
}

fn read_texts(header: &Header) -> Result<Texts, VocabError> {
    let Some(tokens) = header.string_array("tokenizer.ggml.tokens")? else {
        return Err(damaged("it has no tokenizer.ggml.tokens"));
    };
    if tokens.len == 0 {
        return Err(damaged("its vocabulary is empty"));
    }
    if tokens.len > i32::MAX as usize {
        return Err(damaged(&format!("it claims {} tokens", tokens.len)));
    }
    let mut texts = Texts::default();
    for (id, text) in tokens.strings().enumerate() {
        if std::str::from_utf8(text).is_err() {
            return Err(damaged(&format!("the text of token {id} is not UTF-8")));
        }
        if text.is_empty() {
            // llama.cpp's name for it.
            texts.push(format!("[EMPTY_{id}]").as_bytes());
        } else {
            texts.push(text);
        }
    }
    Ok(texts)
}

fn read_kinds(header: &Header, count: usize) -> Result<Vec<u8>, VocabError> {
    let Some(kinds) = header.array("tokenizer.ggml.token_type")? else {
        return Ok(vec![attr::NORMAL; count]);
    };
    if kinds.kind != Kind::I32 && kinds.kind != Kind::U32 {
        return Err(damaged(
            "tokenizer.ggml.token_type is not an array of 32-bit numbers",
        ));
    }
    if kinds.len < count {
        return Err(damaged(&format!(
            "it has {count} tokens and only {} token types",
            kinds.len
        )));
    }
    let kind = |value| match value {
        Value::Signed(1) | Value::Unsigned(1) => attr::NORMAL,
        Value::Signed(2) | Value::Unsigned(2) => attr::UNKNOWN,
        Value::Signed(3) | Value::Unsigned(3) => attr::CONTROL,
        Value::Signed(4) | Value::Unsigned(4) => attr::USER_DEFINED,
        Value::Signed(5) | Value::Unsigned(5) => attr::UNUSED,
        Value::Signed(6) | Value::Unsigned(6) => attr::BYTE,
        _ => 0,
    };
    Ok(kinds.iter().take(count).map(kind).collect())
}

fn read_scores(header: &Header, count: usize, needed: bool) -> Result<Vec<f32>, VocabError> {
    let Some(scores) = header.array("tokenizer.ggml.scores")? else {
        return Ok(if needed { vec![0.0; count] } else { Vec::new() });
    };
    if scores.kind != Kind::F32 && scores.kind != Kind::I32 {
        return Err(damaged(
            "tokenizer.ggml.scores is neither an array of floats nor of whole numbers",
        ));
    }
    if scores.len < count {
        return Err(damaged(&format!(
            "it has {count} tokens and only {} scores",
            scores.len
        )));
    }
    if !needed {
        return Ok(Vec::new());
    }
    let mut out = Vec::with_capacity(count);
    for (id, score) in scores.iter().take(count).enumerate() {
        let score = match score {
            Value::Float(score) => score as f32,
            Value::Signed(score) => score as f32,
            _ => 0.0,
        };
        if score.is_nan() {
            return Err(damaged(&format!("the score of token {id} is not a number")));
        }
        out.push(score);
    }
    Ok(out)
}

/// Keys that name a fill-in-the-middle token, and spellings it is known by where no key does.
const FILL_IN: &[(&[&str], &[&str])] = &[
    (
        &["fim_pre_token_id", "prefix_token_id"],
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        &["fim_suf_token_id", "suffix_token_id"],
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        &["fim_mid_token_id", "middle_token_id"],
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (
        &["fim_pad_token_id"],
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    ),
    (
        &["fim_rep_token_id"],
        &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
    ),
    (&["fim_sep_token_id"], &["<|file_sep|>"]),
];

const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];

const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Tokens of the harmony format that llama.cpp always shows, and so always finds in a text.
const HARMONY: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];
