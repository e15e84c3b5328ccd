//! Codes of 32 rows into units: a transpose in registers.
//!
//! Eight bytes of each row at a time. Rows of a tile (as many as a word has units) change places with the units by
//! halves, quarters and eighths of a word, all tiles side by side, so that plain loops become vector instructions; what
//! comes out is the layout's bytes in order. Two-bit codes are separated into planes beforehand, by the same exchange
//! inside each word.

use crate::layout::{BLOCK, BitOrder, Lanes};

/// Eight bytes of each row; [`places`] says which row stands where.
pub(super) type Words = [u64; BLOCK];

/// Bytes of a row that are transposed together.
pub(super) const WORD: usize = 8;

/// Where a row's word goes before the transpose.
pub(super) fn places(order: &BitOrder) -> Lanes<u8> {
    let tile = WORD / order.unit;
    order.position.map(|p| (usize::from(p) % tile * (BLOCK / tile) + usize::from(p) / tile) as u8)
}

/// Makes rows of words, at their [`places`], the layout's bytes.
#[inline(always)]
pub(super) fn transpose(unit: usize, words: &mut Words) {
    // Every distance is spelled out: the loops get known lengths.
    match unit {
        1 => {
            exchange::<16>(words, 32, 0x0000_0000_ffff_ffff);
            exchange::<8>(words, 16, 0x0000_ffff_0000_ffff);
            exchange::<4>(words, 8, 0x00ff_00ff_00ff_00ff);
        }
        2 => {
            exchange::<16>(words, 32, 0x0000_0000_ffff_ffff);
            exchange::<8>(words, 16, 0x0000_ffff_0000_ffff);
        }
        _ => unreachable!("units of one or two bytes"),
    }
}

/// Swaps the upper part of each word with the lower part of the one `distance` further.
#[inline(always)]
fn exchange<const DISTANCE: usize>(words: &mut Words, shift: u32, lower: u64) {
    for pair in words.chunks_exact_mut(2 * DISTANCE) {
        let (a, b) = pair.split_at_mut(DISTANCE);
        for (a, b) in a.iter_mut().zip(b) {
            let differ = ((*a >> shift) ^ *b) & lower;
            *b ^= differ;
            *a ^= differ << shift;
        }
    }
}

/// Steps of [`separate`]: bits that move up, and how far.
const STEPS: [(u32, u64); 5] = [
    (1, 0x2222_2222_2222_2222),
    (2, 0x0c0c_0c0c_0c0c_0c0c),
    (4, 0x00f0_00f0_00f0_00f0),
    (8, 0x0000_ff00_0000_ff00),
    (16, 0x0000_0000_ffff_0000),
];

/// Two-bit codes into planes: `unit` bytes of low bits, then as many of high bits, and so on.
#[inline(always)]
pub(super) fn separate(unit: usize, words: &mut Words) {
    for (shift, mask) in STEPS.into_iter().take(if unit == 1 { 3 } else { 4 }) {
        for word in words.iter_mut() {
            *word = swap(*word, shift, mask);
        }
    }
}

/// Words of 32 low bits and 32 high bits as [`separate`] leaves them.
#[inline(always)]
pub(super) fn interleave(unit: usize, words: &mut Words) {
    for (shift, mask) in STEPS.into_iter().rev().take(if unit == 1 { 2 } else { 1 }) {
        for word in words.iter_mut() {
            *word = swap(*word, shift, mask);
        }
    }
}

/// Codes of two bits from 32 low and 32 high ones.
#[inline(always)]
pub(super) fn join(low: u64, high: u64) -> u64 {
    STEPS.into_iter().rev().fold(low | high << 32, |word, (shift, mask)| swap(word, shift, mask))
}

/// Swaps the bits under `mask` with those `shift` above.
#[inline(always)]
fn swap(word: u64, shift: u32, mask: u64) -> u64 {
    let differ = (word ^ (word >> shift)) & mask;
    word ^ differ ^ (differ << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::PLAIN_ORDER;

    /// Word `r` of bytes that no other word has at their places.
    fn row(r: usize) -> u64 {
        (r as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn units_hold_the_rows_at_their_positions() {
        let mut position = PLAIN_ORDER.position;
        position.swap(3, 17);
        position.reverse();
        for unit in [1, 2] {
            let order = BitOrder { unit, position };
            let mut words = [0; BLOCK];
            for (r, place) in places(&order).into_iter().enumerate() {
                words[usize::from(place)] = row(r);
            }
            transpose(unit, &mut words);
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            for (r, place) in position.into_iter().enumerate() {
                for (j, want) in row(r).to_le_bytes().chunks(unit).enumerate() {
                    let at = (j * BLOCK + usize::from(place)) * unit;
                    assert_eq!(&bytes[at..at + unit], want, "unit {j} of row {r}");
                }
            }
        }
    }

    #[test]
    fn joined_bits_are_codes() {
        let (low, high) = (row(5) >> 32, row(9) >> 32);
        let want = (0..32).fold(0, |codes, c| codes | (low >> c & 1 | (high >> c & 1) << 1) << (2 * c));
        assert_eq!(join(low, high), want);
    }

    #[test]
    fn planes_of_each_unit_hold_low_and_high_bits() {
        for unit in [1, 2] {
            let mut words: Words = std::array::from_fn(row);
            separate(unit, &mut words);
            let mut whole = [0; BLOCK];
            for (r, word) in words.iter().enumerate() {
                let bytes = word.to_le_bytes();
                let mut planes = [0u32; 2];
                for column in 0..32 {
                    let (byte, bit) = (column / 8, column % 8);
                    for (high, plane) in planes.iter_mut().enumerate() {
                        let at = byte / unit * 2 * unit + high * unit + byte % unit;
                        let got = bytes[at] >> bit & 1;
                        assert_eq!(u64::from(got), row(r) >> (2 * column + high) & 1, "column {column} of row {r}");
                        *plane |= u32::from(got) << column;
                    }
                }
                whole[r] = u64::from(planes[0]) | u64::from(planes[1]) << 32;
            }
            interleave(unit, &mut whole);
            assert_eq!(whole, words);
        }
    }
}
