//! Reading, rendering and judging calls. Throughput is bytes of the input.

use std::hint::black_box;

use agentkit_core::heredoc::{HeredocStream, parse_tool_calls, render_tool_call};
use agentkit_core::json::{check_arguments, push_string, repair_json};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// 115 kB of Rust source as the body of one call.
fn body() -> String {
    include_str!("../src/json/loose.rs")
        .chars()
        .cycle()
        .take(115_000)
        .collect()
}

fn arguments(body: &str) -> String {
    let mut json = String::from("{\"path\": \"a.rs\", \"content\": ");
    push_string(&mut json, body);
    json.push('}');
    json
}

fn loose_rows() -> String {
    let mut text = String::from("{rows: [");
    for id in 0..1_000 {
        text.push_str(&format!(
            "{{id: {id}, 'name': \"item {id}\", \"ok\": True, \"tags\": [\"a\", \"b\",], price: 1.5}}, "
        ));
    }
    text.push_str("]}");
    text
}

fn benches(criterion: &mut Criterion) {
    let strict = arguments(&body());
    let reply = render_tool_call("write_file", &strict).unwrap_or_default();
    let loose = loose_rows();

    let mut group = criterion.benchmark_group("heredoc");
    group.throughput(Throughput::Bytes(reply.len() as u64));
    group.bench_function("parse_tool_calls, 115 kB body", |bencher| {
        bencher.iter(|| parse_tool_calls(black_box(&reply)));
    });
    group.bench_function("HeredocStream, 4 bytes a push", |bencher| {
        bencher.iter(|| {
            let mut stream = HeredocStream::new();
            let mut at = 0;
            while at < reply.len() {
                let mut end = (at + 4).min(reply.len());
                while !reply.is_char_boundary(end) {
                    end += 1;
                }
                stream.push(black_box(&reply[at..end]));
                at = end;
            }
            stream.finish()
        });
    });
    group.throughput(Throughput::Bytes(strict.len() as u64));
    group.bench_function("render_tool_call, 115 kB", |bencher| {
        bencher.iter(|| render_tool_call("write_file", black_box(&strict)));
    });
    group.bench_function("twin: serde_json reads the strict 115 kB", |bencher| {
        bencher.iter(|| serde_json::from_str::<serde_json::Value>(black_box(&strict)).is_ok());
    });
    group.bench_function("check_arguments, strict 115 kB", |bencher| {
        bencher.iter(|| check_arguments(black_box(&strict)).kind);
    });
    group.throughput(Throughput::Bytes(loose.len() as u64));
    group.bench_function("repair_json, loose rows", |bencher| {
        bencher.iter(|| repair_json(black_box(&loose)).outcome);
    });
    let rows = repair_json(&loose).text.into_owned();
    group.bench_function(
        "twin: serde_json reads and writes the strict rows",
        |bencher| {
            bencher.iter(|| {
                let value = serde_json::from_str::<serde_json::Value>(black_box(&rows));
                value.map(|value| value.to_string().len()).ok()
            });
        },
    );
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
