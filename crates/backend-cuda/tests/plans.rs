//! A row has the same bits in every plan: whole prompts in a large plan, where products go tile by tile and attention row by
//! row, against pieces in small ones, where contexts are cut into splits.

use onebit_backend_cuda::{CudaBackend, CudaOptions};
use onebit_ops::{
    Activations, Backend, Bucket, Cache, CacheSpec, HeadMap, KvFormat, KvSpec, Norm, PAGE_ROWS, Plan, PlanOptions,
    Recorder, RopeTable, Segment, StateSpec, StepInputs, UploadOptions, View, Weight, wait,
};
use onebit_quant::{Format, Packed, ParamType, pack, quantize};
use std::sync::Arc;

const HIDDEN: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const VOCAB: usize = 50;
const TOKENS: usize = 530;
const CONTEXT: usize = 600;
const PAGES: usize = CONTEXT.div_ceil(PAGE_ROWS);
const EPS: f32 = 1e-6;

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
fn record(backend: &dyn Backend, bucket: Bucket, kind: Activations) -> onebit_ops::Program {
    let mut numbers = Numbers(7);
    let mut weight = |rows: usize| -> Weight {
        let packed = numbers.binary(rows, HIDDEN);
        backend.upload("w", &[packed.as_matrix()], UploadOptions::default()).unwrap()
    };
    let kv = KV_HEADS * DIM;
    let (qkv, out) = (weight(HIDDEN + 2 * kv), weight(HIDDEN));
    let (mixed, gates, down) = (weight(3 * HIDDEN), weight(2 * HEADS), weight(HIDDEN));
    let table = quantize(Format::F32, VOCAB, HIDDEN, &numbers.take(VOCAB * HIDDEN)).unwrap();
    let table = backend.upload("table", &[table.as_matrix()], UploadOptions::default()).unwrap();
    let mut vector = |n: usize| backend.upload_vector(&numbers.take(n)).unwrap();
    let norm = Norm { gain: vector(HIDDEN), eps: EPS };
    let (taps, rate, bias) = (vector(HIDDEN * 4), vector(HEADS), vector(HEADS));
    let rope = Arc::new(RopeTable::plain(1e4, DIM));

    let mut rec = Recorder::new(bucket);
    let x = rec.embed(&table);
    let y = rec.norm_linear(x, &norm, &qkv, kind);
    let (q, k) = (y.columns(0..HIDDEN).split(HEADS), y.columns(HIDDEN..HIDDEN + kv).split(KV_HEADS));
    let (q, k) = (rec.rope(q, &rope), rec.rope(k, &rope));
    let v = y.columns(HIDDEN + kv..HIDDEN + 2 * kv).split(KV_HEADS);
    let attended = rec.attention(q, k, v, 0, (DIM as f32).powf(-0.5));
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

struct Case<'a> {
    backend: &'a dyn Backend,
    cache: Cache,
    kind: Activations,
}

impl Case<'_> {
    fn plan(&self, rows: usize) -> Plan {
        let program = record(self.backend, Bucket { rows, logits: rows, context: CONTEXT }, self.kind);
        self.backend.compile(program, &self.cache, PlanOptions::default()).unwrap()
    }

    /// Rows `past..past + rows` of the sequence that has this slot and pages of its own.
    fn run(&self, plan: &Plan, slot: usize, past: usize, rows: usize) -> Vec<u32> {
        let pages = (0..PAGES).map(|p| (slot * PAGES + p) as u32).collect();
        let inputs = StepInputs {
            tokens: (past..past + rows).map(|t| (t * t % VOCAB) as u32).collect(),
            positions: (past..past + rows).map(|t| [t as u32; 3]).collect(),
            segments: vec![Segment { rows: 0..rows, slot, pages, past, accepted: 0, speculative: false }],
            ..StepInputs::default()
        };
        let output = wait(self.backend, self.backend.run(plan, inputs).unwrap()).unwrap();
        output.values["y"].iter().map(|v| v.to_bits()).collect()
    }

    /// The whole sequence in steps of these rows at most.
    fn pieces(&self, slot: usize, first: usize, rows: usize) -> Vec<u32> {
        let plans = (self.plan(first), self.plan(rows));
        let mut out = self.run(&plans.0, slot, 0, first);
        let mut past = first;
        while past < TOKENS {
            let count = rows.min(TOKENS - past);
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
    let kinds = [Activations::I8G128, Activations::I9G128, Activations::F32, Activations::I8G128];
    for (format, kind) in [KvFormat::F16, KvFormat::F32, KvFormat::Q8, KvFormat::Q4].into_iter().zip(kinds) {
        let kv = KvSpec { layers: 1, heads: KV_HEADS, dim: DIM, pages: 4 * PAGES, format };
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
        let case = Case { backend: &backend, cache, kind };
        let whole = case.run(&case.plan(1100), 0, 0, TOKENS);
        assert!(whole.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{format} {kind}: numbers break down");
        for (slot, first, rows) in [(1, 500, 1), (2, 256, 13), (3, 64, 150)] {
            let pieces = case.pieces(slot, first, rows);
            let differs = whole.iter().zip(&pieces).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{format} {kind}: first {first}, then {rows} rows, {HIDDEN} values a row");
            let states = [0, slot].map(|slot| backend.read_slot(&case.cache, slot, 0).unwrap());
            assert!(states[0] == states[1], "{format} {kind}: the states differ after pieces of {rows}");
        }
    }
}
