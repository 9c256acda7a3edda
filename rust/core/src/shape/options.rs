//! The policy in numbers, with every absurd value already repaired.

/// What a transcript is shaped by. It does not change during a transcript's life.
#[derive(Clone, Debug)]
pub struct Options {
    /// 0: unbudgeted.
    pub budget: usize,
    /// What a restructure leaves free.
    pub headroom: usize,
    pub keep_messages: usize,
    pub keep_calls: usize,
    pub keep_first: usize,
    /// Entries above this many bytes are shortened once they are older; 0: only under pressure.
    pub lod_above: usize,
    pub always_lod: bool,
    /// Room for a summary's answer, in tokens; 0: a tenth of the target, at most 1,024.
    pub summary_tokens: usize,
    /// 0: no limit.
    pub max_tool_result: usize,
    pub heredoc: bool,
    /// Nothing is neutralized.
    pub verbatim: bool,
    pub image_tokens: usize,
    /// Reasoning of the running tool loop is part of its messages.
    pub reasoning: bool,
    /// … and of the count.
    pub count_reasoning: bool,
    /// Roles must alternate.
    pub alternate: bool,
    /// The template knows a system role.
    pub system_role: bool,
}

/// What a shortened entry keeps where the policy names no length.
const DEFAULT_KEEP: usize = 800;

impl Options {
    /// What a restructure comes down to, in tokens.
    pub fn target(&self) -> usize {
        // A headroom above nine tenths would leave nothing to show; it is taken for nine tenths.
        self.budget - self.headroom.min(self.budget - self.budget / 10)
    }

    pub fn may_stub(&self) -> bool {
        self.budget > 0 || self.always_lod
    }

    pub fn stub_above(&self) -> usize {
        let wanted = if self.lod_above == 0 {
            DEFAULT_KEEP
        } else {
            self.lod_above
        };
        if self.budget == 0 {
            return wanted;
        }
        // At four bytes a token, a stub takes at most half of the target.
        wanted.min((2 * self.target()).max(40))
    }

    /// How much of an entry its stub keeps, where the pointer takes `pointer` bytes. Pointer and head
    /// together take no more than the length above which entries are shortened, so that whatever is above it
    /// becomes smaller; a very small limit is for the head alone.
    pub fn stub_keep(&self, pointer: usize) -> usize {
        let above = self.stub_above();
        if self.lod_above == 0 || above < 3 * pointer {
            above
        } else {
            above - pointer
        }
    }

    /// Exchanges whose stub is larger than this get an even shorter form.
    pub fn bare_above_tokens(&self) -> usize {
        if self.budget == 0 {
            usize::MAX
        } else {
            self.target() / 8
        }
    }

    /// What a summary may take, in tokens.
    pub fn summary_limit(&self) -> usize {
        let wanted = match self.summary_tokens {
            0 if self.budget == 0 => 1024,
            0 => (self.target() / 10).min(1024),
            wanted if self.budget == 0 => wanted,
            wanted => wanted.min(self.target() / 4),
        };
        wanted.max(1)
    }
}
