//! Compiled forward passes, one for each size, made when first needed.

use onebit_models::{Forward, Model};
use onebit_ops::{Backend, Bucket, Cache, OpError, Plan, PlanOptions};
use std::collections::BTreeMap;

/// Rows that a small step is rounded up to. Beyond 8 only where so many sequences may run; anything larger runs in the
/// plan for full steps.
const SMALL: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Most rows of a plan that there is one of for several contexts. Larger ones have larger temporaries, and more to do beside.
const NARROW: usize = 8;

/// Tokens that the longest context of a narrow step is rounded up to; anything longer runs in the plan for all contexts. A GPU cuts
/// long contexts into pieces that others join, which is time lost on short ones.
const CONTEXTS: [usize; 3] = [512, 4096, 32_768];

/// The plans of one model on one cache.
pub(crate) struct Plans {
    forward: Forward,
    /// Most rows of a step, most logit rows of a step, most tokens of a sequence.
    full: Bucket,
    /// By rows and context, and whether the logits come back beside the tokens.
    made: BTreeMap<(usize, usize, bool), Plan>,
}

impl Plans {
    pub(crate) fn new(forward: Forward, full: Bucket) -> Self {
        Plans { forward, full, made: BTreeMap::new() }
    }

    /// The smallest plan for a step of `rows` rows, of sequences of at most `context` tokens with it, that chooses tokens; with
    /// `logits` it hands those out as well.
    pub(crate) fn get(
        &mut self,
        model: &Model,
        backend: &dyn Backend,
        cache: &Cache,
        (rows, context, logits): (usize, usize, bool),
    ) -> Result<&Plan, OpError> {
        let bucket = bucket(self.full, rows, context);
        let key = (bucket.rows, bucket.context, logits);
        if !self.made.contains_key(&key) {
            let forward = Forward { logits, sample: true, ..self.forward.clone() };
            let plan = backend.compile(model.program(bucket, &forward), cache, PlanOptions::default())?;
            self.made.insert(key, plan);
        }
        Ok(&self.made[&key])
    }
}

/// What the smallest plan has room for.
fn bucket(full: Bucket, rows: usize, context: usize) -> Bucket {
    let most = full.logits.next_power_of_two().max(8).min(full.rows - 1);
    let rows = SMALL.into_iter().find(|small| rows <= *small && *small <= most).unwrap_or(full.rows);
    let known = CONTEXTS.into_iter().find(|known| context <= *known && *known < full.context && rows <= NARROW);
    Bucket { rows, logits: full.logits.min(rows), context: known.unwrap_or(full.context) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_steps_have_plans_of_their_own() {
        let full = Bucket { rows: 519, logits: 8, context: 10_000 };
        let of = |rows, context| {
            let bucket = bucket(full, rows, context);
            [bucket.rows, bucket.logits, bucket.context]
        };
        assert_eq!(of(1, 1), [1, 1, 512]);
        assert_eq!(of(3, 513), [4, 4, 4096]);
        assert_eq!(of(8, 5000), [8, 8, 10_000]);
        assert_eq!(of(9, 1), [519, 8, 10_000]);
        assert_eq!(bucket(Bucket { context: 300, ..full }, 1, 1).context, 300);
        assert_eq!(bucket(Bucket { logits: 30, ..full }, 20, 100).rows, 32);
        assert_eq!(bucket(Bucket { logits: 30, ..full }, 20, 100).context, 10_000);
    }
}
