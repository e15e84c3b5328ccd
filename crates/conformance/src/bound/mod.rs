//! Error bounds, derived from the data of each case; no tolerance is a guess.
//!
//! With `u = 2^-24`, the unit roundoff of f32, a sum of n products computed in f32 in any order deviates from the exact
//! one by at most `gamma(n) * sum |a_i b_i|`, where `gamma(n) = n u` always, and `gamma(n) = 6 sqrt(n) u` but for a
//! chance of `2 exp(-18)` when roundings are independent with mean zero (Higham and Mary, "A New Approach to
//! Probabilistic Rounding Error Analysis", 2019, with lambda = 6). [`gamma`] is the smaller of the two. Each op's bound
//! follows from this and first-order propagation; its formula stands at the function that computes it.
//!
//! Two results are compared, the backend's and the reference's, so every bound is taken twice.

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod image;
pub(crate) mod linear;
pub(crate) mod sample;

/// Unit roundoff of f32.
pub(crate) const UNIT: f64 = 1.0 / (1u32 << 24) as f64;

/// Smallest normal f32: what a result may lose where a device flushes subnormal numbers to zero.
pub(crate) const TINY: f64 = f32::MIN_POSITIVE as f64;

/// Relative error of a sum of `n` terms, against the sum of their magnitudes.
pub(crate) fn gamma(n: usize) -> f64 {
    let n = n as f64;
    n.min(6.0 * n.sqrt()) * UNIT
}

/// Relative error of one evaluation of exp, sigmoid or silu at `x`: 8 units, and the rounding of `x log2(e)` where a
/// device has only a power of two.
pub(crate) fn function(x: f64) -> f64 {
    (8.0 + x.abs()) * UNIT
}

/// Absolute error of one sine or cosine: 8 units.
pub(crate) const ANGLE: f64 = 8.0 * UNIT;

/// Relative error of `x * rsqrt(mean(x^2) + eps) * gain`: half that of the sum of squares, the square root, and two
/// products.
pub(crate) fn rms_norm(dim: usize) -> f64 {
    gamma(dim + 1) / 2.0 + 6.0 * UNIT
}

/// A result that is known exactly, and how far a computed one may lie from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Near {
    /// In f64.
    pub(crate) value: f64,
    /// Absolute.
    pub(crate) error: f64,
}

/// `silu(x)`: `|silu'| <= 1.1`.
pub(crate) fn silu(x: Near) -> Near {
    let value = x.value / (1.0 + (-x.value).exp());
    Near { value, error: 1.1 * x.error + (function(x.value) + UNIT) * value.abs() + TINY }
}

/// `a * b`, rounded.
pub(crate) fn product(a: Near, b: Near) -> Near {
    let value = a.value * b.value;
    let carried = a.error * (b.value.abs() + b.error) + a.value.abs() * b.error;
    Near { value, error: carried + UNIT * value.abs() + TINY }
}
