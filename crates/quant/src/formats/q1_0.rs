//! `Q1_0`: binary weights, one scale per 128 (GGUF id 41).
//!
//! ```text
//! byte    0     1     2                               17
//!       [ d (f16 LE) | 128 bits, element j = bit j%8 of byte 2 + j/8 ]
//! bit 1 -> +d, bit 0 -> -d
//! ```
//!
//! The 16 code bytes equal the four words of an MLX 1-bit group, whose scale is `2d` and bias `-d`.
//! Source: `ggml-common.h` and `ggml-quants.c` of llama.cpp.

use super::{Block, Params, affine};
use crate::format::Format;

const BYTES: usize = 18;
const _: () = assert!(BYTES == 2 + 128 / 8);

/// Row of the format table.
pub const ROW: Block = Block {
    format: Format::Q1_0,
    name: "Q1_0",
    gguf_id: 41,
    elements: 128,
    bytes: BYTES,
    bits: 1,
    max_code: 1,
    scale_of_d: 2.0,
    bias_of_d: Some(-1.0),
    read,
    write,
};

fn read(block: &[u8], codes: &mut [u8]) -> Params {
    affine::read_codes(1, &block[2..], codes);
    Params::d_at(block, 0)
}

fn write(codes: &[u8], params: Params, block: &mut [u8]) {
    block[..2].copy_from_slice(&params.d.to_le_bytes());
    affine::write_codes(1, codes, &mut block[2..]);
}
