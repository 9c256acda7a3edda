//! What a tool set says about its calls: names, parameters, and which values each parameter takes.

use crate::json::{Fault, Value};

/// Steps taken through one parameter's schema (references, alternatives, array items), and how deep. A
/// schema that needs more is read as "any value" from there on: references may go in circles.
const STEPS: usize = 1_000;
const DEPTH: usize = 8;

/// The values a parameter takes, as far as a grammar holds them. A union; `any` is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Accepts {
    pub any: bool,
    pub text: bool,
    pub integer: bool,
    pub number: bool,
    pub boolean: bool,
    pub null: bool,
    pub object: bool,
    pub array: Option<Items>,
    /// Strings, numbers, booleans and null of `enum` and `const`.
    pub literals: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Items {
    Any,
    Of(Box<Accepts>),
}

#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub name: String,
    pub required: bool,
    pub accepts: Accepts,
}

/// One tool of a set.
#[derive(Clone, Debug)]
pub struct Tool {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) parameters: Vec<Parameter>,
}

impl Tool {
    /// The parameters by the rule of their value, in order of first appearance: a rule, and the keys that have it.
    pub(super) fn keys_by_value(
        &self,
        mut value: impl FnMut(&Accepts) -> String,
        key: impl Fn(&str) -> String,
    ) -> Vec<(String, Vec<String>)> {
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for parameter in &self.parameters {
            let rule = value(&parameter.accepts);
            let key = key(&parameter.name);
            match groups.iter_mut().find(|(other, _)| *other == rule) {
                Some((_, keys)) => keys.push(key),
                None => groups.push((rule, vec![key])),
            }
        }
        groups
    }
}

/// Reads a JSON array of `{"name", "description", "parameters"}`, `parameters` being a JSON Schema.
pub fn read_tools(json: &str) -> Result<Vec<Tool>, Fault> {
    let tools = Value::parse(json)?;
    let Value::Array(tools) = &tools else {
        return Ok(Vec::new());
    };
    Ok(tools
        .iter()
        .map(|tool| {
            let text = |key| tool.get(key).and_then(Value::as_str).unwrap_or_default();
            let mut reader = Reader {
                root: tool.get("parameters").unwrap_or(&Value::Null),
                steps: STEPS,
                parameters: Vec::new(),
            };
            reader.collect(reader.root, true);
            Tool {
                name: text("name").to_owned(),
                description: text("description").to_owned(),
                parameters: reader.parameters,
            }
        })
        .collect())
}

struct Reader<'a> {
    root: &'a Value,
    steps: usize,
    parameters: Vec<Parameter>,
}

