//! What holds for every text, on texts built from the pieces that could break it.
//!
//! `PROPTEST_CASES=1000000 cargo test --release -p agentkit-core --test text_properties` is the long run.

use std::borrow::Cow;

use agentkit_core::neutralize::{Style, neutralize, restore};
use agentkit_core::repetition::{Options, Repetition, RepetitionGuard};
use agentkit_core::slots::{capture_slots, expand_slots, section_names};
use agentkit_core::special_tokens::SpecialTokens;
use agentkit_core::tight::{decode_tight, encode_tight};
use agentkit_core::truncate::truncate_middle;
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
        let own = SpecialTokens::new(tokens);
        for set in [&own, SpecialTokens::default_set()] {
            let out = neutralize(&text, set, Style::Entity).expect("entities always do");
            prop_assert_eq!(set.find(&out).count(), 0);
            if let Ok(out) = neutralize(&text, set, Style::Joiner) {
                prop_assert_eq!(set.find(&out).count(), 0);
                prop_assert_eq!(restore(&out), text.as_str());
            }
        }
    }

    #[test]
    fn any_set_of_any_characters(
        tokens in prop::collection::vec(".{1,3}", 0..5),
        text in ".{0,40}",
    ) {
        let whole = [tokens.concat(), text, tokens.concat()].concat();
        let set = SpecialTokens::new(tokens);
        let out = neutralize(&whole, &set, Style::Entity).expect("entities always do");
        prop_assert_eq!(set.find(&out).count(), 0);
        if let Ok(out) = neutralize(&whole, &set, Style::Joiner) {
            prop_assert_eq!(set.find(&out).count(), 0);
            prop_assert_eq!(restore(&out), whole.as_str());
        }
    }

    #[test]
    fn find_is_leftmost_longest(
        tokens in prop::collection::vec("[ab<|日]{1,4}", 1..6),
        text in "[ab<|日]{0,40}",
    ) {
        let set = SpecialTokens::new(tokens.clone());
        let got: Vec<_> = set.find(&text).map(|(start, end, _)| (start, end)).collect();
        let mut want = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let here = text.get(at..).and_then(|rest| {
                tokens.iter().filter(|token| rest.starts_with(token.as_str())).map(String::len).max()
            });
            match here {
                Some(length) => {
                    want.push((at, at + length));
                    at += length;
                }
                None => at += 1,
            }
        }
        prop_assert_eq!(got, want);
    }

    #[test]
    fn slots_of_any_text(text in glued(&["<a>", "</a>", "<b>", "</b>", "<", ">", "/", "{a}", "{", "x", "日"], 40)) {
        let slots = capture_slots(&text);
        let mut names: Vec<&str> = slots.sections.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        prop_assert_eq!(names, section_names(&text));
        prop_assert!(slots.sections.iter().all(|(_, value)| text.contains(value)));
        prop_assert_eq!(expand_slots(&text, |_| None), text.as_str());
        prop_assert_eq!(expand_slots(&text, |_| Some("x")), text.replace("{a}", "x"));
    }

    #[test]
    fn tight_text_is_reversible(
        text in glued(&["[", "]", "{", "}", "\"", ",", ":", "=", "\n", " ", "\\n", "\\", "0", "1", "-", "1e5", ".5",
            "a", "true", "null", "\"a\"", "\"b\":", "[{\"a\":", "},{\"a\":", "[2]", "日"], 24),
    ) {
        if let Cow::Owned(tight) = encode_tight(&text) {
            let back = decode_tight(&tight);
            let json: serde_json::Value = serde_json::from_str(&back).expect("JSON");
            prop_assert_eq!(json, serde_json::from_str::<serde_json::Value>(&text).expect("JSON"));
            prop_assert!(tight.len() < text.len());
        }
        if let Cow::Owned(json) = decode_tight(&text) {
            prop_assert_eq!(encode_tight(&json), text);
        }
    }

    #[test]
    fn encoding_takes_exactly_json(text in glued(&["[", "]", "{", "}", "\"", ",", ":", " ", "\\u12ab", "\\q", "0", "1", "-", "1.5e+3",
            "a", "true", "nul", "null", "\"a\":"], 12)) {
        // Text that is JSON with a blank in front always changes; text that is none never does.
        let padded = format!(" {text}");
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        prop_assert_eq!(matches!(encode_tight(&padded), Cow::Owned(_)), is_json, "{}", text);
    }

    #[test]
    fn cut_text_keeps_its_ends(text in ".{0,60}", limit in 0_usize..80) {
        let out = truncate_middle(&text, limit, "hint");
        if let Cow::Owned(out) = out {
            prop_assert!(text.len() > limit);
            let marker = format!(" of {} bytes left out here. hint]\n", text.len());
            prop_assert!(out.contains(&marker));
        } else {
            prop_assert!(limit == 0 || text.len() <= limit);
        }
    }

    #[test]
    fn the_guard_agrees_with_the_obvious_search(
        cycle in "[ab é]{1,12}",
        lead in "[ab é]{0,40}",
        copies in 0_usize..40,
        more in "[abc é]{0,8}",
    ) {
        let options = Options {
            min_period: 4, max_period: 40, min_reps: 3, min_span: 24, check_every: 1, short_span: 60,
        };
        let text = [lead, cycle.repeat(copies), more].concat();
        let mut guard = RepetitionGuard::new(options).expect("options");
        let mut buffer = [0; 4];
        let mut pushed = 0;
        let mut got = None;
        for c in text.chars() {
            pushed += c.len_utf8();
            got = guard.push(c.encode_utf8(&mut buffer));
            let want = obvious(&text.as_bytes()[..pushed], &options);
            prop_assert_eq!(got.as_ref().map(|found| (found.period, found.reps)), want);
            if got.is_some() {
                break;
            }
        }
        if let Some(Repetition { period, reps, trailing, sample, .. }) = got {
            prop_assert_eq!(trailing, (reps - 1) * period);
            prop_assert!(text.is_char_boundary(pushed - trailing));
            prop_assert_eq!(sample.as_bytes(), &text.as_bytes()[pushed - period..pushed]);
        }
    }
}

/// The smallest period by trying each; `Some((period, copies))` where the options ask for a finding.
fn obvious(text: &[u8], options: &Options) -> Option<(usize, usize)> {
    let n = text.len();
    let stretch = |period: usize| {
        (1..=n - period)
            .take_while(|back| text[n - back] == text[n - back - period])
            .count()
            + period
    };
    for period in 1..=options.max_period.min(n.saturating_sub(1)) {
        let length = stretch(period);
        let copies = length / period;
        if copies < options.min_reps || length < 2 * period {
            continue;
        }
        let span = copies * period;
        let shorter =
            (1..period).any(|shorter| period.is_multiple_of(shorter) && stretch(shorter) >= length);
        let plain = text[n - period..]
            .iter()
            .any(|byte| byte.is_ascii_alphabetic() || *byte >= 0x80);
        let one = {
            let cycle = String::from_utf8_lossy(&text[n - period..]).into_owned();
            let mut marks = cycle.chars().filter(|c| *c != ' ' && *c != '\u{FFFD}');
            let first = marks.next();
            marks.all(|c| Some(c) == first)
        };
        if shorter {
            continue;
        }
        if span > options.short_span
            || period >= options.min_period && span >= options.min_span && plain && !one
        {
            return Some((period, copies));
        }
    }
    None
}
