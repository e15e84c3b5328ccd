//! Products, and attention between the rows of a step, are the same on every tier of vectors, bit for bit, however blocks lie:
//! sums of a group are whole numbers, floats are added in one order, and all tiers round in the same places. The shapes have
//! whole sets of blocks, a pair of them, and a rest.

use onebit_backend_cpu::{CpuBackend, CpuOptions, Tier};
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, KvFormat, KvSpec, PlanOptions, Recorder, Seen, Segment, StepInputs,
    UploadOptions, Weight, wait,
};
use onebit_quant::{Format, Matrix, ParamType, quantize};

const COLS: usize = 384;

/// Rows of blocks: one, a set, a set and some, a pair of sets and some.
const ROWS: [usize; 4] = [24, 256, 330, 858];

fn backend(tier: Tier) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(2), tier: Some(tier) }).unwrap()
}

fn numbers(seed: u32) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    }
}

/// What `weight` makes of some rows of activations, as bits.
fn products(backend: &CpuBackend, weight: &Weight, rows: usize, activations: Activations) -> Vec<u32> {
    let mut random = numbers(7);
    let values: Vec<f32> = (0..rows * COLS).map(|_| random() as f32 / 8_388_608.0 - 1.0).collect();
    let table = quantize(Format::F32, rows, COLS, &values).unwrap();
    let table = backend.upload("inputs", &[table.as_matrix()], UploadOptions::default()).unwrap();
    let mut rec = Recorder::new(Bucket { rows, logits: 1, context: rows });
    let x = rec.embed(&table);
    let y = rec.linear(x, weight, activations);
    rec.output(y, "y");
    let kv = KvSpec { layers: 0, heads: 1, dim: 1, pages: 0, format: KvFormat::F16 };
    let cache = backend.cache(CacheSpec { kv, state: None }).unwrap();
    let plan = backend.compile(rec.finish(), &cache, PlanOptions::default()).unwrap();
    let inputs = StepInputs {
        tokens: (0..rows as u32).collect(),
        positions: vec![[0; 3]; rows],
        segments: vec![Segment { rows: 0..rows, slot: 0, pages: vec![], past: 0, accepted: 0, speculative: false }],
        ..StepInputs::default()
    };
    let output = wait(backend, backend.run(&plan, inputs).unwrap()).unwrap();
    output.values["y"].iter().map(|v| v.to_bits()).collect()
}

/// Blocks of a format with random codes; of ternary ones none is 3.
fn codes(format: Format, rows: usize, ternary: bool) -> Vec<u8> {
    let mut random = numbers(rows as u32);
    let mut codes: Vec<u8> = (0..format.row_bytes(COLS).unwrap() * rows).map(|_| random() as u8).collect();
    if ternary {
        codes.iter_mut().for_each(|b| *b &= !((*b & 0x55) << 1));
    }
    if let Some(block) = format.block() {
        let at = if format == Format::Ptq1_0 { block.bytes - 2 } else { 0 };
        for bytes in codes.chunks_mut(block.bytes) {
            bytes[at..at + 2].copy_from_slice(&(0x2400 + (random() as u16 & 0xff)).to_le_bytes());
        }
    }
    codes
}

