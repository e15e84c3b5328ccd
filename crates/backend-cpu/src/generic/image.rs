//! Rows of latents and of pixels: modulation, gates, rotation of neighbours, and the two halves of a group norm.

use super::rows::{dot, padded};
use super::vector::{LANES, Vector};

/// `out = (1 + scale) (x - mean) rsqrt(var + eps) + shift`. The mean is taken off first: a variance from squares alone
/// would lose what a large mean hides.
#[inline(always)]
pub(crate) fn modulate<V: Vector>(x: &[f32], scale: &[f32], shift: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len();
    let (xv, xt) = x.as_chunks::<LANES>();
    let mut chains = [V::zero(); 4];
    let (quads, rest) = xv.as_chunks::<4>();
    for quad in quads {
        for (chain, v) in chains.iter_mut().zip(quad) {
            *chain = chain.add(V::load(v));
        }
    }
    for (chain, v) in chains.iter_mut().zip(rest) {
        *chain = chain.add(V::load(v));
    }
    chains[3] = chains[3].add(padded(xt));
    let mean = chains[0].add(chains[1]).add(chains[2].add(chains[3])).sum() / n as f32;
    let (ov, ot) = out[..n].as_chunks_mut::<LANES>();
    for (x, o) in xv.iter().zip(ov) {
        V::load(x).sub(V::splat(mean)).store(o);
    }
    for (x, o) in xt.iter().zip(ot) {
        *o = x - mean;
    }
    let inverse = 1.0 / (dot::<V>(out, out) / n as f32 + eps).sqrt();
    let (one, factor) = (V::splat(1.0), V::splat(inverse));
    let (sv, st) = scale[..n].as_chunks::<LANES>();
    let (hv, ht) = shift[..n].as_chunks::<LANES>();
    let (ov, ot) = out[..n].as_chunks_mut::<LANES>();
    for (o, (s, h)) in ov.iter_mut().zip(sv.iter().zip(hv)) {
        V::load(o).mul(factor).mul_add(V::load(s).add(one), V::load(h)).store(o);
    }
    for (o, (s, h)) in ot.iter_mut().zip(st.iter().zip(ht)) {
        *o = *o * inverse * (1.0 + s) + h;
    }
}

/// `out = x + gate * y`.
#[inline(always)]
pub(crate) fn gated_add<V: Vector>(x: &[f32], gate: &[f32], y: &[f32], out: &mut [f32]) {
    let n = out.len();
    let ((xv, xt), (gv, gt)) = (x[..n].as_chunks::<LANES>(), gate[..n].as_chunks::<LANES>());
    let (yv, yt) = y[..n].as_chunks::<LANES>();
    let (ov, ot) = out.as_chunks_mut::<LANES>();
    for (o, (x, (g, y))) in ov.iter_mut().zip(xv.iter().zip(gv.iter().zip(yv))) {
        V::load(g).mul_add(V::load(y), V::load(x)).store(o);
    }
    if !ot.is_empty() {
        let sum = padded::<V>(gt).mul_add(padded(yt), padded(xt));
        ot.copy_from_slice(&sum.to_array()[..ot.len()]);
    }
}

/// One head: pairs of neighbours turned by angles, which are cosines and then as many sines. Two products and one sum
/// each, as the reference rounds them.
#[inline(always)]
pub(crate) fn rotate_pairs<V: Vector>(x: &[f32], angles: &[f32], out: &mut [f32]) {
    let (cos, sin) = angles.split_at(angles.len() / 2);
    let (pairs, out) = (x.as_chunks::<2>().0, out.as_chunks_mut::<2>().0);
    for ((x, out), (c, s)) in pairs.iter().zip(out).zip(cos.iter().zip(sin)) {
        *out = [x[0] * c - x[1] * s, x[1] * c + x[0] * s];
    }
}

/// One pixel: `out = factor x + offset`, then SiLU where wanted.
#[inline(always)]
pub(crate) fn channel_norm<V: Vector>(x: &[f32], affine: &[f32], silu: bool, out: &mut [f32]) {
    let n = x.len();
    let (factors, offsets) = affine.split_at(n);
    let ((xv, xt), (fv, ft)) = (x.as_chunks::<LANES>(), factors.as_chunks::<LANES>());
    let (bv, bt) = offsets.as_chunks::<LANES>();
    let (ov, ot) = out[..n].as_chunks_mut::<LANES>();
    for (o, (x, (f, b))) in ov.iter_mut().zip(xv.iter().zip(fv.iter().zip(bv))) {
        let y = V::load(x).mul_add(V::load(f), V::load(b));
        if silu { y.mul(y.sigmoid()) } else { y }.store(o);
    }
    if !ot.is_empty() {
        let y = padded::<V>(xt).mul_add(padded(ft), padded(bt));
        let y = if silu { y.mul(y.sigmoid()) } else { y };
        ot.copy_from_slice(&y.to_array()[..ot.len()]);
    }
}

/// Adds every row to the sums of its columns, and its squares to those of squares, in f64: a mean may be large beside its
/// deviation.
#[inline(always)]
pub(crate) fn channel_sums<V: Vector>(rows: &[f32], sums: &mut [f64]) {
    let columns = sums.len() / 2;
    let (sums, squares) = sums.split_at_mut(columns);
    for row in rows.chunks_exact(columns.max(1)) {
        for (x, (sum, square)) in row.iter().zip(sums.iter_mut().zip(squares.iter_mut())) {
            let x = f64::from(*x);
            *sum += x;
            *square += x * x;
        }
    }
}
