//! Lookup tables: four activations become 16 sums, one for each pattern of four weight bits.
//!
//! A pattern selects the activations whose bit is set. Their sum, less the smallest that any pattern gives (the sum of
//! the negative ones), lies in 0..=1020 for nine-bit activations: ten bits, five for each of two byte tables. Eight
//! looked-up bytes of at most 31 then add up inside a byte. Eight-bit activations use the same tables.
//!
//! ```text
//! table of a quad: 16 low bytes (sum & 31) | 16 high bytes (sum >> 5)
//! ```

use std::arch::x86_64::*;

/// Columns of a table.
pub(in crate::x86_64) const COLUMNS: usize = 4;

/// Bytes of a quad's table.
pub(in crate::x86_64) const BYTES: usize = 32;

/// Bit `i` of a pattern, as a mask over the 16 patterns.
const fn selects(i: u32) -> [i16; 16] {
    let mut mask = [0; 16];
    let mut e = 0;
    while e < 16 {
        mask[e as usize] = if (e >> i) & 1 == 1 { -1 } else { 0 };
        e += 1;
    }
    mask
}

static SELECTS: [[i16; 16]; 4] = [selects(0), selects(1), selects(2), selects(3)];

#[target_feature(enable = "avx2")]
pub(in crate::x86_64) fn build(values: &[i16], tables: &mut [u8]) {
    let masks = SELECTS.each_ref().map(|m| {
        // SAFETY: 16 values of 16 bits are 32 bytes.
        unsafe { _mm256_loadu_si256(m.as_ptr().cast()) }
    });
    let low_bits = _mm256_set1_epi16(31);
    for (quad, table) in values.as_chunks::<4>().0.iter().zip(tables.as_chunks_mut::<BYTES>().0) {
        let smallest: i16 = quad.iter().map(|v| v.min(&0)).sum();
        let mut sums = _mm256_set1_epi16(-smallest);
        for (mask, v) in masks.iter().zip(quad) {
            sums = _mm256_add_epi16(sums, _mm256_and_si256(*mask, _mm256_set1_epi16(*v)));
        }
        // Packing works within halves of the register: low 0..8, high 0..8, low 8..16, high 8..16.
        let bytes = _mm256_packus_epi16(_mm256_and_si256(sums, low_bits), _mm256_srli_epi16::<5>(sums));
        let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
        // SAFETY: a table is 32 bytes.
        unsafe { _mm256_storeu_si256(table.as_mut_ptr().cast(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_hold_every_sum() {
        if !crate::x86_64::Machine::detect().iter().any(|m| m.name() == "avx2") {
            return;
        }
        for quad in [[255, 255, 255, 255], [-255, -255, -255, -255], [3, -7, 200, -255], [0, 0, 0, 0], [-1, 0, 1, 2i16]]
        {
            let mut table = [0u8; BYTES];
            // SAFETY: checked above.
            unsafe { build(&quad, &mut table) };
            let smallest: i16 = quad.iter().map(|v| *v.min(&0)).sum();
            for e in 0..16 {
                let sum: i16 = (0..4).filter(|i| (e >> i) & 1 == 1).map(|i| quad[i]).sum();
                let got = i16::from(table[e]) + 32 * i16::from(table[16 + e]);
                assert_eq!(got, sum - smallest, "{quad:?} {e:04b}");
                assert!(table[e] < 32 && table[16 + e] < 32);
            }
        }
    }
}
