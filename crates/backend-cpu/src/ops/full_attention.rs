//! Attention between the rows of a step: keys and values are cut into pages in scratch memory, then every block of queries
//! goes over the pages of its head with a running maximum. No matrix of all pairs exists.

use super::{Frame, PerWorker, Tiles};
use crate::generic::attention::{Page, Queries, padded};
use crate::memory::{Carve, carved_bytes};
use onebit_ops::{KvFormat, PAGE_ROWS, Seen, Tensor, View};

/// Queries of a task, about: they share each page that is read.
const QUERIES: usize = 48;

/// The operands of `Op::FullAttention`.
#[derive(Clone, Copy)]
pub(crate) struct FullAttention {
    pub q: View,
    pub k: View,
    pub v: View,
    pub scale: f32,
    pub seen: Seen,
    pub out: Tensor,
}

fn share(q: View, k: View) -> usize {
    q.heads / k.heads
}

/// Rows of a task.
fn block_rows(q: View, k: View) -> usize {
    (QUERIES / share(q, k)).max(1)
}

/// Bytes of one head of a page.
fn page_bytes(k: View) -> usize {
    PAGE_ROWS * KvFormat::F32.head_bytes(k.dim)
}

/// Scratch bytes of steps of so many rows: (shared, each worker's).
pub(crate) fn scratch(rows: usize, q: View, k: View) -> (usize, usize) {
    let queries = block_rows(q, k).min(rows) * share(q, k);
    let worker = 2 * carved_bytes::<f32>(queries * padded(q.dim))
        + carved_bytes::<[f32; 2]>(queries)
        + carved_bytes::<f32>(queries * PAGE_ROWS)
        + carved_bytes::<u8>(PAGE_ROWS * padded(q.dim) * size_of::<f32>())
        + carved_bytes::<usize>(queries);
    (2 * carved_bytes::<u8>(k.heads * rows.div_ceil(PAGE_ROWS) * page_bytes(k)), worker)
}

pub(crate) fn run(frame: &mut Frame<'_>, op: FullAttention) {
    let FullAttention { q, k, v, scale, .. } = op;
    let (rows, exec, dim, heads) = (frame.rows(op.out), frame.exec, q.dim, k.heads);
    let inputs = [q, k, v].map(|view| frame.read(view));
    let out = frame.write(op.out);
    let (pages, page_bytes) = (rows.div_ceil(PAGE_ROWS), page_bytes(k));
    let mut carve = Carve::new(&mut *frame.scratch);
    let stored = [0; 2].map(|_| carve.take::<u8>(heads * pages * page_bytes));
    let [keys, values] = stored;
    let (key_tiles, value_tiles) = (Tiles::new(&mut *keys, page_bytes), Tiles::new(&mut *values, page_bytes));
    exec.each(heads * pages, 2 * PAGE_ROWS * dim, &|task, _| {
        let (head, page) = (task / pages, task % pages);
        for (input, tiles) in inputs[1..].iter().zip([&key_tiles, &value_tiles]) {
            // SAFETY: each page of a head is one task.
            let to = unsafe { tiles.piece(task) };
            for (row, to) in (page * PAGE_ROWS..rows).zip(to.chunks_exact_mut(page_bytes / PAGE_ROWS)) {
                (exec.kernels.kv_store)(KvFormat::F32, input.head(row, head), to);
            }
        }
    });
    let (keys, values) = (&*keys, &*values);

    let (share, width, most) = (share(q, k), padded(dim), block_rows(q, k));
    let blocks = rows.div_ceil(most);
    let worker_scratch = PerWorker::new(&mut *frame.worker_scratch, exec.pool.threads());
    exec.each(heads * blocks, most * share * rows * dim, &|task, worker| {
        let (head, first) = (task / blocks, task % blocks * most);
        let block = first..rows.min(first + most);
        let count = block.len() * share;
        // SAFETY: this task runs on this worker.
        let mut carve = Carve::new(unsafe { worker_scratch.piece(worker) });
        let mut queries = Queries {
            queries: carve.take(count * width),
            seen: carve.take(count),
            scores: carve.take(count * PAGE_ROWS),
            wide: carve.take(PAGE_ROWS * width * size_of::<f32>()),
            state: carve.take(count),
            out: carve.take(count * width),
            // Pages of floats have no blocks of integers.
            words: Default::default(),
            totals: Default::default(),
            units: Default::default(),
            ratios: Default::default(),
            tops: Default::default(),
            minima: Default::default(),
        };
        for (i, query) in queries.queries.chunks_exact_mut(width).enumerate() {
            let from = inputs[0].head(first + i / share, head * share + i % share);
            query.iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
            query[dim..].fill(0.0);
        }
        queries.out.fill(0.0);
        queries.state.fill([f32::NEG_INFINITY, 0.0]);
        let seen = |row: usize| match op.seen {
            Seen::All => rows,
            Seen::Causal { keys } => keys.min(row + 1),
        };
        // The last row of a block sees most.
        for page in 0..seen(block.end - 1).div_ceil(PAGE_ROWS) {
            for (i, n) in queries.seen.iter_mut().enumerate() {
                *n = seen(first + i / share).saturating_sub(page * PAGE_ROWS).min(PAGE_ROWS);
            }
            let at = (head * pages + page) * page_bytes;
            let page = Page {
                format: KvFormat::F32,
                dim,
                keys: &keys[at..at + page_bytes],
                values: &values[at..at + page_bytes],
                cold: false,
                next: &[],
            };
            (exec.kernels.attend_page)(&page, &mut queries);
        }
        for (i, (found, state)) in queries.out.chunks_exact(width).zip(&*queries.state).enumerate() {
            let start = (head * share + i % share) * dim;
            // SAFETY: each row and key head is in one task.
            let to = unsafe { out.piece(first + i / share, start..start + dim) };
            let inverse = 1.0 / state[1];
            to.iter_mut().zip(found).for_each(|(to, o)| *to = o * inverse);
        }
    });
}
