//! Ternary codes of two bits, three in five: the words that `x86_64::avx512::triples` looks up.
//!
//! Nine codes are 18 bits of the source and 15 of a word. Within a field of six bits, three codes `a + 4b + 16c` become
//! `a + 3b + 9c` by two subtractions that never borrow, so nine fields of a 64-bit word are done at once.

/// Words of a group of 128 columns.
pub(crate) const WORDS: usize = 14;

/// Bits of nine codes.
const NINE: usize = 18;

/// Three fields of six bits in each of three runs of 18.
const fn fields(bits: u64) -> u64 {
    let mut mask = 0;
    let mut field = 0;
    while field < 9 {
        mask |= bits << (6 * field);
        field += 1;
    }
    mask
}

/// Field `i` of each run.
const fn field(i: usize) -> u64 {
    (0x3f | 0x3f << NINE | 0x3f << (2 * NINE)) << (6 * i)
}

/// The words of 128 codes below 3, the first column lowest.
#[inline(always)]
pub(super) fn pack(codes: &[u64; 4]) -> [u16; WORDS] {
    let mut words = [0; WORDS];
    for (run, words) in words.chunks_mut(3).enumerate() {
        let from = 3 * NINE * run;
        let (at, shift) = (from / 64, from % 64);
        let low = codes[at] >> shift;
        let bits =
            if shift > 64 - 3 * NINE && at + 1 < codes.len() { low | codes[at + 1] << (64 - shift) } else { low };
        let bits = bits & fields(0x3f);
        let triples = bits - (bits >> 2 & fields(0xf)) - 3 * (bits >> 4 & fields(0x3));
        let close = triples & field(0) | (triples & field(1)) >> 1 | (triples & field(2)) >> 2;
        for (i, word) in words.iter_mut().enumerate() {
            *word = (close >> (NINE * i)) as u16 & 0x7fff;
        }
    }
    let last = codes[3] >> 60;
    let pair = (last & 3) + 3 * (last >> 2);
    for (i, word) in words.iter_mut().take(4).enumerate() {
        *word |= ((pair >> i) as u16) << 15;
    }
    words
}

/// Whether none of these codes of two bits is 3.
pub(super) fn are_ternary(codes: &[u8]) -> bool {
    let (words, rest) = codes.as_chunks::<8>();
    let threes = words.iter().fold(0, |threes, word| {
        let word = u64::from_le_bytes(*word);
        threes | word & word >> 1
    });
    let rest = rest.iter().fold(0, |threes, byte| threes | byte & byte >> 1);
    threes & 0x5555_5555_5555_5555 == 0 && rest & 0x55 == 0
}

/// Weights `code - 1` of a group, whose words are `words`.
pub(crate) fn unpack(words: &[u16; WORDS], mut put: impl FnMut(usize, i8)) {
    let mut triple = |first: usize, pattern: u16, count: usize| {
        let digits = [pattern % 3, pattern / 3 % 3, pattern / 9];
        digits.into_iter().take(count).enumerate().for_each(|(i, digit)| put(first + i, digit as i8 - 1));
    };
    let mut last = 0;
    for (j, word) in words.iter().enumerate() {
        (0..3).for_each(|t| triple(9 * j + 3 * t, word >> (5 * t) & 31, 3));
        last |= if j < 4 { word >> 15 << j } else { 0 };
    }
    triple(9 * WORDS, last, 2);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_the_codes() {
        let mut state = 1u64;
        for round in 0..200 {
            let codes: [u8; 128] = std::array::from_fn(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if round < 3 { round as u8 } else { ((state >> 40) % 3) as u8 }
            });
            let mut packed = [0u64; 4];
            for (c, code) in codes.iter().enumerate() {
                packed[c / 32] |= u64::from(*code) << (2 * (c % 32));
            }
            let mut got = [i8::MAX; 128];
            unpack(&pack(&packed), |c, weight| got[c] = weight);
            assert_eq!(got.map(|weight| (weight + 1) as u8), codes);
            assert!(are_ternary(&packed.map(u64::to_le_bytes).concat()));
        }
    }

    #[test]
    fn a_fourth_code_is_found_anywhere() {
        for place in 0..44 {
            let mut codes = [0b0110_0110u8; 11];
            assert!(are_ternary(&codes));
            codes[place / 4] |= 3 << (2 * (place % 4));
            assert!(!are_ternary(&codes), "at {place}");
        }
    }
}
