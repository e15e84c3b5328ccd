//! Compiled forward passes, one for each size, made when first needed.

use onebit_models::{Forward, Model};
use onebit_ops::{Backend, Bucket, Cache, OpError, Plan, PlanOptions};
use std::collections::BTreeMap;

/// Rows that a small step is rounded up to; anything larger runs in the plan for full steps.
const SMALL: [usize; 4] = [1, 2, 4, 8];

/// The plans of one model on one cache.
pub(crate) struct Plans {
    forward: Forward,
    /// Most rows of a step, most logit rows of a step, most tokens of a sequence.
    full: Bucket,
    made: BTreeMap<usize, Plan>,
}

impl Plans {
    pub(crate) fn new(forward: Forward, full: Bucket) -> Self {
        Plans { forward, full, made: BTreeMap::new() }
    }

    /// The smallest plan for a step of `rows` rows.
    pub(crate) fn get(
        &mut self,
        model: &Model,
        backend: &dyn Backend,
        cache: &Cache,
        rows: usize,
    ) -> Result<&Plan, OpError> {
        let full = self.full;
        let rows = SMALL.into_iter().find(|small| rows <= *small && *small < full.rows).unwrap_or(full.rows);
        if !self.made.contains_key(&rows) {
            let bucket = Bucket { rows, logits: full.logits.min(rows), ..full };
            let program = model.program(bucket, &self.forward);
            self.made.insert(rows, backend.compile(program, cache, PlanOptions::default())?);
        }
        Ok(&self.made[&rows])
    }
}
