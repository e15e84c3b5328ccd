//! Appends keys and values to the pages, then attends over them.
//!
//! A context is cut into stretches of pages. Every query attends to each stretch by itself, and the results are merged
//! in ascending order; so a long context can be spread over threads, and a row gets the same bits however it was.

use super::{Frame, Input, Output, PerWorker};
use crate::cache::{page_head, page_head_bytes};
use crate::generic::attention::{Page, Queries, padded};
use crate::generic::kv::BLOCK;
use crate::generic::quads::{self, Tokens, Words};
use crate::generic::{Integers, Kernels};
use crate::memory::{Carve, Disjoint, carved_bytes};
use onebit_ops::{KvSpec, PAGE_ROWS, Segment, Tensor, View};
use std::ops::Range;

/// Queries of a task, about: they share each page that is read.
const QUERIES: usize = 48;

/// Pages of a stretch: long enough to make merging cheap, short enough to give work to many threads.
const STRETCH: usize = 8;

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

/// Query heads for each key head.
fn share(q: View, k: View) -> usize {
    q.heads / k.heads
}

/// Rows of a task.
fn block_rows(q: View, k: View) -> usize {
    (QUERIES / share(q, k)).max(1)
}

fn stretches(context: usize) -> usize {
    context.div_ceil(STRETCH * PAGE_ROWS)
}

/// Scratch bytes of steps of so many rows over a context: (shared, each worker's).
pub(crate) fn scratch(rows: usize, context: usize, q: View, k: View) -> (usize, usize) {
    let queries = block_rows(q, k).min(rows) * share(q, k);
    let outputs = carved_bytes::<f32>(queries * padded(q.dim)) + carved_bytes::<[f32; 2]>(queries);
    let worker = 2 * outputs
        + carved_bytes::<f32>(queries * padded(q.dim))
        + carved_bytes::<f32>(queries * PAGE_ROWS)
        + carved_bytes::<u8>(PAGE_ROWS * padded(q.dim) * size_of::<f32>())
        + carved_bytes::<usize>(queries)
        + carved_bytes::<Words>(queries * padded(q.dim) / BLOCK)
        + carved_bytes::<[i32; 2]>(queries * padded(q.dim) / BLOCK)
        + carved_bytes::<f32>(queries)
        + 2 * carved_bytes::<Tokens>(padded(q.dim) / BLOCK)
        + carved_bytes::<f32>(padded(q.dim) / BLOCK);
    let parts = k.heads * stretches(context);
    (parts * outputs, worker)
}

/// What the tasks of a step share.
struct Step<'a> {
    op: Attention,
    spec: KvSpec,
    kernels: &'static Kernels,
    /// Pages lie for these loops.
    integers: Option<&'static Integers>,
    kv: Disjoint<'a, u8>,
    inputs: [Input<'a>; 3],
    out: Output<'a>,
    share: usize,
    width: usize,
    /// Tasks store the rows that they attend from.
    append: bool,
}

/// Some rows of a segment over one key head.
struct Rows<'a> {
    segment: &'a Segment,
    head: usize,
    /// Within the segment.
    rows: Range<usize>,
}

impl Rows<'_> {
    /// Tokens that a query sees.
    fn visible(&self, query: usize, share: usize) -> usize {
        self.segment.past + self.rows.start + query / share + 1
    }

    fn context(&self) -> usize {
        self.segment.past + self.rows.end
    }
}

/// What a softmax has summed up over some tokens, for some queries.
struct Sums<'a> {
    /// `(m, l)`, see [`crate::generic::attention`].
    state: &'a mut [[f32; 2]],
    out: &'a mut [f32],
}

impl Sums<'_> {
    fn carve<'a>(carve: &mut Carve<'a>, queries: usize, width: usize) -> Sums<'a> {
        Sums { out: carve.take(queries * width), state: carve.take(queries) }
    }

    /// Adds what query `i` has found further on.
    fn merge(&mut self, i: usize, state: [f32; 2], out: &[f32]) {
        let [[old, sum], [new, more]] = [self.state[i], state];
        let top = old.max(new);
        let (keep, scale) = ((old - top).exp(), (new - top).exp());
        self.state[i] = [top, sum * keep + more * scale];
        for (to, from) in self.out[i * out.len()..(i + 1) * out.len()].iter_mut().zip(out) {
            *to = *to * keep + from * scale;
        }
    }

    fn copy(&mut self, i: usize, state: [f32; 2], out: &[f32]) {
        self.state[i] = state;
        self.out[i * out.len()..(i + 1) * out.len()].copy_from_slice(out);
    }
}

