//! The choice of tokens inside a step, and tokens that the next step takes without the host. Few and small enough for a
//! tool that watches every access to memory; `sample_full` has many, and a whole vocabulary.

use crate::bound::sample::{log_probability, refute};
use crate::check::Suite;
use crate::prng::Rng;
use crate::session::{Session, bucket, first, must, segment, stateless, step};
use crate::weights;
use onebit_ops::{Activations, Adjust, Backend, Carried, Draw, OpError, Sampled, StepInputs};

pub(crate) fn run(suite: &mut Suite<'_>) {
    // Every row alone, and every step again, are what costs most: a few of them.
    narrow(suite, 16, 4);
    wide(suite, MIDDLE, 3);
    not_finite(suite);
    carried(suite);
    poisoned(suite);
    refused(suite);
}

/// Not a multiple of a mask's word.
const NARROW: usize = 70;
/// Several shares of those that devices cut logits into.
const MIDDLE: usize = 5_003;

/// Logits as they may come, and as they must not confuse.
fn kinds(rng: &mut Rng, len: usize) -> Vec<Vec<f32>> {
    let spread: Vec<f32> = rng.normals(len).iter().map(|v| v * 3.0).collect();
    let ties = spread.iter().map(|v| (v * 0.5).round()).collect();
    let mut zeros: Vec<f32> = (0..len).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect();
    zeros[0] = -1.0;
    let mut extremes = spread.clone();
    (extremes[3], extremes[4], extremes[len - 1]) = (f32::MAX, f32::MIN, f32::MAX);
    let mut holes = spread.clone();
    (0..len).step_by(3).for_each(|i| holes[i] = f32::NEG_INFINITY);
    let steep = (0..len).map(|i| -(i as f32) * 0.7).collect();
    vec![spread, ties, vec![0.25; len], zeros, extremes, holes, steep]
}

/// A draw with every field somewhere in its range, its edges among them.
fn draw(rng: &mut Rng, len: usize) -> Draw {
    let uniform = rng.uniform();
    let mut pick = |choices: &[f64]| choices[rng.below(choices.len())];
    let temperature = pick(&[0.0, 0.01, 0.7, 1.0, 1.0, 5.0]) as f32;
    let top_k = pick(&[0.0, 0.0, 1.0, 2.0, 7.0, 40.0, len as f64, len as f64 + 5.0]) as u32;
    let top_p = pick(&[1.0, 1.0, 0.95, 0.8, 0.5, 1e-6]) as f32;
    let min_p = pick(&[0.0, 0.0, 0.05, 0.5, 1.0]) as f32;
    let uniform = pick(&[0.0, 0.5, 1.0 - f64::EPSILON / 2.0, uniform, uniform, uniform]);
    let changes = pick(&[0.0, 0.0, 1.0, 20.0]) as usize;
    let kept = pick(&[1.0, 1.0, 0.5, 0.02]);
    let tokens = rng.permutation(len);
    let adjust = tokens.into_iter().take(changes).map(|t| Adjust {
        token: t as u32,
        bias: 2.0 * rng.normal(),
        divide: 0.5 + rng.uniform() as f32,
        subtract: rng.normal(),
    });
    let adjust = adjust.collect();
    let mask = (kept < 1.0).then(|| {
        let mut words = vec![0u32; len.div_ceil(32)];
        // Bits beyond the vocabulary are set: they allow nothing.
        (0..32 * words.len())
            .filter(|t| *t >= len || rng.uniform() < kept)
            .for_each(|t| words[t / 32] |= 1 << (t % 32));
        words[(len - 1) / 32] |= 1 << ((len - 1) % 32);
        words.into()
    });
    Draw { temperature, top_k, top_p, min_p, uniform, adjust, mask }
}

