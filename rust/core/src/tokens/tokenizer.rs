//! A vocabulary at work: text to ids and back, token for token as llama.cpp does it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

mod beginnings;

use super::gguf::Header;
use super::merge::{Scratch, Symbol};
use super::pretokenize::Pre;
use super::special::{Fragment, Looked, Specials, is_blank};
use super::table::{PairTable, WordCache};
use super::vocab::{Model, Vocab, VocabError, attr};

/// U+2581, which stands for a blank in vocabularies of the SentencePiece family.
const BLANK: &str = "\u{2581}";
/// Caches kept for later calls; a fifth thread at once works with one of its own and drops it.
const CACHES: usize = 4;
/// A symbol without a token.
const NO_TOKEN: u32 = u32::MAX;

/// Merges of the gpt2 family.
struct Bpe {
    /// Text is written in the alphabet of bytes before merging.
    byte_encoded: bool,
    ignore_merges: bool,
    /// Symbol of each byte where text is byte-encoded.
    bytes: Vec<u32>,
    pairs: PairTable,
    /// Texts that merges name but that are no tokens; they get the numbers behind the tokens'.
    extra: HashMap<Box<[u8]>, u32>,
    /// The ids each of these comes down to.
    extra_ids: Vec<Box<[u32]>>,
    newline_runs_are_tokens: bool,
}

/// Pair merging of SentencePiece.
struct Spm {
    /// Rank of each token: lower merges first.
    ranks: Vec<u32>,
    longest: usize,
    /// What a byte becomes that no token covers.
    byte_ids: Vec<Option<u32>>,
}

enum Engine {
    Bpe(Bpe),
    Spm(Spm),
}

/// Pairs of bytes that meet inside a token, at the border of two characters: where two bytes never do,
/// no token reaches across and the text can be cut. Blanks count as themselves.
struct Borders {
    meet: Box<[[u64; 4]; 256]>,
}

impl Borders {
    fn new<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Self {
        // Inside a character there is no border: what continues one meets everything.
        let mut meet = Box::new([[0, 0, u64::MAX, 0]; 256]);
        for text in texts {
            let text = replace_blanks(text);
            for place in 1..text.len() {
                let (before, after) = (text[place - 1], text[place]);
                if after & 0xc0 != 0x80 {
                    meet[usize::from(before)][usize::from(after >> 6)] |= 1 << (after & 63);
                }
            }
        }
        Self { meet }
    }

    #[inline(always)]
    fn cut(&self, before: u8, after: u8) -> bool {
        self.meet[usize::from(before)][usize::from(after >> 6)] & (1 << (after & 63)) == 0
    }

    /// A bit for each place in `window` but its beginning, of which there are at most 64: whether the text can
    /// be cut there.
    #[inline(always)]
    fn cuts(&self, window: &[u8]) -> u64 {
        if let Ok(window) = <&[u8; 65]>::try_from(window) {
            return self.cuts_in(window);
        }
        self.cuts_in(window)
    }

    #[inline(always)]
    fn cuts_in(&self, window: &[u8]) -> u64 {
        let mut cuts = 0;
        for (place, both) in window.windows(2).enumerate() {
            cuts |= u64::from(self.cut(both[0], both[1])) << place;
        }
        cuts
    }
}

/// `text` with every U+2581 as the blank it stands for.
fn replace_blanks(text: &[u8]) -> Cow<'_, [u8]> {
    // Most texts do not even have its first byte.
    if memchr::memchr(BLANK.as_bytes()[0], text).is_none() {
        return Cow::Borrowed(text);
    }
    let finder = memchr::memmem::Finder::new(BLANK);
    let Some(first) = finder.find(text) else {
        return Cow::Borrowed(text);
    };
    let mut out = Vec::with_capacity(text.len());
    let mut from = 0;
    let mut next = Some(first);
    while let Some(place) = next {
        out.extend_from_slice(&text[from..from + place]);
        out.push(b' ');
        from += place + BLANK.len();
        next = finder.find(&text[from..]);
    }
    out.extend_from_slice(&text[from..]);
    Cow::Owned(out)
}

/// `text` with every blank as U+2581.
fn escape_blanks(text: &[u8], out: &mut Vec<u8>) {
    out.clear();
    for part in text.split_inclusive(|&byte| byte == b' ') {
        match part.split_last() {
            Some((b' ', rest)) => {
                out.extend_from_slice(rest);
                out.extend_from_slice(BLANK.as_bytes());
            }
            _ => out.extend_from_slice(part),
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

/// Bytes of a text in GPT-2's alphabet; what is outside it is shown as llama.cpp shows it.
fn decode_letters(text: &[u8]) -> Vec<u8> {
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

impl Bpe {
    fn new(vocab: &Vocab, header: &Header) -> Result<Self, VocabError> {
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

    fn borders(&self, vocab: &Vocab) -> Borders {
        // Whatever a merge can make is a token or one of the extra texts.
        Borders::new(
            vocab
                .texts
                .iter()
                .chain(self.extra.keys().map(|text| &**text)),
        )
    }

    fn word(
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

/// Start and length of each character of valid UTF-8.
fn characters(text: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = *text.get(at)?;
        let len = match first {
            0xf0.. => 4,
            0xe0.. => 3,
            0xc0.. => 2,
            _ => 1,
        };
        let start = at;
        at = (at + len).min(text.len());
        Some((start, at - start))
    })
}

impl Spm {
    fn new(vocab: &Vocab) -> Self {
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

    fn word(
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
