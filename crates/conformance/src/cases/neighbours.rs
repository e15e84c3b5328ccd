//! A row's result does not depend on what else the step computes: three sequences of unequal length together and alone,
//! bit for bit, through every kind of layer.

use crate::check::Suite;
use crate::prng::Rng;
use crate::session::{Build, Session, bucket, step};
use crate::weights::{self, Bias, affine};
use onebit_ops::{Activations, CacheSpec, HeadMap, KvSpec, Norm, RopeTable, Segment, SlotState, StateSpec};
use std::ops::Range;
use std::sync::Arc;

const COLS: usize = 128;
const HEADS: usize = 4;
const DIM: usize = 32;
const VOCAB: usize = 230;
const EPS: f32 = 1e-6;

/// Rows of the prompt, slot and pages of each sequence.
const SEQUENCES: [(usize, usize, &[u32]); 3] = [(3, 2, &[5]), (12, 0, &[1]), (200, 1, &[7, 0, 3, 6])];

pub(crate) fn run(suite: &mut Suite<'_>) {
    for kind in suite.activations() {
        for format in suite.kv_formats() {
            let case = format!("{kind} keys and values {format}");
            let kv = KvSpec { layers: 1, heads: 2, dim: DIM, pages: 8, format };
            let state = StateSpec {
                layers: 1,
                slots: 3,
                channels: COLS,
                kernel: 4,
                heads: HEADS,
                key_dim: DIM,
                value_dim: DIM,
                max_pending: 2,
            };
            let sizes = (bucket(220, 256), CacheSpec { kv, state: Some(state) });
            let seed = format!("layer {case}");
            let session =
                |case: &str| Session::new(suite.backend, case, sizes, |b| layer(b, &mut Rng::new(&seed), kind));
            let together = session(&case);
            let prompts = run_all(&together, &[0, 1, 2], false);
            let next = run_all(&together, &[2, 0, 1], true);
            let states = SEQUENCES.map(|(_, slot, _)| together.read_slot(slot, 0));
            for (i, (_, slot, _)) in SEQUENCES.iter().enumerate() {
                let case = format!("{case} sequence {i}");
                let alone = session(&case);
                suite.identical(&format!("{case} prompt"), COLS, &prompts[i], &run_all(&alone, &[i], false)[i]);
                suite.identical(&format!("{case} next"), COLS, &next[i], &run_all(&alone, &[i], true)[i]);
                let SlotState { delta, window } = alone.read_slot(*slot, 0);
                suite.identical(&format!("{case} delta"), DIM, &states[i].delta, &delta);
                suite.identical(&format!("{case} window"), COLS, &states[i].window, &window);
            }
        }
    }
}

/// Runs the sequences in this order in one step: their prompts, or one or two more tokens. The outputs stand under each
/// sequence's number.
fn run_all(session: &Session<'_>, order: &[usize], next: bool) -> Vec<Vec<f32>> {
    let (mut tokens, mut segments) = (Vec::new(), Vec::new());
    for &i in order {
        let (prompt, slot, pages) = SEQUENCES[i];
        let own: Range<usize> = if next { prompt..prompt + 1 + i % 2 } else { 0..prompt };
        let start = tokens.len();
        tokens.extend(own.clone().map(|t| (t + 5 * i) % VOCAB));
        let rows = start..tokens.len();
        segments.push(Segment { rows, slot, pages: pages.to_vec(), past: own.start, accepted: 0, speculative: false });
    }
    let y = session.y(&step(&tokens, segments.clone()));
    let mut out = vec![Vec::new(); SEQUENCES.len()];
    for (i, segment) in order.iter().zip(&segments) {
        out[*i] = y[segment.rows.start * COLS..segment.rows.end * COLS].to_vec();
    }
    out
}

/// An attention block, a delta-rule block and an MLP, in the shapes of a small hybrid.
fn layer(b: &mut Build<'_>, rng: &mut Rng, kind: Activations) {
    let rows: Vec<Vec<f32>> = (0..VOCAB).map(|_| rng.normals(COLS)).collect();
    let mut weight = |b: &Build<'_>, rows: &[usize]| {
        let parts: Vec<_> =
            rows.iter().map(|r| weights::matrix(rng, affine(1, 128), Bias::Symmetric, *r, COLS)).collect();
        b.weight(&parts.iter().collect::<Vec<_>>())
    };
    let qkv = weight(b, &[COLS, COLS / 2, COLS / 2]);
    let out = weight(b, &[COLS]);
    let delta_in = weight(b, &[3 * COLS, COLS, HEADS, HEADS]);
    let delta_out = weight(b, &[COLS]);
    let mlp = weight(b, &[COLS, COLS]);
    let down = weight(b, &[COLS]);
    let norm = Norm { gain: b.vector(&rng.normals(COLS)), eps: EPS };
    let head_gain = b.vector(&rng.normals(DIM));
    let taps = b.vector(&rng.normals(3 * COLS * 4)[..COLS * 4]);
    let rate = b.vector(&[-0.5; HEADS]);
    let table = Arc::new(RopeTable::plain(1e4, DIM));

    let x = b.rows(&weights::dense(&rows));
    let y = b.rec.norm_linear(x, &norm, &qkv, kind);
    let head = |b: &mut Build<'_>, part: usize, heads: usize| {
        let view = b.rec.rms_norm(y.columns(qkv.part(part)).split(heads), &head_gain, EPS);
        b.rec.rope(view, &table)
    };
    let (q, k) = (head(b, 0, HEADS), head(b, 1, 2));
    let attended = b.rec.attention(q, k, y.columns(qkv.part(2)).split(2), 0, (DIM as f32).powf(-0.5));
    let x = b.rec.linear_add(attended, &out, kind, x);

    let y = b.rec.norm_linear(x, &norm, &delta_in, kind);
    let parts = y.columns(delta_in.part(0));
    let v = b.rec.conv_silu(parts.columns(2 * COLS..3 * COLS), &taps, 4, 0).split(HEADS);
    let (q, k) = (parts.columns(0..COLS).split(HEADS), parts.columns(COLS..2 * COLS).split(HEADS));
    let (log_decay, beta) = b.rec.delta_gates(y.columns(delta_in.part(2)), y.columns(delta_in.part(3)), &rate, &rate);
    let mixed = b.rec.gated_delta([q, k, v], (log_decay, beta), HeadMap::Grouped, EPS, 0);
    let gated = b.rec.gated_norm(mixed, y.columns(delta_in.part(1)), &head_gain, EPS);
    let x = b.rec.linear_add(gated, &delta_out, kind, x);

    let hidden = b.rec.norm_linear_swiglu(x, &norm, &mlp, kind);
    let y = b.rec.linear_add(hidden, &down, kind, x);
    b.rec.output(y, "y");
}
