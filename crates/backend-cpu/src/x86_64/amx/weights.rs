//! Weights as bytes: one record becomes the tiles that all activation rows meet.
//!
//! A word of bits holds 16 columns of 32 rows. `vpmultishiftqb` gives each byte of a vector any eight bits of its quadword,
//! so that it begins with the bit of its own column. One more instruction makes that the weight: `vgf2p8affineqb` for
//! one bit; for two, once their planes are joined by halves of bytes, a lookup in 64 (`vpermb`).

use super::activations::SHIFT;
use super::tiles::ROW;
use crate::layout::{BLOCK, Codes, GROUP, Layout};
use std::arch::x86_64::*;

/// 64 columns of 16 weight rows: four columns of each in a row.
pub(super) type Tile = [[u8; ROW]; 16];

/// The values (code - center) of a record.
#[repr(C, align(64))]
pub(super) struct Bytes {
    /// `[64 columns][weight rows from 0, from 16]`.
    pub tiles: [[Tile; 2]; GROUP / 64],
    /// What the sums begin with: the shift of the activations, taken off.
    pub before: [[i32; 16]; 2],
}

/// Four columns for each byte of a quadword.
type Windows = [u8; 64];

/// For one bit: of the tile that begins with word `first` of a quadword, from column `column` of the word on. The other
/// word of the tile is two further, see `BITS1_ORDER`.
const fn alternate(first: usize, column: usize) -> Windows {
    let mut windows = [0; 64];
    let mut i = 0;
    while i < 64 {
        windows[i] = (16 * (first + i % 8 / 4 * 2) + column + i % 4) as u8;
        i += 1;
    }
    windows
}

/// For two bits, joined by halves of bytes: byte `byte` of words that stand in pairs, see `BITS2_ORDER`.
const fn paired(byte: usize) -> Windows {
    let mut windows = [0; 64];
    let mut i = 0;
    while i < 64 {
        windows[i] = (16 * (i / 8 % 2 * 2 + i % 8 / 4) + 8 * byte + i % 4) as u8;
        i += 1;
    }
    windows
}

static ALTERNATE: [[Windows; 4]; 2] = [
    [alternate(0, 0), alternate(0, 4), alternate(0, 8), alternate(0, 12)],
    [alternate(1, 0), alternate(1, 4), alternate(1, 8), alternate(1, 12)],
];

static PAIRED: [Windows; 2] = [paired(0), paired(1)];

/// The value of two bits that stand at places 0 and 4, whatever stands beside them.
static VALUES: [u8; 64] = {
    let mut values = [0; 64];
    let mut i = 0;
    while i < 64 {
        values[i] = ((i & 1) as i8 + 2 * (i >> 4 & 1) as i8 - 1) as u8;
        i += 1;
    }
    values
};

impl Bytes {
    pub(super) fn new() -> Self {
        Bytes { tiles: [[[[0; ROW]; 16]; 2]; GROUP / 64], before: [[0; 16]; 2] }
    }

