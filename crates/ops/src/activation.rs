//! Activation kinds: how the inputs of a packed matmul are rounded.

/// Elements that share one activation scale.
pub(crate) const GROUP: usize = 128;

/// The type of a matmul's inputs. Part of the op, so that a plan says exactly what it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activations {
    /// Inputs as they are.
    F32,
    /// Integers in -127..=127, one scale `amax / 127` for each group of 128.
    I8G128,
    /// Integers in -255..=255, one scale `amax / 255` for each group of 128. For codes in {-1, 0, 1} the sums of a
    /// group still fit 16 bits (255 * 128 = 32,640).
    I9G128,
}

impl Activations {
    /// The largest magnitude of a quantised value, or `None` for floats.
    pub fn limit(self) -> Option<i16> {
        match self {
            Activations::F32 => None,
            Activations::I8G128 => Some(127),
            Activations::I9G128 => Some(255),
        }
    }
}

impl std::fmt::Display for Activations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Activations::F32 => "f32",
            Activations::I8G128 => "int8",
            Activations::I9G128 => "int9",
        })
    }
}

/// One activation row after rounding: `x[i] ~ scales[i / 128] * values[i]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuantizedRow {
    /// `cols` integers.
    pub values: Vec<i16>,
    /// `ceil(cols / 128)` scales.
    pub scales: Vec<f32>,
}

/// Rounds one row to integers: scale `amax / limit` for each group of 128 (the last may be shorter), ties to even.
/// A group of zeros has scale 0; a group with a value that is not finite has scale NaN, so that no fault is rounded away.
/// This is the oracle; backends must produce the same integers bit for bit.
pub fn quantize_row(x: &[f32], limit: i16) -> QuantizedRow {
    let mut row =
        QuantizedRow { values: Vec::with_capacity(x.len()), scales: Vec::with_capacity(x.len().div_ceil(GROUP)) };
    for group in x.chunks(GROUP) {
        let amax = group.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let scale = if group.iter().all(|v| v.is_finite()) { amax / f32::from(limit) } else { f32::NAN };
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        row.scales.push(scale);
        // The clamp matters where 1/scale overflows or rounds up: amax * inverse may exceed the limit by one ulp.
        row.values.extend(
            group.iter().map(|v| (v * inverse).round_ties_even().clamp(-f32::from(limit), f32::from(limit)) as i16),
        );
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_ties_to_even_and_keeps_the_extremes() {
        let mut x = vec![0.0f32; 128];
        x[0] = 127.0;
        x[1] = 0.5;
        x[2] = 1.5;
        x[3] = -2.5;
        x[4] = -127.0;
        let q = quantize_row(&x, 127);
        assert_eq!(q.scales, vec![1.0]);
        assert_eq!(&q.values[..5], &[127, 0, 2, -2, -127]);
    }

    #[test]
    fn a_zero_group_and_a_short_group() {
        let mut x = vec![0.0f32; 160];
        x[130] = -3.0;
        let q = quantize_row(&x, 255);
        assert_eq!(q.scales[0], 0.0);
        assert!(q.values[..128].iter().all(|v| *v == 0));
        assert_eq!(q.values[130], -255);
        assert_eq!(q.values.len(), 160);
    }

    #[test]
    fn what_is_not_finite_poisons_its_group_alone() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0f32; 256];
            x[5] = bad;
            let q = quantize_row(&x, 127);
            assert!(q.scales[0].is_nan() && q.scales[1].is_finite(), "{bad}");
        }
    }

    #[test]
    fn tiny_values_do_not_overflow_the_limit() {
        let q = quantize_row(&[f32::MIN_POSITIVE, -f32::MIN_POSITIVE, 1e-44], 127);
        assert!(q.values.iter().all(|v| v.abs() <= 127));
    }
}
