//! Norms, gates and rotations: one value or one head at a time.

use crate::RopeTable;

/// `1 / (1 + exp(-x))`.
pub(super) fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

/// `x * sigmoid(x)`.
pub(super) fn silu(x: f32) -> f32 {
    (f64::from(x) / (1.0 + (-f64::from(x)).exp())) as f32
}

/// `ln(1 + exp(x))`, linear above 20 as in the reference implementation.
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { f64::from(x).exp().ln_1p() as f32 }
}

/// Combines equal shapes value by value.
pub(super) fn zip(mut a: Vec<Vec<f32>>, b: &[Vec<f32>], f: impl Fn(f32, f32) -> f32) -> Vec<Vec<f32>> {
    for (a, b) in a.iter_mut().flatten().zip(b.iter().flatten()) {
        *a = f(*a, *b);
    }
    a
}

/// `x * rsqrt(mean(x^2) + eps) * gain` for every block of `dim` values.
pub(super) fn rms_norm(mut x: Vec<Vec<f32>>, dim: usize, gain: &[f32], eps: f32) -> Vec<Vec<f32>> {
    for block in x.iter_mut().flat_map(|row| row.chunks_exact_mut(dim)) {
        let mean = block.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>() / dim as f64;
        let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
        for (v, g) in block.iter_mut().zip(gain) {
            *v = (f64::from(*v) * inverse * f64::from(*g)) as f32;
        }
    }
    x
}

/// Turns pairs `(i, i + n)` of the first `2n` dimensions of every head.
pub(super) fn rope(mut x: Vec<Vec<f32>>, dim: usize, table: &RopeTable, positions: &[[u32; 3]]) -> Vec<Vec<f32>> {
    let n = table.inv_freq.len();
    let (mut cos, mut sin) = (vec![0.0; n], vec![0.0; n]);
    for (row, position) in x.iter_mut().zip(positions) {
        table.cos_sin(*position, &mut cos, &mut sin);
        for head in row.chunks_exact_mut(dim) {
            for i in 0..n {
                let (a, b) = (head[i], head[i + n]);
                head[i] = a * cos[i] - b * sin[i];
                head[i + n] = b * cos[i] + a * sin[i];
            }
        }
    }
    x
}
