//! Causal softmax attention over cached keys and values.

use super::{Frame, memory};
use crate::{OpError, PAGE_ROWS, View};

/// Appends the step's keys and values, then attends: `(rows, q.heads * v.dim)`.
pub(super) fn attention(
    frame: &Frame<'_>,
    q: View,
    k: View,
    v: View,
    layer: usize,
    scale: f32,
) -> Result<Vec<Vec<f32>>, OpError> {
    let (queries, mut keys, mut values) = (frame.read(q), frame.read(k), frame.read(v));
    let format = frame.cache.spec().kv.format;
    for head in keys.iter_mut().chain(&mut values).flat_map(|row| row.chunks_exact_mut(k.dim)) {
        format.round(head);
    }
    let mut memory = memory(frame.cache)?;
    let mut out = vec![vec![0.0; q.cols()]; queries.len()];
    for segment in &frame.inputs.segments {
        let cell = |position: usize| segment.pages[position / PAGE_ROWS] as usize * PAGE_ROWS + position % PAGE_ROWS;
        for (i, row) in segment.rows.clone().enumerate() {
            let at = cell(segment.past + i);
            memory.keys[layer].insert(at, std::mem::take(&mut keys[row]));
            memory.values[layer].insert(at, std::mem::take(&mut values[row]));
        }
        for (i, row) in segment.rows.clone().enumerate() {
            let seen: Vec<(&Vec<f32>, &Vec<f32>)> = (0..=segment.past + i)
                .map(|p| {
                    let missing =
                        || OpError::Inputs(format!("position {p} of slot {} was never written", segment.slot));
                    let key = memory.keys[layer].get(&cell(p)).ok_or_else(missing)?;
                    Ok((key, memory.values[layer].get(&cell(p)).ok_or_else(missing)?))
                })
                .collect::<Result<_, OpError>>()?;
            for h in 0..q.heads {
                let kv = h / (q.heads / k.heads);
                let query = &queries[row][h * q.dim..][..q.dim];
                let scores: Vec<f64> = seen
                    .iter()
                    .map(|(key, _)| {
                        let key = &key[kv * k.dim..][..k.dim];
                        f64::from(scale)
                            * query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
                    })
                    .collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                let total: f64 = weights.iter().sum();
                for d in 0..v.dim {
                    let sum: f64 =
                        seen.iter().zip(&weights).map(|((_, value), w)| w * f64::from(value[kv * v.dim + d])).sum();
                    out[row][h * v.dim + d] = (sum / total) as f32;
                }
            }
        }
    }
    Ok(out)
}
