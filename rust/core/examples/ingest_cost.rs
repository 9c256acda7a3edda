//! A first build of 10,000 entries, so many times over, so that its instructions can be counted or sampled:
//! `valgrind --tool=callgrind target/release/examples/ingest_cost 1`.

use std::hint::black_box;

use agentkit_core::shape::options::Options;
use agentkit_core::shape::plan::Means;
use agentkit_core::shape::record::decode;
use agentkit_core::shape::transcript::{Ingest, Transcript};
use agentkit_core::shape::wire::CharsByFour;

const ENTRIES: usize = 10_000;
const PIECE: usize = 256;

fn text(out: &mut Vec<u8>, text: &str) {
    match text.len() {
        len @ 0..32 => out.push(0xa0 | len as u8),
        len @ 32..256 => out.extend([0xd9, len as u8]),
        len => out.extend([0xda, (len >> 8) as u8, len as u8]),
    }
    out.extend_from_slice(text.as_bytes());
}

/// The entry as msgspec writes it: fields in the struct's order, those at their default left out.
fn entry(out: &mut Vec<u8>, serial: usize) {
    let round = serial / 4;
    let (kind, content) = match serial % 4 {
        0 => (
            "user",
            format!("question {round} about the thing ").repeat(8),
        ),
        1 => ("assistant", format!("looking at it {round} ").repeat(6)),
        2 => (
            "tool_call",
            format!(r#"{{"path":"/a/b/c{round}","n":{round}}}"#),
        ),
        _ => (
            "tool_result",
            format!("line of text\n of result {round} ").repeat(20),
        ),
    };
    let of_tool = serial % 4 >= 2;
    out.push(if of_tool { 0x86 } else { 0x84 });
    text(out, "id");
    text(out, &format!("e{serial:05}"));
    text(out, "kind");
    text(out, kind);
    text(out, "content");
    text(out, &content);
    if of_tool {
        text(out, "tool_call_id");
        text(out, &format!("c{round}"));
        text(out, "tool_name");
        text(out, "read");
    }
    text(out, "created_at");
    out.push(0xcf);
    out.extend((1_700_000_000_000_000_000 + serial as u64).to_be_bytes());
}

fn pieces() -> Vec<Vec<u8>> {
    (0..ENTRIES)
        .step_by(PIECE)
        .map(|first| {
            let count = PIECE.min(ENTRIES - first);
            let mut out = vec![0xdc, (count >> 8) as u8, count as u8];
            for serial in first..first + count {
                entry(&mut out, serial);
            }
            out
        })
        .collect()
}

fn main() {
    let times = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let pieces = pieces();
    let options = Options {
        budget: 10_000_000,
        headroom: 1024,
        keep_messages: 10,
        keep_calls: 10,
        keep_first: 1,
        lod_above: 800,
        always_lod: false,
        summary_tokens: 0,
        max_tool_result: 0,
        heredoc: false,
        verbatim: false,
        image_tokens: 768,
        reasoning: false,
        count_reasoning: false,
        alternate: false,
        system_role: true,
    };
    let begun = std::time::Instant::now();
    let times = times.unwrap_or(1_u32);
    for _ in 0..times {
        let mut transcript = Transcript::new(options.clone());
        transcript.expect(ENTRIES);
        for piece in &pieces {
            let records = decode(piece).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(transcript.ingest(&CharsByFour, records), Ingest::Done);
        }
        transcript.set_fixed(&CharsByFour, "sys", "");
        assert!(
            transcript
                .check(&CharsByFour, Means::LeaveOut, false)
                .is_ok()
        );
        black_box(transcript.window(&CharsByFour).window.to_json());
    }
    if times > 1 {
        println!("{:?} a build", begun.elapsed() / times);
    }
}
