//! The decisions a session would have taken while the list grew, taken again from its start, so that a longer list
//! keeps the prefix of a shorter one.

use crate::shape::plan::{Cost, Means, Overflow, Plan, Room, decide};
use crate::shape::unit::Level;

/// Which sizes of a unit matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Full,
    /// Those of its stub and of its barest form, too.
    All,
}

/// The levels of all units after every one of them has been added in turn, and whether there is no room for
/// the line. `cost` gives a unit's; all sizes of one are asked for once, when they first matter.
pub fn replay(
    units: usize,
    room: &Room,
    mut cost: impl FnMut(usize, Wanted) -> Cost,
) -> Result<(Vec<Level>, bool), Overflow> {
    let mut levels = vec![Level::Full; units];
    let fixed = room.system + room.tools;
    // Only what is in sight is looked at again, so that the whole costs what the list is long.
    let mut live: Vec<usize> = Vec::new();
    let mut seen: Vec<Cost> = Vec::new();
    let mut known = 0;
    let mut total = fixed;
    let mut hidden = false;
    let mut silent = false;
    let mut failed = None;
    for index in 0..units {
        total += cost(index, Wanted::Full).full;
        if total <= room.budget {
            continue;
        }
        for unit in known..=index {
            live.push(unit);
            seen.push(cost(unit, Wanted::All));
        }
        known = index + 1;
        let line = if hidden { room.line } else { 0 };
        let room_now = Room {
            system: room.system + line,
            line: room.line - line,
            ..*room
        };
        // The line yields where it would not fit beside what must be sent.
        let bare_room = Room { line: 0, ..*room };
        let outcome = decide(&seen, &room_now, Means::LeaveOut).or_else(|_| {
            let plan = decide(&seen, &bare_room, Means::LeaveOut)?;
            Ok(Plan {
                silent: true,
                ..plan
            })
        });
        match outcome {
            Ok(plan) => {
                failed = None;
                silent = plan.silent;
                let mut shown = 0;
                for (place, level) in plan.levels.iter().enumerate() {
                    levels[live[place]] = *level;
                    if *level != Level::Out {
                        live[shown] = live[place];
                        seen[shown] = Cost {
                            level: *level,
                            ..seen[place]
                        };
                        shown += 1;
                    }
                }
                live.truncate(shown);
                seen.truncate(shown);
            }
            // A message too large for the budget may be followed by one that is not.
            Err(overflow) => failed = Some(overflow),
        }
        hidden = live.len() <= index;
        total = fixed
            + if hidden && !silent { room.line } else { 0 }
            + seen.iter().map(|cost| cost.at(cost.level)).sum::<usize>();
    }
    match failed {
        Some(overflow) if total > room.budget => Err(overflow),
        _ => Ok((levels, silent)),
    }
}
