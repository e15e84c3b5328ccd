//! Quads of bytes: see [`crate::generic::quads`].
//!
//! AVX-512 alone has `vpmaddwd` for the even bytes as words, and then for the odd ones; with VNNI `vpdpbusd` takes the
//! bytes as they are, with the high bytes of the integers, and then with the low ones. Eight lanes of AVX2 were 8% faster
//! than floats for one row and 15% slower for many, see `lab/cpu`.

use super::avx2::F32x8;
use crate::generic::Integers;
use crate::generic::attention::{LINE, Page, Queries};
use crate::generic::kv::BLOCK;
use crate::generic::quads::{self, QUAD, Quads, Words};
use std::arch::x86_64::*;

/// Wraps intrinsics whose features the kernels' proof covers.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: values of these types are made only by kernels that run with a proof of the type's features; loads and
        // stores stay inside slices that were cut to length before.
        unsafe { $e }
    };
}

/// Bytes of a quad of 32-bit integers, for each quarter of a register: first and third as words, then second and fourth.
const WORDS: [i8; 16] = [0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1];

/// The same: of integers `256 high + low` the high bytes, then the low ones.
const BYTES: [i8; 16] = [1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1];

/// Sums of signed words at both places of the quads.
#[inline(always)]
fn totals_of_words(words: &Words) -> [i32; 2] {
    let mut totals = [0; 2];
    for quad in words.as_chunks::<4>().0 {
        for (total, pair) in totals.iter_mut().zip(quad) {
            *total += i32::from(*pair as i16) + (*pair as i32 >> 16);
        }
    }
    totals
}

/// Sums of signed bytes at both places of the quads.
#[inline(always)]
fn totals_of_bytes(words: &Words) -> [i32; 2] {
    let mut totals = [0; 2];
    for quad in words.as_chunks::<4>().0 {
        for (total, four) in totals.iter_mut().zip(quad) {
            for byte in four.to_le_bytes() {
                *total += i32::from(byte as i8);
            }
        }
    }
    totals
}

/// What both forms share.
macro_rules! common {
    () => {
        const COUNT: usize = 16;
        type Floats = __m512;
        #[inline(always)]
        fn splat(v: i32) -> Self {
            Self(simd!(_mm512_set1_epi32(v)))
        }
        #[inline(always)]
        fn zero() -> __m512 {
            simd!(_mm512_setzero_ps())
        }
        #[inline(always)]
        fn splat_float(v: f32) -> __m512 {
            simd!(_mm512_set1_ps(v))
        }
        #[inline(always)]
        fn halves(scales: &[u8; 128], at: usize) -> __m512 {
            simd!(_mm512_cvtph_ps(_mm256_loadu_si256(scales[at * 32..][..32].as_ptr().cast())))
        }
        #[inline(always)]
        fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
            simd!(_mm512_fmadd_ps(a, b, c))
        }
        #[inline(always)]
        fn mul(a: __m512, b: __m512) -> __m512 {
            simd!(_mm512_mul_ps(a, b))
        }
        #[inline(always)]
        fn add(a: __m512, b: __m512) -> __m512 {
            simd!(_mm512_add_ps(a, b))
        }
        #[inline(always)]
        fn load(from: &[f32], at: usize) -> __m512 {
            simd!(_mm512_loadu_ps(from[at * 16..][..16].as_ptr()))
        }
        #[inline(always)]
        fn store(v: __m512, to: &mut [f32], at: usize) {
            simd!(_mm512_storeu_ps(to[at * 16..][..16].as_mut_ptr(), v));
        }
    };
}

/// What the roundings of both forms share.
macro_rules! helpers {
    ($name:ident) => {
        impl $name {
            #[inline(always)]
            fn nearest(v: __m512) -> Self {
                Self(simd!(_mm512_cvtps_epi32(v)))
            }
            /// The same bytes in each quarter.
            #[inline(always)]
            fn quarters(bytes: &[i8; 16]) -> Self {
                Self(simd!(_mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast()))))
            }
            #[inline(always)]
            fn put(self, words: &mut Words, at: usize) {
                simd!(_mm512_storeu_si512(words[at * 16..][..16].as_mut_ptr().cast(), self.0));
            }
        }
    };
}

/// AVX-512 with BW: the even bytes as words, then the odd ones.
#[derive(Clone, Copy)]
pub(super) struct Words16(__m512i);

helpers!(Words16);