#[test]
fn all_tiers_give_the_same_bits() {
    let affine = |bits, group| Format::Affine { bits, group, scale: ParamType::F16, bias: ParamType::F16 };
    let formats = [
        (Format::Q1_0, false),
        (Format::Pq2_0, false),
        (Format::Pq2_0, true),
        (Format::Ptq1_0, true),
        (affine(1, 128), false),
        (affine(2, 128), true),
        (affine(4, 64), false),
        (Format::Q4_0, false),
        (Format::Q8_0, false),
    ];
    for (format, ternary) in formats {
        for rows in ROWS {
            let codes = codes(format, rows, ternary && format != Format::Ptq1_0);
            let mut random = numbers(11);
            let mut params = || -> Vec<u8> {
                let group = if let Format::Affine { group, .. } = format { group.into() } else { usize::MAX };
                let count = rows * COLS / group;
                (0..count).flat_map(|_| (0x2400 + (random() as u16 & 0xff)).to_le_bytes()).collect()
            };
            // Biases have nothing to do with the scales, so they are kept.
            let (scales, biases) = (params(), params());
            for count in [1, 2, 3, 9, 71] {
                for activations in [Activations::I9G128, Activations::F32] {
                    let of = |tier| {
                        let backend = backend(tier);
                        let matrix = Matrix::new(format, rows, COLS, &codes, &scales, &biases).unwrap();
                        let weight = backend.upload("weight", &[matrix], UploadOptions::default()).unwrap();
                        products(&backend, &weight, count, activations)
                    };
                    // Without an instruction for it, the portable tier multiplies and adds in two roundings.
                    let tiers: Vec<Tier> = Tier::available().into_iter().filter(|t| *t != Tier::PORTABLE).collect();
                    let want = tiers.first().map_or_else(Vec::new, |first| of(*first));
                    assert!(tiers.is_empty() || want.iter().any(|bits| f32::from_bits(*bits) != 0.0));
                    for tier in tiers {
                        assert!(of(tier) == want, "{tier:?}: {rows} rows of {format}, {count} rows of {activations}");
                    }
                }
            }
        }
    }
}

/// What `threads` threads make of some rows of queries, keys and values, as bits.
fn attention(tier: Tier, threads: usize, rows: usize, heads: [usize; 2], dim: usize, seen: Seen) -> Vec<u32> {
    let backend = CpuBackend::new(CpuOptions { threads: Some(threads), tier: Some(tier) }).unwrap();
    let [queries, keys] = heads;
    let width = (queries + 2 * keys) * dim;
    let mut rec = Recorder::new(Bucket { rows: 0, logits: 0, context: 0 });
    let all = rec.input("x", rows, width);
    let part = |from: usize, heads: usize| all.columns(from * dim..(from + heads) * dim).split(heads);
    let (q, k, v) = (part(0, queries), part(queries, keys), part(queries + keys, keys));
    let y = rec.full_attention(q, k, v, (dim as f32).powf(-0.5), seen);
    rec.output(y, "y");
    let kv = KvSpec { layers: 0, heads: 0, dim: 0, pages: 0, format: KvFormat::F32 };
    let cache = backend.cache(CacheSpec { kv, state: None }).unwrap();
    let plan = backend.compile(rec.finish(), &cache, PlanOptions::default()).unwrap();
    let mut random = numbers(rows as u32);
    let values = (0..rows * width).map(|_| random() as f32 / 1_048_576.0 - 8.0).collect();
    let inputs = StepInputs { values: [("x".to_owned(), values)].into(), ..StepInputs::default() };
    let output = wait(&backend, backend.run(&plan, inputs).unwrap()).unwrap();
    output.values["y"].iter().map(|v| v.to_bits()).collect()
}

#[test]
fn attention_gives_the_same_bits_on_all_tiers() {
    // Without an instruction for it, the portable tier multiplies and adds in two roundings.
    let tiers: Vec<Tier> = Tier::available().into_iter().filter(|t| *t != Tier::PORTABLE).collect();
    // Heads alone and shared; dimensions of whole strips and others; rows of a block, of several, and a rest.
    for (rows, heads, dim) in [(128, [2, 2], 128), (301, [2, 1], 40), (13, [3, 1], 33), (150, [8, 2], 64)] {
        for seen in [Seen::All, Seen::Causal { keys: rows }, Seen::Causal { keys: rows / 2 }] {
            let Some(first) = tiers.first() else { return };
            let want = attention(*first, 1, rows, heads, dim, seen);
            assert!(want.iter().all(|bits| f32::from_bits(*bits).is_finite()));
            for tier in &tiers {
                assert!(
                    attention(*tier, 3, rows, heads, dim, seen) == want,
                    "{tier:?}: {rows} rows, {heads:?}, {seen:?}"
                );
            }
        }
    }
}
