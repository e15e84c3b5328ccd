//! `mlx.random.normal` in f32: the counter-based generator Threefry 2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw 2011) and
//! the inverse of the error function. A number depends on its place and on how many are drawn, so it can be made alone.

use std::f32::consts::SQRT_2;

/// Standard normal numbers, as `mx.random.normal((len,), key=mx.random.key(seed))`.
pub(super) fn normal(seed: u64, len: usize) -> Vec<f32> {
    bits(seed, len).into_iter().map(|word| SQRT_2 * inverse_erf(between_ones(word))).collect()
}

/// 32 random bits for each place: a counter of two places gives the words of both. Of an odd count, the middle place has a
/// counter of its own.
fn bits(seed: u64, len: usize) -> Vec<u32> {
    let key = [(seed >> 32) as u32, seed as u32];
    let (half, odd) = (len / 2, len % 2);
    let mut words = vec![0; len];
    for i in 0..half {
        let partner = i + half + odd;
        [words[i], words[partner]] = threefry(key, [i as u32, partner as u32]);
    }
    if odd == 1 {
        words[half] = threefry(key, [half as u32, 0])[0];
    }
    words
}

fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1bd1_1bda];
    let [mut a, mut b] = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for turn in 0..5 {
        for rotation in ROTATIONS[turn % 2] {
            a = a.wrapping_add(b);
            b = b.rotate_left(rotation) ^ a;
        }
        a = a.wrapping_add(keys[(turn + 1) % 3]);
        b = b.wrapping_add(keys[(turn + 2) % 3]).wrapping_add(turn as u32 + 1);
    }
    [a, b]
}

/// Uniform in `(-1, 1)`, with mlx's roundings.
fn between_ones(word: u32) -> f32 {
    let (below_one, low) = (1f32.next_down(), (-1f32).next_up());
    let unit = (word as f32 / u32::MAX as f32).min(below_one);
    (1.0 - low) * unit + low
}

/// The inverse error function by a polynomial in `ln(1 - x^2)` for the middle and one for the tails. Coefficients by N. Juffa
/// (within 2.36 units in the last place), the ones that mlx takes.
fn inverse_erf(x: f32) -> f32 {
    const TAIL: [f32; 9] = [
        3.036_975_7e-10,
        2.932_431e-8,
        1.221_503_3e-6,
        2.841_089_6e-5,
        3.935_529_7e-4,
        3.026_988_1e-3,
        4.831_858e-3,
        -2.646_461_4e-1,
        8.400_165e-1,
    ];
    const MIDDLE: [f32; 10] = [
        5.438_778_3e-9,
        1.432_854_5e-7,
        1.227_747_9e-6,
        1.129_636_26e-7,
        -5.615_307_6e-5,
        -1.476_976_3e-4,
        2.314_686_8e-3,
        1.153_925_8e-2,
        -2.320_154_8e-1,
        8.862_269e-1,
    ];
    let t = x.mul_add(-x, 1.0).ln();
    let coefficients: &[f32] = if t.abs() > 6.125 { &TAIL } else { &MIDDLE };
    x * coefficients.iter().fold(0.0, |sum: f32, c| sum.mul_add(t, *c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_of_the_paper() {
        // Known answers that come with the authors' library (Random123): counter and key of zeros, ones, and digits of pi.
        assert_eq!(threefry([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry([u32::MAX; 2], [u32::MAX; 2]), [0x1cb9_96fc, 0xbb00_2be7]);
        assert_eq!(threefry([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3]), [0xc492_3a9c, 0x483d_f7a0]);
    }
}
