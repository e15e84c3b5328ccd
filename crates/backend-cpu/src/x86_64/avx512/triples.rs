//! Ternary weights, three in five bits.
//!
//! 27 of the 32 patterns of five bits are three weights, and `vpermw` looks five bits up in 32 entries of 16 bits. A word
//! of 16 bits holds three triples, so 14 words are 126 weights of a group of 128; the highest bits of the first four are
//! the last two.
//!
//! ```text
//! word j    bits 0..5, 5..10, 10..15: columns 9j, 9j+1, 9j+2, then 9j+3.., 9j+6..: code + 3 code + 9 code
//! words 0..4, bit 15: bits 0..4 of code(126) + 3 code(127)
//! tables of 128 columns: 43 x 32 x i16, sums of (code - 1) x for every pattern
//! ```

use super::bits::Lines;
use crate::layout::GROUP;
use std::arch::x86_64::*;

/// Lines of codes in a record: a word for each of 32 rows.
pub(super) const LINES: usize = 14;

/// Triples of a group; the last has two columns.
const TRIPLES: usize = 43;

/// Bytes of the tables of a group.
pub(in crate::x86_64) const BYTES: usize = TRIPLES * 64;

/// The three weights of every pattern, first columns together.
const WEIGHTS: [[i16; 32]; 3] = weights();

const fn weights() -> [[i16; 32]; 3] {
    let mut weights = [[0; 32]; 3];
    let mut e = 0;
    while e < 32 {
        weights[0][e] = (e % 3) as i16 - 1;
        weights[1][e] = (e / 3 % 3) as i16 - 1;
        weights[2][e] = (e / 9) as i16 - 1;
        e += 1;
    }
    weights
}

/// The tables of whole groups.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::x86_64) fn build(values: &[i16], tables: &mut [u8]) {
    let mut weights = [_mm512_setzero_si512(); 3];
    for (to, from) in weights.iter_mut().zip(&WEIGHTS) {
        // SAFETY: 32 words.
        *to = unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
    }
    for (values, tables) in values.as_chunks::<GROUP>().0.iter().zip(tables.as_chunks_mut::<BYTES>().0) {
        for (values, table) in values.chunks(3).zip(tables.as_chunks_mut::<64>().0) {
            let mut sum = _mm512_setzero_si512();
            for (value, weights) in values.iter().zip(weights) {
                sum = _mm512_add_epi16(sum, _mm512_mullo_epi16(_mm512_set1_epi16(*value), weights));
            }
            // SAFETY: 64 bytes.
            unsafe { _mm512_storeu_si512(table.as_mut_ptr().cast(), sum) };
        }
    }
}

