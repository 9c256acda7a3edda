//! The same goldens as the Python tests, and the invariants on random replies.

use std::path::Path;

use agentkit_core::heredoc::{
    Event, HeredocStream, Reply, heredoc_grammar, heredoc_lark, parse_tool_calls, read_tools,
    render_tool_call,
};
use agentkit_core::json::{Outcome, check_arguments, loose_json, rejected_arguments, repair_json};
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

fn char_cuts(text: &str) -> Vec<usize> {
    (0..=text.len())
        .filter(|&at| text.is_char_boundary(at))
        .collect()
}

fn streamed(pieces: &[&str]) -> (Reply, String) {
    let mut stream = HeredocStream::new();
    let (mut prose, mut calls) = (String::new(), Vec::new());
    for piece in pieces {
        for event in stream.push(piece) {
            match event {
                Event::Prose(text) => prose.push_str(&text),
                Event::Started { index, .. } => assert_eq!(index, calls.len()),
                Event::Ready { index, call } => {
                    assert_eq!(index, calls.len());
                    calls.push(call);
                }
            }
        }
    }
    let (reply, released) = stream.finish();
    assert_eq!(&reply.prose[..released], prose);
    assert_eq!(reply.calls, calls);
    (reply, prose)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_stream_equals_the_whole(text in replies(), sizes in prop::collection::vec(1usize..9, 1..9)) {
        let whole = parse_tool_calls(&text);
        let letters: Vec<&str> = text.split("").collect();
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let at = rest.char_indices().nth(*size).map_or(rest.len(), |(at, _)| at);
            pieces.push(&rest[..at]);
            rest = &rest[at..];
        }
        prop_assert_eq!(&streamed(&letters).0, &whole);
        prop_assert_eq!(&streamed(&pieces).0, &whole);
    }

    #[test]
    fn a_cut_reply_holds_no_call_that_the_whole_does_not(text in replies()) {
        let whole = parse_tool_calls(&text).calls;
        let mut most = 0;
        for cut in char_cuts(&text) {
            let calls = parse_tool_calls(&text[..cut]).calls;
            prop_assert!(whole.starts_with(&calls));
            prop_assert!(calls.len() >= most);
            most = calls.len();
        }
    }

    #[test]
    fn what_is_given_back_is_strict(text in replies()) {
        for call in parse_tool_calls(&text).calls {
            let value: Value = serde_json::from_str(&call.arguments).expect("strict JSON");
            prop_assert!(value.is_object());
        }
        let repair = repair_json(&text);
        if repair.outcome == Outcome::Ok {
            let value: Value = serde_json::from_str(&repair.text).expect("strict JSON");
            prop_assert!(value.is_object());
        }
        if let Ok(strict) = loose_json(&text) {
            prop_assert!(serde_json::from_str::<Value>(&strict).is_ok());
        }
        let rejected = rejected_arguments(&text, &text);
        prop_assert!(serde_json::from_str::<Value>(&rejected).is_ok());
    }

    #[test]
    fn rendering_round_trips(keys in prop::collection::vec(replies(), 0..4), texts in prop::collection::vec(replies(), 4), name in ".{1,20}") {
        let pairs = keys.into_iter().zip(texts.into_iter().map(Value::from));
        let arguments = Value::Object(pairs.collect());
        let text = render_tool_call(&name, &arguments.to_string()).expect("an object");
        let reply = parse_tool_calls(&text);
        prop_assert!(reply.problems.is_empty());
        prop_assert_eq!(reply.calls.len(), 1);
        prop_assert_eq!(&reply.calls[0].name, &name);
        let back: Value = serde_json::from_str(&reply.calls[0].arguments).expect("strict JSON");
        prop_assert_eq!(back, arguments);
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
