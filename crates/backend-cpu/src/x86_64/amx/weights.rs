//! Weights as bytes: one record becomes the tiles that all activation rows meet.
//!
//! A word of bits holds 16 columns of 32 rows. `vpmultishiftqb` gives each byte of a vector any eight bits of its quadword,
//! so that it begins with the bit of its own column. One more instruction makes that the weight: `vgf2p8affineqb` for
//! one bit; for two, once their planes are joined by halves of bytes, a lookup in 64 (`vpermb`).

use super::tiles::{ROW, Tile};
use crate::layout::{BLOCK, GROUP};
use std::arch::x86_64::*;

/// The values (code - center) of a record: `[64 columns][weight rows from 0, from 16]`.
#[repr(C, align(64))]
pub(super) struct Bytes(pub [[Tile; 2]; GROUP / 64]);

impl Bytes {
    pub(super) const ZERO: Bytes = Bytes([[[[0; ROW]; 16]; 2]; GROUP / 64]);

    /// 16 columns, the `u`th of the record.
    #[inline(always)]
    pub(super) fn columns(&mut self, u: usize) -> Columns<'_> {
        let [first, second] = &mut self.0[u / 4];
        Columns([&mut first.as_chunks_mut::<4>().0[u % 4], &mut second.as_chunks_mut::<4>().0[u % 4]])
    }

    /// Sums of each weight row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn sums(&self, columns: usize) -> [__m512i; 2] {
        let mut sums = [_mm512_setzero_si512(); 2];
        for row in 0..columns / 4 {
            for (sum, tile) in sums.iter_mut().zip(&self.0[row / 16]) {
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_set1_epi8(1), load(&tile[row % 16]));
            }
        }
        sums
    }
}

/// 16 columns of both tiles.
pub(super) struct Columns<'a>([&'a mut [[u8; ROW]; 4]; 2]);

impl Columns<'_> {
    /// Four columns of 16 weight rows.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn put(&mut self, v: usize, row: usize, bytes: __m512i) {
        // SAFETY: 64 bytes.
        unsafe { _mm512_storeu_si512(self.0[v][row].as_mut_ptr().cast(), bytes) };
    }

    /// Two columns of 32 weight rows, and the next two.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn put_pairs(&mut self, row: usize, first: __m512i, second: __m512i) {
        let (low, high) = (_mm512_unpacklo_epi16(first, second), _mm512_unpackhi_epi16(first, second));
        let places = [_mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15)];
        for (v, places) in places.into_iter().enumerate() {
            self.put(v, row, _mm512_permutex2var_epi64(low, places, high));
        }
    }
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

/// How a layout's codes become bytes.
pub(super) trait Expand {
    /// Bytes of 16 columns of 32 rows.
    const UNIT: usize;

