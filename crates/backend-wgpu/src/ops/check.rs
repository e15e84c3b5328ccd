//! What a program must have in common with its cache before anything of it reaches the device.

use crate::cache::MOST_SAMPLED;
use crate::shaders::HEAD_DIMS;
use onebit_ops::{Bucket, CacheSpec, Op, OpError};

/// Logits of a row: 256 pieces of 4,096.
const MOST_VOCAB: usize = 1 << 20;

/// Rows that the convolution reaches back at most.
const MOST_KERNEL: usize = 16;

/// Refuses what does not fit the cache, and shapes that the kernels do not have.
///
/// # Errors
/// [`OpError::Shape`] with both numbers.
pub(crate) fn check(op: &Op, bucket: Bucket, cache: &CacheSpec) -> Result<(), OpError> {
    cache.check(op)?;
    let wrong = |what: &str, wanted: String, got: usize| {
        Err(OpError::Shape { op: op.name(), what: format!("{what} on wgpu"), wanted, got: got.to_string() })
    };
    match op {
        Op::Attention { k, .. } if !HEAD_DIMS.contains(&(k.dim as u32)) => {
            let known: Vec<String> = HEAD_DIMS.iter().map(u32::to_string).collect();
            wrong("head dimension", format!("one of {}", known.join(", ")), k.dim)
        }
        Op::ConvSilu { kernel, .. } if *kernel > MOST_KERNEL => {
            wrong("kernel size", format!("up to {MOST_KERNEL}"), *kernel)
        }
        Op::Sample { .. } if bucket.logits > MOST_SAMPLED => {
            wrong("logit rows", format!("up to {MOST_SAMPLED}"), bucket.logits)
        }
        Op::Sample { logits } if logits.cols() > MOST_VOCAB => {
            wrong("logits of a row", format!("up to {MOST_VOCAB}"), logits.cols())
        }
        _ => Ok(()),
    }
}
