//! `epilogue(norm(x) W^T)`: rows are prepared once for all parts of a weight, then blocks of rows are computed.
//!
//! Activation rows go through in tiles, so that what the kernels read again for every block of the weight stays in a
//! cache; the weight streams through once for each tile.

use super::{Exec, Frame, Input, Output, PerWorker, Tiles, vector, weight};
use crate::generic::packed::{FloatRows, GroupSum, IntRows, MAX_ROWS, Place};
use crate::generic::{Kernels, Operand};
use crate::layout::{BLOCK, GROUP, Packed, Segment};
use crate::memory::{Carve, Disjoint, carved_bytes};
use crate::threads::Shares;
use onebit_ops::{Activations, Epilogue, Norm, OpError, Tensor, View, Weight};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most activation rows of a tile, and fewest of a full one.
const TILE: [usize; 2] = [MAX_ROWS, 16];

/// Bytes of lookup tables that a tile may have: they are read from the last cache for each task.
const TILE_TABLES: usize = 5 << 20;

/// Activation rows of a tile, of `rows` over `cols` columns.
fn tile_rows(kernels: &Kernels, packed: &Packed, rows: usize, cols: usize) -> usize {
    let row = kernels.operand(&packed.segments, rows).0.row_bytes(cols);
    (TILE_TABLES / row.max(1) / 8 * 8).clamp(TILE[1], TILE[0])
}

/// Bytes of tables that all threads together may have of their own.
const OWN_TABLES: usize = 32 << 20;

/// Blocks for each thread from which on a table costs little to build beside what it is looked up for: as much as two or
/// three of them.
const OWN_BLOCKS: usize = 32;

/// Whether each thread builds the tables for itself. They are larger than what they are built from by far, and half of
/// them would come out of another core's cache: over and over, where that is no neighbour.
fn builds_own(operand: &Operand, packed: &Packed, rows: usize, cols: usize, threads: usize) -> bool {
    let blocks: usize = packed.segments.iter().map(Segment::blocks).sum();
    let cheap = blocks >= OWN_BLOCKS * threads && threads * rows * operand.row_bytes(cols) <= OWN_TABLES;
    operand.unit.is_none() && operand.bytes > 0 && (rows <= FEW || cheap)
}

/// Most blocks that one task computes.
const RANGE: usize = 32;

/// Tasks for each thread, so that one that starts late is caught up with: of many activation rows, and of few, which
/// take no longer when weights come in small pieces.
const TASKS: [usize; 2] = [5, 10];

/// Few activation rows.
const FEW: usize = 4;

/// Blocks that one task computes for `rows` activation rows.
fn task_blocks(packed: &Packed, rows: usize, threads: usize) -> usize {
    let blocks: usize = packed.segments.iter().map(Segment::blocks).sum();
    let tasks = TASKS[usize::from(rows <= FEW)] * threads;
    (blocks / tasks).next_multiple_of(SET).clamp(SET, RANGE)
}

/// Tasks that a weight is cut into.
fn count_tasks(packed: &Packed, range: usize) -> usize {
    packed.segments.iter().map(|s| s.blocks().div_ceil(range)).sum()
}

/// Blocks of a task are a multiple of this: kernels take as many side by side.
const SET: usize = 8;

/// Fewest columns of one row that threads share while it is prepared.
const PIECE: usize = 2048;

/// Columns of a task of the gate.
const GATE_COLUMNS: usize = 2048;

/// One `Op::Linear`.
#[derive(Clone, Copy)]
pub(crate) struct Linear<'a> {
    pub x: View,
    pub norm: Option<&'a Norm>,
    pub weight: &'a Weight,
    pub activations: Activations,
    pub epilogue: Epilogue,
    pub out: Tensor,
    /// What the next product of the step reads.
    pub next: &'a Packed,
}

