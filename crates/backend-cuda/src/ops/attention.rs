//! Attention over the pages of one layer.

use super::{Call, Frame};
use crate::cache::Memory;
use crate::launch::{self, AttentionLaunches, AttentionShape};
use crate::params::AttentionParams;
use onebit_ops::{Bucket, OpError, Tensor, View};

fn launches(bucket: Bucket, q: View, k: View, memory: &Memory) -> Result<AttentionLaunches, OpError> {
    launch::attention(AttentionShape {
        rows: bucket.rows,
        context: bucket.context,
        heads: q.heads,
        kv_heads: k.heads,
        dim: q.dim,
        format: memory.spec().kv.format,
    })
}

/// Bytes for the partial results.
pub(super) fn scratch(bucket: Bucket, q: View, k: View, memory: &Memory) -> Result<usize, OpError> {
    Ok(launches(bucket, q, k, memory)?.partials_bytes)
}

pub(super) fn calls(
    frame: &Frame<'_>,
    [q, k, v]: [View; 3],
    layer: usize,
    scale: f32,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let AttentionLaunches { launches, splits, .. } = launches(frame.bucket, q, k, frame.memory)?;
    let (pages, page_bytes) = frame.memory.pages(layer);
    let params = AttentionParams {
        step: frame.step,
        q: frame.view(q),
        k: frame.view(k),
        v: frame.view(v),
        pages,
        partials: frame.scratch,
        out: frame.place(out),
        page_bytes,
        out_stride: frame.cols(out),
        format: launch::kv_format(frame.memory.spec().kv.format),
        scale,
        splits,
    };
    Ok(launches.into_iter().map(|launch| Call::new(launch, params)).collect())
}
