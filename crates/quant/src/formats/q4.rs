//! `Q4_0` and `Q4_1`: 4-bit weights, one scale per 32 (GGUF ids 2 and 3).
//!
//! ```text
//! Q4_0   [ d (f16 LE) | 16 bytes: low nibbles = elements 0..16, high nibbles = elements 16..32 ]   w = d * (code - 8)
//! Q4_1   [ d (f16 LE) | m (f16 LE) | 16 bytes, same order ]                                       w = d * code + m
//! ```
//!
//! Note the order: MLX keeps neighbours in one byte, these keep elements 16 apart. Source: `ggml-common.h`.

use super::{Block, Params};
use crate::format::Format;

const _: () = assert!(Q4_0.bytes == 2 + 16);
const _: () = assert!(Q4_1.bytes == 4 + 16);

/// Row of `Q4_0`.
pub const Q4_0: Block = Block {
    format: Format::Q4_0,
    name: "Q4_0",
    gguf_id: 2,
    elements: 32,
    bytes: 18,
    bits: 4,
    max_code: 15,
    scale_of_d: 1.0,
    bias_of_d: Some(-8.0),
    read: |block, codes| {
        read_nibbles(&block[2..18], codes);
        Params::d_at(block, 0)
    },
    write: |codes, params, block| {
        block[..2].copy_from_slice(&params.d.to_le_bytes());
        write_nibbles(codes, &mut block[2..18]);
    },
};

/// Row of `Q4_1`.
pub const Q4_1: Block = Block {
    format: Format::Q4_1,
    name: "Q4_1",
    gguf_id: 3,
    elements: 32,
    bytes: 20,
    bits: 4,
    max_code: 15,
    scale_of_d: 1.0,
    bias_of_d: None,
    read: |block, codes| {
        read_nibbles(&block[4..20], codes);
        Params { m: Params::d_at(block, 2).d, ..Params::d_at(block, 0) }
    },
    write: |codes, params, block| {
        block[..2].copy_from_slice(&params.d.to_le_bytes());
        block[2..4].copy_from_slice(&params.m.to_le_bytes());
        write_nibbles(codes, &mut block[4..20]);
    },
};

fn read_nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((&byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

fn write_nibbles(codes: &[u8], bytes: &mut [u8]) {
    for (j, byte) in bytes.iter_mut().enumerate() {
        *byte = codes[j] | (codes[j + 16] << 4);
    }
}
