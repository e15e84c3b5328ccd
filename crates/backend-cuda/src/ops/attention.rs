//! Attention over the pages of one layer.

use super::{Call, Frame};
use crate::cache::Memory;
use crate::driver::Device;
use crate::launch::{self, AttentionLaunches, AttentionShape};
use crate::params::{AttentionParams, HeadsParams, PrepareParams};
use onebit_ops::{Bucket, OpError, Tensor, View};

fn launches(bucket: Bucket, q: View, k: View, memory: &Memory, device: &Device) -> Result<AttentionLaunches, OpError> {
    launch::attention(AttentionShape {
        rows: bucket.rows,
        context: bucket.context,
        heads: q.heads,
        kv_heads: k.heads,
        dim: q.dim,
        format: memory.spec().kv.format,
        arch: device.arch,
        shared: device.shared_bytes,
        multiprocessors: device.multiprocessors,
    })
}

/// Bytes for the partial results.
pub(super) fn scratch(bucket: Bucket, q: View, k: View, memory: &Memory, device: &Device) -> Result<usize, OpError> {
    Ok(launches(bucket, q, k, memory, device)?.partials_bytes)
}

/// Whether an attention op can make its results the input of a product at once, alone or `with_heads`.
pub(super) fn rounds(frame: &Frame<'_>, q: View, k: View, with_heads: bool) -> Result<bool, OpError> {
    let AttentionLaunches { one, rounds, .. } = launches(frame.bucket, q, k, frame.memory, frame.device)?;
    Ok(rounds[usize::from(with_heads && one.is_some())])
}

/// One layer's attention.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    pub qkv: [View; 3],
    pub layer: usize,
    pub scale: f32,
    pub out: Tensor,
    /// What is made of the results at once, as a product's input; they are written nowhere then.
    pub next: Option<PrepareParams>,
}

pub(super) fn calls(frame: &Frame<'_>, op: Attention) -> Result<Vec<Call>, OpError> {
    let (AttentionLaunches { launches, .. }, params) = prepare(frame, op)?;
    Ok(launches.into_iter().map(|launch| Call::new(launch, params)).collect())
}

/// The same behind a projection whose queries, keys and values are `raw`: the first kernel norms, turns and appends them,
/// and leaves the queries in `op`'s; or one kernel does everything.
pub(super) fn with_heads(
    frame: &Frame<'_>,
    raw: [View; 3],
    heads: HeadsParams,
    op: Attention,
) -> Result<Vec<Call>, OpError> {
    let ([q_raw, k, v], q) = (raw, op.qkv[0]);
    let (AttentionLaunches { launches, one, .. }, params) = prepare(frame, Attention { qkv: [q, k, v], ..op })?;
    let attention = AttentionParams { q: frame.view(q_raw), ..params };
    if let Some(one) = one {
        return Ok(vec![Call::new(one, HeadsParams { attention, ..heads })]);
    }
    let first = launch::heads_append(frame.bucket.rows, q.heads + 2 * k.heads, frame.memory.spec().kv.format);
    let rest = launches.into_iter().skip(1).map(|launch| Call::new(launch, params));
    Ok(std::iter::once(Call::new(first, HeadsParams { attention, ..heads })).chain(rest).collect())
}

/// The launches, and what all of them are handed.
fn prepare(frame: &Frame<'_>, op: Attention) -> Result<(AttentionLaunches, AttentionParams), OpError> {
    let Attention { qkv: [q, k, v], layer, scale, out, next } = op;
    let launches = launches(frame.bucket, q, k, frame.memory, frame.device)?;
    let (pages, page_stride) = frame.memory.pages(layer);
    let params = AttentionParams {
        step: frame.step,
        q: frame.view(q),
        k: frame.view(k),
        v: frame.view(v),
        pages,
        partials: frame.scratch,
        counters: frame.counters,
        out: frame.place(out),
        page_stride,
        out_stride: frame.cols(out),
        format: launch::kv_format(frame.memory.spec().kv.format),
        scale,
        splits: launches.splits,
        staged: launches.staged,
        short_splits: launches.short_splits,
        next: next.unwrap_or_default(),
    };
    Ok((launches, params))
}
