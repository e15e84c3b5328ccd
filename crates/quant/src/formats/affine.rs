//! MLX affine codes: 1, 2, 4 or 8 bits, least significant first, in little-endian u32 words.
//!
//! ```text
//! word       element c of a row lies in word c / (32/bits), at shift bits * (c mod (32/bits))
//! as bytes   1 bit:  byte k, bit j         = element 8k + j
//!            2 bit:  byte k, bits 2j..2j+2 = element 4k + j
//!            4 bit:  byte k, low, high     = elements 2k, 2k+1
//!            8 bit:  byte k                = element k
//! scales     row-major [rows, cols/group], biases likewise; w = scale * code + bias
//! ```
//!
//! Since the words are little-endian the byte view needs no word at all, so rows may start at any address.
//! Source: `mlx/ops.cpp` and the Metal `quantized.h` of the PrismML fork; stock MLX packs 1 bit the same way.

/// Unpacks `codes.len()` codes of `bits` bits from the start of `packed`.
///
/// # Panics
/// When `bits` is not 1, 2, 4 or 8, or `packed` is too short.
pub fn read_codes(bits: u8, packed: &[u8], codes: &mut [u8]) {
    let per_byte = usize::from(8 / bits);
    let packed = &packed[..codes.len() / per_byte];
    match bits {
        1 => {
            for (out, &byte) in codes.chunks_exact_mut(8).zip(packed) {
                for (j, code) in out.iter_mut().enumerate() {
                    *code = (byte >> j) & 1;
                }
            }
        }
        2 => {
            for (out, &byte) in codes.chunks_exact_mut(4).zip(packed) {
                for (j, code) in out.iter_mut().enumerate() {
                    *code = (byte >> (2 * j)) & 3;
                }
            }
        }
        4 => {
            for (out, &byte) in codes.chunks_exact_mut(2).zip(packed) {
                out[0] = byte & 15;
                out[1] = byte >> 4;
            }
        }
        8 => codes.copy_from_slice(packed),
        _ => panic!("{bits}-bit codes do not exist"),
    }
}

/// Packs codes of `bits` bits to the start of `packed`; the inverse of [`read_codes`].
///
/// # Panics
/// When `bits` is not 1, 2, 4 or 8, or `packed` is too short.
pub fn write_codes(bits: u8, codes: &[u8], packed: &mut [u8]) {
    assert!(matches!(bits, 1 | 2 | 4 | 8), "{bits}-bit codes do not exist");
    let per_byte = usize::from(8 / bits);
    let packed = &mut packed[..codes.len() / per_byte];
    for (byte, codes) in packed.iter_mut().zip(codes.chunks_exact(per_byte)) {
        *byte = codes.iter().rev().fold(0, |acc, &code| if bits == 8 { code } else { (acc << bits) | code });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_order_is_that_of_the_word_rule() {
        let words: [u32; 2] = [0x89ab_cdef, 0x0123_4567];
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        for bits in [1u8, 2, 4, 8] {
            let per_word = 32 / usize::from(bits);
            let mut codes = vec![0; 2 * per_word];
            read_codes(bits, &bytes, &mut codes);
            for (c, &code) in codes.iter().enumerate() {
                let word = words[c / per_word];
                let want = (u64::from(word) >> (usize::from(bits) * (c % per_word))) & ((1 << bits) - 1);
                assert_eq!(u64::from(code), want, "{bits}-bit element {c}");
            }
            let mut back = vec![0; 8];
            write_codes(bits, &codes, &mut back);
            assert_eq!(back, bytes);
        }
    }
}
