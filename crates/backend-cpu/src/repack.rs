//! From a file's format to a resident layout, block by block, in parallel.

use crate::generic::Kernels;
use crate::layout::{BLOCK, BitOrder, Codes, GROUP, Layout, PLAIN_ORDER, Segment};
use crate::memory::{Buffer, Disjoint};
use crate::threads::Pool;
use onebit_ops::OpError;
use onebit_quant::float::f32_to_f16;
use onebit_quant::formats::affine;
use onebit_quant::{Format, MAX_GROUP, Matrix, ParamType, Residual, Symmetry};
use std::ops::Range;

/// What a matrix becomes.
pub(crate) struct Target {
    pub layout: Layout,
    pub sparse: Vec<Residual>,
    /// Bytes of biases that are derived from now on.
    pub shed_bytes: u64,
}

/// The layout of a matrix, by the symmetry rule: a bias that follows from its scale is dropped, a few rounded ones
/// become a sparse list, anything else is kept.
pub(crate) fn target(matrix: &Matrix<'_>, kernels: &Kernels, keep_biases: bool) -> Target {
    let format = matrix.format;
    let mut layout = Layout {
        codes: Codes::Bits1,
        group: format.group(),
        cols: matrix.cols,
        scale: ParamType::F16,
        bias: None,
        factor: 1.0,
        center: 0.0,
        order: &PLAIN_ORDER,
    };
    if let Some(kind) = format.dense() {
        layout.codes = Codes::Dense(kind);
        layout.group = GROUP;
        return Target { layout, sparse: Vec::new(), shed_bytes: 0 };
    }
    (layout.codes, layout.center) = match format.bits() {
        1 => (Codes::Bits1, 0.5),
        2 => (Codes::Bits2, 1.0),
        4 => (Codes::Block4, 8.0),
        _ => (Codes::Block8, 128.0),
    };
    layout.order = match layout.codes {
        Codes::Bits1 => kernels.bits1_order,
        Codes::Bits2 => kernels.bits2_order,
        _ => &PLAIN_ORDER,
    };
    let (mut sparse, mut shed_bytes) = (Vec::new(), 0);
    match format {
        Format::Affine { bits, scale, bias, .. } => {
            layout.scale = scale;
            // Values are 2 code - 1 for one bit, so their scale is half of the code's.
            layout.factor = if bits == 1 { 0.5 } else { 1.0 };
            match if keep_biases { Symmetry::Affine } else { matrix.symmetry() } {
                Symmetry::Affine => layout.bias = Some(bias),
                Symmetry::Exact => shed_bytes = matrix.biases.len() as u64,
                Symmetry::Rounding(list) => {
                    shed_bytes = (matrix.biases.len() - list.len() * bias.bytes()) as u64;
                    sparse = list;
                }
            }
        }
        Format::Q4_1 => layout.bias = Some(ParamType::F16),
        _ => {}
    }
    Target { layout, sparse, shed_bytes }
}

/// Repacks matrices of one layout, whose rows follow one another.
pub(crate) fn repack(
    pool: &Pool,
    name: &str,
    parts: &[&Matrix<'_>],
    target: Target,
    first_row: usize,
) -> Result<Segment, OpError> {
    let Target { layout, sparse, .. } = target;
    let rows: usize = parts.iter().map(|p| p.rows).sum();
    let bytes = layout.block_bytes();
    let size = bytes.saturating_mul(rows.div_ceil(BLOCK));
    let mut data = Buffer::zeroed(size, &format!("weight `{name}`"))?;
    data.prefer_large_pages();
    let sources: Vec<Source<'_>> = parts.iter().map(|m| Source::new(m, &layout)).collect();
    let out = Disjoint::new(data.bytes_mut());
    pool.run(rows.div_ceil(BLOCK), &|b, _| {
        // SAFETY: each block is one task.
        let block = unsafe { out.piece(b * bytes..(b + 1) * bytes) };
        for r in 0..BLOCK.min(rows - b * BLOCK) {
            let mut row = b * BLOCK + r;
            let mut part = 0;
            while row >= sources[part].matrix.rows {
                row -= sources[part].matrix.rows;
                part += 1;
            }
            sources[part].write_row(row, r, &layout, block);
        }
    });
    Ok(Segment { rows: first_row..first_row + rows, layout, data, sparse })
}

/// A matrix as it is read here.
struct Source<'a> {
    matrix: &'a Matrix<'a>,
    /// For formats whose codes are packed least significant bit first, as the bit layouts want them: bytes of a
    /// group, and the codes' range within.
    packed: Option<(usize, Range<usize>)>,
}

impl<'a> Source<'a> {
    fn new(matrix: &'a Matrix<'a>, layout: &Layout) -> Self {
        let codes = layout.group * matrix.format.bits() / 8;
        let packed = match (layout.codes, matrix.format) {
            (Codes::Bits1 | Codes::Bits2, Format::Affine { .. }) => Some((codes, 0..codes)),
            // These begin with their binary16 scale.
            (_, Format::Q1_0 | Format::Q2_0G64 | Format::Q2_0G128 | Format::Pq2_0) => Some((codes + 2, 2..codes + 2)),
            _ => None,
        };
        Source { matrix, packed }
    }

