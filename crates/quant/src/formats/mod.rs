//! The format table: one file per family, one row per GGUF block format.
//!
//! To add a block format: a file here with its layout diagram, reader, writer and [`Block`] row, the row in
//! [`BLOCKS`], and a variant of [`Format`].

pub mod affine;
pub mod ptq1_0;
pub mod q1_0;
pub mod q2_0;
pub mod q4;
pub mod q8_0;

use crate::format::Format;

/// One row of the table: a GGUF block is a fixed number of codes, a binary16 `d` and, in one format, a binary16 `m`.
#[derive(Debug)]
pub struct Block {
    /// The variant that this row describes.
    pub format: Format,
    /// Name as used in file names and messages.
    pub name: &'static str,
    /// Type id in a GGUF tensor table.
    pub gguf_id: u32,
    /// Weights per block, which is also the native group.
    pub elements: usize,
    /// Bytes per block.
    pub bytes: usize,
    /// Bits that a code needs.
    pub bits: u8,
    /// Largest code.
    pub max_code: u8,
    /// `scale = scale_of_d * d`.
    pub scale_of_d: f32,
    /// `bias = bias_of_d * d`; `None` when the bias is the stored `m`.
    pub bias_of_d: Option<f32>,
    /// Unpacks one block into `elements` codes.
    pub(crate) read: fn(block: &[u8], codes: &mut [u8]) -> Params,
    /// Packs `elements` codes, each at most `max_code`, into one block.
    pub(crate) write: fn(codes: &[u8], params: Params, block: &mut [u8]),
}

/// The stored binary16 numbers of a block; `m` is 0 where the format has none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Params {
    pub(crate) d: u16,
    pub(crate) m: u16,
}

impl Params {
    pub(crate) fn d_at(block: &[u8], at: usize) -> Self {
        Self { d: u16::from_le_bytes([block[at], block[at + 1]]), m: 0 }
    }
}

/// All block formats.
pub static BLOCKS: [Block; 8] =
    [q1_0::ROW, q2_0::Q2_0G64, q2_0::Q2_0G128, q2_0::PQ2_0, ptq1_0::ROW, q4::Q4_0, q4::Q4_1, q8_0::ROW];

pub(crate) fn block(format: Format) -> Option<&'static Block> {
    let index = match format {
        Format::Q1_0 => 0,
        Format::Q2_0G64 => 1,
        Format::Q2_0G128 => 2,
        Format::Pq2_0 => 3,
        Format::Ptq1_0 => 4,
        Format::Q4_0 => 5,
        Format::Q4_1 => 6,
        Format::Q8_0 => 7,
        Format::F32 | Format::F16 | Format::BF16 | Format::Affine { .. } => return None,
    };
    Some(&BLOCKS[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_format() {
        for row in &BLOCKS {
            assert_eq!(block(row.format).unwrap().name, row.name);
        }
    }

    #[test]
    fn bytes_per_block_are_those_of_the_files() {
        let sizes: Vec<_> = BLOCKS.iter().map(|b| (b.name, b.gguf_id, b.elements, b.bytes)).collect();
        assert_eq!(
            sizes,
            [
                ("Q1_0", 41, 128, 18),
                ("Q2_0 g64", 42, 64, 18),
                ("Q2_0 g128", 42, 128, 34),
                ("PQ2_0", 142, 128, 34),
                ("PTQ1_0", 143, 128, 28),
                ("Q4_0", 2, 32, 18),
                ("Q4_1", 3, 32, 20),
                ("Q8_0", 8, 32, 34),
            ]
        );
    }
}
