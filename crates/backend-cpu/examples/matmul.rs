//! Times packed matmuls through the backend's own plan, beside the read bandwidth of the same minute.
//!
//! ```sh
//! cargo run --release -p onebit-backend-cpu --example matmul -- \
//!     [--format q1_0|q2_0|ternary|q4_0|q8_0] [--rows 17408] [--cols 5120] [--tokens 1,2,4,8,64,512] [--threads 1,2] \
//!     [--tier avx2] [--activations int9] [--layers 20]
//! ```
//!
//! Weights are random; `layers` copies of different bytes stand one after another, so that each step reads memory.

use onebit_backend_cpu::{CpuBackend, CpuOptions, Tier, default_threads, measure_read_bandwidth};
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, KvFormat, KvSpec, OpError, PlanOptions, Recorder, Segment, StepInputs,
    UploadOptions, Weight, wait,
};
use onebit_quant::{Format, Matrix};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let option = |name: &str, default: &str| -> String {
        let at = args.iter().position(|a| a == &format!("--{name}"));
        at.and_then(|i| args.get(i + 1)).map_or(default.to_owned(), String::clone)
    };
    let list = |text: String| text.split(',').map(str::parse::<usize>).collect::<Result<Vec<_>, _>>();
    let name = option("format", "q1_0");
    let format = match name.as_str() {
        "q1_0" => Format::Q1_0,
        "q2_0" | "ternary" => Format::Pq2_0,
        "q4_0" => Format::Q4_0,
        "q8_0" => Format::Q8_0,
        "f16" => Format::F16,
        other => return Err(format!("unknown format {other}").into()),
    };
    let activations = match option("activations", "int9").as_str() {
        "f32" => Activations::F32,
        "int8" => Activations::I8G128,
        "int9" => Activations::I9G128,
        other => return Err(format!("unknown activations {other}").into()),
    };
    let tier = match option("tier", "") {
        name if name.is_empty() => None,
        name => Some(Tier::named(&name)?),
    };
    let (rows, cols): (usize, usize) = (option("rows", "17408").parse()?, option("cols", "5120").parse()?);
    let layers: usize = option("layers", "20").parse()?;
    for threads in list(option("threads", &format!("1,{}", default_threads())))? {
        let backend = CpuBackend::new(CpuOptions { threads: Some(threads), tier })?;
        let weights = upload(&backend, (format, name == "ternary"), (rows, cols), layers)?;
        let kernel = &weights[0].info().kernel;
        println!("{}: {layers} x {rows} x {cols} {format} ({kernel}), {activations}", backend.caps().device);
        for tokens in list(option("tokens", "1,2,4,8,64,512"))? {
            let (mut times, mut cpu_times, mut limits) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..if tokens < 16 { 9 } else { 5 } {
                limits.push(measure_read_bandwidth(threads)?);
                let (time, cpu) = step(&backend, &weights, tokens, activations)?;
                times.push(time);
                cpu_times.push(cpu);
            }
            let (time, limit) = (median(times), median(limits));
            let cpu = cpu_times.into_iter().fold(f64::INFINITY, f64::min);
            let bytes: u64 = weights.iter().map(Weight::resident_bytes).sum();
            let macs = (layers * rows * cols * tokens) as f64;
            let speed = bytes as f64 / time / 1e9;
            println!(
                "M={tokens:<4} {:9.3} ms a layer  {speed:6.2} GB/s = {:5.1}% of {limit:.2}  {:7.1} GMAC/s  \
                 (best processor time: {:6.2} GB/s, {:6.1} GMAC/s)",
                time * 1e3 / layers as f64,
                speed / limit * 100.0,
                macs / time / 1e9,
                bytes as f64 / cpu / 1e9,
                macs / cpu / 1e9
            );
        }
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn upload(
    backend: &CpuBackend,
    (format, ternary): (Format, bool),
    (rows, cols): (usize, usize),
    layers: usize,
) -> Result<Vec<Weight>, Box<dyn std::error::Error>> {
    let mut codes = vec![0u8; format.row_bytes(cols)? * rows];
    let (mut state, mut seconds) = (1u64, 0.0);
    let weights: Vec<Weight> = (0..layers)
        .map(|i| {
            for word in codes.chunks_mut(8) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                word.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes()[..word.len()]);
            }
            if ternary {
                // Clear the high bit where the low one is set: codes 0, 1, 2 only.
                codes.iter_mut().for_each(|b| *b &= !((*b & 0x55) << 1));
            }
            if let Some(block) = format.block() {
                // A scale of 2^-6 and a bit.
                codes.chunks_mut(block.bytes).for_each(|b| b[..2].copy_from_slice(&0x2401u16.to_le_bytes()));
            }
            let matrix = Matrix::new(format, rows, cols, &codes, &[], &[])?;
            let start = Instant::now();
            let weight = backend.upload(&format!("layer {i}"), &[matrix], UploadOptions::default())?;
            seconds += start.elapsed().as_secs_f64();
            Ok(weight)
        })
        .collect::<Result<_, Box<dyn std::error::Error>>>()?;
    println!("repacked at {:.2} GB/s of codes", (codes.len() * layers) as f64 / seconds / 1e9);
    Ok(weights)
}

/// Seconds of all products of one step: (by the clock, of the processors).
fn step(backend: &CpuBackend, weights: &[Weight], tokens: usize, kind: Activations) -> Result<(f64, f64), OpError> {
    let cols = weights[0].cols();
    let table: Vec<u8> = (0..cols * 8).flat_map(|i| (((i * 7919) % 2003) as f32 * 1e-3 - 1.0).to_le_bytes()).collect();
    let table = Matrix::new(Format::F32, 8, cols, &table, &[], &[])?;
    let table = backend.upload("inputs", &[table], UploadOptions::default())?;
    let mut rec = Recorder::new(Bucket { rows: tokens, logits: 1, context: tokens });
    let x = rec.embed(&table);
    for w in weights {
        rec.linear(x, w, kind);
    }
    let kv = KvSpec { layers: 0, heads: 1, dim: 1, pages: 0, format: KvFormat::F16 };
    let cache = backend.cache(CacheSpec { kv, state: None })?;
    let plan = backend.compile(rec.finish(), &cache, PlanOptions { profile: true })?;
    let inputs = StepInputs {
        tokens: (0..tokens as u32).map(|t| t % 8).collect(),
        positions: vec![[0; 3]; tokens],
        segments: vec![Segment { rows: 0..tokens, slot: 0, pages: vec![], past: 0, accepted: 0, speculative: false }],
        ..StepInputs::default()
    };
    wait(backend, backend.run(&plan, inputs.clone())?)?;
    let start = cpu_seconds();
    let output = wait(backend, backend.run(&plan, inputs)?)?;
    let cpu = cpu_seconds() - start;
    let wall: f64 = output.op_seconds[1..].iter().sum();
    Ok((wall, cpu))
}

/// Processor time of this process: on one thread of a busy machine, the time that the work would take alone.
fn cpu_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every system that this example is run on; the result is checked.
    let ok = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut t) } == 0;
    if ok { t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9 } else { f64::NAN }
}
