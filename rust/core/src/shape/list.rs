//! Shaping a plain list: the decisions a session would have taken while the list grew, taken again from its
//! start, so that a longer list keeps the prefix of a shorter one.

use super::plan::{Cost, Means, Overflow, Plan, Room, decide};
use super::unit::Level;

/// The levels of all units after every one of them has been added in turn, and whether there is no room for
/// the line. `costs` come with their full size; `shorter` gives the sizes of a unit's stub and of its barest form,
/// asked for once a unit, when it first matters.
pub fn replay(
    costs: &mut [Cost],
    room: &Room,
    mut shorter: impl FnMut(usize) -> (usize, usize),
) -> Result<(Vec<Level>, bool), Overflow> {
    let mut levels = vec![Level::Full; costs.len()];
    let fixed = room.system + room.tools;
    // Only what is in sight is looked at again, so that the whole costs what the list is long.
    let mut live: Vec<usize> = Vec::new();
    let mut known = 0;
    let mut total = fixed;
    let mut hidden = false;
    let mut silent = false;
    let mut failed = None;
    for index in 0..costs.len() {
        live.push(index);
        total += costs[index].full;
        if total <= room.budget {
            continue;
        }
        for (unit, cost) in costs.iter_mut().enumerate().take(index + 1).skip(known) {
            (cost.stub, cost.bare) = shorter(unit);
        }
        known = index + 1;
        let seen: Vec<Cost> = live
            .iter()
            .map(|unit| Cost {
                level: levels[*unit],
                ..costs[*unit]
            })
            .collect();
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
                for (unit, level) in live.iter().zip(&plan.levels) {
                    levels[*unit] = *level;
                }
            }
            // A message too large for the budget may be followed by one that is not.
            Err(overflow) => failed = Some(overflow),
        }
        live.retain(|unit| levels[*unit] != Level::Out);
        hidden = live.len() <= index;
        total = fixed
            + if hidden && !silent { room.line } else { 0 }
            + live
                .iter()
                .map(|unit| costs[*unit].at(levels[*unit]))
                .sum::<usize>();
    }
    match failed {
        Some(overflow) if total > room.budget => Err(overflow),
        _ => Ok((levels, silent)),
    }
}
