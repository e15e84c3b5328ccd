//! From a file's format to the device's layout, block by block.

use crate::layout::{BLOCK_ROWS, Codes, Layout, UNIT};
use onebit_quant::float::f32_to_f16;
use onebit_quant::formats::affine::write_codes;
use onebit_quant::{Format, MAX_GROUP, Matrix};
use std::ops::Range;

/// Where one run of blocks is written.
pub(crate) struct Target<'a> {
    pub codes: &'a mut [u8],
    pub scales: &'a mut [u8],
    /// Empty where biases are not kept.
    pub biases: &'a mut [u8],
}

impl<'a> Target<'a> {
    /// Cuts off the first `blocks` blocks.
    fn split(self, layout: &Layout, blocks: usize) -> (Target<'a>, Target<'a>) {
        let [codes, scales, biases] = layout.block_bytes().map(|bytes| bytes * blocks);
        let (codes, more_codes) = self.codes.split_at_mut(codes);
        let (scales, more_scales) = self.scales.split_at_mut(scales);
        let (biases, more_biases) = self.biases.split_at_mut(biases);
        (Target { codes, scales, biases }, Target { codes: more_codes, scales: more_scales, biases: more_biases })
    }
}

/// Lays blocks out, on as many threads as there is work for.
pub(crate) fn repack(matrix: &Matrix<'_>, layout: &Layout, blocks: Range<usize>, target: Target<'_>, threads: usize) {
    /// Blocks that are worth a thread, in bytes.
    const WORTH: usize = 256 << 10;
    let threads = threads.min(target.codes.len().div_ceil(WORTH)).clamp(1, blocks.len().max(1));
    let share = blocks.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let mut rest = target;
        let mut start = blocks.start;
        while start < blocks.end {
            let end = (start + share).min(blocks.end);
            let (mine, others) = rest.split(layout, end - start);
            rest = others;
            let work = move || write_blocks(matrix, layout, start..end, mine);
            // The last share is this thread's own.
            if end < blocks.end {
                scope.spawn(work);
            } else {
                work();
            }
            start = end;
        }
    });
}

fn is_signed(layout: &Layout) -> bool {
    matches!(layout.shape.codes, Codes::Packed { bits: 8, .. })
}

fn write_blocks(matrix: &Matrix<'_>, layout: &Layout, blocks: Range<usize>, target: Target<'_>) {
    // Padding: zero codes with zero scales.
    target.codes.fill(if is_signed(layout) { 0x80 } else { 0 });
    target.scales.fill(0);
    target.biases.fill(0);
    let [code_bytes, scale_bytes, bias_bytes] = layout.block_bytes();
    let mut row_codes = vec![0u8; layout.shape.units(layout.cols) * UNIT];
    for (i, block) in blocks.enumerate() {
        let codes = &mut target.codes[i * code_bytes..(i + 1) * code_bytes];
        let scales = &mut target.scales[i * scale_bytes..(i + 1) * scale_bytes];
        let biases = &mut target.biases[i * bias_bytes..(i + 1) * bias_bytes];
        for row in block * BLOCK_ROWS..((block + 1) * BLOCK_ROWS).min(matrix.rows) {
            let lane = row % BLOCK_ROWS;
            let used = read_row(matrix, layout, row, &mut row_codes, scales, biases);
            let row_codes = &mut row_codes[..used.next_multiple_of(UNIT)];
            arrange(layout.shape.codes, row_codes);
            for (unit, bytes) in row_codes.as_chunks::<UNIT>().0.iter().enumerate() {
                codes[(unit * BLOCK_ROWS + lane) * UNIT..][..UNIT].copy_from_slice(bytes);
            }
        }
    }
}

