//! Latents to pixels, in one piece or, where its temporaries would not fit, with the last layers in stripes.
//!
//! The picture is the same either way but for the rounding of the norms' statistics: those are gathered over all stripes before
//! anything is computed from them. The price is time, since layers behind a norm are computed again for each norm of their
//! stage; so as few layers as possible are cut.

use super::ImageError;
use super::run::{Compiled, Runner, Work, bytes};
use onebit_models::image::vae::stripes::{HALO, HIDDEN, STATISTICS, Stage, Stripe};
use onebit_models::image::vae::{self, Vae};
use onebit_models::image::{ImagePart, ImageSize};
use onebit_ops::Grid;

/// Input rows of a stripe, the most first. Fewer would read and compute more beside than of their own.
const ROWS: [usize; 6] = [256, 128, 64, 32, 16, 8];

/// Most bytes that temporaries take unless somebody asks for more or less: a picture of 1024 x 1024 in one piece.
pub(super) const DEFAULT_BYTES: u64 = 2_400_000_000;

/// How a picture is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tiling {
    cut: Option<Cut>,
    /// Most stripes of a stage; 1 for the whole picture at once.
    pub tiles: usize,
    /// Programs that are run.
    pub runs: usize,
    /// Bytes of temporaries at the worst moment.
    pub bytes: u64,
    /// What they compute.
    pub work: Work,
}

/// Where stages begin, and the stripes of each.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cut {
    block: usize,
    stripes: Vec<Vec<Stripe>>,
}

/// The whole picture where it fits, otherwise the cut that recomputes least.
pub(super) fn tiling(vae: &Vae, size: ImageSize, most: u64) -> Result<Tiling, ImageError> {
    let grid = vae::whole(size);
    let program = vae.program(grid);
    let all = bytes(&program);
    if all <= most {
        return Ok(Tiling { cut: None, tiles: 1, runs: 1, bytes: all, work: Work::of(&program) });
    }
    let mut least = all;
    for block in (0..vae.blocks()).rev() {
        match cut(vae, grid, block, most) {
            Ok(tiling) => return Ok(tiling),
            Err(bytes) => least = least.min(bytes),
        }
    }
    Err(ImageError::Parameter {
        name: "decode bytes",
        wanted: format!("{least} or more, what the thinnest stripes take"),
        got: most.to_string(),
    })
}

/// Cut from an up block on; or the bytes that this would take at least.
fn cut(vae: &Vae, grid: Grid, block: usize, most: u64) -> Result<Tiling, u64> {
    let head = vae.head(grid, block);
    let stages = vae.stages(block);
    let mut grid = vae.head_grid(grid, block);
    let kept = |grid: Grid, channels: usize| 4 * (grid.pixels() * channels) as u64;
    // What the head gives is cut into rows, and for that copied.
    let first = kept(grid, stages[0].channels());
    let mut worst = bytes(&head).max(first) + first;
    let (mut all, mut stripes) = (Work::of(&head), Vec::new());
    for stage in &stages {
        let scale = stage.scale();
        let out = Grid { height: scale * grid.height, width: scale * grid.width };
        // Rows of the input are given back as those of the output come.
        let between = kept(grid, stage.channels()).max(kept(out, stage.width()));
        let mut taken = u64::MAX;
        let mut chosen = Vec::new();
        for rows in ROWS {
            chosen = divide(grid, rows);
            let largest = chosen.iter().copied().max_by_key(Stripe::pixels);
            taken = between + largest.map_or(0, |stripe| one(stage, stripe));
            if taken <= most {
                break;
            }
        }
        worst = worst.max(taken);
        for stripe in &chosen {
            let programs = (0..=stage.gathered()).map(|known| Work::of(&stage.program(*stripe, known)));
            all = programs.fold(all, |all, work| all + work);
        }
        stripes.push(chosen);
        grid = out;
    }
    let tiles = stripes.iter().map(Vec::len).max().unwrap_or(1);
    let runs = 1 + stages.iter().zip(&stripes).map(|(stage, all)| (stage.gathered() + 1) * all.len()).sum::<usize>();
    let tiling = Tiling { cut: Some(Cut { block, stripes }), tiles, runs, bytes: worst, work: all };
    if worst <= most { Ok(tiling) } else { Err(worst) }
}

/// Bytes that the largest program of a stage takes for one stripe, with what it reads and gives.
fn one(stage: &Stage<'_>, stripe: Stripe) -> u64 {
    let programs = (0..=stage.gathered()).map(|known| bytes(&stage.program(stripe, known))).max();
    let given = stripe.rows * stripe.width * stage.scale() * stage.scale() * stage.width();
    // What is given is cut into rows, and for that copied.
    programs.unwrap_or(0) + 4 * (stripe.pixels() * stage.channels() + 2 * given) as u64
}

/// As few stripes of up to `rows` rows as cover a picture, all about equally high.
fn divide(grid: Grid, rows: usize) -> Vec<Stripe> {
    let count = grid.height.div_ceil(rows);
    let border = |i: usize| i * grid.height / count;
    let stripe = |i: usize| {
        let (start, end) = (border(i), border(i + 1));
        let (before, after) = (start.min(HALO), (grid.height - end).min(HALO));
        Stripe { before, rows: end - start, after, width: grid.width }
    };
    (0..count).map(stripe).collect()
}

