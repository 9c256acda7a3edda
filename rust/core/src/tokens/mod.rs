//! Counting tokens: the estimate that needs no vocabulary, and (in submodules) exact tokenizers.

#[cfg(test)]
mod fuzz;
pub mod gguf;
mod merge;
pub mod pretokenize;
mod rules;
mod special;
mod table;
pub mod tokenizer;
pub mod unicode;
mod unicode_table;
pub mod vocab;

/// Tokens in `text` by the rule "four bytes a token, rounded up".
///
/// Cheap and without a vocabulary; below the truth for code, digits and CJK.
pub fn chars_by_four(text: &str) -> usize {
    text.len().div_ceil(4)
}

#[cfg(test)]
mod tests {
    use super::chars_by_four;

    #[test]
    fn rounds_up() {
        for (text, want) in [
            ("", 0),
            ("a", 1),
            ("abcd", 1),
            ("abcde", 2),
            ("é", 1),
            ("日本語", 3),
        ] {
            assert_eq!(chars_by_four(text), want, "{text:?}");
        }
    }
}
