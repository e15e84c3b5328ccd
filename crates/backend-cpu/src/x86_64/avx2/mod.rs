//! AVX2 with FMA and F16C: every x86 machine since 2015 or so.

mod vector;

use crate::generic::packed::{FloatRows, GroupSum, IntRows};
use crate::generic::{Kernels, attention, delta, kernel_list, kv, lifted_kernels, packed, rows};
use crate::layout::{PLAIN_ORDER, Segment};
use onebit_ops::KvFormat;
use std::ops::Range;
use vector::F32x8;

/// To be reached through [`super::kernels`] only, which wants a proof.
pub(super) static KERNELS: Kernels = kernel_list!(
    lifted_kernels,
    F32x8; "avx2,fma,f16c";
    bits1_order: &PLAIN_ORDER,
    bits2_order: &PLAIN_ORDER,
    table_bytes: 0,
    build_tables: |_, _| {},
    int_blocks: int_blocks
);

fn int_blocks(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn other(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
        packed::int_blocks::<F32x8>(segment, blocks, x, acc);
    }
    // SAFETY: this table is reached only with a proof that the machine has these features.
    unsafe { other(segment, blocks, x, acc) }
}
