//! Causal attention over one page of cached keys and values, with a running maximum (online softmax).
//!
//! After a page with scores s and weights p = exp(s - m), the state of a query is `m`, `l = sum p` and
//! `o = sum p v`; a later page with a larger maximum m' first multiplies l and o by `exp(m - m')`. Milakov and
//! Gimelshein, "Online normalizer calculation for softmax" (2018).

use super::kv;
use super::vector::{LANES, Vector};
use onebit_ops::{KvFormat, PAGE_ROWS};

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
    /// One head vector.
    pub head: &'a mut [f32],
}

#[inline(always)]
pub(crate) fn attend_page<V: Vector>(page: &Page<'_>, q: &mut Queries<'_>) {
    let dim = page.dim;
    let stride = page.format.head_bytes(dim);
    let rows = q.seen.iter().copied().max().unwrap_or(0);
    for (t, bytes) in page.keys.chunks_exact(stride).enumerate().take(rows) {
        kv::load::<V>(page.format, bytes, q.head);
        for ((query, scores), seen) in
            q.queries.chunks_exact(dim).zip(q.scores.chunks_exact_mut(PAGE_ROWS)).zip(&*q.seen)
        {
            if t < *seen {
                scores[t] = dot::<V>(query, q.head);
            }
        }
    }
    for (i, seen) in q.seen.iter().enumerate() {
        let scores = &mut q.scores[i * PAGE_ROWS..][..PAGE_ROWS];
        scores[*seen..].fill(f32::NEG_INFINITY);
        if *seen == 0 {
            continue;
        }
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
            let out = &mut q.out[i * dim..(i + 1) * dim];
            out.iter_mut().for_each(|o| *o *= keep);
        }
    }
    for (t, bytes) in page.values.chunks_exact(stride).enumerate().take(rows) {
        kv::load::<V>(page.format, bytes, q.head);
        for ((out, scores), seen) in q.out.chunks_exact_mut(dim).zip(q.scores.chunks_exact(PAGE_ROWS)).zip(&*q.seen) {
            if t < *seen {
                axpy::<V>(scores[t], q.head, out);
            }
        }
    }
}

/// `sum a b`, in four chains.
#[inline(always)]
pub(crate) fn dot<V: Vector>(a: &[f32], b: &[f32]) -> f32 {
    let mut chains = [V::zero(); 4];
    let ((av, at), (bv, bt)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let ((aq, ar), (bq, br)) = (av.as_chunks::<4>(), bv.as_chunks::<4>());
    for (a, b) in aq.iter().zip(bq) {
        for (c, (a, b)) in chains.iter_mut().zip(a.iter().zip(b)) {
            *c = V::load(a).mul_add(V::load(b), *c);
        }
    }
    for (c, (a, b)) in chains.iter_mut().zip(ar.iter().zip(br)) {
        *c = V::load(a).mul_add(V::load(b), *c);
    }
    let tail: f32 = at.iter().zip(bt).map(|(a, b)| a * b).sum();
    chains[0].add(chains[1]).add(chains[2].add(chains[3])).sum() + tail
}

/// `y += a x`.
#[inline(always)]
pub(crate) fn axpy<V: Vector>(a: f32, x: &[f32], y: &mut [f32]) {
    let (xv, xt) = x.as_chunks::<LANES>();
    let (yv, yt) = y.as_chunks_mut::<LANES>();
    for (x, y) in xv.iter().zip(yv) {
        V::load(x).mul_add(V::splat(a), V::load(y)).store(y);
    }
    for (x, y) in xt.iter().zip(yt) {
        *y += a * x;
    }
}
