//! The decision: what of a history that no longer fits is shortened, folded or left out.
//!
//! One deep step, taken rarely. Between two steps a window only grows at its end, so a prompt cache keeps
//! all of it; with windows growing from a low mark `l` to the budget `t`, every new token costs about
//! `1 + l / (t - l)` evaluations. Moving a border a little every turn costs four to five.

use super::unit::Level;

/// One unit, as far as the decision needs to know it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub full: usize,
    pub stub: usize,
    pub bare: usize,
    /// What was decided before; nothing is ever shown in more detail again.
    pub level: Level,
    pub user: bool,
    pub exchange: bool,
    /// Texts and tool rounds it counts as in the tail.
    pub messages: usize,
    pub calls: usize,
    /// The last round, with a call that may still be answered.
    pub pending: bool,
    /// A summary made before. The next one takes it in, wherever it stands.
    pub marker: bool,
}

impl Cost {
    pub fn at(&self, level: Level) -> usize {
        match level {
            Level::Full => self.full,
            Level::Stub => self.stub,
            Level::Bare => self.bare,
            Level::Out => 0,
        }
    }
}

/// The limits of a window, in tokens.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub budget: usize,
    /// What a step comes down to at most.
    pub target: usize,
    pub system: usize,
    pub tools: usize,
    /// The most a marker may take.
    pub marker: usize,
    /// The line that stands for what is left out.
    pub line: usize,
    pub keep_messages: usize,
    pub keep_calls: usize,
    pub keep_first: usize,
    /// Older entries are shortened (else only the excess of the tail is).
    pub shorten: bool,
}

/// What to do with what does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// Summarize it.
    Fold,
    /// Leave it out, deep enough that it need not be done again soon.
    LeaveOut,
    /// Leave out only what must be: a summary failed and will be tried again.
    Minimal,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub levels: Vec<Level>,
    /// Units that go into the marker, oldest first.
    pub fold: Vec<usize>,
    /// There is no room for the line.
    pub silent: bool,
}

/// The part that cannot be shortened is larger than the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    pub budget: usize,
    pub system: usize,
    pub tools: usize,
    pub user: usize,
}

/// Where the verbatim tail begins by the policy's counts.
pub fn tail_start(costs: &[Cost], keep_messages: usize, keep_calls: usize) -> usize {
    let (mut messages, mut calls) = (keep_messages, keep_calls);
    let mut start = costs.len();
    for (index, cost) in costs.iter().enumerate().rev() {
        if cost.messages > messages || cost.calls > calls {
            break;
        }
        messages -= cost.messages;
        calls -= cost.calls;
        start = index;
    }
    start
}

pub fn newest_user(costs: &[Cost]) -> Option<usize> {
    costs.iter().rposition(|cost| cost.user)
}

/// The first user messages, which stay verbatim.
pub fn first_users(costs: &[Cost], count: usize) -> Vec<usize> {
    let users = costs.iter().enumerate().filter(|(_, cost)| cost.user);
    users.map(|(index, _)| index).take(count).collect()
}

struct State<'a> {
    costs: &'a [Cost],
    room: &'a Room,
    levels: Vec<Level>,
    folded: Vec<bool>,
    size: usize,
    folding: bool,
}

impl State<'_> {
    fn total(&self) -> usize {
        let out = self.levels.contains(&Level::Out);
        self.size
            + if self.folding { self.room.marker } else { 0 }
            + if out { self.room.line } else { 0 }
    }

    fn lower(&mut self, index: usize, level: Level) {
        let old = self.levels[index];
        if self.folded[index] || level <= old {
            return;
        }
        self.size = self.size - self.costs[index].at(old) + self.costs[index].at(level);
        self.levels[index] = level;
    }

    /// Takes a unit out of sight: into the marker, or behind the line.
    fn remove(&mut self, index: usize) {
        if self.folding && !self.costs[index].pending {
            if !self.folded[index] {
                self.size -= self.costs[index].at(self.levels[index]);
                self.folded[index] = true;
                // What was left out before is in the marker now.
                self.levels[index] = Level::Stub;
            }
        } else {
            self.lower(index, Level::Out);
        }
    }
}