/// Scratch bytes of a linear op: (shared, each worker's).
pub(crate) fn scratch(
    kernels: &Kernels,
    max_rows: usize,
    w: &Weight,
    activations: Activations,
    (gated, threads): (bool, usize),
) -> Result<(usize, usize), OpError> {
    let (packed, cols) = (weight(w)?, w.cols());
    let rows = max_rows.min(tile_rows(kernels, packed, max_rows, cols));
    let mut shared = carved_bytes::<f32>(rows * cols) + carved_bytes::<f32>(rows * cols.div_ceil(32));
    if activations != Activations::F32 {
        shared += carved_bytes::<i16>(rows * cols)
            + carved_bytes::<f32>(rows * cols.div_ceil(GROUP))
            + carved_bytes::<GroupSum>(rows * cols.div_ceil(32))
            + carved_bytes::<u8>(kernels.operand_bytes(&packed.segments, rows, cols));
    }
    if gated {
        shared += carved_bytes::<f32>(rows * w.rows());
    }
    // A step may have fewer rows.
    let operand = |rows| kernels.operand(&packed.segments, rows).0;
    let own = |rows: usize| {
        if builds_own(operand(rows), packed, rows, cols, threads) { rows * operand(rows).row_bytes(cols) } else { 0 }
    };
    let tables = (1..=rows).map(own).max().unwrap_or(0);
    Ok((shared, carved_bytes::<f32>(RANGE * rows * BLOCK) + carved_bytes::<u8>(tables)))
}

pub(crate) fn run(frame: &mut Frame<'_>, op: Linear<'_>) -> Result<(), OpError> {
    let packed = weight(op.weight)?;
    let gain = op.norm.map(|n| Ok::<_, OpError>((vector(&n.gain)?.as_slice(), n.eps))).transpose()?;
    let residual = match op.epilogue {
        Epilogue::Residual(view) => Some(frame.read(view)),
        _ => None,
    };
    let (x, out, rows) = (frame.read(op.x), frame.write(op.out), frame.rows(op.out));
    let product = Product {
        exec: frame.exec,
        packed,
        cols: op.weight.cols(),
        width: op.weight.rows(),
        // Dense weights always meet float activations; a weight may have parts of both kinds.
        limit: op.activations.limit().filter(|_| packed.segments.iter().any(|s| s.layout.is_packed())),
        gain,
        x,
        next: op.next,
    };
    let tile = tile_rows(frame.exec.kernels, packed, rows, product.cols);
    for start in (0..rows).step_by(tile) {
        let tile = start..(start + tile).min(rows);
        let mut carve = Carve::new(frame.scratch);
        let mut prepared = product.carve(tile.len(), &mut carve);
        product.prepare(tile.start, &mut prepared);
        if op.epilogue == Epilogue::SwiGlu {
            let wide = Disjoint::new(carve.take::<f32>(tile.len() * product.width));
            let wide = Output { data: wide, cols: product.width };
            product.multiply(&prepared, frame.worker_scratch, (wide, 0), None);
            product.gate(wide, out, tile);
        } else {
            product.multiply(&prepared, frame.worker_scratch, (out, tile.start), residual);
        }
    }
    Ok(())
}

/// A linear op with its operands.
struct Product<'a> {
    exec: Exec<'a>,
    packed: &'a Packed,
    cols: usize,
    /// Rows of the weight.
    width: usize,
    /// Largest activation integer, if any part of the weight takes integers.
    limit: Option<i16>,
    gain: Option<(&'a [f32], f32)>,
    x: Input<'a>,
    /// What the next product reads.
    next: &'a Packed,
}

/// The activations of a tile as the kernels read them.
struct Prepared<'a> {
    rows: usize,
    floats: &'a mut [f32],
    float_sums: &'a mut [f32],
    ints: Option<Ints<'a>>,
}

struct Ints<'a> {
    values: &'a mut [i16],
    scales: &'a mut [f32],
    sums: &'a mut [GroupSum],
    tables: &'a mut [u8],
}