impl Quads for Words16 {
    common!();
    type Codes = [__m512i; 2];
    #[inline(always)]
    fn round(a: &[f32; BLOCK], b: &[f32; BLOCK], _signed: bool) -> Words {
        let mut words = [0; BLOCK];
        for i in 0..BLOCK / Self::COUNT {
            let ints = Self::nearest(Self::mul(Self::load(a, i), Self::load(b, i)));
            Self(simd!(_mm512_shuffle_epi8(ints.0, Self::quarters(&WORDS).0))).put(&mut words, i);
        }
        words
    }
    #[inline(always)]
    fn totals(words: &Words) -> [i32; 2] {
        totals_of_words(words)
    }
    #[inline(always)]
    fn total([even, odd]: [i32; 2]) -> i32 {
        even + odd
    }
    #[inline(always)]
    fn unsigned(line: &[u8; LINE], part: usize) -> Self::Codes {
        let v = simd!(_mm512_loadu_si512(line[part * 4 * Self::COUNT..][..4 * Self::COUNT].as_ptr().cast()));
        [simd!(_mm512_and_si512(v, _mm512_set1_epi16(255))), simd!(_mm512_srli_epi16::<8>(v))]
    }
    #[inline(always)]
    fn signed(line: &[u8; LINE], part: usize) -> Self::Codes {
        let v = simd!(_mm512_loadu_si512(line[part * 4 * Self::COUNT..][..4 * Self::COUNT].as_ptr().cast()));
        [simd!(_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(v))), simd!(_mm512_srai_epi16::<8>(v))]
    }
    #[inline(always)]
    fn nibbles(line: &[u8; LINE], part: usize, high: bool) -> Self::Codes {
        let v = simd!(_mm512_loadu_si512(line[part * 4 * Self::COUNT..][..4 * Self::COUNT].as_ptr().cast()));
        if high {
            [
                simd!(_mm512_and_si512(_mm512_srli_epi16::<4>(v), _mm512_set1_epi16(15))),
                simd!(_mm512_srli_epi16::<12>(v)),
            ]
        } else {
            [
                simd!(_mm512_and_si512(v, _mm512_set1_epi16(15))),
                simd!(_mm512_and_si512(_mm512_srli_epi16::<8>(v), _mm512_set1_epi16(15))),
            ]
        }
    }
    #[inline(always)]
    fn keys(sums: &mut [Self; 2], codes: Self::Codes, quad: &[u32; QUAD]) {
        let even = simd!(_mm512_madd_epi16(codes[0], _mm512_set1_epi32(quad[0] as i32)));
        let odd = simd!(_mm512_madd_epi16(codes[1], _mm512_set1_epi32(quad[1] as i32)));
        // One sum of both leaves registers for other queries.
        sums[0].0 = simd!(_mm512_add_epi32(sums[0].0, _mm512_add_epi32(even, odd)));
    }
    #[inline(always)]
    fn values(sums: &mut [Self; 2], codes: Self::Codes, quad: &[u32; QUAD]) {
        Self::keys(sums, codes, quad);
    }
    #[inline(always)]
    fn floats([even, odd]: [Self; 2]) -> Self::Floats {
        simd!(_mm512_cvtepi32_ps(_mm512_add_epi32(even.0, odd.0)))
    }
}

/// AVX-512 VNNI: the high bytes of the integers, then the low ones.
#[derive(Clone, Copy)]
pub(super) struct Bytes16(__m512i);

helpers!(Bytes16);

