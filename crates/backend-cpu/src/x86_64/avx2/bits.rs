//! 1-bit and 2-bit weights against integer activations, by table lookup.
//!
//! A register holds one byte of each of 32 rows: eight weights a row, two patterns of four bits. `pshufb` looks both
//! up in the tables of their quads (see [`super::tables`]), 128 weights at a time. Eight lookups add up in bytes, then
//! `maddubs` joins low and high bytes into 16 bits: 36 operations for 1,024 products beside the patterns. The sum of a
//! group fits 16 bits: with `A = sum |x|` and U the looked-up sum, `sum (2 bit - 1) x = 2 U - A`, at most
//! 255 * 128 = 32,640 in magnitude. So nothing is rounded until a group is done.
//!
//! Two bits are two planes of single bits over the same tables. Their sums meet in 32 bits, since code 3 reaches
//! beyond 16.

use super::tables;
use super::vector::F32x8;
use crate::generic::packed::{GroupSum, IntRows, QUARTERS, add_group, add_int_sparse, finish_group, params};
use crate::generic::unpack::lanes;
use crate::generic::vector::Vector;
use crate::layout::{BLOCK, BitOrder, Codes, Lanes, Layout, Segment};
use crate::x86_64::deep_first_level;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

/// Columns whose lookups add up in bytes: eight quads.
const STRETCH: usize = 32;

/// Records between codes that are looked up and those that are fetched meanwhile.
const AHEAD: usize = 2;

/// Bytes of tables that stay in a cache while blocks pass by: in the first-level one, where more activation rows come
/// back to the same blocks, which should stay there as well; or in the second, where one or two leave the memory time,
/// and long streams count.
const TABLE_CACHE: [usize; 2] = [256 * 1024, 8 * 1024];

/// Byte of the register whose sum ends in lane `lane` of the 16-bit accumulator `half`: unpacking bytes works within
/// halves of a register.
const fn byte_of(half: usize, lane: usize) -> u8 {
    (lane / 8 * 16 + half * 8 + lane % 8) as u8
}

/// Row `8 v + i` comes out in lane i of vector v: even lanes of an accumulator, then its odd ones.
pub(in crate::x86_64) static BITS1_ORDER: BitOrder = BitOrder { unit: 1, position: order(false) };

/// Row `8 v + i` comes out in lane i of vector v: 16-bit lanes unpacked within halves.
pub(in crate::x86_64) static BITS2_ORDER: BitOrder = BitOrder { unit: 1, position: order(true) };

const fn order(unpacked: bool) -> Lanes<u8> {
    let mut position = [0; BLOCK];
    let mut r = 0;
    while r < BLOCK {
        let (v, i) = (r / 8, r % 8);
        let lane = if unpacked { i / 4 * 8 + v % 2 * 4 + i % 4 } else { 2 * i + v % 2 };
        position[r] = byte_of(v / 2, lane);
        r += 1;
    }
    position
}

/// The sums of a range of blocks, as `Kernels::int_blocks`.
///
/// Some groups of all blocks, then the next: for each pair of activation rows, the tables of these groups are read
/// from memory once and looked up by all blocks.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::x86_64) fn int_blocks(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    let layout = &segment.layout;
    let stride = x.rows * BLOCK;
    acc.fill(0.0);
    let cached = TABLE_CACHE[usize::from(x.rows > 2)];
    let chunk = (cached / (x.rows.min(2) * layout.group / 4 * tables::BYTES)).max(1);
    let (record, block) = (layout.record_bytes(), layout.block_bytes());
    let first_level = deep_first_level();
    for first in (0..layout.groups()).step_by(chunk) {
        let groups = first..(first + chunk).min(layout.groups());
        let mut m = 0;
        while m < x.rows {
            let pair = m + 2 <= x.rows;
            let mut b = blocks.start;
            while b < blocks.end {
                let set = if pair { 2 } else { 4 };
                let count = groups.len().min(AHEAD);
                let near = count * record;
                // The last groups fetch the first ones of the next blocks. What later rows read was fetched for the
                // first ones.
                let next = blocks.end - b > set && groups.len() == layout.groups();
                let last = groups.end - count;
                let ahead = (m == 0).then_some([near, if next { set * block + near - block } else { near }]);
                let tile = Tile { layout, groups: groups.clone(), x, first: m, ahead, last, first_level };
                let acc = &mut acc[(b - blocks.start) * stride..];
                b += match (pair, blocks.end - b) {
                    (true, 1) => tile.add::<1, 2>(segment, b, acc),
                    (true, _) => tile.add::<2, 2>(segment, b, acc),
                    (false, 1) => tile.add::<1, 1>(segment, b, acc),
                    (false, 2 | 3) => tile.add::<2, 1>(segment, b, acc),
                    (false, _) => tile.add::<4, 1>(segment, b, acc),
                };
            }
            m += if pair { 2 } else { 1 };
        }
    }
    for (b, acc) in blocks.zip(acc.chunks_exact_mut(stride)) {
        for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
            add_int_sparse(segment, b, x, m, acc);
        }
    }
}

