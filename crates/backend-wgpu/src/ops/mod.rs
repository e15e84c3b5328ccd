//! Ops of a program as dispatches of kernels: pure functions of shapes and places.

mod attention;
mod check;
mod fuse;
mod image;
mod linear;
mod recurrent;
mod simple;

pub(crate) use check::check;
pub(crate) use fuse::all_calls;

use crate::adapter::Device;
use crate::cache::{Areas, Memory};
use crate::inputs::{COUNT_LOGITS, COUNT_ROWS, Counts, Layout};
use crate::memory::Buffer;
use crate::outputs::Outputs;
use crate::shaders::Kernel;
use onebit_ops::{Bucket, Op, OpError, Placement, Program, RopeTable, Rows, Tensor, TensorInfo, Vector, View};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Workgroups in one direction that every adapter runs.
const MOST_SIDE_BY_SIDE: usize = 65_535;

/// A number of rows that is no word of the step: as in `rows.wgsl`.
const FIXED_COUNT: u32 = 1 << 31;

/// Workgroups in one direction, which may depend on the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Fixed(usize),
    /// One for so many rows of a temporary.
    Rows(Rows, usize),
    /// One for each row of a temporary, as many as may stand side by side; and how often that is needed for all of them.
    SideBySide(Rows),
    Stacked(Rows),
    Segments,
    Tiles,
    /// One for each 256 tokens of the longest sequence.
    Splits,
}

impl Extent {
    pub(crate) fn count(self, counts: &Counts) -> usize {
        match self {
            Extent::Fixed(n) => n,
            Extent::Rows(rows, each) => row_count(rows, counts).div_ceil(each),
            Extent::SideBySide(rows) => row_count(rows, counts).min(MOST_SIDE_BY_SIDE),
            Extent::Stacked(rows) => row_count(rows, counts).div_ceil(MOST_SIDE_BY_SIDE),
            Extent::Segments => counts.segments,
            Extent::Tiles => counts.tiles,
            Extent::Splits => counts.context.div_ceil(attention::SPLIT_TOKENS),
        }
    }
}

pub(crate) fn row_count(rows: Rows, counts: &Counts) -> usize {
    match rows {
        Rows::Step => counts.rows,
        Rows::Logits => counts.logits,
        Rows::Fixed(n) => n,
    }
}

/// A stretch of a buffer that a kernel is bound to.
#[derive(Clone)]
pub(crate) struct Bound {
    pub buffer: Buffer,
    pub offset: u64,
    pub size: u64,
}

impl Bound {
    fn whole(buffer: &Buffer) -> Bound {
        Bound { buffer: buffer.clone(), offset: 0, size: buffer.size() }
    }
}

/// Which steps something is for.
pub(crate) type Steps = fn(&Counts) -> bool;

/// One way to run a call: a kernel for some steps.
pub(crate) struct Launch {
    pub kernel: Kernel,
    /// Rows of this kind for which it is the one.
    pub rows: (Rows, RangeInclusive<usize>),
    /// And what else must be true of a step.
    pub steps: Steps,
    pub grid: [Extent; 3],
}

impl Launch {
    fn always(kernel: Kernel, grid: [Extent; 3]) -> Launch {
        Launch::when(|_| true, kernel, grid)
    }

    fn when(steps: Steps, kernel: Kernel, grid: [Extent; 3]) -> Launch {
        Launch { kernel, rows: (Rows::Fixed(0), 0..=usize::MAX), steps, grid }
    }

    /// Whether the step is for it.
    pub(crate) fn fits(&self, counts: &Counts) -> bool {
        self.rows.1.contains(&row_count(self.rows.0, counts)) && (self.steps)(counts)
    }
}

/// One dispatch: constants, bindings, and the kernels that may run it.
pub(crate) struct Call {
    pub params: Vec<u32>,
    pub bound: Vec<Bound>,
    pub launches: Vec<Launch>,
}

impl Call {
    fn new(launch: Launch, params: Vec<u32>, bound: Vec<Bound>) -> Call {
        Call { params, bound, launches: vec![launch] }
    }
}

