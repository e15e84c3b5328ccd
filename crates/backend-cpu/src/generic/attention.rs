//! Causal attention over one page of cached keys and values, with a running maximum (online softmax).
//!
//! After a page with scores s and weights p = exp(s - m), the state of a query is `m`, `l = sum p` and
//! `o = sum p v`; a later page with a larger maximum m' first multiplies l and o by `exp(m - m')`. Milakov and
//! Gimelshein, "Online normalizer calculation for softmax" (2018).
//!
//! Groups of up to six queries share what is loaded. With one group the stored blocks are widened in registers; with
//! more, a tile of rows that fits the first-level cache is widened once for all of them. Either way a score is eight
//! sums over the dimension and an output one sum over the rows, so a query's bits do not depend on its neighbours.

use super::kv::{self, BLOCK, F16, F32, Q4, Q8, Stored, WIDE};
use super::quads::{Tokens, Words};
use super::vector::{LANES, Vector};
use onebit_ops::{KvFormat, PAGE_ROWS};
use std::ops::Range;

/// Most queries that share a loaded key: with two keys a pass their sums fill twelve of sixteen registers.
pub(super) const GROUP: usize = 6;

/// Keys of a pass are a divisor of this.
const KEYS: usize = 8;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// One head of one page.
pub(crate) struct Page<'a> {
    pub format: KvFormat,
    pub dim: usize,
    /// `PAGE_ROWS` stored head vectors, one after another or as [`super::quads`] says.
    pub keys: &'a [u8],
    pub values: &'a [u8],
    /// Nobody has fetched the keys ahead.
    pub cold: bool,
    /// Keys that will be wanted after this page.
    pub next: &'a [u8],
}

/// Queries that share a key head, and the state of their softmax.
pub(crate) struct Queries<'a> {
    /// Already multiplied by the scale, and padded with zeros: `[query][padded(dim)]`.
    pub queries: &'a mut [f32],
    /// Rows of the page that each query sees, none to all.
    pub seen: &'a mut [usize],
    /// `(m, l)` of each query.
    pub state: &'a mut [[f32; 2]],
    /// `o`: `[query][padded(dim)]`.
    pub out: &'a mut [f32],
    /// `[query][PAGE_ROWS]`.
    pub scores: &'a mut [f32],
    /// `PAGE_ROWS` widened head vectors.
    pub wide: &'a mut [u8],
    /// For [`super::quads`], otherwise empty: integers and the halves of their sums, `[query][block]`, and each query's
    /// step.
    pub words: &'a mut [Words],
    pub totals: &'a mut [[i32; 2]],
    pub units: &'a mut [f32],
    /// For [`super::quads`], of each block of a page's values: scales over the largest one, that one over the largest
    /// integer, and minima.
    pub ratios: &'a mut [Tokens],
    pub tops: &'a mut [f32],
    pub minima: &'a mut [Tokens],
}

/// The dimension in whole blocks.
pub(crate) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(BLOCK)
}

#[inline(always)]
pub(crate) fn attend_page<V: Vector>(page: &Page<'_>, q: &mut Queries<'_>) {
    if q.seen.len() > GROUP || !page.dim.is_multiple_of(BLOCK) {
        return attend_widened::<V>(page, q);
    }
    match page.format {
        KvFormat::F32 => attend_stored::<V, F32, WIDE>(page, q),
        KvFormat::F16 => attend_stored::<V, F16, 64>(page, q),
        KvFormat::Q8 => attend_stored::<V, Q8, 34>(page, q),
        KvFormat::Q4 => attend_stored::<V, Q4, 20>(page, q),
    }
}

/// Whole blocks of each head vector, straight from the page.
#[inline(always)]
fn attend_stored<V: Vector, S: Stored<N>, const N: usize>(page: &Page<'_>, q: &mut Queries<'_>) {
    let stride = page.format.head_bytes(page.dim);
    let used = most(q.seen) * stride;
    if page.cold {
        prefetch::<V>(&page.keys[..used], 0, 1);
    }
    score::<V, S, N>(q, page.keys.as_chunks().0, &page.values[..used]);
    soften::<V>(q);
    // Strips of columns read a line twice, so the lines of a strip must stay in the first-level cache meanwhile. Rows
    // whose length is a power of two fall on few of its sets: half of a small cache holds them.
    let tile = (16 * 1024 / stride).next_power_of_two();
    add::<V, S, N>(q, page.values.as_chunks().0, tile, page.next);
}

#[inline(always)]
fn attend_widened<V: Vector>(page: &Page<'_>, q: &mut Queries<'_>) {
    let rows = most(q.seen);
    let wide = std::mem::take(&mut q.wide);
    widen::<V>(page, page.keys, rows, wide);
    score::<V, F32, WIDE>(q, wide.as_chunks().0, &[]);
    soften::<V>(q);
    widen::<V>(page, page.values, rows, wide);
    add::<V, F32, WIDE>(q, wide.as_chunks().0, PAGE_ROWS, &[]);
    q.wide = wide;
}

pub(super) fn most(seen: &[usize]) -> usize {
    seen.iter().copied().max().unwrap_or(0)
}