/// Some groups of one or two activation rows.
struct Tile<'a> {
    layout: &'a Layout,
    groups: Range<usize>,
    x: &'a IntRows<'a>,
    /// The first of the activation rows.
    first: usize,
    /// Bytes from codes to those that are fetched meanwhile, and the same from group `last` on; that may lie outside
    /// the weight. None where everything has been fetched.
    ahead: Option<[usize; 2]>,
    last: usize,
    /// Where to.
    first_level: bool,
}

/// 16-bit sums of one stream of bits and one activation row: rows in the order of [`byte_of`].
type Sums = [__m256i; 2];

/// Low and high bytes of looked-up sums.
type Bytes = [__m256i; 2];

/// Lines that are asked for while others are looked up.
#[derive(Clone, Copy)]
struct Fetch {
    /// Bytes from what is looked up; that may lie outside the weight.
    ahead: usize,
    /// For the first level, where that has places for many lines on their way, and otherwise for the second.
    first_level: bool,
}

impl Fetch {
    /// Asks for the line at this distance from each of `S` places.
    #[inline]
    fn lines<const S: usize>(self, from: [*const u8; S]) {
        for place in from {
            let line = place.wrapping_add(self.ahead).cast();
            // SAFETY: a hint, which reads nothing and faults at no address.
            unsafe {
                if self.first_level {
                    _mm_prefetch::<_MM_HINT_T0>(line);
                } else {
                    _mm_prefetch::<_MM_HINT_T1>(line);
                }
            }
        }
    }
}

/// Adds the sums of one byte of each row, two quads, of `S` streams of bits against `M` activation rows.
///
/// # Safety
/// 32 bytes must lie at each of `bits`, two tables at each of `quads`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn look_up_byte<const S: usize, const M: usize>(
    bits: [*const u8; S],
    quads: [*const u8; M],
    bytes: &mut [[Bytes; M]; S],
) {
    let nibble = _mm256_set1_epi8(15);
    let mut shifted = [_mm256_setzero_si256(); S];
    for s in 0..S {
        // SAFETY: 32 bytes.
        shifted[s] = unsafe { _mm256_loadu_si256(bits[s].cast()) };
    }
    for q in 0..2 {
        for m in 0..M {
            // SAFETY: two tables of two times 16 bytes.
            let (low, high) = unsafe {
                let table = quads[m].add(q * tables::BYTES);
                let (low, high) = (_mm_loadu_si128(table.cast()), _mm_loadu_si128(table.add(16).cast()));
                (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high))
            };
            for s in 0..S {
                let pattern = _mm256_and_si256(shifted[s], nibble);
                let [l, h] = &mut bytes[s][m];
                *l = _mm256_add_epi8(*l, _mm256_shuffle_epi8(low, pattern));
                *h = _mm256_add_epi8(*h, _mm256_shuffle_epi8(high, pattern));
            }
        }
        for s in &mut shifted {
            *s = _mm256_srli_epi16::<4>(*s);
        }
    }
}

