//! The few tokens of a vocabulary that can be chosen at all.

/// Logits looked at together: only blocks that hold a candidate are read a second time.
const BLOCK: usize = 1024;
/// Maxima kept side by side, so that the compiler compares several logits at once.
const LANES: usize = 32;

/// Positions and values of the logits at most `reach` below the best, the best first and equal ones
/// by position; of more than `most` of them the best (0: all). Empty where the best is no finite
/// number. A logit that is not a number is never among them.
pub fn best_logits(logits: &[f32], reach: f32, most: usize) -> Vec<(u32, f32)> {
    let tops: Vec<f32> = logits.chunks(BLOCK).map(highest).collect();
    let best = highest(&tops);
    if !best.is_finite() {
        return Vec::new();
    }
    let floor = best - reach;
    let mut found = Vec::new();
    for (block, (&top, values)) in tops.iter().zip(logits.chunks(BLOCK)).enumerate() {
        if top < floor {
            continue;
        }
        for (offset, &value) in values.iter().enumerate() {
            if value >= floor {
                found.push(((block * BLOCK + offset) as u32, value));
            }
        }
    }
    let order = |left: &(u32, f32), right: &(u32, f32)| {
        right.1.total_cmp(&left.1).then(left.0.cmp(&right.0))
    };
    if 0 < most && most < found.len() {
        found.select_nth_unstable_by(most - 1, order);
        found.truncate(most);
    }
    found.sort_unstable_by(order);
    found
}

/// How a token is drawn from the logits. `reach` and `most` are `best_logits`'s.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    pub reach: f32,
    pub most: usize,
    /// Of the candidates the best that hold this share of the mass, 1 for all.
    pub top_p: f64,
    /// 0 takes the best.
    pub temperature: f64,
    /// Where in the mass, 0 to 1: the random part.
    pub at: f64,
}

impl Draw {
    /// Among which tokens.
    fn candidates(&self, logits: &[f32]) -> Vec<(u32, f32)> {
        if self.temperature == 0.0 {
            best_logits(logits, 0.0, 1)
        } else {
            best_logits(logits, self.reach, self.most)
        }
    }
}

/// The position of one token, `None` where no logit is a finite number.
pub fn draw(logits: &[f32], draw: Draw) -> Option<u32> {
    pick(draw.candidates(logits), draw)
}

/// As [`draw`] after [`ban`]. `banned` is sorted. A vocabulary may hold thousands of tokens that are never to come, and
/// the model hardly ever wants one: nothing is written where none is among the candidates.
pub fn draw_allowed(logits: &mut [f32], banned: &[i64], draw: Draw) -> Option<u32> {
    let near = draw.candidates(logits);
    let is_banned = |&(id, _): &(u32, f32)| banned.binary_search(&i64::from(id)).is_ok();
    // No candidate at all: an infinite one in front hides the others, and may be banned itself.
    if near.is_empty() || near.iter().any(is_banned) {
        ban(logits, banned);
        return self::draw(logits, draw);
    }
    pick(near, draw)
}

fn pick(mut near: Vec<(u32, f32)>, draw: Draw) -> Option<u32> {
    if draw.temperature == 0.0 {
        return near.first().map(|&(id, _)| id);
    }
    let best = f64::from(near.first()?.1);
    if draw.top_p < 1.0 {
        let mass = masses(&near, best, 1.0);
        let share = draw.top_p * mass.last()?;
        near.truncate(mass.partition_point(|&sum| sum < share) + 1);
    }
    let mass = masses(&near, best, draw.temperature);
    let share = draw.at * mass.last()?;
    let at = mass.partition_point(|&sum| sum <= share);
    Some(near[at.min(near.len() - 1)].0)
}

/// The running sum of the candidates' weights.
fn masses(near: &[(u32, f32)], best: f64, temperature: f64) -> Vec<f64> {
    near.iter()
        .scan(0.0, |sum, &(_, value)| {
            *sum += ((f64::from(value) - best) / temperature).exp();
            Some(*sum)
        })
        .collect()
}

/// Takes tokens out of the choice. Ids beyond the vocabulary are none of it.
pub fn ban(logits: &mut [f32], banned: &[i64]) {
    for &id in banned {
        if let Some(value) = usize::try_from(id).ok().and_then(|id| logits.get_mut(id)) {
            *value = f32::NEG_INFINITY;
        }
    }
}

/// The highest number, or minus infinity where there is none.
fn highest(values: &[f32]) -> f32 {
    // Not `f32::max`, whose care for what is no number takes several instructions.
    let higher = |top: f32, value: f32| if value > top { value } else { top };
    let mut tops = [f32::NEG_INFINITY; LANES];
    let (lanes, rest) = values.as_chunks::<LANES>();
    for lane in lanes {
        for (top, &value) in tops.iter_mut().zip(lane) {
            *top = higher(*top, value);
        }
    }
    tops.into_iter()
        .chain(rest.iter().copied())
        .fold(f32::NEG_INFINITY, higher)
}

