//! Features of the engine, each with each other one, on a hybrid: greedy text and state are those of the plain run.
//!
//! With f32 activations a row's result depends neither on how a prompt is cut nor on its neighbours, so that texts are
//! equal. Where a backend promises less than equal bits, a text may part where the two likeliest tokens are closer than
//! twice the error that goldens are held to: 5e-4 of the largest logit.

use crate::case::Case;
use onebit::load;
use onebit_backend_cpu::{CpuBackend, CpuOptions};
use onebit_conformance::mock::MockDevice;
use onebit_engine::{Constraint, Engine, EngineOptions, Event, Request, RequestId, SamplingParams};
use onebit_models::{LoadOptions, Model};
use onebit_ops::{
    Activations, Backend, Cache, CacheSpec, Caps, FormatSupport, Fusions, KvFormat, OpError, Plan, PlanOptions,
    Program, SlotState, StepInputs, StepOutput, Ticket, UploadOptions, Vector, Weight,
};
use onebit_quant::{Format, Matrix};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The second has a head that guesses tokens (MTP), which must change nothing.
const CASES: [&str; 2] = ["qwen35_1bit_untied", "qwen35_1bit_mtp"];
const ANSWER: usize = 12;
const VOCAB: usize = 320;

/// Tokens, their likeliest alternatives with log-probabilities, and how many prompt tokens came from the cache.
type Drained = (Vec<u32>, Vec<Vec<(u32, f32)>>, usize);

/// What is on beside the plain run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feature {
    /// The beginning of the prompt was read before.
    PrefixCache,
    /// The prompt is read in pieces of 24 tokens.
    ChunkedPrefill,
    /// Two neighbours run beside, one of them ends early.
    Batching,
    /// Keys and values are kept in 8 bits.
    KvQuantisation,
    /// Every third token is forbidden.
    Constraint,
}

use Feature::{Batching, ChunkedPrefill, Constraint as Constrained, KvQuantisation, PrefixCache};

const FEATURES: [Feature; 5] = [PrefixCache, ChunkedPrefill, Batching, KvQuantisation, Constrained];

/// Forbids every third token.
struct EveryThird;

impl Constraint for EveryThird {
    fn mask(&mut self) -> Result<Arc<[u32]>, String> {
        let word =
            |w: usize| (0..32).filter(|bit| !(32 * w + bit).is_multiple_of(3)).fold(0, |word, bit| word | 1 << bit);
        Ok((0..VOCAB.div_ceil(32)).map(word).collect())
    }
    fn accept(&mut self, token: u32) -> Result<(), String> {
        if token.is_multiple_of(3) { Err(format!("token {token} is forbidden")) } else { Ok(()) }
    }
    fn is_complete(&self) -> bool {
        false
    }
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(EveryThird)
    }
}

/// A backend whose cache and steps can be looked at.
struct Watched {
    inner: Arc<dyn Backend>,
    cache: Mutex<Option<Cache>>,
    steps: Mutex<Vec<StepInputs>>,
}

impl Watched {
    fn new(inner: Arc<dyn Backend>) -> Arc<Watched> {
        Arc::new(Watched { inner, cache: Mutex::default(), steps: Mutex::default() })
    }

    /// The state of the sequence whose tokens these are, after the steps since the last call.
    fn state_of(&self, tokens: &[u32], layers: usize) -> Vec<SlotState> {
        let steps = std::mem::take(&mut *self.steps.lock().expect("one thread"));
        let is_its = |step: &StepInputs, rows: &std::ops::Range<usize>, past: usize| {
            tokens.len() >= past + rows.len() && step.tokens[rows.clone()] == tokens[past..past + rows.len()]
        };
        let segments = steps.iter().flat_map(|step| step.segments.iter().map(move |s| (step, s)));
        // The last one to read its last tokens; a carried token is not in the step.
        let mut found =
            segments.filter(|(step, s)| s.past + 2 > tokens.len() - ANSWER && is_its(step, &s.rows, s.past));
        let slot = found.next_back().map(|(_, s)| s.slot).expect("the sequence was read");
        let cache = self.cache.lock().expect("one thread").clone().expect("a cache was made");
        (0..layers).map(|layer| self.inner.read_slot(&cache, slot, layer).expect("a slot")).collect()
    }
}