/// Looks up one group of `S` streams of bits against `M` activation rows and adds to `sums`.
///
/// A stream is 32 bytes for each eight columns, `PLANES` times so many apart. Low bytes count `LOW` times, high bytes
/// `32 * LOW` times.
///
/// # Safety
/// `columns` must be a multiple of 32, each stream must hold `columns / 8` such bytes at its stride, and each table
/// `columns / 4` quads.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn look_up<const S: usize, const M: usize, const PLANES: usize, const LOW: i8>(
    columns: usize,
    mut streams: [*const u8; S],
    fetch: Option<Fetch>,
    mut quads: [*const u8; M],
    sums: &mut [[Sums; M]; S],
) {
    let join = _mm256_set1_epi16(i16::from_le_bytes([LOW as u8, 32 * LOW as u8]));
    for _ in 0..columns / STRETCH {
        if let Some(fetch) = fetch {
            for line in 0..2 {
                let mut lines = streams;
                for (s, at) in lines.iter_mut().enumerate() {
                    // Two planes share their lines.
                    *at = at.wrapping_add((2 * line + s % PLANES) * PLANES * BLOCK);
                }
                fetch.lines(lines);
            }
        }
        let mut bytes = [[[_mm256_setzero_si256(); 2]; M]; S];
        for _ in 0..STRETCH / 8 {
            // SAFETY: so far the streams and the tables reach.
            unsafe {
                look_up_byte(streams, quads, &mut bytes);
                for stream in &mut streams {
                    *stream = stream.add(PLANES * BLOCK);
                }
                for table in &mut quads {
                    *table = table.add(2 * tables::BYTES);
                }
            }
            // Unrolled, the loop would be in want of registers if patterns of later bytes were loaded early.
            compiler_fence(Ordering::SeqCst);
        }
        for s in 0..S {
            for m in 0..M {
                let ([low, high], [a, b]) = (bytes[s][m], &mut sums[s][m]);
                *a = _mm256_add_epi16(*a, _mm256_maddubs_epi16(_mm256_unpacklo_epi8(low, high), join));
                *b = _mm256_add_epi16(*b, _mm256_maddubs_epi16(_mm256_unpackhi_epi8(low, high), join));
            }
        }
    }
}

/// Stored scales and biases of the rows of a record.
type Params = ([F32x8; QUARTERS], Option<[F32x8; QUARTERS]>);

/// What a group of `M` activation rows brings to its products.
struct Factors<const M: usize> {
    tables: [*const u8; M],
    sums: [GroupSum; M],
    /// Of the values.
    scales: [f32; M],
}

