//! Bounds of the operations of image models.

use super::{Near, TINY, UNIT, gamma, silu};

/// `(1 + s) (x - mean) rsqrt(var + eps) + h` of one row. The mean is off by `d = gamma(n) mean|x|`, so every difference from it
/// by `d + u |x - mean|`. Differences sum to zero, so `d` adds only its square to the variance, which is off by the relative
/// `gamma(n + 2) + d^2 / (var + eps)`; half of that reaches the root.
pub(crate) fn modulate(x: &[f32], scale: &[f32], shift: &[f32], eps: f32) -> Vec<Near> {
    let n = x.len() as f64;
    let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let off = gamma(x.len() + 1) * x.iter().map(|v| f64::from(v.abs())).sum::<f64>() / n;
    let var = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n + f64::from(eps);
    let inverse = 1.0 / var.sqrt();
    let relative = (gamma(x.len() + 2) + off * off / var) / 2.0 + 8.0 * UNIT;
    let of = |((x, s), h): ((&f32, &f32), &f32)| {
        let (scale, shift) = (1.0 + f64::from(*s), f64::from(*h));
        let product = scale * (f64::from(*x) - mean) * inverse;
        let value = product + shift;
        // A rounding of `1 + s` moves the product by a unit of `1 + |s|`.
        let factor = UNIT * (1.0 + f64::from(s.abs())) * ((f64::from(*x) - mean) * inverse).abs();
        let error =
            scale.abs() * inverse * off + relative * product.abs() + factor + UNIT * (value.abs() + shift.abs());
        Near { value, error: error + TINY }
    };
    x.iter().zip(scale).zip(shift).map(of).collect()
}

/// `x + g y`: a product and a sum.
pub(crate) fn gated_add(x: f32, gate: f32, y: f32) -> Near {
    let product = f64::from(gate) * f64::from(y);
    let value = f64::from(x) + product;
    Near { value, error: UNIT * (product.abs() + value.abs()) + TINY }
}

/// `a c - b s` or, with the sign turned, `b c + a s`: two products and a sum.
pub(crate) fn rotated(a: f32, c: f32, b: f32, s: f32) -> Near {
    let (first, second) = (f64::from(a) * f64::from(c), f64::from(b) * f64::from(s));
    Near { value: first + second, error: 2.0 * UNIT * (first.abs() + second.abs()) + TINY }
}

/// Factor and offset of one group of a group norm with `values` of all its rows: the variance as in [`modulate`].
pub(crate) fn group(values: &[f32], eps: f32) -> impl Fn(f32, f32) -> [Near; 2] {
    let n = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let off = gamma(values.len() + 1) * values.iter().map(|v| f64::from(v.abs())).sum::<f64>() / n;
    let var = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n + f64::from(eps);
    let relative = (gamma(values.len() + 2) + off * off / var) / 2.0 + 6.0 * UNIT;
    move |gain, bias| {
        let factor = f64::from(gain) / var.sqrt();
        let taken = mean * factor;
        let value = f64::from(bias) - taken;
        let error = off * factor.abs() + (relative + 2.0 * UNIT) * taken.abs() + UNIT * value.abs() + TINY;
        [Near { value: factor, error: relative * factor.abs() + TINY }, Near { value, error }]
    }
}

/// `f x + o`, then SiLU where wanted.
pub(crate) fn normed(x: f32, factor: f32, offset: f32, with_silu: bool) -> Near {
    let near = gated_add(offset, factor, x);
    if with_silu { silu(near) } else { near }
}

/// A sum of products of inputs that may be off, with terms beside: `gamma(n)` of all magnitudes, and every input's error
/// times its weight.
pub(crate) fn products(pairs: &[(Near, f32)], beside: &[f32]) -> Near {
    let (mut value, mut size, mut carried) = (0.0, 0.0, 0.0);
    for (x, w) in pairs {
        let w = f64::from(*w);
        value += x.value * w;
        size += (x.value.abs() + x.error) * w.abs();
        carried += x.error * w.abs();
    }
    for b in beside {
        value += f64::from(*b);
        size += f64::from(b.abs());
    }
    Near { value, error: carried + gamma(pairs.len() + beside.len() + 2) * size + TINY }
}