impl Backend for Watched {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn fusions(&self) -> Fusions {
        self.inner.fusions()
    }
    fn format_support(&self, format: Format) -> FormatSupport {
        self.inner.format_support(format)
    }
    fn upload(&self, name: &str, parts: &[Matrix<'_>], options: UploadOptions) -> Result<Weight, OpError> {
        self.inner.upload(name, parts, options)
    }
    fn upload_vector(&self, values: &[f32]) -> Result<Vector, OpError> {
        self.inner.upload_vector(values)
    }
    fn cache(&self, spec: CacheSpec) -> Result<Cache, OpError> {
        let cache = self.inner.cache(spec)?;
        *self.cache.lock().expect("one thread") = Some(cache.clone());
        Ok(cache)
    }
    fn clear_slot(&self, cache: &Cache, slot: usize) -> Result<(), OpError> {
        self.inner.clear_slot(cache, slot)
    }
    fn copy_slot(&self, cache: &Cache, from: usize, to: usize) -> Result<(), OpError> {
        self.inner.copy_slot(cache, from, to)
    }
    fn copy_page(&self, cache: &Cache, from: u32, to: u32) -> Result<(), OpError> {
        self.inner.copy_page(cache, from, to)
    }
    fn read_slot(&self, cache: &Cache, slot: usize, layer: usize) -> Result<SlotState, OpError> {
        self.inner.read_slot(cache, slot, layer)
    }
    fn compile(&self, program: Program, cache: &Cache, options: PlanOptions) -> Result<Plan, OpError> {
        self.inner.compile(program, cache, options)
    }
    fn run(&self, plan: &Plan, inputs: StepInputs) -> Result<Ticket, OpError> {
        self.steps.lock().expect("one thread").push(inputs.clone());
        self.inner.run(plan, inputs)
    }
    fn poll(&self, ticket: Ticket) -> Result<Option<StepOutput>, OpError> {
        self.inner.poll(ticket)
    }
}

/// What a run gave: tokens, the log-probabilities of the likeliest ones beside each, and the state it ended with.
struct Run {
    tokens: Vec<u32>,
    tops: Vec<Vec<(u32, f32)>>,
    state: Vec<SlotState>,
    cached: usize,
}

struct Bench {
    case: String,
    backend: Arc<Watched>,
    model: Arc<Model>,
    prompt: Vec<u32>,
    neighbours: [Vec<u32>; 2],
    layers: usize,
}

impl Bench {
    fn new(backend: Arc<dyn Backend>, case: &str) -> Bench {
        let case = Case::all().into_iter().find(|c| c.name == case).expect("the case is there");
        let backend = Watched::new(backend);
        let source = load::open(&case.model(), &load::Options::default()).expect("the case can be read");
        let model = Model::load(&source, &*backend, LoadOptions::default(), &mut |_| {}).expect("the case loads");
        let layers = model.facts().state.map_or(0, |s| s.layers);
        assert_eq!(model.facts().vocab, VOCAB);
        let neighbours = [case.ids("ids.65"), case.ids("ids.7")];
        Bench {
            case: case.name.clone(),
            backend,
            model: Arc::new(model),
            prompt: case.ids("ids.130"),
            neighbours,
            layers,
        }
    }

    fn engine(&self, features: &[Feature]) -> Engine {
        let has = |f| features.contains(&f);
        let options = EngineOptions {
            sequences: 3,
            checkpoints: 3,
            kv: if has(KvQuantisation) { KvFormat::Q8 } else { KvFormat::F32 },
            activations: Some(Activations::F32),
            prefill_rows: Some(if has(ChunkedPrefill) { 24 } else { 200 }),
            run_ahead: Some(false),
            ..EngineOptions::new(256)
        };
        Engine::new(self.model.clone(), self.backend.clone(), options).expect("good options")
    }

    fn request(&self, tokens: Vec<u32>, features: &[Feature]) -> Request {
        let constrained = features.contains(&Constrained);
        Request {
            sampling: SamplingParams::greedy(),
            max_tokens: Some(ANSWER),
            logprobs: Some(20),
            constraint: constrained.then(|| Box::new(EveryThird) as Box<dyn Constraint>),
            cache: features.contains(&PrefixCache),
            // Not a multiple of a page.
            checkpoints: [70].into_iter().filter(|at| *at < tokens.len()).collect(),
            ..Request::new(tokens)
        }
    }

    /// Runs what was submitted; the tokens of one request, with their alternatives.
    fn drain(engine: &mut Engine, wanted: RequestId) -> Drained {
        let mut all: BTreeMap<RequestId, Drained> = BTreeMap::new();
        while !engine.is_idle() {
            for event in engine.step().expect("a good step") {
                let entry = all.entry(event.id()).or_default();
                match event {
                    Event::Token { token, logprobs, .. } => {
                        entry.0.push(token);
                        entry.1.push(logprobs.expect("they were asked for").top);
                    }
                    Event::Finished { usage, .. } => entry.2 = usage.cached_tokens,
                    Event::Failed { error, .. } => panic!("{error}"),
                    Event::Prefill { .. } | Event::Diverged { .. } => {}
                }
            }
        }
        assert_eq!(engine.step(), Ok(vec![]), "nothing leaked");
        all.remove(&wanted).expect("the request is among them")
    }

    fn run(&self, features: &[Feature]) -> Run {
        let mut engine = self.engine(features);
        if features.contains(&PrefixCache) {
            // Shares 90 tokens, of which 70 can serve.
            let mut warm = self.prompt[..90].to_vec();
            warm.extend(&self.neighbours[1]);
            let warm = engine.submit(self.request(warm, features)).expect("a good request");
            Self::drain(&mut engine, warm);
        }
        self.backend.steps.lock().expect("one thread").clear();
        let before = features.contains(&Batching).then(|| self.request(self.neighbours[0].clone(), features));
        before.into_iter().for_each(|r| assert!(engine.submit(r).is_ok()));
        let id = engine.submit(self.request(self.prompt.clone(), features)).expect("a good request");
        if features.contains(&Batching) {
            let short = Request { max_tokens: Some(3), ..self.request(self.neighbours[1].clone(), features) };
            engine.submit(short).expect("a good request");
        }
        let (tokens, tops, cached) = Self::drain(&mut engine, id);
        let all = [self.prompt.clone(), tokens.clone()].concat();
        Run { tokens, tops, state: self.backend.state_of(&all, self.layers), cached }
    }

