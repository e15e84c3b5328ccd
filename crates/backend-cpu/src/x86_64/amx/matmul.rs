//! The order of the product: records of a few blocks in turn, each against all activation rows.

use super::activations::{BYTES, COLUMNS};
use super::line::Line;
use super::weights::{Bits1, Bits2, Block4, Block8, Expand};
use crate::generic::packed::{IntRows, add_int_sparse};
use crate::layout::{BLOCK, Codes, Segment};
use std::arch::x86_64::*;
use std::ops::Range;

/// Fewest activation rows for which tables are slower, measured on one and two threads.
pub(in crate::x86_64) fn fewest(codes: Codes) -> usize {
    match codes {
        Codes::Bits1 => 6,
        Codes::Bits2 => 4,
        Codes::Block4 | Codes::Block8 => 3,
        Codes::Triples | Codes::Dense(_) => unreachable!("{NO_TILES}"),
    }
}

const NO_TILES: &str = "no triples are made for this tier, and dense weights meet float activations";

/// Most blocks that are read side by side, and the bytes of their results that stay in the first-level cache.
const SET: usize = 8;
const RESULT_CACHE: usize = 16 * 1024;

/// Bytes of activations that stay in the second-level cache while blocks pass by.
const ACTIVATION_CACHE: usize = 768 * 1024;

/// Records between one that is expanded and one that is fetched meanwhile.
const AHEAD: usize = 2;

/// The sums of a range of blocks, as `Kernels::int_blocks`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
pub(in crate::x86_64) fn int_blocks(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    acc.fill(0.0);
    match (segment.layout.codes, segment.layout.bias.is_some()) {
        (Codes::Bits1, false) => multiply::<Bits1, false>(segment, blocks.clone(), x, acc),
        (Codes::Bits1, true) => multiply::<Bits1, true>(segment, blocks.clone(), x, acc),
        (Codes::Bits2, false) => multiply::<Bits2, false>(segment, blocks.clone(), x, acc),
        (Codes::Bits2, true) => multiply::<Bits2, true>(segment, blocks.clone(), x, acc),
        (Codes::Block4, false) => multiply::<Block4, false>(segment, blocks.clone(), x, acc),
        (Codes::Block4, true) => multiply::<Block4, true>(segment, blocks.clone(), x, acc),
        (Codes::Block8, false) => multiply::<Block8, false>(segment, blocks.clone(), x, acc),
        (Codes::Block8, true) => multiply::<Block8, true>(segment, blocks.clone(), x, acc),
        (Codes::Triples | Codes::Dense(_), _) => unreachable!("{NO_TILES}"),
    }
    for (b, acc) in blocks.zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
        for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
            add_int_sparse(segment, b, x, m, acc);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
fn multiply<E: Expand, const AFFINE: bool>(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    let layout = &segment.layout;
    let stride = x.rows * BLOCK;
    let (block_bytes, record_bytes) = (layout.block_bytes(), layout.record_bytes());
    let set = (RESULT_CACHE / (stride * size_of::<f32>())).clamp(1, SET);
    let chunk = (ACTIVATION_CACHE / (x.rows * BYTES * layout.group.div_ceil(COLUMNS))).max(1);
    let mut line = Line::<E, AFFINE>::new(layout, x);
    for first in (0..layout.groups()).step_by(chunk) {
        let groups = first..(first + chunk).min(layout.groups());
        for start in blocks.clone().step_by(set) {
            let end = (start + set).min(blocks.end);
            for g in groups.clone() {
                // The last groups fetch the first ones of the next blocks.
                let wrap = if g + AHEAD < groups.end { 0 } else { set * block_bytes - groups.len() * record_bytes };
                let ahead = AHEAD * record_bytes + wrap;
                for b in start..end {
                    let record = segment.record(b, g);
                    for line in record[..layout.code_bytes()].as_chunks::<64>().0 {
                        _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().wrapping_add(ahead).cast());
                    }
                    line.push(record, g, (b - blocks.start) * stride, acc);
                }
            }
        }
    }
    line.drain(acc);
}
