//! Attention over the pages of one layer.

use super::linear::Target;
use super::{Bound, Call, Extent, Frame, Launch, Steps};
use crate::cache::{head_words, page_words};
use crate::inputs::Counts;
use crate::shaders::{self, inputs};
use onebit_ops::{Bucket, KvFormat, Norm, OpError, RopeTable, Rows, Tensor, View};
use std::sync::Arc;

/// Tokens of one split.
pub(super) const SPLIT_TOKENS: usize = 256;

/// Rows up to which a context is cut into splits that run side by side.
const MOST_SPLIT_ROWS: usize = 16;

pub(super) fn is_split(bucket: Bucket) -> bool {
    bucket.rows <= MOST_SPLIT_ROWS && bucket.context > SPLIT_TOKENS
}

/// Words for the partial results.
pub(super) fn scratch(bucket: Bucket, q: View) -> usize {
    if !is_split(bucket) {
        return 0;
    }
    // Whole vectors of four.
    (bucket.rows * q.heads * bucket.context.div_ceil(SPLIT_TOKENS) * (q.dim + 2)).next_multiple_of(4)
}

pub(super) fn calls(frame: &Frame<'_>, qkv: [View; 3], layer: usize, scale: f32, out: Tensor) -> Vec<Call> {
    let mut calls = vec![append(frame, qkv, layer)];
    calls.extend(attend(frame, |_| true, qkv[0], layer, scale, out));
    calls
}

/// Whether each split may make its own query, and the last ones a key and a value: there is no other row that reads them, and
/// so few splits that the device runs them at once.
fn makes_heads(counts: &Counts) -> bool {
    const MOST: usize = 32;
    counts.longest == 1 && counts.rows * counts.context.div_ceil(SPLIT_TOKENS) <= MOST
}

/// Whether such a context is one split, whose result nobody has to join: what attention may round for the product behind it.
fn rounds(counts: &Counts) -> bool {
    makes_heads(counts) && counts.context <= SPLIT_TOKENS
}

/// The steps whose result is left to the preparation of the product behind it.
pub(super) fn leaves_rounding(counts: &Counts) -> bool {
    !rounds(counts)
}

/// The product behind attention, and the gate between them.
pub(super) struct Round {
    pub gate: Option<View>,
    pub target: Target,
}

/// Norms and a rotation that stand before attention.
pub(super) struct Heads<'a> {
    /// Queries, keys and values of a projection.
    pub raw: [View; 3],
    pub norms: [&'a Norm; 2],
    pub table: &'a Arc<RopeTable>,
    /// Queries as attention reads them.
    pub q: View,
    /// Whether results of attention lie apart from them, so that one kernel may do all.
    pub in_one: bool,
}

/// Whether attention may do that itself.
pub(super) fn does_heads(frame: &Frame<'_>, heads: &Heads<'_>) -> bool {
    heads.in_one && matches!(frame.memory.spec().kv.format, KvFormat::F32 | KvFormat::F16)
}

