//! The text that teaches a model the format.

use std::fmt::Write;

use crate::json::Value;

use super::render::{push_json, render_tool_call};
use super::schema::{Accepts, Parameter, Tool};

/// Names of parameters that hold the longest text of a call.
const LONG: [&str; 10] = [
    "content", "contents", "body", "text", "code", "source", "script", "patch", "new_text", "data",
];

fn is_long(parameter: &Parameter) -> bool {
    parameter.accepts.text && LONG.contains(&parameter.name.as_str())
}

/// A value that shows how a parameter is written.
fn sample(parameter: &Parameter, accepts: &Accepts) -> Value {
    if let Some(literal) = accepts.literals.first() {
        return literal.clone();
    }
    if accepts.text || accepts.any {
        return Value::String(if is_long(parameter) {
            "first line\nsecond line, \"quotes\" and \\ as they are".to_owned()
        } else {
            "...".to_owned()
        });
    }
    if accepts.integer || accepts.number {
        Value::Number("1".to_owned())
    } else if accepts.boolean {
        Value::Bool(true)
    } else if accepts.array.is_some() {
        Value::Array(Vec::new())
    } else if accepts.object {
        Value::Object(Vec::new())
    } else {
        Value::Null
    }
}

/// Whether an example of the tool shows this parameter.
fn is_shown(parameter: &Parameter) -> bool {
    parameter.required || is_long(parameter)
}

/// A call of `tool` with its required parameters (and a long text, where it takes one).
fn example(tool: &Tool) -> String {
    // A tool that needs nothing is shown with its first parameter: an empty object teaches little.
    let none = !tool.parameters.iter().any(is_shown);
    let pairs = tool
        .parameters
        .iter()
        .enumerate()
        .filter(|&(index, parameter)| is_shown(parameter) || (none && index == 0))
        .map(|(_, parameter)| parameter)
        .map(|parameter| {
            (
                parameter.name.clone(),
                sample(parameter, &parameter.accepts),
            )
        })
        .collect();
    let mut arguments = String::new();
    push_json(&mut arguments, &Value::Object(pairs));
    render_tool_call(&tool.name, &arguments).unwrap_or_default()
}

/// The instruction text: one example, a batch of two, the rules, and a line `name(param, param?)` a tool.
/// Empty where there are no tools.
pub fn heredoc_prompt(tools: &[Tool]) -> String {
    let Some(first) = tools.first() else {
        return String::new();
    };
    // The tool that takes a long text shows most of the format.
    let main = tools
        .iter()
        .find(|tool| tool.parameters.iter().any(is_long))
        .unwrap_or(first);
    // A small model copies what it sees: after an example with `{ }` it leaves the arguments of every tool out.
    let others = || tools.iter().filter(|tool| tool.name != main.name);
    let other = others()
        .find(|tool| tool.parameters.iter().any(is_shown))
        .or_else(|| others().next())
        .unwrap_or(main);
    let mut out = String::from("To use a tool, write a block like this:\n\n");
    out.push_str(&example(main));
    out.push_str("\nSeveral calls may follow each other:\n\n");
    out.push_str(&example(other));
    out.push_str(&example(main));
    out.push_str(
        "\nText of several lines goes between ~~~tag and the same ~~~tag (go java js json md py sh sql txt xml \
         yaml), exactly as it is, without escapes. Write nothing after the last @@end: the results come next. To \
         answer without a tool, just write the answer.\n\nTools (? marks what may be left out):\n",
    );
    for tool in tools {
        let parameters: Vec<String> = tool
            .parameters
            .iter()
            .map(|parameter| {
                let mark = if parameter.required { "" } else { "?" };
                format!("{}{mark}", super::render::key_text(&parameter.name))
            })
            .collect();
        let _ = write!(
            out,
            "{}({})",
            super::render::header_name(&tool.name),
            parameters.join(", ")
        );
        let description: Vec<&str> = tool.description.split_whitespace().collect();
        if !description.is_empty() {
            let _ = write!(out, ": {}", description.join(" "));
        }
        out.push('\n');
    }
    out
}
