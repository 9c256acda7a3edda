//! A vocabulary at work: text to ids and back, token for token as llama.cpp does it.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

mod beginnings;
mod borders;
mod bpe;
mod spm;

use borders::{BLANK, Borders, replace_blanks};
use bpe::{Bpe, decode_letters};
use spm::Spm;

use super::gguf::Header;
use super::merge::Scratch;
use super::pretokenize::Pre;
use super::special::{Fragment, Looked, Specials, is_blank};
use super::table::WordCache;
use super::vocab::{Model, Vocab, VocabError, attr};

/// Caches kept for later calls; a fifth thread at once works with one of its own and drops it.
const CACHES: usize = 4;
enum Engine {
    Bpe(Bpe),
    Spm(Spm),
}

/// Room that one call works in.
struct Work {
    cache: WordCache,
    scratch: Scratch,
    escaped: Vec<u8>,
    ids: Vec<u32>,
}

/// Symbols of the longest word that a kept [`Work`] has room for; one endless word is not remembered.
const KEPT_SYMBOLS: usize = 1 << 16;

impl Work {
    fn trim(&mut self) {
        if self
            .scratch
            .symbols
            .capacity()
            .max(self.escaped.capacity())
            .max(self.ids.capacity())
            > KEPT_SYMBOLS
        {
            self.scratch = Scratch::default();
            self.escaped = Vec::new();
            self.ids = Vec::new();
        }
    }
}

/// Where ids go: into a list, or only into a number.
trait Sink {
    fn take(&mut self, ids: &[u32]);
}

impl Sink for Vec<u32> {
    #[inline(always)]
    fn take(&mut self, ids: &[u32]) {
        // Most words are one or two tokens; one by one is faster than a copy of unknown length.
        for &id in ids {
            self.push(id);
        }
    }
}

struct Count(usize);

impl Sink for Count {
    #[inline(always)]
    fn take(&mut self, ids: &[u32]) {
        self.0 += ids.len();
    }
}

/// How text is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As llama.cpp with `parse_special = false`.
    Plain,
    /// As llama.cpp with `parse_special = true`: spellings of control tokens become control tokens.
    ParseSpecial,
    /// Text of others: no CONTROL, UNKNOWN or USER_DEFINED token comes out of it, whatever it spells,
    /// but for those that are nothing but blanks.
    Untrusted,
}

pub struct Tokenizer {
    pub vocab: Vocab,
    specials: Specials,
    engine: Engine,
    borders: Option<Borders>,
    /// CONTROL, UNKNOWN and USER_DEFINED tokens that are not just blanks, one bit an id.
    structural: Vec<u64>,
    idle: Mutex<Vec<Work>>,
}

impl Tokenizer {
    pub fn open(path: &Path) -> Result<Self, VocabError> {
        Self::new(&Header::open(path)?)
    }

    pub fn new(header: &Header) -> Result<Self, VocabError> {
        let vocab = Vocab::read(header)?;
        let mut borders = None;
        let engine = match vocab.model {
            Model::Bpe => {
                let bpe = Bpe::new(&vocab, header)?;
                if !bpe.byte_encoded {
                    borders = Some(bpe.borders(&vocab));
                }
                Engine::Bpe(bpe)
            }
            Model::Spm => {
                borders = Some(Borders::new(vocab.texts.iter()));
                Engine::Spm(Spm::new(&vocab))
            }
        };
        let mut structural = vec![0; vocab.size().div_ceil(64)];
        for (id, text, _) in vocab.special() {
            if !is_blank(text) {
                structural[id as usize / 64] |= 1 << (id % 64);
            }
        }
        let specials = Specials::new(&vocab);
        Ok(Self {
            vocab,
            specials,
            engine,
            borders,
            structural,
            idle: Mutex::new(Vec::new()),
        })
    }

    /// Tokens in `text`; no BOS, no EOS.
    pub fn count(&self, text: &str, mode: Mode) -> usize {
        let mut count = Count(0);
        self.run(text, mode, true, &mut count);
        count.0
    }

