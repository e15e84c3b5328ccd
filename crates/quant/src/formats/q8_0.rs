//! `Q8_0`: 8-bit weights, one scale per 32 (GGUF id 8).
//!
//! ```text
//! byte    0     1     2                    33
//!       [ d (f16 LE) | 32 signed bytes q ]       w = d * q
//! ```
//!
//! The unsigned code is `q + 128`, so that `w = d * code - 128 d`; the sum is exact in f32 because `d` has 11
//! significant bits and a code 8. Source: `ggml-common.h`.

use super::{Block, Params};
use crate::format::Format;

const BYTES: usize = 34;
const _: () = assert!(BYTES == 2 + 32);

/// Row of the format table.
pub const ROW: Block = Block {
    format: Format::Q8_0,
    name: "Q8_0",
    gguf_id: 8,
    elements: 32,
    bytes: BYTES,
    bits: 8,
    max_code: 255,
    scale_of_d: 1.0,
    bias_of_d: Some(-128.0),
    read,
    write,
};

fn read(block: &[u8], codes: &mut [u8]) -> Params {
    // Adding 128 to a two's-complement byte flips its top bit.
    for (code, &q) in codes.iter_mut().zip(&block[2..BYTES]) {
        *code = q ^ 0x80;
    }
    Params::d_at(block, 0)
}

fn write(codes: &[u8], params: Params, block: &mut [u8]) {
    block[..2].copy_from_slice(&params.d.to_le_bytes());
    for (q, &code) in block[2..BYTES].iter_mut().zip(codes) {
        *q = code ^ 0x80;
    }
}