    /// Takes a record in, and fetches into the second-level cache what lies `ahead` of it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni,gfni")]
    pub(super) fn expand(&mut self, layout: &Layout, record: &[u8], ahead: usize) {
        let words = record[..layout.code_bytes()].as_chunks::<{ 2 * BLOCK }>().0;
        for word in words {
            _mm_prefetch::<_MM_HINT_T1>(word.as_ptr().wrapping_add(ahead).cast());
        }
        match layout.codes {
            Codes::Bits1 => self.bits1(words),
            Codes::Bits2 => self.bits2(words),
            Codes::Block4 => self.block4(words),
            Codes::Block8 => self.block8(words),
            Codes::Dense(_) => unreachable!("dense records meet float activations"),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni,gfni")]
    fn bits1(&mut self, words: &[[u8; 2 * BLOCK]]) {
        // Bit 0 of a byte is its weight. 1 is the byte 1 and 0 is 255: all higher bits are the opposite.
        let spread = _mm512_set1_epi64(0x0001_0101_0101_0101);
        let mut sums = Sums::new();
        for (u, word) in words.iter().enumerate() {
            let bits = load(word);
            for (v, windows) in ALTERNATE.iter().enumerate() {
                for (j, windows) in windows.iter().enumerate() {
                    let bytes = _mm512_multishift_epi64_epi8(load(windows), bits);
                    let bytes = _mm512_gf2p8affine_epi64_epi8::<0xff>(bytes, spread);
                    self.put(&mut sums, 4 * u + j, v, bytes);
                }
            }
        }
        self.finish(&sums);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni,gfni")]
    fn bits2(&mut self, words: &[[u8; 2 * BLOCK]]) {
        const SELECT: i32 = 0xe4;
        let halves = _mm512_set1_epi8(15);
        let values = load(&VALUES);
        let mut sums = Sums::new();
        for (u, [low, high]) in words.as_chunks::<2>().0.iter().enumerate() {
            let (low, high) = (load(low), load(high));
            // Columns 0 to 3 and 8 to 11 of a word, then the others: four low bits and four high ones in a byte.
            let joined = [
                _mm512_ternarylogic_epi64::<SELECT>(low, _mm512_slli_epi16::<4>(high), halves),
                _mm512_ternarylogic_epi64::<SELECT>(_mm512_srli_epi16::<4>(low), high, halves),
            ];
            for (odd, joined) in joined.into_iter().enumerate() {
                for v in 0..2 {
                    let pairs = match v {
                        0 => _mm512_unpacklo_epi64(joined, joined),
                        _ => _mm512_unpackhi_epi64(joined, joined),
                    };
                    for (byte, windows) in PAIRED.iter().enumerate() {
                        let codes = _mm512_multishift_epi64_epi8(load(windows), pairs);
                        let bytes = _mm512_permutexvar_epi8(codes, values);
                        self.put(&mut sums, 4 * u + 2 * byte + odd, v, bytes);
                    }
                }
            }
        }
        self.finish(&sums);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni,gfni")]
    fn block4(&mut self, words: &[[u8; 2 * BLOCK]]) {
        let (halves, center) = (_mm512_set1_epi8(15), _mm512_set1_epi8(8));
        let mut sums = Sums::new();
        for (row, word) in words.iter().enumerate() {
            let word = load(word);
            let low = _mm512_sub_epi8(_mm512_and_si512(word, halves), center);
            let high = _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16::<4>(word), halves), center);
            self.put_pairs(&mut sums, row, low, high);
        }
        self.finish(&sums);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni,gfni")]
    fn block8(&mut self, words: &[[u8; 2 * BLOCK]]) {
        let mut sums = Sums::new();
        for (row, [first, second]) in words.as_chunks::<2>().0.iter().enumerate() {
            self.put_pairs(&mut sums, row, load(first), load(second));
        }
        self.finish(&sums);
    }

    /// Two columns of 32 weight rows, and the next two: a row of both tiles.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni,gfni")]
    fn put_pairs(&mut self, sums: &mut Sums, row: usize, first: __m512i, second: __m512i) {
        let (low, high) = (_mm512_unpacklo_epi16(first, second), _mm512_unpackhi_epi16(first, second));
        let places = [_mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15)];
        for (v, places) in places.into_iter().enumerate() {
            self.put(sums, row, v, _mm512_permutex2var_epi64(low, places, high));
        }
    }

    /// Four columns of 16 weight rows, the `row`th four of the record.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni,gfni")]
    fn put(&mut self, sums: &mut Sums, row: usize, v: usize, bytes: __m512i) {
        sums.0[v] = _mm512_dpbusd_epi32(sums.0[v], _mm512_set1_epi8(SHIFT), bytes);
        let to = &mut self.tiles[row / 16][v][row % 16];
        // SAFETY: 64 bytes.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), bytes) };
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni,gfni")]
    fn finish(&mut self, sums: &Sums) {
        for (to, sums) in self.before.iter_mut().zip(sums.0) {
            let before = _mm512_sub_epi32(_mm512_setzero_si512(), sums);
            // SAFETY: 16 integers.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), before) };
        }
    }
}

/// Sums of the weights of each row, times the shift.
struct Sums([__m512i; 2]);

impl Sums {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        Sums([_mm512_setzero_si512(); 2])
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
