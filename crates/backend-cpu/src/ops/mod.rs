//! The operations, cut into tasks.

pub(crate) mod attention;
pub(crate) mod conv2d;
pub(crate) mod full_attention;
pub(crate) mod image;
pub(crate) mod linear;
pub(crate) mod recurrent;
pub(crate) mod sample;
pub(crate) mod simple;

use crate::cache::Memory;
use crate::generic::Kernels;
use crate::layout::Packed;
use crate::memory::{Disjoint, Plain};
use crate::threads::Pool;
use onebit_ops::{OpError, Placement, Rows, StepInputs, Tensor, TensorInfo, Vector, View, Weight};
use std::ops::Range;

/// Fewer values than this are worked on by one thread: the work is shorter than waking another.
const WORTH_SHARING: usize = 16 * 1024;

/// Who does the work, and with which loops.
#[derive(Clone, Copy)]
pub(crate) struct Exec<'a> {
    pub kernels: &'static Kernels,
    pub pool: &'a Pool,
}

impl Exec<'_> {
    /// Runs `f(task, worker)` for every task, on several threads if there is enough work: `size` values a task.
    pub(crate) fn each(&self, tasks: usize, size: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        if tasks * size < WORTH_SHARING {
            (0..tasks).for_each(|t| f(t, 0));
        } else {
            self.pool.run(tasks, f);
        }
    }
}

/// What the ops of one step work with.
pub(crate) struct Frame<'a> {
    pub exec: Exec<'a>,
    pub inputs: &'a StepInputs,
    /// The step's tokens, the carried ones among them.
    pub tokens: &'a [u32],
    pub tensors: &'a [TensorInfo],
    pub placements: &'a [Placement],
    /// All temporaries.
    pub arena: Disjoint<'a, f32>,
    pub cache: &'a mut Memory,
    /// Shared by the tasks of an op.
    pub scratch: &'a mut [u8],
    /// One piece for each worker.
    pub worker_scratch: &'a mut [u8],
}

/// A temporary that is read.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    data: &'a [f32],
    cols: usize,
    pub view: View,
}

impl<'a> Input<'a> {
    /// A row of a contiguous view.
    pub(crate) fn row(&self, r: usize) -> &'a [f32] {
        debug_assert!(self.view.is_contiguous());
        &self.data[r * self.cols + self.view.offset..][..self.view.cols()]
    }
    /// One block of a row.
    pub(crate) fn head(&self, r: usize, h: usize) -> &'a [f32] {
        &self.data[r * self.cols + self.view.offset + h * self.view.stride..][..self.view.dim]
    }
    /// Pieces of a row that lie side by side, with their first column.
    pub(crate) fn pieces(&self, r: usize) -> impl Iterator<Item = (usize, &'a [f32])> {
        let (this, count) = (*self, if self.view.is_contiguous() { 1 } else { self.view.heads });
        let width = self.view.cols() / count;
        (0..count).map(move |i| {
            let start = r * this.cols + this.view.offset + i * this.view.stride;
            (i * width, &this.data[start..start + width])
        })
    }
}

/// A temporary that is written.
#[derive(Clone, Copy)]
pub(crate) struct Output<'a> {
    pub data: Disjoint<'a, f32>,
    pub cols: usize,
}

impl<'a> Output<'a> {
    /// Some columns of a row.
    ///
    /// # Safety
    /// As [`Disjoint::piece`].
    pub(crate) unsafe fn piece(&self, r: usize, columns: Range<usize>) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.data.piece(r * self.cols + columns.start..r * self.cols + columns.end) }
    }
    /// A row.
    ///
    /// # Safety
    /// As [`Disjoint::piece`].
    pub(crate) unsafe fn row(&self, r: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.piece(r, 0..self.cols) }
    }
}

impl<'a> Frame<'a> {
    /// Rows of a temporary in this step.
    pub(crate) fn rows(&self, tensor: Tensor) -> usize {
        match self.tensors[tensor.0 as usize].rows {
            Rows::Step => self.inputs.tokens.len(),
            Rows::Logits => self.inputs.logit_rows.len(),
            Rows::Fixed(rows) => rows,
        }
    }

    fn place(&self, tensor: Tensor) -> (Range<usize>, usize) {
        let (start, cols) = (self.placements[tensor.0 as usize].offset, self.tensors[tensor.0 as usize].cols);
        (start..start + self.rows(tensor) * cols, cols)
    }

    /// A view to read.
    pub(crate) fn read(&self, view: View) -> Input<'a> {
        let (range, cols) = self.place(view.tensor);
        // SAFETY: an op reads and writes different temporaries, and the placement keeps those that live at the same
        // op apart.
        Input { data: unsafe { self.arena.shared(range) }, cols, view }
    }

    /// A temporary to write.
    pub(crate) fn write(&self, tensor: Tensor) -> Output<'a> {
        let (range, cols) = self.place(tensor);
        // SAFETY: as in `read`; an op asks once for each temporary that it writes.
        Output { data: Disjoint::new(unsafe { self.arena.piece(range) }), cols }
    }
}

/// A piece for each worker of a buffer.
pub(crate) struct PerWorker<'a> {
    all: Disjoint<'a, u8>,
    each: usize,
}

impl<'a> PerWorker<'a> {
    pub(crate) fn new(buffer: &'a mut [u8], workers: usize) -> Self {
        let each = buffer.len() / workers / crate::memory::ALIGN * crate::memory::ALIGN;
        PerWorker { all: Disjoint::new(buffer), each }
    }
    /// The piece of `worker`.
    ///
    /// # Safety
    /// Only the task that runs on this worker may hold it.
    pub(crate) unsafe fn piece(&self, worker: usize) -> &'a mut [u8] {
        // SAFETY: one piece for each worker, and a worker runs one task at a time.
        unsafe { self.all.piece(worker * self.each..(worker + 1) * self.each) }
    }
}

/// A weight of this backend.
pub(crate) fn weight(w: &Weight) -> Result<&Packed, OpError> {
    w.payload().ok_or(OpError::ForeignHandle("a weight"))
}

/// A vector of this backend.
pub(crate) fn vector(v: &Vector) -> Result<&Vec<f32>, OpError> {
    v.payload().ok_or(OpError::ForeignHandle("a vector"))
}

/// Cuts a slice that tasks share by equal pieces.
pub(crate) struct Tiles<'a, T> {
    all: Disjoint<'a, T>,
    each: usize,
}

impl<'a, T: Plain> Tiles<'a, T> {
    pub(crate) fn new(slice: &'a mut [T], each: usize) -> Self {
        Tiles { all: Disjoint::new(slice), each }
    }
    /// Piece `i`.
    ///
    /// # Safety
    /// As [`Disjoint::piece`].
    pub(crate) unsafe fn piece(&self, i: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { self.part(i, 0..self.each) }
    }
    /// A part of piece `i`.
    ///
    /// # Safety
    /// As [`Disjoint::piece`].
    pub(crate) unsafe fn part(&self, i: usize, part: Range<usize>) -> &'a mut [T] {
        debug_assert!(part.end <= self.each);
        // SAFETY: the caller's promise.
        unsafe { self.all.piece(i * self.each + part.start..i * self.each + part.end) }
    }
}