/// Pixels `(height, width, 3)` of a picture, as the decoder gives them.
pub(super) fn decode(
    runner: &Runner<'_>,
    vae: &Vae,
    (latents, size): (&[f32], ImageSize),
    tiling: &Tiling,
    before: &mut dyn FnMut() -> Result<(), ImageError>,
) -> Result<Vec<f32>, ImageError> {
    let grid = vae::whole(size);
    let values = vec![(vae::LATENTS, vae.unfold(latents, size))];
    before()?;
    let Some(Cut { block, stripes }) = &tiling.cut else {
        return runner.once(ImagePart::Vae, vae.program(grid), values, vae::PIXELS);
    };
    let hidden = runner.once(ImagePart::Vae, vae.head(grid, *block), values, HIDDEN)?;
    let stages = vae.stages(*block);
    let width = |stripes: &[Stripe]| stripes.first().map_or(0, |stripe| stripe.width);
    let mut rows = Rows::new(&hidden, stripes.first().map_or(0, |s| width(s)) * stages[0].channels());
    drop(hidden);
    for (stage, stripes) in stages.iter().zip(stripes) {
        let mut affines = Vec::new();
        for _ in 0..stage.gathered() {
            let mut all = Vec::new();
            let mut plan = None;
            let mut start = 0;
            for stripe in stripes {
                before()?;
                let statistics = run(runner, stage, *stripe, (rows.read(start, stripe), &affines), &mut plan)?;
                all.push((stripe.rows, statistics));
                start += stripe.rows;
            }
            affines.push(stage.affine(affines.len(), &all));
        }
        let mut next = Rows::new(&[], stage.scale() * width(stripes) * stage.width());
        let mut plan = None;
        let mut start = 0;
        for stripe in stripes {
            before()?;
            next.add(&run(runner, stage, *stripe, (rows.read(start, stripe), &affines), &mut plan)?);
            start += stripe.rows;
            rows.forget(start.saturating_sub(HALO));
        }
        rows = next;
    }
    Ok(rows.0.concat())
}

/// A stage on one stripe; `plan` is that of the stripe before, which mostly has the same shape.
fn run(
    runner: &Runner<'_>,
    stage: &Stage<'_>,
    stripe: Stripe,
    (hidden, affines): (Vec<f32>, &[Vec<f32>]),
    plan: &mut Option<(Stripe, Compiled)>,
) -> Result<Vec<f32>, ImageError> {
    let known = affines.len();
    let compiled = match plan {
        Some((made_for, compiled)) if *made_for == stripe => compiled,
        _ => {
            // The memory of the one before goes first.
            *plan = None;
            &mut plan.insert((stripe, runner.compile(ImagePart::Vae, stage.program(stripe, known))?)).1
        }
    };
    let mut values = vec![(HIDDEN, hidden)];
    values.extend(affines.iter().enumerate().map(|(norm, affine)| (Stage::affine_name(norm), affine.clone())));
    runner.run(compiled, values, if known < stage.gathered() { STATISTICS } else { HIDDEN })
}

/// What lies between two stages, row by row, so that rows can be given back.
struct Rows(Vec<Vec<f32>>, usize);

impl Rows {
    fn new(values: &[f32], row: usize) -> Rows {
        let mut rows = Rows(Vec::new(), row);
        rows.add(values);
        rows
    }

    fn add(&mut self, values: &[f32]) {
        self.0.extend(values.chunks_exact(self.1.max(1)).map(<[f32]>::to_vec));
    }

    /// A stripe whose own rows begin at `start`.
    fn read(&self, start: usize, stripe: &Stripe) -> Vec<f32> {
        self.0[start - stripe.before..start + stripe.rows + stripe.after].concat()
    }

    /// Gives back all rows before one.
    fn forget(&mut self, row: usize) {
        self.0[..row].iter_mut().for_each(|row| *row = Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_cover_everything_and_see_their_neighbours() {
        for height in [1, 2, 17, 64, 100, 129] {
            for rows in [8, 64, 128] {
                let stripes = divide(Grid { height, width: 3 }, rows);
                assert_eq!(stripes.iter().map(|s| s.rows).sum::<usize>(), height);
                let mut start = 0;
                for stripe in stripes {
                    let end = start + stripe.rows;
                    assert!((1..=rows).contains(&stripe.rows));
                    assert_eq!(stripe.before, start.min(HALO), "{stripe:?} of {height}");
                    assert_eq!(stripe.after, (height - end).min(HALO), "{stripe:?} of {height}");
                    start = end;
                }
            }
        }
    }

    #[test]
    fn rows_are_read_with_their_neighbours_and_given_back() {
        let mut rows = Rows::new(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 1);
        let stripe = Stripe { before: 1, rows: 2, after: 2, width: 1 };
        assert_eq!(rows.read(1, &stripe), [0.0, 1.0, 2.0, 3.0, 4.0]);
        rows.forget(4);
        assert_eq!(rows.0.concat(), [4.0, 5.0]);
    }
}
