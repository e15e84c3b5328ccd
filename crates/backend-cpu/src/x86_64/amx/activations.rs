//! Activations as rows of bytes.
//!
//! A nine-bit integer is no byte, but `x + 127` is exactly an unsigned byte and a signed one: -255..=255 moves to
//! -128..=382, and 0..=255 and -128..=127 add up to just that. Of integers up to 127 the second one is zero and is not
//! multiplied. The 127 times a row's sum of weights comes off again.
//!
//! ```text
//! unit of 64 columns, row after row: 64 x u8, the nearest to x + 127 | 64 x i8, what remains
//! ```

use crate::generic::Operand;
use std::arch::x86_64::*;

/// What is added to every activation.
pub(super) const SHIFT: i8 = 127;

/// Columns of a unit: one row of a tile.
pub(super) const COLUMNS: usize = 64;

/// Bytes of a row's unit: those of one byte a column, and of the other.
pub(super) const BYTES: usize = 2 * COLUMNS;

pub(in crate::x86_64) const OPERAND: Operand = Operand {
    bytes: 4 * BYTES / COLUMNS,
    unit: Some(COLUMNS),
    // SAFETY: whoever holds the table of kernels has a proof that the machine has these features.
    build: |values, unit| unsafe { build(values, unit) },
};

/// One unit of one row. A shorter one, at a row's end, leaves the remaining bytes as they are: nothing reads them.
#[target_feature(enable = "avx512f,avx512bw")]
fn build(values: &[i16], unit: &mut [u8]) {
    let (first, second) = unit.split_at_mut(COLUMNS);
    let halves = first.as_chunks_mut::<32>().0.iter_mut().zip(second.as_chunks_mut::<32>().0);
    for (values, (first, second)) in values.as_chunks::<32>().0.iter().zip(halves) {
        // SAFETY: 32 values of 16 bits, and 32 bytes twice.
        unsafe {
            let values = _mm512_add_epi16(_mm512_loadu_si512(values.as_ptr().cast()), _mm512_set1_epi16(SHIFT.into()));
            let nearest = _mm512_cvtusepi16_epi8(_mm512_max_epi16(values, _mm512_setzero_si512()));
            let rest = _mm512_sub_epi16(values, _mm512_cvtepu8_epi16(nearest));
            _mm256_storeu_si256(first.as_mut_ptr().cast(), nearest);
            _mm256_storeu_si256(second.as_mut_ptr().cast(), _mm512_cvtepi16_epi8(rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_bytes_are_every_nine_bit_integer() {
        if !crate::x86_64::Machine::detect().iter().any(|m| m.name() == "avx512amx") {
            return;
        }
        let all: Vec<i16> = (-255..=255).chain([0]).collect();
        for values in all.chunks(COLUMNS) {
            let mut unit = [0; BYTES];
            (OPERAND.build)(values, &mut unit);
            for (i, v) in values.iter().enumerate() {
                let (nearest, rest) = (i16::from(unit[i]), i16::from(unit[COLUMNS + i] as i8));
                assert_eq!(nearest + rest, v + i16::from(SHIFT), "of {v}");
                assert!(*v > 127 || *v < -127 || rest == 0, "{v} needs one byte");
            }
        }
    }
}
