//! What image models need beside: modulation, rotation of neighbours, attention without a cache, group norm and
//! convolution.

use super::linear::dense_row;
use super::pointwise::silu;
use super::{ReferenceWeight, vector, weight};
use crate::{Conv2d, OpError, Seen, Vector, View};

/// `(1 + scale) (x - mean) rsqrt(var + eps) + shift` for every row.
pub(super) fn modulate(mut x: Vec<Vec<f32>>, scale: &[f32], shift: &[f32], eps: f32) -> Vec<Vec<f32>> {
    for row in &mut x {
        let n = row.len() as f64;
        let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let var = row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
        let inverse = 1.0 / (var + f64::from(eps)).sqrt();
        for (v, (scale, shift)) in row.iter_mut().zip(scale.iter().zip(shift)) {
            *v = ((1.0 + f64::from(*scale)) * (f64::from(*v) - mean) * inverse + f64::from(*shift)) as f32;
        }
    }
    x
}

/// `x + gate * y` for every row.
pub(super) fn gated_add(mut x: Vec<Vec<f32>>, gate: &[f32], y: &[Vec<f32>]) -> Vec<Vec<f32>> {
    for (x, y) in x.iter_mut().zip(y) {
        for (x, (gate, y)) in x.iter_mut().zip(gate.iter().zip(y)) {
            *x = (f64::from(*x) + f64::from(*gate) * f64::from(*y)) as f32;
        }
    }
    x
}

/// Pairs of neighbours of every head of `dim` values.
pub(super) fn rotate_pairs(mut x: Vec<Vec<f32>>, dim: usize, angles: &[Vec<f32>]) -> Vec<Vec<f32>> {
    for (row, angles) in x.iter_mut().zip(angles) {
        let (cos, sin) = angles.split_at(dim / 2);
        for head in row.chunks_exact_mut(dim) {
            for (i, pair) in head.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let [a, b] = *pair;
                *pair = [a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]];
            }
        }
    }
    x
}

/// The operands of `Op::FullAttention`: rows and shapes.
pub(super) struct Attention<'a> {
    pub q: (&'a [Vec<f32>], View),
    pub k: (&'a [Vec<f32>], View),
    pub v: &'a [Vec<f32>],
    pub scale: f32,
    pub seen: Seen,
}

/// `(rows, q.heads * dim)`.
pub(super) fn full_attention(op: &Attention<'_>) -> Vec<Vec<f32>> {
    let (queries, q) = op.q;
    let (keys, k) = op.k;
    let dim = q.dim;
    let mut out = vec![vec![0.0; q.cols()]; queries.len()];
    for (row, (query, out)) in queries.iter().zip(&mut out).enumerate() {
        let seen = match op.seen {
            Seen::All => keys.len(),
            Seen::Causal { keys } => keys.min(row + 1),
        };
        for h in 0..q.heads {
            let at = h / (q.heads / k.heads) * dim;
            let query = &query[h * dim..][..dim];
            let score = |key: &Vec<f32>| {
                let products = query.iter().zip(&key[at..at + dim]).map(|(a, b)| f64::from(*a) * f64::from(*b));
                f64::from(op.scale) * products.sum::<f64>()
            };
            let scores: Vec<f64> = keys[..seen].iter().map(score).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![0.0f64; dim];
            for (value, w) in op.v.iter().zip(&weights) {
                sums.iter_mut().zip(&value[at..at + dim]).for_each(|(sum, v)| *sum += w * f64::from(*v));
            }
            for (out, sum) in out[h * dim..(h + 1) * dim].iter_mut().zip(sums) {
                *out = (sum / total) as f32;
            }
        }
    }
    out
}

/// All factors, then all offsets.
pub(super) fn group_norm(
    x: &[Vec<f32>],
    groups: usize,
    gain: &Vector,
    bias: &Vector,
    eps: f32,
) -> Result<Vec<f32>, OpError> {
    let (gain, bias) = (vector(gain)?, vector(bias)?);
    let size = gain.len() / groups;
    let mut out = vec![0.0; 2 * gain.len()];
    for g in 0..groups {
        let columns = g * size..(g + 1) * size;
        let values = || x.iter().flat_map(|row| &row[columns.clone()]).map(|v| f64::from(*v));
        let n = (x.len() * size) as f64;
        let mean = values().sum::<f64>() / n;
        let var = values().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        for c in columns.clone() {
            let factor = f64::from(gain[c]) / (var + f64::from(eps)).sqrt();
            out[c] = factor as f32;
            out[gain.len() + c] = (f64::from(bias[c]) - mean * factor) as f32;
        }
    }
    Ok(out)
}

/// `read` gives the rows of a temporary.
pub(super) fn conv2d(op: &Conv2d, read: &dyn Fn(View) -> Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>, OpError> {
    let (mut x, bias) = (read(op.x), vector(&op.bias)?);
    if let Some(norm) = op.norm {
        let affine = read(norm.affine).concat();
        let (factors, offsets) = affine.split_at(affine.len() / 2);
        for row in &mut x {
            for (v, (factor, offset)) in row.iter_mut().zip(factors.iter().zip(offsets)) {
                let normed = (f64::from(*factor) * f64::from(*v) + f64::from(*offset)) as f32;
                *v = if norm.silu { silu(normed) } else { normed };
            }
        }
    }
    let residual = op.residual.map(read);
    let times = if op.upsample { 2 } else { 1 };
    let (height, width) = (op.grid.height * times, op.grid.width * times);
    let weights = weight(&op.weight)?.rows()?;
    let reach = op.kernel / 2;
    let mut out = Vec::with_capacity(height * width);
    for y in 0..height {
        for column in 0..width {
            let mut sums: Vec<f64> = bias.iter().map(|b| f64::from(*b)).collect();
            for tap in 0..op.kernel * op.kernel {
                let (dy, dx) = (y + tap / op.kernel, column + tap % op.kernel);
                // Coordinates before the border are shifted by `reach`.
                if dy < reach || dx < reach || dy - reach >= height || dx - reach >= width {
                    continue;
                }
                let pixel = &x[(dy - reach) / times * op.grid.width + (dx - reach) / times];
                for (sum, weight) in sums.iter_mut().zip(&weights) {
                    let taps = &weight[tap * pixel.len()..(tap + 1) * pixel.len()];
                    *sum += pixel.iter().zip(taps).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                }
            }
            let mut row: Vec<f32> = sums.iter().map(|s| *s as f32).collect();
            if let Some(residual) = &residual {
                row.iter_mut().zip(&residual[y * width + column]).for_each(|(v, r)| *v += r);
            }
            out.push(row);
        }
    }
    Ok(out)
}

impl ReferenceWeight {
    /// Every row, decoded.
    fn rows(&self) -> Result<Vec<Vec<f32>>, OpError> {
        let mut rows = Vec::new();
        for part in &self.parts {
            let matrix = part.matrix()?;
            rows.extend((0..matrix.rows).map(|r| dense_row(&matrix, r)));
        }
        Ok(rows)
    }
}
