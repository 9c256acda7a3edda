//! Reading a reply as it comes. The one machine behind `HeredocStream` and `parse_tool_calls`.

use std::borrow::Cow;

use memchr::memmem;

use crate::json::loose::{Dialect, Fault, Progress, Scanner, is_blank, is_space};
use crate::json::skim::{LineMark, Skim, Skimmed, line_mark};
use crate::json::{FaultKind, Value};

use super::parse::{Call, Problem, Reply};

const MARK: &str = "@@";
const CALL: &str = "@@call";
const END: &[u8] = b"@@end";

/// What became certain by new text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Text that is no part of a call.
    Prose(String),
    /// A call began. `index` is the place it will have among the reply's calls.
    Started { index: usize, name: String },
    /// The call `index` is complete.
    Ready { index: usize, call: Call },
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Prose,
    /// After `@@call` and a blank, before the object.
    Header,
    Arguments(Box<Scanner>),
    /// In a block that cannot be read, on the way to its end.
    Bad(Box<(Skim, Fault)>),
    /// After the object, where `@@end` may come.
    Tail,
    /// After a block, on its last line.
    LineRest,
}

/// Events, where someone listens.
pub(crate) type Events = Option<Vec<Event>>;

/// The scan of one reply. It is given the same text again with more at its end, less `forget`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    state: State,
    /// The next byte to decide about.
    at: usize,
    /// How far the search that waits for more text has come.
    scan: usize,
    mid_line: bool,
    /// Bytes of the reply that are forgotten.
    base: usize,
    block: usize,
    name: Option<String>,
    reply: Reply,
    /// Bytes of `reply.prose` up to its last visible character, and those given out as events.
    solid: usize,
    released: usize,
}

impl Machine {
    /// Bytes at the front of the text that are decided and no longer needed.
    fn decided(&self) -> usize {
        match self.state {
            State::Prose => self.at,
            _ => self.block,
        }
    }

    /// The text will be given without its first `count` bytes from now on. Only between blocks.
    fn forget(&mut self, count: usize) {
        self.base += count;
        self.at -= count;
        self.scan = self.scan.saturating_sub(count);
    }

    pub(crate) fn into_reply(mut self) -> Reply {
        self.reply.prose.truncate(self.solid);
        self.reply
    }

    /// Decides as much as can be decided. `last` says that no more text comes.
    pub(crate) fn run(&mut self, text: &str, last: bool, events: &mut Events) {
        while match self.state {
            State::Prose => self.prose(text, last, events),
            State::Header => self.header(text, last, events),
            State::Arguments(_) => self.arguments(text, last, events),
            State::Bad(_) => self.bad(text, last),
            State::Tail => self.tail(text, last),
            State::LineRest => self.line_rest(text, last),
        } {}
        self.release(events);
    }

    fn release(&mut self, events: &mut Events) {
        if let Some(events) = events
            && self.solid > self.released
        {
            let prose = &self.reply.prose[self.released..self.solid];
            events.push(Event::Prose(prose.to_owned()));
            self.released = self.solid;
        }
    }

    fn add_prose(&mut self, text: &str, to: usize) {
        let piece = &text[self.at..to];
        self.at = to;
        if let Some(&byte) = piece.as_bytes().last() {
            self.mid_line = byte != b'\n';
        }
        let piece = if self.reply.prose.is_empty() {
            piece.trim_start_matches(is_space)
        } else {
            piece
        };
        let visible = piece.trim_end_matches(is_space).len();
        if visible > 0 {
            self.solid = self.reply.prose.len() + visible;
        }
        self.reply.prose.push_str(piece);
    }

    /// Takes text up to the next block. `true` where a block begins.
    fn prose(&mut self, text: &str, last: bool, events: &mut Events) -> bool {
        let bytes = text.as_bytes();
        let line_starts = |at: usize| {
            if at == self.at {
                !self.mid_line
            } else {
                bytes[at - 1] == b'\n'
            }
        };
        let after_block = !(self.reply.calls.is_empty() && self.reply.problems.is_empty());
        let mut from = self.at;
        let mut hold = None;
        while let Some(offset) = memmem::find(&bytes[from..], MARK.as_bytes()) {
            let at = from + offset;
            from = at + MARK.len();
            if !line_starts(at) {
                continue;
            }
            match line_mark(&bytes[at..], last) {
                LineMark::Call => {
                    self.add_prose(text, at);
                    self.release(events);
                    self.block = at;
                    self.at = at + CALL.len() + 1;
                    self.scan = self.at;
                    self.name = None;
                    self.state = State::Header;
                    return true;
                }
                // A terminator that comes late, after words behind the object, is no prose either.
                LineMark::End if after_block => {
                    self.add_prose(text, at);
                    self.block = at;
                    self.at = at + END.len();
                    self.scan = self.at;
                    self.state = State::LineRest;
                    return true;
                }
                LineMark::Unknown if after_block || bytes[at..].starts_with(CALL.as_bytes()) => {
                    hold = hold.or(Some(at));
                }
                _ => {}
            }
        }
        // The last bytes may be the beginning of a mark. After a block, a cut `@@end` is dropped.
        let cut_mark = |mark: &str| {
            (1..mark.len()).find_map(|count| {
                let at = bytes.len().checked_sub(count)?;
                let held = at >= self.at && bytes[at..] == mark.as_bytes()[..count];
                (held && line_starts(at)).then_some(at)
            })
        };
        let cut_end = after_block.then(|| cut_mark("@@end")).flatten();
        let to = if last {
            cut_end
        } else {
            hold.or(cut_end).or_else(|| cut_mark(CALL))
        };
        self.add_prose(text, to.unwrap_or(text.len()));
        false
    }

