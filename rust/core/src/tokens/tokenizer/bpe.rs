//! Merges of the gpt2 family, and the alphabet it writes bytes in.

use std::collections::HashMap;

use super::Tokenizer;
use super::borders::{Borders, NO_TOKEN, characters, escape_blanks};
use crate::tokens::gguf::Header;
use crate::tokens::merge::{Scratch, Symbol};
use crate::tokens::table::PairTable;
use crate::tokens::vocab::{Vocab, VocabError};

/// Merges of the gpt2 family.
pub(super) struct Bpe {
    /// Text is written in the alphabet of bytes before merging.
    pub(super) byte_encoded: bool,
    pub(super) ignore_merges: bool,
    /// Symbol of each byte where text is byte-encoded.
    bytes: Vec<u32>,
    pairs: PairTable,
    /// Texts that merges name but that are no tokens; they get the numbers behind the tokens'.
    extra: HashMap<Box<[u8]>, u32>,
    /// The ids each of these comes down to.
    extra_ids: Vec<Box<[u32]>>,
    pub(super) newline_runs_are_tokens: bool,
}

impl Bpe {
    pub(super) fn new(vocab: &Vocab, header: &Header) -> Result<Self, VocabError> {
        let merges = header.string_array("tokenizer.ggml.merges")?;
        if merges.is_none() && vocab.pre_name != "kimi-k2" {
            return Err(VocabError::Damaged(
                "it has no tokenizer.ggml.merges".to_owned(),
            ));
        }
        let byte_encoded = !vocab.traits.escape_whitespace;
        let mut bpe = Self {
            byte_encoded,
            ignore_merges: vocab.traits.ignore_merges,
            bytes: Vec::new(),
            pairs: PairTable::with_room_for(merges.map_or(0, |merges| merges.len)),
            extra: HashMap::new(),
            extra_ids: Vec::new(),
            newline_runs_are_tokens: vocab.pre_name != "sarvam-moe" && !byte_encoded,
        };
        for byte in 0..=255 {
            let mut raw = [0; 4];
            let text = byte_letter(byte).encode_utf8(&mut raw).as_bytes();
            let symbol = bpe.symbol(vocab, text);
            bpe.bytes.push(symbol);
        }
        let mut both = Vec::new();
        for (rank, merge) in merges
            .iter()
            .flat_map(|merges| merges.strings())
            .enumerate()
        {
            // Two texts with a blank between; the first may begin with one.
            let Some(place) = merge.get(1..).and_then(|rest| memchr::memchr(b' ', rest)) else {
                continue;
            };
            let (left, right) = (&merge[..place + 1], &merge[place + 2..]);
            both.clear();
            both.extend_from_slice(left);
            both.extend_from_slice(right);
            let (left, right) = (bpe.symbol(vocab, left), bpe.symbol(vocab, right));
            let merged = bpe.symbol(vocab, &both);
            bpe.pairs.insert(left, right, rank as u32, merged);
        }
        Ok(bpe)
    }

    /// Number of a text: its id, or a new number behind all ids.
    fn symbol(&mut self, vocab: &Vocab, text: &[u8]) -> u32 {
        if let Some(id) = vocab.id_of(text) {
            return id;
        }
        if let Some(&known) = self.extra.get(text) {
            return known;
        }
        let number = (vocab.size() + self.extra_ids.len()) as u32;
        let ids = text
            .iter()
            .filter_map(|&byte| self.fallback(vocab, byte))
            .collect();
        self.extra_ids.push(ids);
        self.extra.insert(text.into(), number);
        number
    }

    /// The token that llama.cpp writes for one byte of a symbol that is none.
    fn fallback(&self, vocab: &Vocab, byte: u8) -> Option<u32> {
        if self.byte_encoded {
            return vocab.id_of(&[byte]);
        }
        vocab.id_of(format!("<0x{byte:02X}>").as_bytes())
    }

    pub(super) fn borders(&self, vocab: &Vocab) -> Borders {
        // Whatever a merge can make is a token or one of the extra texts.
        Borders::new(
            vocab
                .texts
                .iter()
                .chain(self.extra.keys().map(|text| &**text)),
        )
    }

    pub(super) fn word(
        &self,
        owner: &Tokenizer,
        word: &[u8],
        guarded: bool,
        scratch: &mut Scratch,
        escaped: &mut Vec<u8>,
        out: &mut Vec<u32>,
    ) {
        let vocab = &owner.vocab;
        if self.ignore_merges {
            escaped.clear();
            if self.byte_encoded {
                let mut raw = [0; 4];
                for &byte in word {
                    escaped.extend_from_slice(byte_letter(byte).encode_utf8(&mut raw).as_bytes());
                }
            } else {
                escape_blanks(word, escaped);
            }
            if let Some(id) = vocab.id_of(escaped)
                && !(guarded && owner.is_structural(id))
            {
                return out.push(id);
            }
        }
        scratch.symbols.clear();
        if self.byte_encoded {
            scratch
                .symbols
                .extend(word.iter().enumerate().map(|(start, &byte)| Symbol {
                    id: self.bytes[usize::from(byte)],
                    start: start as u32,
                    len: 1,
                }));
        } else {
            escape_blanks(word, escaped);
            for (start, len) in characters(escaped) {
                let text = &escaped[start..start + len];
                let known = vocab.id_of(text).or_else(|| self.extra.get(text).copied());
                scratch.symbols.push(Symbol {
                    id: known.unwrap_or(NO_TOKEN),
                    start: start as u32,
                    len: len as u32,
                });
            }
        }
        scratch.merge(|left, right| {
            let found = self.pairs.get(left.id, right.id)?;
            (!(guarded && owner.is_structural(found.1))).then_some(found)
        });
        for symbol in &scratch.symbols {
            if (symbol.id as usize) < vocab.size() {
                out.push(symbol.id);
            } else if symbol.id == NO_TOKEN {
                let text = &escaped[symbol.start as usize..(symbol.start + symbol.len) as usize];
                out.extend(text.iter().filter_map(|&byte| self.fallback(vocab, byte)));
            } else {
                out.extend_from_slice(&self.extra_ids[symbol.id as usize - vocab.size()]);
            }
        }
    }
}

/// The character that GPT-2's alphabet writes for `byte`.
fn byte_letter(byte: u8) -> char {
    let shown = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if shown(byte) {
        return char::from(byte);
    }
    let place = (0..byte).filter(|&before| !shown(before)).count() as u32;
    char::from_u32(256 + place).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Bytes of a text in GPT-2's alphabet; what is outside it is shown as llama.cpp shows it.
pub(super) fn decode_letters(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let whole = String::from_utf8_lossy(text);
    for letter in whole.chars() {
        let code = letter as u32;
        let byte = match code {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
            256..=288 => Some((code - 256) as u8),
            289..=322 => Some((code - 289 + 0x7f) as u8),
            323 => Some(0xad),
            _ => None,
        };
        match byte {
            Some(byte) => out.push(byte),
            None => {
                out.extend_from_slice(b"[UNK_BYTE_0x");
                let mut raw = [0; 4];
                for byte in letter.encode_utf8(&mut raw).bytes() {
                    out.extend_from_slice(format!("{byte:02x}").as_bytes());
                }
                out.extend_from_slice(text);
                out.push(b']');
            }
        }
    }
    out
}
