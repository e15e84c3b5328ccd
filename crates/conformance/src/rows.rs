//! Generators of activation rows.

use crate::prng::Rng;

/// `n` rows of `cols` values: mostly Gaussian at different amplitudes, and in turn the shapes that break kernels:
/// one huge value, values of one sign, alternating extremes, zeros, and tiny values.
pub(crate) fn activations(rng: &mut Rng, n: usize, cols: usize) -> Vec<Vec<f32>> {
    (0..n)
        .map(|i| {
            let mut row = rng.normals(cols);
            match i % 11 {
                2 => row[rng.below(cols)] = -3000.0,
                4 => row.iter_mut().for_each(|v| *v = v.abs()),
                6 => row.iter_mut().enumerate().for_each(|(c, v)| *v = if c % 2 == 0 { 8.0 } else { -8.0 }),
                8 => row.fill(0.0),
                10 => row.iter_mut().for_each(|v| *v *= 1e-6),
                _ => {
                    let amplitude = (2.0 * rng.uniform() - 1.0).exp2() as f32;
                    row.iter_mut().for_each(|v| *v *= amplitude);
                }
            }
            row
        })
        .collect()
}

/// `n` rows of whole numbers whose groups of 128 all reach `limit`, so that their scale is exactly 1.
pub(crate) fn whole_numbers(rng: &mut Rng, n: usize, cols: usize, limit: i16) -> Vec<Vec<f32>> {
    let limit = f32::from(limit);
    (0..n)
        .map(|_| {
            let mut row: Vec<f32> =
                (0..cols).map(|_| (rng.uniform() as f32 * (2.0 * limit + 1.0)).floor() - limit).collect();
            for group in row.chunks_mut(128) {
                let at = rng.below(group.len());
                group[at] = if rng.below(2) == 0 { limit } else { -limit };
            }
            row
        })
        .collect()
}