impl Tile<'_> {
    /// Adds the products of `B` blocks from `first` on and `M` activation rows to `acc`; returns B.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add<const B: usize, const M: usize>(&self, segment: &Segment, first: usize, acc: &mut [f32]) -> usize {
        let bytes = self.layout.block_bytes();
        let blocks = &segment.data.bytes()[first * bytes..(first + B) * bytes];
        // Whether there is a bias is decided here, which leaves registers to the loops.
        let affine = self.layout.bias.is_some();
        match (self.layout.codes, affine) {
            (Codes::Bits1, false) => self.bits1::<B, M, false>(blocks, acc),
            (Codes::Bits1, true) => self.bits1::<B, M, true>(blocks, acc),
            // Two planes for each block: half the blocks make as many streams.
            _ => {
                let step = if M == 1 && B > 1 { 2 } else { 1 };
                for i in (0..B).step_by(step) {
                    let (blocks, acc) = (&blocks[i * bytes..(i + step) * bytes], &mut acc[i * self.x.rows * BLOCK..]);
                    match (step, affine) {
                        (2, false) => self.bits2::<2, 4, M, false>(blocks, acc),
                        (2, true) => self.bits2::<2, 4, M, true>(blocks, acc),
                        (_, false) => self.bits2::<1, 2, M, false>(blocks, acc),
                        (_, true) => self.bits2::<1, 2, M, true>(blocks, acc),
                    }
                }
            }
        }
        B
    }

    /// What is fetched while group `g` is looked up.
    #[inline]
    fn fetch(&self, g: usize) -> Option<Fetch> {
        let [ahead, last] = self.ahead?;
        Some(Fetch { ahead: if g < self.last { ahead } else { last }, first_level: self.first_level })
    }

    /// Of group `g`; `factor` multiplies the scales of the activations.
    #[inline]
    fn factors<const M: usize>(&self, g: usize, factor: f32) -> Factors<M> {
        let (layout, x) = (self.layout, self.x);
        let mut f = Factors { tables: [std::ptr::null(); M], sums: [GroupSum::default(); M], scales: [0.0; M] };
        for m in 0..M {
            let row = self.first + m;
            let start = (row * layout.cols + g * layout.group) / 4 * tables::BYTES;
            f.tables[m] = x.tables[start..start + layout.group / 4 * tables::BYTES].as_ptr();
            f.sums[m] = x.sum(layout, row, g);
            f.scales[m] = x.scale(layout, row, g) * factor;
        }
        f
    }

    /// Adds the sums of group `g` of one block and activation row `m` of the tile to `acc`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn finish<const M: usize, const AFFINE: bool>(
        &self,
        (m, g, factors): (usize, usize, &Factors<M>),
        (dots, unit): ([F32x8; QUARTERS], f32),
        params: &Params,
        acc: &mut [f32],
    ) {
        let acc = &mut acc[(self.first + m) * BLOCK..][..BLOCK];
        if AFFINE {
            finish_group(self.layout, self.x, (self.first + m, g), (dots, unit), params, acc);
        } else {
            add_group(dots, &params.0, factors.scales[m], acc);
        }
    }

    /// Scales of a record, and biases where they are kept.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn params<const AFFINE: bool>(&self, record: &[u8]) -> Params {
        if AFFINE {
            params(self.layout, record)
        } else {
            (lanes(self.layout.scale, &record[self.layout.code_bytes()..]), None)
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn bits1<const B: usize, const M: usize, const AFFINE: bool>(&self, blocks: &[u8], acc: &mut [f32]) {
        // Lanes become floats as the upper 16 of 32 bits, 2^16 times too large.
        const UNIT: f32 = 65536.0;
        let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        let (layout, stride) = (self.layout, self.x.rows * BLOCK);
        let (bytes, block_bytes) = (layout.record_bytes(), layout.block_bytes());
        let factor = layout.factor / UNIT;
        for g in self.groups.clone() {
            let f = self.factors::<M>(g, factor);
            let mut start = [[_mm256_setzero_si256(); 2]; M];
            for (start, sum) in start.iter_mut().zip(f.sums) {
                *start = [_mm256_set1_epi16(-sum.magnitude as i16); 2];
            }
            let (mut sums, mut records, mut streams) = ([start; B], [&[][..]; B], [std::ptr::null(); B]);
            let mut scales = [std::ptr::null(); B];
            for b in 0..B {
                records[b] = &blocks[b * block_bytes + g * bytes..][..bytes];
                streams[b] = records[b].as_ptr();
                scales[b] = records[b][layout.code_bytes()..].as_ptr();
            }
            let fetch = self.fetch(g);
            if let Some(fetch) = fetch {
                fetch.lines(scales);
            }
            // SAFETY: a record begins with group / 8 * 32 bytes of codes, `factors` has checked the tables, and groups
            // are multiples of 32.
            unsafe { look_up::<B, M, 1, 2>(layout.group, streams, fetch, f.tables, &mut sums) };
            for b in 0..B {
                let params = self.params::<AFFINE>(records[b]);
                for (m, [s, t]) in sums[b].into_iter().enumerate() {
                    let dots = to_floats([
                        _mm256_slli_epi32::<16>(s),
                        _mm256_and_si256(s, upper),
                        _mm256_slli_epi32::<16>(t),
                        _mm256_and_si256(t, upper),
                    ]);
                    self.finish::<M, AFFINE>((m, g, &f), (dots, UNIT), &params, &mut acc[b * stride..]);
                }
            }
        }
    }

    /// `S` is twice `B`: a low and a high plane for each block.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn bits2<const B: usize, const S: usize, const M: usize, const AFFINE: bool>(
        &self,
        blocks: &[u8],
        acc: &mut [f32],
    ) {
        let (layout, stride) = (self.layout, self.x.rows * BLOCK);
        let (bytes, block_bytes) = (layout.record_bytes(), layout.block_bytes());
        let join = _mm256_set1_epi32(i32::from_le_bytes([1, 0, 2, 0]));
        for g in self.groups.clone() {
            let f = self.factors::<M>(g, layout.factor);
            let [mut low, mut high] = [[[_mm256_setzero_si256(); 2]; M]; 2];
            for ((low, high), sum) in low.iter_mut().zip(&mut high).zip(f.sums) {
                // Tables hold sums less the negative activations, of which there are (A - T) / 2 in all; and in
                // sum (low + 2 high - 1) x the low plane takes the subtraction.
                let GroupSum { total, magnitude } = sum;
                let negative = (magnitude - total) / 2;
                *low = [_mm256_set1_epi16((-negative - total) as i16); 2];
                *high = [_mm256_set1_epi16(-negative as i16); 2];
            }
            let (mut sums, mut records, mut streams) = ([low; S], [&[][..]; B], [std::ptr::null(); S]);
            let mut scales = [std::ptr::null(); B];
            for b in 0..B {
                records[b] = &blocks[b * block_bytes + g * bytes..][..bytes];
                streams[2 * b] = records[b].as_ptr();
                streams[2 * b + 1] = records[b][BLOCK..].as_ptr();
                scales[b] = records[b][layout.code_bytes()..].as_ptr();
                sums[2 * b + 1] = high;
            }
            let fetch = self.fetch(g);
            if let Some(fetch) = fetch {
                fetch.lines(scales);
            }
            // SAFETY: a record begins with group / 8 * 64 bytes of codes, planes in turn; `factors` has checked the
            // tables, and groups are multiples of 32.
            unsafe { look_up::<S, M, 2, 1>(layout.group, streams, fetch, f.tables, &mut sums) };
            for (b, record) in records.iter().enumerate() {
                let params = self.params::<AFFINE>(record);
                let (low, high) = (sums[2 * b], sums[2 * b + 1]);
                for (m, ([s0, t0], [s1, t1])) in low.into_iter().zip(high).enumerate() {
                    let dots = to_floats([
                        _mm256_madd_epi16(_mm256_unpacklo_epi16(s0, s1), join),
                        _mm256_madd_epi16(_mm256_unpackhi_epi16(s0, s1), join),
                        _mm256_madd_epi16(_mm256_unpacklo_epi16(t0, t1), join),
                        _mm256_madd_epi16(_mm256_unpackhi_epi16(t0, t1), join),
                    ]);
                    self.finish::<M, AFFINE>((m, g, &f), (dots, 1.0), &params, &mut acc[b * stride..]);
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn to_floats(lanes: [__m256i; QUARTERS]) -> [F32x8; QUARTERS] {
    let mut floats = [F32x8::zero(); QUARTERS];
    for (f, v) in floats.iter_mut().zip(lanes) {
        *f = F32x8::new(_mm256_cvtepi32_ps(v));
    }
    floats
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::x86_64::guard::{Guarded, detected, numbers};

    /// Both ends of what the loop reads, and the sums themselves, for every group size.
    #[test]
    fn sums_are_exact_and_nothing_behind_the_codes_or_tables_is_read() {
        if !detected("avx2") {
            return;
        }
        let mut random = numbers(1);
        for columns in [32, 64, 128] {
            for extreme in [false, true] {
                let values: Vec<i16> =
                    (0..columns).map(|_| if extreme { 255 } else { (random() % 511) as i16 - 255 }).collect();
                let codes: Vec<u8> =
                    (0..columns / 8 * BLOCK).map(|_| if extreme { 255 } else { random() as u8 }).collect();
                let mut table = vec![0; columns / 4 * tables::BYTES];
                // SAFETY: detected above.
                unsafe { tables::build(&values, &mut table) };
                let (guarded_codes, guarded_table) = (Guarded::new(&codes), Guarded::new(&table));
                let magnitude: i32 = values.iter().map(|v| i32::from(v.abs())).sum();
                // SAFETY: detected above; the stream and the table have exactly the lengths that are asked for.
                let lanes: [i16; BLOCK] = unsafe {
                    let mut sums = [[[_mm256_set1_epi16(-magnitude as i16); 2]]];
                    let (stream, table) = (guarded_codes.start(codes.len()), guarded_table.start(table.len()));
                    let fetch = Some(Fetch { ahead: 4096, first_level: false });
                    look_up::<1, 1, 1, 2>(columns, [stream], fetch, [table], &mut sums);
                    std::mem::transmute(sums)
                };
                for byte in 0..BLOCK {
                    let want: i32 = (0..columns)
                        .map(|c| {
                            let bit = i32::from(codes[c / 8 * BLOCK + byte] >> (c % 8) & 1);
                            (2 * bit - 1) * i32::from(values[c])
                        })
                        .sum();
                    let place = (0..BLOCK).find(|l| usize::from(byte_of(l / 16, l % 16)) == byte);
                    assert_eq!(place.map(|l| i32::from(lanes[l])), Some(want), "byte {byte} of {columns} columns");
                }
            }
        }
    }
}