/// Copies a row's codes, in natural order, to the front of `out`, and its scales and biases to their places. Returns the
/// bytes of codes; what follows up to a whole unit is zero.
fn read_row(
    matrix: &Matrix<'_>,
    layout: &Layout,
    row: usize,
    out: &mut [u8],
    scales: &mut [u8],
    biases: &mut [u8],
) -> usize {
    let lane = row % BLOCK_ROWS;
    let row_of = |bytes: &'_ [u8]| {
        let size = bytes.len() / matrix.rows;
        row * size..(row + 1) * size
    };
    let stored = &matrix.codes[row_of(matrix.codes)];
    let mut used = 0;
    if let (false, Some(block)) = (matches!(matrix.format, Format::Affine { .. }), matrix.format.block()) {
        let bytes = block.elements * usize::from(block.bits) / 8;
        // Binary and ternary blocks hold their codes in natural order behind the scale; others are read by the oracle.
        let natural = matches!(matrix.format, Format::Q1_0 | Format::Q2_0G64 | Format::Q2_0G128 | Format::Pq2_0);
        let mut codes = [0u8; MAX_GROUP];
        for (g, stored) in stored.chunks_exact(block.bytes).enumerate() {
            let at = (g * BLOCK_ROWS + lane) * 2;
            let place = &mut out[used..used + bytes];
            if natural {
                place.copy_from_slice(&stored[2..]);
                scales[at..at + 2].copy_from_slice(&stored[..2]);
            } else {
                let group = matrix.group(row, g, &mut codes);
                write_codes(block.bits, &codes[..block.elements], place);
                scales[at..at + 2].copy_from_slice(&f32_to_f16(group.scale / block.scale_of_d).to_le_bytes());
                if layout.shape.bias.is_some() {
                    biases[at..at + 2].copy_from_slice(&f32_to_f16(group.bias).to_le_bytes());
                }
            }
            used += bytes;
        }
    } else {
        out[..stored.len()].copy_from_slice(stored);
        used = stored.len();
        if matrix.format.is_packed() {
            spread(&matrix.scales[row_of(matrix.scales)], layout.shape.scale.bytes(), lane, scales);
            if let Some(kind) = layout.shape.bias {
                spread(&matrix.biases[row_of(matrix.biases)], kind.bytes(), lane, biases);
            }
        }
    }
    let end = used.next_multiple_of(UNIT);
    out[used..end].fill(0);
    used
}

/// One row's numbers to `[group][32 rows]`.
fn spread(numbers: &[u8], size: usize, lane: usize, out: &mut [u8]) {
    for (g, number) in numbers.chunks_exact(size).enumerate() {
        let at = (g * BLOCK_ROWS + lane) * size;
        out[at..at + size].copy_from_slice(number);
    }
}

/// Natural order to the kernels' order, word by word, in place. In a word of B-bit codes, code `4a + b` goes from bit
/// `B (4a + b)` to bit `B a + 8 b`: a shift and a mask give four neighbours in four bytes.
fn arrange(codes: Codes, bytes: &mut [u8]) {
    match codes {
        Codes::Packed { bits: 1, .. } => {
            each_word(bytes, &[(14, 0x0000_cccc), (7, 0x00aa_00aa), (2, 0x0c0c_0c0c), (1, 0x2222_2222)]);
        }
        Codes::Packed { bits: 2, .. } => each_word(bytes, &[(12, 0x0000_f0f0), (6, 0x00cc_00cc)]),
        Codes::Packed { bits: 4, .. } => each_word(bytes, &[(8, 0x0000_ff00), (4, 0x00f0_00f0)]),
        Codes::Packed { .. } => bytes.iter_mut().for_each(|byte| *byte ^= 0x80),
        Codes::Dense(_) => {}
    }
}

/// Each step swaps two binary digits of all places: the bits under the mask change with those `shift` above.
fn each_word(bytes: &mut [u8], steps: &[(u32, u32)]) {
    for bytes in bytes.as_chunks_mut::<4>().0 {
        let mut word = u32::from_le_bytes(*bytes);
        for (shift, mask) in steps {
            let differ = (word ^ (word >> shift)) & mask;
            word ^= differ ^ (differ << shift);
        }
        *bytes = word.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_neighbours_end_in_four_bytes() {
        for (bits, group) in [(1u32, 128u32), (2, 128), (4, 64)] {
            let a_word = 32 / bits;
            for e in 0..a_word {
                let mut bytes = (1u32 << (bits * e)).to_le_bytes();
                arrange(Codes::Packed { bits, group }, &mut bytes);
                assert_eq!(u32::from_le_bytes(bytes), 1 << (bits * (e / 4) + 8 * (e % 4)), "{bits} bits, code {e}");
            }
        }
    }
}
