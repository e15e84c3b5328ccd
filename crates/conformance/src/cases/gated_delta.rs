//! The gated delta rule: both head maps, one to four value heads for each key head, and a prompt split in every way.

use crate::bound::delta::{Exact, Shape};
use crate::check::Suite;
use crate::delta_case::{compare_state, outputs, table, twin};
use crate::session::{segment, step};
use onebit_ops::HeadMap;

pub(crate) fn run(suite: &mut Suite<'_>) {
    for map in [HeadMap::Grouped, HeadMap::Tiled] {
        for ratio in 1..=4 {
            let shape = Shape { map, key_heads: 2, value_heads: 2 * ratio, key_dim: 128, value_dim: 64 };
            prompt(suite, shape, 33, &[33, 1]);
        }
        let shape = Shape { map, key_heads: 2, value_heads: 4, key_dim: 128, value_dim: 64 };
        prompt(suite, shape, 200, &[200, 65, 64, 7, 1]);
    }
    let shape = Shape { map: HeadMap::Grouped, key_heads: 1, value_heads: 3, key_dim: 64, value_dim: 128 };
    for rows in [1, 2, 3, 8, 63, 64, 65, 127, 130] {
        prompt(suite, shape, rows, &[rows]);
    }
}

fn prompt(suite: &mut Suite<'_>, shape: Shape, rows: usize, chunks: &[usize]) {
    let name = format!(
        "{:?} {}/{} heads {}x{} {rows} rows",
        shape.map, shape.value_heads, shape.key_heads, shape.key_dim, shape.value_dim
    );
    let mut rng = suite.rng(&name);
    let table = table(&mut rng, shape, rows);
    let twin = twin(suite, &name, shape, &table);
    let tokens: Vec<usize> = (0..rows).collect();
    let mut exact = Exact::new(shape);
    let want_exact = outputs(&mut exact, &table, &tokens);
    for &chunk in chunks {
        let case = format!("{name} in chunks of {chunk}");
        twin.got.clear_slot(3);
        twin.want.clear_slot(3);
        let (mut got, mut want) = (Vec::new(), Vec::new());
        for (i, part) in tokens.chunks(chunk).enumerate() {
            let (g, w) = twin.y(&step(part, vec![segment(0..part.len(), 3, i * chunk)]));
            got.extend(g);
            want.extend(w);
        }
        suite.near(&case, &got, &want, &want_exact);
        compare_state(suite, &case, &twin, 3, &exact);
    }
}
