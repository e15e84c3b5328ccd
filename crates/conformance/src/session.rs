//! A program on one backend or on two, and the steps that are run with it.

use crate::check::Suite;
use onebit_ops::{
    Backend, Bucket, Cache, CacheSpec, KvFormat, KvSpec, OpError, Plan, PlanOptions, Recorder, Segment, SharedBytes,
    SlotState, StateSpec, StepInputs, StepOutput, Table, Ticket, UploadOptions, Vector, View, Weight, wait,
};
use onebit_quant::Packed;
use std::sync::Arc;

/// Recording on one backend: a recorder and the uploads that it needs.
pub(crate) struct Build<'a> {
    backend: &'a dyn Backend,
    case: &'a str,
    pub(crate) rec: Recorder,
}

impl Build<'_> {
    /// Uploads the parts as one weight.
    pub(crate) fn weight(&self, parts: &[&Packed]) -> Weight {
        let matrices: Vec<_> = parts.iter().map(|p| p.as_matrix()).collect();
        must(self.case, self.backend.upload("case", &matrices, UploadOptions::default()))
    }

    /// Uploads a matrix of which rows are looked up.
    pub(crate) fn table(&self, packed: &Packed) -> Weight {
        let shared = |bytes: &Vec<u8>| SharedBytes::new(Arc::new(bytes.clone()), 0..bytes.len());
        let [codes, scales, biases] = [&packed.codes, &packed.scales, &packed.biases].map(shared);
        let table = Table { format: packed.format, rows: packed.rows, cols: packed.cols, codes, scales, biases };
        must(self.case, self.backend.upload_table("case", table))
    }

    /// Uploads a vector.
    pub(crate) fn vector(&self, values: &[f32]) -> Vector {
        must(self.case, self.backend.upload_vector(values))
    }

    /// The step's tokens as rows of a table of f32: how a case feeds any numbers it likes.
    pub(crate) fn rows(&mut self, table: &Packed) -> View {
        let table = self.weight(&[table]);
        self.rec.embed(&table)
    }
}

/// A compiled program on one backend with its cache.
pub(crate) struct Session<'a> {
    backend: &'a dyn Backend,
    case: String,
    cache: Cache,
    plan: Plan,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        backend: &'a dyn Backend,
        case: &str,
        (bucket, spec): (Bucket, CacheSpec),
        record: impl Fn(&mut Build<'_>),
    ) -> Self {
        let mut build = Build { backend, case, rec: Recorder::new(bucket) };
        record(&mut build);
        let cache = must(case, backend.cache(spec));
        let plan = must(case, backend.compile(build.rec.finish(), &cache, PlanOptions::default()));
        Session { backend, case: case.to_owned(), cache, plan }
    }

    /// Runs a step to its end.
    pub(crate) fn step(&self, inputs: &StepInputs) -> StepOutput {
        must(&self.case, self.try_step(inputs))
    }

    /// Starts a step.
    pub(crate) fn start(&self, inputs: &StepInputs) -> Ticket {
        must(&self.case, self.backend.run(&self.plan, inputs.clone()))
    }

    /// Waits for a step.
    pub(crate) fn wait(&self, ticket: Ticket) -> StepOutput {
        must(&self.case, wait(self.backend, ticket))
    }

    /// Runs a step that may be refused.
    pub(crate) fn try_step(&self, inputs: &StepInputs) -> Result<StepOutput, OpError> {
        wait(self.backend, self.backend.run(&self.plan, inputs.clone())?)
    }

    /// Runs a step and takes the output called `y`.
    pub(crate) fn y(&self, inputs: &StepInputs) -> Vec<f32> {
        take(&self.case, self.step(inputs), "y")
    }

    /// Zeroes a state slot.
    pub(crate) fn clear_slot(&self, slot: usize) {
        must(&self.case, self.try_clear(slot));
    }

    /// Zeroes a state slot that may not exist.
    pub(crate) fn try_clear(&self, slot: usize) -> Result<(), OpError> {
        self.backend.clear_slot(&self.cache, slot)
    }

    /// Copies a state slot.
    pub(crate) fn copy_slot(&self, from: usize, to: usize) {
        must(&self.case, self.backend.copy_slot(&self.cache, from, to));
    }

    /// Copies a page that may not exist.
    pub(crate) fn copy_page(&self, from: u32, to: u32) -> Result<(), OpError> {
        self.backend.copy_page(&self.cache, from, to)
    }

    /// Reads a layer of a state slot.
    pub(crate) fn read_slot(&self, slot: usize, layer: usize) -> SlotState {
        must(&self.case, self.backend.read_slot(&self.cache, slot, layer))
    }
}

/// The same program on the backend under test and on the reference.
pub(crate) struct Twin<'a> {
    pub(crate) got: Session<'a>,
    pub(crate) want: Session<'a>,
}

impl<'a> Twin<'a> {
    pub(crate) fn new(
        suite: &Suite<'a>,
        case: &str,
        sizes: (Bucket, CacheSpec),
        record: impl Fn(&mut Build<'_>),
    ) -> Self {
        Twin {
            got: Session::new(suite.backend, case, sizes, &record),
            want: Session::new(suite.reference, case, sizes, &record),
        }
    }

    /// One step on both; the output called `y` of each.
    pub(crate) fn y(&self, inputs: &StepInputs) -> (Vec<f32>, Vec<f32>) {
        (self.got.y(inputs), self.want.y(inputs))
    }
}

/// Takes a named output.
pub(crate) fn take(case: &str, mut output: StepOutput, name: &str) -> Vec<f32> {
    output.values.remove(name).unwrap_or_else(|| panic!("{case}: the step has no output {name}"))
}

/// A backend that refuses what it says it runs ends the case.
pub(crate) fn must<T>(case: &str, result: Result<T, OpError>) -> T {
    result.unwrap_or_else(|e| panic!("{case}: {e}"))
}

/// A bucket of `rows`, all of whose rows may be logit rows.
pub(crate) fn bucket(rows: usize, context: usize) -> Bucket {
    Bucket { rows, logits: rows, context }
}

/// A cache for programs that keep nothing.
pub(crate) fn stateless() -> CacheSpec {
    CacheSpec { kv: KvSpec { layers: 0, heads: 0, dim: 0, pages: 0, format: KvFormat::F32 }, state: None }
}

/// A cache of state slots only.
pub(crate) fn recurrent(state: StateSpec) -> CacheSpec {
    CacheSpec { state: Some(state), ..stateless() }
}

/// A segment without pages that enters its state for good.
pub(crate) fn segment(rows: std::ops::Range<usize>, slot: usize, past: usize) -> Segment {
    Segment { rows, slot, pages: Vec::new(), past, accepted: 0, speculative: false }
}

/// A step of these segments; text positions, no logit rows.
pub(crate) fn step(tokens: &[usize], segments: Vec<Segment>) -> StepInputs {
    let position = |s: &Segment, i: usize| [(s.past + i) as u32; 3];
    StepInputs {
        tokens: tokens.iter().map(|t| *t as u32).collect(),
        positions: segments.iter().flat_map(|s| (0..s.rows.len()).map(|i| position(s, i))).collect(),
        segments,
        ..StepInputs::default()
    }
}

/// A step of one sequence that has no past.
pub(crate) fn first(tokens: &[usize]) -> StepInputs {
    step(tokens, vec![segment(0..tokens.len(), 0, 0)])
}
