//! What the delta-rule cases share: random rows of a layer, its program, and the exact run.

use crate::bound::Near;
use crate::bound::delta::{EPS, Exact, Shape};
use crate::check::Suite;
use crate::prng::Rng;
use crate::session::{Twin, bucket, recurrent};
use crate::weights;
use onebit_ops::StateSpec;

/// Most rows of a speculative step.
pub(crate) const PENDING: usize = 6;
/// Slots of a case's cache.
pub(crate) const SLOTS: usize = 4;

/// `n` rows `[q, k, v, log_decay, beta]`: mild gates, and now and then extreme ones, zero keys, and repeated keys.
pub(crate) fn table(rng: &mut Rng, shape: Shape, n: usize) -> Vec<Vec<f32>> {
    let (keys, heads) = (shape.keys(), shape.value_heads);
    let gates = 2 * keys + shape.values();
    let mut rows: Vec<Vec<f32>> = (0..n)
        .map(|_| {
            let mut row = rng.normals(gates);
            row.extend((0..heads).map(|_| -0.3 * rng.normal().abs()));
            row.extend((0..heads).map(|_| rng.uniform() as f32));
            row
        })
        .collect();
    for i in 0..n {
        match i % 16 {
            3 => rows[i][gates..gates + heads].fill(-40.0),
            5 => rows[i][gates..gates + heads].fill(0.0),
            7 => rows[i][gates + heads..].fill(1.0),
            9 => rows[i][gates + heads..].fill(0.0),
            11 => rows[i][keys..2 * keys].fill(0.0),
            12 if i > 2 => {
                let key = rows[i - 2][keys..2 * keys].to_vec();
                rows[i][keys..2 * keys].copy_from_slice(&key);
            }
            _ => {}
        }
    }
    rows
}

/// A program of one delta-rule layer (layer 1 of 2) over the rows of a table.
pub(crate) fn twin<'a>(suite: &Suite<'a>, case: &str, shape: Shape, table: &[Vec<f32>]) -> Twin<'a> {
    let state = StateSpec {
        layers: 2,
        slots: SLOTS,
        channels: 2,
        kernel: 2,
        heads: shape.value_heads,
        key_dim: shape.key_dim,
        value_dim: shape.value_dim,
        max_pending: PENDING,
    };
    Twin::new(suite, case, (bucket(200, 1000), recurrent(state)), |b| {
        let all = b.rows(&weights::dense(table));
        let (keys, values, heads) = (shape.keys(), shape.values(), shape.value_heads);
        let mut start = 0;
        let mut next = |cols: usize| {
            start += cols;
            all.columns(start - cols..start)
        };
        let q = next(keys).split(shape.key_heads);
        let k = next(keys).split(shape.key_heads);
        let v = next(values).split(heads);
        let gates = (next(heads), next(heads));
        let y = b.rec.gated_delta([q, k, v], gates, shape.map, EPS, 1);
        b.rec.output(y, "y");
    })
}

/// The exact outputs of these tokens after `exact`, which moves on.
pub(crate) fn outputs(exact: &mut Exact, table: &[Vec<f32>], tokens: &[usize]) -> Vec<Vec<Near>> {
    tokens.iter().map(|t| exact.token(&table[*t])).collect()
}

/// The state of a slot on both sides, against the exact one.
pub(crate) fn compare_state(suite: &mut Suite<'_>, case: &str, twin: &Twin<'_>, slot: usize, exact: &Exact) {
    let (got, want) = (twin.got.read_slot(slot, 1).delta, twin.want.read_slot(slot, 1).delta);
    suite.near(&format!("{case} state"), &got, &want, &[exact.state()]);
}
