//! Bound of causal softmax attention over n cached tokens.
//!
//! With `A = max_j scale sum |q_i k_ji|` and `S = max_j |score_j|`, a score deviates by at most
//! `d = gamma(dim + 4) A + u S`, so a softmax weight by the relative `2 d` (its own and that of the sum) and the
//! exponential's `(8 + 2 S) u`; the weighted sum over n tokens adds `gamma(n + 8)`. All of it times
//! `sum_j weight_j |v_j|`.
//!
//! Over blocks of integers a device may round queries to integers up to `2^15 - 2^7`, the step being that of the largest
//! value of the query; and weights times the scales of a block of values in the same way, the step being that of the
//! largest weight P times the largest scale. An element is off by half a step then, [`HALF_STEP`] of the largest:
//!
//! - a score by `HALF_STEP max |q| scale` times `sum |k_i|`, or times `6 sqrt(sum k_i^2)` as in [`gamma`], which adds to d;
//! - a result by `HALF_STEP P R` for each token, or `6 sqrt(n)` times that, where R is the range of the block's values and
//!   zero over all tokens: no scale times an integer is larger.
//!
//! Sums of scale times integer and minimum are added without the oracle's rounding of each value: `3 u R` for each, so
//! `3 u R sum |q_i|` for a score, and less than the term above for a result.

use super::{Near, TINY, UNIT, gamma};
use onebit_ops::KvFormat;

/// Half of a step of integers, of the largest number: `1 / (2 (2^15 - 2^7))`, and a fiftieth for the roundings of the
/// step itself and of scales to half precision.
const HALF_STEP: f64 = 1.02 / (2.0 * 32640.0);

/// Values of a block of integers.
const BLOCK: usize = 32;

/// The largest deviation of a sum of n terms whose errors are at most these; as [`gamma`], of independent ones.
fn spread(errors: impl Iterator<Item = f64> + Clone) -> f64 {
    let squares: f64 = errors.clone().map(|e| e * e).sum();
    errors.sum::<f64>().min(6.0 * squares.sqrt())
}

/// From the lowest to the highest of these numbers and zero.
fn range(values: impl Iterator<Item = f32>) -> f64 {
    let (mut low, mut high) = (0.0f32, 0.0f32);
    for v in values {
        (low, high) = (low.min(v), high.max(v));
    }
    f64::from(high) - f64::from(low)
}

/// One head of one query row over the keys and values that it sees, each as it reads back from a cache of this format.
pub(crate) fn attention(
    format: KvFormat,
    query: &[f32],
    keys: &[Vec<f32>],
    values: &[Vec<f32>],
    scale: f32,
) -> Vec<Near> {
    let integers = matches!(format, KvFormat::Q8 | KvFormat::Q4);
    let (top, all) = (range(query.iter().map(|q| q.abs())), query.iter().map(|q| f64::from(q.abs())).sum::<f64>());
    let scale = f64::from(scale);
    let (mut largest_size, mut largest_score, mut largest_step) = (0.0f64, 0.0f64, 0.0f64);
    let scores: Vec<f64> = keys
        .iter()
        .map(|key| {
            let (mut score, mut size) = (0.0, 0.0);
            for (q, k) in query.iter().zip(key) {
                let product = f64::from(*q) * f64::from(*k);
                score += product;
                size += product.abs();
            }
            if integers {
                let stepped = spread(key.iter().map(|k| HALF_STEP * top * f64::from(k.abs())));
                let step = stepped + 3.0 * UNIT * all * range(key.iter().copied());
                largest_step = largest_step.max(step * scale.abs());
            }
            largest_size = largest_size.max(size * scale.abs());
            largest_score = largest_score.max((score * scale).abs());
            score * scale
        })
        .collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    let score_error = gamma(query.len() + 4) * largest_size + UNIT * largest_score + largest_step;
    let relative = 2.0 * score_error + 2.0 * (8.0 + 2.0 * largest_score) * UNIT + gamma(keys.len() + 8);
    let dim = values[0].len();
    let mut out = vec![Near { value: 0.0, error: 0.0 }; dim];
    for (value, weight) in values.iter().zip(&weights) {
        for (near, v) in out.iter_mut().zip(value) {
            let term = weight / total * f64::from(*v);
            near.value += term;
            near.error += relative * term.abs();
        }
    }
    if integers {
        let step = HALF_STEP * weights.iter().copied().fold(0.0, f64::max) / total;
        for (b, out) in out.chunks_mut(BLOCK).enumerate() {
            let range = range(values.iter().flat_map(|v| &v[b * BLOCK..][..out.len()]).copied());
            let error = spread(std::iter::repeat_n(step * range, values.len()));
            out.iter_mut().for_each(|near| near.error += error);
        }
    }
    out.iter_mut().for_each(|near| near.error += TINY);
    out
}
