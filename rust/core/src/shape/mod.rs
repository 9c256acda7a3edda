//! Shaping: from a session's entries to the messages of a request.
//!
//! `record` reads entries, `unit` makes whole units of them and renders each, `wire` is the JSON and its
//! count, `transcript` keeps a session's units and gives windows,
//! `ingest` takes entries in, `sink` writes what is settled to the log.

mod exchange;
mod ingest;
mod layout;
pub mod list;
mod merge;
pub mod names;
pub mod options;
pub mod plan;
pub mod record;
pub mod restructure;
pub mod seams;
mod shorten;
mod single;
mod sink;
pub mod stand_in;
pub mod transcript;
pub mod unit;
pub mod wire;

pub use layout::Placed;