pub(crate) fn run(frame: &mut Frame<'_>, op: Attention) {
    let share = share(op.q, op.k);
    let most = block_rows(op.q, op.k);
    let exec = frame.exec;
    let segments = &frame.inputs.segments;
    let blocks = |s: &Segment| s.rows.len().div_ceil(most);
    let step = Step {
        op,
        spec: frame.cache.spec.kv,
        kernels: exec.kernels,
        integers: exec.kernels.integers.filter(|_| quads::fits(frame.cache.spec.kv.format, frame.cache.spec.kv.dim)),
        inputs: [op.q, op.k, op.v].map(|view| frame.read(view)),
        out: frame.write(op.out),
        kv: Disjoint::new(frame.cache.kv.bytes_mut()),
        share,
        width: padded(op.q.dim),
        append: segments.len() == 1 && blocks(&segments[0]) == 1,
    };
    let heads = step.spec.heads;
    if !step.append {
        let rows: usize = segments.iter().map(|s| s.rows.len()).sum();
        exec.each(heads, rows * 2 * step.spec.dim * 2, &|head, _| {
            for segment in segments {
                step.append(segment, head, segment.past..segment.past + segment.rows.len());
            }
        });
    }

    // Rows of one block over several stretches are spread over them, all others block by block.
    let spread = |s: &Segment| blocks(s) == 1 && stretches(s.past + s.rows.len()) > 1;
    let worker_scratch = PerWorker::new(frame.worker_scratch, exec.pool.threads());
    let whole = || segments.iter().filter(|s| !spread(s));
    let tasks: usize = whole().map(|s| blocks(s) * heads).sum();
    let seen: usize = whole().map(|s| s.rows.len() * (s.past + s.rows.len())).sum();
    exec.each(tasks, seen * op.q.cols() / tasks.max(1), &|task, worker| {
        let mut task = task;
        for segment in whole() {
            let count = blocks(segment) * heads;
            if task < count {
                // The last rows see most, so they go first.
                let first = (blocks(segment) - 1 - task / heads) * most;
                let rows = first..segment.rows.len().min(first + most);
                // SAFETY: this task runs on this worker.
                let carve = Carve::new(unsafe { worker_scratch.piece(worker) });
                step.whole(&Rows { segment, head: task % heads, rows }, carve);
                break;
            }
            task -= count;
        }
    });
    for segment in segments.iter().filter(|s| spread(s)) {
        let rows = |head| Rows { segment, head, rows: 0..segment.rows.len() };
        let (queries, parts) = (segment.rows.len() * share, stretches(segment.past + segment.rows.len()));
        let mut carve = Carve::new(&mut *frame.scratch);
        let all = Sums::carve(&mut carve, heads * parts * queries, step.width);
        let (states, outs) = (Disjoint::new(all.state), Disjoint::new(all.out));
        let size = queries * step.width;
        exec.each(heads * parts, STRETCH * PAGE_ROWS * size, &|task, worker| {
            // SAFETY: this task runs on this worker.
            let mut carve = Carve::new(unsafe { worker_scratch.piece(worker) });
            // SAFETY: each part of a head is one task.
            let sums = unsafe {
                Sums {
                    state: states.piece(task * queries..(task + 1) * queries),
                    out: outs.piece(task * size..(task + 1) * size),
                }
            };
            let rows = rows(task / parts);
            let mut queries = step.queries(&rows, &mut carve, sums);
            step.stretch(&rows, task % parts, &mut queries);
        });
        exec.each(heads, parts * size, &|head, worker| {
            // SAFETY: this task runs on this worker.
            let mut carve = Carve::new(unsafe { worker_scratch.piece(worker) });
            let mut total = Sums::carve(&mut carve, queries, step.width);
            let rows = rows(head);
            for part in 0..parts {
                let at = (head * parts + part) * queries;
                // SAFETY: the phase that wrote them is over.
                let (state, out) = unsafe {
                    (states.shared(at..at + queries), outs.shared(at * step.width..(at + queries) * step.width))
                };
                step.merge(&rows, part, &mut total, state, out);
            }
            step.finish(&rows, &total);
        });
    }
}

