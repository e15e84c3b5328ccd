//! Ops that run as one kernel give the bits that they give one by one: a result that the program also puts out is written,
//! which keeps its neighbours apart.

use onebit_backend_cuda::{CudaBackend, CudaOptions};
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, HeadMap, KvFormat, KvSpec, PAGE_ROWS, PlanOptions, Recorder, RopeTable,
    Segment, StateSpec, StepInputs, View, Weight, wait,
};
use onebit_quant::{Format, Packed, quantize};
use std::sync::Arc;

const DIM: usize = 128;
const VOCAB: usize = 8;

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + i / 91) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// Attention behind norms and rotations and a gate, then a delta rule with gates and a gated norm: the results of so many steps of
/// sequences with so many rows each, one step behind the other.
fn run(backend: &dyn Backend, apart: bool, head_count: usize, sequences: &[usize], steps: usize) -> Vec<u32> {
    let hidden = head_count * DIM;
    let rows: usize = sequences.iter().sum();
    // Of each sequence.
    let pages = (sequences.iter().max().unwrap() * steps).div_ceil(PAGE_ROWS);
    let upload = |rows: usize, seed: usize| -> Weight {
        let packed = quantize(Format::F32, rows, hidden, &numbers(rows * hidden, seed)).unwrap();
        backend.upload("w", &[packed.as_matrix()], Default::default()).unwrap()
    };
    let vector = |n: usize, seed: usize| backend.upload_vector(&numbers(n, seed)).unwrap();
    let table = upload(VOCAB, 1);
    let (qkv, o, mixed, out) =
        (upload(4 * hidden, 2), upload(hidden, 3), upload(4 * hidden + 2 * head_count, 4), upload(hidden, 5));
    let (gain, bias) = (vector(DIM, 6), vector(head_count, 8));
    // What is kept fades.
    let rate: Vec<f32> = numbers(head_count, 7).iter().map(|v| -v.abs()).collect();
    let rate = backend.upload_vector(&rate).unwrap();
    let rope = Arc::new(RopeTable::plain(1e4, DIM));
    let mut rec = Recorder::new(Bucket { rows, logits: 1, context: pages * PAGE_ROWS });
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
    let y = rec.linear(x, &qkv, Activations::F32);
    let part = |y: View, i: usize| y.columns(i * hidden..(i + 1) * hidden);
    let heads = |y: View, i: usize| part(y, i).split(head_count);
    let q = rec.rms_norm(heads(y, 0), &gain, 1e-6);
    let q = tap(&mut rec, q);
    let k = rec.rms_norm(heads(y, 1), &gain, 1e-6);
    let (q, k) = (rec.rope(q, &rope), rec.rope(k, &rope));
    let attended = rec.attention(q, k, heads(y, 2), 0, 0.1);
    let gated = rec.sigmoid_mul(attended, part(y, 3));
    let gated = tap(&mut rec, gated);
    let x = rec.linear_add(gated, &o, Activations::F32, x);
    let y = rec.linear(x, &mixed, Activations::F32);
    let gate = |at: usize| y.columns(4 * hidden + at * head_count..4 * hidden + (at + 1) * head_count);
    let (decay, beta) = rec.delta_gates(gate(0), gate(1), &rate, &bias);
    let decay = tap(&mut rec, decay);
    let read = rec.gated_delta([heads(y, 0), heads(y, 1), heads(y, 2)], (decay, beta), HeadMap::Grouped, 1e-6, 0);
    let normed = rec.gated_norm(read, heads(y, 3), &gain, 1e-6);
    let normed = tap(&mut rec, normed);
    let normed = View { heads: 1, dim: hidden, stride: hidden, ..normed };
    let y = rec.linear_add(normed, &out, Activations::F32, x);
    rec.output(y, "y");
    let kv = KvSpec { layers: 1, heads: head_count, dim: DIM, pages: pages * sequences.len(), format: KvFormat::F16 };
    let state = StateSpec {
        layers: 1,
        slots: sequences.len(),
        channels: hidden,
        kernel: 4,
        heads: head_count,
        key_dim: DIM,
        value_dim: DIM,
        max_pending: 1,
    };
    let cache = backend.cache(CacheSpec { kv, state: Some(state) }).unwrap();
    let plan = backend.compile(rec.finish(), &cache, PlanOptions::default()).unwrap();
    let mut results = Vec::new();
    for step in 0..steps {
        let mut inputs = StepInputs::default();
        for (slot, rows) in sequences.iter().enumerate() {
            let (first, past) = (inputs.tokens.len(), rows * step);
            inputs.tokens.extend((past..past + rows).map(|t| ((t + slot) % VOCAB) as u32));
            inputs.positions.extend((past..past + rows).map(|t| [t as u32; 3]));
            inputs.segments.push(Segment {
                rows: first..first + rows,
                slot,
                pages: (slot * pages..(slot + 1) * pages).map(|page| page as u32).collect(),
                past,
                accepted: 0,
                speculative: false,
            });
        }
        let output = wait(backend, backend.run(&plan, inputs).unwrap()).unwrap();
        results.extend(output.values["y"].iter().map(|v| v.to_bits()));
    }
    results
}

