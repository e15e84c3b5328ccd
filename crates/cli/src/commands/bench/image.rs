//! `onebit bench --shape bonsai-image-4b`: every part of a picture, each stage with its time and rate.

use super::report::{Stage, table};
use crate::args::{BenchArgs, KeepIn, KvQuant};
use crate::image_shape::{self, ImageShape};
use crate::{Usage, backends, memory, terminal};
use anyhow::{Result, bail};
use onebit_models::LoadOptions;
use onebit_models::image::text_encoder::TextEncoder;
use onebit_models::image::transformer::{Transformer, names};
use onebit_models::image::vae::{self, Vae};
use onebit_models::image::{ImagePart, ImageSize, schedule};
use onebit_ops::{
    Activations, Backend, CacheSpec, KvFormat, KvSpec, PlanOptions, Program, Segment, StepInputs, StepOutput, Weight,
    wait,
};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Instant;

/// Rows of text: what the model was trained with.
const TEXT_ROWS: usize = 512;

/// Steps of a picture that the total is given for.
const STEPS: usize = 4;

/// What `-p`, `-n`, `--depth`, `--rows` and `-r` are when nobody asks.
const TEXT_DEFAULTS: (usize, usize, usize, usize, usize) = (512, 128, 0, 1, 3);

/// Whether a shape is that of an image model.
pub(super) fn is_image(args: &BenchArgs) -> bool {
    args.shape.as_ref().is_some_and(|shape| image_shape::NAMES.iter().any(|n| shape.eq_ignore_ascii_case(n)))
}

/// One part, measured.
struct Part {
    part: ImagePart,
    load_seconds: f64,
    /// Of one run.
    seconds: f64,
    weights: u64,
    stages: Vec<Stage>,
}

/// Runs the command for an image shape.
///
/// # Errors
/// Bad sizes, and whatever keeps the parts from running.
pub(super) fn run(args: &BenchArgs, shape: &str) -> Result<()> {
    let size = match args.size.as_deref().unwrap_or("512x512").split_once(['x', 'X']) {
        Some((width, height)) => width.parse().ok().zip(height.parse().ok()).and_then(|(w, h)| ImageSize::new(w, h)),
        None => None,
    };
    let Some(size) = size else {
        bail!(Usage("--size takes WIDTHxHEIGHT in multiples of 16, such as 512x512".to_owned()));
    };
    let steps = args.steps.unwrap_or(1);
    if !(1..=STEPS).contains(&steps) {
        bail!(Usage(format!("--steps takes 1 to {STEPS}")));
    }
    let text_only = (args.prompt, args.generate, args.depth, args.rows, args.repeat) != TEXT_DEFAULTS
        || !args.sequences.is_empty()
        || args.run.ctx.is_some()
        || args.run.kv_quant != KvQuant::None
        || args.run.cache_repack != KeepIn::Nowhere;
    if text_only {
        let what = "-p, -n, --depth, --rows, --sequences, -r, --ctx, --kv-quant and --cache-repack are for text models";
        bail!(Usage(format!("{what}; {shape} takes --size and --steps")));
    }
    let backend = backends::open(&args.run, false)?;
    let activations = args.run.activations.resolve(backend.caps().default_activations);
    let bench = Bench { backend: &*backend, activations, size, steps, shape, keep_biases: args.run.keep_biases };
    let parts = [bench.text()?, bench.transformer()?, bench.vae()?];
    let total: f64 = parts.iter().map(|p| p.seconds * runs(p.part)).sum();
    if args.json {
        let parts: Vec<Value> = parts.iter().map(json_part).collect();
        let report = json!({
            "model": format!("{shape} (random weights)"), "device": backend.caps().device,
            "activations": activations.to_string(), "size": size.to_string(), "text_rows": TEXT_ROWS, "parts": parts,
            "steps": STEPS, "picture_s": total, "peak_rss": memory::peak(),
        });
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", text(&bench, &parts, total));
    }
    Ok(())
}