/// A token that the rule gives, and its probability.
fn judge(suite: &mut Suite<'_>, case: &str, raw: &[f32], draw: &Draw, [got, want]: [Sampled; 2]) {
    let explain = |why: String| {
        let Draw { adjust, mask, .. } = draw;
        let plain = Draw { adjust: Vec::new(), mask: None, ..draw.clone() };
        format!("{why}; {plain:?} with {} adjustments, masked: {}", adjust.len(), mask.is_some())
    };
    for (who, sampled) in [("the reference's choice", want), ("the choice", got)] {
        let verdict = refute(raw, draw, sampled.token);
        suite.require(case, verdict.is_ok(), || explain(format!("{who}: {}", verdict.unwrap_err())));
        let exact = if (sampled.token as usize) < raw.len() {
            log_probability(raw, sampled.token as usize)
        } else {
            return;
        };
        let off = (f64::from(sampled.logprob) - exact.value).abs();
        suite.require(case, off <= exact.error, || {
            format!(
                "{who}: log-probability {:e}, expected {:e}, bound {:.3e}",
                sampled.logprob, exact.value, exact.error
            )
        });
    }
}

/// A program that samples rows of a table, `logits` rows at most.
fn table<'a>(backend: &'a dyn Backend, case: &str, rows: &[Vec<f32>], logits: usize) -> Session<'a> {
    let rows = weights::dense(rows);
    Session::new(backend, case, (bucket(logits, logits), stateless()), |b| {
        let x = b.rows(&rows);
        let logits = b.rec.select_rows(x);
        b.rec.sample(logits);
    })
}

/// Every row of the step is a logit row.
fn sampling(tokens: &[usize], draws: Vec<Draw>) -> StepInputs {
    StepInputs { logit_rows: (0..tokens.len()).collect(), draws, ..first(tokens) }
}

fn bits(sampled: &[Sampled]) -> Vec<(u32, u32)> {
    sampled.iter().map(|s| (s.token, s.logprob.to_bits())).collect()
}

/// Some rounds; in every `thorough`-th all rows alone, and the step again.
pub(super) fn narrow(suite: &mut Suite<'_>, rounds: usize, thorough: usize) {
    let mut rng = suite.rng("narrow");
    let rows = kinds(&mut rng, NARROW);
    let (got, want) = (table(suite.backend, "narrow", &rows, 9), table(suite.reference, "narrow", &rows, 9));
    for round in 0..rounds {
        let case = format!("narrow round {round}");
        let tokens: Vec<usize> = (0..1 + rng.below(9)).map(|_| rng.below(rows.len())).collect();
        let draws: Vec<Draw> = tokens.iter().map(|_| draw(&mut rng, NARROW)).collect();
        let inputs = sampling(&tokens, draws);
        let (a, b) = (got.step(&inputs).sampled, want.step(&inputs).sampled);
        suite.require(&case, a.len() == tokens.len(), || format!("{} tokens for {} rows", a.len(), tokens.len()));
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            judge(suite, &format!("{case} row {i}"), &rows[tokens[i]], &inputs.draws[i], [*a, *b]);
        }
        if round % thorough != 0 {
            continue;
        }
        for (i, a) in a.iter().enumerate() {
            let alone = got.step(&sampling(&tokens[i..=i], vec![inputs.draws[i].clone()])).sampled;
            suite.require(&case, bits(&alone) == bits(&[*a]), || format!("row {i} alone gives {alone:?}, not {a:?}"));
        }
        let again = got.step(&inputs).sampled;
        suite.require(&case, bits(&again) == bits(&a), || "a second run gives other tokens".to_owned());
    }
}

/// Logits through a product: the columns of a weight are rows of logits, chosen by rows with a single one.
pub(super) fn wide(suite: &mut Suite<'_>, vocab: usize, rounds: usize) {
    let mut rng = suite.rng("wide");
    // Infinities times zero would poison the other rows.
    let logits: Vec<Vec<f32>> =
        kinds(&mut rng, vocab).into_iter().filter(|r| r.iter().all(|l| l.is_finite())).collect();
    let weight: Vec<Vec<f32>> = (0..vocab).map(|t| logits.iter().map(|row| row[t]).collect()).collect();
    let one = |i: usize| (0..logits.len()).map(|j| f32::from(u8::from(i == j))).collect();
    let (weight, ones) = (weights::dense(&weight), weights::dense(&(0..logits.len()).map(one).collect::<Vec<_>>()));
    let [got, want] = [suite.backend, suite.reference as &dyn Backend].map(|backend| {
        Session::new(backend, "wide", (bucket(3, 3), stateless()), |b| {
            let (x, w) = (b.rows(&ones), b.weight(&[&weight]));
            let rows = b.rec.select_rows(x);
            let logits = b.rec.linear(rows, &w, Activations::F32);
            b.rec.output(logits, "logits");
            b.rec.sample(logits);
        })
    });
    for round in 0..rounds {
        let tokens: Vec<usize> = (0..3).map(|_| rng.below(logits.len())).collect();
        let inputs = sampling(&tokens, tokens.iter().map(|_| draw(&mut rng, vocab)).collect());
        let (a, b) = (got.step(&inputs), want.step(&inputs));
        for (i, draw) in inputs.draws.iter().enumerate() {
            let case = format!("wide round {round} row {i}");
            // Products with ones and zeros are exact.
            let raw = &logits[tokens[i]];
            let same = raw.iter().zip(&a.values["logits"][i * vocab..]).all(|(x, y)| x == y);
            suite.require(&case, same, || "the logits are not those that were put in".to_owned());
            judge(suite, &case, raw, draw, [a.sampled[i], b.sampled[i]]);
        }
    }
}