#[cfg(test)]
mod tests {
    use super::{Draw, ban, best_logits, draw, draw_allowed};

    /// All of it by sorting.
    fn slow(logits: &[f32], reach: f32, most: usize) -> Vec<(u32, f32)> {
        let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        all.retain(|(_, value)| !value.is_nan());
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let Some(&(_, best)) = all.first().filter(|(_, best)| best.is_finite()) else {
            return Vec::new();
        };
        all.retain(|(_, value)| *value >= best - reach);
        all.truncate(if most > 0 { most } else { usize::MAX });
        all
    }

    #[test]
    fn equal_to_sorting() {
        let mut state = 7_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        for size in [0, 1, 31, 32, 33, 1023, 1024, 1025, 4099] {
            for round in 0..40 {
                let logits: Vec<f32> = (0..size)
                    .map(|_| match next() % 50 {
                        0 if round % 2 == 0 => f32::NAN,
                        1 => f32::NEG_INFINITY,
                        _ => (next() % 400) as f32 / 20.0 - 10.0,
                    })
                    .collect();
                for (reach, most) in [(0.0, 0), (3.0, 0), (3.0, 40), (f32::INFINITY, 5), (1.0, 1)] {
                    let found = best_logits(&logits, reach, most);
                    assert_eq!(found, slow(&logits, reach, most), "{size} {reach} {most}");
                }
            }
        }
    }

    #[test]
    fn nothing_to_choose() {
        for logits in [
            &[][..],
            &[f32::NEG_INFINITY],
            &[f32::NAN, f32::NAN],
            &[1.0, f32::INFINITY],
        ] {
            assert!(best_logits(logits, 1.0, 0).is_empty());
        }
    }

    #[test]
    fn drawn_by_weight() {
        let logits = [1.0, 3.0, f32::NAN, 2.0, 3.0, -9.0];
        let how = Draw {
            reach: 5.0,
            most: 0,
            top_p: 1.0,
            temperature: 0.5,
            at: 0.0,
        };
        let share = |how: Draw| {
            let mut hits = [0_u32; 6];
            for step in 0..10_000 {
                let at = f64::from(step) / 10_000.0;
                let token = draw(&logits, Draw { at, ..how }).expect("some are finite");
                hits[token as usize] += 1;
            }
            hits
        };
        // Weights e^(-2 / 0.5), 1, e^(-1 / 0.5), 1, of 2.1537 in all.
        assert_eq!(share(how), [85, 4644, 0, 628, 4643, 0]);
        // 1 and 3 hold 0.8 of the mass at temperature 1, and 3 and 4 alone 0.5 of it.
        assert_eq!(share(Draw { top_p: 0.7, ..how }), [0, 5000, 0, 0, 5000, 0]);
        assert_eq!(share(Draw { most: 1, ..how }), [0, 10_000, 0, 0, 0, 0]);
        let greedy = Draw {
            temperature: 0.0,
            ..how
        };
        assert_eq!(draw(&logits, greedy), Some(1));
        assert_eq!(draw(&[f32::NAN, f32::NEG_INFINITY], greedy), None);
        assert_eq!(draw(&[], how), None);
    }

    #[test]
    fn banned_ones_are_out() {
        let mut logits = [1.0, 2.0, 3.0];
        ban(&mut logits, &[2, 3, -1, i64::MAX]);
        assert_eq!(logits, [1.0, 2.0, f32::NEG_INFINITY]);
    }

    #[test]
    fn drawn_as_if_all_banned_ones_had_been_taken_out_first() {
        let mut state = 11_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        for round in 0..4000_u32 {
            let mut logits: Vec<f32> = (0..60)
                .map(|_| match next() % 40 {
                    0 => f32::NAN,
                    1 if round % 3 == 0 => f32::INFINITY,
                    2 => f32::NEG_INFINITY,
                    _ => (next() % 400) as f32 / 50.0,
                })
                .collect();
            let mut banned: Vec<i64> = (0..next() % 50).map(|_| i64::from(next() % 70)).collect();
            banned.sort_unstable();
            let how = Draw {
                reach: (next() % 8) as f32,
                most: (next() % 5) as usize,
                top_p: f64::from(next() % 10 + 1) / 10.0,
                temperature: f64::from(next() % 3) / 2.0,
                at: f64::from(next() % 1000) / 1000.0,
            };
            let mut slow = logits.clone();
            ban(&mut slow, &banned);
            assert_eq!(
                draw_allowed(&mut logits, &banned, how),
                draw(&slow, how),
                "{round}"
            );
        }
    }
}
