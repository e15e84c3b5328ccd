//! 1-bit, 2-bit and ternary weights against integer activations, by table lookup.
//!
//! A register holds a word of 16 bits for each of 32 rows: three lookups (see [`super::tables`]) make 512 products,
//! with sums in 16 bits. A group's sum fits them: 255 * 128 = 32,640. Against several activation rows the shifted
//! patterns are made once.
//!
//! Two bits are two planes of single bits over the same tables. With signed sums L and H of the planes and the sum T
//! of the activations, `sum (low + 2 high - 1) x = (L + 2 H + T) / 2`; that meets in 32 bits, since code 3 reaches
//! beyond 16.

use super::{tables, triples};
use crate::generic::packed::{IntRows, add_int_sparse};
use crate::layout::{BLOCK, BitOrder, Codes, LINE, Lanes, Layout, Segment};
use onebit_quant::ParamType;
use std::arch::x86_64::*;
use std::ops::Range;

/// Words of 16 columns; row r comes out in lane r % 16 of vector r / 16: even lanes of the sums, then odd ones.
pub(in crate::x86_64) static BITS1_ORDER: BitOrder = BitOrder { unit: 2, position: order(false) };

/// The same for 16-bit lanes that are unpacked within quarters of the register.
pub(in crate::x86_64) static BITS2_ORDER: BitOrder = BitOrder { unit: 2, position: order(true) };

const fn order(unpacked: bool) -> Lanes<u8> {
    let mut position = [0; BLOCK];
    let mut r = 0;
    while r < BLOCK {
        let (v, lane) = (r / 16, r % 16);
        position[r] = if unpacked { lane / 4 * 8 + v * 4 + lane % 4 } else { 2 * lane + v } as u8;
        r += 1;
    }
    position
}

/// Activation rows that are looked up together.
const ROWS: usize = 2;

/// Blocks that are read side by side: a core fetches more of eight streams than of one, or of one stream of eight blocks
/// whose lines lie in turn.
pub(in crate::x86_64) const SET: usize = 8;

/// Blocks of two sets that are read side by side against one activation row: tables come from the second-level cache, and
/// half as often then.
const PAIR: usize = 2 * SET;

/// Bytes of tables that stay in a cache while blocks pass by: in the first-level one, or in the second where one or two
/// activation rows leave the memory time; long streams count there.
const TABLE_CACHE: [usize; 2] = [26 * 1024, 256 * 1024];

/// Records between a word that is looked up and one that is fetched into the second-level cache meanwhile.
const AHEAD: usize = 2;

/// Bytes between them in one stream of lines in turn, which is fetched into the first-level cache.
const STREAM_AHEAD: usize = 6 * 1024;

/// Bytes of weights that stay in the second-level cache for all activation rows.
const WEIGHT_CACHE: usize = 400 * 1024;

/// The sums of a range of blocks, as `Kernels::int_blocks`.
///
/// Weights come from memory once: a stretch of the blocks stays in the second-level cache for all activation rows. The
/// tables of some groups stay in a cache while all blocks look them up.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
pub(in crate::x86_64) fn int_blocks(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    acc.fill(0.0);
    match segment.layout.together {
        1 => stream::<false>(segment, blocks.clone(), x, acc),
        together => {
            debug_assert_eq!((together, blocks.start % SET), (SET, 0));
            stream::<true>(segment, blocks.clone(), x, acc);
        }
    }
    for (b, acc) in blocks.zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
        for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
            add_int_sparse(segment, b, x, m, acc);
        }
    }
}

/// Bytes of the tables of a group.
#[inline(always)]
fn table_bytes(layout: &Layout) -> usize {
    match layout.codes {
        Codes::Triples => triples::BYTES,
        _ => layout.group / tables::COLUMNS * tables::BYTES,
    }
}

