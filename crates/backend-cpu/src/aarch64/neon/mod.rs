//! NEON: byte tables through `tbl`, blocks through widening multiply-adds.

mod bits;
mod block;
mod tables;
mod vector;

use crate::generic::packed::{FloatRows, GroupSum};
use crate::generic::{
    Kernels, Operand, attention, delta, full_attention, image, kernel_list, kv, lifted_kernels, packed, rows, softmax,
};
use crate::layout::{Codes, PLAIN_ORDER, Segment};
use onebit_ops::KvFormat;
use std::ops::Range;
use vector::F32x8;

/// The kernels of every aarch64 machine.
pub(crate) static KERNELS: Kernels = kernel_list!(
    lifted_kernels,
    F32x8; "neon";
    bits1_order: &PLAIN_ORDER,
    bits2_order: &PLAIN_ORDER,
    together: 1,
    operand: Operand { bytes: tables::BYTES, unit: None, build: tables::build },
    many: None,
    triples: None,
    integers: None,
    int_blocks: |segment, blocks, x, acc| match segment.layout.codes {
        Codes::Bits1 | Codes::Bits2 => bits::int_blocks(segment, blocks, x, acc),
        Codes::Block4 | Codes::Block8 => block::int_blocks(segment, blocks, x, acc),
        Codes::Triples | Codes::Dense(_) => unreachable!("no triples are made for this tier, and dense weights meet floats"),
    }
);
