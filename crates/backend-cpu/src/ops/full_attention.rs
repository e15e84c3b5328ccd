//! Attention between the rows of a step: keys and values are laid out in blocks in scratch memory, then every task's queries
//! go over the blocks of their head with a running maximum. No matrix of all pairs exists.

use super::{Frame, PerWorker, Tiles};
use crate::generic::full_attention::{Block, GROUP, KEYS, Queries, padded, place_key, place_query, place_value};
use crate::memory::{Carve, carved_bytes};
use onebit_ops::{Seen, Tensor, View};

/// Queries of a task, about: they share each block that is read, which comes from memory where a head has many tokens.
const QUERIES: usize = 8 * GROUP;

/// Queries and keys between one that is laid out and one that is fetched meanwhile.
const AHEAD: usize = 8;

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

/// Scratch bytes of steps of so many rows: (shared, each worker's).
pub(crate) fn scratch(rows: usize, q: View, k: View) -> (usize, usize) {
    let queries = (block_rows(q, k).min(rows) * share(q, k)).next_multiple_of(GROUP);
    let worker = carved_bytes::<f32>(queries * q.dim)
        + carved_bytes::<usize>(queries)
        + carved_bytes::<[f32; 2]>(queries)
        + carved_bytes::<f32>(queries * KEYS)
        + carved_bytes::<f32>(queries * padded(q.dim));
    let tokens = k.heads * rows.next_multiple_of(KEYS);
    (carved_bytes::<f32>(tokens * k.dim) + carved_bytes::<f32>(tokens * padded(k.dim)), worker)
}

pub(crate) fn run(frame: &mut Frame<'_>, op: FullAttention) {
    let FullAttention { q, k, v, scale, .. } = op;
    let (rows, exec, dim, heads) = (frame.rows(op.out), frame.exec, q.dim, k.heads);
    let [queries, keys, values] = [q, k, v].map(|view| frame.read(view));
    let out = frame.write(op.out);
    // Of a padded text nobody sees the end.
    let tokens = match op.seen {
        Seen::All => rows,
        Seen::Causal { keys } => keys.min(rows),
    };
    let (width, blocks) = (padded(dim), tokens.div_ceil(KEYS));
    let mut carve = Carve::new(&mut *frame.scratch);
    let stored_keys = carve.take::<f32>(heads * blocks * KEYS * dim);
    let stored_values = carve.take::<f32>(heads * blocks * KEYS * width);
    let (key_tiles, value_tiles) =
        (Tiles::new(&mut *stored_keys, KEYS * dim), Tiles::new(&mut *stored_values, KEYS * width));
    exec.each(heads * blocks, 2 * KEYS * dim, &|task, _| {
        let (head, first) = (task / blocks, task % blocks * KEYS);
        // SAFETY: each block of a head is one task.
        let (key_block, value_block) = unsafe { (key_tiles.piece(task), value_tiles.piece(task)) };
        for (at, row) in (first..tokens.min(first + KEYS)).enumerate() {
            (exec.kernels.fetch)(keys.head((row + AHEAD).min(tokens - 1), head));
            (exec.kernels.fetch)(values.head((row + AHEAD).min(tokens - 1), head));
            place_key(keys.head(row, head), at, key_block);
            place_value(values.head(row, head), at, value_block);
        }
    });
    let (stored_keys, stored_values) = (&*stored_keys, &*stored_values);

    let (share, most) = (share(q, k), block_rows(q, k));
    let pieces = rows.div_ceil(most);
    let worker_scratch = PerWorker::new(&mut *frame.worker_scratch, exec.pool.threads());
    exec.each(heads * pieces, most * share * rows * dim, &|task, worker| {
        let (head, first) = (task / pieces, task % pieces * most);
        let piece = first..rows.min(first + most);
        let used = piece.len() * share;
        let count = used.next_multiple_of(GROUP);
        // SAFETY: this task runs on this worker.
        let mut carve = Carve::new(unsafe { worker_scratch.piece(worker) });
        let (placed, seen) = (carve.take(count * dim), carve.take::<usize>(count));
        let (state, weights) = (carve.take(count), carve.take(count * KEYS));
        let sums = carve.take(count * width);
        // The last group may have places left: their zeros see what the last query does.
        placed[(count - GROUP) * dim..].fill(0.0);
        let place = |i: usize| (first + i / share, head * share + i % share);
        for i in 0..used {
            // Rows lie far apart, so nothing but this has the next ones on their way.
            let (row, head) = place((i + AHEAD).min(used - 1));
            (exec.kernels.fetch)(queries.head(row, head));
            let (row, head) = place(i);
            place_query(queries.head(row, head), scale, i, placed);
        }
        sums.fill(0.0);
        state.fill([f32::NEG_INFINITY, 0.0]);
        let sees = |row: usize| match op.seen {
            Seen::All => tokens,
            Seen::Causal { .. } => tokens.min(row + 1),
        };
        // The last row of a piece sees most.
        for b in 0..sees(piece.end - 1).div_ceil(KEYS) {
            for (i, seen) in seen.iter_mut().enumerate() {
                *seen = sees(place(i.min(used - 1)).0).saturating_sub(b * KEYS).min(KEYS);
            }
            let at = head * blocks + b;
            let block = Block {
                keys: &stored_keys[at * KEYS * dim..(at + 1) * KEYS * dim],
                values: &stored_values[at * KEYS * width..(at + 1) * KEYS * width],
            };
            let mut queries = Queries { queries: placed, seen, state, weights, out: sums };
            (exec.kernels.attend_block)(&block, &mut queries);
        }
        for (i, (found, state)) in sums.chunks_exact(width).zip(&*state).enumerate().take(used) {
            let (row, head) = place(i);
            // SAFETY: each row and key head is in one task.
            let to = unsafe { out.piece(row, head * dim..(head + 1) * dim) };
            let inverse = 1.0 / state[1];
            to.iter_mut().zip(found).for_each(|(to, o)| *to = o * inverse);
        }
    });
}
