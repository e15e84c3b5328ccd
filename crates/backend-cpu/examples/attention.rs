//! Times attention over a filled cache:
//! `cargo run --release -p onebit-backend-cpu --example attention -- [27b|8b|1.7b] [ROWS] [PAST] [f32|f16|q8|q4] [RUNS]`.

use onebit_backend_cpu::{CpuBackend, CpuOptions, measure_read_bandwidth};
use onebit_ops::{
    Backend, Bucket, CacheSpec, KvFormat, KvSpec, PAGE_ROWS, PlanOptions, Recorder, Segment, StepInputs, UploadOptions,
    wait,
};
use onebit_quant::{Format, Matrix};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, default: &'static str| args.get(i).map_or(default, String::as_str);
    let (queries, heads, dim, layers) = match arg(0, "27b") {
        "27b" => (24, 4, 256, 16),
        "8b" => (32, 8, 128, 36),
        "1.7b" => (16, 8, 128, 28),
        other => return Err(format!("no shape `{other}`").into()),
    };
    let (rows, past): (usize, usize) = (arg(1, "1").parse()?, arg(2, "8192").parse()?);
    let format = match arg(3, "f16") {
        "f32" => KvFormat::F32,
        "f16" => KvFormat::F16,
        "q8" => KvFormat::Q8,
        "q4" => KvFormat::Q4,
        other => return Err(format!("no format `{other}`").into()),
    };

    let backend = CpuBackend::new(CpuOptions::default())?;
    let cols = (queries + 2 * heads) * dim;
    // Numbers in -1..1 that follow no short pattern.
    let number = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let table: Vec<u8> = (0..cols * 64).flat_map(|i| number(i).to_le_bytes()).collect();
    let table = Matrix::new(Format::F32, 64, cols, &table, &[], &[])?;
    let table = backend.upload("inputs", &[table], UploadOptions::default())?;
    let pages = (past + rows).div_ceil(PAGE_ROWS);
    let kv = KvSpec { layers, heads, dim, pages, format };
    let cache = backend.cache(CacheSpec { kv, state: None })?;
    let plan = |rows: usize| {
        let mut rec = Recorder::new(Bucket { rows, logits: 1, context: pages * PAGE_ROWS });
        let x = rec.embed(&table);
        let part = |from: usize, heads: usize| x.columns(from * dim..(from + heads) * dim).split(heads);
        for layer in 0..layers {
            let (q, k, v) = (part(0, queries), part(queries, heads), part(queries + heads, heads));
            rec.attention(q, k, v, layer, (dim as f32).powf(-0.5));
        }
        backend.compile(rec.finish(), &cache, PlanOptions { profile: true })
    };
    let inputs = |rows: usize, past: usize, pages: Vec<u32>| StepInputs {
        tokens: (0..rows as u32).map(|t| t * 37 % 64).collect(),
        positions: vec![[0; 3]; rows],
        segments: vec![Segment { rows: 0..rows, slot: 0, pages, past, accepted: 0, speculative: false }],
        ..StepInputs::default()
    };
    // Each page is filled as if it were a sequence of its own.
    let fill = plan(PAGE_ROWS)?;
    for page in 0..pages as u32 {
        wait(&backend, backend.run(&fill, inputs(PAGE_ROWS, 0, vec![page]))?)?;
    }
    let plan = plan(rows)?;
    let inputs = inputs(rows, past, (0..pages as u32).collect());
    let bandwidth = measure_read_bandwidth(backend.threads())?;
    let mut times = Vec::new();
    for _ in 0..arg(4, "7").parse()? {
        let out = wait(&backend, backend.run(&plan, inputs.clone())?)?;
        times.push(out.op_seconds[1..].iter().sum::<f64>());
    }
    times.sort_by(f64::total_cmp);
    let pairs = rows * past + rows * (rows + 1) / 2;
    let macs = (layers * pairs * 2 * queries * dim) as f64;
    let bytes = kv.bytes_per_token() as f64 * (past + rows) as f64;
    for (name, seconds) in [("median", times[times.len() / 2]), ("best", times[0])] {
        println!(
            "{name}: {:.3} ms, {:.1} us a layer, {:.1} GMAC/s, {:.1} of {bandwidth:.1} GB/s",
            seconds * 1e3,
            seconds * 1e6 / layers as f64,
            macs / seconds / 1e9,
            bytes / seconds / 1e9
        );
    }
    Ok(())
}
