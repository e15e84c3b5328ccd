//! Neighbouring ops that run as fewer kernels. What lies between them is then never written, so only results that nothing
//! else reads are left out. The results have the same bits as those of the ops one by one.

use super::linear::Linear;
use super::{Call, Frame, attention, calls, linear, recurrent};
use crate::params::{self, GROUP};
use onebit_ops::{Op, OpError, Program, Tensor, View};

/// The launches of every op, in order; none for an op that a later one does with its own.
///
/// # Errors
/// Foreign handles and shapes that no kernel runs.
pub(crate) fn launches(program: &Program, frame: &Frame<'_>) -> Result<Vec<Vec<Call>>, OpError> {
    let ops = &program.ops;
    let fuse = Fuse { frame, readers: readers(program) };
    let mut all: Vec<Vec<Call>> = Vec::with_capacity(ops.len());
    for (at, op) in ops.iter().enumerate() {
        let (left_out, calls) = match op {
            Op::Linear { .. } if fuse.input(&ops[..at], op) => (1, fuse.linear(&ops[at - 1], op)?),
            Op::GatedDelta { .. } if fuse.gates(&ops[..at], op) => (1, fuse.delta(&ops[at - 1], op)?),
            Op::Attention { .. } if fuse.heads(&ops[..at], op) => (4, fuse.attention(&ops[at - 4..at], op)?),
            _ => (0, calls(op, frame)?),
        };
        let len = all.len();
        all[len - left_out..].iter_mut().for_each(Vec::clear);
        all.push(calls);
    }
    Ok(all)
}

/// How many ops read each temporary.
fn readers(program: &Program) -> Vec<usize> {
    let mut readers = vec![0; program.tensors.len()];
    for view in program.ops.iter().flat_map(Op::inputs) {
        readers[view.tensor.0 as usize] += 1;
    }
    readers
}

struct Fuse<'a> {
    frame: &'a Frame<'a>,
    readers: Vec<usize>,
}

impl Fuse<'_> {
    /// Whether a view is the whole of a result that nothing else reads.
    fn is_all_of(&self, view: View, result: Tensor) -> bool {
        let cols = self.frame.info(result).cols;
        let whole = view.tensor == result && view.offset == 0 && view.is_contiguous() && view.cols() == cols;
        whole && self.readers[result.0 as usize] == 1
    }

    /// Whether a temporary shares memory with what a kernel writes.
    fn meets(&self, read: View, written: Tensor) -> bool {
        let [a, b] = [read.tensor, written].map(|t| self.frame.placements[t.0 as usize]);
        a.offset < b.offset + b.len && b.offset < a.offset + a.len
    }

    /// A gate or a gated norm that makes the input of a product: its preparation can do both.
    fn input(&self, before: &[Op], op: &Op) -> bool {
        let (Op::Linear { x, norm: None, .. }, Some(maker)) = (op, before.last()) else {
            return false;
        };
        match maker {
            Op::SigmoidMul { out, .. } => self.is_all_of(*x, *out),
            // A group of the preparation is a block of the norm.
            Op::GatedNorm { x: blocks, out, .. } => blocks.dim == GROUP && self.is_all_of(*x, *out),
            _ => false,
        }
    }

    fn linear(&self, maker: &Op, op: &Op) -> Result<Vec<Call>, OpError> {
        let Op::Linear { weight, activations, epilogue, out, .. } = op else { unreachable!("found as a product") };
        let blocks = |z: View, x: View| View { heads: x.heads, dim: x.dim, stride: x.dim, ..z };
        let input = match maker {
            Op::SigmoidMul { x, gate, .. } => linear::Input::Sigmoid { x: *x, gate: *gate },
            Op::GatedNorm { x, z, norm, .. } => {
                // A gate that was recorded as one stretch is read in the blocks of `x`.
                let z = if z.heads == x.heads { *z } else { blocks(*z, *x) };
                linear::Input::GatedNorm { x: *x, gate: z, norm }
            }
            _ => unreachable!("found as the maker of an input"),
        };
        let (weight, out) = (weight, *out);
        linear::calls(self.frame, &Linear { input, weight, activations: *activations, epilogue: *epilogue, out })
    }

    /// Gates that the delta rule can make for itself.
    fn gates(&self, before: &[Op], op: &Op) -> bool {
        let (
            Op::GatedDelta { log_decay: read_decay, beta: read_beta, out, .. },
            Some(Op::DeltaGates { a, b, log_decay, beta, .. }),
        ) = (op, before.last())
        else {
            return false;
        };
        self.is_all_of(*read_decay, *log_decay)
            && self.is_all_of(*read_beta, *beta)
            && !self.meets(*a, *out)
            && !self.meets(*b, *out)
    }

    fn delta(&self, maker: &Op, op: &Op) -> Result<Vec<Call>, OpError> {
        let (Op::GatedDelta { q, k, v, map, eps, layer, out, .. }, Op::DeltaGates { a, b, decay_rate, dt_bias, .. }) =
            (op, maker)
        else {
            unreachable!("found as a delta rule with its gates")
        };
        let gates = recurrent::Gates::Made { a: *a, b: *b, decay_rate, dt_bias };
        let op = recurrent::Delta { qkv: [*q, *k, *v], gates, map: *map, eps: *eps, layer: *layer, out: *out };
        recurrent::gated_delta(self.frame, &op)
    }

    /// Queries and keys that are normed and turned before attention: one kernel does it and fills the pages.
    fn heads(&self, before: &[Op], op: &Op) -> bool {
        let [
            ..,
            Op::RmsNorm { x: q_raw, out: q_normed, .. },
            Op::RmsNorm { x: k_raw, out: k_normed, .. },
            Op::Rope { x: q_in, table: q_table, out: q_out },
            Op::Rope { x: k_in, table: k_table, out: k_out },
        ] = before
        else {
            return false;
        };
        let Op::Attention { q, k, v, .. } = op else { return false };
        let same = |a: View, b: View| a.heads == b.heads && a.dim == b.dim;
        self.is_all_of(*q_in, *q_normed)
            && self.is_all_of(*k_in, *k_normed)
            && self.is_all_of(*q, *q_out)
            && self.is_all_of(*k, *k_out)
            && q_table == k_table
            && same(*q, *q_raw)
            && same(*k, *k_raw)
            && [*q_in, *q].iter().all(|view| same(*view, *q_raw))
            && [*k_in, *k].iter().all(|view| same(*view, *k_raw))
            && ![*q_raw, *k_raw, *v].iter().any(|raw| self.meets(*raw, *q_out))
    }

    fn attention(&self, before: &[Op], op: &Op) -> Result<Vec<Call>, OpError> {
        let (
            [
                Op::RmsNorm { x: q_raw, norm: q_norm, .. },
                Op::RmsNorm { x: k_raw, norm: k_norm, .. },
                Op::Rope { table, .. },
                _,
            ],
            Op::Attention { q, v, layer, scale, out, .. },
        ) = (before, op)
        else {
            unreachable!("found as attention with its heads")
        };
        let frame = self.frame;
        let heads = params::HeadsParams {
            q_gain: frame.vector(&q_norm.gain)?,
            k_gain: frame.vector(&k_norm.gain)?,
            table: frame.table(table)?,
            q_out: frame.place(q.tensor),
            q_eps: q_norm.eps,
            k_eps: k_norm.eps,
            pairs: table.inv_freq.len() as u32,
            attention_factor: table.attention_factor,
            q_stride: frame.cols(q.tensor),
            ..params::HeadsParams::default()
        };
        attention::with_heads(frame, [*q_raw, *k_raw, *v], *q, heads, *layer, *scale, *out)
    }
}
