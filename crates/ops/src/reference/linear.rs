//! Matrix products over packed weights, group by group.

use super::ReferenceWeight;
use crate::{Activations, OpError, quantize_row};
use onebit_quant::Matrix;

/// Row `token` of a table, decoded.
pub(super) fn embedding_row(table: &ReferenceWeight, token: usize, cols: usize) -> Result<Vec<f32>, OpError> {
    let mut start = 0;
    for part in &table.parts {
        if token < start + part.rows {
            let mut row = vec![0.0; cols];
            part.matrix()?.decode_row(token - start, &mut row);
            return Ok(row);
        }
        start += part.rows;
    }
    Err(OpError::Inputs(format!("token {token} is outside a table of {start} rows")))
}

/// `x W^T` for every row of `x`. Dense weights always meet f32 activations.
pub(super) fn linear(
    x: &[Vec<f32>],
    weight: &ReferenceWeight,
    activations: Activations,
) -> Result<Vec<Vec<f32>>, OpError> {
    let mut y = vec![Vec::new(); x.len()];
    for part in &weight.parts {
        let matrix = part.matrix()?;
        match activations.limit() {
            Some(limit) if matrix.format.is_packed() => integer(x, &matrix, limit, &mut y),
            _ => float(x, &matrix, &mut y),
        }
    }
    Ok(y)
}

fn float(x: &[Vec<f32>], matrix: &Matrix<'_>, y: &mut [Vec<f32>]) {
    let mut row = vec![0.0; matrix.cols];
    for r in 0..matrix.rows {
        matrix.decode_row(r, &mut row);
        for (x, y) in x.iter().zip(y.iter_mut()) {
            y.push(dot(x, &row));
        }
    }
}

/// Row `r` of a matrix, decoded.
pub(super) fn dense_row(matrix: &Matrix<'_>, r: usize) -> Vec<f32> {
    let mut row = vec![0.0; matrix.cols];
    matrix.decode_row(r, &mut row);
    row
}

/// Inner product in f64, over eight running sums so that a compiler may keep them in vectors.
fn dot(x: &[f32], w: &[f32]) -> f32 {
    let (blocks, tail) = x.as_chunks::<8>();
    let (w_blocks, w_tail) = w.as_chunks::<8>();
    let mut sums = [0.0f64; 8];
    for (x, w) in blocks.iter().zip(w_blocks) {
        for lane in 0..8 {
            sums[lane] += f64::from(x[lane]) * f64::from(w[lane]);
        }
    }
    for (x, w) in tail.iter().zip(w_tail) {
        sums[0] += f64::from(*x) * f64::from(*w);
    }
    sums.iter().sum::<f64>() as f32
}

/// The integer form. With q the rounded activations of a weight group and s their scale, the group adds
/// `s * (scale * sum(code * q) + bias * sum(q))`; sums are exact integers, groups are added in ascending order in f32.
fn integer(x: &[Vec<f32>], matrix: &Matrix<'_>, limit: i16, y: &mut [Vec<f32>]) {
    let rows: Vec<_> = x.iter().map(|row| quantize_row(row, limit)).collect();
    let size = matrix.format.group();
    let mut codes = vec![0u8; size];
    let mut sums = vec![0.0f32; x.len()];
    for r in 0..matrix.rows {
        sums.fill(0.0);
        for g in 0..matrix.cols / size {
            let group = matrix.group(r, g, &mut codes);
            for (row, sum) in rows.iter().zip(&mut sums) {
                let values = &row.values[g * size..][..size];
                let dot: i32 = values.iter().zip(&codes).map(|(q, c)| i32::from(*q) * i32::from(*c)).sum();
                let total: i32 = values.iter().map(|q| i32::from(*q)).sum();
                *sum += row.scales[g * size / 128] * (group.scale * dot as f32 + group.bias * total as f32);
            }
        }
        y.iter_mut().zip(&sums).for_each(|(y, sum)| y.push(*sum));
    }
}
