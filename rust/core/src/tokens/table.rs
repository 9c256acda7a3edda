//! Hash tables made for a vocabulary: filled once, then only read.

/// Multipliers with well-mixed bits (the fractional parts of the golden ratio and of the root of 2).
const MIX_A: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_B: u64 = 0x6a09_e667_f3bc_c909;

pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = (bytes.len() as u64).wrapping_mul(MIX_B);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = (hash.rotate_left(29) ^ u64::from_le_bytes(*word)).wrapping_mul(MIX_A);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash.rotate_left(29) ^ u64::from_le_bytes(last)).wrapping_mul(MIX_A);
    }
    hash ^ (hash >> 32)
}

/// Strings one behind the other, by number.
#[derive(Default)]
pub struct Texts {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Texts {
    pub fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        // A header is below 2^32 bytes, and so are the strings taken from it.
        self.ends.push(self.bytes.len() as u32);
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    #[inline]
    pub fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 {
            0
        } else {
            self.ends[index - 1] as usize
        };
        &self.bytes[start..self.ends[index] as usize]
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index))
    }
}

/// From a text to its number in a [`Texts`].
pub struct TextTable {
    /// High half of the hash, and number + 1; 0 is an empty slot.
    slots: Vec<(u32, u32)>,
    mask: usize,
}

impl TextTable {
    /// Numbers every text; `Err((first, second))` where two are the same.
    pub fn new(texts: &Texts) -> Result<Self, (usize, usize)> {
        let size = (texts.len() * 2).next_power_of_two().max(16);
        let mut table = Self {
            slots: vec![(0, 0); size],
            mask: size - 1,
        };
        for (index, text) in texts.iter().enumerate() {
            let hash = hash_bytes(text);
            let mut slot = hash as usize & table.mask;
            loop {
                let (tag, number) = table.slots[slot];
                if number == 0 {
                    table.slots[slot] = ((hash >> 32) as u32, index as u32 + 1);
                    break;
                }
                if tag == (hash >> 32) as u32 && texts.get(number as usize - 1) == text {
                    return Err((number as usize - 1, index));
                }
                slot = (slot + 1) & table.mask;
            }
        }
        Ok(table)
    }

    #[inline]
    pub fn get(&self, texts: &Texts, text: &[u8]) -> Option<u32> {
        let hash = hash_bytes(text);
        let mut slot = hash as usize & self.mask;
        loop {
            let (tag, number) = self.slots[slot];
            if number == 0 {
                return None;
            }
            if tag == (hash >> 32) as u32 && texts.get(number as usize - 1) == text {
                return Some(number - 1);
            }
            slot = (slot + 1) & self.mask;
        }
    }
}

/// From a pair of symbols to its rank and what it becomes.
pub struct PairTable {
    /// Left, right, rank, merged. An empty slot has `u32::MAX` at the left.
    slots: Vec<[u32; 4]>,
    mask: usize,
}

const EMPTY: u32 = u32::MAX;

impl PairTable {
    pub fn with_room_for(count: usize) -> Self {
        let size = (count * 2).next_power_of_two().max(16);
        Self {
            slots: vec![[EMPTY; 4]; size],
            mask: size - 1,
        }
    }

    #[inline(always)]
    fn start(&self, left: u32, right: u32) -> usize {
        let key = u64::from(left) << 32 | u64::from(right);
        (key.wrapping_mul(MIX_A) >> 32) as usize & self.mask
    }

    /// Keeps what is there already: the first of two equal merges counts.
    pub fn insert(&mut self, left: u32, right: u32, rank: u32, merged: u32) {
        let mut slot = self.start(left, right);
        loop {
            let [has_left, has_right, ..] = self.slots[slot];
            if has_left == left && has_right == right {
                return;
            }
            if has_left == EMPTY {
                self.slots[slot] = [left, right, rank, merged];
                return;
            }
            slot = (slot + 1) & self.mask;
        }
    }

    /// Rank and merged symbol.
    #[inline(always)]
    pub fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let mut slot = self.start(left, right);
        loop {
            let [has_left, has_right, rank, merged] = self.slots[slot];
            if has_left == left && has_right == right {
                return Some((rank, merged));
            }
            if has_left == EMPTY {
                return None;
            }
            slot = (slot + 1) & self.mask;
        }
    }
}

