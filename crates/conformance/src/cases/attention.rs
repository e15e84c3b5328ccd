//! Paged causal attention: head ratios, head dimensions, KV formats, chunk sizes at every place of a page, rewritten
//! positions, and two sequences of unequal length in one step.

use crate::bound::Near;
use crate::bound::attention::attention;
use crate::check::Suite;
use crate::session::{Twin, bucket, must, stateless, step};
use crate::weights;
use onebit_ops::{CacheSpec, KvFormat, KvSpec, OpError, PAGE_ROWS, Segment, StepInputs};
use std::ops::Range;

const PAGES: usize = 13;
/// The last token numbers are huge: what lies in pages that a sequence does not own.
const VOCAB: usize = 300;

/// Heads and what they are kept as.
#[derive(Clone, Copy)]
struct Layer {
    queries: usize,
    keys: usize,
    dim: usize,
    format: KvFormat,
}

pub(crate) fn run(suite: &mut Suite<'_>) {
    const HEADS: [(usize, usize); 3] = [(2, 2), (4, 2), (6, 1)];
    const DIMS: [usize; 3] = [64, 128, 256];
    for (f, format) in suite.kv_formats().into_iter().enumerate() {
        for (i, (queries, keys)) in HEADS.into_iter().enumerate() {
            // Every pair of ratio and dimension for the first format; for the others each ratio and dimension once.
            for dim in DIMS.into_iter().enumerate().filter(|(j, _)| f == 0 || (i + f) % 3 == *j).map(|(_, dim)| dim) {
                one_sequence(suite, Layer { queries, keys, dim, format });
            }
            two_sequences(suite, Layer { queries, keys, dim: 64, format });
        }
        copied_page(suite, Layer { queries: 4, keys: 2, dim: 64, format });
    }
}

/// A case's rows `[q, k, v]`, and what each sequence has written.
struct Data {
    layer: Layer,
    table: Vec<Vec<f32>>,
    scale: f32,
}

impl Data {
    fn new(suite: &Suite<'_>, case: &str, layer: Layer) -> Self {
        let mut rng = suite.rng(case);
        let width = (layer.queries + 2 * layer.keys) * layer.dim;
        let mut table: Vec<Vec<f32>> = (0..VOCAB).map(|_| rng.normals(width)).collect();
        // Some peaked rows: scores up to about a hundred.
        for row in table.iter_mut().step_by(17) {
            row[..layer.queries * layer.dim].iter_mut().for_each(|v| *v *= 8.0);
        }
        table[VOCAB - 1].fill(3e4);
        Data { layer, table, scale: (layer.dim as f32).powf(-0.5) }
    }

    /// The program: attention in KV layer 1; with `mixed`, also in layer 0 with keys and values swapped, so
    /// that layers which share memory read each other's.
    fn twin<'a>(&self, suite: &Suite<'a>, case: &str, mixed: bool) -> Twin<'a> {
        let Layer { queries, keys, dim, format } = self.layer;
        let kv = KvSpec { layers: 2, heads: keys, dim, pages: PAGES, format };
        Twin::new(suite, case, (bucket(140, 400), CacheSpec { kv, ..stateless() }), |b| {
            let all = b.rows(&weights::dense(&self.table));
            let (q, kv) = (queries * dim, keys * dim);
            let q_view = all.columns(0..q).split(queries);
            let k = all.columns(q..q + kv).split(keys);
            let v = all.columns(q + kv..q + 2 * kv).split(keys);
            if mixed {
                let swapped = b.rec.attention(q_view, v, k, 0, self.scale);
                b.rec.output(swapped, "swapped");
            }
            let y = b.rec.attention(q_view, k, v, 1, self.scale);
            b.rec.output(y, "y");
        })
    }

    /// Keys or values of the tokens as they read back, for each head.
    fn stored(&self, tokens: &[usize], values: bool) -> Vec<Vec<Vec<f32>>> {
        let Layer { queries, keys, dim, format } = self.layer;
        let start = (queries + if values { keys } else { 0 }) * dim;
        let head = |token: usize, h: usize| {
            let mut head = self.table[token][start + h * dim..][..dim].to_vec();
            format.round(&mut head);
            head
        };
        (0..keys).map(|h| tokens.iter().map(|t| head(*t, h)).collect()).collect()
    }

    /// Rows `past..` of a sequence of these tokens, keys and values swapped or not.
    fn exact(&self, tokens: &[usize], past: usize, swapped: bool) -> Vec<Vec<Near>> {
        let Layer { queries, keys, dim, format } = self.layer;
        let (k, v) = (self.stored(tokens, swapped), self.stored(tokens, !swapped));
        let head = |at: usize, h: usize| {
            let query = &self.table[tokens[at]][h * dim..(h + 1) * dim];
            let own = h / (queries / keys);
            attention(format, query, &k[own][..=at], &v[own][..=at], self.scale)
        };
        (past..tokens.len()).map(|at| (0..queries).flat_map(|h| head(at, h)).collect()).collect()
    }
}

fn paged(rows: Range<usize>, pages: &[u32], past: usize) -> Segment {
    Segment { rows, slot: 0, pages: pages.to_vec(), past, accepted: 0, speculative: false }
}

