//! Causal depthwise convolution and SiLU: kernels, channel counts, and a prompt split in every way.

use crate::bound::Near;
use crate::bound::conv::conv_silu;
use crate::check::Suite;
use crate::session::{Twin, bucket, recurrent, segment, step};
use crate::weights;
use onebit_ops::StateSpec;

pub(crate) fn run(suite: &mut Suite<'_>) {
    for kernel in [2, 3, 4] {
        for channels in [1, 33, 256] {
            splits(suite, kernel, channels);
        }
    }
}

fn splits(suite: &mut Suite<'_>, kernel: usize, channels: usize) {
    const ROWS: usize = 140;
    let name = format!("kernel {kernel}, {channels} channels");
    let mut rng = suite.rng(&name);
    let rows: Vec<Vec<f32>> = (0..ROWS).map(|_| rng.normals(channels + 1)).collect();
    let taps = rng.normals(channels * kernel);
    let state = StateSpec { layers: 2, slots: 3, channels, kernel, heads: 1, key_dim: 4, value_dim: 4, max_pending: 2 };
    let twin = Twin::new(suite, &name, (bucket(ROWS, ROWS), recurrent(state)), |b| {
        let x = b.rows(&weights::dense(&rows)).columns(1..1 + channels);
        let taps = b.vector(&taps);
        let y = b.rec.conv_silu(x, &taps, kernel, 1);
        b.rec.output(y, "y");
    });
    let sequence: Vec<&[f32]> = rows.iter().map(|row| &row[1..]).collect();
    let exact: Vec<Vec<Near>> = (0..ROWS).map(|t| conv_silu(&sequence, &taps, kernel, t)).collect();
    for chunk in [1, 2, 7, 64, 65, ROWS] {
        let (mut got, mut want) = (Vec::new(), Vec::new());
        twin.got.clear_slot(2);
        twin.want.clear_slot(2);
        let tokens: Vec<usize> = (0..ROWS).collect();
        for (i, part) in tokens.chunks(chunk).enumerate() {
            let (g, w) = twin.y(&step(part, vec![segment(0..part.len(), 2, i * chunk)]));
            got.extend(g);
            want.extend(w);
        }
        let case = format!("{name} in chunks of {chunk}");
        suite.near(&case, &got, &want, &exact);
        let window: Vec<f32> = rows[ROWS + 1 - kernel..].iter().flat_map(|row| row[1..].to_vec()).collect();
        suite.identical(&format!("{case} window"), channels, &twin.got.read_slot(2, 1).window, &window);
    }
    let untouched = twin.got.read_slot(2, 0).window.iter().all(|v| *v == 0.0);
    suite.require(&name, untouched, || "the window of another layer changed".to_owned());
}
