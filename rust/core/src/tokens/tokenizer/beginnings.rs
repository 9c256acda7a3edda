//! Counting the tokens of many beginnings of one text, in the time of counting it a few times.
//!
//! What a beginning ends in may be other tokens than the whole text has there, so its end has to be
//! tokenized by itself; but only its end. At a *seam* no token and no rule of the pre-tokenizer reaches
//! across, whatever stands before and behind: the tokens before it are those of the whole text, and the ones
//! behind it those of the rest alone.

use super::{BLANK, Count, Engine, Mode, Tokenizer};
use crate::tokens::pretokenize::Pre;

impl Tokenizer {
    /// For each of `places` (byte offsets at characters' borders, ascending) the tokens of the text before it,
    /// taken as [`Mode::Untrusted`].
    ///
    /// Where a text has no seam for long (one endless word; a pre-tokenizer that cuts at numbers only), each
    /// place costs the text since the last one.
    pub fn count_beginnings(&self, text: &str, places: &[usize]) -> Vec<usize> {
        let (mut seam, mut before) = (0, 0);
        let mut searched = 0;
        let mut counts = Vec::with_capacity(places.len());
        for &place in places {
            if let Some((found, width)) = self.last_seam(text, searched.max(seam + 1), place) {
                // The tokens up to the character behind the seam, less that character's.
                let behind = &text[found..found + width];
                before += self.count_from(text, seam, found + width) - self.count_on(behind, false);
                seam = found;
            }
            searched = place;
            counts.push(before + self.count_from(text, seam, place));
        }
        counts
    }

    fn count_from(&self, text: &str, seam: usize, end: usize) -> usize {
        self.count_on(&text[seam..end], seam == 0)
    }

    fn count_on(&self, text: &str, fresh: bool) -> usize {
        let mut count = Count(0);
        self.run(text, Mode::Untrusted, fresh, &mut count);
        count.0
    }

    /// The last seam from `first` on and before `end`, and the length of the character behind it.
    fn last_seam(&self, text: &str, first: usize, end: usize) -> Option<(usize, usize)> {
        let mut behind: Option<char> = None;
        // A character more than lies between: the one before a seam at `first`.
        for (start, before) in text[..end].char_indices().rev() {
            let seam = start + before.len_utf8();
            if seam < first {
                break;
            }
            if let Some(behind) = behind
                && self.is_seam(before, behind)
            {
                return Some((seam, behind.len_utf8()));
            }
            behind = Some(before);
        }
        None
    }

    /// Whether nothing reaches from one of two neighbouring characters to the other in any text.
    ///
    /// The special tokens that are looked for here are blank, and blanks on both sides are never a seam.
    fn is_seam(&self, before: char, behind: char) -> bool {
        match &self.engine {
            Engine::Bpe(bpe) if bpe.byte_encoded => self.vocab.traits.pre.seam(before, behind),
            // Lines are cut apart before anything else.
            Engine::Bpe(bpe) if bpe.ignore_merges => before == '\n' && !behind.is_whitespace(),
            Engine::Bpe(_) | Engine::Spm(_) => {
                let Some(borders) = &self.borders else {
                    return false;
                };
                let written = |letter: char| BLANK.starts_with(letter);
                if before.is_whitespace() || written(before) || written(behind) {
                    return false;
                }
                let mut raw = [0; 4];
                let last = before.encode_utf8(&mut raw).as_bytes()[before.len_utf8() - 1];
                let first = behind.encode_utf8(&mut raw).as_bytes()[0];
                borders.cut(last, first)
            }
        }
    }
}

