//! One pass of one function of the text core over about a mebibyte, so that its instructions can be counted.
//! `scripts/instructions.py` drives it.

use std::hint::black_box;

use agentkit_core::heredoc::{parse_tool_calls, render_tool_call};
use agentkit_core::json::{check_arguments, push_string, repair_json};
use agentkit_core::neutralize::{Style, neutralize, restore};
use agentkit_core::repetition::{Options, RepetitionGuard};
use agentkit_core::slots::{capture_slots, expand_slots};
use agentkit_core::special_tokens::SpecialTokens;
use agentkit_core::tight::{decode_tight, encode_tight};

const SIZE: usize = 1 << 20;

fn main() {
    let task = std::env::args().nth(1).unwrap_or_default();
    let set = SpecialTokens::default_set();
    let mut number = 0_u32;
    let mut lines = String::new();
    while lines.len() < SIZE {
        number = number.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        lines += &format!(
            "if value[{}] < limit {{ call(\"{}\") }}\n",
            number % 977,
            number % 10_007
        );
    }
    let dirty = lines.replace("if value", "<|im_end|>");
    let sections: String = (0..2000)
        .map(|i| {
            format!(
                "<s{i}>{}</s{i}> {{OUTPUT}}\n",
                "words of a line ".repeat(30)
            )
        })
        .collect();
    let rows: Vec<String> = (0..10_000)
        .map(|i| {
            format!(
                r#"{{"id": {i}, "name": "name {i}", "note": "some text, with comma", "ok": true}}"#
            )
        })
        .collect();
    let json = format!("[{}]", rows.join(", "));
    let tight = encode_tight(&json).into_owned();
    let mut strict = String::from("{\"path\": \"a.py\", \"content\": ");
    push_string(&mut strict, &lines);
    strict.push('}');
    let call = render_tool_call("write_file", &strict).unwrap_or_else(|fault| panic!("{fault:?}"));
    let loose = format!("{{'rows': [{},], ok: True}}", rows.join(", "));
    let mut guard =
        RepetitionGuard::new(Options::default()).unwrap_or_else(|error| panic!("{error}"));
    match task.as_str() {
        "nothing" => {}
        "neutralize-clean" => drop(black_box(neutralize(&lines, set, Style::Entity))),
        "neutralize-dirty" => drop(black_box(neutralize(&dirty, set, Style::Entity))),
        "restore" => drop(black_box(restore(&dirty))),
        "guard-large" => drop(black_box(guard.push(&lines))),
        "guard-tokens" => {
            for token in lines.split_inclusive(' ') {
                black_box(guard.push(token));
            }
        }
        "capture-slots" => drop(black_box(capture_slots(&sections))),
        "expand-slots" => drop(black_box(expand_slots(&sections, |_| Some("x")))),
        "parse-tool-calls" => drop(black_box(parse_tool_calls(&call))),
        "check-arguments" => drop(black_box(check_arguments(&strict))),
        "repair-json" => drop(black_box(repair_json(&loose))),
        "encode-tight" => drop(black_box(encode_tight(&json))),
        "decode-tight" => drop(black_box(decode_tight(&tight))),
        other => panic!("no task is called {other:?}"),
    }
}
