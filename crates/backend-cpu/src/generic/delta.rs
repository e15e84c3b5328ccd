//! The gated delta rule of one value head (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024).
//!
//! Columns of the state S `(key_dim, value_dim)` do not meet: a slab of 32 columns goes through all tokens while it
//! stays in the first-level cache, so that memory sees the state once however many tokens there are. For a token with
//! decay a, key k and query q, one pass reads `u = S^T k` and `w = S^T q`, and then
//!
//! ```text
//! d = beta (v - a u)        S' = a S + k d^T        out = S'^T q = a w + (k . q) d
//! ```
//!
//! S' is written by the next token's pass, just before it reads it.

use super::rows::{dot, fetch};
use super::vector::{LANES, Vector};

/// Columns of a slab.
const SLAB: usize = 32;

/// Tokens whose values are fetched ahead.
const AHEAD: usize = 3;

/// Vectors of a slab's row.
const N: usize = SLAB / LANES;

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
    /// Nobody has fetched the state ahead.
    pub cold: bool,
    /// The state that is wanted after this one, to be fetched meanwhile; may be empty.
    pub next: &'a [f32],
}

/// Floats of a head's slab.
pub(crate) fn slab_len(key_dim: usize) -> usize {
    key_dim * SLAB
}

/// What a token adds to the state: `S' = decay S + key d^T`.
struct Update<'a, V> {
    key: &'a [f32],
    decay: V,
    d: [V; N],
}

#[inline(always)]
pub(crate) fn delta_head<V: Vector>(head: &mut Head<'_>) {
    let (keys, values) = (head.key_dim, head.value_dim);
    if head.cold {
        fetch::<V>(head.state);
    }
    let mut start = 0;
    while start < values {
        let width = SLAB.min(values - start);
        let slab = head.slab[..keys * SLAB].as_chunks_mut::<SLAB>().0;
        for (i, (to, from)) in slab.iter_mut().zip(head.state.chunks_exact(values)).enumerate() {
            // As much of the next state as this is of this one, in the order of memory.
            if let Some(next) = head.next.get(start * keys + i * SLAB..).filter(|next| !next.is_empty()) {
                fetch::<V>(&next[..next.len().min(SLAB)]);
            }
            *to = columns(&from[start..]);
        }
        let mut next_out = 0;
        let mut last = Update { key: &[], decay: V::zero(), d: [V::zero(); N] };
        for (t, token) in head.tokens.iter().enumerate() {
            if t == head.keep {
                settle(slab, &last);
                last.key = &[];
                write_back(slab, head.state, values, start);
            }
            // Rows of values and outputs lie far apart.
            if let Some(later) = head.tokens.get(t + AHEAD) {
                fetch::<V>(&later.value[start..start + width]);
            }
            if let Some(later) = head.outs.get(next_out + AHEAD) {
                fetch::<V>(&later[start..start + width]);
            }
            let value = columns(&token.value[start..]);
            let (u, w) = match (last.key.is_empty(), token.query.is_empty()) {
                (true, true) => read::<V, false, false>(slab, &last, token),
                (true, false) => read::<V, false, true>(slab, &last, token),
                (false, true) => read::<V, true, false>(slab, &last, token),
                (false, false) => read::<V, true, true>(slab, &last, token),
            };
            let (decay, beta) = (V::splat(token.decay), V::splat(token.beta));
            let mut d = [V::zero(); N];
            for (j, v) in value.as_chunks().0.iter().enumerate() {
                d[j] = V::load(v).sub(decay.mul(u[j])).mul(beta);
            }
            if !token.query.is_empty() {
                let kq = V::splat(dot::<V>(token.key, token.query));
                let mut out = [0.0; SLAB];
                for (j, o) in out.as_chunks_mut().0.iter_mut().enumerate() {
                    kq.mul_add(d[j], decay.mul(w[j])).store(o);
                }
                set_columns(&mut head.outs[next_out][start..], &out);
                next_out += 1;
            }
            last = Update { key: token.key, decay, d };
        }
        if head.keep >= head.tokens.len() {
            settle(slab, &last);
            write_back(slab, head.state, values, start);
        }
        start += SLAB;
    }
}

/// The first columns of a row; a short last slab runs with zeros beside it.
#[inline(always)]
fn columns(row: &[f32]) -> [f32; SLAB] {
    row.first_chunk().copied().unwrap_or_else(|| {
        let mut some = [0.0; SLAB];
        some[..row.len()].copy_from_slice(row);
        some
    })
}

#[inline(always)]
fn set_columns(row: &mut [f32], columns: &[f32; SLAB]) {
    match row.first_chunk_mut() {
        Some(full) => *full = *columns,
        None => row.copy_from_slice(&columns[..row.len()]),
    }
}

fn write_back(slab: &[[f32; SLAB]], state: &mut [f32], values: usize, start: usize) {
    for (from, to) in slab.iter().zip(state.chunks_exact_mut(values)) {
        set_columns(&mut to[start..], from);
    }
}

/// Takes the last token in, if `UPDATE`; then `u`, and `w` if `QUERY`, of this one.
#[inline(always)]
fn read<V: Vector, const UPDATE: bool, const QUERY: bool>(
    slab: &mut [[f32; SLAB]],
    last: &Update<'_, V>,
    token: &Token<'_>,
) -> ([V; N], [V; N]) {
    let n = slab.len();
    let key = &token.key[..n];
    let query = if QUERY { &token.query[..n] } else { &[] };
    let last_key = if UPDATE { &last.key[..n] } else { &[] };
    let (mut u, mut w) = ([V::zero(); N], [V::zero(); N]);
    for (i, row) in slab.iter_mut().enumerate() {
        let k = V::splat(key[i]);
        let q = if QUERY { V::splat(query[i]) } else { k };
        let last_k = if UPDATE { V::splat(last_key[i]) } else { k };
        for (j, at) in row.as_chunks_mut().0.iter_mut().enumerate() {
            let mut s = V::load(at);
            if UPDATE {
                s = last_k.mul_add(last.d[j], s.mul(last.decay));
                s.store(at);
            }
            u[j] = s.mul_add(k, u[j]);
            if QUERY {
                w[j] = s.mul_add(q, w[j]);
            }
        }
    }
    (u, w)
}

/// Takes the last token in.
#[inline(always)]
fn settle<V: Vector>(slab: &mut [[f32; SLAB]], last: &Update<'_, V>) {
    for (row, k) in slab.iter_mut().zip(last.key) {
        for (j, at) in row.as_chunks_mut().0.iter_mut().enumerate() {
            V::splat(*k).mul_add(last.d[j], V::load(at).mul(last.decay)).store(at);
        }
    }
}
