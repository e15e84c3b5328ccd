//! The measured runs. Prefill and decode go through the engine, as every answer does; stages and steps of several rows
//! run the same programs directly, with a clock at every op.

use super::report::Stage;
use crate::args::BenchArgs;
use anyhow::{Result, bail};
use onebit_engine::{Engine, EngineOptions, Event, Request, SamplingParams};
use onebit_models::{Forward, Model};
use onebit_ops::{
    Activations, Backend, Bucket, Cache, KvFormat, PAGE_ROWS, Plan, PlanOptions, Program, Segment, StepInputs, wait,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// Most rows of a speculative step.
pub(super) const MAX_ROWS: usize = 8;

/// Profiled steps; each stage reports its median.
const PROFILED: usize = 5;

pub(super) struct Bench<'a> {
    args: &'a BenchArgs,
    model: Arc<Model>,
    backend: Arc<dyn Backend>,
    engine: Engine,
    context: usize,
    random: u32,
}

impl<'a> Bench<'a> {
    pub(super) fn new(args: &'a BenchArgs, model: Arc<Model>, backend: Arc<dyn Backend>) -> Result<Self> {
        let needed = args.depth + args.prompt.max(1) + (args.generate + 2 + PROFILED) * args.rows + 2;
        let context = args.run.ctx.unwrap_or(needed);
        if context < needed {
            bail!("--ctx {context} is too small: depth, prompt and generated tokens need {needed}");
        }
        let activations = args.run.activations.resolve(backend.caps().default_activations);
        let options = EngineOptions {
            kv: args.run.kv_quant.resolve(activations),
            activations: Some(activations),
            ..EngineOptions::new(context)
        };
        let engine = Engine::new(model.clone(), backend.clone(), options)?;
        Ok(Bench { args, model, backend, engine, context, random: 1 })
    }

    pub(super) fn device(&self) -> String {
        self.backend.caps().device.clone()
    }

    pub(super) fn activations(&self) -> Activations {
        self.engine.activations()
    }

    pub(super) fn kv(&self) -> KvFormat {
        self.engine.options().kv
    }

    /// Token ids that follow a fixed pseudo-random sequence.
    fn tokens(&mut self, count: usize) -> Vec<u32> {
        let vocab = self.model.facts().vocab as u32;
        let mut next = || {
            self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.random >> 8) % vocab
        };
        (0..count).map(|_| next()).collect()
    }

    /// The first `depth` tokens, always the same, so that they are read once.
    fn head(&mut self) -> Vec<u32> {
        self.random = 1;
        self.tokens(self.args.depth)
    }

    fn request(&self, tokens: Vec<u32>, generate: usize) -> Request {
        let depth = self.args.depth;
        Request {
            sampling: SamplingParams::greedy(),
            max_tokens: Some(generate),
            keep: depth > 0,
            checkpoints: if depth > 0 && depth < tokens.len() { vec![depth] } else { Vec::new() },
            ..Request::new(tokens)
        }
    }

    /// Prompt tokens a second, from the request to its first token, beyond the cached depth.
    pub(super) fn prefill(&mut self) -> Result<f64> {
        let mut tokens = self.head();
        if !tokens.is_empty() {
            // Reads the depth, or finds it kept from the last repetition.
            let mut warm = tokens.clone();
            warm.extend(self.tokens(1));
            let request = self.request(warm, 1);
            self.engine.generate(request, |_| ControlFlow::Continue(()))?;
        }
        self.random = self.random.wrapping_add(97);
        tokens.extend(self.tokens(self.args.prompt));
        let request = self.request(tokens, 1);
        let start = Instant::now();
        let done = self.engine.generate(request, |_| ControlFlow::Continue(()))?;
        let seconds = start.elapsed().as_secs_f64();
        Ok((done.usage.prompt_tokens - done.usage.cached_tokens) as f64 / seconds)
    }

    /// Generated tokens a second, the first one not counted.
    pub(super) fn decode(&mut self) -> Result<f64> {
        if self.args.rows > 1 {
            return self.decode_rows();
        }
        let mut tokens = self.head();
        tokens.extend(self.tokens(1));
        // An answer of one token has no second one to measure.
        let request = self.request(tokens, self.args.generate + 1);
        let (mut first, mut last, mut count) = (None, Instant::now(), 0usize);
        self.engine.generate(request, |event| {
            if matches!(event, Event::Token { .. }) {
                last = Instant::now();
                first.get_or_insert(last);
                count += 1;
            }
            ControlFlow::Continue(())
        })?;
        match first {
            Some(first) if count > 1 => Ok((count - 1) as f64 / (last - first).as_secs_f64()),
            _ => bail!("{count} tokens were generated, which is too few to measure"),
        }
    }

    /// Tokens a second of steps with several rows of one sequence, all of them accepted by the next step.
    fn decode_rows(&mut self) -> Result<f64> {
        let (rows, steps) = (self.args.rows, self.args.generate.div_ceil(self.args.rows));
        let mut stepper = Stepper::new(self, rows, false)?;
        let tokens = self.head();
        stepper.read(&tokens)?;
        stepper.step(&self.tokens(rows), true)?;
        let start = Instant::now();
        for _ in 0..steps {
            let tokens = self.tokens(rows);
            stepper.step(&tokens, true)?;
        }
        Ok((steps * rows) as f64 / start.elapsed().as_secs_f64())
    }

    fn forward(&self) -> Forward {
        Forward::new(self.engine.activations())
    }

    /// Bytes that one decode step must move in the middle of the measured run.
    pub(super) fn bytes_per_step(&self) -> u64 {
        let bucket = Bucket { rows: self.args.rows, logits: self.args.rows, context: self.context };
        let program = self.model.program(bucket, &self.forward());
        let segment = segment(self.args.rows, self.args.depth + self.args.generate / 2, 0, Vec::new(), false);
        program.ops.iter().map(|op| op.cost(self.args.rows, std::slice::from_ref(&segment), self.kv()).bytes).sum()
    }

    /// Stages of a decode step and of a prefill chunk; empty for what is not measured.
    pub(super) fn stages(&mut self) -> Result<(Vec<Stage>, Vec<Stage>)> {
        let mut decode = Vec::new();
        if self.args.generate > 0 {
            let rows = self.args.rows;
            let mut stepper = Stepper::new(self, rows, true)?;
            let tokens = self.head();
            stepper.read(&tokens)?;
            stepper.step(&self.tokens(rows), rows > 1)?;
            let mut runs = Vec::new();
            for _ in 0..PROFILED {
                let tokens = self.tokens(rows);
                runs.push(stepper.step(&tokens, rows > 1)?);
            }
            decode = stepper.stages(&runs, rows);
        }
        let mut prefill = Vec::new();
        if self.args.prompt > 0 {
            let rows = self.args.prompt.min(self.backend.caps().prefill_rows);
            let mut stepper = Stepper::new(self, rows, true)?;
            let tokens = self.tokens(rows);
            let run = stepper.step(&tokens, false)?;
            prefill = stepper.stages(&[run], rows);
        }
        Ok((decode, prefill))
    }
}