    fn check(&self, features: &[Feature]) {
        // Quantised keys and values, and a form, make another answer; it is compared with its own plain run.
        let kept: Vec<Feature> =
            features.iter().copied().filter(|f| matches!(f, KvQuantisation | Constrained)).collect();
        let (plain, got) = (self.run(&kept), self.run(features));
        let name = format!("{features:?} of {} on {}", self.case, self.backend.caps().name);
        assert_eq!(got.cached, if features.contains(&PrefixCache) { 70 } else { 0 }, "{name}");
        assert_eq!(got.tokens.len(), ANSWER);
        if let Some(at) = (0..ANSWER).find(|i| plain.tokens[*i] != got.tokens[*i]) {
            let allowed = |t: u32| !features.contains(&Constrained) || !t.is_multiple_of(3);
            let top: Vec<f32> = plain.tops[at].iter().filter(|(t, _)| allowed(*t)).map(|(_, p)| *p).collect();
            let largest = plain.tops[at].iter().map(|(_, p)| p.abs()).fold(1.0, f32::max);
            assert!(
                top[0] - top[1] < 2.0 * 5e-4 * largest,
                "{name}: token {at} of {:?}, {:?}",
                plain.tokens,
                got.tokens
            );
            return;
        }
        for (layer, (a, b)) in plain.state.iter().zip(&got.state).enumerate() {
            for (what, a, b) in [("delta", &a.delta, &b.delta), ("window", &a.window, &b.window)] {
                let size = a.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let off = a.iter().zip(b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(off <= 5e-4 * size, "{name}: {what} of layer {layer} is {off:e} off, of {size:e}");
            }
        }
    }
}

fn backends() -> Vec<Arc<dyn Backend>> {
    let cpu = CpuBackend::new(CpuOptions { threads: Some(2), tier: None }).expect("the best tier opens");
    vec![Arc::new(cpu), Arc::new(MockDevice::new())]
}

fn benches() -> impl Iterator<Item = Bench> {
    CASES.into_iter().flat_map(|case| backends().into_iter().map(move |backend| Bench::new(backend, case)))
}

#[test]
fn every_pair_of_features_gives_the_plain_answer() {
    for bench in benches() {
        for (i, a) in FEATURES.into_iter().enumerate() {
            bench.check(&[a]);
            for b in FEATURES.into_iter().skip(i + 1) {
                bench.check(&[a, b]);
            }
        }
        bench.check(&FEATURES);
    }
}

#[test]
fn an_exact_hit_and_a_resumed_answer_have_the_same_bits() {
    for bench in benches() {
        let name = bench.backend.caps().name.clone();
        let mut engine = bench.engine(&[]);
        let request = |tokens: Vec<u32>, max| Request {
            max_tokens: Some(max),
            checkpoints: vec![bench.prompt.len() - 4],
            ..bench.request(tokens, &[PrefixCache])
        };
        let mut once = |request: Request| {
            let id = engine.submit(request).expect("a good request");
            let (tokens, _, cached) = Bench::drain(&mut engine, id);
            let all = [bench.prompt.clone(), tokens.clone()].concat();
            (tokens, cached, all)
        };
        let (cold, _, all) = once(request(bench.prompt.clone(), ANSWER));
        let state = bench.backend.state_of(&all, bench.layers);
        let (again, cached, all) = once(request(bench.prompt.clone(), ANSWER));
        assert_eq!((&again, cached), (&cold, bench.prompt.len() - 4), "{name}");
        assert!(bench.backend.state_of(&all, bench.layers) == state, "{name}: the state after an exact hit");

        // Cancelled after five tokens, then asked to go on from there.
        let mut engine = bench.engine(&[]);
        let id = engine.submit(request(bench.prompt.clone(), ANSWER)).expect("a good request");
        let mut said = Vec::new();
        while said.len() < 5 {
            let events = engine.step().expect("a good step");
            said.extend(
                events.iter().filter_map(|e| if let Event::Token { token, .. } = e { Some(*token) } else { None }),
            );
        }
        engine.cancel(id).expect("under way");
        let longer = [bench.prompt.clone(), said.clone()].concat();
        bench.backend.steps.lock().expect("one thread").clear();
        let id = engine.submit(request(longer, ANSWER - 5)).expect("a good request");
        let (rest, _, cached) = Bench::drain(&mut engine, id);
        assert_eq!([said, rest].concat(), cold, "{name}");
        assert_eq!(cached, bench.prompt.len() + 4, "{name}");
        let all = [bench.prompt.clone(), cold].concat();
        assert!(bench.backend.state_of(&all, bench.layers) == state, "{name}: the state of a resumed answer");
    }
}
