//! What a backend with memory of its own knows, on the host, of a cache after the steps that it has submitted: the guesses that wait for a verdict, where they
//! lie, and how many tokens the last step chose.
//!
//! The guesses of a slot lie in an area of a pool. A step that accepts some reads the slot's area, and one that guesses
//! anew fills another one, since blocks of one kernel read while others write.

use crate::{Op, OpError, Program, StepInputs};

/// The host's knowledge of one cache.
#[derive(Debug)]
pub struct Ledger {
    /// Logit rows that the last step chose tokens for.
    sampled: usize,
    layers: usize,
    /// For each `[slot][layer]`.
    waiting: Vec<Waiting>,
    /// For each slot, the area with its guesses.
    area_of: Vec<Option<u32>>,
    /// Areas that there are, and those that nobody has; the last is taken first.
    count: usize,
    free: Vec<u32>,
}

/// Rows that wait in one slot and layer: of the convolution, and of the delta rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Waiting {
    conv: usize,
    delta: usize,
}

/// The areas of one segment: to read accepted rows from, and to write guesses to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Areas {
    /// Area to take accepted rows from.
    pub read: u32,
    /// Area to write guesses to.
    pub write: u32,
}

/// The state layers of a program, and which of their rows wait.
enum Layer {
    Conv(usize),
    Delta(usize),
}

fn layers(program: &Program) -> impl Iterator<Item = Layer> {
    program.ops.iter().filter_map(|op| match op {
        Op::ConvSilu { layer, .. } => Some(Layer::Conv(*layer)),
        Op::GatedDelta { layer, .. } => Some(Layer::Delta(*layer)),
        _ => None,
    })
}

impl Ledger {
    /// Nothing waits in any of these slots and state layers, and there are no areas.
    pub fn new(slots: usize, layers: usize) -> Ledger {
        Ledger {
            sampled: 0,
            layers,
            waiting: vec![Waiting::default(); slots * layers],
            area_of: vec![None; slots],
            count: 0,
            free: Vec::new(),
        }
    }

    /// Refuses a step that accepts more rows than a layer of the program holds, or that takes tokens which the step before
    /// did not choose. Layers that the program does not touch do not count.
    ///
    /// # Errors
    /// [`OpError::Inputs`].
    pub fn check(&mut self, program: &Program, inputs: &StepInputs) -> Result<(), OpError> {
        for segment in inputs.segments.iter().filter(|s| s.accepted > 0) {
            for layer in layers(program) {
                let waiting = *self.waiting(segment.slot, &layer);
                if segment.accepted > waiting {
                    return Err(OpError::Inputs(format!("{} rows accepted of {waiting} pending", segment.accepted)));
                }
            }
        }
        inputs.check_carried(self.sampled)
    }

    fn waiting(&mut self, slot: usize, layer: &Layer) -> &mut usize {
        let at = slot * self.layers;
        match layer {
            Layer::Conv(layer) => &mut self.waiting[at + layer].conv,
            Layer::Delta(layer) => &mut self.waiting[at + layer].delta,
        }
    }

    /// Areas that there must be for a step: as many as there are, and more where too few are free.
    pub fn areas_needed(&self, program: &Program, inputs: &StepInputs) -> usize {
        if layers(program).next().is_none() {
            return self.count;
        }
        let new = inputs.segments.iter().filter(|s| s.speculative).count();
        self.count + new.saturating_sub(self.free.len())
    }

    /// There are so many areas now.
    pub fn grow(&mut self, count: usize) {
        // The lowest number is taken first.
        self.free.splice(0..0, (self.count as u32..count as u32).rev());
        self.count = count;
    }

    /// Areas that there are.
    pub fn areas(&self) -> usize {
        self.count
    }

