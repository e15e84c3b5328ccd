//! A prompt's temporaries are given back when its answer is written. The only test of its process, since it looks at the
//! memory of the whole.

#![cfg(target_os = "linux")]

use onebit_backend_cpu::{CpuBackend, CpuOptions};
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, KvFormat, KvSpec, Plan, PlanOptions, Recorder, Segment, StepInputs,
    UploadOptions, Weight, wait,
};
use onebit_quant::{Format, quantize};

const COLS: usize = 128;
const WIDE: usize = 65_536;
const MB: u64 = 1 << 20;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

fn plan(backend: &CpuBackend, table: &Weight, wide: &Weight, rows: usize) -> Plan {
    let mut rec = Recorder::new(Bucket { rows, logits: 1, context: rows });
    let x = rec.embed(table);
    let y = rec.linear(x, wide, Activations::I9G128);
    let last = rec.select_rows(y);
    rec.output(last, "y");
    let kv = KvSpec { layers: 0, heads: 1, dim: 1, pages: 0, format: KvFormat::F16 };
    let cache = backend.cache(CacheSpec { kv, state: None }).unwrap();
    backend.compile(rec.finish(), &cache, PlanOptions::default()).unwrap()
}

fn step(backend: &CpuBackend, plan: &Plan, rows: usize) -> Vec<f32> {
    let inputs = StepInputs {
        tokens: vec![1; rows],
        positions: vec![[0; 3]; rows],
        segments: vec![Segment { rows: 0..rows, slot: 0, pages: vec![], past: 0, accepted: 0, speculative: false }],
        logit_rows: vec![rows - 1],
        ..StepInputs::default()
    };
    wait(backend, backend.run(plan, inputs).unwrap()).unwrap().values.remove("y").unwrap()
}

#[test]
fn the_temporaries_of_a_prompt_do_not_stay() {
    const ROWS: usize = 512;
    let backend = CpuBackend::new(CpuOptions { threads: Some(2), tier: None }).unwrap();
    let upload = |format, rows: usize| {
        let values: Vec<f32> = (0..rows * COLS).map(|i| ((i * 7919) % 2003) as f32 * 1e-3 - 1.0).collect();
        let packed = quantize(format, rows, COLS, &values).unwrap();
        backend.upload("weight", &[packed.as_matrix()], UploadOptions::default()).unwrap()
    };
    let (table, wide) = (upload(Format::F32, 2), upload(Format::Q1_0, WIDE));
    let (prompt, token) = (plan(&backend, &table, &wide, ROWS), plan(&backend, &table, &wide, 1));
    let first = step(&backend, &token, 1);
    let before = resident();
    for _ in 0..2 {
        let long = step(&backend, &prompt, ROWS);
        assert_eq!(long, first, "zeroed temporaries change nothing");
        assert!(resident() > before + 100 * MB, "512 rows of 65,536 floats were somewhere");
        assert_eq!(step(&backend, &token, 1), first);
        let after = resident();
        assert!(after < before + 20 * MB, "{} MB stayed", (after - before) / MB);
    }
}