/// One step that brings the window from above the budget to at most the target where that is possible, and
/// within the budget always.
pub fn decide(costs: &[Cost], room: &Room, means: Means) -> Result<Plan, Overflow> {
    let newest = newest_user(costs);
    let user = newest.map_or(0, |index| costs[index].full);
    let fixed = room.system + room.tools + user;
    if fixed > room.budget {
        return Err(Overflow {
            budget: room.budget,
            system: room.system,
            tools: room.tools,
            user,
        });
    }
    let last = costs.iter().rposition(|cost| cost.exchange);
    let firsts: Vec<usize> = first_users(costs, room.keep_first)
        .into_iter()
        .filter(|index| Some(*index) != newest)
        .collect();
    let kept = |index: usize| Some(index) == newest || Some(index) == last;

    let by_count = tail_start(costs, room.keep_messages, room.keep_calls);
    let mut tail = by_count;
    let mut excess: usize = (tail..costs.len())
        .filter(|index| !kept(*index))
        .map(|index| costs[index].at(costs[index].level))
        .sum();
    while excess > room.target / 4 && tail < costs.len() {
        if !kept(tail) {
            excess -= costs[tail].at(costs[tail].level);
        }
        tail += 1;
    }
    // A tail that is cut anyway begins with a user's message where it has one: half a turn tells little, and
    // at a budget of 16,000 tokens the smaller window saves 0.1 evaluations per new token.
    if tail > by_count
        && let Some(turn) = (tail..costs.len()).find(|index| costs[*index].user)
    {
        tail = turn;
    }

    let mut state = State {
        costs,
        room,
        levels: costs.iter().map(|cost| cost.level).collect(),
        folded: vec![false; costs.len()],
        size: room.system
            + room.tools
            + costs.iter().map(|cost| cost.at(cost.level)).sum::<usize>(),
        folding: false,
    };
    for index in 0..tail {
        if !kept(index) && !firsts.contains(&index) && (room.shorten || index >= by_count) {
            state.lower(index, Level::Stub);
        }
    }
    // What is newer than the newest exchange is shortened, but not taken out before it must be.
    let border = last.map_or(tail, |last| tail.min(last));
    let older: Vec<usize> = (0..border)
        .filter(|index| !kept(*index) && !firsts.contains(index))
        .collect();
    let markers = (border..costs.len()).filter(|index| costs[*index].marker);
    // A unit that is left out already has its text still to be told.
    let freed: usize = older
        .iter()
        .map(|index| costs[*index].at(state.levels[*index]))
        .sum();
    let hidden = older.iter().any(|index| state.levels[*index] == Level::Out);

    let stubs_suffice = state.total() <= room.target / 2
        || (state.total() <= room.target && freed < room.target / 4 + room.marker);
    let want_fold = means == Means::Fold && (hidden || !stubs_suffice);
    if want_fold {
        let told: usize = older
            .iter()
            .map(|index| costs[*index].at(state.levels[*index].min(Level::Stub)))
            .sum();
        if told > room.marker {
            state.folding = true;
            for index in older.iter().copied().chain(markers) {
                state.remove(index);
            }
        }
    }
    if !state.folding && !stubs_suffice {
        let goal = if means == Means::LeaveOut {
            room.target / 2
        } else {
            room.target
        };
        for index in &older {
            if state.total() <= goal {
                break;
            }
            state.remove(*index);
        }
    }
    // Still above the target: the tail, oldest first; then the newest exchange; then the first messages.
    let rest: Vec<usize> = (border..costs.len())
        .filter(|index| !kept(*index) && !firsts.contains(index))
        .collect();
    squeeze(&mut state, &rest, &firsts, last);
    separate(
        costs,
        &mut state.levels,
        &mut state.folded,
        state.folding,
        None,
    );
    let silent = state.total() > room.budget;
    Ok(Plan {
        fold: (0..costs.len())
            .filter(|index| state.folded[*index])
            .collect(),
        levels: state.levels,
        silent,
    })
}

fn squeeze(state: &mut State<'_>, rest: &[usize], firsts: &[usize], last: Option<usize>) {
    let target = state.room.target;
    for index in rest {
        if state.total() <= target {
            return;
        }
        state.lower(*index, Level::Stub);
    }
    for index in rest {
        if state.total() <= target {
            return;
        }
        state.remove(*index);
    }
    // Where the target is out of reach anyway, the newest exchange is not cut for it.
    let floor = state.total()
        - last.map_or(0, |last| {
            // Nothing where it is out of sight already.
            let shown = state.costs[last].at(state.levels[last]);
            shown.saturating_sub(state.costs[last].bare)
        })
        - firsts
            .iter()
            .map(|index| state.costs[*index].at(state.levels[*index]))
            .sum::<usize>();
    let goal = if floor > target {
        state.room.budget
    } else {
        target
    };
    if let Some(last) = last {
        if state.total() <= goal {
            return;
        }
        state.lower(last, Level::Stub);
    }
    for index in firsts.iter().rev() {
        if state.total() <= goal {
            return;
        }
        state.remove(*index);
    }
    if let Some(last) = last {
        if state.total() <= goal {
            return;
        }
        state.lower(last, Level::Bare);
        if state.total() <= state.room.budget {
            return;
        }
        state.remove(last);
    }
    if state.folding && state.total() > state.room.budget {
        // Not even a marker fits beside the fixed part.
        state.folding = false;
        for index in 0..state.levels.len() {
            if std::mem::take(&mut state.folded[index]) {
                state.levels[index] = Level::Out;
            }
        }
    }
}

/// Keeps two assistant messages from meeting where everything between them is out of sight: the older one
/// goes, too.
///
/// `line`: behind this unit stands the line for what is left out, which keeps them apart, too.
pub fn separate(
    costs: &[Cost],
    levels: &mut [Level],
    folded: &mut [bool],
    folding: bool,
    line: Option<usize>,
) {
    let mut shown: Option<usize> = None;
    let mut gap = false;
    for index in 0..costs.len() {
        if folded[index] || levels[index] == Level::Out {
            gap = true;
            if line == Some(index) {
                shown = None;
            }
            continue;
        }
        if let Some(older) = shown
            && gap
            && costs[index].exchange
            && costs[older].exchange
            && costs[older].calls == 0
        {
            if folding {
                folded[older] = true;
            } else {
                levels[older] = Level::Out;
            }
        }
        shown = Some(index);
        gap = false;
    }
}
