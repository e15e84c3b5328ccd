//! `x * sigmoid(gate)`, and the decay and beta of the delta rule, at ordinary and at extreme inputs.

use crate::bound::{TINY, UNIT, function};
use crate::check::Suite;
use crate::session::{Twin, bucket, first, stateless};
use crate::weights;

const EXTREMES: [f32; 14] =
    [0.0, -0.0, 1e-20, 19.99, 20.0, 20.01, -20.0, 88.0, -88.0, 104.0, -104.0, 1000.0, -1000.0, 3e38];

pub(crate) fn run(suite: &mut Suite<'_>) {
    sigmoid_mul(suite);
    for heads in [1, 16, 48] {
        delta_gates(suite, heads);
    }
}

fn sigmoid_mul(suite: &mut Suite<'_>) {
    const HEADS: usize = 2;
    const DIM: usize = 64;
    const COLS: usize = HEADS * DIM;
    let mut rng = suite.rng("sigmoid_mul");
    let mut rows: Vec<Vec<f32>> = (0..9).map(|_| rng.normals(3 * COLS)).collect();
    // Gates are the second half of each of the first heads; x is the last third.
    rows[3][DIM..DIM + EXTREMES.len()].copy_from_slice(&EXTREMES);
    let twin = Twin::new(suite, "sigmoid_mul", (bucket(9, 9), stateless()), |b| {
        let all = b.rows(&weights::dense(&rows));
        let gate = all.columns(0..2 * COLS).split(HEADS).within(DIM..2 * DIM);
        let y = b.rec.sigmoid_mul(all.columns(2 * COLS..3 * COLS).split(HEADS), gate);
        b.rec.output(y, "y");
    });
    let (got, want) = twin.y(&first(&[0, 1, 2, 3, 4, 5, 6, 7, 8]));
    suite.within("sigmoid_mul", COLS, &got, &want, |i| {
        let (row, c) = (&rows[i / COLS], i % COLS);
        let gate = f64::from(row[c / DIM * 2 * DIM + DIM + c % DIM]);
        let x = f64::from(row[2 * COLS + c]).abs();
        2.0 * ((function(gate.clamp(-104.0, 104.0)) + 2.0 * UNIT) * f64::from(want[i]).abs() + TINY * x.max(1.0))
    });
}

fn delta_gates(suite: &mut Suite<'_>, heads: usize) {
    let name = format!("delta_gates {heads} heads");
    let mut rng = suite.rng(&name);
    let mut rows: Vec<Vec<f32>> = (0..EXTREMES.len() + 3).map(|_| rng.normals(2 * heads)).collect();
    for (row, extreme) in rows.iter_mut().zip(EXTREMES) {
        row[0] = extreme;
        row[heads] = if extreme > 1e30 { -50.0 } else { extreme };
    }
    let rate: Vec<f32> = (0..heads).map(|_| -(2.0 * rng.normal()).exp()).collect();
    let bias = rng.normals(heads);
    let count = rows.len();
    // Rates up to e^6 times 3e38 would overflow: that row's head has a rate below 1.
    let rate: Vec<f32> = rate.iter().enumerate().map(|(h, r)| if h == 0 { -0.5 } else { *r }).collect();
    let twin = Twin::new(suite, &name, (bucket(count, count), stateless()), |b| {
        let all = b.rows(&weights::dense(&rows));
        let (rate, bias) = (b.vector(&rate), b.vector(&bias));
        let (a, beta) = (all.columns(0..heads), all.columns(heads..2 * heads));
        let (log_decay, beta) = b.rec.delta_gates(a, beta, &rate, &bias);
        b.rec.output(log_decay, "log_decay");
        b.rec.output(beta, "beta");
    });
    let inputs = first(&(0..count).collect::<Vec<_>>());
    let (got, want) = (twin.got.step(&inputs), twin.want.step(&inputs));
    // softplus' = sigmoid carries the rounding of a + bias; ln(1 + e^x) may be formed through 1 + e^x, one unit of 1.
    suite.within(&name, heads, &got.values["log_decay"], &want.values["log_decay"], |i| {
        let x = f64::from(rows[i / heads][i % heads]) + f64::from(bias[i % heads]);
        let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
        let slope = 1.0 / (1.0 + (-x).exp());
        let relative = function(x.clamp(-104.0, 20.0)) + 2.0 * UNIT;
        2.0 * f64::from(rate[i % heads]).abs() * (relative * softplus + UNIT + UNIT * slope * x.abs())
    });
    let want = &want.values["beta"];
    suite.within(&format!("{name} beta"), heads, &got.values["beta"], want, |i| {
        let b = f64::from(rows[i / heads][heads + i % heads]);
        2.0 * (function(b.clamp(-104.0, 104.0)) * f64::from(want[i]) + TINY)
    });
}
