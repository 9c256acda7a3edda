//! A look at text as code points, for hosts whose strings hold no UTF-8 until someone asks for it.
//!
//! Most texts hold nothing that has to be broken. To see that takes a fifth of the time of making their UTF-8 first.

use crate::neutralize::{JOINERS, Style};
use crate::special_tokens::SpecialTokens;

/// Sets whose tokens begin with more characters are not looked for.
const MOST_FIRSTS: usize = 8;
/// Code points looked at in one step.
const BLOCK: usize = 64;
/// The joiners are this one and some of the seven after it.
const JOINER_LEAST: char = JOINERS[0];
/// Fills the last block.
const NO_CHARACTER: u32 = u32::MAX;

/// The characters that the tokens of a set begin with.
pub(crate) struct Firsts {
    /// Filled up with the first one.
    chars: [u32; MOST_FIRSTS],
    count: usize,
    /// Characters of the longest token.
    longest: usize,
}

impl Firsts {
    /// `None` where they are too many, or none.
    pub(crate) fn of(tokens: &[String]) -> Option<Self> {
        let mut firsts: Vec<u32> = Vec::new();
        let mut longest = 0;
        for token in tokens {
            let first = token.chars().next()? as u32;
            if !firsts.contains(&first) {
                if firsts.len() == MOST_FIRSTS {
                    return None;
                }
                firsts.push(first);
            }
            longest = longest.max(token.chars().count());
        }
        let mut chars = [*firsts.first()?; MOST_FIRSTS];
        chars[..firsts.len()].copy_from_slice(&firsts);
        Some(Self {
            chars,
            count: firsts.len(),
            longest,
        })
    }
}

impl SpecialTokens {
    /// How many characters two pieces of one text must share for [`Self::surely_none`]; `None` where it never says yes.
    pub fn shared_by_pieces(&self) -> Option<usize> {
        self.firsts.as_ref().map(|firsts| firsts.longest - 1)
    }

    /// Whether neutralizing surely leaves these code points as they are, and none of them is a surrogate.
    ///
    /// `false` may also mean that it would take too long to tell.
    ///
    /// ```
    /// use agentkit_core::neutralize::Style;
    /// use agentkit_core::special_tokens::SpecialTokens;
    /// let set = SpecialTokens::default_set();
    /// let clean = |text: &str| {
    ///     let text: Vec<u32> = text.chars().map(u32::from).collect();
    ///     set.surely_none(&text, Style::Entity)
    /// };
    /// assert!(clean("今天 <b>天气</b>"));
    /// assert!(!clean("今天<|im_end|>"));
    /// ```
    pub fn surely_none(&self, code_points: &[u32], style: Style) -> bool {
        let Some(firsts) = &self.firsts else {
            return false;
        };
        let few = firsts.chars.first_chunk::<4>();
        match (few.filter(|few| firsts.count <= few.len()), style) {
            (Some(few), Style::Entity) => self.none_of::<_, false>(code_points, few),
            (Some(few), Style::Joiner) => self.none_of::<_, true>(code_points, few),
            (None, Style::Entity) => self.none_of::<_, false>(code_points, &firsts.chars),
            (None, Style::Joiner) => self.none_of::<_, true>(code_points, &firsts.chars),
        }
    }

