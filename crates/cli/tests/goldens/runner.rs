//! Runs a case's model on a backend, step by step.

use crate::case::Case;
use crate::judge::argmax;
use onebit::load;
use onebit_models::{Forward, LoadOptions, Model};
use onebit_ops::{
    Activations, Backend, Bucket, Cache, KvFormat, PAGE_ROWS, Plan, PlanOptions, Segment, SlotState, StepInputs,
    StepOutput, wait,
};
use std::sync::Arc;

/// Longest sequence of a case: 200 tokens and 32 generated.
const CONTEXT: usize = 256;

pub(crate) struct Runner {
    backend: Arc<dyn Backend>,
    model: Model,
    forward: Forward,
    kv: KvFormat,
}

/// One sequence under way.
struct Sequence<'a> {
    runner: &'a Runner,
    cache: Cache,
    plan: Plan,
    past: usize,
}

impl Runner {
    pub(crate) fn new(case: &Case, backend: &Arc<dyn Backend>, activations: Activations) -> Runner {
        let source =
            load::open(&case.model(), &load::Options::default()).unwrap_or_else(|e| panic!("{}: {e:#}", case.name));
        let model = Model::load(&source, &**backend, LoadOptions::default(), &mut |_| {});
        let model = model.unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let kv = if activations == Activations::F32 { KvFormat::F32 } else { KvFormat::F16 };
        Runner { backend: backend.clone(), model, forward: Forward::new(activations), kv }
    }

    fn start(&self, forward: &Forward) -> Sequence<'_> {
        // One spare page, and page ids in descending order, so that nothing relies on their order.
        let spec = self.model.facts().cache_spec(CONTEXT + PAGE_ROWS, 2, self.kv);
        let cache = self.backend.cache(spec).expect("the cache fits");
        let bucket = Bucket { rows: CONTEXT, logits: CONTEXT, context: CONTEXT };
        let program = self.model.program(bucket, forward);
        let plan = self.backend.compile(program, &cache, PlanOptions::default()).expect("the program compiles");
        Sequence { runner: self, cache, plan, past: 0 }
    }

    /// Logits of every row of a prompt that is fed in chunks of these sizes (the last one repeats).
    pub(crate) fn logits(&self, ids: &[u32], sizes: &[usize]) -> Vec<f32> {
        let mut sequence = self.start(&self.forward);
        let (mut at, mut all, mut sizes) = (0, Vec::new(), sizes.iter().copied().peekable());
        let mut size = 1;
        while at < ids.len() {
            size = sizes.next().unwrap_or(size);
            let end = (at + size).min(ids.len());
            all.extend(sequence.feed(&ids[at..end]).values.remove("logits").expect("logits"));
            at = end;
        }
        all
    }

    /// Greedy ids after a prompt.
    pub(crate) fn greedy(&self, prompt: &[u32], count: usize) -> Vec<u32> {
        let mut sequence = self.start(&self.forward);
        let vocab = self.model.facts().vocab;
        let mut ids: Vec<u32> = Vec::new();
        let mut next = prompt.to_vec();
        for _ in 0..count {
            let logits = sequence.feed(&next).values.remove("logits").expect("logits");
            let last = &logits[logits.len() - vocab..];
            ids.push(argmax(last) as u32);
            next = vec![ids[ids.len() - 1]];
        }
        ids
    }

    /// `hidden` as (layers + 1, rows, hidden), and the rows after the last norm.
    pub(crate) fn hidden(&self, ids: &[u32]) -> (Vec<f32>, Vec<f32>) {
        let layers = self.model.facts().layers;
        let forward = Forward { taps: (0..=layers).collect(), final_norm: true, ..self.forward.clone() };
        let mut output = self.start(&forward).feed(ids);
        let hidden = (0..=layers).flat_map(|i| output.values.remove(&format!("hidden.{i}")).expect("a tap")).collect();
        (hidden, output.values.remove("final_norm").expect("the last norm"))
    }

    /// Logits of single-token steps after a prompt.
    pub(crate) fn decode_after(&self, prompt: &[u32], ids: &[u32]) -> Vec<f32> {
        let mut sequence = self.start(&self.forward);
        sequence.feed(prompt);
        ids.iter().flat_map(|id| sequence.feed(&[*id]).values.remove("logits").expect("logits")).collect()
    }

    /// State of the first delta-rule layer after a prompt.
    pub(crate) fn state_after(&self, prompt: &[u32]) -> SlotState {
        let mut sequence = self.start(&self.forward);
        sequence.feed(prompt);
        self.backend.read_slot(&sequence.cache, 1, 0).expect("the slot is there")
    }
}

impl Sequence<'_> {
    fn feed(&mut self, ids: &[u32]) -> StepOutput {
        let pages = (0..CONTEXT / PAGE_ROWS + 1).rev().map(|p| p as u32).collect();
        let inputs = StepInputs {
            tokens: ids.to_vec(),
            positions: (0..ids.len()).map(|i| [(self.past + i) as u32; 3]).collect(),
            segments: vec![Segment {
                rows: 0..ids.len(),
                slot: 1,
                pages,
                past: self.past,
                accepted: 0,
                speculative: false,
            }],
            logit_rows: (0..ids.len()).collect(),
            ..StepInputs::default()
        };
        self.past += ids.len();
        let ticket = self.runner.backend.run(&self.plan, inputs).expect("the step starts");
        wait(&*self.runner.backend, ticket).expect("the step ends")
    }
}
