//! `PTQ1_0`: ternary weights, five to a byte, one scale per 128, scale **last** (GGUF id 143).
//!
//! ```text
//! byte   0        15 16        23 24  25 26   27
//!      [ 16 x 5 digits | 8 x 5 digits | 2 x 4 | d (f16 LE) ]
//! element e       0..80     byte e%16,            digit e/16
//!                80..120    byte 16 + (e-80)%8,   digit (e-80)/8
//!               120..128    byte 24 + (e-120)%2,  digit (e-120)/2
//! digit 0 -> -d, 1 -> 0, 2 -> +d
//! ```
//!
//! Five digits form the integer `v = sum digit_n * 3^(4-n)` below 243, stored as `ceil(v * 256 / 243)`. Digit n of a
//! byte b is then `(((b * 3^n) mod 256) * 3) >> 8`, which yields 0..=2 for all 256 bytes. The two four-digit bytes
//! are packed as five digits with a trailing zero. Source: the PrismML fork of llama.cpp (after mainline's TQ1_0).

use super::{Block, Params};
use crate::format::Format;

const BYTES: usize = 28;

/// Row of the format table.
pub const ROW: Block = Block {
    format: Format::Ptq1_0,
    name: "PTQ1_0",
    gguf_id: 143,
    elements: 128,
    bytes: BYTES,
    bits: 2,
    max_code: 2,
    scale_of_d: 1.0,
    bias_of_d: Some(-1.0),
    read,
    write,
};

/// The three runs of bytes: (first byte, bytes, digits per byte, first element).
const RUNS: [(usize, usize, usize, usize); 3] = [(0, 16, 5, 0), (16, 8, 5, 80), (24, 2, 4, 120)];

const _: () = {
    let last = RUNS[RUNS.len() - 1];
    assert!(last.3 + last.1 * last.2 == ROW.elements && last.0 + last.1 + 2 == BYTES);
};

/// `DIGITS[n][b]` is digit n of byte b.
static DIGITS: [[u8; 256]; 5] = digits();

const fn digits() -> [[u8; 256]; 5] {
    let mut table = [[0; 256]; 5];
    let mut power = 1;
    let mut n = 0;
    while n < 5 {
        let mut b = 0;
        while b < 256 {
            table[n][b] = ((((b * power) % 256) * 3) >> 8) as u8;
            b += 1;
        }
        power *= 3;
        n += 1;
    }
    table
}

fn read(block: &[u8], codes: &mut [u8]) -> Params {
    for (byte, bytes, digits, element) in RUNS {
        for (n, table) in DIGITS.iter().enumerate().take(digits) {
            let out = &mut codes[element + n * bytes..element + (n + 1) * bytes];
            for (code, &b) in out.iter_mut().zip(&block[byte..byte + bytes]) {
                *code = table[usize::from(b)];
            }
        }
    }
    Params::d_at(block, 26)
}

fn write(codes: &[u8], params: Params, block: &mut [u8]) {
    for (byte, bytes, digits, element) in RUNS {
        for t in 0..bytes {
            let value = (0..5).fold(0u32, |v, n| {
                let digit = if n < digits { codes[element + n * bytes + t] } else { 0 };
                3 * v + u32::from(digit)
            });
            block[byte + t] = ((value * 256).div_ceil(243)) as u8;
        }
    }
    block[26..28].copy_from_slice(&params.d.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_value_decodes_to_three_digits_as_the_formula_says() {
        for b in 0..=255u32 {
            let mut block = [b as u8; BYTES];
            block[26..].copy_from_slice(&[0, 0x3c]);
            let mut codes = [9; 128];
            assert_eq!(read(&block, &mut codes).d, 0x3c00);
            for (e, &code) in codes.iter().enumerate() {
                let n = match e {
                    0..80 => e / 16,
                    80..120 => (e - 80) / 8,
                    _ => (e - 120) / 2,
                };
                assert_eq!(u32::from(code), (((b * 3u32.pow(n as u32)) % 256) * 3) >> 8);
                assert!(code <= 2);
            }
        }
    }

    #[test]
    fn all_243_digit_strings_survive() {
        for v in 0..243u32 {
            let digit = |n: u32| ((v / 3u32.pow(4 - n)) % 3) as u8;
            let codes: Vec<u8> = (0..128u32)
                .map(|e| match e {
                    0..80 => digit(e / 16),
                    80..120 => digit((e - 80) / 8),
                    _ => digit((e - 120) / 2),
                })
                .collect();
            let mut block = [0; BYTES];
            write(&codes, Params { d: 0xbc00, m: 0 }, &mut block);
            let mut back = [9; 128];
            assert_eq!(read(&block, &mut back).d, 0xbc00);
            assert_eq!(back.as_slice(), codes);
        }
    }

    #[test]
    fn element_places_do_not_overlap() {
        let zero = [0u8; 128];
        let mut base = [0; BYTES];
        write(&zero, Params { d: 0, m: 0 }, &mut base);
        for e in 0..128 {
            let mut codes = zero;
            codes[e] = 2;
            let mut block = base;
            write(&codes, Params { d: 0, m: 0 }, &mut block);
            let want = match e {
                0..80 => e % 16,
                80..120 => 16 + (e - 80) % 8,
                _ => 24 + (e - 120) % 2,
            };
            let changed: Vec<_> = (0..BYTES).filter(|&i| block[i] != base[i]).collect();
            assert_eq!(changed, [want], "element {e}");
        }
    }
}
