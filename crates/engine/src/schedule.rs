//! Which tokens the next step reads.

use crate::core::{Batch, BatchItem, Sequence};
use crate::store::Store;
use onebit_ops::{OpError, Segment, StepInputs};

/// Every sequence that waits for its next token first, then the prompts in the order of their admission, at most
/// `prefill_rows` rows of them. `None` when nothing is running.
pub(crate) fn schedule(
    running: &mut [Sequence],
    store: &mut Store,
    prefill_rows: usize,
) -> Result<Option<Batch>, OpError> {
    let (decodes, prefills): (Vec<usize>, Vec<usize>) = (0..running.len()).partition(|i| running[*i].pending() == 1);
    let mut batch = Batch { items: Vec::new(), inputs: StepInputs::default() };
    for sequence in decodes {
        push(&mut batch, sequence, &mut running[sequence], store, 1)?;
    }
    let mut left = prefill_rows;
    for sequence in prefills {
        if left == 0 {
            break;
        }
        let rows = chunk(&running[sequence], left);
        push(&mut batch, sequence, &mut running[sequence], store, rows)?;
        left -= rows;
    }
    Ok((!batch.items.is_empty()).then_some(batch))
}

/// Pending rows of a sequence that one step reads: as many as there is room for, up to the next state to save.
fn chunk(sequence: &Sequence, room: usize) -> usize {
    let to_checkpoint = sequence.next_checkpoint().map_or(usize::MAX, |at| at - sequence.computed);
    sequence.pending().min(room).min(to_checkpoint)
}

fn push(
    batch: &mut Batch,
    index: usize,
    sequence: &mut Sequence,
    store: &mut Store,
    rows: usize,
) -> Result<(), OpError> {
    let past = sequence.computed;
    store.grow(&mut sequence.holding, past + rows)?;
    let inputs = &mut batch.inputs;
    let start = inputs.tokens.len();
    inputs.tokens.extend(&sequence.tokens[past..past + rows]);
    inputs.positions.extend((past..past + rows).map(|p| [p as u32; 3]));
    inputs.segments.push(Segment {
        rows: start..start + rows,
        slot: sequence.holding.slot,
        pages: sequence.holding.pages.clone(),
        past,
        accepted: 0,
        speculative: false,
    });
    let logits = (rows == sequence.pending()).then(|| {
        inputs.logit_rows.push(start + rows - 1);
        inputs.logit_rows.len() - 1
    });
    batch.items.push(BatchItem { sequence: index, rows, logits });
    Ok(())
}
