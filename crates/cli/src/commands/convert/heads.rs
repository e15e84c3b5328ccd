//! The order of value heads, and moving rows and columns from one order to the other.
//!
//! With K key heads and r value heads for each, Hugging Face and MLX files keep the heads of one key head together
//! (`h = r k + j`, "grouped"), GGUF files those of one j (`h = K j + k`, "tiled"). Whole groups of packed codes move, so
//! nothing is rounded.

use super::names::ValueHeads;
use anyhow::{Result, bail};
use onebit_quant::{Format, Matrix, Packed, ParamType};

/// Head counts and sizes of the delta-rule layers.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadOrder {
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
}

/// Which way to reorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToTiled,
    ToGrouped,
}

impl HeadOrder {
    /// For each head of the target, the head of the source.
    pub(super) fn heads(&self, direction: Direction) -> Vec<usize> {
        let (keys, ratio) = (self.key_heads, self.value_heads / self.key_heads);
        (0..self.value_heads)
            .map(|h| match direction {
                Direction::ToTiled => ratio * (h % keys) + h / keys,
                Direction::ToGrouped => keys * (h % ratio) + h / ratio,
            })
            .collect()
    }

    /// For each channel of the convolution, or row of the mixed projection, of the target: that of the source.
    pub(super) fn channels(&self, direction: Direction) -> Vec<usize> {
        let fixed = 2 * self.key_heads * self.key_dim;
        let values = blocks(&self.heads(direction), self.value_dim);
        (0..fixed).chain(values.into_iter().map(|row| fixed + row)).collect()
    }

    /// Reorders a matrix; `None` when the order of its rows and columns is the same in both containers.
    ///
    /// # Errors
    /// When the matrix does not have the rows or columns that the head counts ask for.
    pub(super) fn reorder(
        &self,
        matrix: &Matrix<'_>,
        heads: ValueHeads,
        direction: Direction,
    ) -> Result<Option<Packed>> {
        if heads == ValueHeads::None || self.value_heads == self.key_heads {
            return Ok(None);
        }
        let order = match heads {
            ValueHeads::None => return Ok(None),
            ValueHeads::RowsAfterKeys => self.channels(direction),
            ValueHeads::Rows => blocks(&self.heads(direction), self.value_dim),
            ValueHeads::SingleRows => self.heads(direction),
            ValueHeads::Columns => {
                let wanted = self.value_heads * self.value_dim;
                if matrix.cols != wanted {
                    bail!("it has {} columns, {wanted} wanted by the head counts", matrix.cols);
                }
                let heads = self.heads(direction);
                let whole_groups = self.value_dim.is_multiple_of(matrix.format.group());
                return Ok(Some(if whole_groups {
                    move_columns(matrix, &heads, self.value_dim)
                } else {
                    spread_columns(matrix, &heads, self.value_dim)
                }));
            }
        };
        if matrix.rows != order.len() {
            bail!("it has {} rows, {} wanted by the head counts", matrix.rows, order.len());
        }
        Ok(Some(move_rows(matrix, &order)))
    }

    /// Whether [`HeadOrder::reorder`] must store this matrix dense: its groups straddle heads.
    pub(super) fn straddles(&self, format: Format, heads: ValueHeads) -> bool {
        heads == ValueHeads::Columns
            && self.value_heads != self.key_heads
            && !self.value_dim.is_multiple_of(format.group())
    }
}

/// Each entry of `order` as a run of `size` consecutive indices.
fn blocks(order: &[usize], size: usize) -> Vec<usize> {
    order.iter().flat_map(|&block| block * size..(block + 1) * size).collect()
}

fn move_rows(matrix: &Matrix<'_>, order: &[usize]) -> Packed {
    let pick = |data: &[u8]| -> Vec<u8> {
        let row = data.len() / matrix.rows;
        order.iter().flat_map(|&r| &data[r * row..(r + 1) * row]).copied().collect()
    };
    Packed {
        format: matrix.format,
        rows: matrix.rows,
        cols: matrix.cols,
        codes: pick(matrix.codes),
        scales: pick(matrix.scales),
        biases: pick(matrix.biases),
    }
}

/// Moves blocks of columns that consist of whole groups, without unpacking a code.
fn move_columns(matrix: &Matrix<'_>, heads: &[usize], block: usize) -> Packed {
    let pick = |data: &[u8]| -> Vec<u8> {
        let unit = data.len() / matrix.rows / (matrix.cols / block);
        let row = unit * heads.len();
        let mut out = Vec::with_capacity(data.len());
        for r in 0..matrix.rows {
            heads.iter().for_each(|&h| out.extend_from_slice(&data[r * row + h * unit..r * row + (h + 1) * unit]));
        }
        out
    };
    Packed {
        format: matrix.format,
        rows: matrix.rows,
        cols: matrix.cols,
        codes: pick(matrix.codes),
        scales: pick(matrix.scales),
        biases: pick(matrix.biases),
    }
}

/// Moves columns of a matrix whose groups straddle blocks: dense, F16 where that holds every weight, else F32.
fn spread_columns(matrix: &Matrix<'_>, heads: &[usize], block: usize) -> Packed {
    let columns = blocks(heads, block);
    let mut row = vec![0.0f32; matrix.cols];
    let mut values = Vec::with_capacity(matrix.rows * matrix.cols);
    for r in 0..matrix.rows {
        matrix.decode_row(r, &mut row);
        values.extend(columns.iter().map(|&c| row[c]));
    }
    let (format, codes) = match super::matrices::smallest_float(&values, false) {
        (ParamType::F32, codes) => (Format::F32, codes),
        (_, codes) => (Format::F16, codes),
    };
    Packed { format, rows: matrix.rows, cols: matrix.cols, codes, scales: Vec::new(), biases: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: HeadOrder = HeadOrder { key_heads: 16, value_heads: 48, key_dim: 128, value_dim: 128 };

    #[test]
    fn the_two_directions_undo_each_other() {
        let (tiled, grouped) = (ORDER.heads(Direction::ToTiled), ORDER.heads(Direction::ToGrouped));
        assert!((0..48).all(|h| tiled[grouped[h]] == h));
        // Value head 3k + j becomes head 16 j + k.
        assert!((0..16).all(|k| (0..3).all(|j| tiled[16 * j + k] == 3 * k + j)));
    }

    #[test]
    fn queries_and_keys_stay() {
        let channels = ORDER.channels(Direction::ToTiled);
        assert_eq!(channels.len(), 10_240);
        assert!(channels[..4096].iter().enumerate().all(|(i, c)| i == *c));
        assert_eq!(channels[4096 + 128], 4096 + 3 * 128);
    }
}