    /// Chooses the areas of each segment of a step that is submitted now, and notes what it leaves behind. Numbers that are
    /// not looked at are 0.
    pub fn submit(&mut self, program: &Program, inputs: &StepInputs) -> Vec<Areas> {
        self.sampled = inputs.draws.len();
        if layers(program).next().is_none() {
            return vec![Areas { read: 0, write: 0 }; inputs.segments.len()];
        }
        let mut chosen = Vec::with_capacity(inputs.segments.len());
        let mut read = Vec::new();
        for segment in &inputs.segments {
            let old = self.area_of[segment.slot];
            let mut areas = Areas { read: old.unwrap_or(0), write: 0 };
            let mut rows = 0;
            if segment.speculative {
                rows = segment.rows.len();
                areas.write = self.free.pop().unwrap_or_else(|| unreachable!("the pool was grown for this step"));
                self.area_of[segment.slot] = Some(areas.write);
                read.extend(old);
                // The new area has rows of this program's layers only.
                self.drop_rows(segment.slot);
            }
            for layer in layers(program) {
                *self.waiting(segment.slot, &layer) = rows;
            }
            chosen.push(areas);
        }
        // Later steps may fill what this one has read.
        self.free.splice(0..0, read);
        chosen
    }

    /// Nothing waits in a slot any more.
    pub fn forget(&mut self, slot: usize) {
        self.drop_rows(slot);
        self.free.extend(self.area_of[slot].take());
    }

    fn drop_rows(&mut self, slot: usize) {
        self.waiting[slot * self.layers..(slot + 1) * self.layers].fill(Waiting::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bucket, Recorder, Segment, Vector, Weight, WeightInfo};
    use std::sync::Arc;

    /// Convolutions of these layers.
    fn program(layers: &[usize]) -> Program {
        let mut rec = Recorder::new(Bucket { rows: 8, logits: 1, context: 8 });
        let info = WeightInfo {
            name: String::new(),
            rows: 1,
            cols: 1,
            parts: std::iter::once(0..1).collect(),
            kernel: String::new(),
            resident_bytes: 0,
            shed_bytes: 0,
        };
        let x = rec.embed(&Weight::new(info, Box::new(())));
        for layer in layers {
            rec.conv_silu(x, &Vector::new(2, Arc::new(())), 2, *layer);
        }
        rec.finish()
    }

    fn step(slots: &[usize], accepted: usize, speculative: bool) -> StepInputs {
        let segment = |(i, slot): (usize, &usize)| Segment {
            rows: 2 * i..2 * i + 2,
            slot: *slot,
            pages: Vec::new(),
            past: 0,
            accepted,
            speculative,
        };
        StepInputs { segments: slots.iter().enumerate().map(segment).collect(), ..StepInputs::default() }
    }

    /// As a plan does it.
    fn run(ledger: &mut Ledger, program: &Program, inputs: &StepInputs) -> Vec<Areas> {
        ledger.check(program, inputs).unwrap();
        let needed = ledger.areas_needed(program, inputs);
        ledger.grow(needed);
        ledger.submit(program, inputs)
    }

    #[test]
    fn a_step_never_writes_an_area_that_it_reads() {
        let (mut ledger, program) = (Ledger::new(4, 1), program(&[0]));
        assert_eq!(run(&mut ledger, &program, &step(&[0, 1], 0, false)), [Areas { read: 0, write: 0 }; 2]);
        assert_eq!(ledger.areas(), 0);
        let mut last = run(&mut ledger, &program, &step(&[0, 1, 2], 0, true));
        for _ in 0..5 {
            let areas = run(&mut ledger, &program, &step(&[0, 1, 2], 1, true));
            for (now, before) in areas.iter().zip(&last) {
                assert_eq!(now.read, before.write);
                assert!(areas.iter().all(|other| other.write != now.read));
            }
            last = areas;
        }
        assert_eq!(ledger.areas(), 6);
        ledger.forget(0);
        assert_eq!(ledger.free.len(), 4);
    }

    #[test]
    fn more_rows_than_wait_are_refused() {
        let (mut ledger, both, one) = (Ledger::new(1, 2), program(&[0, 1]), program(&[1]));
        run(&mut ledger, &both, &step(&[0], 0, true));
        assert_eq!(ledger.check(&both, &step(&[0], 2, true)), Ok(()));
        let refused = OpError::Inputs("3 rows accepted of 2 pending".to_owned());
        assert_eq!(ledger.check(&both, &step(&[0], 3, true)), Err(refused));
        // New guesses of one layer leave the other without any.
        run(&mut ledger, &one, &step(&[0], 0, true));
        assert_eq!(ledger.check(&one, &step(&[0], 2, true)), Ok(()));
        assert!(ledger.check(&both, &step(&[0], 1, true)).is_err());
        ledger.forget(0);
        assert!(ledger.check(&one, &step(&[0], 1, true)).is_err());
    }
}