#[inline(always)]
fn widen<V: Vector>(page: &Page<'_>, stored: &[u8], rows: usize, wide: &mut [u8]) {
    let stored = stored.chunks_exact(page.format.head_bytes(page.dim)).take(rows);
    for (bytes, to) in stored.zip(wide.chunks_exact_mut(4 * padded(page.dim))) {
        kv::load::<V>(page.format, bytes, to);
    }
}

/// Asks for part `i` of `n` of these bytes.
#[inline(always)]
pub(super) fn prefetch<V: Vector>(bytes: &[u8], i: usize, n: usize) {
    let lines = bytes.len().div_ceil(LINE);
    for line in lines * i / n..lines * (i + 1) / n {
        V::prefetch(bytes.as_ptr().wrapping_add(line * LINE));
    }
}

/// The scores of every query; `ahead` is what comes next.
#[inline(always)]
fn score<V: Vector, S: Stored<N>, const N: usize>(q: &mut Queries<'_>, keys: &[[u8; N]], ahead: &[u8]) {
    let mut at = 0;
    score_groups::<V, S, N, GROUP, 2>(q, &mut at, keys, ahead);
    score_groups::<V, S, N, 4, 2>(q, &mut at, keys, ahead);
    score_groups::<V, S, N, 2, 4>(q, &mut at, keys, ahead);
    score_groups::<V, S, N, 1, KEYS>(q, &mut at, keys, ahead);
}

/// `Q` queries at a time from `at` on, with `K` keys a pass.
#[inline(always)]
fn score_groups<V: Vector, S: Stored<N>, const N: usize, const Q: usize, const K: usize>(
    q: &mut Queries<'_>,
    at: &mut usize,
    keys: &[[u8; N]],
    ahead: &[u8],
) {
    let width = q.queries.len() / q.seen.len();
    while q.seen.len() - *at >= Q {
        let group = *at..*at + Q;
        *at += Q;
        // Rows that only some of the group see get a score too, which is overwritten.
        let end = most(&q.seen[group.clone()]);
        let queries = &q.queries[group.start * width..group.end * width];
        let scores = &mut q.scores[group.start * PAGE_ROWS..group.end * PAGE_ROWS];
        for first in (0..end).step_by(K) {
            if group.start == 0 && !ahead.is_empty() {
                prefetch::<V>(ahead, first / K, end.div_ceil(K));
            }
            dots::<V, S, N, Q, K>(queries, &keys[first * (width / BLOCK)..], scores, first);
        }
    }
}

/// The scores of `Q` queries over `K` keys.
#[inline(always)]
fn dots<V: Vector, S: Stored<N>, const N: usize, const Q: usize, const K: usize>(
    queries: &[f32],
    keys: &[[u8; N]],
    scores: &mut [f32],
    first: usize,
) {
    let width = queries.len() / Q;
    let blocks = width / BLOCK;
    // By index: filled through iterators, these arrays of slices become scatter instructions, which take longer than
    // the products.
    let queries = queries.as_chunks::<BLOCK>().0;
    let mut query = [&[][..]; Q];
    for i in 0..Q {
        query[i] = &queries[i * blocks..(i + 1) * blocks];
    }
    let mut key = [&[][..]; K];
    for i in 0..K {
        key[i] = &keys[i * blocks..(i + 1) * blocks];
    }
    let mut sums = [[V::zero(); K]; Q];
    for i in 0..blocks {
        for j in 0..BLOCK / LANES {
            let mut k = [V::zero(); K];
            for (k, key) in k.iter_mut().zip(key) {
                *k = S::eight(&key[i], j);
            }
            for (sums, query) in sums.iter_mut().zip(query) {
                let x = V::load(&query[i].as_chunks().0[j]);
                for (sum, k) in sums.iter_mut().zip(k) {
                    *sum = x.mul_add(k, *sum);
                }
            }
        }
    }
    let sums = sums.as_flattened();
    for (n, eight) in sums.chunks(LANES).enumerate() {
        let mut whole = [V::zero(); LANES];
        whole[..eight.len()].copy_from_slice(eight);
        let dots = V::sums(whole).to_array();
        for (i, dot) in dots.iter().enumerate().take(eight.len()) {
            let i = n * LANES + i;
            scores[i / K * PAGE_ROWS + first + i % K] = *dot;
        }
    }
}

/// Turns scores into weights, and what earlier pages left behind to the new maximum.
#[inline(always)]
pub(super) fn soften<V: Vector>(q: &mut Queries<'_>) {
    let width = q.queries.len() / q.seen.len();
    for (i, seen) in q.seen.iter().enumerate() {
        if *seen == 0 {
            continue;
        }
        let scores = &mut q.scores[i * PAGE_ROWS..][..seen.next_multiple_of(LANES)];
        scores[*seen..].fill(f32::NEG_INFINITY);
        let scores = scores.as_chunks_mut().0;
        let [old, sum] = q.state[i];
        // The maximum drops NaN; a poisoned row shows in the sum.
        let mut top = V::splat(old);
        for s in &*scores {
            top = V::load(s).max(top);
        }
        let top = top.top();
        let mut total = V::zero();
        for s in scores {
            let p = V::load(s).sub(V::splat(top)).exp_weight();
            total = total.add(p);
            p.store(s);
        }
        let keep = V::splat(old - top).exp();
        let [keep_one, ..] = keep.to_array();
        q.state[i] = [top, sum * keep_one + total.sum()];
        if keep_one != 1.0 {
            for out in q.out[i * width..(i + 1) * width].as_chunks_mut().0 {
                V::load(out).mul(keep).store(out);
            }
        }
    }
}