    /// Reads the name and goes to the `{`.
    fn header(&mut self, text: &str, last: bool, events: &mut Events) -> bool {
        let bytes = text.as_bytes();
        if self.name.is_none() {
            self.at += bytes[self.at..]
                .iter()
                .take_while(|&&byte| byte == b' ' || byte == b'\t')
                .count();
            if self.at == bytes.len() {
                return self.cut_in_header(text, last, self.at);
            }
            let read = if bytes[self.at] == b'"' {
                self.quoted_name(text)
            } else {
                self.plain_name(text)
            };
            let Some((name, end)) = read else {
                return self.cut_in_header(text, last, self.at);
            };
            let Some(name) = name else {
                return self.give_up(text, end, "a tool's name was expected after `@@call`");
            };
            self.at = end;
            self.scan = end;
            if let Some(events) = events {
                events.push(Event::Started {
                    index: self.reply.calls.len(),
                    name: name.clone(),
                });
            }
            self.name = Some(name);
        }
        self.at += bytes[self.at..]
            .iter()
            .take_while(|&&byte| is_blank(byte))
            .count();
        match bytes.get(self.at) {
            None => self.cut_in_header(text, last, self.at),
            Some(b'{') => {
                let scanner = Scanner::new(Dialect::Heredoc, self.at);
                self.state = State::Arguments(Box::new(scanner));
                true
            }
            Some(_) => self.give_up(text, self.at, "`{` was expected after the tool's name"),
        }
    }

    fn plain_name(&mut self, text: &str) -> Option<(Option<String>, usize)> {
        let from = self.scan.max(self.at);
        match text.as_bytes()[from..]
            .iter()
            .position(|&byte| is_blank(byte) || byte == b'{')
        {
            None => {
                self.scan = text.len();
                None
            }
            Some(offset) => {
                let end = from + offset;
                let name = &text[self.at..end];
                Some(((!name.is_empty()).then(|| name.to_owned()), end))
            }
        }
    }

    /// A name that is no plain word is written as a JSON string. One that cannot be read gives no name.
    fn quoted_name(&mut self, text: &str) -> Option<(Option<String>, usize)> {
        // A name is one line, so the wait for its end is bounded by the line's.
        let from = self.scan.max(self.at + 1);
        let mut at = from;
        while let Some(&byte) = text.as_bytes().get(at) {
            match byte {
                b'\\' if at + 1 == text.len() => break,
                b'\\' => at += 2,
                b'\n' => return Some((None, at)),
                b'"' => {
                    let name = Value::parse(&text[self.at..=at]).ok();
                    let name = name.as_ref().and_then(Value::as_str).map(str::to_owned);
                    return Some((name, at + 1));
                }
                _ => at += 1,
            }
        }
        self.scan = at.min(text.len());
        None
    }

    /// The text ends inside the header. A reply that ends so is truncated.
    fn cut_in_header(&mut self, text: &str, last: bool, name_at: usize) -> bool {
        if last {
            let partial = || text[name_at..].trim_end().to_owned();
            let name = self.name.take().unwrap_or_else(partial);
            self.truncated(name, text.len());
        }
        false
    }

    fn truncated(&mut self, name: String, end: usize) {
        self.reply.problems.push(Problem::truncated(
            name,
            self.base + self.block,
            self.base + end,
        ));
        self.at = end;
        self.state = State::Prose;
    }

    fn give_up(&mut self, text: &str, at: usize, reason: &'static str) -> bool {
        let fault = Fault {
            kind: FaultKind::Malformed,
            at,
            reason,
            inside: None,
        };
        let skim = Skim::new(text, &fault, 0, true);
        self.state = State::Bad(Box::new((skim, fault)));
        true
    }

