//! How weights lie in memory: a few resident layouts, whatever the file's format was.
//!
//! A weight is cut into blocks of 32 rows, a block into groups of columns, and a block's groups follow one another:
//! one stream of records for a kernel that computes 32 rows at once.
//!
//! ```text
//! record     codes of 32 rows x group columns | 32 scales | 32 biases, where they carry information
//! bits1      unit j = the bytes j*u.. of each row (8 columns a byte), u bytes a row, rows in `BitOrder::position`
//! bits2      the same, two planes for each unit: 32 low bits, then 32 high bits
//! triples    14 words of 16 bits a row and group of 128, three ternary codes in five bits (`repack/triples.rs`)
//! block4     four columns at a time, 2 bytes a row: columns 0, 1 in the low nibbles and 2, 3 in the high ones
//! block8     two columns at a time, 2 bytes a row, signed (code - 128)
//! dense      column by column, 32 values, groups of 128
//! ```
//!
//! Where a tier reads blocks side by side as one stream ([`Layout::together`]), their lines of 64 bytes lie in turn: the
//! first line of each block, then the second of each, and so on. The last set of a segment may have fewer blocks.
//!
//! A weight is `scale * code + bias`, and in a symmetric matrix `bias = -center * scale`: there kernels sum the values
//! `code - center` (1 bit: `2 code - 1`, with half the scale) and no bias is kept.
//! Rows are padded to whole blocks with zero scales.

use crate::memory::Bytes;
use onebit_ops::Table;
use onebit_quant::{ParamType, Residual, Symmetry};
use std::ops::Range;

/// Rows of a block.
pub(crate) const BLOCK: usize = 32;

/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// Counts the changes of what is described here: weights that were kept between runs are of no use after one. What a tier
/// chooses has its part in [`Backend::layout`](onebit_ops::Backend::layout) beside.
pub(crate) const VERSION: u32 = 2;

/// Columns of a dense record, and of an activation group.
pub(crate) const GROUP: usize = 128;

/// One number for each row of a block.
pub(crate) type Lanes<T> = [T; BLOCK];

/// How codes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codes {
    Bits1,
    Bits2,
    Triples,
    Block4,
    Block8,
    Dense(ParamType),
}

/// Where a row's bits lie in a unit of a block; each tier has its own, so that sums come out in row order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BitOrder {
    /// Consecutive bytes of a row in one unit.
    pub unit: usize,
    /// Place of each row.
    pub position: Lanes<u8>,
}

/// Rows in their own order.
pub(crate) static PLAIN_ORDER: BitOrder = BitOrder { unit: 1, position: plain() };

const fn plain() -> Lanes<u8> {
    let mut position = [0; BLOCK];
    let mut r = 0;
    while r < BLOCK {
        position[r] = r as u8;
        r += 1;
    }
    position
}

/// Layout of a segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Layout {
    pub codes: Codes,
    /// Columns that share a scale.
    pub group: usize,
    pub cols: usize,
    /// Stored type of the scales.
    pub scale: ParamType,
    /// Stored type of the biases, when they are kept.
    pub bias: Option<ParamType>,
    /// Multiplies the stored scale to make that of the summed values.
    pub factor: f32,
    /// The code whose weight is zero in a symmetric matrix.
    pub center: f32,
    /// Place of the rows in bit layouts.
    pub order: &'static BitOrder,
    /// Blocks whose lines lie in turn; 1 where each block lies in one piece. More than one only where codes, scales and
    /// biases are whole lines.
    pub together: usize,
}

impl Layout {
    pub(crate) fn is_packed(&self) -> bool {
        !matches!(self.codes, Codes::Dense(_))
    }

