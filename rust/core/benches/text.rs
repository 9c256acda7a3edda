//! `cargo bench -p agentkit-core --bench text`: bytes a second of the text core, without Python.

use std::hint::black_box;

use agentkit_core::neutralize::{Style, neutralize, restore};
use agentkit_core::repetition::{Options, RepetitionGuard};
use agentkit_core::slots::{capture_slots, expand_slots};
use agentkit_core::special_tokens::SpecialTokens;
use agentkit_core::tight::{decode_tight, encode_tight};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const SIZE: usize = 1 << 20;

/// Its own source, over and over, as ordinary text without control tokens; a running number keeps it from
/// being one long loop.
fn source() -> String {
    let mut text = String::new();
    let mut number = 0;
    while text.len() < SIZE {
        for line in include_str!("../src/repetition/mod.rs").lines() {
            number += 7919;
            // ASCII alone: the slots are cut out of it at any byte.
            text.extend(line.chars().filter(char::is_ascii));
            text += &format!(" {}\n", number % 104_729);
        }
    }
    text
}

/// Every 256 bytes, whether the newest 512 bytes have a period: each tried.
fn obvious_guard(text: &[u8]) -> Option<usize> {
    (1024..text.len()).step_by(256).find_map(|end| {
        (24..=1024).find(|period| {
            let span = (3 * period).max(512);
            end >= span && (end - span + period..end).all(|at| text[at] == text[at - period])
        })
    })
}

/// Sections of one level, by a search for each opening tag's closer.
fn obvious_sections(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(open) = rest.find('<') {
        rest = &rest[open + 1..];
        let name = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .map_or("", |end| &rest[..end]);
        let Some(inside) = rest[name.len()..].strip_prefix('>') else {
            continue;
        };
        if let Some((value, after)) = inside.split_once(&format!("</{name}>")) {
            found.push((name, value));
            rest = after;
        }
    }
    found
}

fn text(c: &mut Criterion) {
    let clean = source();
    let dirty = clean.replace("    ", "<|im_end|>");
    let chinese = "今天天气很好，我们一起去公园散步吧。".repeat(SIZE / 54);
    let set = SpecialTokens::default_set();

    let mut group = c.benchmark_group("neutralize");
    for (name, text) in [("clean", &clean), ("dirty", &dirty), ("chinese", &chinese)] {
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| neutralize(black_box(text), set, Style::Entity))
        });
        group.bench_function(format!("{name}, twin: str::replace of one token"), |b| {
            b.iter(|| black_box(text).replace("<|", "&lt;|"));
        });
        group.bench_function(format!("{name} joiner"), |b| {
            b.iter(|| neutralize(black_box(text), set, Style::Joiner));
        });
    }
    group.bench_function("restore", |b| {
        let joined = neutralize(&dirty, set, Style::Joiner).expect("a joiner is free");
        b.iter(|| restore(black_box(&joined)).len());
    });
    group.finish();

    let mut group = c.benchmark_group("repetition");
    let guard = || RepetitionGuard::new(Options::default()).expect("options");
    // Mixed well: the high bits of a plain product soon come round again.
    let random: String = (1..=SIZE as u64)
        .map(|i| {
            let i = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let i = (i ^ (i >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            char::from(b"0123456789abcdef"[(i >> 60) as usize])
        })
        .collect();
    assert_eq!(guard().push(&clean), None);
    assert_eq!(guard().push(&random), None);
    for (name, text) in [("source", &clean), ("hex", &random)] {
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(format!("{name}, one delta"), |b| {
            b.iter(|| guard().push(black_box(text)));
        });
        group.bench_function(format!("{name}, twin: every period tried"), |b| {
            b.iter(|| obvious_guard(black_box(text.as_bytes())));
        });
        group.bench_function(format!("{name}, 4 bytes a delta"), |b| {
            let tokens: Vec<&str> = text
                .as_bytes()
                .chunks(4)
                .filter_map(|chunk| std::str::from_utf8(chunk).ok())
                .collect();
            b.iter(|| {
                let mut guard = guard();
                tokens.iter().filter_map(|token| guard.push(token)).count()
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("slots");
    let result: String = (0..2000)
        .map(|i| {
            format!(
                "<s{i}>{}</s{i}> and {{OUTPUT}}\n",
                &clean[i * 400..i * 400 + 400].replace(['<', '{'], "(")
            )
        })
        .collect();
    group.throughput(Throughput::Bytes(result.len() as u64));
    group.bench_function("capture", |b| {
        b.iter(|| capture_slots(black_box(&result)).output.len())
    });
    group.bench_function("capture, twin: a search for each tag", |b| {
        b.iter(|| obvious_sections(black_box(&result)).len());
    });
    group.bench_function("expand, twin: str::replace of one name", |b| {
        b.iter(|| black_box(&result).replace("{OUTPUT}", "x"));
    });
    group.bench_function("expand", |b| {
        b.iter(|| expand_slots(black_box(&result), |name| (name == "OUTPUT").then_some("x")));
    });
    group.finish();

    let mut group = c.benchmark_group("tight");
    let rows: Vec<String> = (0..8000)
        .map(|i| {
            format!(
                r#"{{"id": {i}, "name": "name {i}", "note": "some text, with comma", "ok": {}}}"#,
                i % 2 == 0
            )
        })
        .collect();
    let json = format!("[{}]", rows.join(", "));
    let tight = encode_tight(&json);
    group.throughput(Throughput::Bytes(json.len() as u64));
    group.bench_function("encode", |b| {
        b.iter(|| encode_tight(black_box(&json)).len())
    });
    group.bench_function("twin: serde_json reads and writes", |b| {
        b.iter(|| {
            let value: serde_json::Value = serde_json::from_str(black_box(&json)).expect("JSON");
            value.to_string().len()
        });
    });
    group.throughput(Throughput::Bytes(tight.len() as u64));
    group.bench_function("decode", |b| {
        b.iter(|| decode_tight(black_box(&tight)).len())
    });
    group.finish();
}

criterion_group!(benches, text);
criterion_main!(benches);
