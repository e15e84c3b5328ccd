//! Causal attention over one page of cached keys and values, with a running maximum (online softmax).
//!
//! After a page with scores s and weights p = exp(s - m), the state of a query is `m`, `l = sum p` and
//! `o = sum p v`; a later page with a larger maximum m' first multiplies l and o by `exp(m - m')`. Milakov and
//! Gimelshein, "Online normalizer calculation for softmax" (2018).

use super::kv;
use super::vector::{LANES, Vector};
use onebit_ops::{KvFormat, PAGE_ROWS};

/// Head vectors that are widened at once.
pub(crate) const ROWS: usize = 8;

/// Queries that share a loaded key.
const SHARE: usize = 4;

/// One head of one page.
pub(crate) struct Page<'a> {
    pub format: KvFormat,
    pub dim: usize,
    /// `PAGE_ROWS` stored head vectors.
    pub keys: &'a [u8],
    pub values: &'a [u8],
}

/// Queries that share a key head, and the state of their softmax.
pub(crate) struct Queries<'a> {
    /// Already multiplied by the scale: `[query][dim]`.
    pub queries: &'a mut [f32],
    /// Rows of the page that each query sees, none to all.
    pub seen: &'a mut [usize],
    /// `(m, l)` of each query.
    pub state: &'a mut [[f32; 2]],
    /// `o`: `[query][dim]`.
    pub out: &'a mut [f32],
    /// `[query][PAGE_ROWS]`.
    pub scores: &'a mut [f32],
    /// `ROWS` head vectors.
    pub heads: &'a mut [f32],
}

#[inline(always)]
pub(crate) fn attend_page<V: Vector>(page: &Page<'_>, q: &mut Queries<'_>) {
    let rows = q.seen.iter().copied().max().unwrap_or(0);
    score_keys::<V>(page, q, rows);
    for (i, seen) in q.seen.iter().enumerate().filter(|(_, seen)| **seen > 0) {
        let scores = &mut q.scores[i * PAGE_ROWS..][..PAGE_ROWS];
        scores[*seen..].fill(f32::NEG_INFINITY);
        let [old, sum] = q.state[i];
        // f32::max drops NaN; a poisoned row shows in the sum.
        let top = scores.iter().copied().fold(old, f32::max);
        let mut total = V::zero();
        for s in scores.as_chunks_mut::<LANES>().0 {
            let p = V::load(s).sub(V::splat(top)).exp();
            total = total.add(p);
            p.store(s);
        }
        let keep = V::splat(old - top).exp().to_array()[0];
        q.state[i] = [top, sum * keep + total.sum()];
        if keep != 1.0 {
            let out = &mut q.out[i * page.dim..(i + 1) * page.dim];
            out.iter_mut().for_each(|o| *o *= keep);
        }
    }
    add_values::<V>(page, q, rows);
}

/// The scores of every query over the first `rows` keys.
#[inline(always)]
fn score_keys<V: Vector>(page: &Page<'_>, q: &mut Queries<'_>, rows: usize) {
    let (dim, stride) = (page.dim, page.format.head_bytes(page.dim));
    for (t, bytes) in page.keys.chunks_exact(stride).enumerate().take(rows) {
        let key = &mut q.heads[..dim];
        kv::load::<V>(page.format, bytes, key);
        // Queries that do not see the key get a score too, which is overwritten.
        let (mut queries, mut scores) = (q.queries.chunks_exact(SHARE * dim), q.scores.chunks_mut(SHARE * PAGE_ROWS));
        for (queries, scores) in queries.by_ref().zip(scores.by_ref()) {
            let dots = dots::<V, SHARE>(queries, key);
            for (scores, dot) in scores.chunks_exact_mut(PAGE_ROWS).zip(dots) {
                scores[t] = dot;
            }
        }
        if let Some(scores) = scores.next() {
            for (query, scores) in queries.remainder().chunks_exact(dim).zip(scores.chunks_exact_mut(PAGE_ROWS)) {
                [scores[t]] = dots::<V, 1>(query, key);
            }
        }
    }
}

/// Adds the first `rows` values, weighted by the scores, to the outputs of the queries that see them.
#[inline(always)]
fn add_values<V: Vector>(page: &Page<'_>, q: &mut Queries<'_>, rows: usize) {
    let (dim, stride) = (page.dim, page.format.head_bytes(page.dim));
    for first in (0..rows).step_by(ROWS) {
        let heads = &mut q.heads[..ROWS * dim];
        for (bytes, head) in page.values[first * stride..].chunks_exact(stride).zip(heads.chunks_exact_mut(dim)) {
            kv::load::<V>(page.format, bytes, head);
        }
        for ((out, scores), seen) in q.out.chunks_exact_mut(dim).zip(q.scores.chunks_exact(PAGE_ROWS)).zip(&*q.seen) {
            let weights = &scores[first..first + ROWS.min(seen.saturating_sub(first))];
            let (vectors, tail) = out.as_chunks_mut::<LANES>();
            let at = vectors.len() * LANES;
            for (i, out) in vectors.iter_mut().enumerate() {
                let mut sum = V::load(out);
                for (p, value) in weights.iter().zip(heads.chunks_exact(dim)) {
                    sum = V::load(&value.as_chunks().0[i]).mul_add(V::splat(*p), sum);
                }
                sum.store(out);
            }
            for (p, value) in weights.iter().zip(heads.chunks_exact(dim)) {
                tail.iter_mut().zip(&value[at..]).for_each(|(o, v)| *o += p * v);
            }
        }
    }
}

/// `sum q k` for some queries, each in two chains whatever their number.
#[inline(always)]
fn dots<V: Vector, const N: usize>(queries: &[f32], key: &[f32]) -> [f32; N] {
    let dim = key.len();
    let (vectors, tail) = key.as_chunks::<LANES>();
    let (pairs, last) = vectors.as_chunks::<2>();
    let mut rows = [&[][..]; N];
    for (row, query) in rows.iter_mut().zip(queries.chunks_exact(dim)) {
        *row = query.as_chunks::<LANES>().0;
    }
    let mut sums = [[V::zero(); 2]; N];
    for (i, pair) in pairs.iter().enumerate() {
        for (j, k) in pair.iter().enumerate() {
            let k = V::load(k);
            for (sum, row) in sums.iter_mut().zip(rows) {
                sum[j] = V::load(&row[2 * i + j]).mul_add(k, sum[j]);
            }
        }
    }
    for k in last {
        let k = V::load(k);
        for (sum, row) in sums.iter_mut().zip(rows) {
            sum[0] = V::load(&row[2 * pairs.len()]).mul_add(k, sum[0]);
        }
    }
    let mut out = [0.0; N];
    for ((out, sum), query) in out.iter_mut().zip(sums).zip(queries.chunks_exact(dim)) {
        let rest: f32 = query[dim - tail.len()..].iter().zip(tail).map(|(a, b)| a * b).sum();
        *out = sum[0].add(sum[1]).sum() + rest;
    }
    out
}
