//! Lookup tables: activations become the signed sums that patterns of weight bits give.
//!
//! A word of 16 weight bits is cut into windows of 6, 6 and 4 bits. `vpermt2w` looks six bits up in 64 entries of 16
//! bits, `vpermw` four in 16. An entry is `sum (2 bit - 1) x`: at most 6 * 255 in magnitude, so nothing is split into
//! bytes and nothing has to be taken off afterwards.
//!
//! ```text
//! tables of 16 columns: 64 x i16 for columns 0..6 | 64 x i16 for 6..12 | 32 x i16 for 12..16, twice the 16 sums
//! ```

use std::arch::x86_64::*;

/// Columns of a word.
pub(in crate::x86_64) const COLUMNS: usize = 16;

/// Bytes of the tables of one word.
pub(in crate::x86_64) const BYTES: usize = 5 * 64;

/// Lanes whose number has bit `i` set.
const SET: [u32; 5] = [0xaaaa_aaaa, 0xcccc_cccc, 0xf0f0_f0f0, 0xff00_ff00, 0xffff_0000];

/// Signed sums of the values under the bits of each lane's number.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn sums<const N: usize>(values: &[i16; N]) -> __m512i {
    let mut sums = _mm512_setzero_si512();
    for (v, set) in values.iter().zip(SET) {
        let v = _mm512_set1_epi16(*v);
        sums = _mm512_mask_add_epi16(_mm512_sub_epi16(sums, v), set, sums, v);
    }
    sums
}

#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::x86_64) fn build(values: &[i16], tables: &mut [u8]) {
    for (v, table) in values.as_chunks::<COLUMNS>().0.iter().zip(tables.as_chunks_mut::<BYTES>().0) {
        let [a, b, c] =
            [[v[0], v[1], v[2], v[3], v[4]], [v[6], v[7], v[8], v[9], v[10]], [v[12], v[13], v[14], v[15], 0]];
        let (a, b, last) = (sums(&a), sums(&b), sums(&c));
        let (sixth, twelfth) = (_mm512_set1_epi16(v[5]), _mm512_set1_epi16(v[11]));
        let entries = [
            _mm512_sub_epi16(a, sixth),
            _mm512_add_epi16(a, sixth),
            _mm512_sub_epi16(b, twelfth),
            _mm512_add_epi16(b, twelfth),
            last,
        ];
        for (to, entries) in table.as_chunks_mut::<64>().0.iter_mut().zip(entries) {
            // SAFETY: 64 bytes.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), entries) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_hold_every_signed_sum() {
        if !crate::x86_64::Machine::detect().iter().any(|m| m.name() == "avx512") {
            return;
        }
        let mut values = [0i16; 2 * COLUMNS];
        for extreme in [false, true] {
            for (i, v) in values.iter_mut().enumerate() {
                *v = if extreme { -255 } else { (i as i16 * 97) % 511 - 255 };
            }
            let mut tables = [0u8; 2 * BYTES];
            // SAFETY: checked above.
            unsafe { build(&values, &mut tables) };
            let entry = |word: usize, i: usize| {
                let at = word * BYTES + 2 * i;
                i32::from(i16::from_le_bytes([tables[at], tables[at + 1]]))
            };
            for word in 0..2 {
                for (first, window, len) in [(0, 0, 6), (64, 6, 6), (128, 12, 4)] {
                    for e in 0..1usize << len {
                        let want: i32 = (0..len)
                            .map(|i| (2 * (e >> i & 1) as i32 - 1) * i32::from(values[word * COLUMNS + window + i]))
                            .sum();
                        assert_eq!(entry(word, first + e), want, "word {word} window {window} pattern {e:b}");
                    }
                }
            }
        }
    }
}
