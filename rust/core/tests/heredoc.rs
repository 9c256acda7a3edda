//! The same goldens as the Python tests, and the invariants on random replies.

mod properties;

use std::path::Path;

use agentkit_core::heredoc::{heredoc_grammar, heredoc_lark, parse_tool_calls, read_tools};
use agentkit_core::json::{Outcome, check_arguments, repair_json};
use proptest::prelude::*;
use serde_json::Value;

fn golden(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/golden")
        .join(name);
    let text = std::fs::read_to_string(&path).expect("golden file");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("golden row"))
        .collect()
}

#[test]
fn golden_replies() {
    for row in golden("parse_tool_calls.jsonl") {
        let text = row["in"].as_str().unwrap_or_default();
        let reply = parse_tool_calls(text);
        let kind = reply.problems.first().map(|problem| problem.kind.name());
        assert_eq!(kind, row["out"]["problem"].as_str(), "{text}");
        if kind.is_some() {
            continue;
        }
        let calls: Vec<Value> = reply
            .calls
            .iter()
            .map(|call| {
                let arguments: Value = serde_json::from_str(&call.arguments).expect("strict JSON");
                serde_json::json!({"name": call.name, "arguments": arguments})
            })
            .collect();
        assert_eq!(Value::from(calls), row["out"]["calls"], "{text}");
        let words: Vec<&str> = reply.prose.split_whitespace().collect();
        assert_eq!(
            serde_json::json!(words),
            row["out"]["prose_words"],
            "{text}"
        );
    }
}

#[test]
fn golden_repairs() {
    for row in golden("repair_json.jsonl") {
        let text = row["in"].as_str().unwrap_or_default();
        let repair = repair_json(text);
        assert_eq!(
            Some(repair.outcome.name()),
            row["out"]["outcome"].as_str(),
            "{text}"
        );
        if repair.outcome == Outcome::Ok {
            let value: Value = serde_json::from_str(&repair.text).expect("strict JSON");
            assert_eq!(value, row["out"]["value"], "{text}");
        }
    }
}

#[test]
fn golden_arguments() {
    for row in golden("check_arguments.jsonl") {
        let text = row["in"].as_str().unwrap_or_default();
        let kind = check_arguments(text).kind.name();
        assert_eq!(Some(kind), row["out"]["kind"].as_str(), "{text}");
    }
}

/// Pieces that replies are made of, good and bad.
const PIECES: [&str; 44] = [
    "@@call f\n{ a: 1 }\n@@end\n",
    "@@call ",
    "@@call",
    "@@end\n",
    "@@",
    "@",
    "\n",
    "\r\n",
    " ",
    "f",
    "\"a b\"",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "'",
    "\\",
    "\\n",
    "\\u00e9",
    "\\ud83d",
    "\\ude00",
    "\\q",
    "~~~",
    "~~~py\n",
    "\n~~~py",
    "\n~~~py,",
    "~~~py x\n",
    "```",
    "\n```",
    "`",
    "a: ",
    "true",
    "None",
    "nul",
    "1",
    "01",
    "é",
    "日本",
    "😀",
    "\0",
    "word it's",
];

fn replies() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::collection::vec(prop::sample::select(&PIECES[..]), 0..40)
            .prop_map(|pieces| pieces.concat()),
        1 => ".{0,60}",
    ]
}

/// Objects in loose JSON, some of them in a fence, some spoilt.
fn loose_objects() -> impl Strategy<Value = String> {
    const VALUES: &[&str] = &[
        "1",
        "-0.5e3",
        "true",
        "True",
        "None",
        "null",
        "\"a\"",
        "'a'",
        "\"\\u00e9\\ud83d\\ude00\"",
        "'it\\'s'",
        "[1, 2,]",
        "{}",
        "{x: [], 'y z': {}}",
        "\"a\tb\"",
        "x",
        "01",
    ];
    let pair = (
        prop::sample::select(&["a", "\"b c\"", "'d'", "True", "$_1"][..]),
        prop::sample::select(VALUES),
    );
    let pairs = prop::collection::vec(pair, 0..5);
    let around = prop::sample::select(
        &[
            ("", ""),
            (" \n", "\n "),
            ("```json\n", "\n```"),
            ("~~~~ ", "~~~~\n"),
            ("", "}"),
        ][..],
    );
    (pairs, around, any::<bool>()).prop_map(|(pairs, (before, after), comma)| {
        let pairs: Vec<String> = pairs
            .iter()
            .map(|(key, value)| format!("{key}: {value}"))
            .collect();
        format!(
            "{before}{{{}{}}}{after}",
            pairs.join(", "),
            if comma { "," } else { "" }
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(1_000)))]

    #[test]
    fn a_stream_equals_the_whole(text in replies(), sizes in prop::collection::vec(1usize..9, 1..9)) {
        properties::stream_equals_the_whole(&text, &sizes);
    }

    #[test]
    fn a_cut_reply_holds_no_call_that_the_whole_does_not(text in replies()) {
        properties::cutting_a_reply_makes_no_call(&text);
    }

    #[test]
    fn what_is_given_back_is_strict(text in replies()) {
        properties::calls_are_strict(&text);
        properties::judged_json(&text);
    }

    #[test]
    fn cut_arguments_are_truncated(text in loose_objects()) {
        properties::cutting_arguments_is_seen(&text);
    }

    #[test]
    fn rendering_round_trips(keys in prop::collection::vec(replies(), 0..4), texts in prop::collection::vec(replies(), 4), name in ".{1,20}") {
        let pairs = keys.into_iter().zip(texts.into_iter().map(Value::from));
        properties::rendering_round_trips(&name, &Value::Object(pairs.collect()));
    }

    #[test]
    fn no_tool_set_panics(text in replies(), name in replies(), calls in 0usize..3, prose: bool) {
        let tools = serde_json::json!([{
            "name": name,
            "description": text,
            "parameters": {"properties": {text.clone(): {"enum": [text, 1, null]}, name.clone(): true}},
        }]);
        let tools = read_tools(&tools.to_string()).expect("JSON");
        let gbnf = heredoc_grammar(&tools, calls, prose);
        let lark = heredoc_lark(&tools, calls, prose);
        prop_assert_eq!(gbnf.is_ok(), lark.is_ok());
        // Neither does what is no tool set at all.
        let _ = read_tools(&text);
    }
}
