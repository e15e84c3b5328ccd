//! `onebit bench`: prefill and decode speed through the engine, the share of what memory allows, and every stage.

mod image;
mod measure;
mod report;

use crate::args::BenchArgs;
use crate::shape::Shape;
use crate::{Usage, backends, image_shape, load, memory, session, terminal};
use anyhow::{Result, bail};
use measure::Bench;
use onebit_models::Model;
use onebit_ops::Backend;
use report::{Report, Sample, Together};
use std::sync::Arc;
use std::time::Instant;

/// Runs the command.
///
/// # Errors
/// Whatever keeps the model from running, and counts that contradict each other.
pub fn run(args: &BenchArgs) -> Result<()> {
    if let Some(shape) = args.shape.as_deref().filter(|_| image::is_image(args)) {
        return image::run(args, shape);
    }
    if args.size.is_some() || args.steps.is_some() {
        bail!(Usage("--size and --steps belong to the shape of an image model".to_owned()));
    }
    if args.prompt == 0 && args.generate == 0 {
        bail!(Usage("nothing to measure: give -p or -n a count above 0".to_owned()));
    }
    if !args.sequences.is_empty() && args.generate == 0 {
        bail!(Usage("--sequences measures generated tokens: give -n a count above 0".to_owned()));
    }
    if args.repeat == 0 || args.rows == 0 || args.rows > measure::MAX_ROWS {
        bail!(Usage(format!("-r takes at least 1 and --rows 1 to {}", measure::MAX_ROWS)));
    }
    let started = Instant::now();
    let (name, backend, model) = open(args)?;
    let load_seconds = started.elapsed().as_secs_f64();
    let weights: u64 = model.weights().iter().map(|w| w.resident_bytes()).sum();

    let bar = terminal::count_bar("measuring", (args.repeat * (1 + usize::from(args.prompt > 0)) + 1) as u64);
    let mut bench = Bench::new(args, model, backend)?;
    bench.first_token()?;
    let first_token_seconds = started.elapsed().as_secs_f64();
    let (mut prefill, mut decode, mut bandwidth) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.repeat {
        bandwidth.extend(bench.read_bandwidth()?);
        if args.prompt > 0 {
            prefill.push(bench.prefill()?);
            bar.inc(1);
        }
        if args.generate > 0 {
            decode.push(bench.decode()?);
            bar.inc(1);
        }
    }
    // The last step decoded one token, so a prompt's temporaries should be gone.
    let rss_after_prefill = (args.generate > 0).then(memory::resident).flatten();
    let mut together = Vec::new();
    for sequences in &args.sequences {
        let runs = (0..args.repeat).map(|_| bench.together(usize::from(*sequences))).collect::<Result<_>>()?;
        together.push(Together {
            sequences: usize::from(*sequences),
            rate: Sample::of(runs),
            stages: bench.stages_together(usize::from(*sequences))?,
        });
    }
    let (decode_stages, prefill_stages) = bench.stages()?;
    bar.finish_and_clear();

    let report = Report {
        model: name,
        device: bench.device(),
        activations: bench.activations().to_string(),
        kv: bench.kv().to_string(),
        prompt: args.prompt,
        generate: args.generate,
        depth: args.depth,
        rows: args.rows,
        load_seconds,
        first_token_seconds,
        prefill: Sample::of(prefill),
        decode: Sample::of(decode),
        bandwidth: Sample::of(bandwidth),
        weight_bytes: weights,
        bytes_per_step: bench.bytes_per_step(),
        peak_rss: memory::peak(),
        rss_after_prefill,
        together,
        decode_stages,
        prefill_stages,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report.json())?);
    } else {
        print!("{}", report.text(terminal::stdout_colours()));
    }
    Ok(())
}

fn open(args: &BenchArgs) -> Result<(String, Arc<dyn Backend>, Arc<Model>)> {
    if let Some(shape) = &args.shape {
        let pictures = image_shape::NAMES.join(", ");
        let source = Shape::new(shape).map_err(|e| Usage(format!("{e}; for pictures: {pictures}")))?;
        let backend = backends::open(&args.run, false)?;
        let model = load::weights(&source, &*backend, &args.run, None, shape, false)?;
        return Ok((format!("{shape} (random weights)"), backend, model));
    }
    let (backend, located) = session::locate(args.model.name().as_deref(), &args.run, false)?;
    let source = load::open(&located.path, &args.run.files())?;
    let model = load::model(&source, &*backend, &args.run, &located.name, false)?;
    Ok((located.name, backend, model))
}
