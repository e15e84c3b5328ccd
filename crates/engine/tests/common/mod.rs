//! Tiny models with random weights, a backend that can be scripted, and a byte tokenizer.

#![allow(dead_code, reason = "each test binary uses its own part")]

use onebit_engine::{Engine, EngineOptions, Event, FinishReason, Request, Usage};
use onebit_models::{LoadOptions, Model};
use onebit_ops::reference::{Reference, sample};
use onebit_ops::{
    Backend, Cache, CacheSpec, Caps, DenseTensor, FormatSupport, Fusions, Meta, Op, OpError, Plan, PlanOptions,
    Program, SlotState, SourceError, StepInputs, StepOutput, Ticket, UploadOptions, Vector, Weight, WeightSource, wait,
};
use onebit_quant::{Format, Matrix, Packed, quantize};
use onebit_text::Tokenizer;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) const VOCAB: usize = 320;

/// A checkpoint in memory, with Hugging Face names.
#[derive(Default)]
pub(crate) struct Source {
    meta: BTreeMap<String, Meta>,
    matrices: BTreeMap<String, Packed>,
    dense: BTreeMap<String, DenseTensor>,
    noise: u64,
}

impl Source {
    fn unit(&mut self) -> f32 {
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.noise >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn ints(&mut self, values: &[(&str, i64)]) {
        self.meta.extend(values.iter().map(|(key, value)| ((*key).to_owned(), Meta::Int(*value))));
    }

    fn put(&mut self, name: &str, rows: usize, cols: usize) {
        let values: Vec<f32> = (0..rows * cols).map(|_| self.unit() * (3.0 / cols as f32).sqrt()).collect();
        self.matrices.insert(name.to_owned(), quantize(Format::Q1_0, rows, cols, &values).expect("whole groups"));
    }

    fn vector(&mut self, name: &str, shape: &[usize], centre: f32, spread: f32) {
        let values = (0..shape.iter().product()).map(|_| centre + spread * self.unit()).collect();
        self.dense.insert(name.to_owned(), DenseTensor { shape: shape.to_vec(), values });
    }

    fn common(layers: usize, kind: &str, context: usize) -> Source {
        let mut s = Source { noise: 7, ..Source::default() };
        s.meta.insert("model_type".to_owned(), Meta::Text(kind.to_owned()));
        s.meta.insert("tie_word_embeddings".to_owned(), Meta::Bool(true));
        s.meta.insert("rms_norm_eps".to_owned(), Meta::Float(1e-6));
        s.meta.insert("rope_theta".to_owned(), Meta::Float(1e4));
        s.ints(&[
            ("num_hidden_layers", layers as i64),
            ("num_attention_heads", 2),
            ("num_key_value_heads", 1),
            ("head_dim", 64),
            ("max_position_embeddings", context as i64),
        ]);
        s.put("model.embed_tokens", VOCAB, 128);
        s.vector("model.norm.weight", &[128], 1.0, 0.1);
        for i in 0..layers {
            let at = |leaf: &str| format!("model.layers.{i}.{leaf}");
            s.vector(&at("input_layernorm.weight"), &[128], 1.0, 0.1);
            s.vector(&at("post_attention_layernorm.weight"), &[128], 1.0, 0.1);
            s.put(&at("mlp.gate_proj"), 256, 128);
            s.put(&at("mlp.up_proj"), 256, 128);
            s.put(&at("mlp.down_proj"), 128, 256);
        }
        s
    }

    fn attention(&mut self, i: usize, query_rows: usize) {
        let at = |leaf: &str| format!("model.layers.{i}.self_attn.{leaf}");
        self.put(&at("q_proj"), query_rows, 128);
        self.put(&at("k_proj"), 64, 128);
        self.put(&at("v_proj"), 64, 128);
        self.put(&at("o_proj"), 128, 128);
        self.vector(&at("q_norm.weight"), &[64], 1.0, 0.1);
        self.vector(&at("k_norm.weight"), &[64], 1.0, 0.1);
    }

    /// A dense decoder of two layers.
    pub(crate) fn dense(context: usize) -> Source {
        let mut s = Source::common(2, "qwen3", context);
        (0..2).for_each(|i| s.attention(i, 128));
        s
    }

    /// Three delta-rule layers and one of attention.
    pub(crate) fn hybrid(context: usize) -> Source {
        let mut s = Source::common(4, "qwen3_5", context);
        s.ints(&[
            ("linear_num_key_heads", 2),
            ("linear_num_value_heads", 4),
            ("linear_key_head_dim", 32),
            ("linear_value_head_dim", 32),
            ("linear_conv_kernel_dim", 4),
        ]);
        for i in 0..3 {
            let at = |leaf: &str| format!("model.layers.{i}.linear_attn.{leaf}");
            s.put(&at("in_proj_qkv"), 256, 128);
            s.put(&at("in_proj_z"), 128, 128);
            s.put(&at("in_proj_b"), 4, 128);
            s.put(&at("in_proj_a"), 4, 128);
            s.put(&at("out_proj"), 128, 128);
            s.vector(&at("conv1d.weight"), &[256, 4, 1], 0.0, 0.8);
            s.vector(&at("A_log"), &[4], -1.0, 0.5);
            s.vector(&at("dt_bias"), &[4], -1.0, 0.5);
            s.vector(&at("norm.weight"), &[32], 1.0, 0.1);
        }
        s.attention(3, 256);
        s
    }
}

impl WeightSource for Source {
    fn is_gguf(&self) -> bool {
        false
    }
    fn meta(&self, key: &str) -> Option<Meta> {
        self.meta.get(key).cloned()
    }
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let matrices = self.matrices.iter().map(|(name, m)| (format!("{name}.weight"), vec![m.rows, m.cols]));
        matrices.chain(self.dense.iter().map(|(name, t)| (name.clone(), t.shape.clone()))).collect()
    }
    fn matrix(&self, base: &str) -> Result<Option<Matrix<'_>>, SourceError> {
        Ok(self.matrices.get(base).map(Packed::as_matrix))
    }
    fn dense(&self, name: &str) -> Result<Option<DenseTensor>, SourceError> {
        Ok(self.dense.get(name).cloned())
    }
    fn release(&self, _: &str) {}
}

