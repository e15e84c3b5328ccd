//! Neighbouring ops that run as fewer kernels. What lies between them is then never written, so only results that nothing
//! else reads are left out. The results have the same bits as those of the ops one by one.

use super::attention::Attention;
use super::linear::{Linear, Place};
use super::{Call, Frame, attention, calls, linear, recurrent, simple};
use crate::launch::{self, Product};
use crate::params::{self, Address, GROUP, PrepareParams};
use crate::weight::{Resident, resident};
use onebit_ops::{Epilogue, Norm, Op, OpError, Program, Tensor, View};

/// The launches of every op, in order; none for an op that a later one does with its own.
///
/// # Errors
/// Foreign handles and shapes that no kernel runs.
pub(crate) fn launches(program: &Program, frame: &Frame<'_>) -> Result<Vec<Vec<Call>>, OpError> {
    let ops = &program.ops;
    let fuse = Fuse { frame, readers: readers(program) };
    let mut all: Vec<Vec<Call>> = Vec::with_capacity(ops.len());
    let mut place = Place::default();
    // Whether the product in front did the convolution, or made the only row's choice needless.
    let (mut convolved, mut selected) = (false, false);
    for (at, op) in ops.iter().enumerate() {
        let (left_out, calls) = match op {
            Op::Linear { .. } => {
                let made = fuse.input(&ops[..at], op);
                let linear = fuse.linear(made.then(|| &ops[at - 1]), op);
                place.next = fuse.rounds(&linear, &ops[at + 1..], 1 - place.half)?;
                selected = place.next.is_some() && matches!(ops[at + 1], Op::SelectRows { .. });
                place.conv = ops.get(at + 1).map_or(Ok(None), |next| fuse.convolves(&linear, next))?;
                convolved = place.conv.is_some();
                let calls = linear::calls(frame, &linear, place)?;
                place = Place { half: 1 - place.half, given: place.next.map(|next| next.x), ..Place::default() };
                (usize::from(made), calls)
            }
            Op::ConvSilu { .. } if std::mem::take(&mut convolved) => (0, Vec::new()),
            Op::SelectRows { .. } if std::mem::take(&mut selected) => (0, Vec::new()),
            Op::Embed { table, out } => {
                let next = fuse.rounds_rows(*out, ops.get(at + 1), place.half)?;
                place.given = next.map(|next| next.out);
                (0, simple::embed(frame, table, *out, next)?)
            }
            Op::GatedDelta { .. } => {
                let made = fuse.gates(&ops[..at], op);
                let next = fuse.rounds_delta(&ops[at..], place.half)?;
                place.given = next.map(|next| next.out);
                place.spread = next.is_some();
                (usize::from(made), fuse.delta(made.then(|| &ops[at - 1]), op, next)?)
            }
            Op::Attention { .. } => {
                // What attention keeps for itself lies in the first half of the scratch memory.
                place.half = 1;
                let heads = fuse.heads(&ops[..at], op);
                let next = fuse.rounds_attention(&ops[at..], heads, place.half)?;
                place.given = next.map(|next| next.out);
                match heads {
                    true => (4, fuse.attention_with_heads(&ops[at - 4..at], op, next)?),
                    false => (0, attention::calls(frame, fuse.attention(op, next))?),
                }
            }
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

    /// A product with its input, which `maker` may be a part of.
    fn linear<'b>(&self, maker: Option<&'b Op>, op: &'b Op) -> Linear<'b> {
        let Op::Linear { x, norm, weight, activations, epilogue, out } = op else { unreachable!("found as a product") };
        let blocks = |z: View, x: View| View { heads: x.heads, dim: x.dim, stride: x.dim, ..z };
        let input = match (maker, norm) {
            (Some(Op::SigmoidMul { x, gate, .. }), _) => linear::Input::Sigmoid { x: *x, gate: *gate },
            (Some(Op::GatedNorm { x, z, norm, .. }), _) => {
                // A gate that was recorded as one stretch is read in the blocks of `x`.
                let z = if z.heads == x.heads { *z } else { blocks(*z, *x) };
                linear::Input::GatedNorm { x: *x, gate: z, norm }
            }
            (_, Some(norm)) => linear::Input::Norm { x: *x, norm },
            (_, None) => linear::Input::Plain(*x),
        };
        Linear { input, weight, activations: *activations, epilogue: *epilogue, out: *out }
    }

    /// Whether a product can round its results as the input of the op behind it, a product, and what that takes: then nothing
    /// lies between the two. Where there is but one row, a choice of rows may.
    fn rounds(&self, op: &Linear<'_>, behind: &[Op], half: usize) -> Result<Option<linear::Next>, OpError> {
        let bucket = self.frame.bucket;
        let (chosen, next) = match behind {
            [Op::SelectRows { x, out }, next, ..] if bucket.rows == 1 && bucket.logits == 1 => (Some((x, *out)), next),
            [next, ..] => (None, next),
            [] => return Ok(None),
        };
        let Op::Linear { x, norm, weight, activations, epilogue, .. } = next else { return Ok(None) };
        let info = self.frame.info(op.out);
        let whole = |x: View| x.tensor == op.out && x.offset == 0 && x.is_contiguous() && x.cols() == info.cols;
        match chosen {
            Some((read, out)) if !whole(*read) || !self.is_all_of(*x, out) => return Ok(None),
            None if !whole(*x) => return Ok(None),
            _ => {}
        }
        let device = self.frame.device;
        let (rows, _) = self.frame.rows(op.out);
        let parts = [resident(op.weight, device)?, resident(weight, device)?];
        let product = linear::product(rows, op.weight, parts[0], op.activations, op.epilogue, device);
        let after = linear::product(rows, weight, parts[1], *activations, *epilogue, device);
        if !launch::rounds(&parts[0].shapes, &product, &parts[1].shapes, &after) {
            return Ok(None);
        }
        let large = *epilogue == Epilogue::SwiGlu;
        let Some(norm) = norm else {
            let kept = self.readers[op.out.0 as usize] > 1;
            let (prepared, _) = linear::prepared(self.frame.half(half), parts[1], &after);
            return Ok(Some(linear::Next { x: prepared, gain: 0, kept, large }));
        };
        let x = self.to_be_normed(op.out, norm, parts[1], &after, half);
        Ok(Some(linear::Next { x, gain: self.frame.vector(&norm.gain)?, kept: true, large }))
    }

    /// The input of a product as whoever makes `x` leaves it: rounded before the norm, with sums of squares.
    fn to_be_normed(
        &self,
        x: Tensor,
        norm: &Norm,
        weight: &Resident,
        product: &Product,
        half: usize,
    ) -> params::Prepared {
        let (mut prepared, end) = linear::prepared(self.frame.half(half), weight, product);
        prepared.squares = self.frame.half(half) + end as Address;
        prepared.raw = self.frame.place(x);
        prepared.raw_stride = self.frame.cols(x);
        prepared.eps = norm.eps;
        prepared
    }

    /// Rows of a table that the op behind, a product with a norm, reads: what makes them its input.
    fn rounds_rows(&self, out: Tensor, next: Option<&Op>, half: usize) -> Result<Option<PrepareParams>, OpError> {
        let Some(Op::Linear { x, norm: Some(norm), weight, activations, epilogue, .. }) = next else { return Ok(None) };
        let device = self.frame.device;
        let weight_parts = resident(weight, device)?;
        let product = linear::product(self.frame.bucket.rows, weight, weight_parts, *activations, *epilogue, device);
        let whole = x.tensor == out && x.offset == 0 && x.is_contiguous() && x.cols() == self.frame.info(out).cols;
        if !whole || !launch::takes_squares(&weight_parts.shapes, &product) {
            return Ok(None);
        }
        Ok(Some(PrepareParams {
            gain: self.frame.vector(&norm.gain)?,
            out: self.to_be_normed(out, norm, weight_parts, &product, half),
            eps: norm.eps,
            wanted: launch::prepared_kinds(&weight_parts.shapes, &product),
            input: params::input::NORM,
            ..PrepareParams::default()
        }))
    }

    /// A convolution behind a product of one row that the product can do.
    fn convolves(&self, op: &Linear<'_>, next: &Op) -> Result<Option<params::ConvParams>, OpError> {
        let Op::ConvSilu { x, weight, kernel, layer, out } = next else { return Ok(None) };
        let device = self.frame.device;
        let (rows, _) = self.frame.rows(op.out);
        let parts = resident(op.weight, device)?;
        let product = linear::product(rows, op.weight, parts, op.activations, op.epilogue, device);
        // Blocks of the product read its inputs while others write the convolution's results.
        let residual = if let Epilogue::Residual(view) = op.epilogue { Some(view) } else { None };
        let apart = |view: &View| !self.meets(*view, *out);
        let first = x.tensor == op.out && x.offset == 0 && x.is_contiguous();
        if !first || !launch::convolves(&parts.shapes, &product) || !op.input.views().iter().chain(&residual).all(apart)
        {
            return Ok(None);
        }
        recurrent::conv_params(self.frame, *x, weight, *kernel, *layer, *out).map(Some)
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

    /// A delta rule with its gates, which `maker` may make.
    fn delta(&self, maker: Option<&Op>, op: &Op, next: Option<PrepareParams>) -> Result<Vec<Call>, OpError> {
        let Op::GatedDelta { q, k, v, log_decay, beta, map, eps, layer, out } = op else {
            unreachable!("found as a delta rule")
        };
        let gates = match maker {
            Some(Op::DeltaGates { a, b, decay_rate, dt_bias, .. }) => {
                recurrent::Gates::Made { a: *a, b: *b, decay_rate, dt_bias }
            }
            _ => recurrent::Gates::Given([*log_decay, *beta]),
        };
        let op = recurrent::Delta { qkv: [*q, *k, *v], gates, map: *map, eps: *eps, layer: *layer, out: *out, next };
        recurrent::gated_delta(self.frame, &op)
    }

    /// Where a gated norm and a product follow a delta rule of one row: the results as the product's input.
    fn rounds_delta(&self, ops: &[Op], half: usize) -> Result<Option<PrepareParams>, OpError> {
        let [Op::GatedDelta { k, v, out, .. }, maker @ Op::GatedNorm { x, .. }, product, ..] = ops else {
            return Ok(None);
        };
        if !self.input(&ops[..2], product) || !self.is_all_of(*x, *out) || !recurrent::rounds(self.frame, *k, *v) {
            return Ok(None);
        }
        let linear = self.linear(Some(maker), product);
        Ok(Some(linear::preparation(self.frame, &linear, half)?.0))
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
        let Op::Attention { q, k, v, out, .. } = op else { return false };
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
            && ![*q_raw, *k_raw, *v].iter().any(|raw| self.meets(*raw, *q_out) || self.meets(*raw, *out))
    }

    fn attention(&self, op: &Op, next: Option<PrepareParams>) -> Attention {
        let Op::Attention { q, k, v, layer, scale, out } = op else { unreachable!("found as attention") };
        Attention { qkv: [*q, *k, *v], layer: *layer, scale: *scale, out: *out, next }
    }

    /// Where a product follows attention, perhaps behind a gate, and few rows: the results as the product's input.
    fn rounds_attention(&self, ops: &[Op], heads: bool, half: usize) -> Result<Option<PrepareParams>, OpError> {
        let (maker, product) = match ops {
            [_, gate @ Op::SigmoidMul { .. }, product, ..] if self.input(&ops[..2], product) => (Some(gate), product),
            [_, product, ..] => (None, product),
            _ => return Ok(None),
        };
        let (Op::Attention { q, k, out, .. }, Op::Linear { x, norm: None, .. }) = (&ops[0], product) else {
            return Ok(None);
        };
        let read = if let Some(Op::SigmoidMul { x, .. }) = maker { x } else { x };
        if !self.is_all_of(*read, *out) || !attention::rounds(self.frame, *q, *k, heads)? {
            return Ok(None);
        }
        let linear = self.linear(maker, product);
        Ok(Some(linear::preparation(self.frame, &linear, half)?.0))
    }

    fn attention_with_heads(&self, before: &[Op], op: &Op, next: Option<PrepareParams>) -> Result<Vec<Call>, OpError> {
        let (
            [
                Op::RmsNorm { x: q_raw, norm: q_norm, .. },
                Op::RmsNorm { x: k_raw, norm: k_norm, .. },
                Op::Rope { table, .. },
                _,
            ],
            Op::Attention { q, v, .. },
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
        attention::with_heads(frame, [*q_raw, *k_raw, *v], heads, self.attention(op, next))
    }
}
