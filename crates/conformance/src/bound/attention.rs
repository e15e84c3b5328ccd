//! Bound of causal softmax attention over n cached tokens.
//!
//! With `A = max_j scale sum |q_i k_ji|` and `S = max_j |score_j|`, a score deviates by at most
//! `d = gamma(dim + 4) A + u S`, so a softmax weight by the relative `2 d` (its own and that of the sum) and the
//! exponential's `(8 + 2 S) u`; the weighted sum over n tokens adds `gamma(n + 8)`. All of it times
//! `sum_j weight_j |v_j|`.

use super::{Near, TINY, UNIT, gamma};

/// One head of one query row over the keys and values that it sees, each as it reads back from the cache.
pub(crate) fn attention(query: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>], scale: f32) -> Vec<Near> {
    let scale = f64::from(scale);
    let (mut largest_size, mut largest_score) = (0.0f64, 0.0f64);
    let scores: Vec<f64> = keys
        .iter()
        .map(|key| {
            let (mut score, mut size) = (0.0, 0.0);
            for (q, k) in query.iter().zip(key) {
                let product = f64::from(*q) * f64::from(*k);
                score += product;
                size += product.abs();
            }
            largest_size = largest_size.max(size * scale.abs());
            largest_score = largest_score.max((score * scale).abs());
            score * scale
        })
        .collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    let score_error = gamma(query.len() + 4) * largest_size + UNIT * largest_score;
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
    out.iter_mut().for_each(|near| near.error += TINY);
    out
}
