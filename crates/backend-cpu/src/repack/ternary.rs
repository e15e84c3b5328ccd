//! `PTQ1_0`: five ternary digits a byte, made two planes of bits without writing a code out.
//!
//! The next digit of all bytes is one multiplication by three away, and which third of its range a byte lies in is the
//! digit. So a comparison gives one bit of each byte's digit, and these are consecutive columns.

/// Bytes of a block, scale included, and columns.
pub(super) const BLOCK_BYTES: usize = 28;

/// The scale's first byte.
pub(super) const SCALE: usize = 26;

/// Least values whose digit is one and two.
const THIRDS: [u8; 2] = [86, 171];

/// Low and high bits of a block's 128 codes, the first column lowest.
#[inline(always)]
pub(super) fn planes(block: &[u8; BLOCK_BYTES]) -> [[u64; 2]; 2] {
    let mut bytes = [0u8; 32];
    bytes[..SCALE].copy_from_slice(&block[..SCALE]);
    let (mut low, mut high) = ([0; 5], [0; 5]);
    for (low, high) in low.iter_mut().zip(&mut high) {
        let (some, two) = (at_least(&bytes, THIRDS[0]), at_least(&bytes, THIRDS[1]));
        (*low, *high) = (some & !two, two);
        for byte in &mut bytes {
            *byte = byte.wrapping_add(*byte).wrapping_add(*byte);
        }
    }
    [in_columns(low), in_columns(high)]
}

/// Bits of all bytes, digit by digit, at their columns: the first 16 bytes hold five runs of 16 columns, the next 8 five
/// of 8, and the last 2 four of 2.
#[inline(always)]
fn in_columns(digits: [u32; 5]) -> [u64; 2] {
    let [a, b, c, d, e] = digits.map(u64::from);
    let run = |bits: u64| bits & 0xffff;
    let half = |bits: u64| bits >> 16 & 0xff;
    let pair = |bits: u64| bits >> 24 & 3;
    let first = run(a) | run(b) << 16 | run(c) << 32 | run(d) << 48;
    let halves = half(a) | half(b) << 8 | half(c) << 16 | half(d) << 24 | half(e) << 32;
    let pairs = pair(a) | pair(b) << 2 | pair(c) << 4 | pair(d) << 6;
    [first, run(e) | halves << 16 | pairs << 56]
}

/// One bit for each byte: whether it is at least `least`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn at_least(bytes: &[u8; 32], least: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_max_epu8, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: every x86-64 processor has these instructions, and both loads lie inside the array.
    unsafe {
        let least = _mm_set1_epi8(least as i8);
        let [low, high] = [0, 16].map(|start| _mm_loadu_si128(bytes.as_ptr().add(start).cast()));
        let low = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(low, least), low));
        let high = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(high, least), high));
        low as u32 | (high as u32) << 16
    }
}

/// One bit for each byte: whether it is at least `least`.
#[cfg(not(target_arch = "x86_64"))]
fn at_least(bytes: &[u8; 32], least: u8) -> u32 {
    bytes.iter().rev().fold(0, |bits, byte| bits << 1 | u32::from(*byte >= least))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_quant::{Format, Matrix};

    fn bit(plane: [u64; 2], column: usize) -> u8 {
        (plane[column / 64] >> (column % 64) & 1) as u8
    }

    #[test]
    fn planes_are_the_codes_of_the_format() {
        let mut block = [0u8; BLOCK_BYTES];
        for start in 0..=u8::MAX {
            for (i, byte) in block[..SCALE].iter_mut().enumerate() {
                *byte = start.wrapping_add((i as u8).wrapping_mul(37));
            }
            let matrix = Matrix::new(Format::Ptq1_0, 1, 128, &block, &[], &[]).unwrap();
            let mut codes = [0; 128];
            matrix.group(0, 0, &mut codes);
            let [low, high] = planes(&block);
            let got: Vec<u8> = (0..128).map(|e| bit(low, e) + 2 * bit(high, e)).collect();
            assert_eq!(got, codes);
        }
    }
}