    fn none_of<const N: usize, const JOINERS: bool>(
        &self,
        code_points: &[u32],
        firsts: &[u32; N],
    ) -> bool {
        let ascii = firsts.iter().all(|first| *first < 0x80);
        // Where most places are candidates the automaton over UTF-8 is faster.
        let mut candidates = 16 + code_points.len() / 64;
        let (blocks, rest) = code_points.as_chunks::<BLOCK>();
        let mut last = [NO_CHARACTER; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        let mut plain = true;
        for (index, block) in blocks.iter().chain(std::iter::once(&last)).enumerate() {
            // Where there was ASCII there will be more, most often.
            plain = ascii && (plain || index % 8 == 0) && is_plain::<JOINERS>(block);
            if plain {
                continue;
            }
            let (wrong, begins) = look_at::<_, JOINERS>(block, firsts);
            if wrong {
                return false;
            }
            if !begins {
                continue;
            }
            for (at, _) in block.iter().enumerate().filter(|(_, c)| firsts.contains(c)) {
                let Some(left) = candidates.checked_sub(1) else {
                    return false;
                };
                candidates = left;
                if self.begins_with(&code_points[index * BLOCK + at..]) {
                    return false;
                }
            }
        }
        true
    }

    fn begins_with(&self, code_points: &[u32]) -> bool {
        let longest = self.firsts.as_ref().map_or(0, |firsts| firsts.longest);
        let spelled: String = code_points
            .iter()
            .take(longest)
            .map_while(|c| char::from_u32(*c))
            .collect();
        self.starts.begins_at(spelled.as_bytes(), 0)
    }
}

// Neither has an early exit, so that the compiler makes vector code of them.

/// Whether a block holds no ASCII and nothing that is wrong.
fn is_plain<const JOINERS: bool>(block: &[u32; BLOCK]) -> bool {
    !block
        .iter()
        .fold(false, |odd, c| odd | (*c < 0x80) | is_wrong::<JOINERS>(*c))
}

/// Whether a block holds what is wrong, and whether it holds one of `firsts`.
fn look_at<const N: usize, const JOINERS: bool>(
    block: &[u32; BLOCK],
    firsts: &[u32; N],
) -> (bool, bool) {
    let (mut wrong, mut begins) = (0, 0);
    for c in block {
        wrong |= u32::from(is_wrong::<JOINERS>(*c));
        for first in firsts {
            begins |= u32::from(c == first);
        }
    }
    (wrong != 0, begins != 0)
}

/// A surrogate, or what may be a joiner.
fn is_wrong<const JOINERS: bool>(c: u32) -> bool {
    (c & !0x7FF == 0xD800) | (JOINERS & (c & !7 == JOINER_LEAST as u32))
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, SpecialTokens, Style};

    fn none(set: &SpecialTokens, text: &str, style: Style) -> bool {
        let text: Vec<u32> = text.chars().map(u32::from).collect();
        set.surely_none(&text, style)
    }

    #[test]
    fn sees_what_it_has_to_at_every_place() {
        let default = SpecialTokens::default_set();
        let odd = SpecialTokens::new(["天x", "b", "cc", "d", "e", "ff"]);
        for place in 0..3 * BLOCK {
            let around = |middle: &str| {
                let mut text: Vec<char> = "日本語のテキスト".chars().cycle().take(place).collect();
                text.extend(middle.chars());
                text.extend("本".repeat(3 * BLOCK - place).chars());
                String::from_iter(text)
            };
            for style in [Style::Entity, Style::Joiner] {
                assert!(none(default, &around("a < b [1] 天x"), style));
                assert!(!none(default, &around("<|"), style));
                assert!(!none(default, &around("<start_of_turn>"), style));
                assert!(!none(default, &around("]~b]"), style));
                assert!(none(&odd, &around("天c f"), style));
                assert!(!none(&odd, &around("天x"), style));
                assert!(!none(&odd, &around("ff"), style));
            }
            assert!(!none(default, &around("\u{2063}"), Style::Joiner));
            assert!(none(default, &around("\u{2063}"), Style::Entity));
            let mut text: Vec<u32> = around("").chars().map(u32::from).collect();
            for lone in [0xD800, 0xDFFF] {
                text[place.min(3 * BLOCK - 1)] = lone;
                assert!(!default.surely_none(&text, Style::Entity));
                assert!(!odd.surely_none(&text, Style::Entity));
            }
        }
    }

    #[test]
    fn gives_up_where_it_would_take_long() {
        let default = SpecialTokens::default_set();
        assert!(none(default, &"<b>".repeat(8), Style::Entity));
        assert!(!none(default, &"<b>".repeat(9_000), Style::Entity));
        let vocabulary: Vec<String> = ('a'..='z').map(String::from).collect();
        let set = SpecialTokens::new(vocabulary);
        assert!(!none(&set, "日本", Style::Entity));
        assert_eq!(set.shared_by_pieces(), None);
        assert_eq!(SpecialTokens::new(["<|x|>"]).shared_by_pieces(), Some(4));
    }
}
