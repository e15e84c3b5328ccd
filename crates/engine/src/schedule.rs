//! Which tokens the next step reads.

use crate::request::RequestId;
use crate::sequence::Sequence;
use crate::store::Store;
use onebit_ops::{Carried, OpError, Segment, StepInputs};

/// One step's work: rows of several sequences, and what the plan is fed with.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) items: Vec<Item>,
    pub(crate) inputs: StepInputs,
    /// The logits themselves are wanted, beside the tokens chosen from them.
    pub(crate) logits: bool,
}

/// The rows of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) id: RequestId,
    pub(crate) choice: usize,
    /// Tokens of the sequence after the step.
    pub(crate) end: usize,
    /// Which logit row is its, when the last pending token is among the rows.
    pub(crate) row: Option<usize>,
    /// Where its state behind these tokens was copied to.
    pub(crate) state: Option<usize>,
}

/// What became of scheduling.
pub(crate) enum Scheduled {
    /// A step with something to do.
    Batch(Batch),
    /// Nothing to read.
    Nothing,
    /// A running sequence needs a page and there is none.
    NoRoom,
}

/// Every sequence that waits for its next token first, then the prompts, in the order of the running ones; at most
/// `prefill_rows` rows of prompts. With `ahead`, a step that starts before the one under way is done: sequences whose
/// token is still to come go on with it unseen, if it cannot be their last.
pub(crate) fn schedule(
    running: &mut [Sequence],
    store: &mut Store,
    prefill_rows: usize,
    ahead: bool,
) -> Result<Scheduled, OpError> {
    let mut batch = Batch::default();
    for sequence in running.iter_mut() {
        let carried = sequence.awaited.filter(|_| ahead && sequence.goes_on());
        if sequence.awaited.is_some() && carried.is_none() || sequence.awaited.is_none() && sequence.pending() != 1 {
            continue;
        }
        if !push(&mut batch, sequence, store, 1, carried.map(|c| c.row))? {
            return Ok(Scheduled::NoRoom);
        }
    }
    let mut left = prefill_rows;
    for sequence in running.iter_mut() {
        if left == 0 {
            break;
        }
        if sequence.awaited.is_some() || sequence.pending() < 2 {
            continue;
        }
        let rows = chunk(sequence, left);
        if !push(&mut batch, sequence, store, rows, None)? {
            return Ok(Scheduled::NoRoom);
        }
        left -= rows;
    }
    Ok(if batch.items.is_empty() { Scheduled::Nothing } else { Scheduled::Batch(batch) })
}

/// Pending rows of a sequence that one step reads: as many as there is room for, up to the next state to save.
fn chunk(sequence: &Sequence, room: usize) -> usize {
    let to_checkpoint = sequence.next_checkpoint().map_or(usize::MAX, |at| at - sequence.submitted);
    sequence.pending().min(room).min(to_checkpoint)
}

/// Adds rows of a sequence; `carried` is the logit row of the step under way that its only one is chosen in. False when
/// there is no page for them.
fn push(
    batch: &mut Batch,
    sequence: &mut Sequence,
    store: &mut Store,
    rows: usize,
    carried: Option<usize>,
) -> Result<bool, OpError> {
    let (past, end) = (sequence.submitted, sequence.submitted + rows);
    if !store.grow(&mut sequence.holding, end)? {
        return Ok(false);
    }
    let inputs = &mut batch.inputs;
    let start = inputs.tokens.len();
    match carried {
        Some(from) => {
            inputs.carried.push(Carried { row: start, from });
            inputs.tokens.push(0);
        }
        None => inputs.tokens.extend(&sequence.tokens[past..end]),
    }
    inputs.positions.extend((past..end).map(|p| [p as u32; 3]));
    inputs.segments.push(Segment {
        rows: start..start + rows,
        slot: sequence.holding.slot(),
        pages: sequence.holding.pages.clone(),
        past,
        accepted: 0,
        speculative: false,
    });
    let row = (end >= sequence.tokens.len()).then(|| {
        inputs.logit_rows.push(start + rows - 1);
        inputs.draws.push(sequence.draw(end - sequence.tokens.len()));
        batch.logits |= sequence.shared.logprobs.is_some_and(|n| n > 0);
        inputs.logit_rows.len() - 1
    });
    batch.items.push(Item { id: sequence.id(), choice: sequence.choice, end, row, state: None });
    Ok(true)
}