    /// Writes `row` as row `r` of a block.
    fn write_row(&self, row: usize, r: usize, layout: &Layout, block: &mut [u8]) {
        let m = self.matrix;
        let row_bytes = m.codes.len() / m.rows;
        let data = &m.codes[row * row_bytes..(row + 1) * row_bytes];
        if let Codes::Dense(kind) = layout.codes {
            let size = kind.bytes();
            for (value, column) in data.chunks_exact(size).zip(block.chunks_exact_mut(BLOCK * size)) {
                column[r * size..(r + 1) * size].copy_from_slice(value);
            }
            return;
        }
        let mut codes = [0u8; MAX_GROUP];
        let codes = &mut codes[..layout.group];
        let mut bytes = [0u8; MAX_GROUP / 4];
        let (code_bytes, bias_start, first) = (layout.code_bytes(), layout.bias_start(), row * layout.groups());
        for (g, record) in block.chunks_exact_mut(layout.record_bytes()).enumerate() {
            let at = first + g;
            if let Some((stride, range)) = &self.packed {
                let group = &data[g * stride..(g + 1) * stride];
                write_bits(layout, &group[range.clone()], r, record);
                if range.start > 0 {
                    put(ParamType::F16, &group[..2], r, &mut record[code_bytes..]);
                }
            } else {
                let group = m.group(row, g, codes);
                match layout.codes {
                    Codes::Block4 => write_block4(codes, r, record),
                    Codes::Block8 => write_block8(codes, r, record),
                    _ => {
                        let packed = &mut bytes[..layout.group / 4];
                        affine::write_codes(2, codes, packed);
                        write_bits(layout, packed, r, record);
                    }
                }
                if let Some(form) = m.format.block() {
                    let d = f32_to_f16(group.scale / form.scale_of_d).to_le_bytes();
                    put(ParamType::F16, &d, r, &mut record[code_bytes..]);
                    if layout.bias.is_some() {
                        let bias = f32_to_f16(group.bias).to_le_bytes();
                        put(ParamType::F16, &bias, r, &mut record[bias_start..]);
                    }
                }
            }
            if let Format::Affine { scale, bias, .. } = m.format {
                put(scale, &m.scales[at * scale.bytes()..], r, &mut record[code_bytes..]);
                if layout.bias.is_some() {
                    put(bias, &m.biases[at * bias.bytes()..], r, &mut record[bias_start..]);
                }
            }
        }
    }
}

/// Copies the number at the start of `from` to place `r` of `to`. The sizes are spelled out: of an unknown number of
/// bytes each copy would be a call.
fn put(kind: ParamType, from: &[u8], r: usize, to: &mut [u8]) {
    match kind {
        ParamType::F16 | ParamType::BF16 => to.as_chunks_mut::<2>().0[r] = from.as_chunks().0[0],
        ParamType::F32 => to.as_chunks_mut::<4>().0[r] = from.as_chunks().0[0],
    }
}

/// One row's bits of a group into its units.
fn write_bits(layout: &Layout, bytes: &[u8], r: usize, record: &mut [u8]) {
    let BitOrder { unit, position } = layout.order;
    let (unit, place) = (*unit, usize::from(position[r]) * *unit);
    if layout.codes == Codes::Bits1 && unit == 1 {
        // The general form below would call the library for every single byte.
        for (from, to) in bytes.iter().zip(record.chunks_exact_mut(BLOCK)) {
            to[place] = *from;
        }
        return;
    }
    if layout.codes == Codes::Bits1 {
        for (from, to) in bytes.chunks_exact(unit).zip(record.chunks_exact_mut(BLOCK * unit)) {
            to[place..place + unit].copy_from_slice(from);
        }
        return;
    }
    for (from, to) in bytes.chunks_exact(2 * unit).zip(record.chunks_exact_mut(2 * BLOCK * unit)) {
        for (u, pair) in from.chunks_exact(2).enumerate() {
            let codes = u16::from_le_bytes([pair[0], pair[1]]);
            to[place + u] = even_bits(codes);
            to[BLOCK * unit + place + u] = even_bits(codes >> 1);
        }
    }
}

/// Bits 0, 2, 4, ... 14 side by side.
fn even_bits(x: u16) -> u8 {
    let x = x & 0x5555;
    let x = (x | (x >> 1)) & 0x3333;
    let x = (x | (x >> 2)) & 0x0f0f;
    (x | (x >> 4)) as u8
}

fn write_block4(codes: &[u8], r: usize, record: &mut [u8]) {
    for (quad, to) in codes.chunks_exact(4).zip(record.chunks_exact_mut(2 * BLOCK)) {
        to[2 * r] = quad[0] | (quad[2] << 4);
        to[2 * r + 1] = quad[1] | (quad[3] << 4);
    }
}

fn write_block8(codes: &[u8], r: usize, record: &mut [u8]) {
    for (pair, to) in codes.chunks_exact(2).zip(record.chunks_exact_mut(2 * BLOCK)) {
        to[2 * r] = pair[0] ^ 0x80;
        to[2 * r + 1] = pair[1] ^ 0x80;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_bits_of_all_pairs() {
        for x in 0..=u16::MAX {
            let want = (0..8).fold(0u8, |v, i| v | ((((x >> (2 * i)) & 1) as u8) << i));
            assert_eq!(even_bits(x), want);
        }
    }
}
