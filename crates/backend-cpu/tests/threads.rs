//! Results do not depend on the number of threads.

use onebit_backend_cpu::{CpuBackend, CpuOptions, Tier};
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, KvFormat, KvSpec, PlanOptions, Recorder, Segment, StepInputs,
    UploadOptions, wait,
};
use onebit_quant::{Format, quantize};

/// Embedding, a gated pair of projections and attention over 90 rows, as bits.
fn outputs(tier: Tier, threads: usize) -> Vec<u32> {
    const ROWS: usize = 90;
    let (cols, wide) = (256, 1376);
    let backend = CpuBackend::new(CpuOptions { threads: Some(threads), tier: Some(tier) }).unwrap();
    assert_eq!(backend.threads(), threads);
    let noise = |n: usize| -> Vec<f32> { (0..n).map(|i| ((i * 7919 + i / 13) % 2003) as f32 * 1e-3 - 1.0).collect() };
    let upload = |format, rows: usize| {
        let packed = quantize(format, rows, cols, &noise(rows * cols)).unwrap();
        backend.upload("weight", &[packed.as_matrix()], UploadOptions::default()).unwrap()
    };
    let (table, gate_up) = (upload(Format::F32, 16), upload(Format::Q1_0, wide));
    let mut rec = Recorder::new(Bucket { rows: ROWS, logits: 1, context: ROWS });
    let x = rec.embed(&table);
    let gain = onebit_ops::Norm { gain: backend.upload_vector(&vec![1.0; cols]).unwrap(), eps: 1e-6 };
    let y = rec.norm_linear_swiglu(x, &gain, &gate_up, Activations::I9G128);
    let heads = |from: usize, n: usize| y.columns(from..from + 64 * n).split(n);
    let a = rec.attention(heads(0, 4), heads(256, 2), heads(384, 2), 0, 0.125);
    rec.output(y, "y");
    rec.output(a, "a");
    let kv = KvSpec { layers: 1, heads: 2, dim: 64, pages: 2, format: KvFormat::F16 };
    let cache = backend.cache(CacheSpec { kv, state: None }).unwrap();
    let plan = backend.compile(rec.finish(), &cache, PlanOptions::default()).unwrap();
    let segment = Segment { rows: 0..ROWS, slot: 0, pages: vec![1, 0], past: 0, accepted: 0, speculative: false };
    let inputs = StepInputs {
        tokens: (0..ROWS as u32).map(|t| t % 16).collect(),
        positions: vec![[0; 3]; ROWS],
        segments: vec![segment],
        ..StepInputs::default()
    };
    let output = wait(&backend, backend.run(&plan, inputs).unwrap()).unwrap();
    output.values.values().flatten().map(|v| v.to_bits()).collect()
}

#[test]
fn one_and_many_threads_give_the_same_bits() {
    for tier in Tier::available() {
        let one = outputs(tier, 1);
        assert!(one.iter().any(|v| f32::from_bits(*v) != 0.0));
        for threads in [2, 5] {
            assert_eq!(outputs(tier, threads), one, "{tier:?}, {threads} threads");
        }
    }
}
