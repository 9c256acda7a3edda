//! A plain list of OpenAI-format dicts, shaped. The dicts that stay as they are come back as the same objects.

use agentkit_core::shape::list::replay;
use agentkit_core::shape::plan::{Cost, Room};
use agentkit_core::shape::seams;
use agentkit_core::shape::unit::{EMPTY_RESULT, EMPTY_USER, Level, NO_RESULT, line_text};
use agentkit_core::shape::wire::{PER_CALL, PER_MESSAGE};
use agentkit_core::tokens::chars_by_four;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use std::collections::HashSet;

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
    shown: Vec<Shown<'py>>,
    /// What the stubs name: the first message's place in the list.
    at: usize,
    cost: Cost,
    /// It holds something worth shortening.
    large: bool,
}

struct Walk<'py> {
    py: Python<'py>,
    count: Count<'py>,
    image_tokens: usize,
    /// Texts above this many bytes are worth shortening.
    large_above: usize,
    /// The message being read holds one.
    large: bool,
    verbatim: bool,
    max_tool_result: usize,
    roles: [usize; 3],
    used: HashSet<String>,
    units: Vec<Unit<'py>>,
    /// Calls of the last unit that wait for their results: id as stored, as shown.
    open: Vec<(String, String)>,
    /// The unit they are in.
    open_unit: usize,
}

fn string<'py>(
    dict: &Bound<'py, PyDict>,
    key: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyString>>> {
    Ok(dict
        .get_item(key)?
        .and_then(|value| value.cast_into::<PyString>().ok()))
}

impl<'py> Walk<'py> {
    fn role_cost(&self, role: usize) -> usize {
        self.roles[role] + PER_MESSAGE
    }