/// Everything that calls point to.
pub(crate) struct Frame<'a> {
    pub device: &'a Arc<Device>,
    pub bucket: Bucket,
    pub tensors: &'a [TensorInfo],
    pub placements: &'a [Placement],
    /// Temporaries.
    pub arena: &'a Buffer,
    /// Memory that one op uses for itself.
    pub scratch: &'a Buffer,
    /// The step's arrays, and where they lie.
    pub step: &'a Buffer,
    pub layout: &'a Layout,
    /// Packed outputs, and where each lies.
    pub packed: &'a Buffer,
    pub outputs: &'a Outputs,
    pub memory: &'a Memory,
    pub areas: &'a Areas,
    pub tables: &'a [Arc<RopeTable>],
}

impl Frame<'_> {
    fn info(&self, tensor: Tensor) -> TensorInfo {
        self.tensors[tensor.0 as usize]
    }

    /// A view as kernels take it.
    fn view(&self, view: View) -> [u32; 8] {
        let view = stretch(view);
        let first = self.place(view.tensor) + view.offset as u32;
        [first, self.cols(view.tensor), view.heads as u32, view.dim as u32, view.stride as u32, 0, 0, 0]
    }

    /// First float of a temporary.
    fn place(&self, tensor: Tensor) -> u32 {
        self.placements[tensor.0 as usize].offset as u32
    }

    /// Columns of a temporary.
    fn cols(&self, tensor: Tensor) -> u32 {
        self.info(tensor).cols as u32
    }

    fn rows(&self, tensor: Tensor) -> Rows {
        self.info(tensor).rows
    }

    /// Most rows of a temporary.
    fn most_rows(&self, tensor: Tensor) -> usize {
        match self.rows(tensor) {
            Rows::Step => self.bucket.rows,
            Rows::Logits => self.bucket.logits,
            Rows::Fixed(rows) => rows,
        }
    }

    /// What counts a temporary's rows: a word of the step, or a number.
    fn count(&self, tensor: Tensor) -> u32 {
        match self.rows(tensor) {
            Rows::Logits => COUNT_LOGITS,
            Rows::Step => COUNT_ROWS,
            Rows::Fixed(rows) => FIXED_COUNT + rows as u32,
        }
    }

    /// A small vector.
    fn vector(&self, vector: &Vector) -> Result<Bound, OpError> {
        let buffer: Option<&Buffer> = vector.payload();
        let buffer = buffer.filter(|b| b.is_on(self.device)).ok_or(OpError::ForeignHandle("a vector"))?;
        Ok(Bound::whole(buffer))
    }

    fn bound_arena(&self) -> Bound {
        Bound::whole(self.arena)
    }

    fn bound_scratch(&self) -> Bound {
        Bound::whole(self.scratch)
    }

    fn bound_step(&self) -> Bound {
        Bound::whole(self.step)
    }
}

/// Whether a kernel may read the one while it writes the other.
fn are_apart(frame: &Frame<'_>, read: View, written: Tensor) -> bool {
    let [a, b] = [read.tensor, written].map(|t| frame.placements[t.0 as usize]);
    a.offset >= b.offset + b.len || b.offset >= a.offset + a.len
}

/// A view whose values lie side by side, as one block: cheaper to find one's place in.
fn stretch(view: View) -> View {
    if view.is_contiguous() { View { heads: 1, dim: view.cols(), stride: view.cols(), ..view } } else { view }
}

/// The same view in blocks, for kernels that look at the blocks themselves.
fn blocks(frame: &Frame<'_>, view: View) -> [u32; 8] {
    let first = frame.place(view.tensor) + view.offset as u32;
    [first, frame.cols(view.tensor), view.heads as u32, view.dim as u32, view.stride as u32, 0, 0, 0]
}

/// Words at the front of the scratch memory that attention may leave for the product behind it.
pub(crate) fn front(op: &Op, program: &Program) -> usize {
    if let Op::Attention { q, .. } = op { attention::scratch(program.bucket, *q) } else { 0 }
}

/// Words of memory that an op uses for itself.
///
/// # Errors
/// Foreign handles.
pub(crate) fn scratch(op: &Op, program: &Program, memory: &Memory, device: &Arc<Device>) -> Result<usize, OpError> {
    match op {
        Op::Linear { x, weight, activations, .. } => {
            linear::scratch(program.max_rows(x.tensor), weight, *activations, device)
        }
        Op::Attention { q, .. } => Ok(attention::scratch(program.bucket, *q)),
        Op::Sample { logits } => Ok(simple::sample_scratch(program.bucket.logits, *logits)),
        Op::GatedDelta { k, v, .. } => Ok(recurrent::scratch(program.bucket.rows, *k, *v)),
        Op::GroupNorm { x, groups, .. } => Ok(image::norm_scratch(program.max_rows(x.tensor), *groups)),
        _ => Ok(0),
    }
    .map(|words| if memory.is_on(device) { words } else { 0 })
}

