//! Guessed rows: whatever part of them is accepted, outputs and state equal a run that never guessed.

use crate::bound::Near;
use crate::bound::conv::conv_silu;
use crate::bound::delta::{Exact, Shape};
use crate::check::Suite;
use crate::delta_case::{PENDING, compare_state, outputs, table, twin};
use crate::session::{Twin, bucket, recurrent, segment, step};
use crate::weights;
use onebit_ops::{HeadMap, OpError, Segment, StateSpec, StepInputs};

pub(crate) fn run(suite: &mut Suite<'_>) {
    delta(suite);
    convolution(suite);
}

/// A prompt, then rounds of guesses of which some are accepted; each entry is (guessed rows, accepted by the next).
const ROUNDS: [&[(usize, usize)]; 5] = [
    &[(4, 0)],
    &[(4, 4)],
    &[(4, 1), (6, 6), (1, 0), (1, 1)],
    &[(PENDING, 3), (2, 2), (5, 0), (3, 2)],
    &[(2, 1), (2, 1), (2, 1)],
];

fn guess(rows: usize, past: usize, accepted: usize) -> Segment {
    Segment { accepted, speculative: true, ..segment(0..rows, 1, past) }
}

/// Runs the rounds. `each` sees every step: its tokens, the tokens that hold before it, and its segment.
fn rounds(plan: &[(usize, usize)], prompt: usize, mut each: impl FnMut(&StepInputs, &[usize], &[usize])) {
    let tokens: Vec<usize> = (0..prompt).collect();
    each(&step(&tokens, vec![segment(0..prompt, 1, 0)]), &tokens, &[]);
    let (mut held, mut next, mut accepted) = (tokens, prompt, 0);
    let mut guessed: Vec<usize> = Vec::new();
    for &(rows, take) in plan {
        held.extend(&guessed[..accepted]);
        guessed = (next..next + rows).collect();
        next += rows;
        each(&step(&guessed, vec![guess(rows, held.len(), accepted)]), &guessed, &held);
        accepted = take;
    }
    // The last step is no guess: two rows that stay.
    held.extend(&guessed[..accepted]);
    let last = [next, next + 1];
    let mut kept = segment(0..2, 1, held.len());
    kept.accepted = accepted;
    each(&step(&last, vec![kept]), &last, &held);
}

fn delta(suite: &mut Suite<'_>) {
    for map in [HeadMap::Grouped, HeadMap::Tiled] {
        let shape = Shape { map, key_heads: 2, value_heads: 6, key_dim: 128, value_dim: 64 };
        let name = format!("delta rule {map:?}");
        let mut rng = suite.rng(&name);
        let table = table(&mut rng, shape, 40);
        let twin = twin(suite, &name, shape, &table);
        for (i, plan) in ROUNDS.iter().enumerate() {
            twin.got.clear_slot(1);
            twin.want.clear_slot(1);
            let mut at = 0;
            rounds(plan, 9, |inputs, tokens, held| {
                let case = format!("{name} round {i} step {at}");
                at += 1;
                let (got, want) = twin.y(inputs);
                let mut exact = Exact::new(shape);
                outputs(&mut exact, &table, held);
                let before = exact.clone();
                suite.near(&case, &got, &want, &outputs(&mut exact, &table, tokens));
                let guessed = inputs.segments[0].speculative;
                compare_state(suite, &case, &twin, 1, if guessed { &before } else { &exact });
            });
        }
        too_many(suite, &name, &twin);
    }
}

/// Accepting more rows than were guessed is refused and changes nothing.
fn too_many(suite: &mut Suite<'_>, name: &str, twin: &Twin<'_>) {
    let case = format!("{name} too many accepted");
    twin.got.clear_slot(1);
    twin.got.y(&step(&[0, 1], vec![guess(2, 0, 0)]));
    let before = twin.got.read_slot(1, 1);
    let refused = matches!(twin.got.try_step(&step(&[2], vec![guess(1, 3, 3)])), Err(OpError::Inputs(_)));
    suite.require(&case, refused, || "the step is not refused".to_owned());
    let wide = twin.got.try_step(&step(&[2; PENDING + 1], vec![guess(PENDING + 1, 0, 0)]));
    suite.require(&case, matches!(wide, Err(OpError::Inputs(_))), || "too many guesses are not refused".to_owned());
    suite.require(&case, twin.got.read_slot(1, 1) == before, || "a refused step changed the state".to_owned());
}

fn convolution(suite: &mut Suite<'_>) {
    const CHANNELS: usize = 70;
    const KERNEL: usize = 4;
    let mut rng = suite.rng("convolution");
    let rows: Vec<Vec<f32>> = (0..40).map(|_| rng.normals(CHANNELS)).collect();
    let taps = rng.normals(CHANNELS * KERNEL);
    let state = StateSpec {
        layers: 1,
        slots: 2,
        channels: CHANNELS,
        kernel: KERNEL,
        heads: 1,
        key_dim: 4,
        value_dim: 4,
        max_pending: PENDING,
    };
    let twin = Twin::new(suite, "convolution", (bucket(20, 100), recurrent(state)), |b| {
        let x = b.rows(&weights::dense(&rows));
        let taps = b.vector(&taps);
        let y = b.rec.conv_silu(x, &taps, KERNEL, 0);
        b.rec.output(y, "y");
    });
    // A prompt shorter than the window, and a longer one.
    for prompt in [2, 9] {
        for (i, plan) in ROUNDS.iter().enumerate() {
            twin.got.clear_slot(1);
            twin.want.clear_slot(1);
            let mut at = 0;
            rounds(plan, prompt, |inputs, tokens, held| {
                let case = format!("convolution prompt {prompt} round {i} step {at}");
                at += 1;
                let (got, want) = twin.y(inputs);
                let sequence = [held, tokens].concat();
                let inputs_so_far: Vec<&[f32]> = sequence.iter().map(|t| rows[*t].as_slice()).collect();
                let exact: Vec<Vec<Near>> =
                    (held.len()..sequence.len()).map(|t| conv_silu(&inputs_so_far, &taps, KERNEL, t)).collect();
                suite.near(&case, &got, &want, &exact);
                let stays = if inputs.segments[0].speculative { held } else { &sequence };
                let mut window = vec![vec![0.0; CHANNELS]; KERNEL - 1];
                window.extend(stays.iter().map(|t| rows[*t].clone()));
                let window = window[window.len() + 1 - KERNEL..].concat();
                suite.identical(&format!("{case} window"), CHANNELS, &twin.got.read_slot(1, 0).window, &window);
            });
        }
    }
}