/// Runs of a part for one picture.
fn runs(part: ImagePart) -> f64 {
    if part == ImagePart::Transformer { STEPS as f64 } else { 1.0 }
}

fn json_part(p: &Part) -> Value {
    let stage = |s: &Stage| json!({"name": s.name, "macs": s.macs, "ms": s.seconds * 1e3, "gmacs": s.macs as f64 / s.seconds / 1e9});
    let stages: Vec<Value> = p.stages.iter().map(stage).collect();
    json!({
        "part": p.part.to_string(), "load_s": p.load_seconds, "run_s": p.seconds, "weight_bytes": p.weights,
        "macs": p.stages.iter().map(|s| s.macs).sum::<u64>(), "stages": stages,
    })
}

fn text(bench: &Bench<'_>, parts: &[Part], total: f64) -> String {
    let colours = terminal::stdout_colours();
    let mut out = String::new();
    let _ = writeln!(out, "{} (random weights), {} in {STEPS} steps", bench.shape, bench.size);
    let _ = writeln!(out, "{}, {} activations", bench.backend.caps().device, bench.activations);
    for p in parts {
        let _ = writeln!(
            out,
            "{:<14}{:>8.2} s a run, loaded in {:.2} s, {} of weights",
            p.part.to_string(),
            p.seconds,
            p.load_seconds,
            terminal::bytes(p.weights)
        );
    }
    let _ = writeln!(out, "one picture   {total:>8.2} s without loading");
    if let Some(peak) = memory::peak() {
        let _ = writeln!(out, "peak memory {}, parts loaded one by one", terminal::bytes(peak));
    }
    for p in parts {
        table(&mut out, &p.part.to_string(), &p.stages, colours);
    }
    out
}

struct Bench<'a> {
    backend: &'a dyn Backend,
    activations: Activations,
    size: ImageSize,
    steps: usize,
    shape: &'a str,
    keep_biases: bool,
}

