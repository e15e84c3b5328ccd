//! Bound of the gated delta rule, for the recurrence and for its chunked forms.
//!
//! Column d of a head's matrix is a vector `s` of `key_dim` values with a recurrence of its own,
//! `s' = a (I - beta k k^T) s + beta v_d k`, whose linear part has norm at most 1: errors add up and never grow. One
//! token adds at most `(4 c + 40) u (N + V)`: `c u = gamma(key_dim)` for the normalisation of k and the read of `k^T s`,
//! which enter twice each, and forty units for the decay, the products and the sums; N is the largest norm of `s` so
//! far and V the largest `|v_d|`. After t tokens the norm of the error is at most
//! `E = gamma(t) (4 c + 40) (N + V)`, and an output, with q of norm `key_dim^-0.5`, is off by
//! `|q| E + gamma(key_dim + 8) sum |q_i s_i|`.

use super::{Near, TINY, UNIT, gamma};
use onebit_ops::HeadMap;

/// Sizes of one layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) map: HeadMap,
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
}

/// Added to the sum of squares of q and k.
pub(crate) const EPS: f32 = 1e-6;

impl Shape {
    /// Values of q or k in a row.
    pub(crate) fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }
    /// Values of v in a row.
    pub(crate) fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }
    fn key_head(&self, head: usize) -> usize {
        match self.map {
            HeadMap::Grouped => head / (self.value_heads / self.key_heads),
            HeadMap::Tiled => head % self.key_heads,
        }
    }
}

/// One sequence of one layer in f64, with the norms that its error is measured by.
#[derive(Clone)]
pub(crate) struct Exact {
    shape: Shape,
    tokens: usize,
    /// `[head][value column][key]`.
    state: Vec<Vec<Vec<f64>>>,
    /// `N + V` of each column.
    size: Vec<Vec<(f64, f64)>>,
}

impl Exact {
    pub(crate) fn new(shape: Shape) -> Self {
        let columns = vec![vec![0.0; shape.key_dim]; shape.value_dim];
        let sizes = vec![(0.0, 0.0); shape.value_dim];
        Exact { shape, tokens: 0, state: vec![columns; shape.value_heads], size: vec![sizes; shape.value_heads] }
    }

    fn error(&self, head: usize, column: usize) -> f64 {
        let (norm, value) = self.size[head][column];
        gamma(self.tokens) * (4.0 * gamma(self.shape.key_dim) / UNIT + 40.0) * (norm + value)
    }

    /// Takes one table row `[q, k, v, log_decay, beta]` in; the outputs of all heads.
    pub(crate) fn token(&mut self, row: &[f32]) -> Vec<Near> {
        let Shape { key_dim, value_dim, .. } = self.shape;
        let (q, rest) = row.split_at(self.shape.keys());
        let (k, rest) = rest.split_at(self.shape.keys());
        let (v, rest) = rest.split_at(self.shape.values());
        let (log_decay, beta) = rest.split_at(self.shape.value_heads);
        self.tokens += 1;
        let mut out = Vec::with_capacity(self.shape.values());
        for head in 0..self.shape.value_heads {
            let at = self.shape.key_head(head) * key_dim;
            let key = normalised(&k[at..at + key_dim], 1.0);
            let query = normalised(&q[at..at + key_dim], (key_dim as f64).powf(-0.5));
            let query_norm = norm(&query);
            let (decay, beta) = (f64::from(log_decay[head]).exp(), f64::from(beta[head]));
            for column in 0..value_dim {
                let value = f64::from(v[head * value_dim + column]);
                let s = &mut self.state[head][column];
                s.iter_mut().for_each(|x| *x *= decay);
                let delta = beta * (value - dot(&key, s));
                s.iter_mut().zip(&key).for_each(|(x, k)| *x += k * delta);
                let size = &mut self.size[head][column];
                *size = (size.0.max(norm(s)), size.1.max(value.abs()));
                let read: f64 = query.iter().zip(s.iter()).map(|(a, b)| (a * b).abs()).sum();
                let result = dot(&query, s);
                let error = query_norm * self.error(head, column) + gamma(key_dim + 8) * read + TINY * key_dim as f64;
                out.push(Near { value: result, error });
            }
        }
        out
    }

    /// The state as it is read back, `(heads, key_dim, value_dim)` in one row.
    pub(crate) fn state(&self) -> Vec<Near> {
        let Shape { value_heads, key_dim, value_dim, .. } = self.shape;
        let mut out = Vec::with_capacity(value_heads * key_dim * value_dim);
        for head in 0..value_heads {
            for key in 0..key_dim {
                for column in 0..value_dim {
                    let error = self.error(head, column) + TINY;
                    out.push(Near { value: self.state[head][column][key], error });
                }
            }
        }
        out
    }
}

fn normalised(x: &[f32], factor: f64) -> Vec<f64> {
    let sum: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
    let inverse = factor / (sum + f64::from(EPS)).sqrt();
    x.iter().map(|v| f64::from(*v) * inverse).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(x: &[f64]) -> f64 {
    dot(x, x).sqrt()
}