/// The logits after the token at a position.
pub(crate) type Script = Box<dyn Fn(usize, u32) -> Result<Vec<f32>, OpError> + Send + Sync>;

/// The reference backend with a log of its steps; a script takes the place of the model's numbers.
#[derive(Default)]
pub(crate) struct Probe {
    inner: Reference,
    script: Option<Script>,
    steps: Mutex<Vec<StepInputs>>,
    done: Mutex<BTreeMap<u64, StepOutput>>,
    /// Tokens of the last step.
    sampled: Mutex<Vec<u32>>,
    /// The device is gone.
    pub(crate) lost: AtomicBool,
}

struct ProbePlan {
    inner: Plan,
    /// The program hands out its logits.
    logits: bool,
}

impl Probe {
    pub(crate) fn scripted(script: impl Fn(usize, u32) -> Result<Vec<f32>, OpError> + Send + Sync + 'static) -> Probe {
        Probe { script: Some(Box::new(script)), ..Probe::default() }
    }

    /// Answers a prompt of `prompt` tokens with these, and with `end` ever after.
    pub(crate) fn says(prompt: usize, answer: &[u32], end: u32) -> Probe {
        let answer = answer.to_vec();
        Probe::scripted(move |at, _| {
            Ok(one_hot((at + 1).checked_sub(prompt).and_then(|i| answer.get(i)).copied().unwrap_or(end)))
        })
    }

    /// The steps so far; forgets them.
    pub(crate) fn take_steps(&self) -> Vec<StepInputs> {
        std::mem::take(&mut self.steps.lock().expect("one thread"))
    }

    /// Tokens read since the last call.
    pub(crate) fn rows_read(&self) -> usize {
        self.take_steps().iter().map(|s| s.tokens.len()).sum()
    }
}

pub(crate) fn one_hot(token: u32) -> Vec<f32> {
    let mut logits = vec![0.0; VOCAB];
    logits[token as usize] = 30.0;
    logits
}

