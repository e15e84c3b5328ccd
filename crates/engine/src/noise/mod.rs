//! The noise that a picture starts from: standard normal f32 numbers that depend on the generator, the seed and the shape
//! alone. They are made on the host, so that no device, thread or picture beside it changes one of them.

mod mlx;
mod torch;

/// Whose numbers a seed stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NoiseRng {
    /// `torch.randn` of a CPU generator in f32, as diffusers draws it. It looks at the low 32 bits of the seed only.
    #[default]
    Torch,
    /// `mlx.random.normal` in f32 with the key of the seed, as mflux draws it.
    Mlx,
}

impl NoiseRng {
    /// Every generator.
    pub const ALL: [NoiseRng; 2] = [NoiseRng::Torch, NoiseRng::Mlx];

    /// The name as users spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            NoiseRng::Torch => "torch",
            NoiseRng::Mlx => "mlx",
        }
    }

    /// `len` standard normal numbers. A shorter draw is not the beginning of a longer one.
    #[must_use]
    pub fn normal(self, seed: u64, len: usize) -> Vec<f32> {
        match self {
            NoiseRng::Torch => torch::normal(seed, len),
            NoiseRng::Mlx => mlx::normal(seed, len),
        }
    }

    /// The noise of a latent picture of `height * width` tokens: drawn as `[1, channels, height, width]`, as both
    /// pipelines do, and returned packed as `[height * width, channels]`.
    #[must_use]
    pub fn latent(self, seed: u64, channels: usize, height: usize, width: usize) -> Vec<f32> {
        pack(&self.normal(seed, channels * height * width), channels)
    }
}

/// Turns `[channels, tokens]` into `[tokens, channels]`.
///
/// # Panics
/// When `planes` is no multiple of `channels`.
#[must_use]
pub fn pack(planes: &[f32], channels: usize) -> Vec<f32> {
    assert!(channels > 0 && planes.len().is_multiple_of(channels), "planes of equal size");
    let tokens = planes.len() / channels;
    (0..planes.len()).map(|i| planes[i % channels * tokens + i / channels]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of `seed length index value`, made by `reference/gen_noise.py`.
    fn vectors(text: &str) -> impl Iterator<Item = (u64, usize, usize, f32)> {
        text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let whole = |i: usize| words[i].parse::<u64>().expect("a whole number");
            (whole(0), whole(1) as usize, whole(2) as usize, words[3].parse().expect("a number"))
        })
    }

    fn check(rng: NoiseRng, text: &str) {
        let mut drawn: Option<(u64, usize, Vec<f32>)> = None;
        let mut lengths = 0;
        for (seed, len, index, want) in vectors(text) {
            let values = match drawn.take() {
                Some((s, l, values)) if (s, l) == (seed, len) => values,
                _ => {
                    lengths += 1;
                    rng.normal(seed, len)
                }
            };
            assert_eq!(values.len(), len);
            // The generators agree exactly; logarithm, sine and cosine of the libraries differ by 1 or 2 units in the
            // last place, which at the largest value that 24 bits can give, 5.8, is 9.6e-7.
            let got = values[index];
            assert!((got - want).abs() <= 1e-6, "{} {seed} {len} {index}: {got} for {want}", rng.as_str());
            drawn = Some((seed, len, values));
        }
        assert!(lengths > 40, "{lengths} lengths");
    }

    #[test]
    fn torch_for_every_kind_of_length() {
        check(NoiseRng::Torch, include_str!("../../../../testdata/noise/torch.txt"));
    }

    #[test]
    fn mlx_for_every_kind_of_length() {
        check(NoiseRng::Mlx, include_str!("../../../../testdata/noise/mlx.txt"));
    }

    #[test]
    fn seeds_count_as_far_as_the_generators_look() {
        let high = (7 << 32) + 42;
        assert_eq!(NoiseRng::Torch.normal(high, 64), NoiseRng::Torch.normal(42, 64));
        assert_ne!(NoiseRng::Mlx.normal(high, 64), NoiseRng::Mlx.normal(42, 64));
        for rng in NoiseRng::ALL {
            assert_ne!(rng.normal(1, 64), rng.normal(2, 64));
            assert!(rng.normal(0, 0).is_empty());
        }
    }

    #[test]
    fn latents_are_drawn_by_planes_and_packed_by_tokens() {
        let planes = NoiseRng::Torch.normal(3, 4 * 6);
        let packed = NoiseRng::Torch.latent(3, 4, 2, 3);
        for (token, row) in packed.chunks(4).enumerate() {
            for (channel, value) in row.iter().enumerate() {
                assert_eq!(*value, planes[channel * 6 + token]);
            }
        }
    }
}
