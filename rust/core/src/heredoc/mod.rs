//! Tool calls in plain text: `@@call name`, an object in loose JSON with raw bodies, `@@end`.

pub mod grammar;
pub mod lark;
pub mod parse;
pub mod prompt;
pub mod render;
pub mod schema;
pub mod stream;

pub use grammar::{GrammarError, heredoc_grammar};
pub use lark::heredoc_lark;
pub use parse::{Call, Problem, Reply, parse_tool_calls};
pub use prompt::heredoc_prompt;
pub use render::render_tool_call;
pub use schema::{Tool, read_tools};
pub use stream::{Event, HeredocStream};
