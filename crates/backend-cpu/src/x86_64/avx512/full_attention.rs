//! Attention between the rows of a step, compiled for registers of 512 bits.

use super::wide::F32x16;
use crate::generic::full_attention::{Block, Queries, attend_wide};

/// As `Kernels::attend_block`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
pub(in crate::x86_64) fn attend_block(block: &Block<'_>, queries: &mut Queries<'_>) {
    attend_wide::<F32x16>(block, queries);
}