/// The same behind a projection: one kernel norms, turns and appends, or attention does it itself.
pub(super) fn with_heads(
    frame: &Frame<'_>,
    heads: &Heads<'_>,
    layer: usize,
    scale: f32,
    round: Option<&Round>,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let (format, pages, cache) = pages(frame, layer);
    let known = frame.tables.iter().position(|known| known == heads.table);
    let angles = frame.layout.angles(known.ok_or(OpError::ForeignHandle("a rotary table"))?);
    let eps = heads.norms.map(|norm| norm.eps.to_bits());
    let gains = [frame.vector(&heads.norms[0].gain)?, frame.vector(&heads.norms[1].gain)?];
    let head_dim = heads.q.dim as u32;
    let own = does_heads(frame, heads);
    let apart: Steps = if own { |counts| !makes_heads(counts) } else { |_| true };
    let raw: Vec<u32> = heads.raw.iter().flat_map(|view| super::blocks(frame, *view)).collect();
    let angles = [angles, heads.table.inv_freq.len() as u32];

    let mut params = [raw.as_slice(), &pages, &angles].concat();
    params.extend([frame.place(heads.q.tensor), frame.cols(heads.q.tensor), eps[0], eps[1], 0, 0]);
    let count = heads.raw.iter().map(|view| view.heads).sum();
    let grid = [Extent::Fixed(count), Extent::Rows(Rows::Step, 1), Extent::Fixed(1)];
    let launch = Launch::when(apart, shaders::heads(format, head_dim), grid);
    let [q_gain, k_gain] = gains.clone();
    let bound = vec![frame.bound_step(), q_gain, k_gain, cache.clone(), frame.bound_arena()];
    let mut calls = vec![Call::new(launch, params, bound)];
    let mut in_one = |steps: Steps, round: Option<&Round>| {
        let (split, splits) = splits(frame.bucket);
        let split = split && round.is_none();
        // Without a gate it is not looked at.
        let gate = frame.view(round.and_then(|r| r.gate).unwrap_or(heads.q));
        let mut params = [raw.as_slice(), &gate, &pages, &angles, &eps].concat();
        params.extend([frame.place(out), frame.cols(out), scale.to_bits(), splits, 0]);
        params.extend(round.map_or([0; 5], |r| r.target.words));
        params.extend([0; 2]);
        let input = |r: &Round| if r.gate.is_some() { inputs::SIGMOID } else { inputs::PLAIN };
        let kernel = shaders::attention_one(format, head_dim, split, round.map(|r| (r.target.kind, input(r))));
        let grid = [Extent::Fixed(heads.q.heads), Extent::Rows(Rows::Step, 1), split_extent(split)];
        let [q_gain, k_gain] = gains.clone();
        let cache = cache.clone();
        let bound = vec![frame.bound_step(), q_gain, k_gain, cache, frame.bound_scratch(), frame.bound_arena()];
        calls.push(Call::new(Launch::when(steps, kernel, grid), params, bound));
    };
    match round {
        _ if !own => {}
        Some(round) => {
            in_one(rounds, Some(round));
            in_one(|counts| makes_heads(counts) && !rounds(counts), None);
        }
        None => in_one(makes_heads, None),
    }
    calls.extend(attend(frame, apart, heads.q, layer, scale, out));
    Ok(calls)
}

/// Whether contexts are cut, and for how many splits there is room.
fn splits(bucket: Bucket) -> (bool, u32) {
    (is_split(bucket), bucket.context.div_ceil(SPLIT_TOKENS) as u32)
}

fn split_extent(split: bool) -> Extent {
    if split { Extent::Splits } else { Extent::Fixed(1) }
}

/// Number of the format, words of `Pages`, and the buffer.
fn pages(frame: &Frame<'_>, layer: usize) -> (u32, [u32; 4], Bound) {
    let kv = frame.memory.spec().kv;
    let format = shaders::kv_number(kv.format);
    let pages = [page_words(&kv), head_words(&kv), kv.heads, kv.dim].map(|n| n as u32);
    (format, pages, Bound::whole(frame.memory.pages(layer)))
}

fn append(frame: &Frame<'_>, [_, k, v]: [View; 3], layer: usize) -> Call {
    let (format, pages, cache) = pages(frame, layer);
    let mut params = frame.view(k).to_vec();
    params.extend(frame.view(v));
    params.extend(pages);
    let grid = [Extent::Fixed(k.heads), Extent::Rows(Rows::Step, 1), Extent::Fixed(2)];
    let bound = vec![frame.bound_step(), frame.bound_arena(), cache];
    Call::new(Launch::always(shaders::append(format, k.dim as u32), grid), params, bound)
}

/// Attention for these steps, and the joining of splits for all.
fn attend(frame: &Frame<'_>, steps: Steps, q: View, layer: usize, scale: f32, out: Tensor) -> Vec<Call> {
    let (format, pages, cache) = pages(frame, layer);
    let (one, rows) = (Extent::Fixed(1), Extent::Rows(Rows::Step, 1));
    let (split, splits) = splits(frame.bucket);
    let place = [frame.place(out), frame.cols(out)];
    // Heads are blocks here, whatever lies between them.
    let mut params = super::blocks(frame, q).to_vec();
    params.extend(pages);
    params.extend([place[0], place[1], scale.to_bits(), splits, 0, 0, 0, 0]);
    let grid = [Extent::Fixed(q.heads), rows, split_extent(split)];
    let mut calls = vec![Call::new(
        Launch::when(steps, shaders::attention(format, q.dim as u32, split), grid),
        params,
        vec![frame.bound_step(), cache.clone(), cache, frame.bound_scratch(), frame.bound_arena()],
    )];
    if split {
        let params = vec![q.heads as u32, q.dim as u32, splits, 0, place[0], place[1], 0, 0];
        let launch = Launch::always(shaders::COMBINE.with(&[]), [Extent::Fixed(q.heads), rows, one]);
        let bound = vec![frame.bound_step(), frame.bound_scratch(), frame.bound_arena()];
        calls.push(Call::new(launch, params, bound));
    }
    calls
}
