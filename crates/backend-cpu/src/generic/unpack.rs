//! Codes of one record as numbers, rows in their own order: what the portable matmul and the embedding read.

use super::vector::{LANES, Vector};
use crate::layout::{BLOCK, Codes, LINE, Lanes, Layout, Segment};
use crate::repack::triples;
use onebit_quant::ParamType;

/// Values (code - center) of one record, column by column.
#[inline(always)]
pub(crate) fn values(layout: &Layout, record: &[u8], tile: &mut [Lanes<i8>]) {
    let codes = &record[..layout.code_bytes()];
    let unit = layout.order.unit;
    match layout.codes {
        Codes::Bits1 => {
            for (units, tile) in codes.chunks_exact(BLOCK * unit).zip(tile.chunks_exact_mut(8 * unit)) {
                for (u, tile) in tile.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let bytes = in_row_order(layout, units, u);
                    for (c, column) in tile.iter_mut().enumerate() {
                        for (v, byte) in column.iter_mut().zip(&bytes) {
                            *v = if byte & (1 << c) == 0 { -1 } else { 1 };
                        }
                    }
                }
            }
        }
        Codes::Bits2 => {
            for (units, tile) in codes.chunks_exact(2 * BLOCK * unit).zip(tile.chunks_exact_mut(8 * unit)) {
                let (low, high) = units.split_at(BLOCK * unit);
                for (u, tile) in tile.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let (low, high) = (in_row_order(layout, low, u), in_row_order(layout, high, u));
                    for (c, column) in tile.iter_mut().enumerate() {
                        for (v, (low, high)) in column.iter_mut().zip(low.iter().zip(&high)) {
                            let (low, high) = (low & (1 << c) != 0, high & (1 << c) != 0);
                            *v = i8::from(low) + 2 * i8::from(high) - 1;
                        }
                    }
                }
            }
        }
        Codes::Triples => {
            let lines = codes.as_chunks::<LINE>().0;
            for (r, place) in layout.order.position.iter().enumerate() {
                let mut words = [0; triples::WORDS];
                for (word, line) in words.iter_mut().zip(lines) {
                    *word = u16::from_le_bytes(line.as_chunks().0[usize::from(*place)]);
                }
                triples::unpack(&words, |c, weight| tile[c][r] = weight);
            }
        }
        Codes::Block4 => {
            for (bytes, tile) in codes.chunks_exact(2 * BLOCK).zip(tile.chunks_exact_mut(4)) {
                for r in 0..BLOCK {
                    for j in 0..2 {
                        let byte = bytes[2 * r + j];
                        tile[j][r] = (byte & 15) as i8 - 8;
                        tile[2 + j][r] = (byte >> 4) as i8 - 8;
                    }
                }
            }
        }
        Codes::Block8 => {
            for (bytes, tile) in codes.chunks_exact(2 * BLOCK).zip(tile.chunks_exact_mut(2)) {
                for r in 0..BLOCK {
                    tile[0][r] = bytes[2 * r] as i8;
                    tile[1][r] = bytes[2 * r + 1] as i8;
                }
            }
        }
        Codes::Dense(_) => unreachable!("dense records hold floats"),
    }
}

/// Byte `u` of every row in a unit.
#[inline(always)]
fn in_row_order(layout: &Layout, units: &[u8], u: usize) -> Lanes<u8> {
    let mut bytes = [0; BLOCK];
    for (byte, place) in bytes.iter_mut().zip(&layout.order.position) {
        *byte = units[usize::from(*place) * layout.order.unit + u];
    }
    bytes
}

/// Columns of one dense record as floats.
#[inline(always)]
pub(crate) fn dense<V: Vector>(kind: ParamType, record: &[u8], tile: &mut [Lanes<f32>]) {
    for (bytes, column) in record.chunks_exact(kind.bytes() * BLOCK).zip(tile) {
        for (to, v) in column.as_chunks_mut::<LANES>().0.iter_mut().zip(lanes::<V>(kind, bytes)) {
            v.store(to);
        }
    }
}

/// 32 stored numbers.
#[inline(always)]
pub(crate) fn lanes<V: Vector>(kind: ParamType, bytes: &[u8]) -> [V; BLOCK / LANES] {
    let bytes = &bytes[..BLOCK * kind.bytes()];
    let halves = bytes.as_chunks::<{ 2 * LANES }>().0;
    let mut out = [V::zero(); BLOCK / LANES];
    // Plain loops: a closure handed to a library function would be compiled without this function's target features.
    match kind {
        ParamType::F16 => {
            for (out, from) in out.iter_mut().zip(halves) {
                *out = V::load_f16(from);
            }
        }
        ParamType::BF16 => {
            for (out, from) in out.iter_mut().zip(halves) {
                *out = V::load_bf16(from);
            }
        }
        ParamType::F32 => {
            for (out, from) in out.iter_mut().zip(bytes.as_chunks::<{ 4 * LANES }>().0) {
                *out = V::load_f32(from);
            }
        }
    }
    out
}

/// Decodes one row of a segment.
pub(crate) fn row(segment: &Segment, row: usize, out: &mut [f32]) {
    let layout = &segment.layout;
    let (b, r) = (row / BLOCK, row % BLOCK);
    if let Codes::Dense(kind) = layout.codes {
        let block = segment.block(b);
        for (k, v) in out.iter_mut().enumerate() {
            *v = kind.read(block, k * BLOCK + r);
        }
        return;
    }
    let (mut tile, mut copy) = (vec![[0i8; BLOCK]; layout.group], Vec::new());
    for (g, out) in out.chunks_exact_mut(layout.group).enumerate() {
        let record = segment.gathered(b, g, &mut copy);
        values(layout, record, &mut tile);
        let stored = layout.scale.read(&record[layout.code_bytes()..], r);
        let bias = layout.bias.map(|kind| kind.read(&record[layout.bias_start()..], r));
        let mut residual = bias.map_or(0.0, |bias| bias + layout.center * stored);
        for sparse in segment.sparse_of(b).iter().filter(|s| s.row == row && s.group == g) {
            residual += sparse.value;
        }
        let scale = stored * layout.factor;
        for (v, column) in out.iter_mut().zip(&tile) {
            *v = scale * f32::from(column[r]) + residual;
        }
    }
}