    fn arguments(&mut self, text: &str, last: bool, events: &mut Events) -> bool {
        let State::Arguments(scanner) = &mut self.state else {
            return true;
        };
        match scanner.advance(text, last) {
            Progress::More => false,
            Progress::Fault(fault) if fault.kind == FaultKind::Truncated => {
                let name = self.name.take().unwrap_or_default();
                self.truncated(name, text.len());
                false
            }
            Progress::Fault(fault) => {
                let skim = Skim::new(text, &fault, scanner.depth(), true);
                self.state = State::Bad(Box::new((skim, fault)));
                true
            }
            Progress::Done => {
                self.at = scanner.end();
                self.scan = self.at;
                let State::Arguments(scanner) = std::mem::replace(&mut self.state, State::Tail)
                else {
                    return true;
                };
                let arguments = match scanner.strict(text) {
                    Cow::Borrowed(slice) => slice.to_owned(),
                    Cow::Owned(owned) => owned,
                };
                let call = Call {
                    name: self.name.take().unwrap_or_default(),
                    arguments,
                };
                if let Some(events) = events {
                    events.push(Event::Ready {
                        index: self.reply.calls.len(),
                        call: call.clone(),
                    });
                }
                self.reply.calls.push(call);
                true
            }
        }
    }

    fn bad(&mut self, text: &str, last: bool) -> bool {
        let State::Bad(bad) = &mut self.state else {
            return true;
        };
        let skimmed = bad.0.advance(text, last);
        if skimmed == Skimmed::More && !last {
            return false;
        }
        let name = self.name.take().unwrap_or_default();
        match skimmed {
            Skimmed::More => {
                self.truncated(name, text.len());
                false
            }
            Skimmed::Next(at) => {
                self.truncated(name, at);
                self.mid_line = false;
                true
            }
            Skimmed::Closed(at) => {
                self.reply.problems.push(Problem::malformed(
                    name,
                    self.base + self.block,
                    self.base + bad.1.at,
                    bad.1.reason,
                ));
                self.at = at;
                self.scan = at;
                self.state = State::Tail;
                true
            }
        }
    }

    /// Takes the terminator, with its line. An object without one is complete all the same.
    fn tail(&mut self, text: &str, last: bool) -> bool {
        let bytes = text.as_bytes();
        self.scan += bytes[self.scan..]
            .iter()
            .take_while(|&&byte| is_blank(byte))
            .count();
        let rest = &bytes[self.scan..];
        if rest.len() < END.len() && END.starts_with(rest) {
            // Only blanks, or a terminator that is cut.
            if last {
                self.at = text.len();
                self.state = State::Prose;
            }
            return false;
        }
        match line_mark(rest, last) {
            LineMark::Unknown if rest.starts_with(END) => return false,
            LineMark::End => {
                // Another one may follow on the same line, which is no prose either.
                self.at = self.scan + END.len();
                self.scan = self.at;
                return true;
            }
            _ => {}
        }
        self.scan = self.at;
        self.state = State::LineRest;
        true
    }

    /// Takes the rest of a block's last line, where it is blank.
    fn line_rest(&mut self, text: &str, last: bool) -> bool {
        let bytes = text.as_bytes();
        self.scan += bytes[self.scan..]
            .iter()
            .take_while(|&&byte| matches!(byte, b' ' | b'\t' | b'\r'))
            .count();
        match bytes.get(self.scan) {
            Some(b'\n') => {
                self.at = self.scan + 1;
                self.mid_line = false;
            }
            // More blanks, or the line break, may come.
            None if !last => return false,
            _ => self.mid_line = true,
        }
        self.state = State::Prose;
        true
    }
}

/// Reads a reply piece by piece.
///
/// The events and the final reply together equal `parse_tool_calls` on the whole text, however it was cut.
/// Text is kept only from the first block that is not complete.
#[derive(Clone, Debug, Default)]
pub struct HeredocStream {
    text: String,
    machine: Machine,
}

impl HeredocStream {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes new text and tells what became certain by it.
    pub fn push(&mut self, delta: &str) -> Vec<Event> {
        let mut events = Some(Vec::new());
        self.text.push_str(delta);
        self.machine.run(&self.text, false, &mut events);
        let decided = self.machine.decided();
        if decided > 0 && matches!(self.machine.state, State::Prose) {
            self.machine.forget(decided);
            self.text.drain(..decided);
        }
        events.unwrap_or_default()
    }

    /// The whole reply, and how many bytes of its prose were given out before.
    pub fn finish(mut self) -> (Reply, usize) {
        let released = self.machine.released;
        self.machine.run(&self.text, true, &mut None);
        (self.machine.into_reply(), released)
    }
}