impl<'a> Reader<'a> {
    /// Counts one step; `false` when there have been too many.
    fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_sub(1);
        self.steps > 0
    }

    /// Gathers the parameters that a schema of an arguments object names. `all` says that they hold for every
    /// call (not inside an alternative), so that `required` counts.
    fn collect(&mut self, schema: &'a Value, all: bool) {
        if !self.step() {
            return;
        }
        if let Some(target) = self.resolve(schema) {
            self.collect(target, all);
        }
        if let Some(Value::Object(properties)) = schema.get("properties") {
            for (name, property) in properties {
                let collecting = std::mem::replace(&mut self.steps, STEPS);
                let accepts = self.accepts(property, 0);
                self.steps = collecting;
                if let Some(known) = self.parameters.iter_mut().find(|known| known.name == *name) {
                    known.accepts.join(accepts);
                } else {
                    self.parameters.push(Parameter {
                        name: name.clone(),
                        required: false,
                        accepts,
                    });
                }
            }
        }
        for (key, all) in [("allOf", all), ("anyOf", false), ("oneOf", false)] {
            if let Some(Value::Array(parts)) = schema.get(key) {
                for part in parts {
                    self.collect(part, all);
                }
            }
        }
        if let (true, Some(Value::Array(names))) = (all, schema.get("required")) {
            for parameter in &mut self.parameters {
                parameter.required |= names
                    .iter()
                    .any(|name| name.as_str() == Some(&parameter.name));
            }
        }
    }

    /// The target of a local `$ref`.
    fn resolve(&self, schema: &'a Value) -> Option<&'a Value> {
        let path = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
        path.split('/').skip(1).try_fold(self.root, |value, part| {
            value.get(&part.replace("~1", "/").replace("~0", "~"))
        })
    }

    fn accepts(&mut self, schema: &'a Value, depth: usize) -> Accepts {
        let mut found = Accepts::default();
        if !self.step() || depth > DEPTH {
            found.any = true;
            return found;
        }
        if let Some(Value::Bool(true)) = schema.get("nullable") {
            found.null = true;
        }
        if schema.get("$ref").is_some() {
            match self.resolve(schema) {
                Some(target) => found.join(self.accepts(target, depth + 1)),
                None => found.any = true,
            }
        } else if let Some(value) = schema.get("const") {
            found.add_literal(value);
        } else if let Some(Value::Array(values)) = schema.get("enum") {
            for value in values {
                found.add_literal(value);
            }
        } else if let Some(kind) = schema.get("type") {
            let kinds = match kind {
                Value::Array(kinds) => kinds.as_slice(),
                one => std::slice::from_ref(one),
            };
            for kind in kinds {
                self.add_kind(&mut found, kind.as_str().unwrap_or_default(), schema, depth);
            }
        } else if let Some(Value::Array(parts)) = schema.get("anyOf").or(schema.get("oneOf")) {
            for part in parts {
                found.join(self.accepts(part, depth + 1));
            }
        } else if let Some(Value::Array(parts)) = schema.get("allOf") {
            // All must hold; holding the value to one that says something is enough for a grammar.
            let part = parts
                .iter()
                .map(|part| self.accepts(part, depth + 1))
                .find(|part| !part.any);
            found.join(part.unwrap_or_default());
        }
        found.any |= found
            == Accepts {
                null: found.null,
                ..Accepts::default()
            }
            && !only_null(schema);
        found
    }

    fn add_kind(&mut self, found: &mut Accepts, kind: &str, schema: &'a Value, depth: usize) {
        match kind {
            "string" => found.text = true,
            "integer" => found.integer = true,
            "number" => found.number = true,
            "boolean" => found.boolean = true,
            "null" => found.null = true,
            "object" => found.object = true,
            "array" => {
                let plain = schema.get("prefixItems").is_none();
                let items = match schema.get("items") {
                    Some(items @ Value::Object(_)) if plain => self.accepts(items, depth + 1),
                    _ => Accepts {
                        any: true,
                        ..Accepts::default()
                    },
                };
                found.join_array(if items.any {
                    Items::Any
                } else {
                    Items::Of(Box::new(items))
                });
            }
            _ => found.any = true,
        }
    }
}

/// Whether a schema says "null and nothing else".
fn only_null(schema: &Value) -> bool {
    schema.get("const") == Some(&Value::Null)
        || schema.get("type").is_some()
        || schema.get("enum").is_some()
        || schema.get("$ref").is_some()
        || schema.get("anyOf").is_some()
        || schema.get("oneOf").is_some()
}

impl Accepts {
    /// The literals that no kind of value among the accepted ones covers.
    pub(super) fn bare_literals(&self) -> impl Iterator<Item = &Value> {
        self.literals.iter().filter(|value| match value {
            Value::String(_) => !self.text,
            Value::Number(_) => !self.number,
            _ => !self.boolean,
        })
    }

    fn join(&mut self, other: Self) {
        self.any |= other.any;
        self.text |= other.text;
        self.integer |= other.integer;
        self.number |= other.number;
        self.boolean |= other.boolean;
        self.null |= other.null;
        self.object |= other.object;
        if let Some(items) = other.array {
            self.join_array(items);
        }
        for literal in other.literals {
            if !self.literals.contains(&literal) {
                self.literals.push(literal);
            }
        }
    }

    fn join_array(&mut self, items: Items) {
        self.array = Some(match (self.array.take(), items) {
            (None, items) => items,
            (Some(Items::Of(mut mine)), Items::Of(other)) => {
                mine.join(*other);
                Items::Of(mine)
            }
            _ => Items::Any,
        });
    }

    fn add_literal(&mut self, value: &Value) {
        match value {
            Value::Array(_) => self.join_array(Items::Any),
            Value::Object(_) => self.object = true,
            Value::Null => self.null = true,
            scalar if !self.literals.contains(scalar) => self.literals.push(scalar.clone()),
            _ => {}
        }
    }
}