fn not_finite(suite: &mut Suite<'_>) {
    let mut rng = suite.rng("not finite");
    let mut rows = vec![rng.normals(NARROW)];
    for (at, bad) in [(0, f32::NAN), (NARROW - 1, f32::NAN), (33, f32::INFINITY), (8, -f32::NAN)] {
        let mut row = rng.normals(NARROW);
        row[at] = bad;
        rows.push(row);
    }
    let got = table(suite.backend, "not finite", &rows, rows.len());
    for round in 0..4 {
        let tokens: Vec<usize> = (0..rows.len()).map(|i| (i + round) % rows.len()).collect();
        let inputs = sampling(&tokens, tokens.iter().map(|_| draw(&mut rng, NARROW)).collect());
        for (i, sampled) in got.step(&inputs).sampled.iter().enumerate() {
            let (bad, none) = (tokens[i] > 0, sampled.token == Sampled::NOT_FINITE);
            suite.require(
                &format!("not finite round {round} row {i}"),
                bad == none && bad == sampled.logprob.is_nan(),
                || format!("{sampled:?} of logits with {:?}", rows[tokens[i]].iter().find(|l| !l.is_finite())),
            );
        }
    }
}

/// A step of sequences of one row each.
fn rows_of(tokens: &[usize], draw: &Draw) -> StepInputs {
    let segments = (0..tokens.len()).map(|i| segment(i..i + 1, i, 0)).collect();
    let draws = vec![draw.clone(); tokens.len()];
    StepInputs { logit_rows: (0..tokens.len()).collect(), draws, ..step(tokens, segments) }
}

/// Chains in which each token names the row of the next one's logits: with and without the host in between.
fn carried(suite: &mut Suite<'_>) {
    const LENGTH: usize = 12;
    let mut rng = suite.rng("carried");
    let rows: Vec<Vec<f32>> = (0..NARROW).map(|_| rng.normals(NARROW)).collect();
    let session = table(suite.backend, "carried", &rows, 4);
    for (name, draw) in
        [("greedy", Draw::greedy()), ("drawn", Draw { temperature: 1.0, uniform: 0.37, ..Draw::greedy() })]
    {
        let start = [5, 17, 60];
        let mut tokens = start.to_vec();
        let mut known = Vec::new();
        for _ in 0..LENGTH {
            let sampled = session.step(&rows_of(&tokens, &draw)).sampled;
            tokens = sampled.iter().map(|s| s.token as usize).collect();
            known.push(bits(&sampled));
        }
        // Each step is started before the one before it is asked for, and the rows change places.
        let mut under_way = vec![(session.start(&rows_of(&start, &draw)), vec![0, 1, 2])];
        let mut found = Vec::new();
        for _ in 1..LENGTH {
            let (_, before) = &under_way[under_way.len() - 1];
            let order: Vec<usize> = vec![before[1], before[2], before[0]];
            let from = |chain: usize| before.iter().position(|c| *c == chain).unwrap_or(0);
            let carried = order.iter().enumerate().map(|(row, chain)| Carried { row, from: from(*chain) }).collect();
            // What stands in their place must not matter.
            let inputs = StepInputs { tokens: vec![u32::MAX - 1; 3], carried, ..rows_of(&start, &draw) };
            under_way.push((session.start(&inputs), order));
            if under_way.len() > 2 {
                found.push(under_way.remove(0));
            }
        }
        found.extend(under_way);
        for (at, (ticket, order)) in found.into_iter().enumerate() {
            let sampled = bits(&session.wait(ticket).sampled);
            let same = order.iter().zip(&sampled).all(|(chain, got)| *got == known[at][*chain]);
            suite.require(&format!("carried {name} step {at}"), same, || {
                format!("{sampled:?} of chains {order:?}, with the host in between {:?}", known[at])
            });
        }
    }
    // Some rows are carried, others come from the host.
    let known = session.step(&rows_of(&[9], &Draw::greedy())).sampled[0].token as usize;
    let want = session.step(&rows_of(&[3, known, 4], &Draw::greedy())).sampled;
    session.step(&rows_of(&[9], &Draw::greedy()));
    let mixed = StepInputs { carried: vec![Carried { row: 1, from: 0 }], ..rows_of(&[3, 0, 4], &Draw::greedy()) };
    let got = session.step(&mixed).sampled;
    suite.require("carried beside known", bits(&got) == bits(&want), || format!("{got:?}, expected {want:?}"));
}

