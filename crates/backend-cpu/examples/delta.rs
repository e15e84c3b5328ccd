//! Times the operations of a delta-rule layer of a 27B's shape beside its matrices:
//! `cargo run --release -p onebit-backend-cpu --example delta -- [ROWS] [guesses]`.
//!
//! With `guesses`, each step takes the rows of the one before in and leaves its own pending, as speculation does.

use onebit_backend_cpu::{CpuBackend, CpuOptions};
use onebit_ops::{
    Backend, Bucket, CacheSpec, HeadMap, KvFormat, KvSpec, PlanOptions, Recorder, Segment, StateSpec, StepInputs,
    UploadOptions, wait,
};
use onebit_quant::{Format, Matrix};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (layers, keys, heads, dim) = (8, 16, 48, 128);
    let rows: usize = std::env::args().nth(1).map_or(Ok(64), |a| a.parse())?;
    let guesses = std::env::args().nth(2).is_some_and(|a| a == "guesses");
    let backend = CpuBackend::new(CpuOptions::default())?;
    let (width, values) = (keys * dim, heads * dim);
    let channels = 2 * width + values;
    let cols = channels + values + 2 * heads;
    let table: Vec<u8> = (0..cols * 8).flat_map(|i| (-(((i * 7919) % 2003) as f32) * 5e-4).to_le_bytes()).collect();
    let table = Matrix::new(Format::F32, 8, cols, &table, &[], &[])?;
    let table = backend.upload("inputs", &[table], UploadOptions::default())?;
    let taps = backend.upload_vector(&vec![0.25; 4 * channels])?;
    let gain = backend.upload_vector(&vec![1.0; dim])?;
    let mut rec = Recorder::new(Bucket { rows, logits: 1, context: rows });
    let x = rec.embed(&table);
    for layer in 0..layers {
        let mixed = rec.conv_silu(x.columns(0..channels), &taps, 4, layer);
        let part = |from: usize, n: usize, heads: usize| mixed.columns(from..from + n).split(heads);
        let qkv = [part(0, width, keys), part(width, width, keys), part(2 * width, values, heads)];
        let gates = [0, heads].map(|from| {
            let start = channels + values + from;
            x.columns(start..start + heads).split(1)
        });
        let out = rec.gated_delta(qkv, gates.into(), HeadMap::Grouped, 1e-6, layer);
        rec.gated_norm(out, x.columns(channels..channels + values), &gain, 1e-6);
    }
    let state =
        StateSpec { layers, slots: 1, channels, kernel: 4, heads, key_dim: dim, value_dim: dim, max_pending: 8 };
    let kv = KvSpec { layers: 0, heads: 1, dim: 1, pages: 0, format: KvFormat::F16 };
    let cache = backend.cache(CacheSpec { kv, state: Some(state) })?;
    let plan = backend.compile(rec.finish(), &cache, PlanOptions { profile: true })?;
    for step in 0..6 {
        let accepted = if guesses && step > 0 { rows } else { 0 };
        let segment = Segment { rows: 0..rows, slot: 0, pages: vec![], past: 0, accepted, speculative: guesses };
        let inputs = StepInputs {
            tokens: (0..rows as u32).map(|t| t % 8).collect(),
            positions: vec![[0; 3]; rows],
            segments: vec![segment],
            ..StepInputs::default()
        };
        let times = wait(&backend, backend.run(&plan, inputs)?)?.op_seconds;
        let us = |op: usize| times[1 + op..].iter().step_by(3).sum::<f64>() * 1e6 / layers as f64;
        let macs = (heads * dim * dim * 3 * rows) as f64;
        println!(
            "microseconds a layer: conv_silu {:.1}, gated_delta {:.1} ({:.1} GMAC/s of the new rows), gated_norm {:.1}",
            us(0),
            us(1),
            macs / us(1) / 1e3,
            us(2)
        );
    }
    Ok(())
}
