//! Attention between the rows of a step: all of them, and those of a padded text.

use super::latents::{runs, values};
use crate::bound;
use crate::check::Suite;
use crate::session::{Twin, bucket, stateless};
use onebit_ops::{KvFormat, Seen};

pub(crate) fn run(suite: &mut Suite<'_>) {
    if !runs(suite) {
        return;
    }
    for (rows, heads, kv_heads, dim) in [
        (1, 1, 1, 8),
        (5, 2, 1, 33),
        (64, 3, 3, 32),
        (65, 2, 2, 128),
        (130, 4, 2, 32),
        (200, 1, 1, 64),
        (70, 1, 1, 512),
    ] {
        for seen in [Seen::All, Seen::Causal { keys: rows }, Seen::Causal { keys: rows.div_ceil(3) }] {
            attention(suite, rows, (heads, kv_heads, dim), seen);
        }
    }
}

fn attention(suite: &mut Suite<'_>, rows: usize, (heads, kv_heads, dim): (usize, usize, usize), seen: Seen) {
    let name = format!("{rows} rows, {heads} heads over {kv_heads} of {dim}, {seen:?}");
    let mut rng = suite.rng(&name);
    let width = (heads + 2 * kv_heads) * dim;
    let mut all: Vec<Vec<f32>> = (0..rows).map(|_| rng.normals(width)).collect();
    // One key that takes all the weight, and one row of large values.
    let first_key = heads * dim;
    all[rows / 2][first_key..first_key + dim].iter_mut().for_each(|v| *v *= 20.0);
    all[rows - 1][(heads + kv_heads) * dim..].iter_mut().for_each(|v| *v *= 100.0);
    let scale = (dim as f32).powf(-0.5);
    let twin = Twin::new(suite, &name, (bucket(0, 0), stateless()), |b| {
        let all = b.rec.input("qkv", rows, width);
        let q = all.columns(0..heads * dim).split(heads);
        let k = all.columns(first_key..first_key + kv_heads * dim).split(kv_heads);
        let v = all.columns(first_key + kv_heads * dim..width).split(kv_heads);
        let y = b.rec.full_attention(q, k, v, scale, seen);
        b.rec.output(y, "y");
    });
    let (got, want) = twin.y(&values([("qkv", &all)]));
    let exact: Vec<Vec<_>> = (0..rows)
        .map(|row| {
            let seen = match seen {
                Seen::All => rows,
                Seen::Causal { keys } => keys.min(row + 1),
            };
            let head = |h: usize| {
                let of = first_key + h / (heads / kv_heads) * dim;
                let part = |at: usize| all[..seen].iter().map(|r| r[at..at + dim].to_vec()).collect::<Vec<_>>();
                let query = &all[row][h * dim..(h + 1) * dim];
                bound::attention::attention(KvFormat::F32, query, &part(of), &part(of + kv_heads * dim), scale)
            };
            (0..heads).flat_map(head).collect()
        })
        .collect();
    suite.near(&name, &got, &want, &exact);
}