/// A chain that ends in numbers that break down stays broken, and its neighbour does not notice.
fn poisoned(suite: &mut Suite<'_>) {
    let mut rng = suite.rng("poisoned");
    let mut rows: Vec<Vec<f32>> = (0..NARROW).map(|_| rng.normals(NARROW)).collect();
    rows[7][20] = f32::NAN;
    let draw = Draw::greedy();
    let session = table(suite.backend, "poisoned", &rows, 4);
    let known: Vec<u32> = {
        let mut token = 9;
        let mut next = || {
            token = session.step(&rows_of(&[token], &draw)).sampled[0].token as usize;
            token as u32
        };
        (0..4).map(|_| next()).collect()
    };
    for (at, known) in known.iter().enumerate() {
        let mut inputs = rows_of(&[7, 9], &draw);
        if at > 0 {
            inputs.carried = (0..2).map(|row| Carried { row, from: row }).collect();
        }
        let sampled = session.step(&inputs).sampled;
        let right = sampled[0].token == Sampled::NOT_FINITE && sampled[1].token == *known;
        suite.require(&format!("poisoned step {at}"), right, || format!("{sampled:?}, the neighbour alone {known}"));
    }
}

fn refused(suite: &mut Suite<'_>) {
    let mut rng = suite.rng("refused");
    let rows: Vec<Vec<f32>> = (0..NARROW).map(|_| rng.normals(NARROW)).collect();
    let session = table(suite.backend, "refused", &rows, 4);
    let good = rows_of(&[1, 2], &Draw::greedy());
    let carry = |row, from| StepInputs { carried: vec![Carried { row, from }], ..good.clone() };
    let none = Draw { mask: Some(vec![0; NARROW.div_ceil(32)].into()), ..Draw::greedy() };
    let cases = [
        ("a carried row on a fresh cache", carry(0, 0)),
        ("a draw too few", StepInputs { draws: vec![Draw::greedy()], ..good.clone() }),
        ("a carried row that is not there", carry(2, 0)),
        ("a mask that allows nothing", StepInputs { draws: vec![none, Draw::greedy()], ..good.clone() }),
    ];
    for (case, inputs) in cases {
        let result = session.try_step(&inputs);
        suite.require(case, matches!(result, Err(OpError::Inputs(_))), || "the step is not refused".to_owned());
    }
    session.step(&good);
    suite.require("a carried row", session.try_step(&carry(0, 1)).is_ok(), || "it is refused".to_owned());
    let beyond = matches!(session.try_step(&carry(0, 2)), Err(OpError::Inputs(_)));
    suite.require("a carried row of a logit row too far", beyond, || "the step is not refused".to_owned());
    let silent = StepInputs { logit_rows: Vec::new(), draws: Vec::new(), ..good.clone() };
    let sampled = session.step(&silent).sampled;
    suite.require("no logit rows", sampled.is_empty(), || format!("{sampled:?}"));
    let stale = matches!(session.try_step(&carry(0, 0)), Err(OpError::Inputs(_)));
    suite.require("a carried row after a step that sampled nothing", stale, || "the step is not refused".to_owned());
    must("refused", session.try_step(&good));
}