/// Goes through blocks, groups and rows; `TURNS` where the lines of a set of blocks lie in turn.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
fn stream<const TURNS: bool>(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    let layout = &segment.layout;
    let (record, block) = (layout.record_bytes(), layout.block_bytes());
    let stride = x.rows * BLOCK;
    let group_tables = table_bytes(layout);
    let cache = TABLE_CACHE[usize::from(x.rows <= ROWS)];
    let chunk = (cache / (x.rows.min(ROWS) * group_tables)).clamp(1, layout.groups());
    let stretch = (WEIGHT_CACHE / (blocks.len() * record)).max(1).next_multiple_of(chunk);
    for start in (0..layout.groups()).step_by(stretch) {
        let end = (start + stretch).min(layout.groups());
        for m in (0..x.rows).step_by(ROWS) {
            for first in (start..end).step_by(chunk) {
                let groups = first..(first + chunk).min(end);
                let mut b = blocks.start;
                while b < blocks.end {
                    let count = groups.len().min(AHEAD);
                    let near = count * record;
                    // The last groups fetch the first ones of the next set of blocks. What later rows read of a stretch
                    // was fetched for the first ones.
                    let ahead = match (m, blocks.end - b > SET && groups.len() == layout.groups()) {
                        (0, _) if TURNS => [STREAM_AHEAD; 2],
                        (0, true) => [near, SET * block + near - block],
                        (0, false) => [near; 2],
                        _ => [0; 2],
                    };
                    let last = groups.end - count;
                    let tile = Tile { layout, groups: groups.clone(), x, first: m, ahead, last };
                    let acc = &mut acc[(b - blocks.start) * stride..];
                    b += match (x.rows - m, blocks.end - b) {
                        (1, PAIR..) if TURNS && layout.codes != Codes::Bits2 => {
                            tile.add::<PAIR, 1, TURNS>(segment, b, acc)
                        }
                        (1, SET..) => tile.add::<SET, 1, TURNS>(segment, b, acc),
                        (_, SET..) => tile.add::<SET, 2, TURNS>(segment, b, acc),
                        (1, _) => tile.add::<1, 1, TURNS>(segment, b, acc),
                        _ => tile.add::<1, 2, TURNS>(segment, b, acc),
                    };
                }
            }
        }
    }
}

/// Some lines of blocks that are read side by side: those of a block begin at its `starts` and follow `line` bytes apart.
/// The block that is fetched at the same place lies `ahead` bytes behind.
#[derive(Clone, Copy)]
pub(super) struct Lines<const S: usize> {
    pub starts: [*const u8; S],
    pub line: usize,
    pub ahead: usize,
}

impl<const S: usize> Lines<S> {
    /// Where line `i` of stream `s` is.
    #[inline(always)]
    pub(super) fn place(&self, s: usize, i: usize) -> *const u8 {
        self.starts[s].wrapping_add(i * self.line)
    }

    /// Where line `i` of stream `s` is; the one ahead is asked for. Of one stream the first-level cache holds what comes
    /// next; of eight it has too few places for lines on their way, the second has more.
    #[inline(always)]
    pub(super) fn at<const TURNS: bool>(&self, s: usize, i: usize) -> *const u8 {
        let at = self.place(s, i);
        let ahead = at.wrapping_add(self.ahead).cast();
        // SAFETY: a prefetch reads nothing and faults at no address.
        unsafe {
            if TURNS {
                _mm_prefetch::<_MM_HINT_T0>(ahead);
            } else {
                _mm_prefetch::<_MM_HINT_T1>(ahead);
            }
        }
        at
    }
}

/// Looks up one group of `S` streams of bits against `M` activation rows, a line for each 16 columns.
///
/// # Safety
/// `columns` must be a multiple of 16, each stream must hold `columns / 16` lines, and each of `tables` those of
/// `columns`.
#[expect(clippy::needless_range_loop, reason = "the index says which lines, too")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn look_up<const S: usize, const M: usize, const TURNS: bool>(
    columns: usize,
    lines: Lines<S>,
    tables: [*const u8; M],
) -> [[__m512i; M]; S] {
    let mut sums = [[_mm512_setzero_si512(); M]; S];
    for u in 0..columns / tables::COLUMNS {
        let mut entries = [[_mm512_setzero_si512(); 5]; M];
        for m in 0..M {
            // SAFETY: the tables of word u are below those of columns / 16.
            entries[m] = unsafe { tables[m].add(u * tables::BYTES).cast::<[__m512i; 5]>().read_unaligned() };
        }
        for s in 0..S {
            // SAFETY: line u of the stream is below columns / 16.
            let word = unsafe { _mm512_loadu_si512(lines.at::<TURNS>(s, u).cast()) };
            let (second, third) = (_mm512_srli_epi16::<6>(word), _mm512_srli_epi16::<12>(word));
            for m in 0..M {
                let [a, b, c, d, e] = entries[m];
                let six = _mm512_permutex2var_epi16(a, word, b);
                let twelve = _mm512_permutex2var_epi16(c, second, d);
                let sixteen = _mm512_permutexvar_epi16(third, e);
                let both = _mm512_add_epi16(six, twelve);
                sums[s][m] = _mm512_add_epi16(sums[s][m], _mm512_add_epi16(both, sixteen));
            }
        }
    }
    sums
}