    pub(crate) fn groups(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Columns of group `g`.
    pub(crate) fn columns(&self, g: usize) -> Range<usize> {
        g * self.group..((g + 1) * self.group).min(self.cols)
    }

    /// Bytes of one row's codes in a full group.
    fn row_bytes(&self) -> usize {
        match self.codes {
            Codes::Bits1 => self.group / 8,
            Codes::Bits2 => self.group / 4,
            Codes::Triples => self.group * 7 / 32,
            Codes::Block4 => self.group / 2,
            Codes::Block8 => self.group,
            Codes::Dense(kind) => self.group * kind.bytes(),
        }
    }

    /// Bytes of all codes in a full record; the scales begin there.
    pub(crate) fn code_bytes(&self) -> usize {
        self.row_bytes() * BLOCK
    }

    /// First byte of the biases in a record.
    pub(crate) fn bias_start(&self) -> usize {
        self.code_bytes() + BLOCK * self.scale.bytes()
    }

    /// Bytes of a full record.
    pub(crate) fn record_bytes(&self) -> usize {
        if self.is_packed() {
            self.bias_start() + BLOCK * self.bias.map_or(0, ParamType::bytes)
        } else {
            self.code_bytes()
        }
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(&self) -> usize {
        match self.codes {
            Codes::Dense(kind) => self.cols * kind.bytes() * BLOCK,
            _ => self.groups() * self.record_bytes(),
        }
    }

    /// `bits1`, `bits2 affine`, `dense f16`, ...
    pub(crate) fn name(&self) -> String {
        let base = match self.codes {
            Codes::Bits1 => "bits1",
            Codes::Bits2 => "bits2",
            Codes::Triples => "triples",
            Codes::Block4 => "block4",
            Codes::Block8 => "block8",
            Codes::Dense(kind) => return format!("dense-{}", kind.name().to_lowercase()),
        };
        if self.bias.is_some() { format!("{base}-affine") } else { base.to_owned() }
    }
}

/// Rows of a weight that lie in one layout.
pub(crate) struct Segment {
    /// Its rows of the weight.
    pub rows: Range<usize>,
    pub layout: Layout,
    pub data: Bytes,
    /// Residuals of the few groups whose bias was rounded; rows count from the segment's first.
    pub sparse: Vec<Residual>,
}

impl Segment {
    pub(crate) fn blocks(&self) -> usize {
        self.rows.len().div_ceil(BLOCK)
    }

    /// The blocks whose lines lie in turn with those of block `b`.
    pub(crate) fn set(&self, b: usize) -> Range<usize> {
        let together = self.layout.together;
        let first = b / together * together;
        first..(first + together).min(self.blocks())
    }

    /// The bytes of some blocks: one, where each lies in one piece, or else a set.
    pub(crate) fn bytes_of(&self, blocks: Range<usize>) -> &[u8] {
        let bytes = self.layout.block_bytes();
        &self.data.bytes()[blocks.start * bytes..blocks.end * bytes]
    }

    /// The records of a block that lies in one piece.
    pub(crate) fn block(&self, b: usize) -> &[u8] {
        debug_assert_eq!(self.layout.together, 1, "the block's lines lie apart");
        self.bytes_of(b..b + 1)
    }

    /// Record `g` of a block that lies in one piece; the last of a dense block may be short.
    pub(crate) fn record(&self, b: usize, g: usize) -> &[u8] {
        let bytes = self.layout.record_bytes();
        let block = self.block(b);
        &block[g * bytes..((g + 1) * bytes).min(block.len())]
    }

    /// Record `g` of any block, put together in `copy` where its lines lie apart.
    pub(crate) fn gathered<'a>(&'a self, b: usize, g: usize, copy: &'a mut Vec<u8>) -> &'a [u8] {
        if self.layout.together == 1 {
            return self.record(b, g);
        }
        let (set, lines) = (self.set(b), self.layout.record_bytes() / LINE);
        let all = self.bytes_of(set.clone()).as_chunks::<LINE>().0;
        copy.clear();
        for line in all[g * lines * set.len() + b - set.start..].iter().step_by(set.len()).take(lines) {
            copy.extend_from_slice(line);
        }
        copy
    }

    /// The sparse residuals of block `b`.
    pub(crate) fn sparse_of(&self, b: usize) -> &[Residual] {
        let start = self.sparse.partition_point(|r| r.row < b * BLOCK);
        let end = self.sparse.partition_point(|r| r.row < (b + 1) * BLOCK);
        &self.sparse[start..end]
    }
}

/// A weight: segments in row order.
pub(crate) struct Packed {
    pub segments: Vec<Segment>,
    /// Of each part.
    pub symmetry: Vec<Symmetry>,
    /// In place of segments, rows as the file has them: they can be looked up, not multiplied by.
    pub table: Option<Table>,
}
