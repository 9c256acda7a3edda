//! Pair merging of SentencePiece.

use super::Tokenizer;
use super::borders::{NO_TOKEN, characters, escape_blanks};
use crate::tokens::merge::{Scratch, Symbol};
use crate::tokens::vocab::Vocab;

/// Pair merging of SentencePiece.
pub(super) struct Spm {
    /// Rank of each token: lower merges first.
    ranks: Vec<u32>,
    longest: usize,
    /// What a byte becomes that no token covers.
    byte_ids: Vec<Option<u32>>,
}

impl Spm {
    pub(super) fn new(vocab: &Vocab) -> Self {
        let rank = |score: f32| {
            // Floats as whole numbers in the same order, turned over: the highest score goes first.
            let bits = (score + 0.0).to_bits();
            let rising = if bits >> 31 == 1 {
                !bits
            } else {
                bits | 1 << 31
            };
            !rising
        };
        let byte_id = |byte: u8| {
            vocab
                .id_of(format!("<0x{byte:02X}>").as_bytes())
                .or_else(|| vocab.id_of(&[byte]))
                // llama.cpp stops the process here; the unknown token is what SentencePiece writes.
                .or(vocab.unk)
        };
        Self {
            ranks: vocab.scores.iter().copied().map(rank).collect(),
            longest: vocab.texts.iter().map(<[u8]>::len).max().unwrap_or(0),
            byte_ids: (0..=255).map(byte_id).collect(),
        }
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
        escape_blanks(word, escaped);
        let escaped = &escaped[..];
        let token = |start: u32, len: u32| {
            if len as usize > self.longest {
                return None;
            }
            let id = vocab.id_of(&escaped[start as usize..(start + len) as usize])?;
            (!(guarded && owner.is_structural(id))).then_some(id)
        };
        scratch.symbols.clear();
        scratch
            .symbols
            .extend(characters(escaped).map(|(start, len)| {
                let (start, len) = (start as u32, len as u32);
                Symbol {
                    id: token(start, len).unwrap_or(NO_TOKEN),
                    start,
                    len,
                }
            }));
        scratch.merge(|left, right| {
            let id = token(left.start, left.len + right.len)?;
            Some((self.ranks[id as usize], id))
        });
        for symbol in &scratch.symbols {
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
                continue;
            }
            for &byte in &escaped[symbol.start as usize..(symbol.start + symbol.len) as usize] {
                out.extend(self.byte_ids[usize::from(byte)]);
            }
        }
    }
}