impl Pre {
    /// Whether a piece always ends between these two characters, and no rule looks further than to `behind`
    /// from the left, or back from the right.
    fn seam(self, before: char, behind: char) -> bool {
        match self {
            // Cut at numbers only, which are then counted from the right.
            Self::Superbpe => {
                before.is_ascii_digit() && behind.is_ascii() && !behind.is_ascii_digit()
            }
            // Stops and blanks are one piece.
            Self::Bloom | Self::Viking if before == '\n' => behind.is_alphanumeric(),
            // A line's end goes to what is before it; punctuation may take slashes after it along.
            _ if before == '\n' => !behind.is_whitespace() && behind != '/',
            // Here words with single blanks between are one piece, or whole lines.
            Self::ExaoneMoe | Self::Newlines => before.is_ascii_alphabetic() && behind == '\n',
            _ => before.is_ascii_alphabetic() && matches!(behind, ' ' | '\n'),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokens::fuzz::{bpe, spm};
    use crate::tokens::gguf::{Header, tests::Writer};
    use crate::tokens::pretokenize::{PreTraits, tests::NAMES};

    /// What rules tell apart, close together.
    fn text() -> impl Strategy<Value = String> {
        let part = prop::sample::select(vec![
            "a",
            "B",
            "the",
            "x ",
            " ",
            "  ",
            "\n",
            "\n\n",
            "\r\n",
            "\t",
            "/",
            ".\n",
            "'",
            "'s",
            "'ll",
            "1",
            "12",
            "1234",
            "٣",
            "é",
            "e\u{301}",
            "\u{301}",
            "日本",
            "한",
            "、",
            "\u{3000}",
            "\u{a0}",
            "\u{2581}",
            "<tool>",
            "<|end|>",
            "<sentinel:1",
            ">",
            "IMGIMGAZ",
            "==",
            "`",
            "(",
            "\u{0}",
            "😀",
        ]);
        prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
    }

    fn ends(pre: Pre, text: &str) -> Vec<usize> {
        let mut ends = Vec::new();
        pre.for_each_range(text.as_bytes(), |_, end| ends.push(end));
        ends
    }

    /// The definition: every beginning counted by itself.
    fn each_by_itself(tokenizer: &Tokenizer, text: &str, places: &[usize]) -> Vec<usize> {
        places
            .iter()
            .map(|&place| tokenizer.count(&text[..place], Mode::Untrusted))
            .collect()
    }

    /// BPE over lines of raw text, blanks written as U+2581.
    fn lines() -> Vec<u8> {
        let mut tokens: Vec<String> = vec!["<unk>".into()];
        tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        tokens.extend(
            [
                "a", "t", "h", "e", "x", "th", "the", "▁", "▁x", "▁▁", "\n", "\n\n", "é",
            ]
            .map(str::to_owned),
        );
        let mut kinds = vec![2];
        kinds.extend([6; 256]);
        kinds.resize(tokens.len(), 1);
        Writer::new(false)
            .text("tokenizer.ggml.model", "gemma4")
            .strings("tokenizer.ggml.tokens", &tokens)
            .i32s("tokenizer.ggml.token_type", &kinds)
            .strings(
                "tokenizer.ggml.merges",
                &["t h", "th e", "▁ x", "▁ ▁", "\n \n"],
            )
            .finish()
    }

    fn tokenizers() -> Vec<Tokenizer> {
        [bpe(false), spm(false), lines()]
            .into_iter()
            .map(|bytes| {
                Tokenizer::new(&Header::read(&bytes[..]).expect("a good file"))
                    .expect("a vocabulary")
            })
            .collect()
    }

    proptest! {
        #[test]
        fn nothing_reaches_across_a_seam(text in text()) {
            let letters: Vec<(usize, char)> = text.char_indices().collect();
            for name in NAMES {
                let pre = PreTraits::by_name(name).expect("a known name").pre;
                for both in letters.windows(2) {
                    let ((_, before), (seam, behind)) = (both[0], both[1]);
                    if !pre.seam(before, behind) {
                        continue;
                    }
                    let mut left = ends(pre, &text[..seam + behind.len_utf8()]);
                    left.retain(|&end| end <= seam);
                    prop_assert_eq!(left.last(), Some(&seam), "{} {:?} {}", name, text, seam);
                    for &(place, letter) in letters.iter().filter(|(place, _)| *place >= seam) {
                        let end = place + letter.len_utf8();
                        let right = ends(pre, &text[seam..end]).into_iter().map(|end| seam + end);
                        let want: Vec<usize> = left.iter().copied().chain(right).collect();
                        prop_assert_eq!(ends(pre, &text[..end]), want, "{} {:?} {} {}", name, text, seam, end);
                    }
                }
            }
        }

        #[test]
        fn equal_to_counting_each_by_itself(text in text(), every in 1_usize..4) {
            let places: Vec<usize> = (0..=text.len())
                .filter(|&place| text.is_char_boundary(place))
                .step_by(every)
                .collect();
            for tokenizer in tokenizers() {
                prop_assert_eq!(
                    tokenizer.count_beginnings(&text, &places),
                    each_by_itself(&tokenizer, &text, &places)
                );
            }
        }
    }

    #[test]
    fn places_may_be_none_or_the_same() {
        for tokenizer in tokenizers() {
            assert_eq!(tokenizer.count_beginnings("the x", &[]), [0_usize; 0]);
            let places = [0, 0, 3, 3, 5, 5];
            assert_eq!(
                tokenizer.count_beginnings("the x", &places),
                each_by_itself(&tokenizer, "the x", &places)
            );
        }
    }
}