/// One sequence driven without the engine, to see inside a step.
struct Stepper {
    backend: Arc<dyn Backend>,
    cache: Cache,
    plan: Plan,
    /// As the backend runs it, op for op.
    program: Program,
    kv: KvFormat,
    pages: Vec<u32>,
    past: usize,
    pending: usize,
}

impl Stepper {
    fn new(bench: &Bench<'_>, rows: usize, profile: bool) -> Result<Stepper> {
        let kv = bench.kv();
        let spec = bench.model.facts().cache_spec(bench.context, 1, kv);
        let cache = bench.backend.cache(spec)?;
        // A prefill chunk wants the logits of its last row only.
        let logits = if rows > MAX_ROWS { 1 } else { rows };
        let program = bench.model.program(Bucket { rows, logits, context: bench.context }, &bench.forward());
        let plan = bench.backend.compile(program.clone(), &cache, PlanOptions { profile })?;
        let program = program.lower(bench.backend.fusions());
        let pages = (0..bench.context.div_ceil(PAGE_ROWS)).map(|p| p as u32).collect();
        Ok(Stepper { backend: bench.backend.clone(), cache, plan, program, kv, pages, past: 0, pending: 0 })
    }

    /// Fills the cache.
    fn read(&mut self, tokens: &[u32]) -> Result<()> {
        for chunk in tokens.chunks(self.program.bucket.rows) {
            self.step(chunk, false)?;
        }
        Ok(())
    }

    /// One step; returns the seconds of each op when profiled.
    fn step(&mut self, tokens: &[u32], speculative: bool) -> Result<Vec<f64>> {
        debug_assert_eq!(self.cache.spec().kv.format, self.kv);
        let rows = tokens.len();
        let logits = self.program.bucket.logits.min(rows);
        let inputs = StepInputs {
            tokens: tokens.to_vec(),
            positions: (self.past..self.past + rows).map(|p| [p as u32; 3]).collect(),
            segments: vec![segment(rows, self.past, self.pending, self.pages.clone(), speculative)],
            logit_rows: (rows - logits..rows).collect(),
        };
        self.past += rows;
        self.pending = if speculative { rows } else { 0 };
        let ticket = self.backend.run(&self.plan, inputs)?;
        Ok(wait(&*self.backend, ticket)?.op_seconds)
    }

    /// Sums ops of one kind over the layers; medians over the runs.
    fn stages(&self, runs: &[Vec<f64>], rows: usize) -> Vec<Stage> {
        let segment = segment(rows, self.past - rows, 0, Vec::new(), false);
        let mut order: Vec<String> = Vec::new();
        let mut sums: BTreeMap<String, Stage> = BTreeMap::new();
        for (i, op) in self.program.ops.iter().enumerate() {
            let mut times: Vec<f64> = runs.iter().filter_map(|run| run.get(i).copied()).collect();
            times.sort_by(f64::total_cmp);
            let Some(median) = times.get(times.len() / 2) else { continue };
            let cost = op.cost(rows, std::slice::from_ref(&segment), self.kv);
            let name = without_layer(&cost.label);
            let stage = sums.entry(name.clone()).or_insert_with(|| {
                order.push(name.clone());
                Stage { name, ..Stage::default() }
            });
            stage.bytes += cost.bytes;
            stage.macs += cost.macs;
            stage.seconds += median;
        }
        order.iter().filter_map(|name| sums.remove(name)).collect()
    }
}

fn segment(rows: usize, past: usize, accepted: usize, pages: Vec<u32>, speculative: bool) -> Segment {
    Segment { rows: 0..rows, slot: 0, pages, past, accepted, speculative }
}

/// `layers.12.mlp.down` is `mlp.down` of every layer.
fn without_layer(label: &str) -> String {
    match label.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((_, name)) => name.to_owned(),
        None => label.to_owned(),
    }
}
