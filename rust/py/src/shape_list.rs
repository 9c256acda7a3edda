//! A plain list of OpenAI-format dicts, shaped. The dicts that stay as they are come back as the same objects.

use agentkit_core::shape::list::replay;
use agentkit_core::shape::names::Names;
use agentkit_core::shape::options::Options;
use agentkit_core::shape::plan::{Cost, Room};
use agentkit_core::shape::seams;
use agentkit_core::shape::stand_in::{
    EMPTY_RESULT, EMPTY_USER, NO_RESULT, line_text, shown_result,
};
use agentkit_core::shape::unit::Level;
use agentkit_core::shape::wire::{PER_CALL, PER_MESSAGE};
use agentkit_core::tokens::chars_by_four;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::shape::ContextOverflow;
use crate::text_arg::TextArg;

/// Counts texts: by the rule of four here, or by a Python counter.
struct Count<'py>(Option<Bound<'py, PyAny>>);

impl Count<'_> {
    fn text(&self, text: &str) -> PyResult<usize> {
        match &self.0 {
            _ if text.is_empty() => Ok(0),
            None => Ok(chars_by_four(text)),
            Some(count) => count.call1((text,))?.extract(),
        }
    }
}

/// Below this many bytes a pointer would save too little.
const BARE_ABOVE: usize = 400;

/// A message as it is shown, with its cost.
type Shown<'py> = (Bound<'py, PyDict>, usize);

struct Unit<'py> {
    first: Shown<'py>,
    /// The results behind an exchange's first message.
    rest: Vec<Shown<'py>>,
    /// What the stubs name: the first message's place in the list.
    at: usize,
    cost: Cost,
    /// It holds something worth shortening.
    large: bool,
}

impl<'py> Unit<'py> {
    fn shown(&self) -> impl Iterator<Item = &Shown<'py>> {
        std::iter::once(&self.first).chain(&self.rest)
    }
}

/// A call that waits for its result.
struct Open {
    stored: String,
    /// `None`: as it is stored.
    shown: Option<String>,
}

impl Open {
    fn id(&self) -> &str {
        self.shown.as_deref().unwrap_or(&self.stored)
    }
}

/// A piece of a message's content.
enum Piece<'py> {
    Text(String),
    Other(Bound<'py, PyAny>),
}

struct Walk<'py> {
    py: Python<'py>,
    count: Count<'py>,
    image_tokens: usize,
    /// Texts above this many bytes are worth shortening.
    large_above: usize,
    /// The message being read holds one.
    large: bool,
    options: Options,
    roles: [usize; 3],
    used: Names,
    units: Vec<Unit<'py>>,
    /// Calls of the last unit that wait for their results.
    open: Vec<Open>,
    /// The unit they are in.
    open_unit: usize,
}

/// What is read of a message, in one pass over its keys.
#[derive(Default)]
struct Fields<'py> {
    role: Option<Bound<'py, PyAny>>,
    content: Option<Bound<'py, PyAny>>,
    calls: Option<Bound<'py, PyAny>>,
    function_call: Option<Bound<'py, PyAny>>,
    refusal: Option<Bound<'py, PyAny>>,
    name: Option<Bound<'py, PyAny>>,
    call_id: Option<Bound<'py, PyAny>>,
}

impl<'py> Fields<'py> {
    fn of(message: &Bound<'py, PyDict>) -> Self {
        let py = message.py();
        let known = [
            intern!(py, "role"),
            intern!(py, "content"),
            intern!(py, "tool_calls"),
            intern!(py, "tool_call_id"),
            intern!(py, "name"),
            intern!(py, "function_call"),
            intern!(py, "refusal"),
        ];
        let mut fields = Self::default();
        for (key, value) in message.iter() {
            // Keys of literals and of JSON decoders are interned, so that the objects are the same.
            let place = known.iter().position(|name| key.is(*name)).or_else(|| {
                let key = key.cast::<PyString>().ok()?;
                let key = key.to_cow().ok()?;
                known
                    .iter()
                    .position(|name| name.to_cow().is_ok_and(|name| name == key))
            });
            let field = match place {
                Some(0) => &mut fields.role,
                Some(1) => &mut fields.content,
                Some(2) => &mut fields.calls,
                Some(3) => &mut fields.call_id,
                Some(4) => &mut fields.name,
                Some(5) => &mut fields.function_call,
                Some(6) => &mut fields.refusal,
                _ => continue,
            };
            *field = Some(value);
        }
        fields
    }
}

