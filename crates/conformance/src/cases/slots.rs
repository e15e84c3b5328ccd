//! Clearing and copying state slots.

use crate::bound::delta::{Exact, Shape};
use crate::check::Suite;
use crate::delta_case::{SLOTS, compare_state, outputs, table, twin};
use crate::session::{segment, step};
use onebit_ops::{HeadMap, OpError, Segment};

pub(crate) fn run(suite: &mut Suite<'_>) {
    let shape = Shape { map: HeadMap::Grouped, key_heads: 1, value_heads: 2, key_dim: 64, value_dim: 64 };
    let mut rng = suite.rng("slots");
    let table = table(&mut rng, shape, 40);
    let twin = twin(suite, "slots", shape, &table);
    let prompt: Vec<usize> = (0..12).collect();
    twin.y(&step(&prompt, vec![segment(0..12, 0, 0)]));
    twin.y(&step(&[20, 21, 22], vec![segment(0..3, 2, 0)]));
    // Guesses are pending in slot 0 when it is copied; the copy has none.
    let guesses = Segment { speculative: true, ..segment(0..3, 0, 12) };
    twin.y(&step(&[30, 31, 32], vec![guesses]));
    for side in [&twin.got, &twin.want] {
        side.copy_slot(0, 2);
    }
    let mut after = Exact::new(shape);
    outputs(&mut after, &table, &prompt);
    compare_state(suite, "copied", &twin, 2, &after);
    let none_pending = Segment { accepted: 1, ..segment(0..1, 2, 13) };
    let refused = matches!(twin.got.try_step(&step(&[1], vec![none_pending])), Err(OpError::Inputs(_)));
    suite.require("copied", refused, || "the copy has pending rows".to_owned());

    // The copy goes its own way; the original keeps its guesses.
    let (got, want) = twin.y(&step(&[13, 14], vec![segment(0..2, 2, 12)]));
    suite.near("copy continued", &got, &want, &outputs(&mut after.clone(), &table, &[13, 14]));
    let kept = Segment { accepted: 2, ..segment(0..1, 0, 14) };
    let (got, want) = twin.y(&step(&[33], vec![kept]));
    let mut original = after.clone();
    outputs(&mut original, &table, &[30, 31]);
    suite.near("original continued", &got, &want, &outputs(&mut original, &table, &[33]));
    compare_state(suite, "original", &twin, 0, &original);

    // A copy onto itself drops the guesses and nothing else.
    twin.y(&step(&[34], vec![Segment { speculative: true, ..segment(0..1, 0, 15) }]));
    for side in [&twin.got, &twin.want] {
        side.copy_slot(0, 0);
    }
    compare_state(suite, "copied onto itself", &twin, 0, &original);

    twin.y(&step(&[34], vec![Segment { speculative: true, ..segment(0..1, 0, 15) }]));
    for side in [&twin.got, &twin.want] {
        side.clear_slot(0);
    }
    compare_state(suite, "cleared", &twin, 0, &Exact::new(shape));
    let pending = Segment { accepted: 1, ..segment(0..1, 0, 1) };
    let refused = matches!(twin.got.try_step(&step(&[1], vec![pending])), Err(OpError::Inputs(_)));
    suite.require("cleared", refused, || "clearing left pending rows".to_owned());
    let (got, want) = twin.y(&step(&prompt, vec![segment(0..12, 0, 0)]));
    suite.near("reused", &got, &want, &outputs(&mut Exact::new(shape), &table, &prompt));

    let clear = twin.got.try_clear(SLOTS);
    suite.require("no such slot", matches!(clear, Err(OpError::Inputs(_))), || "clearing is not refused".to_owned());
    let far = twin.got.try_step(&step(&[1], vec![segment(0..1, SLOTS, 0)]));
    suite.require("no such slot", matches!(far, Err(OpError::Inputs(_))), || "a step is not refused".to_owned());
}
