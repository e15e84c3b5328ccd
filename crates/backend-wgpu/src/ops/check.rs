//! What a program must have in common with its cache before anything of it reaches the device.

use crate::cache::MOST_SAMPLED;
use crate::shaders::HEAD_DIMS;
use onebit_ops::{Bucket, CacheSpec, Op, OpError};

/// Logits of a row: 256 pieces of 4,096.
const MOST_VOCAB: usize = 1 << 20;

/// Rows that the convolution reaches back at most.
const MOST_KERNEL: usize = 16;

/// Refuses layers that the cache does not have and shapes that are not its own.
///
/// # Errors
/// [`OpError::Shape`] with both numbers.
pub(crate) fn check(op: &Op, bucket: Bucket, cache: &CacheSpec) -> Result<(), OpError> {
    let name = op.name();
    match op {
        Op::Attention { k, layer, .. } => {
            let kv = &cache.kv;
            below(name, "KV layer", kv.layers, *layer)?;
            equal(name, "key heads", kv.heads, k.heads)?;
            equal(name, "head dimension", kv.dim, k.dim)?;
            if !HEAD_DIMS.contains(&(k.dim as u32)) {
                let known: Vec<String> = HEAD_DIMS.iter().map(u32::to_string).collect();
                return Err(wrong(name, "head dimension on wgpu", format!("one of {}", known.join(", ")), k.dim));
            }
            Ok(())
        }
        Op::ConvSilu { x, kernel, layer, .. } => {
            let (layers, channels, window) = cache.state.map_or((0, 0, 0), |s| (s.layers, s.channels, s.kernel));
            below(name, "state layer", layers, *layer)?;
            equal(name, "channels", channels, x.cols())?;
            equal(name, "kernel", window, *kernel)?;
            if *kernel > MOST_KERNEL {
                return Err(wrong(name, "kernel size on wgpu", format!("up to {MOST_KERNEL}"), *kernel));
            }
            Ok(())
        }
        Op::GatedDelta { k, v, layer, .. } => {
            let (layers, shape) = cache.state.map_or((0, [0; 3]), |s| (s.layers, [s.heads, s.key_dim, s.value_dim]));
            below(name, "state layer", layers, *layer)?;
            let parts = ["value heads", "key dimension", "value dimension"];
            parts
                .iter()
                .zip(shape)
                .zip([v.heads, k.dim, v.dim])
                .try_for_each(|((what, wanted), got)| equal(name, what, wanted, got))
        }
        Op::Sample { .. } if bucket.logits > MOST_SAMPLED => {
            Err(wrong(name, "logit rows on wgpu", format!("up to {MOST_SAMPLED}"), bucket.logits))
        }
        Op::Sample { logits } if logits.cols() > MOST_VOCAB => {
            Err(wrong(name, "logits of a row on wgpu", format!("up to {MOST_VOCAB}"), logits.cols()))
        }
        _ => Ok(()),
    }
}

fn below(op: &'static str, what: &str, count: usize, got: usize) -> Result<(), OpError> {
    if got < count { Ok(()) } else { Err(wrong(op, what, format!("below {count}"), got)) }
}

fn equal(op: &'static str, what: &str, wanted: usize, got: usize) -> Result<(), OpError> {
    if got == wanted { Ok(()) } else { Err(wrong(op, what, wanted.to_string(), got)) }
}

fn wrong(op: &'static str, what: &str, wanted: String, got: usize) -> OpError {
    OpError::Shape { op, what: what.to_owned(), wanted, got: got.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_ops::{KvFormat, KvSpec, Tensor, View};

    #[test]
    fn a_head_that_the_pages_were_not_made_for_is_refused() {
        let kv = KvSpec { layers: 1, heads: 2, dim: 64, pages: 1, format: KvFormat::F16 };
        let cache = CacheSpec { kv, state: None };
        let bucket = Bucket { rows: 1, logits: 1, context: 64 };
        let view = |heads| View { tensor: Tensor(0), offset: 0, heads, dim: 64, stride: 64 };
        let op = |layer, heads| Op::Attention {
            q: view(4),
            k: view(heads),
            v: view(heads),
            layer,
            scale: 1.0,
            out: Tensor(1),
        };
        assert_eq!(check(&op(0, 2), bucket, &cache), Ok(()));
        let text = |op: Op| check(&op, bucket, &cache).unwrap_err().to_string();
        assert_eq!(text(op(1, 2)), "attention: KV layer: wanted below 1, got 1");
        assert_eq!(text(op(0, 4)), "attention: key heads: wanted 2, got 4");
    }
}
