//! Ops that run as one kernel give the bits that they give one by one: a result that the program also puts out is written,
//! which keeps its neighbours apart.

mod common;

use onebit_backend_wgpu::{Tuning, WgpuOptions};
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, HeadMap, KvFormat, KvSpec, Norm, PlanOptions, Recorder, RopeTable,
    Segment, StateSpec, StepInputs, View, Weight, wait,
};
use onebit_quant::{Format, quantize};
use std::sync::Arc;

const HIDDEN: usize = 256;
const DIM: usize = 128;
const HEADS: usize = 2;
const VOCAB: usize = 8;
const ROWS: usize = 3;

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + i / 91) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// Attention behind norms and rotations and a gate, then a delta rule with gates and a gated norm, then an
/// MLP and a product of normed rows that are selected; in a step of several rows and two of one.
fn run(backend: &dyn Backend, (format, kind): (Format, Activations), apart: bool) -> Vec<u32> {
    let upload = |rows: usize, seed: usize| -> Weight {
        let packed = quantize(format, rows, HIDDEN, &numbers(rows * HIDDEN, seed)).unwrap();
        backend.upload("w", &[packed.as_matrix()], Default::default()).unwrap()
    };
    let vector = |n: usize, seed: usize| backend.upload_vector(&numbers(n, seed)).unwrap();
    let table = upload(VOCAB, 1);
    let (qkv, o, mixed, out) =
        (upload(4 * HIDDEN, 2), upload(HIDDEN, 3), upload(4 * HIDDEN + 2 * HEADS, 4), upload(HIDDEN, 5));
    let (gate_up, down) = (upload(2 * HIDDEN, 10), upload(HIDDEN, 11));
    let (gain, bias) = (vector(DIM, 6), vector(HEADS, 8));
    // A matrix only ever decays.
    let rate = backend.upload_vector(&[-0.25, -0.5]).unwrap();
    let rope = Arc::new(RopeTable::plain(1e4, DIM));
    let mut rec = Recorder::new(Bucket { rows: ROWS, logits: 1, context: 64 });
    let mut taps = 0;
    let mut tap = |rec: &mut Recorder, view: View| {
        if apart {
            let cols = view.cols();
            rec.output(View { heads: 1, dim: cols, stride: cols, ..view }, &format!("tap {taps}"));
            taps += 1;
        }
        view
    };
    let x = rec.embed(&table);
    let y = rec.linear(x, &qkv, kind);
    let part = |y: View, i: usize| y.columns(i * HIDDEN..(i + 1) * HIDDEN);
    let heads = |y: View, i: usize| part(y, i).split(HEADS);
    let q = rec.rms_norm(heads(y, 0), &gain, 1e-6);
    let q = tap(&mut rec, q);
    let k = rec.rms_norm(heads(y, 1), &gain, 1e-6);
    let (q, k) = (rec.rope(q, &rope), rec.rope(k, &rope));
    let attended = rec.attention(q, k, heads(y, 2), 0, 0.1);
    let gated = rec.sigmoid_mul(attended, part(y, 3));
    let gated = tap(&mut rec, gated);
    let x = rec.linear_add(gated, &o, kind, x);
    let y = rec.linear(x, &mixed, kind);
    let gate = |at: usize| y.columns(4 * HIDDEN + at * HEADS..4 * HIDDEN + (at + 1) * HEADS);
    let (decay, beta) = rec.delta_gates(gate(0), gate(1), &rate, &bias);
    let decay = tap(&mut rec, decay);
    let read = rec.gated_delta([heads(y, 0), heads(y, 1), heads(y, 2)], (decay, beta), HeadMap::Grouped, 1e-6, 0);
    let normed = rec.gated_norm(read, heads(y, 3), &gain, 1e-6);
    let normed = tap(&mut rec, normed);
    let normed = View { heads: 1, dim: HIDDEN, stride: HIDDEN, ..normed };
    let x = rec.linear_add(normed, &out, kind, x);
    let norm = Norm { gain: vector(HIDDEN, 9), eps: 1e-6 };
    let input = rec.norm_linear_swiglu(x, &norm, &gate_up, kind);
    let input = tap(&mut rec, input);
    let y = rec.linear_add(input, &down, kind, x);
    rec.output(y, "y");
    let last = rec.select_rows(y);
    let last = tap(&mut rec, last);
    let logits = rec.norm_linear(last, &norm, &table, kind);
    rec.output(logits, "logits");
    let kv = KvSpec { layers: 1, heads: HEADS, dim: DIM, pages: 1, format: KvFormat::F16 };
    let state = StateSpec {
        layers: 1,
        slots: 1,
        channels: HIDDEN,
        kernel: 4,
        heads: HEADS,
        key_dim: DIM,
        value_dim: DIM,
        max_pending: 1,
    };
    let cache = backend.cache(CacheSpec { kv, state: Some(state) }).unwrap();
    let plan = backend.compile(rec.finish(), &cache, PlanOptions::default()).unwrap();
    let mut bits = Vec::new();
    for rows in [0..ROWS, ROWS..ROWS + 1, ROWS + 1..ROWS + 2] {
        let (past, count) = (rows.start, rows.len());
        let positions = rows.clone().map(|t| [t as u32; 3]).collect();
        let segment = Segment { rows: 0..count, slot: 0, pages: vec![0], past, accepted: 0, speculative: false };
        let inputs = StepInputs {
            tokens: rows.map(|t| t as u32).collect(),
            positions,
            segments: vec![segment],
            logit_rows: vec![count - 1],
            ..StepInputs::default()
        };
        let output = wait(backend, backend.run(&plan, inputs).unwrap()).unwrap();
        bits.extend(["y", "logits"].iter().flat_map(|name| output.values[*name].iter().map(|v| v.to_bits())));
    }
    bits
}

#[test]
fn fused_ops_have_the_bits_of_single_ones() {
    let eight = Tuning { slices: Some(8) };
    for (of, tuning) in [
        ((Format::F32, Activations::F32), None),
        ((Format::Q1_0, Activations::I8G128), None),
        ((Format::Q1_0, Activations::I8G128), Some(eight)),
        ((Format::Q1_0, Activations::I9G128), None),
    ] {
        let Some(backend) = common::adapter_with(WgpuOptions { tuning, ..WgpuOptions::default() }) else {
            return eprintln!("not run: no adapter");
        };
        let together = run(&backend, of, false);
        assert!(together.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{of:?}: numbers break down");
        assert!(together == run(&backend, of, true), "{of:?}");
    }
}