fn text<'a, 'py>(value: &'a Option<Bound<'py, PyAny>>) -> Option<&'a Bound<'py, PyString>> {
    value
        .as_ref()
        .and_then(|value| value.cast::<PyString>().ok())
}

fn string<'py>(
    dict: &Bound<'py, PyDict>,
    key: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyString>>> {
    Ok(dict
        .get_item(key)?
        .and_then(|value| value.cast_into::<PyString>().ok()))
}

/// JSON text of arguments that came as an object.
fn json_text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = value.py();
    let options = PyDict::new(py);
    options.set_item("ensure_ascii", false)?;
    options.set_item("separators", (",", ":"))?;
    let text = py
        .import("json")?
        .call_method("dumps", (value,), Some(&options))?;
    Ok(text.extract::<TextArg<'_, '_>>()?.as_str().to_owned())
}

fn named(at: usize, error: PyErr) -> PyErr {
    PyTypeError::new_err(format!(
        "messages[{at}]: the arguments of a tool call cannot be written as JSON: {error}"
    ))
}

impl<'py> Walk<'py> {
    fn role_cost(&self, role: usize) -> usize {
        self.roles[role] + PER_MESSAGE
    }

    /// Text and cost of a message's content; the text is there when it is one string.
    fn content(
        &mut self,
        content: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Option<Bound<'py, PyString>>, usize, bool)> {
        let Some(content) = content else {
            return Ok((None, 0, true));
        };
        if let Ok(text) = content.cast::<PyString>() {
            let arg: TextArg<'_, '_> = text.extract()?;
            let empty = arg.as_str().trim_start().is_empty();
            self.large |= arg.as_str().len() > self.large_above;
            return Ok((Some(text.clone()), self.count.text(arg.as_str())?, empty));
        }
        let Ok(parts) = content.cast::<PyList>() else {
            return Ok((None, 0, true));
        };
        let empty = parts.is_empty();
        self.large = true;
        Ok((None, self.tokens_of(content)?, empty))
    }

    fn content_tokens(&self, message: &Bound<'py, PyDict>) -> PyResult<usize> {
        match message.get_item(intern!(self.py, "content"))? {
            Some(content) => self.tokens_of(&content),
            None => Ok(0),
        }
    }

    fn tokens_of(&self, content: &Bound<'py, PyAny>) -> PyResult<usize> {
        if let Ok(text) = content.cast::<PyString>() {
            return self.count.text(text.extract::<TextArg<'_, '_>>()?.as_str());
        }
        let Ok(parts) = content.cast::<PyList>() else {
            return Ok(0);
        };
        let mut tokens = 0;
        for part in parts.iter() {
            let text = match part.cast::<PyDict>() {
                Ok(part) => string(part, intern!(self.py, "text"))?,
                Err(_) => part.cast::<PyString>().ok().cloned(),
            };
            tokens += match text {
                Some(text) => self
                    .count
                    .text(text.extract::<TextArg<'_, '_>>()?.as_str())?,
                None => self.part_tokens(&part)?,
            };
        }
        Ok(tokens)
    }

    /// A part without text of its own: thoughts, calls and results of other formats by their texts,
    /// everything else as an image.
    fn part_tokens(&self, part: &Bound<'py, PyAny>) -> PyResult<usize> {
        let Ok(dict) = part.cast::<PyDict>() else {
            return Ok(self.image_tokens);
        };
        let kind = string(dict, intern!(self.py, "type"))?;
        let kind = match &kind {
            Some(kind) => kind.to_cow()?,
            None => "".into(),
        };
        let texts = [
            "thinking",
            "reasoning",
            "tool_use",
            "tool_result",
            "refusal",
        ];
        if !texts.iter().any(|known| kind.contains(known)) {
            return Ok(self.image_tokens);
        }
        self.inner_tokens(part, 0)
    }

    /// All texts in a value; an image in it is one.
    fn inner_tokens(&self, value: &Bound<'py, PyAny>, depth: usize) -> PyResult<usize> {
        if depth > 32 {
            return Ok(0);
        }
        if let Ok(text) = value.cast::<PyString>() {
            return self.count.text(text.extract::<TextArg<'_, '_>>()?.as_str());
        }
        let mut tokens = 0;
        if let Ok(dict) = value.cast::<PyDict>() {
            if let Some(kind) = string(dict, intern!(self.py, "type"))?
                && kind.to_cow()?.contains("image")
            {
                return Ok(self.image_tokens);
            }
            for (key, value) in dict.iter() {
                tokens += self.inner_tokens(&key, depth + 1)?;
                tokens += self.inner_tokens(&value, depth + 1)?;
            }
        } else if let Ok(list) = value.cast::<PyList>() {
            for value in list.iter() {
                tokens += self.inner_tokens(&value, depth + 1)?;
            }
        } else if !value.is_none() {
            tokens += 1;
        }
        Ok(tokens)
    }

