//! Bound of the causal convolution and SiLU: `gamma(kernel + 2) sum |w x|`, carried through the SiLU.

use super::{Near, TINY, gamma, silu};

/// Row `t` of a sequence of rows of `channels` values.
pub(crate) fn conv_silu(sequence: &[&[f32]], taps: &[f32], kernel: usize, t: usize) -> Vec<Near> {
    (0..sequence[t].len())
        .map(|c| {
            let mut sum = Near { value: 0.0, error: TINY };
            for j in 0..kernel {
                // Before the sequence there are zeros.
                let Some(back) = (t + 1 + j).checked_sub(kernel) else { continue };
                let term = f64::from(taps[c * kernel + j]) * f64::from(sequence[back][c]);
                sum.value += term;
                sum.error += gamma(kernel + 2) * term.abs();
            }
            silu(sum)
        })
        .collect()
}
