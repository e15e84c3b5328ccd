//! One row, or one head of it: norms, gates, rotations and rounding.

use super::packed::GroupSum;
use super::vector::{LANES, Vector};
use crate::layout::GROUP;

/// Applies `f` to vectors of both inputs; a tail shorter than a vector goes through a padded one.
#[inline(always)]
fn zip2<V: Vector>(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(V, V) -> V) {
    let n = out.len();
    let (a, b) = (&a[..n], &b[..n]);
    let ((av, at), (bv, bt)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let (ov, ot) = out.as_chunks_mut::<LANES>();
    for ((a, b), o) in av.iter().zip(bv).zip(ov) {
        f(V::load(a), V::load(b)).store(o);
    }
    if !ot.is_empty() {
        ot.copy_from_slice(&f(padded(at), padded(bt)).to_array()[..ot.len()]);
    }
}

/// A vector of the values, then zeros.
#[inline(always)]
fn padded<V: Vector>(x: &[f32]) -> V {
    let mut full = [0.0; LANES];
    full[..x.len()].copy_from_slice(x);
    V::load(&full)
}

/// `sum a b` of equal lengths, in four chains.
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
    chains[3] = padded::<V>(at).mul_add(padded(bt), chains[3]);
    chains[0].add(chains[1]).add(chains[2].add(chains[3])).sum()
}

#[inline(always)]
pub(crate) fn rms_norm<V: Vector>(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    let inverse = V::splat(1.0 / (dot::<V>(x, x) / x.len() as f32 + eps).sqrt());
    zip2::<V>(x, gain, out, |x, g| x.mul(inverse).mul(g));
}

#[inline(always)]
pub(crate) fn l2_norm<V: Vector>(x: &[f32], eps: f32, factor: f32, out: &mut [f32]) {
    let inverse = V::splat(factor / (dot::<V>(x, x) + eps).sqrt());
    zip2::<V>(x, x, out, |x, _| x.mul(inverse));
}

#[inline(always)]
pub(crate) fn add<V: Vector>(a: &[f32], b: &[f32], out: &mut [f32]) {
    zip2::<V>(a, b, out, V::add);
}

#[inline(always)]
pub(crate) fn swiglu<V: Vector>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    zip2::<V>(gate, up, out, |g, u| g.mul(g.sigmoid()).mul(u));
}

#[inline(always)]
pub(crate) fn sigmoid_mul<V: Vector>(x: &[f32], gate: &[f32], out: &mut [f32]) {
    zip2::<V>(x, gate, out, |x, g| x.mul(g.sigmoid()));
}

#[inline(always)]
pub(crate) fn silu_scale<V: Vector>(z: &[f32], out: &mut [f32]) {
    let (zv, zt) = z[..out.len()].as_chunks::<LANES>();
    let (ov, ot) = out.as_chunks_mut::<LANES>();
    for (z, o) in zv.iter().zip(ov) {
        let z = V::load(z);
        V::load(o).mul(z.mul(z.sigmoid())).store(o);
    }
    if !ot.is_empty() {
        let z: V = padded(zt);
        let scaled = padded::<V>(ot).mul(z.mul(z.sigmoid()));
        ot.copy_from_slice(&scaled.to_array()[..zt.len()]);
    }
}

#[inline(always)]
pub(crate) fn rope<V: Vector>(x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
    let n = cos.len();
    let (low, rest) = x.split_at(n);
    let (high, still) = rest.split_at(n);
    let (out_low, out_rest) = out.split_at_mut(n);
    let (out_high, out_still) = out_rest.split_at_mut(n);
    // a cos - b sin and b cos + a sin; two products and one sum each, as the reference rounds them.
    for i in 0..n {
        out_low[i] = low[i] * cos[i] - high[i] * sin[i];
        out_high[i] = high[i] * cos[i] + low[i] * sin[i];
    }
    zip2::<V>(still, still, out_still, |v, _| v);
}

#[inline(always)]
pub(crate) fn conv_silu<V: Vector>(history: &[&[f32]], taps: &[&[f32]], out: &mut [f32]) {
    let (ov, ot) = out.as_chunks_mut::<LANES>();
    for (i, o) in ov.iter_mut().enumerate() {
        let sum = history.iter().zip(taps).fold(V::zero(), |sum, (row, taps)| {
            V::load(&row.as_chunks().0[i]).mul_add(V::load(&taps.as_chunks().0[i]), sum)
        });
        sum.mul(sum.sigmoid()).store(o);
    }
    if !ot.is_empty() {
        let sum = history.iter().zip(taps).fold(V::zero(), |sum, (row, taps)| {
            padded::<V>(row.as_chunks::<LANES>().1).mul_add(padded(taps.as_chunks::<LANES>().1), sum)
        });
        ot.copy_from_slice(&sum.mul(sum.sigmoid()).to_array()[..ot.len()]);
    }
}

/// As `onebit_ops::quantize_row`, bit for bit, and the sums of each 32 columns.
#[inline(always)]
pub(crate) fn quantize<V: Vector>(
    x: &[f32],
    limit: i16,
    values: &mut [i16],
    scales: &mut [f32],
    sums: &mut [GroupSum],
) {
    let bound = f32::from(limit);
    for ((x, values), (scale, sums)) in
        x.chunks(GROUP).zip(values.chunks_mut(GROUP)).zip(scales.iter_mut().zip(sums.chunks_mut(GROUP / 32)))
    {
        let (xv, xt) = x.as_chunks::<LANES>();
        let mut top: V = padded::<V>(xt).abs().max(V::zero());
        for v in xv {
            top = V::load(v).abs().max(top);
        }
        *scale = top.top() / bound;
        let inverse = V::splat(if *scale > 0.0 { 1.0 / *scale } else { 0.0 });
        // NaN stays NaN through the clamp and becomes zero in the cast.
        let round = |v: V| {
            let v = v.mul(inverse);
            V::splat(-bound).max(V::splat(bound).min(v)).round().to_i16()
        };
        let (vv, vt) = values.as_chunks_mut::<LANES>();
        for (x, v) in xv.iter().zip(vv) {
            *v = round(V::load(x));
        }
        vt.copy_from_slice(&round(padded(xt))[..xt.len()]);
        for (values, sum) in values.chunks(32).zip(sums) {
            *sum = GroupSum::default();
            for v in values {
                sum.total += i32::from(*v);
                sum.magnitude += i32::from(v.unsigned_abs());
            }
        }
    }
}

#[inline(always)]
pub(crate) fn float_sums<V: Vector>(x: &[f32], sums: &mut [f32]) {
    for (x, sum) in x.chunks(32).zip(sums) {
        let (xv, xt) = x.as_chunks::<LANES>();
        *sum = xv.iter().fold(padded::<V>(xt), |s, v| s.add(V::load(v))).sum();
    }
}
