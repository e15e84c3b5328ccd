//! A row of logits: its largest value and its weights.

use super::rows::padded;
use super::vector::{LANES, Vector};

/// What [`survey`] finds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Survey {
    /// The largest value; of an unusable row any.
    pub top: f32,
    /// No value is NaN or +∞.
    pub usable: bool,
}

#[inline(always)]
pub(crate) fn survey<V: Vector>(x: &[f32], out: &mut Survey) {
    let (full, tail) = x.as_chunks::<LANES>();
    let (mut top, mut zeros) = (V::splat(f32::MIN), V::zero());
    for x in full {
        // `max` keeps a NaN on its right: it gets past both, and `0 * x` passes it on, as it does an infinity.
        let x = V::splat(f32::MIN).max(V::load(x));
        zeros = x.mul_add(V::zero(), zeros);
        top = x.max(top);
    }
    // Zeros of a padded tail must not count.
    let (tops, sums) = (top.to_array(), zeros.to_array());
    let rest = tail.iter().map(|x| if x.is_nan() { *x } else { x.max(f32::MIN) });
    let sum: f32 = sums.into_iter().chain(rest.clone().map(|x| x * 0.0)).sum();
    *out = Survey { top: tops.into_iter().chain(rest).fold(f32::MIN, f32::max), usable: !sum.is_nan() };
}

#[inline(always)]
pub(crate) fn soft_weights<V: Vector>(x: &[f32], top: f32, temperature: f32, out: &mut [f32]) {
    let (full, tail) = x.as_chunks::<LANES>();
    let (to, rest) = out[..x.len()].as_chunks_mut::<LANES>();
    let (top, temperature) = (V::splat(top), V::splat(temperature));
    for (x, to) in full.iter().zip(to) {
        V::load(x).sub(top).div(temperature).exp().store(to);
    }
    rest.copy_from_slice(&padded::<V>(tail).sub(top).div(temperature).exp().to_array()[..tail.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::vector::Array;

    fn of(x: &[f32]) -> Survey {
        let mut out = Survey { top: 0.0, usable: false };
        survey::<Array>(x, &mut out);
        out
    }

    #[test]
    fn the_survey_sees_every_place() {
        for len in [1, 7, 8, 9, 40, 41] {
            for at in 0..len {
                let with = |v: f32| {
                    let mut x = vec![-3.0; len];
                    x[at] = v;
                    of(&x)
                };
                assert_eq!(with(-2.0), Survey { top: -2.0, usable: true }, "{at} of {len}");
                assert!(!with(f32::NAN).usable && !with(-f32::NAN).usable && !with(f32::INFINITY).usable);
                assert!(with(f32::NEG_INFINITY).usable && with(f32::MAX) == Survey { top: f32::MAX, usable: true });
            }
        }
        assert_eq!(of(&[f32::NEG_INFINITY; 9]).top, f32::MIN);
    }
}
