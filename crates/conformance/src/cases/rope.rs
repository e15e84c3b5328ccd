//! Rotary embedding: plain, partial, with YaRN, and with interleaved sections.

use crate::bound::{ANGLE, TINY, UNIT};
use crate::check::Suite;
use crate::session::{Twin, bucket, first, stateless};
use crate::weights;
use onebit_ops::{RopeTable, YarnScaling};
use std::sync::Arc;

pub(crate) fn run(suite: &mut Suite<'_>) {
    let yarn = |factor, attention_factor| YarnScaling {
        factor,
        original_context: 16384.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor,
    };
    turns(suite, "plain", RopeTable::plain(1e6, 128), 128);
    turns(suite, "plain 64", RopeTable::plain(1e4, 64), 64);
    turns(suite, "partial", RopeTable::plain(1e7, 64), 256);
    turns(suite, "yarn", RopeTable::yarn(1e6, 128, &yarn(4.0, None)), 128);
    turns(suite, "yarn with a factor of its own", RopeTable::yarn(1e6, 64, &yarn(8.0, Some(1.5))), 128);
    turns(suite, "sections", RopeTable::plain(1e7, 64).with_interleaved_sections([11, 11, 10]), 256);
}

fn turns(suite: &mut Suite<'_>, name: &str, table: RopeTable, dim: usize) {
    const HEADS: usize = 3;
    const ROWS: usize = 12;
    let mut rng = suite.rng(name);
    let table = Arc::new(table);
    // Heads of [x, other] pairs, as a gated attention has them.
    let rows: Vec<Vec<f32>> = (0..ROWS).map(|_| rng.normals(HEADS * 2 * dim)).collect();
    let twin = Twin::new(suite, name, (bucket(ROWS, ROWS), stateless()), |b| {
        let x = b.rows(&weights::dense(&rows)).split(HEADS).within(0..dim);
        let y = b.rec.rope(x, &table);
        assert_eq!((y.heads, y.dim), (HEADS, dim), "a rotation keeps the blocks");
        b.rec.output(y, "y");
    });
    let mut inputs = first(&(0..ROWS).collect::<Vec<_>>());
    inputs.positions = (0..ROWS as u32).map(|i| [i, i * 7 + 3, i * 31]).collect();
    inputs.positions[ROWS - 3..].copy_from_slice(&[[16_383; 3], [65_535, 1, 70_001], [262_143; 3]]);
    let (got, want) = twin.y(&inputs);
    let (cols, n) = (HEADS * dim, table.rotary_dim() / 2);
    // a cos - b sin: an angle's error each, two products and a sum. Dimensions that do not turn are copied.
    suite.within(name, cols, &got, &want, |i| {
        let (row, head, d) = (i / cols, i % cols / dim, i % dim);
        if d >= 2 * n {
            return 0.0;
        }
        let x = &rows[row][head * 2 * dim..][..dim];
        let (a, b) = (x[d % n].abs(), x[d % n + n].abs());
        2.0 * (f64::from(a + b) * f64::from(table.attention_factor) * (ANGLE + 3.0 * UNIT) + TINY)
    });
}
