//! Gates and norms in front of a product: its preparation does them, where nothing else reads their result. The results
//! have the same bits as those of the ops one by one.

use super::linear::{self, Input};
use super::{Call, Frame, calls};
use crate::layout::GROUP;
use onebit_ops::{Op, OpError, Program, Tensor, View};

/// The calls of every op, in order; none for an op that the next one does with its own.
///
/// # Errors
/// Foreign handles and shapes that no kernel runs.
pub(crate) fn all_calls(program: &Program, frame: &Frame<'_>) -> Result<Vec<Vec<Call>>, OpError> {
    let readers = readers(program);
    let mut all: Vec<Vec<Call>> = Vec::with_capacity(program.ops.len());
    for (at, op) in program.ops.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| &program.ops[at]);
        match (before.and_then(|maker| input(frame, &readers, maker, op)), op) {
            (Some(input), Op::Linear { weight, activations, epilogue, out, .. }) => {
                all[at - 1].clear();
                all.push(linear::calls(frame, &input, weight, *activations, *epilogue, *out)?);
            }
            _ => all.push(calls(op, frame)?),
        }
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

/// What the preparation of a product can do itself of the op before it.
fn input<'a>(frame: &Frame<'_>, readers: &[usize], maker: &'a Op, op: &Op) -> Option<Input<'a>> {
    let Op::Linear { x, norm: None, .. } = op else { return None };
    // The whole of a result that nothing else reads.
    let is_all_of = |view: View, result: Tensor| {
        let whole = view.tensor == result && view.offset == 0 && view.is_contiguous();
        whole && view.cols() == frame.info(result).cols && readers[result.0 as usize] == 1
    };
    match maker {
        Op::SigmoidMul { x: value, gate, out } if is_all_of(*x, *out) => Some(Input::Sigmoid { x: *value, gate: *gate }),
        Op::SwiGlu { gate, up, out } if is_all_of(*x, *out) => Some(Input::SwiGlu { up: *up, gate: *gate }),
        // A group of the preparation is a block of the norm.
        Op::GatedNorm { x: blocks, z, norm, out } if blocks.dim == GROUP && is_all_of(*x, *out) => {
            Some(Input::GatedNorm { x: *blocks, gate: *z, norm })
        }
        _ => None,
    }
}
