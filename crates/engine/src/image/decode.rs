//! Latents to pixels, in one piece or in tiles that overlap.
//!
//! A tile has statistics of its own in every group norm and does not see beyond its border, so tiles differ from the whole
//! picture; where they overlap their pixels are mixed with weights that rise linearly from a tile's border. A picture whose
//! temporaries fit is therefore always decoded whole.

use super::ImageError;
use super::run::{Runner, bytes};
use onebit_models::image::vae::{self, SCALE, Vae};
use onebit_models::image::{ImagePart, ImageSize};
use onebit_ops::Grid;
use std::ops::Range;

/// Latent pixels of the decoder that neighbouring tiles share.
pub(super) const OVERLAP: usize = 16;

/// Sides of tiles, the largest first.
const SIDES: [usize; 8] = [256, 192, 128, 96, 80, 64, 48, 40];

/// Most bytes that temporaries take unless somebody asks for more or less: a picture of 1024 x 1024 in one piece.
pub(super) const DEFAULT_BYTES: u64 = 2_400_000_000;

/// How a picture is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Rows and columns of each tile.
    pub tiles: Vec<(Range<usize>, Range<usize>)>,
    /// Bytes of temporaries of the largest.
    pub bytes: u64,
}

/// The whole picture where it fits, otherwise the largest tiles that do.
pub(super) fn tiling(vae: &Vae, size: ImageSize, most: u64) -> Result<Tiling, ImageError> {
    let grid = vae::whole(size);
    let cost = |grid| bytes(&vae.program(grid));
    let all = cost(grid);
    if all <= most {
        return Ok(Tiling { tiles: vec![(0..grid.height, 0..grid.width)], bytes: all });
    }
    let mut least = all;
    for side in SIDES {
        let (rows, columns) = (pieces(grid.height, side), pieces(grid.width, side));
        least = cost(Grid { height: rows[0].len(), width: columns[0].len() });
        if least <= most {
            let rows = rows.into_iter();
            let tiles = rows.flat_map(|r| columns.iter().map(move |c| (r.clone(), c.clone()))).collect();
            return Ok(Tiling { tiles, bytes: least });
        }
    }
    Err(ImageError::Parameter {
        name: "decode bytes",
        wanted: format!("{least} or more, what the smallest tile takes"),
        got: most.to_string(),
    })
}

/// As few stretches of up to `side` as cover `len` and overlap by [`OVERLAP`] at least, all equally long.
fn pieces(len: usize, side: usize) -> Vec<Range<usize>> {
    if side >= len {
        return std::iter::once(0..len).collect();
    }
    let count = (len - OVERLAP).div_ceil(side - OVERLAP);
    let side = (len + (count - 1) * OVERLAP).div_ceil(count);
    (0..count).map(|i| i * (len - side) / (count - 1)).map(|start| start..start + side).collect()
}

/// Pixels `(height, width, 3)` of a picture, as the decoder gives them.
pub(super) fn decode(
    runner: &Runner<'_>,
    vae: &Vae,
    (latents, size): (&[f32], ImageSize),
    tiling: &Tiling,
    before: &mut dyn FnMut() -> Result<(), ImageError>,
) -> Result<Vec<f32>, ImageError> {
    let unfolded = vae.unfold(latents, size);
    let width = vae::whole(size).width;
    let run = |rows: Range<usize>, columns: Range<usize>| {
        let grid = Grid { height: rows.len(), width: columns.len() };
        let input = vae.cut(&unfolded, width, rows, columns);
        runner.once(ImagePart::Vae, vae.program(grid), vec![(vae::LATENTS, input)], vae::PIXELS)
    };
    if let [(rows, columns)] = tiling.tiles.as_slice() {
        before()?;
        return run(rows.clone(), columns.clone());
    }
    let mut sums = vec![0.0f32; 3 * size.width() * size.height()];
    let mut weights = vec![0.0f32; size.width() * size.height()];
    for (rows, columns) in &tiling.tiles {
        before()?;
        let pixels = run(rows.clone(), columns.clone())?;
        let (tile_height, tile_width) = (rows.len() * SCALE, columns.len() * SCALE);
        for y in 0..tile_height {
            let down = ramp(y, tile_height, rows.start > 0, rows.end * SCALE < size.height());
            for x in 0..tile_width {
                let across = ramp(x, tile_width, columns.start > 0, columns.end * SCALE < size.width());
                let at = (rows.start * SCALE + y) * size.width() + columns.start * SCALE + x;
                weights[at] += down * across;
                for c in 0..3 {
                    sums[3 * at + c] += down * across * pixels[3 * (y * tile_width + x) + c];
                }
            }
        }
    }
    for (sum, weight) in sums.chunks_exact_mut(3).zip(&weights) {
        sum.iter_mut().for_each(|s| *s /= weight);
    }
    Ok(sums)
}

/// Weight of a pixel: from almost nothing at a border with a neighbour to 1 where the overlap ends.
fn ramp(at: usize, len: usize, before: bool, after: bool) -> f32 {
    let reach = (OVERLAP * SCALE) as f32;
    let rise = |distance: usize| ((distance as f32 + 0.5) / reach).min(1.0);
    let first = if before { rise(at) } else { 1.0 };
    first.min(if after { rise(len - 1 - at) } else { 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_and_overlap() {
        for len in [17, 64, 100, 128, 129, 300] {
            for side in [40, 64, 128] {
                let pieces = pieces(len, side);
                assert_eq!((pieces[0].start, pieces[pieces.len() - 1].end), (0, len));
                assert!(pieces.iter().all(|p| p.len() <= side && p.len() == pieces[0].len()), "{pieces:?} of {len}");
                for pair in pieces.windows(2) {
                    assert!(pair[0].end >= pair[1].start + OVERLAP, "{pair:?} of {len}");
                }
            }
        }
    }

    #[test]
    fn weights_of_neighbours_are_never_all_zero() {
        for at in 0..OVERLAP * SCALE {
            let (left, right) = (ramp(OVERLAP * SCALE - 1 - at, 500, true, true), ramp(at, 500, true, false));
            assert!(left > 0.0 && right > 0.0 && left <= 1.0 && right <= 1.0);
        }
        assert_eq!(ramp(0, 10, false, false), 1.0);
    }
}
