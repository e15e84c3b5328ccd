//! Bound of a matrix product over packed weights.
//!
//! f32 activations: `gamma(K + 2 G + 8) * sum_g (|scale_g| sum code |x| + |bias_g| sum |x|)`, G groups. The sum of
//! magnitudes is that of the form `scale * sum(code x) + bias * sum(x)`, the most cancelling one that a kernel may use.
//!
//! Integer activations: the sums inside a group are exact integers, so only the combination rounds:
//! `gamma(G + 8) * sum_g xs_g (|scale_g dot_g| + |bias_g total_g|)`.
//!
//! Inputs that carry a relative error of their own add it times the same magnitude. Before integer rounding such an
//! error can also move a value across a tie: each value that lies near enough to one adds its whole step, `xs |w|`.

use super::{Near, TINY, UNIT, gamma};
use onebit_ops::{Activations, quantize_row};
use onebit_quant::{Format, Group, Matrix, Packed};

/// Exact result and bound of `x W^T` for every row of `x` and every weight row of all parts.
pub(crate) fn linear(parts: &[&Packed], x: &[Vec<f32>], input_error: f64, kind: Activations) -> Vec<Vec<Near>> {
    let mut out = vec![Vec::new(); x.len()];
    for part in parts {
        let matrix = part.as_matrix();
        match kind.limit() {
            Some(limit) if part.format.is_packed() => {
                let inputs: Vec<_> = x.iter().map(|row| Rounded::new(row, limit, input_error)).collect();
                for_rows(&matrix, |codes, groups| {
                    for (input, out) in inputs.iter().zip(&mut out) {
                        out.push(input.dot(codes, groups, matrix.format, input_error));
                    }
                });
            }
            _ => {
                let relative = gamma(matrix.cols + 2 * matrix.groups_per_row() + 8) + input_error;
                for_rows(&matrix, |weights, groups| {
                    for (row, out) in x.iter().zip(&mut out) {
                        let (value, magnitude) = dot(weights, groups, row);
                        out.push(Near { value, error: relative * magnitude + TINY * matrix.cols as f64 });
                    }
                });
            }
        }
    }
    out
}

/// Calls `f` with the codes and groups of each row; a dense row is one group of scale 1 whose codes are its weights.
fn for_rows(matrix: &Matrix<'_>, mut f: impl FnMut(&[f64], &[Group])) {
    let mut weights = vec![0.0f32; matrix.cols];
    let mut codes = vec![0u8; matrix.cols];
    let mut wide = vec![0.0f64; matrix.cols];
    for r in 0..matrix.rows {
        if matrix.format.is_packed() {
            let size = matrix.format.group();
            let groups: Vec<Group> =
                codes.chunks_exact_mut(size).enumerate().map(|(g, codes)| matrix.group(r, g, codes)).collect();
            wide.iter_mut().zip(&codes).for_each(|(w, c)| *w = f64::from(*c));
            f(&wide, &groups);
        } else {
            matrix.decode_row(r, &mut weights);
            wide.iter_mut().zip(&weights).for_each(|(w, v)| *w = f64::from(*v));
            f(&wide, &[Group { scale: 1.0, bias: 0.0 }]);
        }
    }
}

/// Exact dot product and its sum of magnitudes.
fn dot(codes: &[f64], groups: &[Group], x: &[f32]) -> (f64, f64) {
    let size = codes.len() / groups.len();
    let (mut value, mut magnitude) = (0.0, 0.0);
    for (group, (codes, x)) in groups.iter().zip(codes.chunks_exact(size).zip(x.chunks_exact(size))) {
        let (mut dot, mut total, mut dot_size, mut total_size) = (0.0, 0.0, 0.0, 0.0);
        for (code, x) in codes.iter().zip(x) {
            let x = f64::from(*x);
            dot += code * x;
            total += x;
            dot_size += (code * x).abs();
            total_size += x.abs();
        }
        let (scale, bias) = (f64::from(group.scale), f64::from(group.bias));
        value += scale * dot + bias * total;
        magnitude += scale.abs() * dot_size + bias.abs() * total_size;
    }
    (value, magnitude)
}

/// An activation row as integers, with the columns that an input error may round either way.
struct Rounded {
    values: Vec<i16>,
    scales: Vec<f32>,
    near_ties: Vec<usize>,
}

impl Rounded {
    fn new(row: &[f32], limit: i16, input_error: f64) -> Self {
        let quantized = quantize_row(row, limit);
        // Value and scale may both be off, and their quotient rounds once more.
        let slack = if input_error > 0.0 { 2.0 * input_error + 4.0 * UNIT } else { 0.0 };
        let near_ties = (0..row.len())
            .filter(|i| {
                let scale = f64::from(quantized.scales[i / 128]);
                let steps = (f64::from(row[*i]) / scale).abs();
                scale > 0.0 && slack > 0.0 && (steps.fract() - 0.5).abs() <= steps * slack
            })
            .collect();
        Rounded { values: quantized.values, scales: quantized.scales, near_ties }
    }

    fn dot(&self, codes: &[f64], groups: &[Group], format: Format, input_error: f64) -> Near {
        let size = format.group();
        let (mut value, mut magnitude) = (0.0, 0.0);
        for (g, group) in groups.iter().enumerate() {
            let columns = g * size..(g + 1) * size;
            let (mut dot, mut total) = (0.0, 0.0);
            for (q, code) in self.values[columns.clone()].iter().zip(&codes[columns.clone()]) {
                dot += f64::from(*q) * code;
                total += f64::from(*q);
            }
            let step = f64::from(self.scales[columns.start / 128]);
            let (scaled, shifted) = (f64::from(group.scale) * dot, f64::from(group.bias) * total);
            value += step * (scaled + shifted);
            magnitude += step * (scaled.abs() + shifted.abs());
        }
        let ties: f64 = self
            .near_ties
            .iter()
            .map(|i| {
                let group = groups[i / size];
                f64::from(self.scales[i / 128]) * (f64::from(group.scale) * codes[*i] + f64::from(group.bias)).abs()
            })
            .sum();
        let relative = gamma(groups.len() + 8) + 2.0 * input_error;
        Near { value, error: relative * magnitude + ties + TINY * codes.len() as f64 }
    }
}