/// Words below this length are compared as one number.
const SHORT: usize = 16;
const SETS: usize = 1 << 15;
const LONG_SLOTS: usize = 1 << 13;
/// Longer words, and those of more ids, are seldom met again.
const LONG: usize = 128;
const LONG_IDS: usize = 32;

/// Two words whose hashes agree, with up to three ids each: one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Set {
    keys: [u128; 2],
    /// How many ids, and the ids.
    values: [[u32; 4]; 2],
}

/// A longer word and its ids.
type LongWord = (Box<[u8]>, Box<[u32]>);

/// The ids of words met lately. Bounded: 2 MiB, and at most 8,192 longer words of 0.3 KB.
pub struct WordCache {
    sets: Vec<Set>,
    long: Vec<Option<LongWord>>,
}

impl WordCache {
    pub fn new() -> Self {
        Self {
            sets: vec![
                Set {
                    keys: [0; 2],
                    values: [[0; 4]; 2]
                };
                SETS
            ],
            long: vec![None; LONG_SLOTS],
        }
    }

    #[inline(always)]
    fn set_of(key: u128) -> usize {
        let folded = (key as u64).wrapping_mul(MIX_A) ^ ((key >> 64) as u64).wrapping_mul(MIX_B);
        (folded >> 40) as usize % SETS
    }

    /// The word at `start..end` of `text` as a number: its bytes and, on top, its length. 0 where it
    /// is too long.
    #[inline(always)]
    pub fn key(text: &[u8], start: usize, end: usize) -> u128 {
        let len = end - start;
        if len >= SHORT {
            return 0;
        }
        let raw = match text.get(start..start + SHORT) {
            Some(window) => {
                let mut raw = [0; SHORT];
                raw.copy_from_slice(window);
                u128::from_le_bytes(raw) & ((1 << (8 * len)) - 1)
            }
            None => {
                let mut raw = [0; SHORT];
                raw[..len].copy_from_slice(&text[start..end]);
                u128::from_le_bytes(raw)
            }
        };
        raw | (len as u128) << 120
    }

    #[inline(always)]
    pub fn get(&self, key: u128) -> Option<&[u32]> {
        let set = &self.sets[Self::set_of(key)];
        let way = if set.keys[0] == key {
            0
        } else if set.keys[1] == key {
            1
        } else {
            return None;
        };
        let [len, ids @ ..] = &set.values[way];
        Some(&ids[..(*len as usize).min(3)])
    }

    /// A short word that newer ones have pushed out of its own set into the one beside it.
    pub fn get_beside(&self, key: u128) -> Option<&[u32]> {
        let set = &self.sets[Self::set_of(key) ^ 1];
        let way = set.keys.iter().position(|&known| known == key)?;
        let [len, ids @ ..] = &set.values[way];
        Some(&ids[..(*len as usize).min(3)])
    }

    /// Keeps the ids of a short word, if there are few enough; `true` where it did.
    pub fn put(&mut self, key: u128, ids: &[u32]) -> bool {
        if ids.len() > 3 {
            return false;
        }
        let place = Self::set_of(key);
        let set = &mut self.sets[place];
        let pushed = (set.keys[1], set.values[1]);
        set.keys[1] = set.keys[0];
        set.values[1] = set.values[0];
        set.keys[0] = key;
        set.values[0][0] = ids.len() as u32;
        set.values[0][1..=ids.len()].copy_from_slice(ids);
        // Sets fill unevenly: what is pushed out of a full one gets the older place beside it.
        if pushed.0 != 0 && Self::set_of(pushed.0) == place {
            let beside = &mut self.sets[place ^ 1];
            (beside.keys[1], beside.values[1]) = pushed;
        }
        true
    }

    pub fn get_long(&self, word: &[u8]) -> Option<&[u32]> {
        if word.len() > LONG {
            return None;
        }
        let place = hash_bytes(word) as usize % LONG_SLOTS;
        [place, place ^ 1]
            .into_iter()
            .find_map(|place| match &self.long[place] {
                Some((known, ids)) if **known == *word => Some(&**ids),
                _ => None,
            })
    }

