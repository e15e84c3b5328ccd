//! `Q2_0` and `PQ2_0`: ternary weights at two bits each, in three spellings.
//!
//! ```text
//! byte    0     1     2                         17 or 33
//!       [ d (f16 LE) | 64 or 128 codes, element j = bits 2(j%4).. of byte 2 + j/4 ]
//! code 0 -> -d, 1 -> 0, 2 -> +d; 3 would be +2d and is never written by Bonsai packs
//! ```
//!
//! | name | GGUF id | block | bytes | where |
//! |---|---|---|---|---|
//! | `Q2_0` | 42 | 64 | 18 | llama.cpp, later fork files |
//! | `Q2_0` | 42 too | 128 | 34 | earlier fork files |
//! | `PQ2_0` | 142 | 128 | 34 | later fork files |
//!
//! The code bytes equal the words of an MLX 2-bit group with scale `d` and bias `-d`. A 64-block file of a model
//! with 128-groups stores each scale twice. Source: llama.cpp and the PrismML fork of it.

use super::{Block, Params, affine};
use crate::format::Format;

const _: () = assert!(Q2_0G64.bytes == 2 + 64 / 4);
const _: () = assert!(Q2_0G128.bytes == 2 + 128 / 4);
const _: () = assert!(PQ2_0.bytes == Q2_0G128.bytes);

/// Row of mainline's 64-element block.
pub const Q2_0G64: Block = row(Format::Q2_0G64, "Q2_0 g64", 42, 64, 18);
/// Row of the older fork's 128-element block under the same id.
pub const Q2_0G128: Block = row(Format::Q2_0G128, "Q2_0 g128", 42, 128, 34);
/// Row of the 128-element block under its own id.
pub const PQ2_0: Block = row(Format::Pq2_0, "PQ2_0", 142, 128, 34);

const fn row(format: Format, name: &'static str, gguf_id: u32, elements: usize, bytes: usize) -> Block {
    Block {
        format,
        name,
        gguf_id,
        elements,
        bytes,
        bits: 2,
        max_code: 3,
        scale_of_d: 1.0,
        bias_of_d: Some(-1.0),
        read,
        write,
    }
}

fn read(block: &[u8], codes: &mut [u8]) -> Params {
    affine::read_codes(2, &block[2..], codes);
    Params::d_at(block, 0)
}

fn write(codes: &[u8], params: Params, block: &mut [u8]) {
    block[..2].copy_from_slice(&params.d.to_le_bytes());
    affine::write_codes(2, codes, &mut block[2..]);
}
