//! Compiled forward passes, one for each size, made when first needed.

use onebit_models::{Forward, Model};
use onebit_ops::{Backend, Bucket, Cache, OpError, Plan, PlanOptions};
use std::collections::BTreeMap;

/// Rows that a small step is rounded up to. Beyond 8 only where so many sequences may run; anything larger runs in the
/// plan for full steps.
const SMALL: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The plans of one model on one cache.
pub(crate) struct Plans {
    forward: Forward,
    /// Most rows of a step, most logit rows of a step, most tokens of a sequence.
    full: Bucket,
    /// By rows, and whether the logits come back beside the tokens.
    made: BTreeMap<(usize, bool), Plan>,
}

impl Plans {
    pub(crate) fn new(forward: Forward, full: Bucket) -> Self {
        Plans { forward, full, made: BTreeMap::new() }
    }

    /// The smallest plan for a step of `rows` rows that chooses tokens; with `logits` it hands those out as well.
    pub(crate) fn get(
        &mut self,
        model: &Model,
        backend: &dyn Backend,
        cache: &Cache,
        (rows, logits): (usize, bool),
    ) -> Result<&Plan, OpError> {
        let full = self.full;
        let most = full.logits.next_power_of_two().max(8).min(full.rows - 1);
        let rows = SMALL.into_iter().find(|small| rows <= *small && *small <= most).unwrap_or(full.rows);
        if !self.made.contains_key(&(rows, logits)) {
            let bucket = Bucket { rows, logits: full.logits.min(rows), ..full };
            let forward = Forward { logits, sample: true, ..self.forward.clone() };
            let plan = backend.compile(model.program(bucket, &forward), cache, PlanOptions::default())?;
            self.made.insert((rows, logits), plan);
        }
        Ok(&self.made[&(rows, logits)])
    }
}