/// 32 stored numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::x86_64) fn lanes(kind: ParamType, bytes: &[u8]) -> [__m512; 2] {
    let from = bytes[..BLOCK * kind.bytes()].as_ptr();
    // SAFETY: 32 numbers of the kind begin there.
    unsafe {
        match kind {
            ParamType::F16 => [
                _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())),
                _mm512_cvtph_ps(_mm256_loadu_si256(from.add(32).cast())),
            ],
            ParamType::BF16 => [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))),
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
                    from.add(32).cast(),
                )))),
            ],
            ParamType::F32 => [_mm512_loadu_ps(from.cast()), _mm512_loadu_ps(from.add(64).cast())],
        }
    }
}

/// Some groups of a few activation rows.
struct Tile<'a> {
    layout: &'a Layout,
    groups: Range<usize>,
    x: &'a IntRows<'a>,
    /// The first of the activation rows.
    first: usize,
    /// Bytes from a word to one that is fetched meanwhile, and the same from group `last` on; that may lie outside the
    /// weight.
    ahead: [usize; 2],
    last: usize,
}

/// The blocks of a tile, and how their lines lie.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    bytes: &'a [u8],
    /// Bytes from a block's first line to the next one's, from a set to the next, from line to line, and from record to
    /// record.
    block: usize,
    set: usize,
    line: usize,
    record: usize,
    /// Lines of a record before its scales, and before its biases.
    scales: usize,
    biases: usize,
}

impl<'a> Blocks<'a> {
    /// The blocks from `first` on, all those beside it in a set.
    fn new<const TURNS: bool>(segment: &'a Segment, blocks: Range<usize>) -> Self {
        let layout = &segment.layout;
        let (record, block) = (layout.record_bytes(), layout.block_bytes());
        let (scales, biases) = (layout.code_bytes() / LINE, layout.bias_start() / LINE);
        if TURNS {
            let sets = segment.set(blocks.start).start..segment.set(blocks.end - 1).end;
            let bytes = &segment.bytes_of(sets.clone())[(blocks.start - sets.start) * LINE..];
            let turn = sets.len().min(SET);
            Blocks { bytes, block: LINE, set: SET * block, line: turn * LINE, record: turn * record, scales, biases }
        } else {
            Blocks { bytes: segment.bytes_of(blocks), block, set: SET * block, line: LINE, record, scales, biases }
        }
    }

    /// What begins with line `line` of group `g` of block `b`.
    #[inline(always)]
    fn from(&self, b: usize, g: usize, line: usize) -> &'a [u8] {
        &self.bytes[b / SET * self.set + b % SET * self.block + g * self.record + line * self.line..]
    }
}