    /// Expands 16 columns.
    ///
    /// # Safety
    /// The machine must have what [`int_blocks`](super::int_blocks) is compiled for.
    unsafe fn expand(unit: &[u8], to: Columns<'_>);

    /// Sums of the values of each row, once all columns are expanded.
    ///
    /// # Safety
    /// As `expand`.
    unsafe fn sums(codes: &[u8], bytes: &Bytes) -> [__m512i; 2];
}

pub(super) struct Bits1;
pub(super) struct Bits2;
pub(super) struct Block4;
pub(super) struct Block8;

impl Expand for Bits1 {
    const UNIT: usize = 2 * BLOCK;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn expand(unit: &[u8], mut to: Columns<'_>) {
        // Bit 0 of a byte is its weight. 1 is the byte 1 and 0 is 255: all higher bits are the opposite.
        let spread = _mm512_set1_epi64(0x0001_0101_0101_0101);
        let bits = words::<1>(unit)[0];
        for (v, windows) in ALTERNATE.iter().enumerate() {
            for (j, windows) in windows.iter().enumerate() {
                let value = _mm512_multishift_epi64_epi8(load(windows), bits);
                to.put(v, j, _mm512_gf2p8affine_epi64_epi8::<0xff>(value, spread));
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bitalg")]
    unsafe fn sums(codes: &[u8], _: &Bytes) -> [__m512i; 2] {
        let mut ones = _mm512_setzero_si512();
        for unit in codes.chunks_exact(Self::UNIT) {
            ones = _mm512_add_epi16(ones, _mm512_popcnt_epi16(words::<1>(unit)[0]));
        }
        let columns = _mm512_set1_epi32(columns::<Self>(codes));
        let ones = [_mm512_and_si512(ones, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32::<16>(ones)];
        [
            _mm512_sub_epi32(_mm512_add_epi32(ones[0], ones[0]), columns),
            _mm512_sub_epi32(_mm512_add_epi32(ones[1], ones[1]), columns),
        ]
    }
}

impl Expand for Bits2 {
    const UNIT: usize = 4 * BLOCK;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn expand(unit: &[u8], mut to: Columns<'_>) {
        const SELECT: i32 = 0xe4;
        let (halves, values) = (_mm512_set1_epi8(15), load(&VALUES));
        let [low, high] = words::<2>(unit);
        // Columns 0 to 3 and 8 to 11 of a word, then the others: four low bits and four high ones in a byte.
        let joined = [
            _mm512_ternarylogic_epi64::<SELECT>(low, _mm512_slli_epi16::<4>(high), halves),
            _mm512_ternarylogic_epi64::<SELECT>(_mm512_srli_epi16::<4>(low), high, halves),
        ];
        for (odd, joined) in joined.into_iter().enumerate() {
            let pairs = [_mm512_unpacklo_epi64(joined, joined), _mm512_unpackhi_epi64(joined, joined)];
            for (v, pairs) in pairs.into_iter().enumerate() {
                for (byte, windows) in PAIRED.iter().enumerate() {
                    let codes = _mm512_multishift_epi64_epi8(load(windows), pairs);
                    to.put(v, 2 * byte + odd, _mm512_permutexvar_epi8(codes, values));
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bitalg")]
    unsafe fn sums(codes: &[u8], _: &Bytes) -> [__m512i; 2] {
        let mut sums = _mm512_setzero_si512();
        for unit in codes.chunks_exact(Self::UNIT) {
            let [low, high] = words::<2>(unit);
            let (low, high) = (_mm512_popcnt_epi16(low), _mm512_popcnt_epi16(high));
            sums = _mm512_add_epi16(_mm512_add_epi16(sums, low), _mm512_add_epi16(high, high));
        }
        // Four words of one tile, then four of the other: see `BITS2_ORDER`.
        let columns = _mm512_set1_epi32(columns::<Self>(codes));
        let zero = _mm512_setzero_si512();
        [
            _mm512_sub_epi32(_mm512_unpacklo_epi16(sums, zero), columns),
            _mm512_sub_epi32(_mm512_unpackhi_epi16(sums, zero), columns),
        ]
    }
}

impl Expand for Block4 {
    const UNIT: usize = 8 * BLOCK;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn expand(unit: &[u8], mut to: Columns<'_>) {
        let (halves, center) = (_mm512_set1_epi8(15), _mm512_set1_epi8(8));
        for (row, word) in words::<4>(unit).into_iter().enumerate() {
            let low = _mm512_sub_epi8(_mm512_and_si512(word, halves), center);
            let high = _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16::<4>(word), halves), center);
            to.put_pairs(row, low, high);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn sums(codes: &[u8], bytes: &Bytes) -> [__m512i; 2] {
        bytes.sums(columns::<Self>(codes) as usize)
    }
}

impl Expand for Block8 {
    const UNIT: usize = 16 * BLOCK;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn expand(unit: &[u8], mut to: Columns<'_>) {
        for (row, [first, second]) in words::<8>(unit).as_chunks::<2>().0.iter().enumerate() {
            to.put_pairs(row, *first, *second);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn sums(codes: &[u8], bytes: &Bytes) -> [__m512i; 2] {
        bytes.sums(columns::<Self>(codes) as usize)
    }
}

/// Columns of a record.
#[inline]
fn columns<E: Expand + ?Sized>(codes: &[u8]) -> i32 {
    (codes.len() / E::UNIT * 16) as i32
}

/// The vectors of a unit.
#[inline]
#[target_feature(enable = "avx512f")]
fn words<const N: usize>(unit: &[u8]) -> [__m512i; N] {
    let mut words = [_mm512_setzero_si512(); N];
    for (word, bytes) in words.iter_mut().zip(unit.as_chunks::<64>().0) {
        *word = load(bytes);
    }
    words
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