fn label(layer: Layer) -> String {
    format!("{}/{} heads of {} {}", layer.queries, layer.keys, layer.dim, layer.format)
}

/// Fills the pages with huge numbers, then a sequence in steps that start at 0, 1, 63, 64, 65, 129, 200, ...
fn one_sequence(suite: &mut Suite<'_>, layer: Layer) {
    let case = label(layer);
    let data = Data::new(suite, &case, layer);
    let twin = data.twin(suite, &case, false);
    let mut rng = suite.rng(&format!("{case} order"));
    let pages: Vec<u32> = rng.permutation(PAGES).into_iter().map(|p| p as u32).collect();
    for some in pages[..4].chunks(2) {
        let rows = some.len() * PAGE_ROWS;
        twin.y(&step(&vec![VOCAB - 1; rows], vec![paged(0..rows, some, 0)]));
    }
    let mut tokens: Vec<usize> = Vec::new();
    for (past, rows) in [(0, 1), (1, 62), (63, 1), (64, 1), (65, 64), (129, 71), (200, 1), (201, 33)] {
        // Starting before the end rewrites: what a rejected guess leaves behind.
        for rows in [rows + 3, rows].into_iter().filter(|r| *r == rows || *r < 40) {
            tokens.truncate(past);
            tokens.extend((0..rows).map(|_| rng.below(VOCAB - 1)));
            let inputs = step(&tokens[past..], vec![paged(0..rows, &pages[..4], past)]);
            let (got, want) = twin.y(&inputs);
            suite.near(&format!("{case} past {past} rows {rows}"), &got, &want, &data.exact(&tokens, past, false));
        }
    }
}

/// A second sequence shares the first page of another and goes on in a copy of the second one, at a place in its middle;
/// then both go on.
fn copied_page(suite: &mut Suite<'_>, layer: Layer) {
    let case = format!("{} copied page", label(layer));
    let data = Data::new(suite, &case, layer);
    let twin = data.twin(suite, &case, false);
    let mut rng = suite.rng(&format!("{case} order"));
    let mut tokens: Vec<usize> = (0..100).map(|_| rng.below(VOCAB - 1)).collect();
    let mut second = tokens[..70].to_vec();
    let (a, b) = ([5, 2], [5, 9]);
    twin.y(&step(&[VOCAB - 1; PAGE_ROWS], vec![paged(0..PAGE_ROWS, &[9], 0)]));
    twin.y(&step(&tokens, vec![paged(0..100, &a, 0)]));
    for side in [&twin.got, &twin.want] {
        must(&case, side.copy_page(2, 9));
    }
    second.extend((0..33).map(|_| rng.below(VOCAB - 1)));
    let (got, want) = twin.y(&step(&second[70..], vec![paged(0..33, &b, 70)]));
    suite.near(&format!("{case} branch"), &got, &want, &data.exact(&second, 70, false));
    tokens.push(3);
    second.push(4);
    let (got, want) = twin.y(&step(&[3, 4], vec![paged(0..1, &a, 100), paged(1..2, &b, 103)]));
    let exact = [data.exact(&tokens, 100, false), data.exact(&second, 103, false)].concat();
    suite.near(&format!("{case} both"), &got, &want, &exact);
    for (from, to) in [(PAGES as u32, 0), (0, PAGES as u32)] {
        let refused = matches!(twin.got.copy_page(from, to), Err(OpError::Inputs(_)));
        suite.require(&case, refused, || format!("a copy of page {from} to {to} is not refused"));
    }
}

/// A long and a short sequence in one step, then one more token each.
fn two_sequences(suite: &mut Suite<'_>, layer: Layer) {
    let case = format!("{} two sequences", label(layer));
    let data = Data::new(suite, &case, layer);
    let twin = data.twin(suite, &case, true);
    let mut rng = suite.rng(&format!("{case} order"));
    let pages: Vec<u32> = rng.permutation(PAGES).into_iter().map(|p| p as u32).collect();
    let mut tokens: Vec<usize> = (0..93).map(|_| rng.below(VOCAB - 1)).collect();
    let mut second = tokens.split_off(80);
    let (a, b) = (&pages[..2], &pages[2..4]);
    let inputs = step(&[tokens.as_slice(), &second].concat(), vec![paged(0..80, a, 0), paged(80..93, b, 0)]);
    let compare = |suite: &mut Suite<'_>, case: &str, inputs: &StepInputs, parts: [(&[usize], usize); 2]| {
        let (got, want) = (twin.got.step(inputs), twin.want.step(inputs));
        for (output, swapped) in [("y", false), ("swapped", true)] {
            let exact = parts.map(|(tokens, past)| data.exact(tokens, past, swapped)).concat();
            suite.near(&format!("{case} {output}"), &got.values[output], &want.values[output], &exact);
        }
    };
    compare(suite, &format!("{case} together"), &inputs, [(&tokens, 0), (&second, 0)]);
    tokens.push(7);
    second.extend([8, 9]);
    let inputs = step(&[8, 9, 7], vec![paged(0..2, b, 13), paged(2..3, a, 80)]);
    compare(suite, &format!("{case} next"), &inputs, [(&second, 13), (&tokens, 80)]);
}