    fn name(&self, fields: &Fields<'py>) -> PyResult<usize> {
        match text(&fields.name) {
            Some(name) => self.count.text(name.extract::<TextArg<'_, '_>>()?.as_str()),
            None => Ok(0),
        }
    }

    /// A copy of the message with another content.
    fn with_content(
        &self,
        message: &Bound<'py, PyDict>,
        text: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let copy = message.copy()?;
        copy.set_item(intern!(self.py, "content"), text)?;
        Ok(copy)
    }

    fn made(&self, role: &str, text: &str) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(self.py);
        dict.set_item(intern!(self.py, "role"), role)?;
        dict.set_item(intern!(self.py, "content"), text)?;
        Ok(dict)
    }

    fn push(&mut self, at: usize, shown: Shown<'py>, cost: Cost) {
        self.units.push(Unit {
            at,
            large: std::mem::take(&mut self.large),
            cost: Cost {
                full: shown.1,
                ..cost
            },
            first: shown,
            rest: Vec::new(),
        });
    }

    /// Answers what is still open: no result can come any more.
    fn close(&mut self) -> PyResult<()> {
        let open = std::mem::take(&mut self.open);
        if open.is_empty() {
            return Ok(());
        }
        let tokens = self.count.text(NO_RESULT)? + self.role_cost(2);
        for call in open {
            let id = call.id();
            let dict = self.made("tool", NO_RESULT)?;
            dict.set_item(intern!(self.py, "tool_call_id"), id)?;
            if let Some(unit) = self.units.get_mut(self.open_unit) {
                unit.rest.push((dict, tokens));
                unit.cost.full += tokens;
            }
        }
        Ok(())
    }

    fn user(
        &mut self,
        at: usize,
        message: Bound<'py, PyDict>,
        fields: &Fields<'py>,
    ) -> PyResult<()> {
        self.close()?;
        let (_, tokens, empty) = self.content(fields.content.as_ref())?;
        let cost = Cost {
            user: true,
            messages: 1,
            ..Cost::default()
        };
        let shown = if empty {
            let tokens = self.count.text(EMPTY_USER)? + self.role_cost(0);
            (self.with_content(&message, EMPTY_USER)?, tokens)
        } else {
            let tokens = tokens + self.name(fields)? + self.role_cost(0);
            (message, tokens)
        };
        self.push(at, shown, cost);
        Ok(())
    }

    /// A message of a role that cannot stand where it does, as context that begins with `head`.
    fn context(&mut self, at: usize, head: &str, message: &Bound<'py, PyDict>) -> PyResult<()> {
        let safe = |text: &str| -> String {
            if self.options.verbatim {
                text.to_owned()
            } else {
                seams::neutralize(text).into_owned()
            }
        };
        let dict = self.made("user", "")?;
        let mut text = head.to_owned();
        let mut pictures = Vec::new();
        for part in self.parts(message)? {
            match part {
                Piece::Text(more) => {
                    text.push('\n');
                    text.push_str(&more);
                }
                Piece::Other(part) => pictures.push(part),
            }
        }
        let text = safe(&text);
        if pictures.is_empty() {
            dict.set_item(intern!(self.py, "content"), text)?;
        } else {
            let list = PyList::empty(self.py);
            list.append(self.text_part(&text)?)?;
            for part in pictures {
                list.append(part)?;
            }
            dict.set_item(intern!(self.py, "content"), list)?;
        }
        let tokens = self.content_tokens(&dict)? + self.role_cost(0);
        self.push(at, (dict, tokens), Cost::default());
        Ok(())
    }

    fn text_part(&self, text: &str) -> PyResult<Bound<'py, PyDict>> {
        let part = PyDict::new(self.py);
        part.set_item(intern!(self.py, "type"), intern!(self.py, "text"))?;
        part.set_item(intern!(self.py, "text"), text)?;
        Ok(part)
    }

    /// The content piece by piece, whichever of its two forms it has.
    fn parts(&self, message: &Bound<'py, PyDict>) -> PyResult<Vec<Piece<'py>>> {
        let Some(content) = message.get_item(intern!(self.py, "content"))? else {
            return Ok(Vec::new());
        };
        let text = |text: &Bound<'py, PyString>| -> PyResult<Piece<'py>> {
            Ok(Piece::Text(
                text.extract::<TextArg<'_, '_>>()?.as_str().to_owned(),
            ))
        };
        if let Ok(whole) = content.cast::<PyString>() {
            return Ok(vec![text(whole)?]);
        }
        let Ok(parts) = content.cast::<PyList>() else {
            return Ok(Vec::new());
        };
        parts
            .iter()
            .map(|part| {
                let inner = match part.cast::<PyDict>() {
                    Ok(dict) => string(dict, intern!(self.py, "text"))?,
                    Err(_) => part.cast::<PyString>().ok().cloned(),
                };
                match inner {
                    Some(inner) => text(&inner),
                    None => Ok(Piece::Other(part)),
                }
            })
            .collect()
    }

    /// The message with its lists as lists, its content of a kind there is, and calls where they belong;
    /// itself where it is so already.
    fn regular(
        &self,
        at: usize,
        message: Bound<'py, PyDict>,
        fields: &mut Fields<'py>,
        role: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = self.py;
        let mut fresh: Option<Bound<'py, PyDict>> = None;
        let mut set = |key: &Bound<'py, PyString>, value: Bound<'py, PyAny>| -> PyResult<()> {
            let copy = match &fresh {
                Some(copy) => copy.clone(),
                None => message.copy()?,
            };
            copy.set_item(key, value)?;
            fresh = Some(copy);
            Ok(())
        };
        let (content_key, calls_key) = (intern!(py, "content"), intern!(py, "tool_calls"));
        for (key, field) in [
            (content_key, &mut fields.content),
            (calls_key, &mut fields.calls),
        ] {
            let Some(value) = &*field else {
                continue;
            };
            let text = key.is(content_key) && value.is_instance_of::<PyString>();
            if value.is_none() || text || value.is_instance_of::<PyList>() {
                continue;
            }
            let Ok(tuple) = value.cast::<PyTuple>() else {
                return Err(PyTypeError::new_err(format!(
                    "messages[{at}]: {key} must be {}a list, not {}",
                    if key.is(content_key) { "text or " } else { "" },
                    value.get_type().name()?
                )));
            };
            let list = tuple.to_list().into_any();
            set(key, list.clone())?;
            *field = Some(list);
        }
        match role {
            // The older way to write a call and its result.
            "assistant" => {
                let calls = fields.calls.as_ref();
                let none = calls.is_none_or(|calls| calls.len().unwrap_or(0) == 0);
                if !none {
                } else if let Some(function) = fields
                    .function_call
                    .as_ref()
                    .and_then(|call| call.cast::<PyDict>().ok())
                {
                    let call = PyDict::new(py);
                    call.set_item(intern!(py, "id"), "")?;
                    call.set_item(intern!(py, "type"), intern!(py, "function"))?;
                    call.set_item(intern!(py, "function"), function)?;
                    let list = PyList::new(py, [call])?.into_any();
                    set(calls_key, list.clone())?;
                    fields.calls = Some(list);
                    if let Some(copy) = &fresh {
                        copy.del_item(intern!(py, "function_call"))?;
                    }
                } else if let Some(refusal) = text(&fields.refusal)
                    && fields
                        .content
                        .as_ref()
                        .is_none_or(|content| content.is_none())
                {
                    let refusal = refusal.clone().into_any();
                    set(content_key, refusal.clone())?;
                    fields.content = Some(refusal);
                }
            }
            "function" => set(intern!(py, "role"), intern!(py, "tool").clone().into_any())?,
            _ => {}
        }
        Ok(fresh.unwrap_or(message))
    }

    fn assistant(
        &mut self,
        at: usize,
        mut message: Bound<'py, PyDict>,
        fields: &mut Fields<'py>,
    ) -> PyResult<()> {
        self.close()?;
        let py = self.py;
        let (_, mut tokens, empty) = self.content(fields.content.as_ref())?;
        let calls = fields
            .calls
            .take()
            .and_then(|calls| calls.cast_into::<PyList>().ok())
            .filter(|calls| !calls.is_empty());
        if empty && calls.is_none() {
            return Ok(());
        }
        // Two texts in a row are one message.
        if let Some(last) = self.units.last_mut()
            && last.cost.exchange
            && last.cost.calls == 0
        {
            let older = last.rest.last().unwrap_or(&last.first).0.clone();
            (message, tokens) = self.joined(&older, &message)?;
            fields.name = message.get_item(intern!(py, "name"))?;
            self.units.pop();
        }
        let mut cost = Cost {
            exchange: true,
            messages: usize::from(!empty),
            ..Cost::default()
        };
        tokens += self.name(fields)? + self.role_cost(1);
        if let Some(calls) = calls {
            self.open_unit = self.units.len();
            cost.calls = 1;
            let (calls, more) = self.calls(at, &calls)?;
            tokens += more;
            if let Some(calls) = calls {
                message = message.copy()?;
                message.set_item(intern!(py, "tool_calls"), calls)?;
            }
        }
        self.push(at, (message, tokens), cost);
        Ok(())
    }

    /// Two messages of the assistant as one, with the keys of both, and the cost of its content.
    fn joined(
        &self,
        older: &Bound<'py, PyDict>,
        newer: &Bound<'py, PyDict>,
    ) -> PyResult<Shown<'py>> {
        let py = self.py;
        let both = older.copy()?;
        both.update(newer.as_mapping())?;
        let content = intern!(py, "content");
        let plain = |message: &Bound<'py, PyDict>| -> PyResult<bool> {
            let content = message.get_item(content)?;
            Ok(content
                .is_none_or(|content| content.is_none() || content.is_instance_of::<PyString>()))
        };
        if plain(older)? && plain(newer)? {
            let mut texts = Vec::new();
            for message in [older, newer] {
                for part in self.parts(message)? {
                    if let Piece::Text(text) = part
                        && !text.trim().is_empty()
                    {
                        texts.push(text);
                    }
                }
            }
            both.set_item(content, texts.join("\n\n"))?;
        } else {
            let list = PyList::empty(py);
            for message in [older, newer] {
                match message.get_item(content)? {
                    Some(value) if value.is_instance_of::<PyList>() => {
                        for part in value.try_iter()? {
                            list.append(part?)?;
                        }
                    }
                    Some(value) if value.is_instance_of::<PyString>() => {
                        let text = value.extract::<TextArg<'_, '_>>()?;
                        if !text.as_str().trim().is_empty() {
                            list.append(self.text_part(text.as_str())?)?;
                        }
                    }
                    _ => {}
                }
            }
            both.set_item(content, list)?;
        }
        let tokens = self.content_tokens(&both)?;
        Ok((both, tokens))
    }

    /// The calls' cost, and new ones where any had to be repaired.
    fn calls(
        &mut self,
        at: usize,
        calls: &Bound<'py, PyList>,
    ) -> PyResult<(Option<Bound<'py, PyList>>, usize)> {
        let py = self.py;
        let mut tokens = 0;
        let mut repaired: Option<Bound<'py, PyList>> = None;
        for (index, call) in calls.iter().enumerate() {
            let call = call.cast_into::<PyDict>().map_err(|_| {
                PyTypeError::new_err(format!("messages[{at}]: a tool call must be a dict"))
            })?;
            let id = string(&call, intern!(py, "id"))?;
            let stored: String = match &id {
                Some(id) => id.extract::<TextArg<'_, '_>>()?.as_str().to_owned(),
                None => String::new(),
            };
            let mut made = None;
            let mut salt = 0;
            while self
                .used
                .claim_call(made.as_deref().unwrap_or(&stored))
                .is_none()
            {
                made = Some(format!("call_{at}_{index}_{salt}"));
                salt += 1;
            }
            let open = Open {
                stored,
                shown: made,
            };
            let (function, flat) = match call
                .get_item(intern!(py, "function"))?
                .and_then(|function| function.cast_into::<PyDict>().ok())
            {
                Some(function) => (function, false),
                None => {
                    let function = PyDict::new(py);
                    for key in [intern!(py, "name"), intern!(py, "arguments")] {
                        if let Some(value) = call.get_item(key)? {
                            function.set_item(key, value)?;
                        }
                    }
                    (function, true)
                }
            };
            if let Some(name) = string(&function, intern!(py, "name"))? {
                tokens += self
                    .count
                    .text(name.extract::<TextArg<'_, '_>>()?.as_str())?;
            }
            let given = function.get_item(intern!(py, "arguments"))?;
            let (arg, written);
            let (raw, bare) = match &given {
                Some(given) if given.is_instance_of::<PyString>() => {
                    arg = given.extract::<TextArg<'_, '_>>()?;
                    (arg.as_str(), false)
                }
                // Some hosts keep the object itself.
                Some(given) if !given.is_none() => {
                    written = json_text(given).map_err(|error| named(at, error))?;
                    (written.as_str(), true)
                }
                _ => ("", true),
            };
            let arguments = seams::arguments(raw);
            tokens += self.count.text(&arguments)? + PER_CALL;
            self.large |= arguments.len() > self.large_above;
            if open.shown.is_some() || arguments != raw || bare || flat {
                let fresh_call = call.copy()?;
                fresh_call.set_item(intern!(py, "id"), open.id())?;
                if flat {
                    for key in [intern!(py, "name"), intern!(py, "arguments")] {
                        if fresh_call.contains(key)? {
                            fresh_call.del_item(key)?;
                        }
                    }
                    fresh_call.set_item(intern!(py, "type"), intern!(py, "function"))?;
                }
                let fresh_function = function.copy()?;
                fresh_function.set_item(intern!(py, "arguments"), &*arguments)?;
                fresh_call.set_item(intern!(py, "function"), fresh_function)?;
                let list = match &repaired {
                    Some(list) => list.clone(),
                    None => PyList::new(py, calls.iter())?,
                };
                list.set_item(index, fresh_call)?;
                repaired = Some(list);
            }
            self.open.push(open);
        }
        Ok((repaired, tokens))
    }

    fn tool(
        &mut self,
        at: usize,
        mut message: Bound<'py, PyDict>,
        fields: &Fields<'py>,
    ) -> PyResult<()> {
        let py = self.py;
        let arg;
        let call_id = match text(&fields.call_id) {
            Some(id) => {
                arg = id.extract::<TextArg<'_, '_>>()?;
                arg.as_str()
            }
            None => "",
        };
        let (text, mut tokens, empty) = self.content(fields.content.as_ref())?;
        let place = self
            .open
            .iter()
            .position(|call| call.stored == call_id || call_id.is_empty());
        let Some(place) = place else {
            let head = if call_id.is_empty() {
                "[late result of an unknown call]".to_owned()
            } else {
                format!("[late result of call {call_id}]")
            };
            return self.context(at, &head, &message);
        };
        let call = self.open.remove(place);
        if empty {
            tokens = self.count.text(EMPTY_RESULT)?;
            message = self.with_content(&message, EMPTY_RESULT)?;
        } else if let Some(text) = &text {
            let arg: TextArg<'_, '_> = text.extract()?;
            let shown = shown_result(&self.options, arg.as_str());
            if *shown != *arg.as_str() {
                tokens = self.count.text(&shown)?;
                message = self.with_content(&message, &shown)?;
            }
        } else if let Some(parts) = self.shown_parts(&message)? {
            message = message.copy()?;
            message.set_item(intern!(py, "content"), parts)?;
            tokens = self.content_tokens(&message)?;
        }
        if call_id != call.id() {
            message = message.copy()?;
            message.set_item(intern!(py, "tool_call_id"), call.id())?;
        }
        tokens += self.name(fields)? + self.role_cost(2);
        if let Some(unit) = self.units.get_mut(self.open_unit) {
            unit.rest.push((message, tokens));
            unit.cost.full += tokens;
            unit.large |= std::mem::take(&mut self.large);
        }
        Ok(())
    }

    /// The parts of a tool's result with their texts as the model may see them; `None`: as they are.
    fn shown_parts(&self, message: &Bound<'py, PyDict>) -> PyResult<Option<Bound<'py, PyList>>> {
        let py = self.py;
        let Some(parts) = message.get_item(intern!(py, "content"))? else {
            return Ok(None);
        };
        let list = PyList::empty(py);
        let mut changed = false;
        for part in parts.try_iter()? {
            let part = part?;
            let dict = part.cast::<PyDict>().ok();
            let text = match dict {
                Some(dict) => string(dict, intern!(py, "text"))?,
                None => part.cast::<PyString>().ok().cloned(),
            };
            if let Some(text) = text {
                let arg = text.extract::<TextArg<'_, '_>>()?;
                let shown = shown_result(&self.options, arg.as_str());
                if *shown != *arg.as_str() {
                    changed = true;
                    match dict {
                        Some(dict) => {
                            let copy = dict.copy()?;
                            copy.set_item(intern!(py, "text"), &*shown)?;
                            list.append(copy)?;
                        }
                        None => list.append(&*shown)?,
                    }
                    continue;
                }
            }
            list.append(part)?;
        }
        Ok(changed.then_some(list))
    }

    /// A unit with its large texts shortened to `keep` bytes.
    fn shortened(&self, unit: &Unit<'py>, above: usize, keep: usize) -> PyResult<Vec<Shown<'py>>> {
        let mut out = Vec::with_capacity(1 + unit.rest.len());
        for (offset, (message, tokens)) in unit.shown().enumerate() {
            let text = string(message, intern!(self.py, "content"))?;
            let parts = message
                .get_item(intern!(self.py, "content"))?
                .and_then(|content| content.cast_into::<PyList>().ok());
            let arg;
            let joined;
            let whole = match (&text, &parts) {
                (Some(text), _) => {
                    arg = text.extract::<TextArg<'_, '_>>()?;
                    arg.as_str()
                }
                (None, Some(parts)) => {
                    let mut texts = Vec::new();
                    for part in parts.iter() {
                        if let Ok(part) = part.cast::<PyDict>()
                            && let Some(text) = string(part, intern!(self.py, "text"))?
                        {
                            texts.push(text.extract::<TextArg<'_, '_>>()?.as_str().to_owned());
                        }
                    }
                    joined = texts.join("\n");
                    &joined
                }
                _ => "",
            };
            let mut message = message.clone();
            let mut tokens = *tokens;
            if whole.len() > above || (parts.is_some() && text.is_none()) {
                let head = seams::floor_boundary(whole, keep.min(whole.len()));
                let place = unit.at + offset;
                let stub = format!(
                    "[shortened: message {place}, first {head} of {} bytes]\n{}",
                    whole.len(),
                    &whole[..head]
                );
                let cost = self.count.text(&stub)?;
                let before = self.content_tokens(&message)?;
                if cost < before {
                    message = self.with_content(&message, &stub)?;
                    tokens = tokens - before + cost;
                }
            }
            (message, tokens) = self.shortened_calls(message, tokens, unit.at, above, keep)?;
            out.push((message, tokens));
        }
        Ok(out)
    }

    fn shortened_calls(
        &self,
        message: Bound<'py, PyDict>,
        mut tokens: usize,
        at: usize,
        above: usize,
        keep: usize,
    ) -> PyResult<Shown<'py>> {
        let py = self.py;
        let Some(calls) = message
            .get_item(intern!(py, "tool_calls"))?
            .and_then(|calls| calls.cast_into::<PyList>().ok())
        else {
            return Ok((message, tokens));
        };
        let mut changed = false;
        let list = PyList::empty(py);
        for call in calls.iter() {
            let shorter = (|| -> PyResult<Option<(Bound<'py, PyDict>, usize, usize)>> {
                let Ok(call) = call.cast::<PyDict>() else {
                    return Ok(None);
                };
                let Some(function) = call
                    .get_item(intern!(py, "function"))?
                    .and_then(|function| function.cast_into::<PyDict>().ok())
                else {
                    return Ok(None);
                };
                let Some(raw) = string(&function, intern!(py, "arguments"))? else {
                    return Ok(None);
                };
                let raw = raw.extract::<TextArg<'_, '_>>()?;
                let raw = raw.as_str();
                if raw.len() <= above {
                    return Ok(None);
                }
                let head = seams::floor_boundary(raw, keep.min(raw.len()));
                let stub = seams::short_arguments(&format!("message {at}"), head, raw);
                let (before, after) = (self.count.text(raw)?, self.count.text(&stub)?);
                if after >= before {
                    return Ok(None);
                }
                let function = function.copy()?;
                function.set_item(intern!(py, "arguments"), stub)?;
                let call = call.copy()?;
                call.set_item(intern!(py, "function"), function)?;
                Ok(Some((call, before, after)))
            })()?;
            match shorter {
                Some((call, before, after)) => {
                    changed = true;
                    tokens = tokens - before + after;
                    list.append(call)?;
                }
                None => list.append(call)?,
            }
        }
        if !changed {
            return Ok((message, tokens));
        }
        let message = message.copy()?;
        message.set_item(intern!(py, "tool_calls"), list)?;
        Ok((message, tokens))
    }
}

