//! Attention over the pages of one layer.

use super::{Bound, Call, Extent, Frame, Launch};
use crate::adapter::fault;
use crate::cache::{head_words, page_words};
use crate::shaders;
use onebit_ops::{Bucket, OpError, Rows, Tensor, View};

/// Tokens of one split.
pub(super) const SPLIT_TOKENS: usize = 256;

/// Rows up to which a context is cut into splits that run side by side.
const MOST_SPLIT_ROWS: usize = 16;

fn is_split(bucket: Bucket) -> bool {
    bucket.rows <= MOST_SPLIT_ROWS && bucket.context > SPLIT_TOKENS
}

/// Words for the partial results.
pub(super) fn scratch(bucket: Bucket, q: View) -> usize {
    if !is_split(bucket) {
        return 0;
    }
    bucket.rows * q.heads * bucket.context.div_ceil(SPLIT_TOKENS) * (q.dim + 2)
}

pub(super) fn calls(
    frame: &Frame<'_>,
    [q, k, v]: [View; 3],
    layer: usize,
    scale: f32,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let kv = frame.memory.spec().kv;
    let format = shaders::kv_number(kv.format).ok_or_else(|| fault("its cache has keys of a format without a kernel"))?;
    let pages = [page_words(&kv), head_words(&kv), kv.heads, kv.dim].map(|n| n as u32);
    let (cache, one) = (Bound::whole(frame.memory.pages(layer)), Extent::Fixed(1));
    let rows = Extent::Rows(Rows::Step, 1);
    let words = kv.heads * kv.format.head_bytes(kv.dim) / 4;

    let mut params = frame.view(k).to_vec();
    params.extend(frame.view(v));
    params.extend(pages);
    let grid = [Extent::Fixed(words.div_ceil(128)), rows, Extent::Fixed(2)];
    let append = Call::new(
        Launch::always(shaders::append(format), grid),
        params,
        vec![frame.bound_step(), frame.bound_arena(), cache.clone()],
    );

    let split = is_split(frame.bucket);
    let splits = frame.bucket.context.div_ceil(SPLIT_TOKENS) as u32;
    let place = [frame.place(out), frame.cols(out)];
    // Heads are blocks here, whatever lies between them.
    let mut params = super::blocks(frame, q).to_vec();
    params.extend(pages);
    params.extend([place[0], place[1], scale.to_bits(), splits, 0, 0, 0, 0]);
    let grid = [Extent::Fixed(q.heads), rows, if split { Extent::Splits } else { one }];
    let attend = Call::new(
        Launch::always(shaders::attention(format, q.dim as u32, split), grid),
        params,
        vec![frame.bound_step(), cache.clone(), cache, frame.bound_scratch(), frame.bound_arena()],
    );
    let mut calls = vec![append, attend];
    if split {
        let params = vec![q.heads as u32, q.dim as u32, splits, 0, place[0], place[1], 0, 0];
        let launch = Launch::always(shaders::COMBINE.with(&[]), [Extent::Fixed(q.heads), rows, one]);
        let bound = vec![frame.bound_step(), frame.bound_scratch(), frame.bound_arena()];
        calls.push(Call::new(launch, params, bound));
    }
    Ok(calls)
}
