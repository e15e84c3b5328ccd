//! Random numbers of one request: xoshiro256++ (Blackman, Vigna 2018), started by splitmix64.

/// A deterministic stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random([u64; 4]);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = seed;
        Random(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// A seed that differs from call to call: the standard library's own source of unpredictable hash keys.
    pub(crate) fn fresh_seed() -> u64 {
        use std::hash::{BuildHasher, Hasher, RandomState};
        RandomState::new().build_hasher().finish()
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `[0, 1)`, 53 bits.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_vector_and_range() {
        // First output of xoshiro256++ for the state {1, 2, 3, 4}, as published with the algorithm.
        let mut r = Random([1, 2, 3, 4]);
        assert_eq!([r.next(), r.next(), r.next()], [41_943_041, 58_720_359, 3_588_806_011_781_223]);
        let mut r = Random::new(0);
        let mean = (0..10_000).map(|_| r.unit()).inspect(|u| assert!((0.0..1.0).contains(u))).sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn fresh_seeds_differ() {
        assert_ne!(Random::fresh_seed(), Random::fresh_seed());
    }
}