impl Product<'_> {
    fn builds_own(&self, operand: &Operand, rows: usize) -> bool {
        builds_own(operand, self.packed, rows, self.cols, self.exec.pool.threads())
    }

    /// Bytes of the lookup tables that threads share.
    fn shared_tables(&self, rows: usize) -> usize {
        let (operand, _) = self.exec.kernels.operand(&self.packed.segments, rows);
        if self.builds_own(operand, rows) { 0 } else { rows * operand.row_bytes(self.cols) }
    }

    fn carve<'s>(&self, rows: usize, carve: &mut Carve<'s>) -> Prepared<'s> {
        let cols = self.cols;
        Prepared {
            rows,
            floats: carve.take(rows * cols),
            float_sums: carve.take(rows * cols.div_ceil(32)),
            ints: self.limit.map(|_| Ints {
                values: carve.take(rows * cols),
                scales: carve.take(rows * cols.div_ceil(GROUP)),
                sums: carve.take(rows * cols.div_ceil(32)),
                tables: carve.take(self.shared_tables(rows)),
            }),
        }
    }

    /// Norm, rounding and tables of the tile that begins at row `first`.
    fn prepare(&self, first: usize, p: &mut Prepared<'_>) {
        let (cols, kernels) = (self.cols, self.exec.kernels);
        let with_floats = self.limit.is_none() || self.packed.segments.iter().any(|s| !s.layout.is_packed());
        let floats = Tiles::new(p.floats, cols);
        let float_sums = Tiles::new(p.float_sums, cols.div_ceil(32));
        let (rows, (operand, _)) = (p.rows, kernels.operand(&self.packed.segments, p.rows));
        let ints = p.ints.as_mut().map(|i| {
            (
                Tiles::new(i.values, cols),
                Tiles::new(i.scales, cols.div_ceil(GROUP)),
                Tiles::new(i.sums, cols.div_ceil(32)),
                (!i.tables.is_empty()).then(|| Tiles::new(i.tables, operand.piece_bytes(cols))),
            )
        });
        // Few rows are cut into pieces of whole groups, so that no thread waits.
        let pieces = (self.exec.pool.threads() / rows).min(cols / PIECE).max(1);
        let piece = cols.div_ceil(pieces).next_multiple_of(GROUP);
        self.exec.each(rows * pieces, 4 * piece, &|task, _| {
            let (m, start) = (task / pieces, task % pieces * piece);
            let (start, end) = (start.min(cols), (start + piece).min(cols));
            // SAFETY: each piece of a row is one task.
            let (row, sums) =
                unsafe { (floats.part(m, start..end), float_sums.part(m, start.div_ceil(32)..end.div_ceil(32))) };
            let x = self.x.row(first + m);
            (kernels.fetch)(x);
            match self.gain {
                Some((gain, eps)) => (kernels.rms_norm)(x, gain, eps, start, row),
                None => row.copy_from_slice(&x[start..end]),
            }
            if with_floats {
                (kernels.float_sums)(row, sums);
            }
            if let (Some(limit), Some((values, scales, sums, tables))) = (self.limit, &ints) {
                // SAFETY: each piece of a row is one task.
                let (values, scales, sums) = unsafe {
                    (
                        values.part(m, start..end),
                        scales.part(m, start.div_ceil(GROUP)..end.div_ceil(GROUP)),
                        sums.part(m, start.div_ceil(32)..end.div_ceil(32)),
                    )
                };
                (kernels.quantize)(row, limit, values, scales, sums);
                if let Some(tables) = tables {
                    let Some(unit) = operand.unit else {
                        let quads = start.div_ceil(4) * operand.bytes..end.div_ceil(4) * operand.bytes;
                        // SAFETY: each piece of a row is one task.
                        return (operand.build)(values, unsafe { tables.part(m, quads) });
                    };
                    for (u, values) in (start / unit..).zip(values.chunks(unit)) {
                        // SAFETY: each piece of a row is one task, and has whole units.
                        (operand.build)(values, unsafe { tables.piece(u * rows + m) });
                    }
                }
            }
        });
    }

    /// Lets threads that wait from now on begin to fetch the next weight. Against many rows memory has time enough.
    fn expect_next(&self, rows: usize) {
        let (next, threads) = (self.next, self.exec.pool.threads());
        if let Some(segment) = next.segments.first().filter(|_| rows <= FEW) {
            let block = segment.layout.block_bytes();
            let range = task_blocks(next, rows, threads);
            let (task, tasks) = (range * block, count_tasks(next, range));
            let (stream, streams) = if segment.layout.together == SET { (SET * block, 1) } else { (block, SET) };
            self.exec.pool.ahead().expect(segment.data.bytes(), (tasks, threads), task, stream, streams);
        }
    }

    /// The product of all parts, into rows `first..` of `out`.
    fn multiply(
        &self,
        p: &Prepared<'_>,
        worker_scratch: &mut [u8],
        (out, first): (Output<'_>, usize),
        residual: Option<Input<'_>>,
    ) {
        let (kernels, pool) = (self.exec.kernels, self.exec.pool);
        let float_rows =
            FloatRows { rows: p.rows, values: p.floats, place: Place::rows(p.rows, self.cols), sums: p.float_sums };
        let (operand, many) = kernels.operand(&self.packed.segments, p.rows);
        let (own_tables, row_tables) = (self.builds_own(operand, p.rows), operand.row_bytes(self.cols));
        let built: Vec<AtomicBool> = (0..pool.threads()).map(|_| AtomicBool::new(false)).collect();
        let range = task_blocks(self.packed, p.rows, pool.threads());
        self.expect_next(p.rows);
        let tasks = count_tasks(self.packed, range);
        let shares = Shares::new(tasks, pool.threads());
        let worker_scratch = PerWorker::new(worker_scratch, pool.threads());
        let job = |_: usize, worker: usize| {
            let Some(mut task) = shares.take(worker) else { return };
            let mut segments = self.packed.segments.iter();
            let Some(segment) = segments.find(|s| {
                let here = s.blocks().div_ceil(range);
                let found = task < here;
                task -= if found { 0 } else { here };
                found
            }) else {
                return;
            };
            let blocks = task * range..((task + 1) * range).min(segment.blocks());
            // SAFETY: this task runs on this worker.
            let mut carve = Carve::new(unsafe { worker_scratch.piece(worker) });
            let acc = &mut carve.take::<f32>(range * p.rows * BLOCK)[..blocks.len() * p.rows * BLOCK];
            match &p.ints {
                Some(ints) if segment.layout.is_packed() => {
                    let mut tables: &[u8] = ints.tables;
                    if own_tables {
                        let own = carve.take::<u8>(p.rows * row_tables);
                        // A worker's tasks follow one another, so its flag needs no order.
                        if !built[worker].swap(true, Ordering::Relaxed) {
                            let rows = own.chunks_exact_mut(row_tables);
                            for (values, tables) in ints.values.chunks_exact(self.cols).zip(rows) {
                                (operand.build)(values, tables);
                            }
                        }
                        tables = own;
                    }
                    let Ints { values, scales, sums, .. } = ints;
                    let limit = self.limit.unwrap_or(0);
                    let rows = IntRows { rows: p.rows, values, scales, sums, limit, tables, many };
                    (kernels.int_blocks)(segment, blocks.clone(), &rows, acc);
                }
                _ => (kernels.float_blocks)(segment, blocks.clone(), &float_rows, acc),
            }
            for (b, acc) in blocks.zip(acc.chunks_exact(p.rows * BLOCK)) {
                let start = segment.rows.start + b * BLOCK;
                let columns = start..(start + BLOCK).min(segment.rows.end);
                for (m, acc) in acc.chunks_exact(BLOCK).enumerate() {
                    // SAFETY: each block of rows of the weight is in one task.
                    let to = unsafe { out.piece(first + m, columns.clone()) };
                    match residual {
                        Some(residual) => (kernels.add)(acc, &residual.row(first + m)[columns.clone()], to),
                        None => to.copy_from_slice(&acc[..columns.len()]),
                    }
                }
            }
        };
        self.exec.each(tasks, range * BLOCK * self.cols * p.rows / 8, &job);
    }

    /// `silu(gate) * up` of the tile's rows.
    fn gate(&self, wide: Output<'_>, out: Output<'_>, tile: Range<usize>) {
        let half = self.width / 2;
        let pieces = half.div_ceil(GATE_COLUMNS);
        self.exec.each(tile.len() * pieces, GATE_COLUMNS, &|task, _| {
            let (m, start) = (task / pieces, task % pieces * GATE_COLUMNS);
            let columns = start..(start + GATE_COLUMNS).min(half);
            // SAFETY: nobody writes the product any more.
            let row = unsafe { wide.data.shared(m * self.width..(m + 1) * self.width) };
            // SAFETY: each piece of a row is one task.
            let to = unsafe { out.piece(tile.start + m, columns.clone()) };
            let [gate, up] = [&row[columns.clone()], &row[half..][columns]];
            (self.exec.kernels.fetch)(gate);
            (self.exec.kernels.fetch)(up);
            (self.exec.kernels.swiglu)(gate, up, to);
        });
    }
}
