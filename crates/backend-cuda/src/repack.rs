//! From a file's format to the device's layout, block by block.

use crate::layout::{Layout, UNIT};
use crate::params::{BLOCK_ROWS, Codes};
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
    /// The front of a stretch for `blocks` blocks of the layout, piece after piece.
    pub(crate) fn new(layout: &Layout, blocks: usize, bytes: &'a mut [u8]) -> Target<'a> {
        let [codes, scales, biases] = layout.block_bytes().map(|bytes| bytes * blocks);
        let (codes, rest) = bytes.split_at_mut(codes);
        let (scales, rest) = rest.split_at_mut(scales);
        Target { codes, scales, biases: &mut rest[..biases] }
    }

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
    let bytes = target.codes.len();
    let threads = threads.min(bytes.div_ceil(WORTH)).clamp(1, blocks.len().max(1));
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

fn write_blocks(matrix: &Matrix<'_>, layout: &Layout, blocks: Range<usize>, target: Target<'_>) {
    // Padding: zero codes with zero scales.
    target.codes.fill(if layout.codes == Codes::Bits8 { 0x80 } else { 0 });
    target.scales.fill(0);
    target.biases.fill(0);
    let [code_bytes, scale_bytes, bias_bytes] = layout.block_bytes();
    let mut row_codes = vec![0u8; layout.units() * UNIT];
    for (i, block) in blocks.enumerate() {
        let codes = &mut target.codes[i * code_bytes..(i + 1) * code_bytes];
        let scales = &mut target.scales[i * scale_bytes..(i + 1) * scale_bytes];
        let biases = &mut target.biases[i * bias_bytes..(i + 1) * bias_bytes];
        let rows = block * BLOCK_ROWS..((block + 1) * BLOCK_ROWS).min(matrix.rows);
        for row in rows {
            let lane = row % BLOCK_ROWS;
            let used = read_row(matrix, layout, row, &mut row_codes, lane, scales, biases);
            let row_codes = &mut row_codes[..used.next_multiple_of(UNIT)];
            arrange(layout.codes, row_codes);
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
    lane: usize,
    scales: &mut [u8],
    biases: &mut [u8],
) -> usize {
    let row_of = |bytes: &'_ [u8]| {
        let size = bytes.len() / matrix.rows;
        row * size..(row + 1) * size
    };
    let stored = &matrix.codes[row_of(matrix.codes)];
    let mut used = 0;
    match (matrix.format, matrix.format.block()) {
        (Format::Affine { .. }, _) => {
            out[..stored.len()].copy_from_slice(stored);
            used = stored.len();
            spread(&matrix.scales[row_of(matrix.scales)], layout.scale.bytes(), lane, scales);
            if let Some(kind) = layout.bias {
                spread(&matrix.biases[row_of(matrix.biases)], kind.bytes(), lane, biases);
            }
        }
        (format, Some(block)) => {
            let bytes = block.elements * usize::from(block.bits) / 8;
            // Binary and ternary blocks hold their codes in natural order behind the scale; others are read by the oracle.
            let natural = matches!(format, Format::Q1_0 | Format::Q2_0G64 | Format::Q2_0G128 | Format::Pq2_0);
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
                    let scale = f32_to_f16(group.scale / block.scale_of_d);
                    scales[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                    if layout.bias.is_some() {
                        biases[at..at + 2].copy_from_slice(&f32_to_f16(group.bias).to_le_bytes());
                    }
                }
                used += bytes;
            }
        }
        (_, None) => {
            out[..stored.len()].copy_from_slice(stored);
            used = stored.len();
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

/// Natural order to the kernels' order, word by word, in place.
fn arrange(codes: Codes, bytes: &mut [u8]) {
    match codes {
        Codes::Bits1 => each_word(bytes, &[(14, 0x0000_cccc), (7, 0x00aa_00aa), (2, 0x0c0c_0c0c), (1, 0x2222_2222)]),
        Codes::Bits2 => each_word(bytes, &[(12, 0x0000_f0f0), (6, 0x00cc_00cc)]),
        Codes::Bits4 => each_word(bytes, &[(8, 0x0000_ff00), (4, 0x00f0_00f0)]),
        Codes::Bits8 => bytes.iter_mut().for_each(|byte| *byte ^= 0x80),
        Codes::DenseF16 | Codes::DenseBf16 | Codes::DenseF32 => {}
    }
}

/// Moves the codes of every word. Each step swaps two binary digits of all places: the bits under the mask change with
/// those `shift` above. In a word of B-bit codes, code `4a + b` goes from bit `B (4a + b)` to bit `B a + 8 b`.
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
    use onebit_quant::{Packed, ParamType, Symmetry, pack, quantize};

    /// Code of a column, read from a unit's words as the kernels do.
    fn code(codes: Codes, unit: &[u8], column: usize) -> u32 {
        let bits = match codes {
            Codes::Bits1 => 1,
            Codes::Bits2 => 2,
            Codes::Bits4 => 4,
            _ => 8,
        };
        let a_word = 32 / bits;
        let word: [u8; 4] = unit[column / a_word * 4..][..4].try_into().unwrap();
        let e = column % a_word;
        let value = u32::from_le_bytes(word) >> (bits * (e / 4) + 8 * (e % 4)) & ((1 << bits) - 1);
        if bits == 8 { value ^ 0x80 } else { value }
    }

    /// A row as the kernels see it.
    fn decode(layout: &Layout, pieces: &[Vec<u8>; 3], row: usize) -> Vec<f32> {
        let (block, lane) = (row / BLOCK_ROWS, row % BLOCK_ROWS);
        let unit = |u: usize| &pieces[0][((block * layout.units() + u) * BLOCK_ROWS + lane) * UNIT..][..UNIT];
        let per_unit = layout.codes.per_unit();
        (0..layout.cols)
            .map(|c| {
                let (unit, at) = (unit(c / per_unit), c % per_unit);
                if !layout.codes.is_packed() {
                    return layout.scale_of_dense().read(unit, at);
                }
                let group = (block * layout.groups() + c / layout.group) * BLOCK_ROWS + lane;
                let (scale, code) = (layout.scale.read(&pieces[1], group), code(layout.codes, unit, at) as f32);
                match layout.bias {
                    Some(kind) => scale * code + kind.read(&pieces[2], group),
                    None => {
                        let place = |r: &&onebit_quant::Residual| r.row == row && r.group == c / layout.group;
                        let residual = layout.residuals.iter().find(place).map_or(0.0, |r| r.value);
                        layout.factor * scale * (2.0 * code - layout.center as f32) + residual
                    }
                }
            })
            .collect()
    }

    impl Layout {
        fn scale_of_dense(&self) -> ParamType {
            match self.codes {
                Codes::DenseF16 => ParamType::F16,
                Codes::DenseBf16 => ParamType::BF16,
                _ => ParamType::F32,
            }
        }
    }

    fn formats() -> Vec<Format> {
        let mut all = vec![
            Format::F32,
            Format::F16,
            Format::BF16,
            Format::Q1_0,
            Format::Q2_0G64,
            Format::Q2_0G128,
            Format::Pq2_0,
            Format::Ptq1_0,
            Format::Q4_0,
            Format::Q4_1,
            Format::Q8_0,
        ];
        for bits in [1, 2, 4, 8] {
            for group in [32, 64, 128] {
                let kinds = [ParamType::F16, ParamType::BF16, ParamType::F32];
                all.extend(kinds.map(|kind| Format::Affine { bits, group, scale: kind, bias: ParamType::F16 }));
            }
        }
        all
    }

    fn laid_out(matrix: &Matrix<'_>, layout: &Layout) -> [Vec<u8>; 3] {
        let sizes = layout.block_bytes().map(|bytes| bytes * layout.blocks());
        let mut bytes = vec![0xee; sizes.iter().sum()];
        // In two runs, as a staging buffer may want it, and with more threads than there is work for.
        let half = layout.blocks() / 2;
        let mut pieces = sizes.map(|size| vec![0xee; size]);
        for blocks in [0..half, half..layout.blocks()] {
            let used: usize = layout.block_bytes().iter().sum::<usize>() * blocks.len();
            repack(matrix, layout, blocks.clone(), Target::new(layout, blocks.len(), &mut bytes[..used]), 3);
            let mut at = 0;
            for (piece, block) in pieces.iter_mut().zip(layout.block_bytes()) {
                let len = block * blocks.len();
                piece[block * blocks.start..][..len].copy_from_slice(&bytes[at..at + len]);
                at += len;
            }
        }
        pieces
    }

    /// Any codes and scales, symmetric where the format can be.
    fn made_up(format: Format, rows: usize, cols: usize) -> Packed {
        if format.dense().is_some() {
            let values: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919 + i / 91) % 2003) as f32 * 1e-3 - 1.0).collect();
            return quantize(format, rows, cols, &values).unwrap();
        }
        let (most, zero) = match format.block() {
            Some(block) => (usize::from(block.max_code), -block.bias_of_d.unwrap_or(-8.0) / block.scale_of_d),
            None => ((1 << format.bits()) - 1, [0.5, 1.0, 8.0, 128.0][format.bits().ilog2() as usize]),
        };
        let codes: Vec<u8> = (0..rows * cols).map(|i| ((i * 7919 + i / 91) % (most + 1)) as u8).collect();
        let scales: Vec<f32> = (0..rows * cols / format.group()).map(|i| (i % 61 + 1) as f32 / 128.0).collect();
        let biases: Vec<f32> = scales.iter().map(|scale| -zero * scale).collect();
        pack(format, rows, cols, &codes, &scales, &biases).unwrap()
    }

    #[test]
    fn every_format_reads_back_as_the_oracle_decodes_it() {
        let (rows, cols) = (75, 384);
        for format in formats() {
            let packed = made_up(format, rows, cols);
            let matrix = packed.as_matrix();
            for symmetry in [matrix.symmetry(), Symmetry::Affine] {
                let exact = symmetry == Symmetry::Exact;
                let layout = Layout::of(&matrix, symmetry);
                let pieces = laid_out(&matrix, &layout);
                let mut want = vec![0.0; cols];
                for row in 0..rows {
                    matrix.decode_row(row, &mut want);
                    let got = decode(&layout, &pieces, row);
                    assert_eq!(got, want, "{format} row {row}, exact: {exact}");
                }
            }
        }
    }

    #[test]
    fn padding_is_zero_codes_and_zero_scales() {
        // 160 columns fill one record and a part of the next; 33 rows one block and a row.
        for (format, zero) in [(Format::Q4_0, 0), (Format::Q8_0, 0x80)] {
            let packed = made_up(format, 33, 160);
            let layout = Layout::of(&packed.as_matrix(), Symmetry::Exact);
            assert_eq!((layout.blocks(), layout.groups()), (2, 8));
            let [codes, scales, _] = laid_out(&packed.as_matrix(), &layout);
            let used = 160 / layout.codes.per_unit();
            for unit in used..layout.units() {
                let bytes = &codes[unit * BLOCK_ROWS * UNIT..][..BLOCK_ROWS * UNIT];
                assert!(bytes.iter().all(|b| *b == zero), "{format} unit {unit}");
            }
            for group in 5..8 {
                assert!(scales[group * BLOCK_ROWS * 2..][..BLOCK_ROWS * 2].iter().all(|b| *b == 0));
            }
            // The second block has one row.
            let second = &scales[layout.block_bytes()[1]..];
            assert!(second[..2] != [0, 0] && second[2..BLOCK_ROWS * 2].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn residuals_are_listed_by_block() {
        let residual = |row, group, value| onebit_quant::Residual { row, group, value };
        let half = ParamType::F16;
        let packed = made_up(Format::Affine { bits: 1, group: 32, scale: half, bias: half }, 70, 128);
        let list = vec![residual(3, 2, 0.5), residual(31, 0, 0.25), residual(64, 1, 0.125)];
        let layout = Layout::of(&packed.as_matrix(), Symmetry::Rounding(list));
        let (firsts, all) = layout.residual_lists();
        assert_eq!(firsts, [0, 2, 2, 3]);
        let places: Vec<(u32, u32)> = all.iter().map(|r| (r.place & 31, r.place >> 5)).collect();
        assert_eq!(places, [(3, 2), (31, 0), (0, 1)]);
        assert_eq!(layout.pieces()[3..], [16, 24]);
    }
}
