//! Attention of some queries over one block of keys and values, with the running maximum of [`super::attention`].
//!
//! No sum runs across lanes: a lane is a key while scores are made and a dimension while values are added, and what is
//! loaded serves a tile of queries. For that everything lies in the order in which it is read:
//!
//! ```text
//! keys      [part of 32 keys][dimension][key]
//! values    [strip of 32 dimensions][key][dimension]
//! queries   [group of 12][dimension][query]
//! weights   [query][key]
//! out       [query][dimension, padded]
//! ```
//!
//! A score is one chain over the dimensions and an output one over the keys, both ascending, so a query's bits depend neither
//! on the tile nor on its neighbours.

use super::attention::most;
use super::vector::Vector;
use super::wide::{WIDTH, Wide};
use std::ops::Range;

/// Keys of a block.
pub(crate) const KEYS: usize = 128;

/// Keys of a part, and dimensions of a strip.
pub(crate) const SIDE: usize = 2 * WIDTH;

/// Queries of a group.
pub(crate) const GROUP: usize = 12;

/// One head of [`KEYS`] tokens. The last block of a head may have fewer; what lies there instead of others is not looked at.
pub(crate) struct Block<'a> {
    pub keys: &'a [f32],
    pub values: &'a [f32],
}

/// Whole groups of queries of one head, and the state of their softmax.
pub(crate) struct Queries<'a> {
    /// Already multiplied by the scale.
    pub queries: &'a [f32],
    /// Keys of the block that each query sees, none to all.
    pub seen: &'a [usize],
    /// `(m, l)` of each query.
    pub state: &'a mut [[f32; 2]],
    pub weights: &'a mut [f32],
    pub out: &'a mut [f32],
}

/// The dimension in whole strips.
pub(crate) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(SIDE)
}

/// Puts the key of one token into a block.
pub(crate) fn place_key(key: &[f32], at: usize, block: &mut [f32]) {
    let part = &mut block[at / SIDE * key.len() * SIDE..][..key.len() * SIDE];
    for (to, from) in part.as_chunks_mut::<SIDE>().0.iter_mut().zip(key) {
        to[at % SIDE] = *from;
    }
}

/// Puts the value of one token into a block. Lanes beyond the dimension keep what they have: they meet no other lane.
pub(crate) fn place_value(value: &[f32], at: usize, block: &mut [f32]) {
    for (from, strip) in value.chunks(SIDE).zip(block.chunks_exact_mut(KEYS * SIDE)) {
        strip[at * SIDE..][..from.len()].copy_from_slice(from);
    }
}

/// Puts one query, times the scale, among the groups.
pub(crate) fn place_query(query: &[f32], scale: f32, at: usize, groups: &mut [f32]) {
    let group = &mut groups[at / GROUP * query.len() * GROUP..][..query.len() * GROUP];
    for (to, from) in group.as_chunks_mut::<GROUP>().0.iter_mut().zip(query) {
        to[at % GROUP] = *from * scale;
    }
}

#[inline(always)]
pub(crate) fn attend_block<V: Vector>(block: &Block<'_>, q: &mut Queries<'_>) {
    attend_wide::<[V; 2]>(block, q);
}

#[inline(always)]
pub(crate) fn attend_wide<W: Wide>(block: &Block<'_>, q: &mut Queries<'_>) {
    score::<W>(block, q);
    soften::<W>(q);
    add::<W>(block, q);
}

/// The scores of every query. Keys that a query does not see get one too where others of its group see them.
#[inline(always)]
fn score<W: Wide>(block: &Block<'_>, q: &mut Queries<'_>) {
    let groups = q.seen.len() / GROUP;
    let dim = q.queries.len() / q.seen.len();
    for (p, part) in block.keys.chunks_exact(dim * SIDE).enumerate() {
        let part = part.as_chunks::<SIDE>().0;
        for g in 0..groups {
            let members = g * GROUP..(g + 1) * GROUP;
            if most(&q.seen[members.clone()]) <= p * SIDE {
                continue;
            }
            let queries = q.queries[g * GROUP * dim..(g + 1) * GROUP * dim].as_chunks::<GROUP>().0;
            let scores = &mut q.weights.as_chunks_mut::<KEYS>().0[members];
            if W::MANY {
                dots::<W, GROUP, 2>(queries, part, scores, (0, p * SIDE));
            } else {
                for first in [0, GROUP / 2] {
                    for half in [0, WIDTH] {
                        dots::<W, { GROUP / 2 }, 1>(queries, part, scores, (first, p * SIDE + half));
                    }
                }
            }
        }
    }
}

