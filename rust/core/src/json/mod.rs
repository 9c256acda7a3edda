//! JSON as models write it: loose, fenced, cut off. Read, judged, and given back strict.

pub mod arguments;
mod escape;
pub(crate) mod fence;
pub mod loose;
pub mod repair;
pub(crate) mod skim;
pub mod value;

pub use arguments::{Arguments, ArgumentsKind, check_arguments, rejected_arguments};
pub use escape::push_string;
pub(crate) use escape::special_bytes;
pub use loose::{Fault, FaultKind, MAX_DEPTH, Repairs, loose_json};
pub use repair::{Outcome, Repair, repair_json};
pub use value::Value;
