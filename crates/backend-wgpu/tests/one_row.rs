//! A row alone has the bits that it has among many, at every width that kernels for one row cut differently: of fewer records than
//! slices, of a batch of records a slice, and of several.

mod common;

use onebit_backend_wgpu::{Tuning, WgpuOptions};
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, KvFormat, KvSpec, Norm, PlanOptions, Recorder, Segment, StepInputs,
    Weight, wait,
};
use onebit_quant::{Format, Packed, ParamType, pack, quantize};

const ROWS: usize = 20;
/// No whole number of blocks.
const OUT: usize = 72;

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + i / 91) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// Codes of so many bits, whose biases follow from the scales as they do in published models, or do not.
fn packed(bits: u8, follows: bool, cols: usize, seed: usize) -> Packed {
    let format = Format::Affine { bits, group: 128, scale: ParamType::F16, bias: ParamType::F16 };
    let center = if bits == 1 { 0.5 } else { 1.0 };
    let most = if bits == 1 { 2.0 } else { 3.0 };
    let codes: Vec<u8> =
        numbers(OUT * cols, seed).iter().map(|v| ((v + 1.0) / 2.0 * most).min(most - 1.0) as u8).collect();
    let scales: Vec<f32> = numbers(OUT * cols / 128, seed + 1).iter().map(|v| 0.125 + v.abs() / 8.0).collect();
    let scales: Vec<f32> = scales.iter().map(|s| (s * 512.0).round() / 512.0).collect();
    let biases: Vec<f32> = scales.iter().map(|s| if follows { -s * center } else { 0.25 }).collect();
    pack(format, OUT, cols, &codes, &scales, &biases).unwrap()
}

/// Bits of the results of some rows, of all in one step and of each in a step of its own.
fn run(backend: &dyn Backend, bits: u8, follows: bool, cols: usize) -> [Vec<u32>; 2] {
    let upload = |packed: Packed| -> Weight { backend.upload("w", &[packed.as_matrix()], Default::default()).unwrap() };
    let table = upload(quantize(Format::F16, ROWS, cols, &numbers(ROWS * cols, 1)).unwrap());
    let (plain, normed) = (upload(packed(bits, follows, cols, 2)), upload(packed(bits, follows, cols, 5)));
    let norm = Norm { gain: backend.upload_vector(&numbers(cols, 4)).unwrap(), eps: 1e-6 };
    let mut rec = Recorder::new(Bucket { rows: ROWS, logits: 1, context: 64 });
    let x = rec.embed(&table);
    let y = rec.linear(x, &plain, Activations::I8G128);
    let normed = rec.norm_linear(x, &norm, &normed, Activations::I8G128);
    rec.output(normed, "normed");
    rec.output(y, "y");
    let kv = KvSpec { layers: 1, heads: 1, dim: 64, pages: 1, format: KvFormat::F16 };
    let cache = backend.cache(CacheSpec { kv, state: None }).unwrap();
    let plan = backend.compile(rec.finish(), &cache, PlanOptions::default()).unwrap();
    let step = |tokens: std::ops::Range<usize>| -> Vec<u32> {
        let rows = 0..tokens.len();
        let segment = Segment { rows, slot: 0, pages: vec![0], past: 0, accepted: 0, speculative: false };
        let inputs = StepInputs {
            positions: tokens.clone().map(|t| [t as u32; 3]).collect(),
            tokens: tokens.map(|t| t as u32).collect(),
            segments: vec![segment],
            ..StepInputs::default()
        };
        let output = wait(backend, backend.run(&plan, inputs).unwrap()).unwrap();
        let row = |name: &str| output.values[name].iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        // Row by row, whatever the number of rows.
        let (y, normed) = (row("y"), row("normed"));
        y.chunks(OUT).zip(normed.chunks(OUT)).flat_map(|(y, normed)| [y, normed].concat()).collect()
    };
    let together: Vec<Vec<u32>> = step(0..ROWS).chunks(2 * OUT).map(<[u32]>::to_vec).collect();
    let some = [0, 11, ROWS - 1];
    [some.map(|row| together[row].clone()).concat(), some.map(|row| step(row..row + 1)).concat()]
}

#[test]
fn a_row_alone_has_the_bits_that_it_has_among_many() {
    for slices in [16, 8] {
        let tuning = Some(Tuning { slices: Some(slices) });
        let Some(backend) = common::adapter_with(WgpuOptions { tuning, ..WgpuOptions::default() }) else {
            return eprintln!("not run: no adapter");
        };
        for (cols, bits) in [128, 1280, 5120, 17_408].into_iter().flat_map(|cols| [(cols, 1), (cols, 2)]) {
            for follows in [true, false] {
                let [together, alone] = run(&backend, bits, follows, cols);
                assert!(together.iter().any(|bits| *bits != 0), "{bits} bits, {cols} columns: nothing");
                assert!(together == alone, "{bits} bits, {cols} columns, {slices} slices, biases follow: {follows}");
            }
        }
    }
}
