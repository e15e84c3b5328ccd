//! Ops of a program as launches of kernels: pure functions of shapes and addresses.

mod attention;
mod check;
mod fuse;
mod image;
mod linear;
mod recurrent;
mod simple;

pub(crate) use check::{check, is_for_images};
pub(crate) use fuse::launches;

use crate::cache::Memory;
use crate::driver::Device;
use crate::launch::Launch;
use crate::memory::Buffer;
use crate::params::{self, Address};
use onebit_ops::{Bucket, Op, OpError, Placement, Program, RopeTable, Rows, Tensor, TensorInfo, Vector, View};
use std::ffi::c_void;
use std::sync::Arc;

/// What a kernel is handed, by value.
pub(crate) trait Params: Send + Sync {
    /// Where the structure lies, for the driver to copy.
    fn pointer(&self) -> *mut c_void;
}

impl<T: Copy + Send + Sync> Params for T {
    fn pointer(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

/// One launch with what it is handed.
pub(crate) struct Call {
    pub launch: Launch,
    pub params: Box<dyn Params>,
}

impl Call {
    fn new(launch: Launch, params: impl Params + 'static) -> Call {
        Call { launch, params: Box::new(params) }
    }
}

/// Everything that launches point to.
pub(crate) struct Frame<'a> {
    pub device: &'a Arc<Device>,
    pub bucket: Bucket,
    pub tensors: &'a [TensorInfo],
    pub placements: &'a [Placement],
    /// First byte of the temporaries.
    pub arena: Address,
    /// First byte of memory that one op uses for itself; behind it lies as much again, for what one op leaves to the next.
    pub scratch: Address,
    /// Bytes of one half of that memory.
    pub scratch_bytes: usize,
    /// First of the numbers by which the blocks of a kernel tell each other that they are done, for each head; 0 between kernels.
    pub counters: Address,
    /// The step's arrays.
    pub step: params::Step,
    pub memory: &'a Memory,
    /// First byte of the pending areas; 0 before anybody has speculated.
    pub areas: Address,
    /// Numbers of rows of temporaries that have one of their own, on the device one after the other.
    pub counts: (&'a [usize], Address),
    /// Rotary tables on the device.
    pub tables: &'a [(Arc<RopeTable>, Buffer)],
}

impl Frame<'_> {
    fn info(&self, tensor: Tensor) -> TensorInfo {
        self.tensors[tensor.0 as usize]
    }

    /// A view as kernels take it.
    fn view(&self, view: View) -> params::View {
        params::View {
            data: self.place(view.tensor) + (view.offset * size_of::<f32>()) as Address,
            row_stride: self.info(view.tensor).cols as u32,
            heads: view.heads as u32,
            dim: view.dim as u32,
            head_stride: view.stride as u32,
        }
    }

    /// First byte of a temporary.
    fn place(&self, tensor: Tensor) -> Address {
        self.arena + (self.placements[tensor.0 as usize].offset * size_of::<f32>()) as Address
    }

    /// First byte of a half of the scratch memory: 0 or 1.
    fn half(&self, half: usize) -> Address {
        self.scratch + (half * self.scratch_bytes) as Address
    }

    /// Columns of a temporary.
    fn cols(&self, tensor: Tensor) -> u32 {
        self.info(tensor).cols as u32
    }

    /// Most rows of a temporary, and where the step says how many there are.
    fn rows(&self, tensor: Tensor) -> (usize, Address) {
        let header = |field: usize| self.step.header + field as Address;
        match self.info(tensor).rows {
            Rows::Step => (self.bucket.rows, header(std::mem::offset_of!(params::StepHeader, rows))),
            Rows::Logits => (self.bucket.logits, header(std::mem::offset_of!(params::StepHeader, logits))),
            Rows::Fixed(rows) => {
                let (counts, first) = self.counts;
                let at = counts.binary_search(&rows).unwrap_or_else(|_| unreachable!("counted for the plan"));
                (rows, first + (at * size_of::<u32>()) as Address)
            }
        }
    }

    /// A small vector's address.
    fn vector(&self, vector: &Vector) -> Result<Address, OpError> {
        let buffer: Option<&Buffer> = vector.payload();
        let buffer = buffer.filter(|b| b.is_on(self.device)).ok_or(OpError::ForeignHandle("a vector"))?;
        Ok(buffer.address())
    }

    /// A rotary table's address.
    fn table(&self, table: &Arc<RopeTable>) -> Result<Address, OpError> {
        let found = self.tables.iter().find(|(known, _)| Arc::ptr_eq(known, table) || known == table);
        found.map(|(_, buffer)| buffer.address()).ok_or(OpError::ForeignHandle("a rotary table"))
    }
}

/// Bytes of memory that an op uses for itself.
///
/// # Errors
/// Shapes that no kernel runs.
pub(crate) fn scratch(op: &Op, program: &Program, memory: &Memory, device: &Arc<Device>) -> Result<usize, OpError> {
    match op {
        Op::Linear { x, weight, activations, epilogue, .. } => {
            linear::scratch(program.max_rows(x.tensor), weight, *activations, *epilogue, device)
        }
        Op::Attention { q, k, .. } => attention::scratch(program.bucket, *q, *k, memory, device),
        Op::GatedDelta { k, v, .. } => recurrent::delta_scratch(program.bucket.rows, *k, *v),
        Op::FullAttention { q, k, seen, .. } => {
            Ok(image::attention_scratch(program.max_rows(q.tensor), *q, *k, *seen, device))
        }
        Op::GroupNorm { x, groups, .. } => Ok(image::norm_scratch(program.max_rows(x.tensor), *groups)),
        Op::Sample { logits } => Ok(simple::sample_scratch(program.bucket.logits, *logits)),
        _ => Ok(0),
    }
}

/// Numbers at [`Frame::counters`] that a program needs: a query head each.
pub(crate) fn counters(program: &Program) -> usize {
    let heads = program.ops.iter().map(|op| if let Op::Attention { q, .. } = op { q.heads } else { 0 });
    heads.max().unwrap_or(0)
}

/// The launches of one op, in order. Outputs have none: the host copies them.
///
/// # Errors
/// Foreign handles and shapes that no kernel runs.
fn calls(op: &Op, frame: &Frame<'_>) -> Result<Vec<Call>, OpError> {
    match op {
        Op::Embed { .. } => unreachable!("with its neighbours: see `fuse`"),
        Op::RmsNorm { x, norm, out } => simple::norm(frame, "rms_norm", *x, None, norm, *out),
        Op::GatedNorm { x, z, norm, out } => simple::norm(frame, "gated_norm", *x, Some(*z), norm, *out),
        Op::Linear { .. } => unreachable!("with its neighbours: see `fuse`"),
        Op::Add { a, b, out } => Ok(simple::zip(frame, "add", *a, *b, *out)),
        Op::SwiGlu { gate, up, out } => Ok(simple::zip(frame, "swiglu", *gate, *up, *out)),
        Op::SigmoidMul { x, gate, out } => Ok(simple::zip(frame, "sigmoid_mul", *x, *gate, *out)),
        Op::Rope { x, table, out } => simple::rope(frame, *x, table, *out),
        Op::SelectRows { x, out } => Ok(simple::select_rows(frame, *x, *out)),
        Op::DeltaGates { a, b, decay_rate, dt_bias, log_decay, beta } => {
            simple::delta_gates(frame, [*a, *b], [decay_rate, dt_bias], [*log_decay, *beta])
        }
        Op::Attention { .. } => unreachable!("with its neighbours: see `fuse`"),
        Op::ConvSilu { x, weight, kernel, layer, out } => {
            recurrent::conv_silu(frame, *x, weight, *kernel, *layer, *out)
        }
        Op::GatedDelta { .. } => unreachable!("with its neighbours: see `fuse`"),
        Op::Sample { logits } => Ok(simple::sample(frame, *logits)),
        Op::Modulate { x, scale, shift, eps, out } => {
            Ok(image::mix(frame, "modulate", [*x, *scale, *shift], *eps, *out))
        }
        Op::GatedAdd { x, gate, y, out } => Ok(image::mix(frame, "gated_add", [*x, *gate, *y], 0.0, *out)),
        Op::RotatePairs { x, angles, out } => Ok(image::rotate_pairs(frame, *x, *angles, *out)),
        Op::FullAttention { q, k, v, scale, seen, out } => {
            image::full_attention(frame, [*q, *k, *v], *scale, *seen, *out)
        }
        Op::JoinRows { parts, out } => Ok(image::join_rows(frame, parts, *out)),
        Op::TakeRows { x, start, out } => Ok(image::take_rows(frame, *x, *start, *out)),
        Op::JoinColumns { parts, out } => Ok(image::join_columns(frame, parts, *out)),
        Op::GroupNorm { x, groups, gain, bias, eps, out } => {
            image::group_norm(frame, *x, *groups, [gain, bias], *eps, *out)
        }
        Op::Conv2d { conv, out } => image::conv2d(frame, conv, *out),
        // Copied by the host, before and behind all others.
        Op::Input { .. } | Op::Output { .. } => Ok(Vec::new()),
    }
}