    pub fn put_long(&mut self, word: &[u8], ids: &[u32]) {
        if word.len() <= LONG && ids.len() <= LONG_IDS {
            let place = hash_bytes(word) as usize % LONG_SLOTS;
            // Where another word of this place is, it goes to the place beside.
            if let Some(pushed) = self.long[place].take()
                && hash_bytes(&pushed.0) as usize % LONG_SLOTS == place
            {
                self.long[place ^ 1] = Some(pushed);
            }
            self.long[place] = Some((word.into(), ids.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found() {
        let mut texts = Texts::default();
        let words: Vec<String> = (0..5000).map(|n| format!("word{n}")).collect();
        for word in &words {
            texts.push(word.as_bytes());
        }
        let table = TextTable::new(&texts).expect("no duplicates");
        for (index, word) in words.iter().enumerate() {
            assert_eq!(table.get(&texts, word.as_bytes()), Some(index as u32));
        }
        assert_eq!(table.get(&texts, b"word"), None);
        assert_eq!(table.get(&texts, b""), None);
        texts.push(b"word7");
        assert_eq!(TextTable::new(&texts).err(), Some((7, 5000)));
    }

    #[test]
    fn first_of_two_merges_counts() {
        let mut table = PairTable::with_room_for(2);
        table.insert(1, 2, 10, 3);
        table.insert(1, 2, 11, 4);
        assert_eq!(table.get(1, 2), Some((10, 3)));
        assert_eq!(table.get(2, 1), None);
    }

    #[test]
    fn cache_returns_what_was_put() {
        let mut cache = WordCache::new();
        let text = b"abc\0abc\0\0 a longer word behind it";
        let keys: Vec<u128> = (0..15)
            .flat_map(|len| {
                [
                    WordCache::key(text, 0, len + 1),
                    WordCache::key(text, 4, len + 5),
                ]
            })
            .collect();
        assert_ne!(
            WordCache::key(text, 0, 3),
            WordCache::key(text, 0, 4),
            "NUL is part of a word"
        );
        assert_eq!(WordCache::key(text, 0, 3), WordCache::key(text, 4, 7));
        assert_eq!(
            WordCache::key(b"abc", 0, 3),
            WordCache::key(text, 0, 3),
            "at the end of a text"
        );
        assert_eq!(WordCache::key(text, 0, 16), 0);
        for (index, &key) in keys.iter().enumerate() {
            let ids = vec![index as u32; index % 4];
            assert!(cache.put(key, &ids));
            assert_eq!(cache.get(key), Some(&ids[..]));
        }
        assert!(!cache.put(1, &[1, 2, 3, 4]));
        assert_eq!(cache.get(WordCache::key(b"zzz", 0, 3)), None);
        cache.put_long(b"a word of many bytes", &[1, 2, 3, 4, 5]);
        assert_eq!(
            cache.get_long(b"a word of many bytes"),
            Some(&[1, 2, 3, 4, 5][..])
        );
        assert_eq!(cache.get_long(b"a word of many bytez"), None);
    }

    #[test]
    fn what_a_full_cache_still_has_is_right() {
        let mut cache = WordCache::new();
        let keys: Vec<u128> = (1..200_000).map(|n| (n * n) | (7 << 120)).collect();
        let words: Vec<String> = (0..10_000)
            .map(|n| format!("a word of many bytes {n}"))
            .collect();
        let ids = |n: usize| [n as u32, n as u32 + 1];
        for (n, &key) in keys.iter().enumerate() {
            assert!(cache.put(key, &ids(n)));
            assert_eq!(cache.get(key), Some(&ids(n)[..]));
        }
        for (n, word) in words.iter().enumerate() {
            cache.put_long(word.as_bytes(), &ids(n));
        }
        let mut kept = [0; 3];
        for (n, &key) in keys.iter().enumerate() {
            for (place, found) in [cache.get(key), cache.get_beside(key)]
                .into_iter()
                .enumerate()
            {
                kept[place] += usize::from(found.is_some());
                assert!(found.is_none_or(|found| found == ids(n)));
            }
        }
        for (n, word) in words.iter().enumerate() {
            let found = cache.get_long(word.as_bytes());
            kept[2] += usize::from(found.is_some());
            assert!(found.is_none_or(|found| found == ids(n)));
        }
        assert!(kept[0] > SETS && kept[1] > 100, "{kept:?}");
        assert!(kept[2] > LONG_SLOTS / 2, "{kept:?}");
    }
}
