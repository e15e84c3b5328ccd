//! AVX2 with FMA and F16C: every x86 machine since 2015 or so.

mod bits;
pub(super) mod block;
mod tables;
mod vector;

use crate::generic::packed::{FloatRows, GroupSum, IntRows};
use crate::generic::{Kernels, attention, delta, kernel_list, kv, lifted_kernels, packed, rows};
use crate::layout::{Codes, Segment};
use onebit_ops::KvFormat;
use std::ops::Range;
pub(super) use vector::F32x8;

/// To be reached through [`super::kernels`] only, which wants a proof.
pub(super) static KERNELS: Kernels = kernel_list!(
    lifted_kernels,
    F32x8; "avx2,fma,f16c";
    bits1_order: &bits::BITS1_ORDER,
    bits2_order: &bits::BITS2_ORDER,
    table_bytes: tables::BYTES,
    build_tables: build_tables,
    int_blocks: int_blocks
);

fn build_tables(values: &[i16], tables: &mut [u8]) {
    // SAFETY: the table of kernels is reached only with a proof that the machine has these features.
    unsafe { tables::build(values, tables) }
}

fn int_blocks(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    // SAFETY: the table of kernels is reached only with a proof that the machine has these features.
    unsafe {
        match segment.layout.codes {
            Codes::Bits1 | Codes::Bits2 => bits::int_blocks(segment, blocks, x, acc),
            _ => block::int_blocks(segment, blocks, x, acc),
        }
    }
}
