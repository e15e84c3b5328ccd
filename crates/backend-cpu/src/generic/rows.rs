//! One row, or one head of it: norms, gates, rotations and rounding.

use super::packed::GroupSum;
use super::vector::{LANES, Vector};
use crate::layout::GROUP;

/// A function of two vectors. A trait and not a closure: closures are compiled without the target features of the
/// function that they end in, and too large ones stay there, every instruction of theirs a call.
trait Pair<V> {
    fn apply(&self, a: V, b: V) -> V;
}

/// `out = f(a, b)`; a tail shorter than a vector goes through a padded one.
#[inline(always)]
fn zip<V: Vector>(a: &[f32], b: &[f32], out: &mut [f32], f: impl Pair<V>) {
    let n = out.len();
    let (a, b) = (&a[..n], &b[..n]);
    let ((av, at), (bv, bt)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let (ov, ot) = out.as_chunks_mut::<LANES>();
    for ((a, b), o) in av.iter().zip(bv).zip(ov) {
        f.apply(V::load(a), V::load(b)).store(o);
    }
    if !ot.is_empty() {
        ot.copy_from_slice(&f.apply(padded(at), padded(bt)).to_array()[..ot.len()]);
    }
}

/// A vector of the values, then zeros.
#[inline(always)]
pub(crate) fn padded<V: Vector>(x: &[f32]) -> V {
    let mut full = [0.0; LANES];
    full[..x.len()].copy_from_slice(x);
    V::load(&full)
}

/// Asks for all of these values at once.
#[inline(always)]
pub(crate) fn fetch<V: Vector>(x: &[f32]) {
    for line in x.chunks(16) {
        V::prefetch(line.as_ptr().cast());
    }
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

/// `a s b`.
struct Scaled<V>(V);
impl<V: Vector> Pair<V> for Scaled<V> {
    #[inline(always)]
    fn apply(&self, a: V, b: V) -> V {
        a.mul(self.0).mul(b)
    }
}

#[inline(always)]
pub(crate) fn rms_norm<V: Vector>(x: &[f32], gain: &[f32], eps: f32, first: usize, out: &mut [f32]) {
    let inverse = V::splat(1.0 / (dot::<V>(x, x) / x.len() as f32 + eps).sqrt());
    zip::<V>(&x[first..], &gain[first..], out, Scaled(inverse));
}

/// `a s`.
struct First<V>(V);
impl<V: Vector> Pair<V> for First<V> {
    #[inline(always)]
    fn apply(&self, a: V, _: V) -> V {
        a.mul(self.0)
    }
}

#[inline(always)]
pub(crate) fn l2_norm<V: Vector>(x: &[f32], eps: f32, factor: f32, out: &mut [f32]) {
    let inverse = V::splat(factor / (dot::<V>(x, x) + eps).sqrt());
    zip::<V>(x, x, out, First(inverse));
}

struct Sum;
impl<V: Vector> Pair<V> for Sum {
    #[inline(always)]
    fn apply(&self, a: V, b: V) -> V {
        a.add(b)
    }
}

#[inline(always)]
pub(crate) fn add<V: Vector>(a: &[f32], b: &[f32], out: &mut [f32]) {
    zip::<V>(a, b, out, Sum);
}

/// `silu(a) b`.
struct Silu;
impl<V: Vector> Pair<V> for Silu {
    #[inline(always)]
    fn apply(&self, a: V, b: V) -> V {
        a.mul(a.sigmoid()).mul(b)
    }
}

#[inline(always)]
pub(crate) fn swiglu<V: Vector>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    zip::<V>(gate, up, out, Silu);
}

/// `a sigmoid(b)`.
struct Sigmoid;
impl<V: Vector> Pair<V> for Sigmoid {
    #[inline(always)]
    fn apply(&self, a: V, b: V) -> V {
        a.mul(b.sigmoid())
    }
}

#[inline(always)]
pub(crate) fn sigmoid_mul<V: Vector>(x: &[f32], gate: &[f32], out: &mut [f32]) {
    zip::<V>(x, gate, out, Sigmoid);
}

#[inline(always)]
pub(crate) fn silu_scale<V: Vector>(z: &[f32], out: &mut [f32]) {
    let (zv, zt) = z[..out.len()].as_chunks::<LANES>();
    let (ov, ot) = out.as_chunks_mut::<LANES>();
    for (z, o) in zv.iter().zip(ov) {
        Silu.apply(V::load(z), V::load(o)).store(o);
    }
    if !ot.is_empty() {
        let scaled: V = Silu.apply(padded(zt), padded(ot));
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
    let full = n / LANES;
    for i in 0..full {
        let [a, b, c, s] = [low, high, cos, sin];
        let (a, b) = (V::load(&a.as_chunks().0[i]), V::load(&b.as_chunks().0[i]));
        let (c, s) = (V::load(&c.as_chunks().0[i]), V::load(&s.as_chunks().0[i]));
        a.mul(c).sub(b.mul(s)).store(&mut out_low.as_chunks_mut().0[i]);
        b.mul(c).add(a.mul(s)).store(&mut out_high.as_chunks_mut().0[i]);
    }
    for i in full * LANES..n {
        out_low[i] = low[i] * cos[i] - high[i] * sin[i];
        out_high[i] = high[i] * cos[i] + low[i] * sin[i];
    }
    out_still.copy_from_slice(still);
}

/// Largest kernel of a convolution.
pub(crate) const MAX_KERNEL: usize = 8;

#[inline(always)]
pub(crate) fn conv_silu<V: Vector>(history: &[&[f32]], taps: &[&[f32]], cold: bool, out: &mut [f32]) {
    match history.len() {
        1 => conv::<V, 1>(history, taps, cold, out),
        2 => conv::<V, 2>(history, taps, cold, out),
        3 => conv::<V, 3>(history, taps, cold, out),
        4 => conv::<V, 4>(history, taps, cold, out),
        5 => conv::<V, 5>(history, taps, cold, out),
        6 => conv::<V, 6>(history, taps, cold, out),
        7 => conv::<V, 7>(history, taps, cold, out),
        MAX_KERNEL => conv::<V, MAX_KERNEL>(history, taps, cold, out),
        n => unreachable!("a kernel of {n}"),
    }
}

#[inline(always)]
fn conv<V: Vector, const K: usize>(history: &[&[f32]], taps: &[&[f32]], cold: bool, out: &mut [f32]) {
    /// Vectors between what is used and what is asked for: 1 KB of each row.
    const AHEAD: usize = 32;
    let n = out.len();
    let (ov, ot) = out.as_chunks_mut::<LANES>();
    let (mut rows, mut weights) = ([&[][..]; K], [&[][..]; K]);
    for j in 0..K {
        rows[j] = &history[j].as_chunks::<LANES>().0[..ov.len()];
        weights[j] = &taps[j].as_chunks::<LANES>().0[..ov.len()];
    }
    if cold {
        for row in history.iter().chain(taps) {
            fetch::<V>(&row[..n.min(AHEAD * LANES)]);
        }
    }
    for (i, o) in ov.iter_mut().enumerate() {
        if cold && i % 2 == 0 && (i + AHEAD) * LANES < n {
            for row in rows.iter().chain(&weights) {
                V::prefetch(row.as_ptr().wrapping_add(i + AHEAD).cast());
            }
        }
        let mut sum = V::zero();
        for j in 0..K {
            sum = V::load(&rows[j][i]).mul_add(V::load(&weights[j][i]), sum);
        }
        Silu.apply(sum, V::splat(1.0)).store(o);
    }
    if !ot.is_empty() {
        let mut sum = V::zero();
        for (row, taps) in history.iter().zip(taps) {
            let (row, taps) = (row.as_chunks::<LANES>().1, taps.as_chunks::<LANES>().1);
            sum = padded::<V>(row).mul_add(padded(taps), sum);
        }
        ot.copy_from_slice(&Silu.apply(sum, V::splat(1.0)).to_array()[..ot.len()]);
    }
}

/// Nearest integers within the bound. NaN stays NaN through the clamp and becomes zero in the cast.
#[inline(always)]
fn round<V: Vector>(v: V, bound: f32) -> [i16; LANES] {
    V::splat(-bound).max(V::splat(bound).min(v)).round().to_i16()
}

#[inline(always)]
fn group_sum(values: &[i16]) -> GroupSum {
    let mut sum = GroupSum::default();
    for v in values {
        sum.total += i32::from(*v);
        sum.magnitude += i32::from(v.unsigned_abs());
    }
    sum
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
        let (quads, rest) = xv.as_chunks::<4>();
        let (mut top, mut poison) = ([V::zero(); 4], [V::zero(); 4]);
        top[0] = padded::<V>(xt).abs().max(V::zero());
        // Zero times a value is zero unless the value is not finite: then the scale becomes NaN, as the oracle says.
        poison[0] = padded::<V>(xt).mul(V::zero());
        for quad in quads {
            for (i, v) in quad.iter().enumerate() {
                let v = V::load(v);
                top[i] = v.abs().max(top[i]);
                poison[i] = v.mul_add(V::zero(), poison[i]);
            }
        }
        for v in rest {
            let v = V::load(v);
            top[1] = v.abs().max(top[1]);
            poison[1] = v.mul_add(V::zero(), poison[1]);
        }
        let top = top[0].max(top[1]).max(top[2].max(top[3]));
        let poison = poison[0].add(poison[1]).add(poison[2].add(poison[3]));
        *scale = top.top() / bound + poison.sum();
        let inverse = V::splat(if *scale > 0.0 { 1.0 / *scale } else { 0.0 });
        let (vv, vt) = values.as_chunks_mut::<LANES>();
        for (x, v) in xv.iter().zip(vv) {
            *v = round(V::load(x).mul(inverse), bound);
        }
        vt.copy_from_slice(&round(padded::<V>(xt).mul(inverse), bound)[..xt.len()]);
        let (full, rest) = values.as_chunks::<32>();
        for (values, sum) in full.iter().zip(sums.iter_mut()) {
            *sum = group_sum(values);
        }
        if !rest.is_empty() {
            sums[full.len()] = group_sum(rest);
        }
    }
}

#[inline(always)]
pub(crate) fn float_sums<V: Vector>(x: &[f32], sums: &mut [f32]) {
    for (x, sum) in x.chunks(32).zip(sums) {
        let (xv, xt) = x.as_chunks::<LANES>();
        let mut lanes: V = padded(xt);
        for v in xv {
            lanes = lanes.add(V::load(v));
        }
        *sum = lanes.sum();
    }
}
