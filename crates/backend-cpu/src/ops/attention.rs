//! Appends keys and values to the pages, then attends over them.

use super::{Frame, PerWorker};
use crate::cache::{page_head, page_head_bytes};
use crate::generic::attention::{self, Page, Queries};
use crate::memory::{Carve, Disjoint, carved_bytes};
use onebit_ops::{KvSpec, PAGE_ROWS, Segment, Tensor, View};

/// Rows of a sequence whose queries share each page that is read.
const ROWS: usize = 8;

/// The operands of `Op::Attention`.
#[derive(Clone, Copy)]
pub(crate) struct Attention {
    pub q: View,
    pub k: View,
    pub v: View,
    pub layer: usize,
    pub scale: f32,
    pub out: Tensor,
}

/// Scratch bytes of each worker.
pub(crate) fn scratch(q: View, k: View) -> usize {
    let queries = ROWS * (q.heads / k.heads);
    2 * carved_bytes::<f32>(queries * q.dim)
        + carved_bytes::<f32>(queries * PAGE_ROWS)
        + carved_bytes::<f32>(attention::ROWS * q.dim)
        + carved_bytes::<[f32; 2]>(queries)
        + carved_bytes::<usize>(queries)
}

pub(crate) fn run(frame: &mut Frame<'_>, op: Attention) {
    append(frame, op);
    attend(frame, op);
}

fn append(frame: &mut Frame<'_>, op: Attention) {
    let spec = frame.cache.spec.kv;
    let inputs = [frame.read(op.k), frame.read(op.v)];
    let (segments, kernels) = (&frame.inputs.segments, frame.exec.kernels);
    let bytes = spec.format.head_bytes(spec.dim);
    let rows = frame.inputs.tokens.len();
    let kv = Disjoint::new(frame.cache.kv.bytes_mut());
    frame.exec.each(2 * spec.heads, rows * spec.dim * 8, &|task, _| {
        let (which, head) = (task % 2, task / 2);
        for segment in segments {
            for (i, row) in segment.rows.clone().enumerate() {
                let at = segment.past + i;
                let page = segment.pages[at / PAGE_ROWS] as usize;
                let start = page_head(&spec, op.layer, which, page, head) + at % PAGE_ROWS * bytes;
                // SAFETY: each head of keys and of values is one task.
                let to = unsafe { kv.piece(start..start + bytes) };
                (kernels.kv_store)(spec.format, inputs[which].head(row, head), to);
            }
        }
    });
}

fn attend(frame: &mut Frame<'_>, op: Attention) {
    let spec = frame.cache.spec.kv;
    let (q, out) = (frame.read(op.q), frame.write(op.out));
    let (segments, kernels, pool) = (&frame.inputs.segments, frame.exec.kernels, frame.exec.pool);
    let kv = frame.cache.kv.bytes();
    let share = op.q.heads / op.k.heads;
    let scratch = PerWorker::new(frame.worker_scratch, pool.threads());
    let row_blocks = |s: &Segment| s.rows.len().div_ceil(ROWS);
    let tasks: usize = segments.iter().map(|s| row_blocks(s) * spec.heads).sum();
    let seen: usize = segments.iter().map(|s| s.rows.len() * (s.past + s.rows.len())).sum();
    frame.exec.each(tasks, seen * op.q.cols() / tasks.max(1), &|mut task, worker| {
        let Some(segment) = segments.iter().find(|s| {
            let here = row_blocks(s) * spec.heads;
            let found = task < here;
            task -= if found { 0 } else { here };
            found
        }) else {
            return;
        };
        let (head, first) = (task % spec.heads, task / spec.heads * ROWS);
        let rows = first..(first + ROWS).min(segment.rows.len());
        let count = rows.len() * share;
        // SAFETY: this task runs on this worker.
        let mut carve = Carve::new(unsafe { scratch.piece(worker) });
        let mut queries = Queries {
            queries: carve.take(count * op.q.dim),
            out: carve.take(count * op.q.dim),
            scores: carve.take(count * PAGE_ROWS),
            heads: carve.take(attention::ROWS * op.q.dim),
            state: carve.take(count),
            seen: carve.take(count),
        };
        queries.out.fill(0.0);
        queries.state.fill([f32::NEG_INFINITY, 0.0]);
        for (i, query) in queries.queries.chunks_exact_mut(op.q.dim).enumerate() {
            let row = segment.rows.start + rows.start + i / share;
            for (to, from) in query.iter_mut().zip(q.head(row, head * share + i % share)) {
                *to = from * op.scale;
            }
        }
        let context = segment.past + rows.end;
        for (p, page) in segment.pages[..context.div_ceil(PAGE_ROWS)].iter().enumerate() {
            for (i, seen) in queries.seen.iter_mut().enumerate() {
                let visible = segment.past + rows.start + i / share + 1;
                *seen = visible.saturating_sub(p * PAGE_ROWS).min(PAGE_ROWS);
            }
            let [keys, values] = [0, 1].map(|which| head_bytes(kv, &spec, op.layer, which, *page as usize, head));
            let page = Page { format: spec.format, dim: spec.dim, keys, values };
            (kernels.attend_page)(&page, &mut queries);
        }
        for (i, (o, state)) in queries.out.chunks_exact(op.q.dim).zip(&*queries.state).enumerate() {
            let row = segment.rows.start + rows.start + i / share;
            let start = (head * share + i % share) * op.q.dim;
            // SAFETY: each row and key head is in one task.
            let to = unsafe { out.piece(row, start..start + op.q.dim) };
            for (to, o) in to.iter_mut().zip(o) {
                *to = o / state[1];
            }
        }
    });
}

fn head_bytes<'a>(kv: &'a [u8], spec: &KvSpec, layer: usize, which: usize, page: usize, head: usize) -> &'a [u8] {
    let start = page_head(spec, layer, which, page, head);
    &kv[start..start + page_head_bytes(spec)]
}
