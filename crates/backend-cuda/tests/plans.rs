//! A row has the same bits in every plan: whole prompts in a large plan, where products go tile by tile and attention row by
//! row, against pieces in small ones, where contexts are cut into splits, by one kernel or another.

use onebit_backend_cuda::{CudaBackend, CudaOptions};
use onebit_ops::{
    Activations, Backend, Bucket, Cache, CacheSpec, HeadMap, KvFormat, KvSpec, Norm, PAGE_ROWS, Plan, PlanOptions,
    Recorder, RopeTable, Segment, StateSpec, StepInputs, UploadOptions, View, Weight, wait,
};
use onebit_quant::{Format, Packed, ParamType, pack, quantize};
use std::sync::Arc;

const HIDDEN: usize = 256;
const HEADS: usize = 4;
const VOCAB: usize = 50;
const EPS: f32 = 1e-6;

/// Heads of the attention.
#[derive(Clone, Copy)]
struct Attention {
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

/// Numbers that look random, between -1 and 1.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn take(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }

    fn binary(&mut self, rows: usize, cols: usize) -> Packed {
        let format = Format::Affine { bits: 1, group: 128, scale: ParamType::F16, bias: ParamType::F16 };
        let codes: Vec<u8> = self.take(rows * cols).iter().map(|v| u8::from(*v > 0.0)).collect();
        let groups = rows * cols / 128;
        pack(format, rows, cols, &codes, &vec![0.125; groups], &vec![-0.0625; groups]).unwrap()
    }
}

/// One layer with attention and one with the delta rule, then a product.
fn record(backend: &dyn Backend, bucket: Bucket, kind: Activations, attention: Attention) -> onebit_ops::Program {
    let Attention { heads, kv_heads, dim } = attention;
    let mut numbers = Numbers(7);
    let mut weight = |rows: usize, cols: usize| -> Weight {
        let packed = numbers.binary(rows, cols);
        backend.upload("w", &[packed.as_matrix()], UploadOptions::default()).unwrap()
    };
    let (width, kv) = (heads * dim, kv_heads * dim);
    let (qkv, out) = (weight(width + 2 * kv, HIDDEN), weight(HIDDEN, width));
    let (mixed, gates, down) = (weight(3 * HIDDEN, HIDDEN), weight(2 * HEADS, HIDDEN), weight(HIDDEN, HIDDEN));
    let table = quantize(Format::F32, VOCAB, HIDDEN, &numbers.take(VOCAB * HIDDEN)).unwrap();
    let table = backend.upload("table", &[table.as_matrix()], UploadOptions::default()).unwrap();
    // What the delta rule keeps fades.
    let rate: Vec<f32> = numbers.take(HEADS).iter().map(|v| -v.abs()).collect();
    let rate = backend.upload_vector(&rate).unwrap();
    let mut vector = |n: usize| backend.upload_vector(&numbers.take(n)).unwrap();
    let norm = Norm { gain: vector(HIDDEN), eps: EPS };
    let (taps, bias) = (vector(HIDDEN * 4), vector(HEADS));
    let rope = Arc::new(RopeTable::plain(1e4, dim));

    let mut rec = Recorder::new(bucket);
    let x = rec.embed(&table);
    let y = rec.norm_linear(x, &norm, &qkv, kind);
    let (q, k) = (y.columns(0..width).split(heads), y.columns(width..width + kv).split(kv_heads));
    let (q, k) = (rec.rope(q, &rope), rec.rope(k, &rope));
    let v = y.columns(width + kv..width + 2 * kv).split(kv_heads);
    let attended = rec.attention(q, k, v, 0, (dim as f32).powf(-0.5));
    let x = rec.linear_add(attended, &out, kind, x);

    let y = rec.norm_linear(x, &norm, &mixed, kind);
    let part = |i: usize| -> View { y.columns(i * HIDDEN..(i + 1) * HIDDEN) };
    let v = rec.conv_silu(part(0), &taps, 4, 0).split(HEADS);
    let g = rec.norm_linear(x, &norm, &gates, kind);
    let gates = rec.delta_gates(g.columns(0..HEADS), g.columns(HEADS..2 * HEADS), &rate, &bias);
    let qk = [part(1).split(HEADS), part(2).split(HEADS)];
    let read = rec.gated_delta([qk[0], qk[1], v], gates, HeadMap::Grouped, EPS, 0);
    let read = View { heads: 1, dim: HIDDEN, stride: HIDDEN, ..read };
    let y = rec.linear_add(read, &down, kind, x);
    rec.output(y, "y");
    rec.finish()
}

/// Pages of one sequence.
fn pages(tokens: usize) -> usize {
    (tokens + 70).div_ceil(PAGE_ROWS)
}

struct Case<'a> {
    backend: &'a dyn Backend,
    cache: Cache,
    kind: Activations,
    attention: Attention,
    tokens: usize,
}