/// The block for each `b` below `$n`, at most sixteen. The compiler keeps the rolled loop otherwise, and the sums would go
/// through memory.
macro_rules! unrolled {
    ($n:ident, $b:ident => $body:block) => {
        unrolled!($n, $b => $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    };
    ($n:ident, $b:ident => $body:block, $($i:literal)*) => {
        $(if $i < $n {
            let $b = $i;
            $body
        })*
    };
}

/// What a group of `M` activation rows multiplies its sums by.
struct Factors<const M: usize> {
    tables: [*const u8; M],
    /// Of the values, for each activation row.
    value: [f32; M],
    /// Sums of the integers; only where they are asked for.
    total: [i32; M],
    /// Stored scales of the activations.
    x: [f32; M],
}

impl Tile<'_> {
    /// Adds the products of `B` blocks from `first` on and `M` activation rows to `acc`; returns B.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
    fn add<const B: usize, const M: usize, const TURNS: bool>(
        &self,
        segment: &Segment,
        first: usize,
        acc: &mut [f32],
    ) -> usize {
        let blocks = Blocks::new::<TURNS>(segment, first..first + B);
        match (self.layout.codes, self.layout.bias.is_some()) {
            (Codes::Bits1, false) => self.words::<B, M, TURNS, false, false>(blocks, acc),
            (Codes::Bits1, true) => self.words::<B, M, TURNS, true, false>(blocks, acc),
            (Codes::Triples, _) => self.words::<B, M, TURNS, false, true>(blocks, acc),
            // Two planes for each block. Their sums fit the registers for all blocks and one row, or half of them and two.
            (_, affine) => {
                let (step, stride) = (if M == 1 { B } else { B.min(4) }, self.x.rows * BLOCK);
                for i in (0..B).step_by(step) {
                    let (blocks, acc) = (Blocks { bytes: blocks.from(i, 0, 0), ..blocks }, &mut acc[i * stride..]);
                    match (step, affine) {
                        (1, false) => self.bits2::<1, 2, M, TURNS, false>(blocks, acc),
                        (1, true) => self.bits2::<1, 2, M, TURNS, true>(blocks, acc),
                        (4, false) => self.bits2::<4, 8, M, TURNS, false>(blocks, acc),
                        (4, true) => self.bits2::<4, 8, M, TURNS, true>(blocks, acc),
                        (_, false) => self.bits2::<8, 16, M, TURNS, false>(blocks, acc),
                        (_, true) => self.bits2::<8, 16, M, TURNS, true>(blocks, acc),
                    }
                }
            }
        }
        B
    }

    #[inline]
    fn ahead(&self, g: usize) -> usize {
        self.ahead[usize::from(g >= self.last)]
    }

    /// Tables and factors of group `g`; sums of values come `unit` times too large.
    #[inline]
    fn factors<const M: usize>(&self, g: usize, unit: f32, totals: bool) -> Factors<M> {
        let (layout, x) = (self.layout, self.x);
        let mut f = Factors { tables: [std::ptr::null(); M], value: [0.0; M], total: [0; M], x: [0.0; M] };
        for m in 0..M {
            let row = self.first + m;
            let bytes = table_bytes(layout);
            f.tables[m] = x.tables[(row * layout.groups() + g) * bytes..][..bytes].as_ptr();
            f.x[m] = x.scale(layout, row, g);
            f.value[m] = f.x[m] * (layout.factor / unit);
            if totals {
                f.total[m] = x.sum(layout, row, g).total;
            }
        }
        f
    }

    /// Words that give a block's sums at once: single bits, or triples.
    #[expect(clippy::needless_range_loop, reason = "the index says which lines, too")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
    fn words<const B: usize, const M: usize, const TURNS: bool, const AFFINE: bool, const TRIPLES: bool>(
        &self,
        blocks: Blocks<'_>,
        acc: &mut [f32],
    ) {
        // Lanes become floats as the upper 16 of 32 bits, 2^16 times too large.
        const UNIT: f32 = 65536.0;
        let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        let (layout, stride) = (self.layout, self.x.rows * BLOCK);
        for g in self.groups.clone() {
            let f = self.factors::<M>(g, UNIT, AFFINE);
            let mut lines = Lines { starts: [std::ptr::null(); B], line: blocks.line, ahead: self.ahead(g) };
            let mut scales = [&[][..]; B];
            for b in 0..B {
                lines.starts[b] = blocks.from(b, g, 0).as_ptr();
                scales[b] = blocks.from(b, g, blocks.scales);
            }
            // SAFETY: each block has the lines of its codes before its scales, group / 16 of single bits, and `factors` has
            // checked the tables; groups are multiples of 32.
            let sums = unsafe {
                if TRIPLES {
                    triples::look_up::<B, M, TURNS>(lines, f.tables)
                } else {
                    look_up::<B, M, TURNS>(layout.group, lines, f.tables)
                }
            };
            unrolled!(B, b => {
                lines.at::<TURNS>(b, blocks.scales);
                let mut dots = [[_mm512_setzero_ps(); 2]; M];
                for m in 0..M {
                    dots[m] = [
                        _mm512_cvtepi32_ps(_mm512_slli_epi32::<16>(sums[b][m])),
                        _mm512_cvtepi32_ps(_mm512_and_si512(sums[b][m], upper)),
                    ];
                }
                let acc = &mut acc[b * stride + self.first * BLOCK..][..M * BLOCK];
                self.finish::<M, AFFINE>(&f, (&dots, UNIT), (scales[b], blocks), acc);
            });
        }
    }

    /// `S` is twice `B`: a low and a high plane for each block.
    #[expect(clippy::needless_range_loop, reason = "the index says which lines, too")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
    fn bits2<const B: usize, const S: usize, const M: usize, const TURNS: bool, const AFFINE: bool>(
        &self,
        blocks: Blocks<'_>,
        acc: &mut [f32],
    ) {
        let (layout, stride) = (self.layout, self.x.rows * BLOCK);
        let join = _mm512_set1_epi32(i32::from_le_bytes([1, 0, 2, 0]));
        for g in self.groups.clone() {
            let f = self.factors::<M>(g, 2.0, true);
            let mut lines = Lines { starts: [std::ptr::null(); S], line: 2 * blocks.line, ahead: self.ahead(g) };
            let mut scales = [&[][..]; B];
            for b in 0..B {
                lines.starts[b] = blocks.from(b, g, 0).as_ptr();
                lines.starts[B + b] = blocks.from(b, g, 1).as_ptr();
                scales[b] = blocks.from(b, g, blocks.scales);
            }
            // SAFETY: each block has group / 16 lines of either plane before its scales, in turn; `factors` has checked
            // the tables, and groups are multiples of 32.
            let sums = unsafe { look_up::<S, M, TURNS>(layout.group, lines, f.tables) };
            unrolled!(B, b => {
                lines.at::<TURNS>(b, blocks.scales / 2);
                let mut dots = [[_mm512_setzero_ps(); 2]; M];
                for m in 0..M {
                    let total = _mm512_set1_epi32(f.total[m]);
                    let (low, high) = (sums[b][m], sums[B + b][m]);
                    let (first, second) = (_mm512_unpacklo_epi16(low, high), _mm512_unpackhi_epi16(low, high));
                    dots[m] = [
                        _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_madd_epi16(first, join), total)),
                        _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_madd_epi16(second, join), total)),
                    ];
                }
                let acc = &mut acc[b * stride + self.first * BLOCK..][..M * BLOCK];
                self.finish::<M, AFFINE>(&f, (&dots, 2.0), (scales[b], blocks), acc);
            });
        }
    }

    /// Adds a group's sums of one block and `M` rows to `acc`: as `generic::packed::finish_group`, with the same roundings.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
    fn finish<const M: usize, const AFFINE: bool>(
        &self,
        f: &Factors<M>,
        (dots, unit): (&[[__m512; 2]; M], f32),
        (scales, blocks): (&[u8], Blocks<'_>),
        acc: &mut [f32],
    ) {
        let layout = self.layout;
        let stored = lanes(layout.scale, scales);
        let bias = match layout.bias {
            Some(kind) if AFFINE => lanes(kind, &scales[(blocks.biases - blocks.scales) * blocks.line..]),
            _ => stored,
        };
        for (m, acc) in acc.as_chunks_mut::<BLOCK>().0.iter_mut().take(M).enumerate() {
            let value = _mm512_set1_ps(f.value[m]);
            for (i, acc) in acc.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                // SAFETY: 16 floats.
                unsafe {
                    let scale = _mm512_mul_ps(stored[i], value);
                    let before = _mm512_loadu_ps(acc.as_ptr());
                    let sum = if AFFINE {
                        let total = f.total[m] as f32;
                        let shift = _mm512_set1_ps(total * (layout.center / layout.factor * unit));
                        let sum = _mm512_fmadd_ps(_mm512_add_ps(dots[m][i], shift), scale, before);
                        _mm512_fmadd_ps(bias[i], _mm512_set1_ps(f.x[m] * total), sum)
                    } else {
                        _mm512_fmadd_ps(dots[m][i], scale, before)
                    };
                    _mm512_storeu_ps(acc.as_mut_ptr(), sum);
                }
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::x86_64::guard::{Guarded, detected, numbers};

    /// Both ends of what the loop reads, and the sums themselves, for every group size. What is fetched ahead lies
    /// behind the end, where nothing may be read.
    #[test]
    fn sums_are_exact_and_nothing_behind_the_codes_or_tables_is_read() {
        if !detected("avx512") {
            return;
        }
        let mut random = numbers(2);
        for columns in [32, 64, 128] {
            for extreme in [false, true] {
                let values: Vec<i16> =
                    (0..columns).map(|_| if extreme { 255 } else { (random() % 511) as i16 - 255 }).collect();
                let codes: Vec<u8> =
                    (0..columns / 8 * BLOCK).map(|_| if extreme { 255 } else { random() as u8 }).collect();
                let mut table = vec![0; columns / tables::COLUMNS * tables::BYTES];
                // SAFETY: detected above.
                unsafe { tables::build(&values, &mut table) };
                let (guarded_codes, guarded_table) = (Guarded::new(&codes), Guarded::new(&table));
                // SAFETY: detected above; the stream and the table have exactly the lengths that are asked for.
                let lanes: [i16; BLOCK] = unsafe {
                    let (stream, table) = (guarded_codes.start(codes.len()), guarded_table.start(table.len()));
                    let lines = Lines { starts: [stream], line: LINE, ahead: 4096 };
                    std::mem::transmute(look_up::<1, 1, false>(columns, lines, [table]))
                };
                for (lane, got) in lanes.into_iter().enumerate() {
                    let want: i32 = (0..columns)
                        .map(|c| {
                            let byte = codes[c / 16 * 2 * BLOCK + 2 * lane + c % 16 / 8];
                            (2 * i32::from(byte >> (c % 8) & 1) - 1) * i32::from(values[c])
                        })
                        .sum();
                    assert_eq!(i32::from(got), want, "lane {lane} of {columns} columns");
                }
            }
        }
    }
}
