//! Contents of a message: one text, or parts of many kinds.

use std::borrow::Cow;

use super::host::{Host, Key, Kind};

/// A piece of a message's content.
pub enum Piece<V> {
    Text(String),
    Other(V),
}

/// Reads and counts contents.
pub struct Contents<'h, H> {
    pub host: &'h H,
    pub image_tokens: usize,
}

impl<H: Host> Contents<'_, H> {
    pub fn count(&self, text: &str) -> Result<usize, H::Error> {
        if text.is_empty() {
            return Ok(0);
        }
        self.host.count(text)
    }

    pub fn tokens(&self, content: &H::Value) -> Result<usize, H::Error> {
        if let Some(text) = self.host.text(content)? {
            return self.count(&text);
        }
        if self.host.kind(content) != Kind::List {
            return Ok(0);
        }
        let mut tokens = 0;
        for part in self.host.items(content)? {
            tokens += match self.part_text(&part)? {
                Some(text) => match self.host.text(&text)? {
                    Some(text) => self.count(&text)?,
                    None => 0,
                },
                None => self.part_tokens(&part)?,
            };
        }
        Ok(tokens)
    }

    pub fn message_tokens(&self, message: &H::Value) -> Result<usize, H::Error> {
        match self.host.get(message, Key::Content)? {
            Some(content) => self.tokens(&content),
            None => Ok(0),
        }
    }

    /// The text of a part, where it has one.
    pub fn part_text(&self, part: &H::Value) -> Result<Option<H::Value>, H::Error> {
        let text = match self.host.kind(part) {
            Kind::Dict => self.host.get(part, Key::Text)?,
            _ => Some(part.clone()),
        };
        Ok(text.filter(|text| self.host.kind(text) == Kind::Text))
    }

    /// A part without text of its own: thoughts, calls and results of other formats by their texts,
    /// everything else as an image.
    fn part_tokens(&self, part: &H::Value) -> Result<usize, H::Error> {
        if self.host.kind(part) != Kind::Dict {
            return Ok(self.image_tokens);
        }
        let kind = self.host.get(part, Key::Type)?;
        let kind = match &kind {
            Some(kind) => self.host.text(kind)?.unwrap_or_default(),
            None => Cow::Borrowed(""),
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
    fn inner_tokens(&self, value: &H::Value, depth: usize) -> Result<usize, H::Error> {
        if depth > 32 {
            return Ok(0);
        }
        let mut tokens = 0;
        match self.host.kind(value) {
            Kind::Text => {
                if let Some(text) = self.host.text(value)? {
                    tokens = self.count(&text)?;
                }
            }
            Kind::Dict => {
                if let Some(kind) = self.host.get(value, Key::Type)?
                    && let Some(kind) = self.host.text(&kind)?
                    && kind.contains("image")
                {
                    return Ok(self.image_tokens);
                }
                for (key, value) in self.host.entries(value) {
                    tokens += self.inner_tokens(&key, depth + 1)?;
                    tokens += self.inner_tokens(&value, depth + 1)?;
                }
            }
            Kind::List => {
                for value in self.host.items(value)? {
                    tokens += self.inner_tokens(&value, depth + 1)?;
                }
            }
            Kind::None => {}
            Kind::Tuple | Kind::Other => tokens = 1,
        }
        Ok(tokens)
    }

    /// The content piece by piece, whichever of its two forms it has.
    pub fn pieces(&self, message: &H::Value) -> Result<Vec<Piece<H::Value>>, H::Error> {
        let Some(content) = self.host.get(message, Key::Content)? else {
            return Ok(Vec::new());
        };
        if let Some(whole) = self.host.text(&content)? {
            return Ok(vec![Piece::Text(whole.into_owned())]);
        }
        if self.host.kind(&content) != Kind::List {
            return Ok(Vec::new());
        }
        let mut pieces = Vec::new();
        for part in self.host.items(&content)? {
            let inner = self.part_text(&part)?;
            let inner = match &inner {
                Some(inner) => self.host.text(inner)?,
                None => None,
            };
            pieces.push(match inner {
                Some(inner) => Piece::Text(inner.into_owned()),
                None => Piece::Other(part),
            });
        }
        Ok(pieces)
    }

    /// A message of ours.
    pub fn made(&self, role: &str, text: &str) -> Result<H::Value, H::Error> {
        let dict = self.host.new_dict();
        self.host.set(&dict, Key::Role, self.host.new_text(role))?;
        self.host
            .set(&dict, Key::Content, self.host.new_text(text))?;
        Ok(dict)
    }

    pub fn text_part(&self, text: &str) -> Result<H::Value, H::Error> {
        let part = self.host.new_dict();
        self.host
            .set(&part, Key::Type, self.host.new_text("text"))?;
        self.host.set(&part, Key::Text, self.host.new_text(text))?;
        Ok(part)
    }

    /// A copy of the dict with another value of one key.
    pub fn with(&self, dict: &H::Value, key: Key, value: H::Value) -> Result<H::Value, H::Error> {
        let copy = self.host.copy(dict)?;
        self.host.set(&copy, key, value)?;
        Ok(copy)
    }

    pub fn with_content(&self, message: &H::Value, text: &str) -> Result<H::Value, H::Error> {
        self.with(message, Key::Content, self.host.new_text(text))
    }

    /// Two messages of the assistant as one, with the keys of both, and the cost of its content.
    pub fn joined(
        &self,
        older: &H::Value,
        newer: &H::Value,
    ) -> Result<(H::Value, usize), H::Error> {
        let both = self.host.copy(older)?;
        self.host.update(&both, newer)?;
        let contents = [
            self.host.get(older, Key::Content)?,
            self.host.get(newer, Key::Content)?,
        ];
        let plain = contents.iter().flatten().all(|content| {
            let kind = self.host.kind(content);
            kind == Kind::None || kind == Kind::Text
        });
        let mut texts = Vec::new();
        let mut parts = Vec::new();
        for content in contents.iter().flatten() {
            match self.host.kind(content) {
                Kind::List => parts.extend(self.host.items(content)?),
                Kind::Text => {
                    let text = self.host.text(content)?.unwrap_or_default();
                    if text.trim().is_empty() {
                    } else if plain {
                        texts.push(text);
                    } else {
                        parts.push(self.text_part(&text)?);
                    }
                }
                _ => {}
            }
        }
        let content = if plain {
            self.host.new_text(&texts.join("\n\n"))
        } else {
            self.host.new_list(parts)?
        };
        self.host.set(&both, Key::Content, content)?;
        let tokens = self.message_tokens(&both)?;
        Ok((both, tokens))
    }
}