    /// Text and cost of a message's content; the text is there when it is one string.
    fn content(
        &mut self,
        message: &Bound<'py, PyDict>,
    ) -> PyResult<(Option<Bound<'py, PyString>>, usize, bool)> {
        let Some(content) = message.get_item(intern!(self.py, "content"))? else {
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
        Ok((None, self.content_tokens(message)?, empty))
    }

    fn content_tokens(&self, message: &Bound<'py, PyDict>) -> PyResult<usize> {
        let Some(content) = message.get_item(intern!(self.py, "content"))? else {
            return Ok(0);
        };
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
                Err(_) => part.cast_into::<PyString>().ok(),
            };
            tokens += match text {
                Some(text) => self
                    .count
                    .text(text.extract::<TextArg<'_, '_>>()?.as_str())?,
                None => self.image_tokens,
            };
        }
        Ok(tokens)
    }

    fn name(&self, message: &Bound<'py, PyDict>) -> PyResult<usize> {
        match string(message, intern!(self.py, "name"))? {
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
            shown: vec![shown],
        });
    }

    /// Answers what is still open: no result can come any more.
    fn close(&mut self) -> PyResult<()> {
        let open = std::mem::take(&mut self.open);
        if open.is_empty() {
            return Ok(());
        }
        let tokens = self.count.text(NO_RESULT)? + self.role_cost(2);
        for (_, id) in open {
            let dict = self.made("tool", NO_RESULT)?;
            dict.set_item(intern!(self.py, "tool_call_id"), id)?;
            if let Some(unit) = self.units.get_mut(self.open_unit) {
                unit.shown.push((dict, tokens));
                unit.cost.full += tokens;
            }
        }
        Ok(())
    }

    fn user(&mut self, at: usize, message: Bound<'py, PyDict>) -> PyResult<()> {
        self.close()?;
        let (_, tokens, empty) = self.content(&message)?;
        let cost = Cost {
            user: true,
            messages: 1,
            ..Cost::default()
        };
        let shown = if empty {
            let tokens = self.count.text(EMPTY_USER)? + self.role_cost(0);
            (self.with_content(&message, EMPTY_USER)?, tokens)
        } else {
            let tokens = tokens + self.name(&message)? + self.role_cost(0);
            (message, tokens)
        };
        self.push(at, shown, cost);
        Ok(())
    }

    /// A message of a role that cannot stand where it does.
    fn context(&mut self, at: usize, head: &str, text: &str) -> PyResult<()> {
        let text = format!("{head}\n{text}");
        let text = if self.verbatim {
            text.into()
        } else {
            seams::neutralize(&text)
        };
        let tokens = self.count.text(&text)? + self.role_cost(0);
        let dict = self.made("user", &text)?;
        self.push(at, (dict, tokens), Cost::default());
        Ok(())
    }

    fn assistant(&mut self, at: usize, mut message: Bound<'py, PyDict>) -> PyResult<()> {
        self.close()?;
        let py = self.py;
        let (text, mut tokens, empty) = self.content(&message)?;
        let calls = message
            .get_item(intern!(py, "tool_calls"))?
            .and_then(|calls| calls.cast_into::<PyList>().ok())
            .filter(|calls| !calls.is_empty());
        if empty && calls.is_none() {
            return Ok(());
        }
        // Two texts in a row are one message.
        if let Some(last) = self.units.last_mut()
            && last.cost.exchange
            && last.cost.calls == 0
            && let Some((older, _)) = last.shown.last()
        {
            let older = older.clone();
            let (old_text, _, _) = self.content(&older)?;
            let texts = [old_text, text.clone()];
            let both: PyResult<Vec<String>> = texts
                .into_iter()
                .flatten()
                .map(|text| Ok(text.extract::<TextArg<'_, '_>>()?.as_str().to_owned()))
                .collect();
            let joined = both?
                .into_iter()
                .filter(|text| !text.trim().is_empty())
                .collect::<Vec<_>>()
                .join("\n\n");
            tokens = self.count.text(&joined)?;
            message = self.with_content(&message, &joined)?;
            self.units.pop();
        }
        let mut cost = Cost {
            exchange: true,
            messages: usize::from(!empty),
            ..Cost::default()
        };
        tokens += self.name(&message)? + self.role_cost(1);
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
            let mut id = stored.clone();
            let mut salt = 0;
            while id.is_empty() || !self.used.insert(id.clone()) {
                id = format!("call_{at}_{index}_{salt}");
                salt += 1;
            }
            let function = call
                .get_item(intern!(py, "function"))?
                .and_then(|function| function.cast_into::<PyDict>().ok())
                .unwrap_or_else(|| call.clone());
            if let Some(name) = string(&function, intern!(py, "name"))? {
                tokens += self
                    .count
                    .text(name.extract::<TextArg<'_, '_>>()?.as_str())?;
            }
            let raw = string(&function, intern!(py, "arguments"))?;
            let raw = match &raw {
                Some(raw) => raw.extract::<TextArg<'_, '_>>()?.as_str().to_owned(),
                None => String::new(),
            };
            let arguments = seams::arguments(&raw);
            tokens += self.count.text(&arguments)? + PER_CALL;
            self.large |= arguments.len() > self.large_above;
            if id != stored || arguments != raw {
                let fresh_call = call.copy()?;
                fresh_call.set_item(intern!(py, "id"), &id)?;
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
            self.open.push((stored, id));
        }
        Ok((repaired, tokens))
    }

    fn tool(&mut self, at: usize, mut message: Bound<'py, PyDict>) -> PyResult<()> {
        let py = self.py;
        let call_id = string(&message, intern!(py, "tool_call_id"))?;
        let call_id = match &call_id {
            Some(id) => id.extract::<TextArg<'_, '_>>()?.as_str().to_owned(),
            None => String::new(),
        };
        let (text, mut tokens, empty) = self.content(&message)?;
        let place = self
            .open
            .iter()
            .position(|(stored, _)| *stored == call_id || call_id.is_empty());
        let Some(place) = place else {
            let text = match &text {
                Some(text) => text.extract::<TextArg<'_, '_>>()?.as_str().to_owned(),
                None => String::new(),
            };
            let head = format!("[late result of call {call_id}]");
            return self.context(at, &head, &text);
        };
        let (stored, id) = self.open.remove(place);
        if let Some(text) = &text {
            let arg: TextArg<'_, '_> = text.extract()?;
            let whole = arg.as_str();
            let cut = seams::truncate_middle(whole, self.max_tool_result, "");
            let safe = if self.verbatim {
                cut.clone()
            } else {
                seams::neutralize(&cut)
            };
            if empty || *safe != *whole {
                let shown = if empty { EMPTY_RESULT } else { &safe };
                tokens = self.count.text(shown)?;
                message = self.with_content(&message, shown)?;
            }
        } else if empty {
            tokens = self.count.text(EMPTY_RESULT)?;
            message = self.with_content(&message, EMPTY_RESULT)?;
        }
        if id != stored || call_id != id {
            message = message.copy()?;
            message.set_item(intern!(py, "tool_call_id"), id)?;
        }
        tokens += self.name(&message)? + self.role_cost(2);
        if let Some(unit) = self.units.get_mut(self.open_unit) {
            unit.shown.push((message, tokens));
            unit.cost.full += tokens;
            unit.large |= std::mem::take(&mut self.large);
        }
        Ok(())
    }

    /// A unit with its large texts shortened to `keep` bytes.
    fn shortened(&self, unit: &Unit<'py>, above: usize, keep: usize) -> PyResult<Vec<Shown<'py>>> {
        let mut out = Vec::with_capacity(unit.shown.len());
        for (offset, (message, tokens)) in unit.shown.iter().enumerate() {
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
        verbatim: options.verbatim,
        max_tool_result: options.max_tool_result,
        roles,
        used: HashSet::new(),
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
        let role = string(&message, intern!(py, "role"))?
            .ok_or_else(|| PyValueError::new_err(format!("messages[{at}] has no role")))?;
        let role = role.to_cow()?;
        match &*role {
            "assistant" => walk.assistant(at, message)?,
            "tool" | "function" => walk.tool(at, message)?,
            "user" => walk.user(at, message)?,
            // The system prompt is first and once; what a host says so later is context.
            "system" | "developer" if head.is_empty() && walk.units.is_empty() => {
                let (_, tokens, _) = walk.content(&message)?;
                let cost = tokens + walk.count.text(&role)? + walk.name(&message)? + PER_MESSAGE;
                head.push((message, cost));
            }
            other => {
                walk.close()?;
                let (text, _, _) = walk.content(&message)?;
                let text = match &text {
                    Some(text) => text.extract::<TextArg<'_, '_>>()?.as_str().to_owned(),
                    None => String::new(),
                };
                walk.context(at, &format!("[{other}]"), &text)?;
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
            for (message, _) in &unit.shown {
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
                for (message, _) in &unit.shown {
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
            Level::Out => hidden += unit.shown.len(),
        }
        if Some(index) == last_out && !silent {
            out.append(walk.made("user", &line_text(hidden))?)?;
        }
    }
    Ok(out)
}
