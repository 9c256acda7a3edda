//! Opening a vocabulary and counting with it. Needs a model: AGENTKIT_TEST_MODEL names its GGUF file.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use agentkit_core::tokens::pretokenize::PreTraits;
use agentkit_core::tokens::tokenizer::{Mode, Tokenizer};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// This repository's own sources, again and again up to 3 MB.
fn corpus() -> String {
    let mut text = String::new();
    let mut todo = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")];
    let mut files = Vec::new();
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let hidden = name.to_string_lossy().starts_with('.') || name == "target";
            if path.is_dir() && !hidden {
                todo.push(path);
            } else if path
                .extension()
                .is_some_and(|kind| kind == "py" || kind == "rs" || kind == "md")
            {
                files.push(path);
            }
        }
    }
    files.sort();
    for path in files.iter().cycle() {
        text.push_str(&fs::read_to_string(path).unwrap_or_default());
        if text.len() > 3_000_000 || files.is_empty() {
            break;
        }
    }
    text
}

fn tokens(bench: &mut Criterion) {
    let Some(model) = std::env::var_os("AGENTKIT_TEST_MODEL") else {
        eprintln!("AGENTKIT_TEST_MODEL is not set: nothing measured");
        return;
    };
    let text = corpus();
    let mut group = bench.benchmark_group("tokens");
    group.sample_size(10);
    group.bench_function("open", |timer| {
        timer.iter(|| Tokenizer::open(Path::new(&model)).map(|tokenizer| tokenizer.vocab.size()));
    });
    let Ok(tokenizer) = Tokenizer::open(Path::new(&model)) else {
        eprintln!(
            "{} cannot be used: nothing measured",
            Path::new(&model).display()
        );
        return;
    };
    group.throughput(Throughput::Bytes(text.len() as u64));
    for name in ["smollm", "llama-bpe", "gpt-4o", "deepseek-v3"] {
        let pre = PreTraits::by_name(name).map(|traits| traits.pre);
        group.bench_function(format!("cut into words, {name}"), |timer| {
            timer.iter(|| {
                let mut words = 0_usize;
                if let Some(pre) = pre {
                    pre.for_each_range(black_box(text.as_bytes()), |_, _| words += 1);
                }
                words
            });
        });
    }
    group.bench_function("count", |timer| {
        timer.iter(|| tokenizer.count(black_box(&text), Mode::Plain))
    });
    group.bench_function("encode", |timer| {
        timer.iter(|| tokenizer.encode(black_box(&text), Mode::Plain))
    });
}

criterion_group!(benches, tokens);
criterion_main!(benches);
