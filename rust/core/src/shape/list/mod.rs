//! Shaping a plain list of OpenAI-format dicts, in whatever language they live.
//!
//! `walk` reads the messages once into units and their costs, `repair` is for those that are not as they
//! should be, `replay` takes the decisions, `shorten` makes what is shown shortened.

mod contents;
pub mod host;
mod repair;
mod replay;
mod shorten;
mod walk;

use host::{Host, Refusal};
use replay::{Wanted, replay};
use shorten::Limits;
use walk::Walk;

use super::options::Options;
use super::plan::Room;
use super::stand_in::line_text;
use super::unit::Level;

/// Below this many bytes a pointer would save too little.
const BARE_ABOVE: usize = 400;

/// How much of a unit's large texts a level shows.
struct Limiting {
    stub: Limits,
    bare: Limits,
}

impl Limiting {
    fn new(options: &Options) -> Self {
        let above = options.stub_above();
        Self {
            stub: Limits { above, keep: above },
            bare: Limits {
                above: above.min(BARE_ABOVE),
                keep: 0,
            },
        }
    }
}

/// The shaped list. `tools`: the JSON of the tools' schemas.
pub fn shape<H: Host>(
    host: &mut H,
    options: &Options,
    tools: &str,
) -> Result<Vec<H::Value>, H::Error> {
    let mut walk = Walk::new(host, options)?;
    walk.read_all()?;
    let mut out = Vec::new();
    out.extend(walk.head.iter().map(|(head, _)| head.clone()));
    if options.budget == 0 {
        for unit in 0..walk.units.len() {
            walk.show(unit, None, &mut out)?;
        }
        return Ok(out);
    }
    let contents = walk.contents();
    let room = Room {
        budget: options.budget,
        target: options.target(),
        system: walk.head_tokens(),
        tools: contents.count(tools)?,
        marker: 0,
        line: contents.count(&line_text(1_000_000))? + walk.role_cost(host::PlainRole::User),
        keep_messages: options.keep_messages,
        keep_calls: options.keep_calls,
        keep_first: options.keep_first,
        shorten: options.lod_above > 0 || options.always_lod,
    };
    let limits = Limiting::new(options);
    let mut failure = None;
    let outcome = replay(walk.units.len(), &room, |index, wanted| {
        let unit = &walk.units[index];
        let mut cost = unit.cost();
        if wanted == Wanted::Full {
            return cost;
        }
        (cost.stub, cost.bare) = (cost.full, cost.full);
        if unit.large {
            let sizes = walk.size(index, limits.stub).and_then(|stub| {
                let bare = walk.size(index, limits.bare)?;
                Ok((stub, bare))
            });
            match sizes {
                Ok(sizes) => (cost.stub, cost.bare) = sizes,
                Err(error) => failure = Some(error),
            }
        }
        cost
    });
    if let Some(error) = failure {
        return Err(error);
    }
    let (levels, silent) =
        outcome.map_err(|overflow| walk.host.refuse(Refusal::Overflow(overflow)))?;
    let last_out = levels.iter().rposition(|level| *level == Level::Out);
    let mut hidden = 0;
    for (index, level) in levels.iter().enumerate() {
        match level {
            Level::Full => walk.show(index, None, &mut out)?,
            Level::Stub => walk.show(index, Some(limits.stub), &mut out)?,
            Level::Bare => walk.show(index, Some(limits.bare), &mut out)?,
            Level::Out => hidden += walk.messages_of(index),
        }
        if Some(index) == last_out && !silent {
            out.push(walk.contents().made("user", &line_text(hidden))?);
        }
    }
    Ok(out)
}