    /// Ids of `text`; no BOS, no EOS.
    pub fn encode(&self, text: &str, mode: Mode) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 8);
        self.run(text, mode, true, &mut ids);
        ids
    }

    /// With `fresh` the text stands at the beginning, where some vocabularies put a blank in front.
    fn run(&self, text: &str, mode: Mode, fresh: bool, sink: &mut impl Sink) {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut work = idle.unwrap_or_else(|| Work {
            cache: WordCache::new(),
            scratch: Scratch::default(),
            escaped: Vec::new(),
            ids: Vec::new(),
        });
        let looked = match mode {
            Mode::Plain => Looked::UserDefined,
            Mode::ParseSpecial => Looked::All,
            Mode::Untrusted => Looked::Blank,
        };
        let mut after_special = fresh;
        self.specials
            .cut(text.as_bytes(), looked, |fragment| match fragment {
                Fragment::Token(id) => {
                    sink.take(&[id]);
                    after_special = true;
                }
                Fragment::Text(range) => {
                    let prefix = after_special && self.vocab.add_space_prefix;
                    let guarded = mode == Mode::Untrusted;
                    self.fragment(text.as_bytes(), range, prefix, guarded, &mut work, sink);
                    after_special = false;
                }
            });
        work.trim();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < CACHES {
            idle.push(work);
        }
    }

    /// Tokenizes a part of `whole`. (What lies behind it, up to the text's end, makes looking words up cheaper.)
    fn fragment(
        &self,
        whole: &[u8],
        range: Range<usize>,
        prefix: bool,
        guarded: bool,
        work: &mut Work,
        sink: &mut impl Sink,
    ) {
        let text = &whole[range.clone()];
        match &self.engine {
            Engine::Bpe(bpe) if bpe.byte_encoded => {
                let first = range.start;
                self.vocab.traits.pre.for_each_range(text, |start, end| {
                    self.word(whole, first + start, first + end, guarded, work, sink);
                });
            }
            Engine::Bpe(bpe) => {
                let text = replace_blanks(text);
                Pre::Newlines.for_each_range(&text, |start, end| {
                    let whole = bpe.newline_runs_are_tokens && text[start] == b'\n';
                    if let Some(id) = self.vocab.id_of(&text[start..end]).filter(|_| whole) {
                        return sink.take(&[id]);
                    }
                    // A line that is a token may be one whatever the merges say: it is not cut then.
                    if bpe.ignore_merges {
                        return self.word(&text, start, end, guarded, work, sink);
                    }
                    self.cut_words(&text, start, end, guarded, work, sink);
                });
            }
            Engine::Spm(_) => match replace_blanks(text) {
                Cow::Borrowed(_) if !prefix => {
                    self.cut_words(whole, range.start, range.end, guarded, work, sink);
                }
                text => {
                    let mut text = text.into_owned();
                    if prefix {
                        text.insert(0, b' ');
                    }
                    self.cut_words(&text, 0, text.len(), guarded, work, sink);
                }
            },
        }
    }

    /// Cuts where no token reaches across.
    fn cut_words(
        &self,
        text: &[u8],
        start: usize,
        end: usize,
        guarded: bool,
        work: &mut Work,
        sink: &mut impl Sink,
    ) {
        let Some(borders) = &self.borders else { return };
        let mut from = start;
        let mut at = start + 1;
        while at < end {
            let size = (end - at).min(64);
            // Words are a few bytes long: one by one, the processor would guess every end wrong.
            let mut cuts = borders.cuts(&text[at - 1..at + size]);
            while cuts != 0 {
                let place = at + cuts.trailing_zeros() as usize;
                self.word(text, from, place, guarded, work, sink);
                from = place;
                cuts &= cuts - 1;
            }
            at += size;
        }
        if from < end {
            self.word(text, from, end, guarded, work, sink);
        }
    }

    /// One word, from the cache where it was met lately.
    #[inline(always)]
    fn word(
        &self,
        text: &[u8],
        start: usize,
        end: usize,
        guarded: bool,
        work: &mut Work,
        sink: &mut impl Sink,
    ) {
        let key = WordCache::key(text, start, end);
        if key != 0
            && let Some(ids) = work.cache.get(key)
            && (!guarded || !self.any_structural(ids))
        {
            return sink.take(ids);
        }
        self.word_slowly(key, &text[start..end], guarded, work, sink);
    }

    #[inline(never)]
    fn word_slowly(
        &self,
        key: u128,
        word: &[u8],
        guarded: bool,
        work: &mut Work,
        sink: &mut impl Sink,
    ) {
        let Work {
            cache,
            scratch,
            escaped,
            ids,
        } = work;
        let known = if key == 0 {
            cache.get_long(word)
        } else {
            cache.get_beside(key).or_else(|| cache.get_long(word))
        };
        if let Some(known) = known
            && (!guarded || !self.any_structural(known))
        {
            return sink.take(known);
        }
        ids.clear();
        self.merge_word(word, false, scratch, escaped, ids);
        if key == 0 || !cache.put(key, ids) {
            cache.put_long(word, ids);
        }
        if guarded && self.any_structural(ids) {
            ids.clear();
            self.merge_word(word, true, scratch, escaped, ids);
        }
        sink.take(ids);
    }

    fn any_structural(&self, ids: &[u32]) -> bool {
        ids.iter().any(|&id| self.is_structural(id))
    }

    fn is_structural(&self, id: u32) -> bool {
        self.structural
            .get(id as usize / 64)
            .is_some_and(|bits| bits & (1 << (id % 64)) != 0)
    }

    fn merge_word(
        &self,
        word: &[u8],
        guarded: bool,
        scratch: &mut Scratch,
        escaped: &mut Vec<u8>,
        out: &mut Vec<u32>,
    ) {
        match &self.engine {
            Engine::Bpe(bpe) => bpe.word(self, word, guarded, scratch, escaped, out),
            Engine::Spm(spm) => spm.word(self, word, guarded, scratch, escaped, out),
        }
    }

    /// The bytes that `id` stands for; a control token is its own text. `None` outside the vocabulary.
    pub fn piece(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        let kind = *self.vocab.attrs.get(id as usize)?;
        let text = self.vocab.texts.get(id as usize);
        if kind & attr::SPECIAL != 0 {
            return Some(Cow::Borrowed(text));
        }
        if kind & attr::NORMAL != 0 {
            return Some(match &self.engine {
                Engine::Bpe(bpe) if bpe.byte_encoded => Cow::Owned(decode_letters(text)),
                _ => replace_blanks(text),
            });
        }
        if kind & attr::BYTE != 0 {
            let digits = text
                .get(3..5)
                .and_then(|digits| std::str::from_utf8(digits).ok());
            let byte = digits
                .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                .unwrap_or(0);
            return Some(Cow::Owned(vec![byte]));
        }
        Some(Cow::Borrowed(b""))
    }

    /// The bytes of `ids`: what `encode` was given. `Err` holds the first id outside the vocabulary.
    ///
    /// Where the vocabulary puts a blank before a text, that blank is taken away again.
    pub fn decode(&self, ids: impl IntoIterator<Item = i32>) -> Result<Vec<u8>, i32> {
        let mut out = Vec::new();
        let mut after_special = true;
        let strip = self.vocab.add_space_prefix && self.vocab.model == Model::Spm;
        for id in ids {
            let piece = u32::try_from(id)
                .ok()
                .and_then(|id| self.piece(id))
                .ok_or(id)?;
            let special = self.vocab.attrs[id as usize] & attr::SPECIAL != 0;
            match piece.strip_prefix(b" ") {
                Some(rest) if strip && after_special && !special => out.extend_from_slice(rest),
                _ => out.extend_from_slice(&piece),
            }
            after_special = special;
        }
        Ok(out)
    }
}