impl Step<'_> {
    /// The stored rows of one head of a page; `which` is 0 for keys and 1 for values.
    fn stored(&self, which: usize, page: u32, head: usize) -> Range<usize> {
        let start = page_head(&self.spec, self.op.layer, which, page as usize, head);
        start..start + page_head_bytes(&self.spec)
    }

    /// Stores keys and values of tokens of this step.
    fn append(&self, segment: &Segment, head: usize, tokens: Range<usize>) {
        let (format, dim) = (self.spec.format, self.spec.dim);
        let bytes = format.head_bytes(dim);
        for token in tokens {
            let row = segment.rows.start + token - segment.past;
            for (which, input) in self.inputs[1..].iter().enumerate() {
                let page = self.stored(which, segment.pages[token / PAGE_ROWS], head);
                // SAFETY: only the task of this head, and of this stretch if tasks append, touches this head of the page.
                let page = unsafe { self.kv.piece(page) };
                let (at, x) = (token % PAGE_ROWS, input.head(row, head));
                if self.integers.is_none() {
                    (self.kernels.kv_store)(format, x, &mut page[at * bytes..(at + 1) * bytes]);
                    continue;
                }
                let mut block = [0; quads::MOST_BYTES];
                for (b, x) in x.chunks_exact(BLOCK).enumerate() {
                    (self.kernels.kv_store)(format, x, &mut block[..format.head_bytes(BLOCK)]);
                    quads::place(format, dim, which == 1, &block, page, (at, b));
                }
            }
        }
    }

    /// Scaled queries, and their scratch memory.
    fn queries<'b>(&self, rows: &Rows<'_>, carve: &mut Carve<'b>, sums: Sums<'b>) -> Queries<'b> {
        let (count, dim) = (rows.rows.len() * self.share, self.spec.dim);
        let (integers, blocks) = (if self.integers.is_some() { count } else { 0 }, self.width / BLOCK);
        let mut queries = Queries {
            queries: carve.take(count * self.width),
            seen: carve.take(count),
            scores: carve.take(count * PAGE_ROWS),
            wide: carve.take(PAGE_ROWS * self.width * size_of::<f32>()),
            state: sums.state,
            out: sums.out,
            words: carve.take(integers * blocks),
            totals: carve.take(integers * blocks),
            units: carve.take(integers),
            ratios: carve.take(integers.min(1) * blocks),
            tops: carve.take(integers.min(1) * blocks),
            minima: carve.take(integers.min(1) * blocks),
        };
        for (i, query) in queries.queries.chunks_exact_mut(self.width).enumerate() {
            let row = rows.segment.rows.start + rows.rows.start + i / self.share;
            let from = self.inputs[0].head(row, rows.head * self.share + i % self.share);
            for (to, from) in query.iter_mut().zip(from) {
                *to = from * self.op.scale;
            }
            query[dim..].fill(0.0);
        }
        if let Some(integers) = self.integers {
            (integers.round_queries)(&mut queries);
        }
        queries
    }

    /// Attends to one stretch, with fresh sums.
    fn stretch(&self, rows: &Rows<'_>, stretch: usize, queries: &mut Queries<'_>) {
        queries.out.fill(0.0);
        queries.state.fill([f32::NEG_INFINITY, 0.0]);
        let pages = stretch * STRETCH..(stretch + 1) * STRETCH;
        let tokens = pages.start * PAGE_ROWS..rows.context().min(pages.end * PAGE_ROWS);
        if self.append {
            self.append(rows.segment, rows.head, tokens.start.max(rows.segment.past)..tokens.end);
        }
        let pages = &rows.segment.pages[pages.start..tokens.end.div_ceil(PAGE_ROWS)];
        for (p, page) in pages.iter().enumerate() {
            let first = tokens.start + p * PAGE_ROWS;
            for (i, seen) in queries.seen.iter_mut().enumerate() {
                *seen = rows.visible(i, self.share).saturating_sub(first).min(PAGE_ROWS);
            }
            // SAFETY: rows that are written in this phase belong to other heads or stretches.
            let stored = |which, page| unsafe { self.kv.shared(self.stored(which, page, rows.head)) };
            let page = Page {
                format: self.spec.format,
                dim: self.spec.dim,
                keys: stored(0, *page),
                values: stored(1, *page),
                cold: p == 0,
                next: pages.get(p + 1).map_or(&[], |next| stored(0, *next)),
            };
            self.integers.map_or(self.kernels.attend_page, |i| i.attend_page)(&page, queries);
        }
    }

    /// All stretches of some rows.
    fn whole(&self, rows: &Rows<'_>, mut carve: Carve<'_>) {
        let count = rows.rows.len() * self.share;
        let mut total = Sums::carve(&mut carve, count, self.width);
        let part = Sums::carve(&mut carve, count, self.width);
        let mut queries = self.queries(rows, &mut carve, part);
        for stretch in 0..stretches(rows.context()) {
            self.stretch(rows, stretch, &mut queries);
            self.merge(rows, stretch, &mut total, queries.state, queries.out);
        }
        self.finish(rows, &total);
    }

    /// Adds a stretch to the total of those queries that see some of it.
    fn merge(&self, rows: &Rows<'_>, stretch: usize, total: &mut Sums<'_>, state: &[[f32; 2]], out: &[f32]) {
        for (i, (state, out)) in state.iter().zip(out.chunks_exact(self.width)).enumerate() {
            if stretch == 0 {
                total.copy(i, *state, out);
            } else if rows.visible(i, self.share) > stretch * STRETCH * PAGE_ROWS {
                total.merge(i, *state, out);
            }
        }
    }

    /// Divides by the sum of the weights.
    fn finish(&self, rows: &Rows<'_>, total: &Sums<'_>) {
        let dim = self.spec.dim;
        for (i, (out, state)) in total.out.chunks_exact(self.width).zip(&*total.state).enumerate() {
            let row = rows.segment.rows.start + rows.rows.start + i / self.share;
            let start = (rows.head * self.share + i % self.share) * dim;
            // SAFETY: each row and key head is in one task.
            let to = unsafe { self.out.piece(row, start..start + dim) };
            let inverse = 1.0 / state[1];
            for (to, o) in to.iter_mut().zip(out) {
                *to = o * inverse;
            }
        }
    }
}