impl Backend for Probe {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn fusions(&self) -> Fusions {
        self.inner.fusions()
    }
    fn format_support(&self, format: Format) -> FormatSupport {
        self.inner.format_support(format)
    }
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
    fn upload(&self, name: &str, parts: &[Matrix<'_>], options: UploadOptions) -> Result<Weight, OpError> {
        self.inner.upload(name, parts, options)
    }
    fn upload_vector(&self, values: &[f32]) -> Result<Vector, OpError> {
        self.inner.upload_vector(values)
    }
    fn cache(&self, spec: CacheSpec) -> Result<Cache, OpError> {
        self.inner.cache(spec)
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
        let logits = program.ops.iter().any(|op| matches!(op, Op::Output { name, .. } if &**name == "logits"));
        Ok(Plan::new(Box::new(ProbePlan { inner: self.inner.compile(program, cache, options)?, logits })))
    }
    fn run(&self, plan: &Plan, inputs: StepInputs) -> Result<Ticket, OpError> {
        if self.is_lost() {
            return Err(OpError::Device { backend: "probe".to_owned(), message: "the device was lost".to_owned() });
        }
        self.steps.lock().expect("one thread").push(inputs.clone());
        let plan: &ProbePlan = plan.payload().expect("a plan of this backend");
        let Some(script) = &self.script else {
            return self.inner.run(&plan.inner, inputs);
        };
        let mut sampled = self.sampled.lock().expect("one thread");
        inputs.check_carried(sampled.len())?;
        let mut tokens = inputs.tokens.clone();
        inputs.carried.iter().for_each(|c| tokens[c.row] = sampled[c.from]);
        let (mut logits, mut chosen) = (Vec::new(), Vec::new());
        for (i, row) in inputs.logit_rows.iter().enumerate() {
            let values = script(inputs.positions[*row][0] as usize, tokens[*row])?;
            chosen.extend(inputs.draws.get(i).map(|draw| sample(&values, draw)));
            logits.extend(values);
        }
        *sampled = chosen.iter().map(|s| s.token).collect();
        let values = plan.logits.then(|| ("logits".to_owned(), logits)).into_iter().collect();
        let mut done = self.done.lock().expect("one thread");
        let ticket = done.len() as u64;
        done.insert(ticket, StepOutput { values, sampled: chosen, ..StepOutput::default() });
        Ok(Ticket(ticket))
    }
    fn poll(&self, ticket: Ticket) -> Result<Option<StepOutput>, OpError> {
        if self.script.is_none() {
            return Ok(Some(wait(&self.inner, ticket)?));
        }
        Ok(self.done.lock().expect("one thread").get(&ticket.0).cloned())
    }
}

/// An engine on the probe.
pub(crate) fn engine(source: &Source, probe: Probe, options: EngineOptions) -> (Engine, Arc<Probe>) {
    let probe = Arc::new(probe);
    let model = Model::load(source, &*probe, LoadOptions::default(), &mut |_| {}).expect("a good checkpoint");
    (Engine::new(Arc::new(model), probe.clone(), options).expect("good options"), probe)
}

/// A reproducible prompt.
pub(crate) fn prompt(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503)) % VOCAB as u32).collect()
}

/// Runs one request: its tokens, and how it ended.
pub(crate) fn tokens(engine: &mut Engine, request: Request) -> (Vec<u32>, FinishReason, Usage) {
    let mut out = Vec::new();
    let done = engine.generate(request, |event| {
        if let Event::Token { token, .. } = event {
            out.push(*token);
        }
        ControlFlow::Continue(())
    });
    let done = done.expect("the request succeeds");
    (out, done.reason, done.usage)
}

pub(crate) const THINK: u32 = 256;
pub(crate) const END_THINK: u32 = 257;
pub(crate) const END: u32 = 258;
/// The two halves of an emoji of four bytes.
pub(crate) const EMOJI: [u32; 2] = [259, 260];

/// One token for each byte, markers, and halves of an emoji.
pub(crate) fn byte_tokenizer() -> Tokenizer {
    let plain = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut shifted = 0xff;
    let alphabet: Vec<char> = (0..256u32)
        .map(|b| {
            let code = if plain(b) {
                b
            } else {
                shifted += 1;
                shifted
            };
            char::from_u32(code).expect("below the surrogates")
        })
        .collect();
    let of = |bytes: &[u8]| bytes.iter().map(|b| alphabet[usize::from(*b)]).collect::<String>();
    let mut vocab: Vec<String> =
        (0..=255u8).map(|b| format!("\"{}\": {b}", of(&[b]).replace('\\', "\\\\").replace('"', "\\\""))).collect();
    vocab.push(format!("\"{}\": {}", of(&[0xf0, 0x9f]), EMOJI[0]));
    vocab.push(format!("\"{}\": {}", of(&[0x99, 0x82]), EMOJI[1]));
    let added = [(THINK, "<think>", false), (END_THINK, "</think>", false), (END, "<|im_end|>", true)].map(
        |(id, content, special)| {
            format!(
                r#"{{"id": {id}, "content": "{content}", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": {special}}}"#
            )
        },
    );
    let level = r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}"#;
    let json = format!(
        r#"{{"version": "1.0", "added_tokens": [{}], "normalizer": null, "pre_tokenizer": {level}, "decoder": {level},
            "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}}"#,
        added.join(","),
        vocab.join(",")
    );
    Tokenizer::from_json(json.as_bytes()).expect("a good tokenizer")
}

/// Byte tokens of a text.
pub(crate) fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Answers waiting and running.
pub(crate) fn load(engine: &Engine) -> (usize, usize) {
    (engine.stats().waiting, engine.stats().running)
}

/// Pages and slots that no running sequence holds.
pub(crate) fn unused(engine: &Engine) -> (usize, usize) {
    (engine.stats().pages.unused(), engine.stats().slots.unused())
}