/// The dispatches of one op, in order.
///
/// # Errors
/// Foreign handles and shapes that no kernel runs.
fn calls(op: &Op, frame: &Frame<'_>) -> Result<Vec<Call>, OpError> {
    match op {
        Op::Embed { table, out } => simple::embed(frame, table, *out),
        Op::RmsNorm { x, norm, out } => simple::norm(frame, *x, None, norm, *out),
        Op::GatedNorm { x, z, norm, out } => simple::norm(frame, *x, Some(*z), norm, *out),
        Op::Linear { x, norm, weight, activations, epilogue, out } => {
            let input = linear::Input::of(*x, norm.as_ref());
            linear::calls(frame, &input, weight, linear::Fused::default(), *activations, *epilogue, *out)
        }
        Op::Add { a, b, out } => Ok(simple::zip(frame, crate::shaders::pointwise::ADD, *a, *b, *out)),
        Op::SwiGlu { gate, up, out } => Ok(simple::zip(frame, crate::shaders::pointwise::SWIGLU, *gate, *up, *out)),
        Op::SigmoidMul { x, gate, out } => {
            Ok(simple::zip(frame, crate::shaders::pointwise::SIGMOID_MUL, *x, *gate, *out))
        }
        Op::SelectRows { x, out } => Ok(simple::zip(frame, crate::shaders::pointwise::SELECT_ROWS, *x, *x, *out)),
        Op::Rope { x, table, out } => simple::rope(frame, *x, table, *out),
        Op::DeltaGates { a, b, decay_rate, dt_bias, log_decay, beta } => {
            simple::gates(frame, [*a, *b], [decay_rate, dt_bias], [*log_decay, *beta])
        }
        Op::Attention { q, k, v, layer, scale, out } => Ok(attention::calls(frame, [*q, *k, *v], *layer, *scale, *out)),
        Op::ConvSilu { x, weight, kernel, layer, out } => {
            recurrent::conv(frame, |_| true, *x, weight, *kernel, *layer, *out)
        }
        Op::GatedDelta { q, k, v, log_decay, beta, map, eps, layer, out } => {
            let op = recurrent::Delta {
                qkv: [*q, *k, *v],
                gates: recurrent::Gates::Given([*log_decay, *beta]),
                map: *map,
                eps: *eps,
                layer: *layer,
                out: *out,
                behind: None,
            };
            recurrent::delta(frame, &op)
        }
        Op::Sample { logits } => Ok(simple::sample(frame, *logits)),
        Op::Output { x, name } => Ok(simple::output(frame, *x, name)),
        // Its values are in the arena before the step begins.
        Op::Input { .. } => Ok(Vec::new()),
        Op::Modulate { x, scale, shift, eps, out } => Ok(image::modulate(frame, [*x, *scale, *shift], *eps, *out)),
        Op::GatedAdd { x, gate, y, out } => Ok(image::gated_add(frame, [*x, *gate, *y], *out)),
        Op::RotatePairs { x, angles, out } => Ok(image::rotate_pairs(frame, *x, *angles, *out)),
        Op::FullAttention { q, k, v, scale, seen, out } => {
            let op = image::Attention { qkv: [*q, *k, *v], scale: *scale, seen: *seen, out: *out };
            image::full_attention(frame, &op)
        }
        Op::JoinRows { parts, out } => Ok(image::join_rows(frame, parts, *out)),
        Op::JoinColumns { parts, out } => Ok(image::join_columns(frame, parts, *out)),
        Op::TakeRows { x, start, out } => Ok(image::take_rows(frame, *x, *start, *out)),
        Op::GroupNorm { x, groups, gain, bias, eps, out } => {
            image::group_norm(frame, *x, *groups, [gain, bias], *eps, *out)
        }
        Op::Conv2d { conv, out } => image::conv2d(frame, conv, *out),
    }
}
