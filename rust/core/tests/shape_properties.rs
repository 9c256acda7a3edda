//! What holds for every window, of histories good and broken, any policy and any order.
//!
//! `PROPTEST_CASES=100000 cargo test --release -p agentkit-core --test shape_properties` is the long run.

use std::borrow::Cow;
use std::collections::HashSet;

use agentkit_core::shape::options::Options;
use agentkit_core::shape::plan::Means;
use agentkit_core::shape::record::{Kind, Record};
use agentkit_core::shape::restructure::Step;
use agentkit_core::shape::transcript::{Ingest, Transcript};
use agentkit_core::shape::wire::CharsByFour;
use proptest::prelude::*;
use serde_json::Value;

const SYSTEM: &str = "You keep a depot.";

fn entry(kind: Kind, content: String, call: &str, serial: usize, at: i64) -> Record<'static> {
    Record {
        id: Cow::Owned(format!("e{serial:04}")),
        kind,
        content: Cow::Owned(content),
        parts: Vec::new(),
        reasoning: Cow::Borrowed(""),
        call_id: Cow::Owned(call.to_owned()),
        tool_name: Cow::Borrowed(if call.is_empty() { "" } else { "look" }),
        tag: Cow::Borrowed("t"),
        created_at: at,
    }
}

/// Entries of one step: mostly whole rounds, sometimes anything.
fn piece() -> impl Strategy<Value = Vec<(Kind, String, u8)>> {
    let text = (
        prop::sample::select(vec![
            "",
            " ",
            "ok",
            "héllo ",
            "日本語",
            "line\n",
            "\"q\" \\ ",
            "x<|im_end|>",
        ]),
        prop::sample::select(vec![1usize, 1, 3, 60, 400]),
    )
        .prop_map(|(text, times)| text.repeat(times));
    let arguments = prop::sample::select(vec!["", "{}", "{\"a\":1}", "{", "{\"a\":1}}", "[1]"])
        .prop_map(str::to_owned);
    let any = prop::sample::select(vec![
        Kind::User,
        Kind::Assistant,
        Kind::Call,
        Kind::Result,
        Kind::Notice,
        Kind::Marker,
    ]);
    prop_oneof![
        4 => (text.clone(), text.clone(), arguments.clone(), text.clone(), 0u8..4).prop_map(
            |(user, says, arguments, result, call)| vec![
                (Kind::User, user, 0),
                (Kind::Assistant, says, 0),
                (Kind::Call, arguments, call),
                (Kind::Result, result, call),
            ]
        ),
        2 => (arguments, text.clone(), 0u8..4).prop_map(|(arguments, result, call)| vec![
            (Kind::Call, arguments, call),
            (Kind::Result, result, call),
        ]),
        3 => (any, text, 0u8..4).prop_map(|(kind, text, call)| vec![(kind, text, call)]),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    (
        prop::sample::select(vec![0usize, 150, 300, 700, 1500, 4000]),
        0usize..4,
        prop::sample::select(vec![0usize, 1, 4, 10, usize::MAX >> 2]),
        prop::sample::select(vec![0usize, 1, 3, 10]),
        prop::sample::select(vec![0usize, 0, 1, 40, 200, 800]),
        0usize..3,
        (
            prop::bool::weighted(0.15),
            prop::bool::weighted(0.2),
            prop::bool::weighted(0.2),
        ),
    )
        .prop_map(
            |(budget, quarters, messages, calls, lod, first, (always, heredoc, alternate))| {
                Options {
                    budget,
                    headroom: budget * quarters / 4,
                    keep_messages: messages,
                    keep_calls: calls,
                    keep_first: first,
                    lod_above: lod,
                    always_lod: always,
                    summary_tokens: 0,
                    max_tool_result: 0,
                    heredoc,
                    verbatim: false,
                    image_tokens: 800,
                    reasoning: false,
                    count_reasoning: false,
                    alternate,
                    system_role: !alternate || messages > 4,
                }
            },
        )
}

fn four(text: &str) -> usize {
    text.len().div_ceil(4)
}

/// The contract's formula, message by message.
fn count(messages: &[Value]) -> usize {
    let text = |value: &Value| value.as_str().map_or(0, four);
    let mut total = 0;
    for message in messages {
        total += text(&message["role"]) + text(&message["name"]) + text(&message["content"]) + 4;
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            total += text(&call["function"]["name"]) + text(&call["function"]["arguments"]) + 4;
        }
    }
    total
}

fn check_valid(messages: &[Value], options: &Options) {
    let mut open: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    let mut last = "";
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().expect("a role");
        assert_eq!(
            role == "system",
            at == 0 && options.system_role,
            "system first and once"
        );
        if role == "tool" {
            assert!(!open.is_empty(), "a result without its call");
            assert_eq!(message["tool_call_id"], open.remove(0).as_str());
            assert_ne!(message["content"], "");
        } else {
            assert!(open.is_empty(), "a call without its result");
        }
        if role == "assistant" {
            assert_ne!(last, "assistant", "two in a row");
            let calls = message["tool_calls"]
                .as_array()
                .map_or(&[][..], Vec::as_slice);
            let text = message["content"].as_str().expect("text");
            assert!(
                !calls.is_empty() || !text.trim().is_empty(),
                "an empty message"
            );
            for call in calls {
                let id = call["id"].as_str().expect("an id");
                assert!(
                    !id.is_empty() && seen.insert(id.to_owned()),
                    "an id used twice"
                );
                open.push(id.to_owned());
                let arguments = call["function"]["arguments"].as_str().expect("text");
                let value: Value = serde_json::from_str(arguments).expect("JSON");
                assert!(value.is_object());
            }
        }
        if options.alternate {
            assert!(role == "tool" || role != last, "roles alternate");
        }
        last = role;
    }
    assert!(open.is_empty());
}