/// The scores of `M` queries of a group over `N` vectors of keys, from query `first` and key `at` of the block on.
#[inline(always)]
fn dots<W: Wide, const M: usize, const N: usize>(
    queries: &[[f32; GROUP]],
    keys: &[[f32; SIDE]],
    scores: &mut [[f32; KEYS]],
    (first, at): (usize, usize),
) {
    let vector = at % SIDE / WIDTH;
    let mut sums = [[W::splat(0.0); N]; M];
    for (x, key) in queries.iter().zip(keys) {
        let key = key.as_chunks::<WIDTH>().0;
        let mut k = [W::splat(0.0); N];
        for (n, k) in k.iter_mut().enumerate() {
            *k = W::load(&key[vector + n]);
        }
        for (x, sums) in x.as_chunks::<M>().0[first / M].iter().zip(&mut sums) {
            let x = W::splat(*x);
            for (sum, k) in sums.iter_mut().zip(k) {
                *sum = k.mul_add(x, *sum);
            }
        }
    }
    // Whole arrays, so that no sum is found by a place that is not known here: those would lie in memory.
    let scores = &mut scores.as_chunks_mut::<M>().0[first / M];
    for (sums, scores) in sums.iter().zip(scores) {
        for (n, sum) in sums.iter().enumerate() {
            sum.store(&mut scores.as_chunks_mut::<WIDTH>().0[at / WIDTH + n]);
        }
    }
}

/// Turns scores into weights, and what earlier blocks left behind to the new maximum.
#[inline(always)]
fn soften<W: Wide>(q: &mut Queries<'_>) {
    let width = q.out.len() / q.seen.len();
    let queries = q.weights.as_chunks_mut::<KEYS>().0.iter_mut().zip(q.out.chunks_exact_mut(width));
    for ((scores, out), (seen, state)) in queries.zip(q.seen.iter().zip(&mut *q.state)) {
        if *seen == 0 {
            continue;
        }
        let scores = &mut scores[..seen.next_multiple_of(WIDTH)];
        scores[*seen..].fill(f32::NEG_INFINITY);
        let scores = scores.as_chunks_mut().0;
        let [old, sum] = *state;
        // The maximum drops NaN; a poisoned row shows in the sum.
        let mut top = W::splat(old);
        for s in &*scores {
            top = W::load(s).max(top);
        }
        let top = top.top();
        let mut total = W::splat(0.0);
        for s in scores {
            let p = W::load(s).sub(W::splat(top)).exp_weight();
            total = total.add(p);
            p.store(s);
        }
        let keep = if old == top { 1.0 } else { W::exp_one(old - top) };
        *state = [top, sum * keep + total.sum()];
        if keep != 1.0 {
            let keep = W::splat(keep);
            for out in out.as_chunks_mut().0 {
                W::load(out).mul(keep).store(out);
            }
        }
    }
}

/// Adds the weighted values to the outputs of the queries that see them.
#[inline(always)]
fn add<W: Wide>(block: &Block<'_>, q: &mut Queries<'_>) {
    let width = q.out.len() / q.seen.len();
    for (s, values) in block.values.chunks_exact(KEYS * SIDE).enumerate() {
        let values = values.as_chunks::<SIDE>().0;
        let weights = q.weights.as_chunks::<KEYS>().0.chunks_exact(GROUP);
        let groups = weights.zip(q.out.chunks_exact_mut(GROUP * width)).zip(q.seen.chunks_exact(GROUP));
        for ((weights, out), seen) in groups {
            // What all of them see, then the rest of each: adding zero times an unseen value could add NaN.
            let shared = seen.iter().copied().min().unwrap_or(0);
            if W::MANY {
                weighted::<W, GROUP, 2>(weights, values, 0..shared, out, (width, s * SIDE));
            } else {
                for (weights, out) in weights.chunks_exact(GROUP / 2).zip(out.chunks_exact_mut(GROUP / 2 * width)) {
                    for half in [0, WIDTH] {
                        weighted::<W, { GROUP / 2 }, 1>(weights, values, 0..shared, out, (width, s * SIDE + half));
                    }
                }
            }
            for (i, seen) in seen.iter().enumerate().filter(|(_, seen)| **seen > shared) {
                let out = &mut out[i * width..(i + 1) * width];
                weighted::<W, 1, 2>(&weights[i..], values, shared..*seen, out, (width, s * SIDE));
            }
        }
    }
}

/// `out += sum weight value` over some keys for `M` queries, `N` vectors of dimensions from dimension `at` on.
#[inline(always)]
fn weighted<W: Wide, const M: usize, const N: usize>(
    weights: &[[f32; KEYS]],
    values: &[[f32; SIDE]],
    keys: Range<usize>,
    out: &mut [f32],
    (width, at): (usize, usize),
) {
    let weights = &weights.as_chunks::<M>().0[0];
    let vector = at % SIDE / WIDTH;
    let mut sums = [[W::splat(0.0); N]; M];
    for (m, sums) in sums.iter_mut().enumerate() {
        for (n, sum) in sums.iter_mut().enumerate() {
            *sum = W::load(&out[m * width + at..].as_chunks().0[n]);
        }
    }
    for t in keys {
        let value = values[t].as_chunks::<WIDTH>().0;
        let mut v = [W::splat(0.0); N];
        for (n, v) in v.iter_mut().enumerate() {
            *v = W::load(&value[vector + n]);
        }
        for (weights, sums) in weights.iter().zip(&mut sums) {
            let p = W::splat(weights[t]);
            for (sum, v) in sums.iter_mut().zip(v) {
                *sum = v.mul_add(p, *sum);
            }
        }
    }
    for (m, sums) in sums.iter().enumerate() {
        for (n, sum) in sums.iter().enumerate() {
            sum.store(&mut out[m * width + at..].as_chunks_mut().0[n]);
        }
    }
}
