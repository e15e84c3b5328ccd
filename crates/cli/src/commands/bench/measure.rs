//! The measured runs. Prefill and decode go through the engine, as every answer does. Stages, steps of several rows and
//! everything at a depth run the same programs directly; a depth is not read but filled with made-up keys and values.

use super::report::Stage;
use crate::args::BenchArgs;
use anyhow::{Result, bail};
use onebit_engine::{Engine, EngineOptions, Event, Request, SamplingParams};
use onebit_models::{Forward, Model};
use onebit_ops::{
    Activations, Backend, Bucket, Cache, KvFormat, Op, PAGE_ROWS, Plan, PlanOptions, Program, Recorder, Segment,
    StepInputs, View, wait,
};
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// Most rows of a speculative step.
pub(super) const MAX_ROWS: usize = 8;

/// Pages that one step of a filled cache writes.
const FILL_PAGES: usize = 4;

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

    /// GB/s that the device reads, measured now.
    pub(super) fn read_bandwidth(&self) -> Result<Option<f64>> {
        Ok(self.backend.read_bandwidth()?)
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

    fn request(tokens: Vec<u32>, generate: usize) -> Request {
        Request { sampling: SamplingParams::greedy(), max_tokens: Some(generate), cache: false, ..Request::new(tokens) }
    }

    /// Answers a prompt of one token with one token: what a start takes at least beside loading.
    pub(super) fn first_token(&mut self) -> Result<()> {
        let prompt = self.tokens(1);
        self.engine.generate(Self::request(prompt, 1), |_| ControlFlow::Continue(()))?;
        Ok(())
    }

    /// Prompt tokens a second, from the request to its first token; beyond a depth, of the steps alone.
    pub(super) fn prefill(&mut self) -> Result<f64> {
        self.random = self.random.wrapping_add(97);
        let tokens = self.tokens(self.args.prompt);
        if self.args.depth > 0 {
            let rows = self.args.prompt.min(self.backend.caps().prefill_rows);
            let mut stepper = Stepper::new(self, rows, false)?;
            stepper.fill(self)?;
            let start = Instant::now();
            for chunk in tokens.chunks(rows) {
                stepper.step(chunk, false)?;
            }
            return Ok(tokens.len() as f64 / start.elapsed().as_secs_f64());
        }
        let start = Instant::now();
        let done = self.engine.generate(Self::request(tokens, 1), |_| ControlFlow::Continue(()))?;
        let seconds = start.elapsed().as_secs_f64();
        Ok((done.usage.prompt_tokens - done.usage.cached_tokens) as f64 / seconds)
    }

    /// Generated tokens a second, the first one not counted.
    pub(super) fn decode(&mut self) -> Result<f64> {
        if self.args.rows > 1 || self.args.depth > 0 {
            return self.decode_steps();
        }
        let tokens = self.tokens(1);
        // An answer of one token has no second one to measure.
        let request = Self::request(tokens, self.args.generate + 1);
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

    /// Tokens a second of so many sequences together, each with a prompt of its own: from when all have a first token to
    /// when the first of them ends.
    pub(super) fn together(&mut self, sequences: usize) -> Result<f64> {
        const PROMPT: usize = 16;
        // So many tokens are not answered by those that wait for the last prompt to be read.
        let generate = self.args.generate + sequences;
        let options = EngineOptions {
            sequences,
            cached_tokens: None,
            context: PROMPT + generate + 1,
            ..self.engine.options().clone()
        };
        let mut engine = Engine::new(self.model.clone(), self.backend.clone(), options)?;
        for _ in 0..sequences {
            engine.submit(Self::request(self.tokens(PROMPT), generate))?;
        }
        let (mut begun, mut started, mut count) = (HashSet::new(), None, 0usize);
        loop {
            for event in engine.step()? {
                match event {
                    Event::Token { id, .. } => {
                        count += usize::from(started.is_some());
                        begun.insert(id);
                    }
                    Event::Finished { .. } => {
                        let Some(started): Option<Instant> = started else {
                            bail!("a sequence ended before the last of {sequences} began: -n is too small")
                        };
                        return Ok(count as f64 / started.elapsed().as_secs_f64());
                    }
                    Event::Failed { error, .. } => return Err(error.into()),
                    Event::Prefill { .. } | Event::Diverged { .. } => {}
                }
            }
            if begun.len() == sequences && started.is_none() {
                started = Some(Instant::now());
            }
        }
    }

    /// Tokens a second of steps of one sequence; several rows are all accepted by the next step.
    fn decode_steps(&mut self) -> Result<f64> {
        let (rows, steps) = (self.args.rows, self.args.generate.div_ceil(self.args.rows));
        let mut stepper = Stepper::new(self, rows, false)?;
        stepper.fill(self)?;
        stepper.step(&self.tokens(rows), rows > 1)?;
        let start = Instant::now();
        for _ in 0..steps {
            let tokens = self.tokens(rows);
            stepper.step(&tokens, rows > 1)?;
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
            stepper.fill(self)?;
            decode = self.decode_stages(stepper, rows)?;
        }
        let mut prefill = Vec::new();
        if self.args.prompt > 0 {
            let rows = self.args.prompt.min(self.backend.caps().prefill_rows);
            let mut stepper = Stepper::new(self, rows, true)?;
            stepper.fill(self)?;
            let tokens = self.tokens(rows);
            let run = stepper.step(&tokens, false)?;
            prefill = stepper.stages(&[run], rows);
        }
        Ok((decode, prefill))
    }

    /// Stages of a decode step of so many sequences together.
    pub(super) fn stages_together(&mut self, sequences: usize) -> Result<Vec<Stage>> {
        let stepper = Stepper::together(self, sequences)?;
        self.decode_stages(stepper, sequences)
    }

    fn decode_stages(&mut self, mut stepper: Stepper, rows: usize) -> Result<Vec<Stage>> {
        let speculative = rows > 1 && stepper.sequences == 1;
        stepper.step(&self.tokens(rows), speculative)?;
        let mut runs = Vec::new();
        for _ in 0..PROFILED {
            let tokens = self.tokens(rows);
            runs.push(stepper.step(&tokens, speculative)?);
        }
        Ok(stepper.stages(&runs, rows))
    }
}

/// One sequence, or several of a row each, driven without the engine, to see inside a step.
struct Stepper {
    backend: Arc<dyn Backend>,
    cache: Cache,
    plan: Plan,
    /// As the backend runs it, op for op.
    program: Program,
    kv: KvFormat,
    sequences: usize,
    /// Of each sequence.
    pages: Vec<Vec<u32>>,
    past: usize,
    pending: usize,
}

impl Stepper {
    fn new(bench: &Bench<'_>, rows: usize, profile: bool) -> Result<Stepper> {
        // A prefill chunk wants the logits of its last row only.
        let logits = if rows > MAX_ROWS { 1 } else { rows };
        Stepper::of(bench, 1, Bucket { rows, logits, context: bench.context }, profile)
    }

    /// Profiled steps of one row of each sequence; every context is that of the profile alone.
    fn together(bench: &Bench<'_>, sequences: usize) -> Result<Stepper> {
        Stepper::of(bench, sequences, Bucket { rows: sequences, logits: sequences, context: PAGE_ROWS }, true)
    }

    fn of(bench: &Bench<'_>, sequences: usize, bucket: Bucket, profile: bool) -> Result<Stepper> {
        let (kv, each) = (bench.kv(), bucket.context.div_ceil(PAGE_ROWS));
        let spec = bench.model.facts().cache_spec(each * PAGE_ROWS * sequences, sequences, kv);
        let cache = bench.backend.cache(spec)?;
        let program = bench.model.program(bucket, &bench.forward());
        let plan = bench.backend.compile(program.clone(), &cache, PlanOptions { profile })?;
        let program = program.lower(bench.backend.fusions());
        let pages = (0..sequences).map(|s| (s * each..(s + 1) * each).map(|page| page as u32).collect()).collect();
        Ok(Stepper { backend: bench.backend.clone(), cache, plan, program, kv, sequences, pages, past: 0, pending: 0 })
    }

    /// Fills the cache up to the depth: every layer keeps pieces of embedding rows as keys and values.
    fn fill(&mut self, bench: &mut Bench<'_>) -> Result<()> {
        let depth = bench.args.depth;
        let table =
            self.program.ops.iter().find_map(|op| if let Op::Embed { table, .. } = op { Some(table) } else { None });
        let Some(table) = table.filter(|_| depth > 0) else { return Ok(()) };
        let kv = self.cache.spec().kv;
        let rows = FILL_PAGES * PAGE_ROWS;
        let mut recorder = Recorder::new(Bucket { rows, logits: 0, context: rows });
        let whole = recorder.embed(table);
        if kv.heads * kv.dim > whole.cols() {
            bail!("--depth needs embeddings at least as wide as the keys: {} of {}", whole.cols(), kv.heads * kv.dim);
        }
        let part = View { heads: kv.heads, dim: kv.dim, stride: kv.dim, ..whole };
        for layer in 0..kv.layers {
            recorder.attention(part, part, part, layer, 1.0);
        }
        let plan = self.backend.compile(recorder.finish(), &self.cache, PlanOptions { profile: false })?;
        for (start, pages) in (0..depth).step_by(rows).zip(self.pages[0].chunks(FILL_PAGES)) {
            let count = rows.min(depth - start);
            // Each piece is a sequence of its own, which looks back at nothing.
            let inputs = StepInputs {
                tokens: bench.tokens(count),
                positions: (start..start + count).map(|p| [p as u32; 3]).collect(),
                segments: vec![segment(count, 0, 0, pages.to_vec(), false)],
                ..StepInputs::default()
            };
            wait(&*self.backend, self.backend.run(&plan, inputs)?)?;
        }
        self.past = depth;
        Ok(())
    }

    /// One step; returns the seconds of each op when profiled.
    fn step(&mut self, tokens: &[u32], speculative: bool) -> Result<Vec<f64>> {
        debug_assert_eq!(self.cache.spec().kv.format, self.kv);
        let rows = tokens.len();
        let logits = self.program.bucket.logits.min(rows);
        let each = rows / self.sequences;
        let segments = self.segments(each, self.past, &self.pages, speculative);
        let inputs = StepInputs {
            tokens: tokens.to_vec(),
            positions: (0..rows).map(|row| [(self.past + row % each) as u32; 3]).collect(),
            segments,
            logit_rows: (rows - logits..rows).collect(),
            ..StepInputs::default()
        };
        self.past += each;
        self.pending = if speculative { rows } else { 0 };
        let ticket = self.backend.run(&self.plan, inputs)?;
        Ok(wait(&*self.backend, ticket)?.op_seconds)
    }

    /// So many rows of each sequence behind so many.
    fn segments(&self, each: usize, past: usize, pages: &[Vec<u32>], speculative: bool) -> Vec<Segment> {
        let one = |(i, pages): (usize, &Vec<u32>)| Segment {
            rows: i * each..(i + 1) * each,
            slot: i,
            ..segment(each, past, self.pending, pages.clone(), speculative)
        };
        pages.iter().enumerate().map(one).collect()
    }

    /// Sums ops of one kind over the layers; medians over the runs.
    fn stages(&self, runs: &[Vec<f64>], rows: usize) -> Vec<Stage> {
        let each = rows / self.sequences;
        let segments = self.segments(each, self.past - each, &vec![Vec::new(); self.sequences], false);
        let mut order: Vec<String> = Vec::new();
        let mut sums: BTreeMap<String, Stage> = BTreeMap::new();
        for (i, op) in self.program.ops.iter().enumerate() {
            let mut times: Vec<f64> = runs.iter().filter_map(|run| run.get(i).copied()).collect();
            times.sort_by(f64::total_cmp);
            let Some(median) = times.get(times.len() / 2) else { continue };
            let cost = op.cost(rows, &segments, self.kv);
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
