//! What a program must have in common with its cache before anything of it reaches the device.

use crate::cache::MOST_SAMPLED;
use onebit_ops::{Bucket, CacheSpec, Op, OpError};

/// Refuses what does not fit the cache, and more rows than tokens are chosen for.
///
/// # Errors
/// [`OpError::Shape`] with both numbers.
pub(crate) fn check(op: &Op, bucket: Bucket, cache: &CacheSpec) -> Result<(), OpError> {
    cache.check(op)?;
    match op {
        Op::Sample { .. } if bucket.logits > MOST_SAMPLED => Err(OpError::Shape {
            op: op.name(),
            what: "logit rows on cuda".to_owned(),
            wanted: format!("up to {MOST_SAMPLED}"),
            got: bucket.logits.to_string(),
        }),
        _ => Ok(()),
    }
}

/// Whether only image models record an op.
pub(crate) fn is_for_images(op: &Op) -> bool {
    matches!(
        op,
        Op::Input { .. }
            | Op::Modulate { .. }
            | Op::GatedAdd { .. }
            | Op::RotatePairs { .. }
            | Op::FullAttention { .. }
            | Op::JoinRows { .. }
            | Op::TakeRows { .. }
            | Op::JoinColumns { .. }
            | Op::GroupNorm { .. }
            | Op::Conv2d { .. }
    )
}
