//! What stubs, pointers, markers, lines and repairs look like: the golden windows that the Python tests read too.

use std::borrow::Cow;
use std::path::PathBuf;

use agentkit_core::shape::options::Options;
use agentkit_core::shape::plan::Means;
use agentkit_core::shape::record::{Kind, Part, Record};
use agentkit_core::shape::transcript::{Ingest, Transcript};
use agentkit_core::shape::wire::CharsByFour;
use serde_json::Value;

fn text<'a>(entry: &'a Value, key: &str) -> Cow<'a, str> {
    Cow::Borrowed(entry[key].as_str().unwrap_or_default())
}

fn record(entry: &Value) -> Record<'_> {
    let kind = match entry["kind"].as_str().expect("a kind") {
        "user" => Kind::User,
        "assistant" => Kind::Assistant,
        "tool_call" => Kind::Call,
        "tool_result" => Kind::Result,
        "compaction" => Kind::Marker,
        _ => Kind::Notice,
    };
    let parts = entry["parts"].as_array().into_iter().flatten();
    let tag = text(entry, "tag");
    Record {
        id: text(entry, "id"),
        kind,
        content: text(entry, "content"),
        parts: parts
            .map(|part| match part["type"].as_str() {
                Some("text") => Part::Text(text(part, "text")),
                _ => Part::Image(text(part, "url")),
            })
            .collect(),
        reasoning: Cow::Borrowed(""),
        call_id: text(entry, "tool_call_id"),
        tool_name: text(entry, "tool_name"),
        tag: if kind == Kind::Notice && tag.is_empty() {
            text(entry, "kind")
        } else {
            tag
        },
        created_at: entry["created_at"].as_i64().expect("a time"),
    }
}

fn options(policy: &Value) -> Options {
    let number = |key: &str, otherwise: u64| {
        usize::try_from(policy[key].as_u64().unwrap_or(otherwise)).expect("a size")
    };
    let budget = number("budget_tokens", 0);
    Options {
        budget,
        headroom: number("headroom_tokens", (budget as u64 / 4).min(10_000)),
        keep_messages: number("preserve_last_messages", 10),
        keep_calls: number("preserve_last_tool_calls", 10),
        keep_first: number("preserve_first_messages", 1),
        lod_above: number("lod_above", 0),
        always_lod: policy["always_lod"] == true,
        summary_tokens: 0,
        max_tool_result: number("max_tool_result", 0),
        heredoc: policy["tool_format"] == "heredoc",
        verbatim: false,
        image_tokens: 800,
        reasoning: false,
        count_reasoning: false,
        alternate: false,
        system_role: true,
    }
}

#[test]
fn windows() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/golden/shape_window.jsonl");
    let rows = std::fs::read_to_string(path).expect("a golden file");
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row).expect("a JSON row");
        let given = &row["in"];
        let mut transcript = Transcript::new(options(&given["policy"]));
        let entries = given["entries"].as_array().expect("entries");
        let records = entries.iter().map(record).collect();
        assert_eq!(transcript.ingest(&CharsByFour, records), Ingest::Done);
        transcript.set_fixed(&CharsByFour, given["system"].as_str().expect("text"), "");
        transcript
            .check(&CharsByFour, Means::LeaveOut, false)
            .expect("it fits");
        let window = transcript.window(&CharsByFour).window;
        let messages: Value = serde_json::from_slice(&window.to_json()).expect("JSON");
        assert_eq!(messages, row["out"]["messages"], "{}", row["name"]);
        assert_eq!(
            window.tokens as u64,
            row["out"]["tokens"].as_u64().expect("a number")
        );
    }
}