/// Looks up one group of `B` blocks against `M` activation rows.
///
/// # Safety
/// Each stream must hold [`LINES`] lines, and each of `tables` those of a group.
#[expect(clippy::needless_range_loop, reason = "the index says which lines, too")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn look_up<const B: usize, const M: usize, const TURNS: bool>(
    lines: Lines<B>,
    tables: [*const u8; M],
) -> [[__m512i; M]; B] {
    // Keeps the bits of the second operand under the third, beside those of the first.
    const MERGE: i32 = 0xf8;
    let mut sums = [[_mm512_setzero_si512(); M]; B];
    let (two, four, eight) = (_mm512_set1_epi16(2), _mm512_set1_epi16(4), _mm512_set1_epi16(8));
    for b in 0..B {
        let mut words = [_mm512_setzero_si512(); 4];
        for (i, word) in words.iter_mut().enumerate() {
            // SAFETY: lines 0 to 3 of the stream.
            *word = unsafe { _mm512_loadu_si512(lines.place(b, i).cast()) };
        }
        let mut last = _mm512_srli_epi16::<15>(words[0]);
        last = _mm512_ternarylogic_epi32::<MERGE>(last, _mm512_srli_epi16::<14>(words[1]), two);
        last = _mm512_ternarylogic_epi32::<MERGE>(last, _mm512_srli_epi16::<13>(words[2]), four);
        last = _mm512_ternarylogic_epi32::<MERGE>(last, _mm512_srli_epi16::<12>(words[3]), eight);
        for m in 0..M {
            // SAFETY: the last table of the group.
            let entries = unsafe { _mm512_loadu_si512(tables[m].add((TRIPLES - 1) * 64).cast()) };
            sums[b][m] = _mm512_permutexvar_epi16(last, entries);
        }
    }
    for j in 0..LINES {
        let mut entries = [[_mm512_setzero_si512(); 3]; M];
        for m in 0..M {
            // SAFETY: three tables for each of the words, and one more.
            entries[m] = unsafe { tables[m].add(j * 3 * 64).cast::<[__m512i; 3]>().read_unaligned() };
        }
        for b in 0..B {
            // SAFETY: line j of the stream is below LINES.
            let word = unsafe { _mm512_loadu_si512(lines.at::<TURNS>(b, j).cast()) };
            let (second, third) = (_mm512_srli_epi16::<5>(word), _mm512_srli_epi16::<10>(word));
            for m in 0..M {
                let [x, y, z] = entries[m];
                let both = _mm512_add_epi16(_mm512_permutexvar_epi16(word, x), _mm512_permutexvar_epi16(second, y));
                let all = _mm512_add_epi16(both, _mm512_permutexvar_epi16(third, z));
                sums[b][m] = _mm512_add_epi16(sums[b][m], all);
            }
        }
    }
    sums
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::layout::{BLOCK, LINE};
    use crate::x86_64::guard::{Guarded, detected, numbers};

    /// Both ends of what the loop reads, and the sums themselves, at the largest values too. What is fetched ahead lies
    /// behind the end, where nothing may be read.
    #[test]
    fn sums_are_exact_and_nothing_behind_the_codes_or_tables_is_read() {
        if !detected("avx512") {
            return;
        }
        let mut random = numbers(3);
        for extreme in [false, true] {
            let values: Vec<i16> =
                (0..GROUP).map(|_| if extreme { 255 } else { (random() % 511) as i16 - 255 }).collect();
            let weights: Vec<[i32; GROUP]> = (0..BLOCK)
                .map(|_| std::array::from_fn(|_| if extreme { 1 } else { (random() % 3) as i32 - 1 }))
                .collect();
            let mut codes = vec![0u8; LINES * LINE];
            for (lane, weights) in weights.iter().enumerate() {
                let code = |c: usize| (weights[c] + 1) as u16;
                let mut words = [0u16; LINES];
                for t in 0..TRIPLES - 1 {
                    words[t / 3] |= (code(3 * t) + 3 * code(3 * t + 1) + 9 * code(3 * t + 2)) << (5 * (t % 3));
                }
                let last = code(126) + 3 * code(127);
                for (j, word) in words.iter_mut().enumerate() {
                    *word |= if j < 4 { last >> j << 15 } else { 0 };
                    codes[j * LINE + 2 * lane..][..2].copy_from_slice(&word.to_le_bytes());
                }
            }
            let mut table = vec![0; BYTES];
            // SAFETY: detected above.
            unsafe { build(&values, &mut table) };
            let (guarded_codes, guarded_table) = (Guarded::new(&codes), Guarded::new(&table));
            // SAFETY: detected above; the stream and the table have exactly the lengths that are asked for.
            let lanes: [i16; BLOCK] = unsafe {
                let (stream, table) = (guarded_codes.start(codes.len()), guarded_table.start(table.len()));
                let lines = Lines { starts: [stream], line: LINE, ahead: 4096 };
                std::mem::transmute(look_up::<1, 1, false>(lines, [table]))
            };
            for (weights, got) in weights.iter().zip(lanes) {
                let want: i32 = weights.iter().zip(&values).map(|(w, x)| w * i32::from(*x)).sum();
                assert_eq!(i32::from(got), want);
            }
        }
    }
}