/// Adds the weighted values, `tile` rows at a time, to the outputs of the queries that see them.
#[inline(always)]
fn add<V: Vector, S: Stored<N>, const N: usize>(q: &mut Queries<'_>, values: &[[u8; N]], tile: usize, ahead: &[u8]) {
    let mut at = 0;
    add_groups::<V, S, N, GROUP>(q, &mut at, values, (tile, ahead));
    add_groups::<V, S, N, 4>(q, &mut at, values, (tile, ahead));
    add_groups::<V, S, N, 2>(q, &mut at, values, (tile, ahead));
    add_groups::<V, S, N, 1>(q, &mut at, values, (tile, ahead));
}

#[inline(always)]
fn add_groups<V: Vector, S: Stored<N>, const N: usize, const Q: usize>(
    q: &mut Queries<'_>,
    at: &mut usize,
    values: &[[u8; N]],
    (tile, ahead): (usize, &[u8]),
) {
    let width = q.queries.len() / q.seen.len();
    while q.seen.len() - *at >= Q {
        let group = *at..*at + Q;
        *at += Q;
        let seen = &q.seen[group.clone()];
        let out = &mut q.out[group.start * width..group.end * width];
        let weights = &q.scores[group.start * PAGE_ROWS..group.end * PAGE_ROWS];
        // What all of them see, then the rest of each: adding zero times an unseen value could add NaN.
        let shared = 0..seen.iter().copied().min().unwrap_or(0);
        let ahead = if group.start == 0 { ahead } else { &[] };
        for first in (0..shared.end).step_by(tile) {
            let rows = first..shared.end.min(first + tile);
            let ahead = &ahead[ahead.len() * rows.start / shared.end..ahead.len() * rows.end / shared.end];
            weighted::<V, S, N, Q>(out, weights, &values[first * (width / BLOCK)..], rows, ahead);
        }
        let each = out.chunks_exact_mut(width).zip(weights.chunks_exact(PAGE_ROWS)).zip(seen);
        for ((out, weights), seen) in each {
            let rest = shared.end..*seen;
            if !rest.is_empty() {
                weighted::<V, S, N, 1>(out, weights, &values[rest.start * (width / BLOCK)..], rest, &[]);
            }
        }
    }
}

/// `out += sum weight value` over some rows, which start at the first block.
#[inline(always)]
fn weighted<V: Vector, S: Stored<N>, const N: usize, const Q: usize>(
    out: &mut [f32],
    weights: &[f32],
    values: &[[u8; N]],
    rows: Range<usize>,
    ahead: &[u8],
) {
    let blocks = out.len() / Q / BLOCK;
    let mut weight = [&[][..]; Q];
    for i in 0..Q {
        weight[i] = &weights[i * PAGE_ROWS..(i + 1) * PAGE_ROWS][rows.clone()];
    }
    for block in 0..blocks {
        if !ahead.is_empty() {
            prefetch::<V>(ahead, block, blocks);
        }
        strip::<V, S, N, Q, 0>(out, &weight, values, (block, blocks));
        strip::<V, S, N, Q, { STRIP }>(out, &weight, values, (block, blocks));
    }
}

/// Vectors of a strip of columns: half a block.
const STRIP: usize = BLOCK / LANES / 2;

/// [`weighted`] for the columns of `STRIP` vectors from vector `AT` of a block on.
#[inline(always)]
fn strip<V: Vector, S: Stored<N>, const N: usize, const Q: usize, const AT: usize>(
    out: &mut [f32],
    weight: &[&[f32]; Q],
    values: &[[u8; N]],
    (block, blocks): (usize, usize),
) {
    let out = out.as_chunks_mut::<BLOCK>().0;
    let mut sums = [[V::zero(); STRIP]; Q];
    for (i, sums) in sums.iter_mut().enumerate() {
        for (j, sum) in sums.iter_mut().enumerate() {
            *sum = V::load(&out[i * blocks + block].as_chunks().0[AT + j]);
        }
    }
    for t in 0..weight[0].len() {
        let row = &values[t * blocks + block];
        let mut v = [V::zero(); STRIP];
        for (j, v) in v.iter_mut().enumerate() {
            *v = S::eight(row, AT + j);
        }
        for (sums, weight) in sums.iter_mut().zip(weight) {
            let p = V::splat(weight[t]);
            for (sum, v) in sums.iter_mut().zip(v) {
                *sum = v.mul_add(p, *sum);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        for (j, sum) in sums.iter().enumerate() {
            sum.store(&mut out[i * blocks + block].as_chunks_mut().0[AT + j]);
        }
    }
}
