//! Rotary position embedding: one table of frequencies, computed once per model.

/// YaRN scaling of a rotary embedding (Peng et al. 2023, "YaRN: Efficient Context Window Extension").
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct YarnScaling {
    /// Context extension factor.
    pub factor: f64,
    /// Context length that the model was trained on before the extension.
    pub original_context: f64,
    /// Rotations above which a dimension is left alone.
    pub beta_fast: f64,
    /// Rotations below which a dimension is fully interpolated.
    pub beta_slow: f64,
    /// Multiplies cos and sin, on queries and keys alike; `None` for the paper's `0.1 ln(factor) + 1`.
    pub attention_factor: Option<f64>,
}

/// Rotation of the first `2 * inv_freq.len()` dimensions of a head, in half-split pairs `(i, i + n)`.
///
/// The angle of pair `i` at position `(t, h, w)` is `position[axis[i]] * inv_freq[i]`; text has `t == h == w`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Angle per position, one for each pair.
    pub inv_freq: Vec<f32>,
    /// Which coordinate of the position turns a pair: 0 time, 1 height, 2 width.
    pub axis: Vec<u8>,
    /// Multiplies cos and sin (1 without YaRN).
    pub attention_factor: f32,
}

impl RopeTable {
    /// Plain rotary embedding over `rotary_dim` dimensions: `inv_freq[i] = theta^(-2i / rotary_dim)`.
    pub fn plain(theta: f64, rotary_dim: usize) -> Self {
        let inv_freq = (0..rotary_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / rotary_dim as f64) as f32).collect();
        RopeTable { inv_freq, axis: vec![0; rotary_dim / 2], attention_factor: 1.0 }
    }

    /// YaRN: high frequencies stay, low ones are divided by the factor, with a linear ramp between the dimensions that
    /// turn `beta_fast` and `beta_slow` times within the original context (bounds floored and ceiled).
    pub fn yarn(theta: f64, rotary_dim: usize, yarn: &YarnScaling) -> Self {
        let dim = rotary_dim as f64;
        let correction = |rotations: f64| {
            dim * (yarn.original_context / (rotations * std::f64::consts::TAU)).ln() / (2.0 * theta.ln())
        };
        let low = correction(yarn.beta_fast).floor().max(0.0);
        let high = correction(yarn.beta_slow).ceil().min(dim - 1.0);
        let width = if high > low { high - low } else { 0.001 };
        let inv_freq = (0..rotary_dim / 2)
            .map(|i| {
                let plain = theta.powf(-2.0 * i as f64 / dim);
                let ramp = ((i as f64 - low) / width).clamp(0.0, 1.0);
                (plain * (1.0 - ramp) + plain / yarn.factor * ramp) as f32
            })
            .collect();
        let factor =
            yarn.attention_factor.unwrap_or(if yarn.factor > 1.0 { 0.1 * yarn.factor.ln() + 1.0 } else { 1.0 });
        RopeTable { inv_freq, axis: vec![0; rotary_dim / 2], attention_factor: factor as f32 }
    }

    /// Assigns frequencies to the three axes in interleaved order: pair `i` belongs to height if `i % 3 == 1` and
    /// `i < 3 * sections[1]`, to width if `i % 3 == 2` and `i < 3 * sections[2]`, else to time.
    #[must_use]
    pub fn with_interleaved_sections(mut self, sections: [usize; 3]) -> Self {
        for (i, axis) in self.axis.iter_mut().enumerate() {
            *axis = match i % 3 {
                1 if i < 3 * sections[1] => 1,
                2 if i < 3 * sections[2] => 2,
                _ => 0,
            };
        }
        self
    }

    /// Dimensions of a head that turn.
    pub fn rotary_dim(&self) -> usize {
        self.inv_freq.len() * 2
    }

    /// Cosine and sine of every pair at one position, with the attention factor applied. The angle is a product of two
    /// f32 values, as in the reference implementation.
    pub fn cos_sin(&self, position: [u32; 3], cos: &mut [f32], sin: &mut [f32]) {
        for (i, (freq, axis)) in self.inv_freq.iter().zip(&self.axis).enumerate() {
            let angle = f64::from(position[usize::from(*axis)] as f32 * freq);
            cos[i] = angle.cos() as f32 * self.attention_factor;
            sin[i] = angle.sin() as f32 * self.attention_factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_sections_of_the_27b() {
        let table = RopeTable::plain(1e7, 64).with_interleaved_sections([11, 11, 10]);
        let count = |axis| table.axis.iter().filter(|a| **a == axis).count();
        assert_eq!((count(0), count(1), count(2)), (11, 11, 10));
        assert_eq!(&table.axis[..4], &[0, 1, 2, 0]);
        assert_eq!(table.axis[31], 1);
        assert_eq!(table.axis[30], 0);
    }

    #[test]
    fn yarn_keeps_fast_and_divides_slow_frequencies() {
        let yarn = YarnScaling {
            factor: 4.0,
            original_context: 16384.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
        };
        let (plain, scaled) = (RopeTable::plain(1e6, 128), RopeTable::yarn(1e6, 128, &yarn));
        assert_eq!(plain.inv_freq[0], scaled.inv_freq[0]);
        assert!((plain.inv_freq[63] / scaled.inv_freq[63] - 4.0).abs() < 1e-5);
        assert!((scaled.attention_factor - 1.138_629_4).abs() < 1e-6);
    }
}
