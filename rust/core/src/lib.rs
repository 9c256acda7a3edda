//! Text in, values out: the part of agentkit-fast that any Rust host can use as it is.
//!
//! Nothing here knows Python, reads a clock, draws a random number or does I/O (but for the reader
//! of a GGUF header). Lengths are UTF-8 bytes unless a name says otherwise, and no cut splits a code
//! point.
#![forbid(unsafe_code)]

mod code_points;
pub mod heredoc;
pub mod json;
pub mod logits;
pub mod neutralize;
pub mod repetition;
pub mod shape;
pub mod slots;
pub mod special_tokens;
pub mod tight;
pub mod tokens;
pub mod truncate;