impl Bench<'_> {
    fn options(&self) -> LoadOptions<'_> {
        LoadOptions { keep_biases: self.keep_biases, store: None }
    }

    fn text(&self) -> Result<Part> {
        let since = Instant::now();
        let source = ImageShape::new(self.shape, ImagePart::TextEncoder)?;
        let encoder = TextEncoder::load(&source, self.backend, self.options(), &mut |_| {})?;
        let load_seconds = since.elapsed().as_secs_f64();
        let program = encoder.program(TEXT_ROWS, TEXT_ROWS / 8, self.activations);
        let rows = 0..TEXT_ROWS;
        let segment =
            Segment { rows: rows.clone(), slot: 0, pages: Vec::new(), past: 0, accepted: 0, speculative: false };
        let inputs = StepInputs {
            tokens: rows.clone().map(|t| t as u32 * 97).collect(),
            positions: rows.map(|p| [p as u32; 3]).collect(),
            segments: vec![segment],
            ..StepInputs::default()
        };
        let (seconds, stages, _) = self.measure(program, vec![inputs])?;
        Ok(Part { part: ImagePart::TextEncoder, load_seconds, seconds, weights: bytes(encoder.weights()), stages })
    }

    fn transformer(&self) -> Result<Part> {
        let since = Instant::now();
        let source = ImageShape::new(self.shape, ImagePart::Transformer)?;
        let transformer = Transformer::load(&source, self.backend, self.options(), &mut |_| {})?;
        let load_seconds = since.elapsed().as_secs_f64();
        drop(source);
        let wave = |len: usize| -> Vec<f32> { (0..len).map(|i| (i as f32 * 0.7).sin()).collect() };
        let (tokens, weights) = (self.size.tokens(), transformer.weights());
        let [channels, hidden] = [weights[0].cols(), weights[0].rows()];
        let inputs = schedule::sigmas(tokens, STEPS, schedule::Shift::Empirical)[..self.steps]
            .iter()
            .map(|sigma| {
                let values = [
                    (names::TEXT, wave(TEXT_ROWS * hidden)),
                    (names::LATENTS, wave(tokens * channels)),
                    (names::TIME, transformer.time(*sigma as f32)),
                    (names::ANGLES, transformer.angles(self.size, TEXT_ROWS)),
                ];
                let values = values.map(|(name, v)| (name.to_owned(), v)).into();
                StepInputs { values, ..StepInputs::default() }
            })
            .collect();
        let program = transformer.program(self.size, TEXT_ROWS, self.activations, false);
        let weights = bytes(weights);
        let (seconds, stages, _) = self.measure(program, inputs)?;
        Ok(Part { part: ImagePart::Transformer, load_seconds, seconds, weights, stages })
    }

    fn vae(&self) -> Result<Part> {
        let since = Instant::now();
        let source = ImageShape::new(self.shape, ImagePart::Vae)?;
        let vae = Vae::load(&source, self.backend, self.options(), &mut |_| {})?;
        let load_seconds = since.elapsed().as_secs_f64();
        let program = vae.program(vae::whole(self.size));
        let pixels = vae::whole(self.size).pixels();
        let cols = program.tensors.first().map_or(0, |t| t.cols);
        let latents = (0..pixels * cols).map(|i| (i as f32 * 0.7).sin()).collect();
        let values = [(vae::LATENTS.to_owned(), latents)].into();
        let weights = bytes(vae.weights());
        let (seconds, stages, _) = self.measure(program, vec![StepInputs { values, ..StepInputs::default() }])?;
        Ok(Part { part: ImagePart::Vae, load_seconds, seconds, weights, stages })
    }

    /// Seconds of a run (the mean of all), and of every stage.
    fn measure(&self, program: Program, inputs: Vec<StepInputs>) -> Result<(f64, Vec<Stage>, StepOutput)> {
        let program = program.lower(self.backend.fusions());
        let kv = KvSpec { layers: 0, heads: 0, dim: 0, pages: 0, format: KvFormat::F32 };
        let cache = self.backend.cache(CacheSpec { kv, state: None })?;
        let plan = self.backend.compile(program.clone(), &cache, PlanOptions { profile: true })?;
        let (count, mut seconds) = (inputs.len() as f64, vec![0.0; program.ops.len()]);
        let (since, mut last) = (Instant::now(), StepOutput::default());
        for inputs in inputs {
            last = wait(self.backend, self.backend.run(&plan, inputs)?)?;
            seconds.iter_mut().zip(&last.op_seconds).for_each(|(sum, s)| *sum += s / count);
        }
        let total = since.elapsed().as_secs_f64() / count;
        let mut stages: Vec<Stage> = Vec::new();
        for (op, seconds) in program.ops.iter().zip(seconds) {
            let rows = op.outputs().first().map_or(0, |out| program.max_rows(*out));
            let cost = op.cost(rows, &[], KvFormat::F32);
            let name = without_numbers(&cost.label);
            let stage = match stages.iter_mut().find(|s| s.name == name) {
                Some(stage) => stage,
                None => {
                    stages.push(Stage { name, ..Stage::default() });
                    let last = stages.len() - 1;
                    &mut stages[last]
                }
            };
            stage.bytes += cost.bytes;
            stage.macs += cost.macs;
            stage.seconds += seconds;
        }
        Ok((total, stages, last))
    }
}

fn bytes(weights: Vec<&Weight>) -> u64 {
    weights.iter().map(|w| w.resident_bytes()).sum()
}

/// `double.3.image.qkv` is `double.image.qkv` of every block; a decoder's blocks are told apart by theirs.
fn without_numbers(label: &str) -> String {
    if let Some(block) = label.strip_prefix("decoder.").filter(|l| l.starts_with("up_blocks")) {
        return block.split('.').take(2).collect::<Vec<_>>().join(".");
    }
    let words: Vec<&str> = label.split('.').filter(|w| w.parse::<usize>().is_err()).collect();
    words.join(".").trim_start_matches("layers.").trim_start_matches("decoder.").to_owned()
}