/// The shaped list; see `agentkit_fast.shaping.shape_messages`.
#[pyfunction]
#[pyo3(signature = (messages, options, tools, count=None))]
pub fn shape_list<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyList>,
    options: &Bound<'py, PyDict>,
    tools: TextArg<'_, 'py>,
    count: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let options = crate::shape::options(options)?;
    let count = Count(count);
    let roles = [
        count.text("user")?,
        count.text("assistant")?,
        count.text("tool")?,
    ];
    let mut walk = Walk {
        py,
        image_tokens: options.image_tokens,
        large_above: options.stub_above().min(BARE_ABOVE),
        large: false,
        options: options.clone(),
        roles,
        used: Names::default(),
        units: Vec::with_capacity(messages.len() / 2 + 1),
        open: Vec::new(),
        open_unit: 0,
        count,
    };
    let mut head: Vec<Shown<'py>> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let message = message
            .cast_into::<PyDict>()
            .map_err(|_| PyTypeError::new_err(format!("messages[{at}] must be a dict")))?;
        let mut fields = Fields::of(&message);
        let role = text(&fields.role)
            .ok_or_else(|| PyValueError::new_err(format!("messages[{at}] has no role")))?
            .clone();
        let role = role.to_cow()?;
        let message = walk.regular(at, message, &mut fields, &role)?;
        match &*role {
            "assistant" => walk.assistant(at, message, &mut fields)?,
            "tool" | "function" => walk.tool(at, message, &fields)?,
            "user" => walk.user(at, message, &fields)?,
            // The system prompt is first and once; what a host says so later is context.
            "system" | "developer" if head.is_empty() && walk.units.is_empty() => {
                let (_, tokens, _) = walk.content(fields.content.as_ref())?;
                let cost = tokens + walk.count.text(&role)? + walk.name(&fields)? + PER_MESSAGE;
                head.push((message, cost));
            }
            other => {
                walk.close()?;
                walk.context(at, &format!("[{other}]"), &message)?;
            }
        }
    }
    walk.close()?;
    let out = PyList::empty(py);
    for (message, _) in &head {
        out.append(message)?;
    }
    if options.budget == 0 {
        for unit in &walk.units {
            for (message, _) in unit.shown() {
                out.append(message)?;
            }
        }
        return Ok(out);
    }
    let room = Room {
        budget: options.budget,
        target: options.target(),
        system: head.iter().map(|(_, tokens)| tokens).sum(),
        tools: walk.count.text(tools.as_str())?,
        marker: 0,
        line: walk.count.text(&line_text(1_000_000))? + walk.role_cost(0),
        keep_messages: options.keep_messages,
        keep_calls: options.keep_calls,
        keep_first: options.keep_first,
        shorten: options.lod_above > 0 || options.always_lod,
    };
    let above = options.stub_above();
    let mut costs: Vec<Cost> = walk.units.iter().map(|unit| unit.cost).collect();
    let mut error = None;
    let sum = |shown: Vec<Shown<'_>>| shown.iter().map(|(_, tokens)| tokens).sum::<usize>();
    let outcome = replay(&mut costs, &room, |index| {
        let unit = &walk.units[index];
        if !unit.large {
            return (unit.cost.full, unit.cost.full);
        }
        let sizes = walk.shortened(unit, above, above).and_then(|stub| {
            Ok((
                sum(stub),
                sum(walk.shortened(unit, above.min(BARE_ABOVE), 0)?),
            ))
        });
        sizes.unwrap_or_else(|failure| {
            error = Some(failure);
            (unit.cost.full, unit.cost.full)
        })
    });
    if let Some(error) = error {
        return Err(error);
    }
    let (levels, silent) = outcome.map_err(|at| {
        ContextOverflow::new_err(format!(
            "the budget of {} tokens cannot hold what must always be sent: system prompt {}, tools {}, newest \
             user message {} tokens. Raise the budget or shorten one of them.",
            at.budget, at.system, at.tools, at.user
        ))
    })?;
    let last_out = levels.iter().rposition(|level| *level == Level::Out);
    let mut hidden = 0;
    for (index, (unit, level)) in walk.units.iter().zip(&levels).enumerate() {
        match level {
            Level::Full => {
                for (message, _) in unit.shown() {
                    out.append(message)?;
                }
            }
            Level::Stub => {
                for (message, _) in walk.shortened(unit, above, above)? {
                    out.append(message)?;
                }
            }
            Level::Bare => {
                for (message, _) in walk.shortened(unit, above.min(BARE_ABOVE), 0)? {
                    out.append(message)?;
                }
            }
            Level::Out => hidden += 1 + unit.rest.len(),
        }
        if Some(index) == last_out && !silent {
            out.append(walk.made("user", &line_text(hidden))?)?;
        }
    }
    Ok(out)
}
