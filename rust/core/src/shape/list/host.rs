//! What a list of messages needs of the language it lives in.

use std::borrow::Cow;
use std::fmt;

use crate::shape::plan::Overflow;

/// The keys of messages, calls and parts that mean something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Role,
    Content,
    ToolCalls,
    ToolCallId,
    Name,
    FunctionCall,
    Refusal,
    Id,
    Type,
    Function,
    Arguments,
    Text,
    Custom,
    Input,
}

impl Key {
    pub const ALL: [Self; 14] = [
        Self::Role,
        Self::Content,
        Self::ToolCalls,
        Self::ToolCallId,
        Self::Name,
        Self::FunctionCall,
        Self::Refusal,
        Self::Id,
        Self::Type,
        Self::Function,
        Self::Arguments,
        Self::Text,
        Self::Custom,
        Self::Input,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Content => "content",
            Self::ToolCalls => "tool_calls",
            Self::ToolCallId => "tool_call_id",
            Self::Name => "name",
            Self::FunctionCall => "function_call",
            Self::Refusal => "refusal",
            Self::Id => "id",
            Self::Type => "type",
            Self::Function => "function",
            Self::Arguments => "arguments",
            Self::Text => "text",
            Self::Custom => "custom",
            Self::Input => "input",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    None,
    Text,
    List,
    /// A list that cannot be changed.
    Tuple,
    Dict,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainRole {
    User,
    Assistant,
    Tool,
}

/// A message as most are: texts, and calls in their usual form. Empty stands for absent.
pub struct Plain<'a> {
    pub role: PlainRole,
    pub content: &'a str,
    pub name: &'a str,
    pub call_id: &'a str,
    pub calls: &'a [PlainCall<'a>],
}

pub struct PlainCall<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub arguments: &'a str,
}

/// Why a list is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    NoDict { at: usize },
    NoRole { at: usize },
    Content { at: usize, is: String },
    Calls { at: usize, is: String },
    Call { at: usize },
    Overflow(Overflow),
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDict { at } => write!(out, "messages[{at}] must be a dict"),
            Self::NoRole { at } => write!(out, "messages[{at}] has no role"),
            Self::Content { at, is } => {
                write!(
                    out,
                    "messages[{at}]: content must be text or a list, not {is}"
                )
            }
            Self::Calls { at, is } => {
                write!(out, "messages[{at}]: tool_calls must be a list, not {is}")
            }
            Self::Call { at } => write!(out, "messages[{at}]: a tool call must be a dict"),
            Self::Overflow(Overflow {
                budget,
                system,
                tools,
                user,
            }) => write!(
                out,
                "the budget of {budget} tokens cannot hold what must always be sent: system prompt {system}, tools \
                 {tools}, newest user message {user} tokens. Raise the budget or shorten one of them."
            ),
        }
    }
}

/// The list, its values, and how its texts are counted. The messages given are never changed: what is set,
/// was made or copied before.
pub trait Host {
    /// A handle on a value. A clone is the same value.
    type Value: Clone;
    type Error;

    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn message(&self, at: usize) -> Result<Self::Value, Self::Error>;
    /// The message where it is a plain one and texts are counted by the rule of four, without a handle on
    /// anything in it: `self` stays borrowed, so that nothing can change meanwhile.
    fn plain(&mut self, at: usize) -> Option<Plain<'_>>;

    fn count(&self, text: &str) -> Result<usize, Self::Error>;
    fn refuse(&self, why: Refusal) -> Self::Error;

    fn kind(&self, value: &Self::Value) -> Kind;
    /// What kind of value it is, for a person.
    fn type_name(&self, value: &Self::Value) -> String;
    /// `None` where it is no text.
    fn text<'a>(&self, value: &'a Self::Value) -> Result<Option<Cow<'a, str>>, Self::Error>;
    /// Nothing where it is no dict, or has no such key.
    fn get(&self, dict: &Self::Value, key: Key) -> Result<Option<Self::Value>, Self::Error>;
    fn entries(&self, dict: &Self::Value) -> Vec<(Self::Value, Self::Value)>;
    /// Of a list or a tuple.
    fn items(&self, list: &Self::Value) -> Result<Vec<Self::Value>, Self::Error>;
    /// JSON text of arguments that came as an object, in message `at`.
    fn json(&self, at: usize, value: &Self::Value) -> Result<String, Self::Error>;

    fn new_text(&self, text: &str) -> Self::Value;
    fn new_list(&self, items: Vec<Self::Value>) -> Result<Self::Value, Self::Error>;
    fn new_dict(&self) -> Self::Value;
    fn copy(&self, dict: &Self::Value) -> Result<Self::Value, Self::Error>;
    fn set(&self, dict: &Self::Value, key: Key, value: Self::Value) -> Result<(), Self::Error>;
    fn remove(&self, dict: &Self::Value, key: Key) -> Result<(), Self::Error>;
    /// All keys of `newer`, too.
    fn update(&self, dict: &Self::Value, newer: &Self::Value) -> Result<(), Self::Error>;
}