impl Case<'_> {
    fn plan(&self, rows: usize, context: usize) -> Plan {
        let bucket = Bucket { rows, logits: rows, context };
        let program = record(self.backend, bucket, self.kind, self.attention);
        self.backend.compile(program, &self.cache, PlanOptions::default()).unwrap()
    }

    /// Rows `past..past + rows` of the sequence that has this slot and pages of its own.
    fn run(&self, plan: &Plan, slot: usize, past: usize, rows: usize) -> Vec<u32> {
        let pages = (0..pages(self.tokens)).map(|p| (slot * pages(self.tokens) + p) as u32).collect();
        let inputs = StepInputs {
            tokens: (past..past + rows).map(|t| (t * t % VOCAB) as u32).collect(),
            positions: (past..past + rows).map(|t| [t as u32; 3]).collect(),
            segments: vec![Segment { rows: 0..rows, slot, pages, past, accepted: 0, speculative: false }],
            ..StepInputs::default()
        };
        let output = wait(self.backend, self.backend.run(plan, inputs).unwrap()).unwrap();
        output.values["y"].iter().map(|v| v.to_bits()).collect()
    }

    /// The whole sequence in steps of these rows at most, by plans for so long a context.
    fn pieces(&self, slot: usize, [first, rows, context]: [usize; 3]) -> Vec<u32> {
        let plans = (self.plan(first, context), self.plan(rows, context));
        let mut out = self.run(&plans.0, slot, 0, first);
        let mut past = first;
        while past < self.tokens {
            let count = rows.min(self.tokens - past);
            out.extend(self.run(&plans.1, slot, past, count));
            past += count;
        }
        out
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_plan() {
    let backend = match CudaBackend::new(CudaOptions::default()) {
        Ok(backend) => backend,
        Err(error) => {
            assert_ne!(std::env::var("ONEBIT_TEST_BACKEND").as_deref(), Ok("cuda"), "{error}");
            return eprintln!("not run: {error}");
        }
    };
    let few = Attention { heads: HEADS, kv_heads: 2, dim: 64 };
    // Of these, 60 rows with all their splits are more than what a head a warp is for, and contexts are long; so is one row in a plan
    // for far longer ones, where it is short up to 1024 tokens.
    let (four, six) = (Attention { heads: 4, kv_heads: 1, dim: 128 }, Attention { heads: 6, kv_heads: 1, dim: 256 });
    let small: (usize, &[_]) = (530, &[[500, 1, 600], [256, 13, 600], [64, 150, 600]]);
    let large: (usize, &[_]) = (1090, &[[1075, 1, 1160], [1000, 60, 1160], [1010, 1, 70_000]]);
    for (format, kind, attention, (tokens, pieces)) in [
        (KvFormat::F16, Activations::I8G128, few, small),
        (KvFormat::F32, Activations::I9G128, few, small),
        (KvFormat::Q8, Activations::F32, few, small),
        (KvFormat::Q4, Activations::I8G128, few, small),
        (KvFormat::F16, Activations::I8G128, four, large),
        (KvFormat::Q8, Activations::I8G128, four, large),
        (KvFormat::F16, Activations::I8G128, six, large),
        (KvFormat::Q8, Activations::I8G128, six, large),
    ] {
        let kv = KvSpec { layers: 1, heads: attention.kv_heads, dim: attention.dim, pages: 4 * pages(tokens), format };
        let (key_dim, value_dim) = (HIDDEN / HEADS, HIDDEN / HEADS);
        let state = StateSpec {
            layers: 1,
            slots: 4,
            channels: HIDDEN,
            kernel: 4,
            heads: HEADS,
            key_dim,
            value_dim,
            max_pending: 1,
        };
        let cache = backend.cache(CacheSpec { kv, state: Some(state) }).unwrap();
        let case = Case { backend: &backend, cache, kind, attention, tokens };
        let Attention { heads, dim, .. } = attention;
        let whole = case.run(&case.plan(1100, tokens + 70), 0, 0, tokens);
        assert!(whole.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{format} {kind}: numbers break down");
        for (slot, &steps) in (1..).zip(pieces) {
            let pieces = case.pieces(slot, steps);
            let [first, rows, context] = steps;
            let differs = whole.iter().zip(&pieces).position(|(a, b)| a != b);
            let what = format!("{format} {kind}, {heads} heads of {dim}");
            let steps = format!("first {first}, then {rows} rows, plans for {context} tokens");
            assert_eq!(differs, None, "{what}: {steps}, {HIDDEN} values a row");
            let states = [0, slot].map(|slot| backend.read_slot(&case.cache, slot, 0).unwrap());
            assert!(states[0] == states[1], "{what}: the states differ after pieces of {rows}");
        }
    }
}