/// Gate and up of 27 billion weights' shape: so many blocks that a large device takes them with less shared memory, of one row.
fn gate_and_up(backend: &dyn Backend, rows: usize) -> Vec<u32> {
    const WIDTH: usize = 5120;
    const INNER: usize = 17408;
    let half = |seed: u32| {
        let mut word = seed;
        let mut codes = vec![0; INNER * WIDTH / 128 * 18];
        for block in codes.as_chunks_mut::<18>().0 {
            for byte in &mut block[..] {
                word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (word >> 24) as u8;
            }
            // A scale between 2^-6 and 2^-5.
            block[1] = 0x24 | block[1] & 3;
        }
        Packed { format: Format::Q1_0, rows: INNER, cols: WIDTH, codes, scales: Vec::new(), biases: Vec::new() }
    };
    let halves = [half(1), half(2)];
    let weight = backend.upload("w", &[halves[0].as_matrix(), halves[1].as_matrix()], Default::default()).unwrap();
    let table = quantize(Format::F32, 2, WIDTH, &numbers(2 * WIDTH, 1)).unwrap();
    let table = backend.upload("table", &[table.as_matrix()], Default::default()).unwrap();
    let mut rec = Recorder::new(Bucket { rows, logits: 1, context: 64 });
    let x = rec.embed(&table);
    let y = rec.linear_swiglu(x, &weight, Activations::I8G128);
    rec.output(y, "y");
    let kv = KvSpec { layers: 1, heads: 1, dim: 64, pages: 1, format: KvFormat::F16 };
    let cache = backend.cache(CacheSpec { kv, state: None }).unwrap();
    let plan = backend.compile(rec.finish(), &cache, PlanOptions::default()).unwrap();
    let inputs = StepInputs {
        tokens: (0..rows as u32).collect(),
        positions: (0..rows as u32).map(|t| [t; 3]).collect(),
        segments: vec![Segment { rows: 0..rows, slot: 0, pages: vec![0], past: 0, accepted: 0, speculative: false }],
        ..StepInputs::default()
    };
    let output = wait(backend, backend.run(&plan, inputs).unwrap()).unwrap();
    output.values["y"][..INNER].iter().map(|v| v.to_bits()).collect()
}

fn backend() -> Option<CudaBackend> {
    match CudaBackend::new(CudaOptions::default()) {
        Ok(backend) => Some(backend),
        Err(error) => {
            assert_ne!(std::env::var("ONEBIT_TEST_BACKEND").as_deref(), Ok("cuda"), "{error}");
            eprintln!("not run: {error}");
            None
        }
    }
}

/// Equal bits with and without neighbours.
fn compare(backend: &dyn Backend, heads: usize, sequences: &[usize], steps: usize) {
    let together = run(backend, false, heads, sequences, steps);
    assert!(together.iter().all(|bits| f32::from_bits(*bits).is_finite()), "numbers break down");
    assert!(together == run(backend, true, heads, sequences, steps), "{heads} heads, rows {sequences:?}");
}

#[test]
fn fused_ops_have_the_bits_of_single_ones() {
    let Some(backend) = backend() else { return };
    compare(&backend, 2, &[3], 1);
    // One row behind up to 299 tokens has two splits of the context, which one kernel joins.
    compare(&backend, 2, &[1], 300);
}

#[test]
fn fused_ops_of_sequences_have_the_bits_of_single_ones() {
    let Some(backend) = backend() else { return };
    compare(&backend, 2, &[1, 1, 2], 5);
    // More heads than a device has multiprocessors, and a prompt among them.
    let mut many = [1; 60];
    many[17] = 3;
    compare(&backend, 8, &many, 3);
}

#[test]
fn gate_and_up_of_one_row_have_the_bits_of_several() {
    let Some(backend) = backend() else { return };
    let one = gate_and_up(&backend, 1);
    assert!(one.iter().all(|bits| f32::from_bits(*bits).is_finite()), "numbers break down");
    assert!(one == gate_and_up(&backend, 2));
}
