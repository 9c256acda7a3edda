//! What holds for every text, on texts built from the pieces that could break it.
//!
//! `PROPTEST_CASES=1000000 cargo test --release -p agentkit-core --test text_properties` is the long run.

mod properties;

use proptest::prelude::*;

fn glued(pieces: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(pieces), 0..most).prop_map(|pieces| pieces.concat())
}

const TOKEN_PIECES: &[&str] = &[
    "<",
    "|",
    "<|",
    "|>",
    "im_end",
    "<|im_end|>",
    "start_of_turn",
    "<start_of_turn>",
    "｜",
    "<｜",
    "[",
    "]",
    "[TOOL_CALLS]",
    "TOOL_CALLS",
    "<<SYS>>",
    "<SYS>",
    "&lt;",
    "&",
    "lt;",
    "lt",
    "&#91;",
    ";",
    "#",
    "9",
    "\u{2060}",
    "\u{2063}",
    "\u{2064}",
    "\u{200B}",
    "x",
    "日",
];

proptest! {
    #[test]
    fn neutralized_text_holds_no_token(
        tokens in prop::collection::vec(glued(TOKEN_PIECES, 4), 0..6),
        text in glued(TOKEN_PIECES, 30),
    ) {
        properties::neutralizing(&tokens, &text);
    }

    #[test]
    fn any_set_of_any_characters(
        tokens in prop::collection::vec(".{1,3}", 0..5),
        text in ".{0,40}",
    ) {
        let whole = [tokens.concat(), text, tokens.concat()].concat();
        properties::neutralizing(&tokens, &whole);
    }

    #[test]
    fn find_is_leftmost_longest(
        tokens in prop::collection::vec("[ab<|日]{1,4}", 1..6),
        text in "[ab<|日]{0,40}",
    ) {
        properties::finding(&tokens, &text);
    }

    #[test]
    fn slots_of_any_text(text in glued(&["<a>", "</a>", "<b>", "</b>", "<", ">", "/", "{a}", "{", "x", "日"], 40)) {
        properties::slots(&text);
    }

    #[test]
    fn tight_text_is_reversible(
        text in glued(&["[", "]", "{", "}", "\"", ",", ":", "=", "\n", " ", "\\n", "\\", "\\u12ab", "\\q", "0", "1", "-", "1e5",
            "1.5e+3", ".5", "a", "true", "nul", "null", "\"a\"", "\"b\":", "[{\"a\":", "},{\"a\":", "[2]", "日"], 24),
    ) {
        properties::tight(&text);
    }

    #[test]
    fn cut_text_keeps_its_ends(text in ".{0,60}", limit in 0_usize..80) {
        properties::cut_text(&text, limit);
    }

    #[test]
    fn the_guard_agrees_with_the_obvious_search(
        cycle in "[ab é1|\\-]{1,12}",
        lead in "[ab é1|\\-]{0,40}",
        copies in 0_usize..40,
        more in "[abc é]{0,8}",
    ) {
        properties::guard(&[lead, cycle.repeat(copies), more].concat());
    }

    #[test]
    fn what_the_guard_finds_can_be_cut(
        cycle in "[ab0-9 é\n]{1,60}",
        lead in ".{0,400}",
        copies in 0_usize..200,
        more in ".{0,400}",
        sizes in prop::collection::vec(1_usize..900, 1..5),
    ) {
        properties::guard_in_pieces(&[lead, cycle.repeat(copies), more].concat(), &sizes);
    }
}
