//! The ids of entries and calls: each kept once, in one text, with tables of what is there.

use std::hash::Hasher;

use hashbrown::HashTable;
use rustc_hash::FxHasher;

/// Where an id stands in [`Names`]: where it begins, and how long it is, in one word, which a call can give back in
/// registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Name(u64);

impl Name {
    fn new(start: usize, len: usize) -> Self {
        // Four thousand million bytes of ids do not fit into a process beside their entries.
        let half = |number: usize| u64::from(u32::try_from(number).unwrap_or(u32::MAX));
        Self(half(start) << 32 | half(len))
    }

    fn start(self) -> usize {
        (self.0 >> 32) as usize
    }

    fn len(self) -> usize {
        self.0 as u32 as usize
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// An entry that was taken in, with the print of what it says.
#[derive(Clone, Copy, Debug)]
struct Known {
    name: Name,
    print: u64,
}

#[derive(Debug, Default)]
pub struct Names {
    text: String,
    known: HashTable<Known>,
    /// Call ids that are in use.
    calls: HashTable<Name>,
}

fn slice(text: &str, name: Name) -> &str {
    let start = name.start();
    text.get(start..start + name.len()).unwrap_or_default()
}

fn hash_of(id: &str) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(id.as_bytes());
    hasher.finish()
}

impl Names {
    pub fn get(&self, name: Name) -> &str {
        slice(&self.text, name)
    }

    fn keep(&mut self, id: &str) -> Name {
        let name = Name::new(self.text.len(), id.len());
        self.text.push_str(id);
        name
    }

    /// The print of the entry of this id, where there is one.
    pub fn print_of(&self, id: &str) -> Option<u64> {
        let found = self
            .known
            .find(hash_of(id), |known| slice(&self.text, known.name) == id);
        found.map(|known| known.print)
    }

    /// Room for so many more entries.
    pub fn reserve(&mut self, entries: usize) {
        let text = &self.text;
        self.known
            .reserve(entries, |known| hash_of(slice(text, known.name)));
    }

    /// Takes an entry in; `None` where the very same is there already.
    pub fn take_in(&mut self, id: &str, print: u64) -> Option<Name> {
        let hash = hash_of(id);
        let text = &self.text;
        if let Some(known) = self
            .known
            .find_mut(hash, |known| slice(text, known.name) == id)
        {
            if known.print == print {
                return None;
            }
            known.print = print;
            return Some(known.name);
        }
        let name = self.keep(id);
        let text = &self.text;
        self.known
            .insert_unique(hash, Known { name, print }, |known| {
                hash_of(slice(text, known.name))
            });
        Some(name)
    }

    pub fn forget(&mut self, name: Name) {
        let text = &self.text;
        let id = slice(text, name);
        if let Ok(found) = self
            .known
            .find_entry(hash_of(id), |known| slice(text, known.name) == id)
        {
            found.remove();
        }
    }

    /// Takes a call id into use; `None` where it is empty or in use.
    pub fn claim_call(&mut self, id: &str) -> Option<Name> {
        if id.is_empty() {
            return None;
        }
        let hash = hash_of(id);
        let text = &self.text;
        if self
            .calls
            .find(hash, |name| slice(text, *name) == id)
            .is_some()
        {
            return None;
        }
        let name = self.keep(id);
        let text = &self.text;
        self.calls
            .insert_unique(hash, name, |name| hash_of(slice(text, *name)));
        Some(name)
    }

    pub fn release_call(&mut self, name: Name) {
        let text = &self.text;
        let id = slice(text, name);
        if let Ok(found) = self
            .calls
            .find_entry(hash_of(id), |name| slice(text, *name) == id)
        {
            found.remove();
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_entry_is_taken_in_once_and_forgotten_wholly() {
        let mut names = Names::default();
        let a = names.take_in("a", 1).expect("new");
        assert_eq!(names.get(a), "a");
        assert!(names.take_in("a", 1).is_none());
        assert_eq!(names.take_in("a", 2), Some(a), "other content, same id");
        assert_eq!(names.print_of("a"), Some(2));
        names.forget(a);
        assert!(names.print_of("a").is_none());
        assert!(names.take_in("a", 2).is_some());
    }

    #[test]
    fn a_call_id_is_used_by_one_call_at_a_time() {
        let mut names = Names::default();
        assert!(names.claim_call("").is_none());
        let one = names.claim_call("k").expect("free");
        assert!(names.claim_call("k").is_none());
        names.release_call(one);
        assert!(names.claim_call("k").is_some());
    }
}
