//! Units: the whole things that are shown, shortened or folded together.

use super::names::Name;
use super::wire::Messages;

/// How much of a unit a window shows. Each depends on the unit alone, never on the room there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    #[default]
    Full,
    /// Large entries are pointers with a head.
    Stub,
    /// Large entries are pointers.
    Bare,
    /// Not shown.
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitKind {
    User,
    /// Assistant text, its calls, their results.
    Exchange,
    Notice,
    Marker,
}

/// An entry, as far as folding and shortening need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub created_at: i64,
    pub id: Name,
    /// The call's id as it is shown; empty where the entry is no call.
    pub call: Name,
    /// Of its text in full, so that nothing is counted twice.
    pub tokens: u32,
}

/// Entries of a unit: nearly always one, or those of an exchange.
#[derive(Clone, Debug)]
pub enum Metas {
    One(Meta),
    Many(Box<[Meta]>),
}

impl Metas {
    pub fn as_slice(&self) -> &[Meta] {
        match self {
            Self::One(meta) => std::slice::from_ref(meta),
            Self::Many(metas) => metas,
        }
    }

    pub fn as_mut_slice(&mut self) -> &mut [Meta] {
        match self {
            Self::One(meta) => std::slice::from_mut(meta),
            Self::Many(metas) => metas,
        }
    }
}

/// Messages of a unit at one level.
#[derive(Clone, Debug)]
pub enum Body {
    Own(Box<Messages>),
    /// They are in the log, from this message on.
    Log(usize),
}

#[derive(Clone, Debug)]
pub struct Form {
    pub body: Body,
    pub count: usize,
    pub tokens: usize,
}

impl Form {
    pub fn new(messages: Messages) -> Self {
        Self {
            count: messages.len(),
            tokens: messages.tokens(),
            body: Body::Own(Box::new(messages)),
        }
    }
}

/// The shorter forms of a unit that has large entries.
#[derive(Clone, Debug, Default)]
pub struct Shorter {
    /// `None` where it would be the same as the full form.
    pub stub: Option<Form>,
    /// `None` where it would be the same as the stub.
    pub bare: Option<Form>,
}

#[derive(Clone, Debug)]
pub struct Unit {
    pub kind: UnitKind,
    pub level: Level,
    pub metas: Metas,
    pub full: Form,
    pub short: Option<Box<Shorter>>,
    /// It has large entries, and its shorter forms are still to be made.
    pub pending: bool,
    /// With reasoning, while the unit is in the running tool loop.
    pub reasoned: Option<Box<Form>>,
    /// Texts that count as messages of the tail.
    pub messages: u32,
    pub has_calls: bool,
    pub unanswered: bool,
    /// One of the first user messages, which stay verbatim.
    pub kept: bool,
    /// A window with it was given out.
    pub sent: bool,
}

impl Unit {
    pub fn new(kind: UnitKind, metas: Metas, full: Form) -> Self {
        Self {
            kind,
            level: Level::Full,
            metas,
            full,
            short: None,
            pending: false,
            reasoned: None,
            messages: u32::from(kind == UnitKind::User),
            has_calls: false,
            unanswered: false,
            kept: false,
            sent: false,
        }
    }

    /// Holds the place of an exchange that is not rendered yet.
    pub fn placeholder() -> Self {
        Self::new(
            UnitKind::Exchange,
            Metas::Many(Box::default()),
            Form {
                body: Body::Log(0),
                count: 0,
                tokens: 0,
            },
        )
    }

    pub fn stub(&self) -> Option<&Form> {
        self.short.as_deref().and_then(|short| short.stub.as_ref())
    }

    pub fn bare(&self) -> Option<&Form> {
        self.short.as_deref().and_then(|short| short.bare.as_ref())
    }

    pub fn form_at(&self, level: Level) -> &Form {
        match level {
            Level::Full => self.reasoned.as_deref().unwrap_or(&self.full),
            Level::Stub => self.stub().unwrap_or(&self.full),
            Level::Bare | Level::Out => self.bare().or(self.stub()).unwrap_or(&self.full),
        }
    }

    pub fn form(&self) -> &Form {
        self.form_at(self.level)
    }

    pub fn tokens_at(&self, level: Level) -> usize {
        if level == Level::Out {
            0
        } else {
            self.form_at(level).tokens
        }
    }

    /// Whether a stub of it would be something else than what is shown now.
    pub fn may_shrink(&self) -> bool {
        self.level == Level::Full && !self.kept && (self.pending || self.stub().is_some())
    }

    pub fn first(&self) -> Option<&Meta> {
        self.metas.as_slice().first()
    }
}
