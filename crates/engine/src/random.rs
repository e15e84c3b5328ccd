//! Random numbers of one answer, by place: `SplitMix64` (Steele, Lea, Flood 2014), whose n-th output needs none of those
//! before it. A token that is chosen again, after its sequence had to give way, gets the same number.

/// A deterministic sequence of random numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Random(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// The sequence of one of several answers to a prompt; the first has that of the seed itself.
    pub(crate) fn new(seed: u64, choice: usize) -> Self {
        match choice {
            0 => Random(seed),
            // Seeds of neighbours must not give sequences that run one step apart.
            n => Random(mix(seed ^ mix(n as u64))),
        }
    }

    /// A seed that differs from call to call: the standard library's own source of unpredictable hash keys.
    pub(crate) fn fresh_seed() -> u64 {
        use std::hash::{BuildHasher, Hasher, RandomState};
        RandomState::new().build_hasher().finish()
    }

    fn output(self, n: usize) -> u64 {
        mix(self.0.wrapping_add(STEP.wrapping_mul(n as u64 + 1)))
    }

    /// The n-th number, uniform in `[0, 1)`, 53 bits.
    pub(crate) fn unit(self, n: usize) -> f64 {
        (self.output(n) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_vector_and_range() {
        // The first outputs for the seed 1234567, as other implementations of the algorithm print them.
        let random = Random::new(1_234_567, 0);
        let wanted = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([0, 1, 2].map(|n| random.output(n)), wanted);
        let units: Vec<f64> = (0..10_000).map(|n| random.unit(n)).collect();
        assert!(units.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = units.iter().sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn fresh_seeds_and_choices_differ() {
        assert_ne!(Random::fresh_seed(), Random::fresh_seed());
        let firsts: Vec<u64> = (0..20).map(|choice| Random::new(7, choice).output(0)).collect();
        assert!(firsts.iter().enumerate().all(|(i, a)| firsts[..i].iter().all(|b| a != b)));
    }
}
