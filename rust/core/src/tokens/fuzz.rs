//! Damaged files: whatever is done to a good one, opening it ends in a vocabulary or an error, and a
//! vocabulary that opens tokenizes and gives back ids of its own.
//!
//! `PROPTEST_CASES` sets the number of mutated files for each test (4,000 where it is not set).

use proptest::prelude::*;

use super::gguf::Header;
use super::gguf::tests::Writer;
use super::tokenizer::{Mode, Tokenizer};

pub fn bpe(big: bool) -> Vec<u8> {
    let mut tokens: Vec<String> = (0x21_u8..0x7f)
        .map(|byte| char::from(byte).to_string())
        .collect();
    tokens.extend(["Ġ", "th", "the", "Ġthe", "<|end|>", "<tool>", "\n\n", "\n"].map(str::to_owned));
    let mut kinds = vec![1; tokens.len()];
    let count = kinds.len();
    kinds[count - 4..].copy_from_slice(&[3, 4, 4, 4]);
    Writer::new(big)
        .text("general.architecture", "llama")
        .text("general.name", "Phi-3 mini")
        .u32("llama.context_length", 4096)
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "llama-bpe")
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .strings("tokenizer.ggml.merges", &["t h", "th e", "Ġ the", "x y"])
        .u32("tokenizer.ggml.bos_token_id", 3)
        .boolean("tokenizer.ggml.add_bos_token", true)
        .text("tokenizer.chat_template", "{{ messages }}")
        .finish()
}

pub fn spm(big: bool) -> Vec<u8> {
    let mut tokens: Vec<String> = vec!["<unk>".into(), "<s>".into(), "</s>".into()];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["▁", "t", "h", "e", "th", "the", "▁the", "\n\n", "é"].map(str::to_owned));
    let mut kinds = vec![2, 3, 3];
    kinds.extend([6; 256]);
    kinds.extend([1, 1, 1, 1, 1, 1, 1, 4, 1]);
    let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32)).collect();
    Writer::new(big)
        .text("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &scores)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .boolean("tokenizer.ggml.add_space_prefix", true)
        .finish()
}

const TEXTS: &[&str] = &[
    "",
    " ",
    "the the\n\n<|end|> <tool>",
    "é日😀\u{301} 123 don't \0\u{2581}",
    "</s><s>\n\n\n",
];

fn opens_or_fails(bytes: &[u8]) {
    let Ok(header) = Header::read(bytes) else {
        return;
    };
    for key in header.keys() {
        let _ = header.get(key);
    }
    let Ok(tokenizer) = Tokenizer::new(&header) else {
        return;
    };
    for text in TEXTS {
        for mode in [Mode::Plain, Mode::ParseSpecial, Mode::Untrusted] {
            let ids = tokenizer.encode(text, mode);
            assert_eq!(ids.len(), tokenizer.count(text, mode));
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab.size()));
            assert!(tokenizer.decode(ids.iter().map(|&id| id as i32)).is_ok());
        }
    }
}

#[derive(Clone, Debug)]
enum Change {
    Flip(usize, u8),
    Number(usize, u64),
    Cut(usize),
    Remove(usize, usize),
    Repeat(usize, usize),
    Insert(usize, Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let extremes = prop_oneof![
        Just(0_u64),
        Just(1),
        Just(u64::MAX),
        Just(u64::from(u32::MAX)),
        Just(1 << 31),
        Just(i64::MAX as u64),
        (0_u64..4096),
    ];
    prop_oneof![
        4 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Flip(at, byte)),
        3 => (any::<usize>(), extremes).prop_map(|(at, number)| Change::Number(at, number)),
        1 => any::<usize>().prop_map(Change::Cut),
        1 => (any::<usize>(), 1_usize..64).prop_map(|(at, len)| Change::Remove(at, len)),
        1 => (any::<usize>(), 1_usize..64).prop_map(|(at, len)| Change::Repeat(at, len)),
        1 => (any::<usize>(), prop::collection::vec(any::<u8>(), 1..16))
            .prop_map(|(at, bytes)| Change::Insert(at, bytes)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    if bytes.is_empty() {
        return;
    }
    let place = |at: usize| at % bytes.len();
    match *change {
        Change::Flip(at, byte) => {
            let at = place(at);
            bytes[at] ^= byte;
        }
        Change::Number(at, number) => {
            let at = place(at);
            let raw = number.to_le_bytes();
            let len = raw.len().min(bytes.len() - at);
            bytes[at..at + len].copy_from_slice(&raw[..len]);
        }
        Change::Cut(at) => bytes.truncate(place(at)),
        Change::Remove(at, len) => {
            let at = place(at);
            bytes.drain(at..(at + len).min(bytes.len()));
        }
        Change::Repeat(at, len) => {
            let at = place(at);
            let part = bytes[at..(at + len).min(bytes.len())].to_vec();
            bytes.splice(at..at, part);
        }
        Change::Insert(at, ref part) => {
            let at = place(at);
            bytes.splice(at..at, part.iter().copied());
        }
    }
}

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(4000),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn damaged_bpe(big in any::<bool>(), changes in prop::collection::vec(change(), 1..5)) {
        let mut bytes = bpe(big);
        changes.iter().for_each(|change| apply(&mut bytes, change));
        opens_or_fails(&bytes);
    }

    #[test]
    fn damaged_spm(big in any::<bool>(), changes in prop::collection::vec(change(), 1..5)) {
        let mut bytes = spm(big);
        changes.iter().for_each(|change| apply(&mut bytes, change));
        opens_or_fails(&bytes);
    }

    #[test]
    fn noise(mut bytes in prop::collection::vec(any::<u8>(), 0..256), with_magic in any::<bool>()) {
        if with_magic && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(b"GGUF\x03\0\0\0");
        }
        opens_or_fails(&bytes);
    }
}

#[test]
fn undamaged_files_open() {
    for big in [false, true] {
        for bytes in [bpe(big), spm(big)] {
            let header = Header::read(&bytes[..]).expect("a good header");
            let tokenizer = Tokenizer::new(&header).expect("a good vocabulary");
            assert_eq!(tokenizer.encode("the", Mode::Plain).len(), 1);
            opens_or_fails(&bytes);
        }
    }
}

#[test]
fn cut_at_every_offset() {
    for bytes in [bpe(false), spm(true)] {
        for end in 0..bytes.len() {
            assert!(Header::read(&bytes[..end]).is_err(), "cut at {end}");
        }
    }
}
