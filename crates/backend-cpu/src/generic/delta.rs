//! The gated delta rule of one value head (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024).
//!
//! Columns of the state S `(key_dim, value_dim)` do not meet: a slab of 32 columns goes through all tokens while it
//! stays in the first-level cache, so that memory sees the state once however many tokens there are. For a token with
//! decay a, key k and query q, one pass reads `u = S^T k` and `w = S^T q`, and since
//!
//! ```text
//! d = beta (v - a u)        S' = a S + k d^T        out = S'^T q = a w + (k . q) d
//! ```
//!
//! a second one writes S'.

use super::rows::dot;
use super::vector::{LANES, Vector};

/// Columns of a slab.
const SLAB: usize = 32;

/// One token of one head.
#[derive(Clone, Copy)]
pub(crate) struct Token<'a> {
    /// Normalised key.
    pub key: &'a [f32],
    pub value: &'a [f32],
    /// `exp(log_decay)`.
    pub decay: f32,
    pub beta: f32,
    /// Normalised and scaled query; empty when no output is wanted.
    pub query: &'a [f32],
}

/// The work of one head.
pub(crate) struct Head<'a> {
    /// `(key_dim, value_dim)`.
    pub state: &'a mut [f32],
    pub key_dim: usize,
    pub value_dim: usize,
    pub tokens: &'a [Token<'a>],
    /// One output for each token that has a query.
    pub outs: &'a mut [&'a mut [f32]],
    /// `key_dim * SLAB` floats or more.
    pub slab: &'a mut [f32],
    /// The state keeps what it was before the tokens from this one on.
    pub keep: usize,
}

/// Floats of a head's slab.
pub(crate) fn slab_len(key_dim: usize) -> usize {
    key_dim * SLAB
}

#[inline(always)]
pub(crate) fn delta_head<V: Vector>(head: &mut Head<'_>) {
    let (keys, values) = (head.key_dim, head.value_dim);
    let mut start = 0;
    while start < values {
        let width = SLAB.min(values - start);
        // A short last slab runs with zero columns beside it.
        let slab = head.slab[..keys * SLAB].as_chunks_mut::<SLAB>().0;
        for (to, from) in slab.iter_mut().zip(head.state.chunks_exact(values)) {
            if let Some(full) = from[start..].first_chunk::<SLAB>() {
                *to = *full;
            } else {
                to[width..].fill(0.0);
                to[..width].copy_from_slice(&from[start..start + width]);
            }
        }
        let mut next_out = 0;
        for (t, token) in head.tokens.iter().enumerate() {
            if t == head.keep {
                write_back(slab, head.state, values, start, width);
            }
            let mut value = [0.0; SLAB];
            value[..width].copy_from_slice(&token.value[start..start + width]);
            if token.query.is_empty() {
                step::<V, false>(slab, token, &value);
            } else {
                let out = step::<V, true>(slab, token, &value);
                head.outs[next_out][start..start + width].copy_from_slice(&out[..width]);
                next_out += 1;
            }
        }
        if head.keep >= head.tokens.len() {
            write_back(slab, head.state, values, start, width);
        }
        start += SLAB;
    }
}

fn write_back(slab: &[[f32; SLAB]], state: &mut [f32], values: usize, start: usize, width: usize) {
    for (from, to) in slab.iter().zip(state.chunks_exact_mut(values)) {
        if let Some(full) = to[start..].first_chunk_mut::<SLAB>() {
            *full = *from;
        } else {
            to[start..start + width].copy_from_slice(&from[..width]);
        }
    }
}

/// One token on one slab; returns its output if it has a query.
#[inline(always)]
fn step<V: Vector, const QUERY: bool>(slab: &mut [[f32; SLAB]], token: &Token<'_>, value: &[f32; SLAB]) -> [f32; SLAB] {
    const N: usize = SLAB / LANES;
    let (mut u, mut w) = ([V::zero(); N], [V::zero(); N]);
    for (i, row) in slab.iter().enumerate() {
        let k = V::splat(token.key[i]);
        let q = if QUERY { V::splat(token.query[i]) } else { V::zero() };
        for (j, s) in row.as_chunks::<LANES>().0.iter().enumerate() {
            let s = V::load(s);
            u[j] = s.mul_add(k, u[j]);
            if QUERY {
                w[j] = s.mul_add(q, w[j]);
            }
        }
    }
    let (decay, beta) = (V::splat(token.decay), V::splat(token.beta));
    let mut d = [V::zero(); N];
    for (j, v) in value.as_chunks::<LANES>().0.iter().enumerate() {
        d[j] = V::load(v).sub(decay.mul(u[j])).mul(beta);
    }
    for (row, k) in slab.iter_mut().zip(token.key) {
        let k = V::splat(*k);
        for (j, s) in row.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            k.mul_add(d[j], V::load(s).mul(decay)).store(s);
        }
    }
    let mut out = [0.0; SLAB];
    if QUERY {
        let kq = V::splat(dot::<V>(token.key, token.query));
        for (j, o) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            kq.mul_add(d[j], decay.mul(w[j])).store(o);
        }
    }
    out
}