fn play(
    options: Options,
    pieces: Vec<Vec<(Kind, String, u8)>>,
    folds: bool,
    fails: bool,
    order: usize,
) {
    let counter = CharsByFour;
    let mut transcript = Transcript::new(options.clone());
    let mut history: Vec<Record<'static>> = Vec::new();
    let (mut serial, mut at) = (0, 1000);
    let mut last: Vec<u8> = Vec::new();
    transcript.set_fixed(&counter, SYSTEM, "");
    for (step, piece) in pieces.into_iter().enumerate() {
        let mut fresh = Vec::new();
        for (kind, text, call) in piece {
            serial += 1;
            at += 10;
            let call = match kind {
                Kind::Call | Kind::Result => format!("k{call}_{}", step / 3),
                _ => String::new(),
            };
            fresh.push(entry(kind, text, &call, serial, at));
        }
        history.extend(fresh.iter().cloned());
        assert_eq!(transcript.ingest(&counter, fresh), Ingest::Done);
        let means = if folds { Means::Fold } else { Means::LeaveOut };
        let found = match transcript.check(&counter, means, false) {
            Ok(found) => found,
            Err(overflow) => {
                let fixed = overflow.system + overflow.tools + overflow.user;
                assert!(fixed > options.budget, "{overflow:?}");
                continue;
            }
        };
        if found == Step::Fold {
            let (ids, time) = transcript.fold_entries();
            if fails {
                transcript.drop_plan();
            } else {
                serial += 1;
                let mut marker = entry(Kind::Marker, "notes".to_owned(), "", serial, time);
                marker.id = Cow::Owned(format!("m{serial:04}"));
                history.retain(|entry| !ids.iter().any(|id| *id == entry.id));
                history.push(marker.clone());
                history.sort_by(|a, b| a.key().cmp(&b.key()));
                if !transcript.fold(&counter, &marker) {
                    reread(&mut transcript, history.clone());
                }
            }
            if transcript.check(&counter, Means::Minimal, false).is_err() {
                continue;
            }
        }
        let built = transcript.window(&counter);
        let json = built.window.to_json();
        let messages: Vec<Value> = serde_json::from_slice(&json).expect("JSON");
        assert_eq!(built.window.tokens, count(&messages), "one number");
        assert!(options.budget == 0 || built.window.tokens <= options.budget);
        check_valid(&messages, &options);
        if let Some(user) = history.iter().rfind(|entry| entry.kind == Kind::User)
            && !user.content.trim().is_empty()
        {
            let shown = |message: &Value| {
                message["role"] == "user"
                    && message["content"]
                        .as_str()
                        .is_some_and(|text| text.contains(&*user.content))
            };
            assert!(messages.iter().any(shown), "the newest user message");
        }
        // A longer array goes on where this one would close.
        let kept = json.starts_with(&last[..last.len().saturating_sub(1)]);
        assert_eq!(
            kept,
            built.break_reason.is_empty(),
            "{}",
            built.break_reason
        );
        last = json.clone();
        let again = transcript.window(&counter);
        assert!(
            again.break_reason.is_empty() && again.window.to_json() == json,
            "the same again"
        );
        // Whatever the order of the store, and by a plan that was remembered.
        let mut other = Transcript::new(options.clone());
        other.set_fixed(&counter, SYSTEM, "");
        let mut shuffled = history.clone();
        let turn = order % shuffled.len();
        shuffled.rotate_left(turn);
        assert_eq!(other.ingest(&counter, shuffled), Ingest::Done);
        other.set_levels(
            &counter,
            &transcript.levels(),
            transcript.silent(),
            transcript.hidden(),
        );
        assert_eq!(
            String::from_utf8_lossy(&other.window(&counter).window.to_json()),
            String::from_utf8_lossy(&json),
            "the same history, the same window"
        );
    }
}

fn reread(transcript: &mut Transcript, history: Vec<Record<'static>>) {
    let (levels, silent, hidden) = (
        transcript.levels(),
        transcript.silent(),
        transcript.hidden(),
    );
    transcript.reset("history read anew");
    assert_eq!(transcript.ingest(&CharsByFour, history), Ingest::Done);
    transcript.set_levels(&CharsByFour, &levels, silent, hidden);
}

proptest! {
    #[test]
    fn every_window_is_valid_fits_and_keeps_its_prefix(
        options in options(),
        pieces in prop::collection::vec(piece(), 1..24),
        folds in any::<bool>(),
        fails in prop::bool::weighted(0.2),
        order in any::<usize>(),
    ) {
        play(options, pieces, folds, fails, order);
    }
}
