//! Times the gated delta rule of a 27B's shape: `cargo run --release -p onebit-backend-cpu --example delta -- [ROWS]`.

use onebit_backend_cpu::{CpuBackend, CpuOptions};
use onebit_ops::{
    Backend, Bucket, CacheSpec, HeadMap, KvFormat, KvSpec, PlanOptions, Recorder, Segment, StateSpec, StepInputs,
    UploadOptions, wait,
};
use onebit_quant::{Format, Matrix};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (layers, keys, heads, dim) = (8, 16, 48, 128);
    let rows: usize = std::env::args().nth(1).map_or(Ok(64), |a| a.parse())?;
    let backend = CpuBackend::new(CpuOptions::default())?;
    let cols = 2 * keys * dim + heads * dim + 2 * heads;
    let table: Vec<u8> = (0..cols * 8).flat_map(|i| (-(((i * 7919) % 2003) as f32) * 5e-4).to_le_bytes()).collect();
    let table = Matrix::new(Format::F32, 8, cols, &table, &[], &[])?;
    let table = backend.upload("inputs", &[table], UploadOptions::default())?;
    let mut rec = Recorder::new(Bucket { rows, logits: 1, context: rows });
    let x = rec.embed(&table);
    let part = |from: usize, n: usize, heads: usize| x.columns(from..from + n).split(heads);
    let (width, values) = (keys * dim, heads * dim);
    let qkv = [part(0, width, keys), part(width, width, keys), part(2 * width, values, heads)];
    let gates = (part(2 * width + values, heads, 1), part(2 * width + values + heads, heads, 1));
    for layer in 0..layers {
        rec.gated_delta(qkv, gates, HeadMap::Grouped, 1e-6, layer);
    }
    let state = StateSpec {
        layers,
        slots: 1,
        channels: 2 * width + values,
        kernel: 4,
        heads,
        key_dim: dim,
        value_dim: dim,
        max_pending: 8,
    };
    let kv = KvSpec { layers: 0, heads: 1, dim: 1, pages: 0, format: KvFormat::F16 };
    let cache = backend.cache(CacheSpec { kv, state: Some(state) })?;
    let plan = backend.compile(rec.finish(), &cache, PlanOptions { profile: true })?;
    let segment = Segment { rows: 0..rows, slot: 0, pages: vec![], past: 0, accepted: 0, speculative: false };
    let inputs = StepInputs {
        tokens: (0..rows as u32).map(|t| t % 8).collect(),
        positions: vec![[0; 3]; rows],
        segments: vec![segment],
        ..StepInputs::default()
    };
    for _ in 0..4 {
        let seconds: f64 = wait(&backend, backend.run(&plan, inputs.clone())?)?.op_seconds[1..].iter().sum();
        let macs = (layers * heads * dim * dim * 3 * rows) as f64;
        println!(
            "{:.3} ms a layer and row, {:.1} GMAC/s",
            seconds * 1e3 / (layers * rows) as f64,
            macs / seconds / 1e9
        );
    }
    Ok(())
}
