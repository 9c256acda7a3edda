//! The golden files that the Python tests read too.

use std::path::PathBuf;

use agentkit_core::neutralize::{Style, neutralize};
use agentkit_core::repetition::{Options, RepetitionGuard};
use agentkit_core::slots::{OUTPUT, capture_slots, expand_slots};
use agentkit_core::special_tokens::SpecialTokens;
use agentkit_core::tight::{decode_tight, encode_tight};
use serde_json::{Map, Value, json};

fn rows(name: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/golden")
        .join(format!("{name}.jsonl"));
    let text = std::fs::read_to_string(path).expect("a golden file");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a JSON row"))
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

#[test]
fn neutralize_default() {
    for row in rows("neutralize_default") {
        let out = neutralize(
            text(&row["in"]),
            SpecialTokens::default_set(),
            Style::Entity,
        );
        assert_eq!(out.as_deref(), Ok(text(&row["out"])));
    }
}

#[test]
fn slots() {
    for row in rows("capture_slots") {
        let slots = capture_slots(text(&row["in"]));
        let mut got: Map<String, Value> = slots
            .sections
            .iter()
            .map(|(name, text)| ((*name).to_owned(), json!(text)))
            .collect();
        got.insert(OUTPUT.to_owned(), json!(slots.output));
        assert_eq!(Value::Object(got), row["out"]);
    }
    for row in rows("expand_slots") {
        let slots = row["in"][1].as_object().expect("slots");
        let got = expand_slots(text(&row["in"][0]), |name| slots.get(name)?.as_str());
        assert_eq!(got, text(&row["out"]));
    }
}

#[test]
fn repetition() {
    for row in rows("repetition") {
        let mut guard = RepetitionGuard::new(Options::default()).expect("options");
        let deltas = row["in"].as_array().expect("deltas");
        let got = deltas.iter().enumerate().find_map(|(at, delta)| {
            let found = guard.push(text(delta))?;
            Some(json!({
                "at": at,
                "period": found.period,
                "reps": found.reps,
                "trailing": found.trailing,
            }))
        });
        assert_eq!(got.unwrap_or(Value::Null), row["out"]);
    }
}

#[test]
fn tight() {
    for row in rows("encode_tight") {
        let json = text(&row["in"]);
        let tight = encode_tight(json);
        assert!(tight.len() as u64 <= row["out"]["seed_bytes"].as_u64().expect("bytes"));
        assert_eq!(
            tight != json,
            row["out"]["changed"] == json!(true),
            "{json}"
        );
        if tight != json {
            let back: Value = serde_json::from_str(&decode_tight(&tight)).expect("JSON");
            assert_eq!(back, serde_json::from_str::<Value>(json).expect("JSON"));
        }
    }
}