impl Quads for Bytes16 {
    common!();
    type Codes = __m512i;
    #[inline(always)]
    fn round(a: &[f32; BLOCK], b: &[f32; BLOCK], signed: bool) -> Words {
        let mut words = [0; BLOCK];
        for i in 0..BLOCK / Self::COUNT {
            let mut ints = Self::nearest(Self::mul(Self::load(a, i), Self::load(b, i)));
            // `v = 256 high + low` with signed bytes: `high` is the upper byte of `v + 128`, whose lower one is
            // `low` with its highest bit the other way round.
            if signed {
                ints = Self(simd!(_mm512_add_epi32(ints.0, _mm512_set1_epi32(128))));
            }
            ints = Self(simd!(_mm512_shuffle_epi8(ints.0, Self::quarters(&BYTES).0)));
            if signed {
                ints = Self(simd!(_mm512_xor_si512(ints.0, _mm512_set1_epi64(0x8080_8080_u64.cast_signed() << 32))));
            }
            ints.put(&mut words, i);
        }
        words
    }
    #[inline(always)]
    fn totals(words: &Words) -> [i32; 2] {
        totals_of_bytes(words)
    }
    #[inline(always)]
    fn total([high, low]: [i32; 2]) -> i32 {
        256 * high + low
    }
    #[inline(always)]
    fn unsigned(line: &[u8; LINE], part: usize) -> Self::Codes {
        simd!(_mm512_loadu_si512(line[part * 4 * Self::COUNT..][..4 * Self::COUNT].as_ptr().cast()))
    }
    #[inline(always)]
    fn signed(line: &[u8; LINE], part: usize) -> Self::Codes {
        Self::unsigned(line, part)
    }
    #[inline(always)]
    fn nibbles(line: &[u8; LINE], part: usize, high: bool) -> Self::Codes {
        let v = Self::unsigned(line, part);
        simd!(_mm512_and_si512(if high { _mm512_srli_epi16::<4>(v) } else { v }, _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn keys(sums: &mut [Self; 2], codes: Self::Codes, quad: &[u32; QUAD]) {
        for i in 0..2 {
            sums[i].0 = simd!(_mm512_dpbusd_epi32(sums[i].0, codes, _mm512_set1_epi32(quad[i] as i32)));
        }
    }
    #[inline(always)]
    fn values(sums: &mut [Self; 2], codes: Self::Codes, quad: &[u32; QUAD]) {
        for i in 0..2 {
            sums[i].0 = simd!(_mm512_dpbusd_epi32(sums[i].0, _mm512_set1_epi32(quad[i] as i32), codes));
        }
    }
    #[inline(always)]
    fn floats([high, low]: [Self; 2]) -> Self::Floats {
        simd!(_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<8>(high.0), low.0)))
    }
}

/// The loops over one of these types, `P` vectors at a time, compiled with some target features. Reach it only with a
/// proof that the machine has them.
macro_rules! integers {
    ($lanes:ty, $vectors:literal, $features:literal) => {{
        #[target_feature(enable = $features)]
        fn round(q: &mut Queries<'_>) {
            quads::round_queries::<F32x8, $lanes>(q);
        }
        #[target_feature(enable = $features)]
        fn attend(page: &Page<'_>, q: &mut Queries<'_>) {
            quads::attend::<F32x8, $lanes, $vectors>(page, q);
        }
        Integers {
            // SAFETY: whoever holds this table has a proof that the machine has these features.
            round_queries: |q| unsafe { round(q) },
            // SAFETY: as above.
            attend_page: |page, q| unsafe { attend(page, q) },
        }
    }};
}

pub(super) static WIDE: Integers = integers!(Words16, 2, "avx2,fma,f16c,avx512f,avx512bw,avx512vl");
pub(super) static EVEX: Integers = integers!(Bytes16, 2, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni");

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::super::Machine;
    use super::super::guard::numbers;
    use super::*;
    use crate::generic::kv::kv_store;
    use crate::generic::quads::Tokens;
    use crate::generic::vector::Array;
    use onebit_ops::{KvFormat, PAGE_ROWS};

    const DIM: usize = 96;
    const BLOCKS: usize = DIM / BLOCK;

    /// Pages of keys and values, and the stored numbers as they read back.
    struct Stored {
        format: KvFormat,
        pages: [Vec<u8>; 2],
        numbers: [Vec<Vec<f32>>; 2],
    }

    fn stored(format: KvFormat, random: &mut impl FnMut() -> u32) -> Stored {
        let mut pages = [(); 2].map(|()| vec![0xff; PAGE_ROWS * format.head_bytes(DIM)]);
        let mut numbers = [(); 2].map(|()| Vec::new());
        for (which, page) in pages.iter_mut().enumerate() {
            for token in 0..PAGE_ROWS {
                let mut x: Vec<f32> = (0..DIM).map(|_| random() as f32 / (1 << 22) as f32 - 1.5).collect();
                for (b, x) in x.chunks(BLOCK).enumerate() {
                    let mut block = [0; quads::MOST_BYTES];
                    kv_store::<Array>(format, x, &mut block[..format.head_bytes(BLOCK)]);
                    quads::place(format, DIM, which == 1, &block, page, (token, b));
                }
                format.round(&mut x);
                numbers[which].push(x);
            }
        }
        Stored { format, pages, numbers }
    }

    impl Stored {
        /// Attends with these queries; state and output of each.
        fn attend(&self, integers: &Integers, queries: &[f32], seen: &[usize]) -> Vec<([f32; 2], Vec<f32>)> {
            let count = seen.len();
            let (mut x, mut seen) = (queries.to_vec(), seen.to_vec());
            let (mut state, mut out) = (vec![[f32::NEG_INFINITY, 0.0]; count], vec![0.0; count * DIM]);
            let mut q = Queries {
                queries: &mut x,
                seen: &mut seen,
                state: &mut state,
                out: &mut out,
                scores: &mut vec![f32::NAN; count * PAGE_ROWS],
                wide: &mut [],
                words: &mut vec![[0; BLOCK]; count * BLOCKS],
                totals: &mut vec![[0; 2]; count * BLOCKS],
                units: &mut vec![0.0; count],
                ratios: &mut [[f32::NAN; PAGE_ROWS] as Tokens; BLOCKS],
                tops: &mut [0.0; BLOCKS],
                minima: &mut [[f32::NAN; PAGE_ROWS] as Tokens; BLOCKS],
            };
            (integers.round_queries)(&mut q);
            let [keys, values] = &self.pages;
            let page = Page { format: self.format, dim: DIM, keys, values, cold: true, next: keys };
            (integers.attend_page)(&page, &mut q);
            state.into_iter().zip(out.chunks(DIM).map(<[f32]>::to_vec)).collect()
        }

        /// What token `token` holds becomes NaN in block 1.
        fn poison(&mut self, which: usize, token: usize) {
            let block = [0xff; quads::MOST_BYTES];
            quads::place(self.format, DIM, which == 1, &block, &mut self.pages[which], (token, 1));
        }
    }

    fn tables() -> impl Iterator<Item = (&'static str, &'static Integers)> {
        Machine::detect().into_iter().filter_map(|m| Some((m.name(), m.kernels().integers?)))
    }

    fn queries(count: usize, random: &mut impl FnMut() -> u32) -> Vec<f32> {
        (0..count * DIM).map(|_| random() as f32 / (1 << 25) as f32 - 0.25).collect()
    }

    /// Every number of queries at once, each alone with the same bits, and none sees what lies behind its last token.
    #[test]
    fn sums_are_near_those_of_the_stored_numbers_whoever_is_beside() {
        let mut random = numbers(3);
        for format in [KvFormat::Q8, KvFormat::Q4] {
            let mut stored = stored(format, &mut random);
            let x = queries(17, &mut random);
            let seen: Vec<usize> = (0..17).map(|i| [0, 1, 4, 15, 16, 33, 40][i * 7 / 17]).collect();
            (40..PAGE_ROWS).for_each(|token| (0..2).for_each(|which| stored.poison(which, token)));
            for (tier, integers) in tables() {
                let together = stored.attend(integers, &x, &seen);
                for (i, (x, seen)) in x.chunks(DIM).zip(&seen).enumerate() {
                    let alone = stored.attend(integers, x, &[*seen]);
                    assert_eq!(format!("{:?}", together[i]), format!("{:?}", alone[0]), "{tier} {format} query {i}");
                    let ([top, sum], out) = &alone[0];
                    let [keys, values] = &stored.numbers;
                    for (d, out) in out.iter().enumerate() {
                        let (mut want, mut weight) = (0.0, 0.0);
                        for (key, value) in keys.iter().zip(values).take(*seen) {
                            let score: f64 = x.iter().zip(key).map(|(x, k)| f64::from(*x) * f64::from(*k)).sum();
                            let p = (score - f64::from(*top)).exp();
                            want += p * f64::from(value[d]);
                            weight += p;
                        }
                        // Scores are off by half a step of 0.25 / 32640 times 1.5 for each of 96 dimensions, and
                        // weights by that and half a step of their own; numbers are below 2.6 and 40 of them.
                        let error = 40.0 * 2.6 * (96.0 * 1.5 * 0.25 + 1.0) / 65280.0;
                        assert!(
                            (f64::from(*out) - want).abs() <= error,
                            "{tier} {format} query {i}: {out}, not {want}"
                        );
                        assert!((f64::from(*sum) - weight).abs() <= error, "{tier} {format} query {i}: sum {sum}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_shows() {
        let mut random = numbers(4);
        for format in [KvFormat::Q8, KvFormat::Q4] {
            let x = queries(1, &mut random);
            for (tier, integers) in tables() {
                let mut values = stored(format, &mut random);
                values.poison(1, 7);
                let (state, out) = &values.attend(integers, &x, &[20])[0];
                let finite = |columns: &[f32]| columns.iter().all(|v| v.is_finite());
                assert!(finite(state) && finite(&out[..BLOCK]) && finite(&out[2 * BLOCK..]), "{tier} {format}");
                assert!(out[BLOCK..2 * BLOCK].iter().all(|v| v.is_nan()), "{tier} {format}");
                let mut keys = stored(format, &mut random);
                keys.poison(0, 7);
                assert!(keys.attend(integers, &x, &[20])[0].0[1].is_nan(), "{tier} {format}");
                let mut x = x.clone();
                x[3] = f32::INFINITY;
                assert!(values.attend(integers, &x, &[20])[0].0[1].is_nan(), "{tier} {format}");
            }
        }
    }
}
