//! How `linear_tens` divides a product of tens of rows: which of its kernels runs, its grid, its memory.

use crate::Arch;
use crate::launch::{MOST_ROWS, Product, slices};
use crate::params::{BLOCK_ROWS, Codes, GROUP, TENS_ROWS};
use onebit_ops::Activations;

/// A launch of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tens {
    division: Division,
    /// Blocks of a cluster, which share the slices of a row; 1: each for itself.
    pub ranks: usize,
    /// Blocks for the activation rows of a tile.
    blocks: usize,
    row_tiles: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
}

/// One of the kernels of `linear_tens.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Division {
    codes: Codes,
    /// Activation rows of a thread block.
    columns: usize,
    /// Whether its blocks are clusters.
    split: bool,
    /// Groups of four warps, each with a tile of 64 weight rows.
    groups: usize,
    /// Of a stage of the ring.
    records: usize,
    stages: usize,
}

const fn division(codes: Codes, columns: usize, split: bool, groups: usize, records: usize, stages: usize) -> Division {
    Division { codes, columns, split, groups, records, stages }
}

/// As in `linear_tens.cu`.
const DIVISIONS: [Division; 3] = [
    division(Codes::Bits1, 32, false, 4, 5, 4),
    division(Codes::Bits1, 32, true, 5, 3, 4),
    division(Codes::Bits2, 32, false, 4, 5, 2),
];

/// Most rows for which it is the fastest kernel.
const ROWS: usize = 96;

/// Weight rows of a tile.
const TILE: usize = 2 * BLOCK_ROWS;

/// What the kernel declares at most: barriers, with what the driver keeps.
const OWN: usize = 2 << 10;

/// Most clusters that a device holds at once, by the blocks of one: its multiprocessors fall into groups of 16 and a few more.
fn clusters(multiprocessors: usize, ranks: usize) -> usize {
    multiprocessors / ranks
}

impl Tens {
    /// `None` where it does not run, or has no room. `tiles` of 64 weight rows.
    pub(crate) fn of(codes: Codes, product: &Product) -> bool {
        let &Product { rows, arch, activations, .. } = product;
        (MOST_ROWS + 1..=ROWS).contains(&rows)
            && arch == Arch::Sm90a
            && activations == Activations::I8G128
            && matches!(codes, Codes::Bits1 | Codes::Bits2)
            && DIVISIONS.iter().any(|division| division.codes == codes && Tens::divided(*division, 1, product, 1).is_some())
    }

    /// The division of so many tiles that takes the fewest cycles, as counted.
    pub(crate) fn of_tiles(codes: Codes, product: &Product, tiles: usize) -> Option<Tens> {
        let all = DIVISIONS.iter().filter(|division| division.codes == codes);
        let all = all.flat_map(|division| {
            let ranks: &[usize] = if division.split { &[2, 4, 8] } else { &[1] };
            ranks.iter().filter_map(|&ranks| Tens::divided(*division, ranks, product, tiles))
        });
        all.min_by_key(|(cycles, _)| *cycles).map(|(_, tens)| tens)
    }

    fn divided(division: Division, ranks: usize, product: &Product, tiles: usize) -> Option<(usize, Tens)> {
        let Division { codes, columns, split, groups, records, stages } = division;
        let row_tiles = product.rows.div_ceil(TENS_ROWS);
        let all = product.cols.div_ceil(GROUP);
        let size = all.div_ceil(slices(product.cols));
        let share = all.div_ceil(size).div_ceil(ranks);
        let weights = 2 * groups * BLOCK_ROWS * (16 * codes.units(GROUP) + 2);
        let stage = (records * (columns * GROUP + 8 * TENS_ROWS + weights)).next_multiple_of(1024);
        let shared = stages * stage + (if split { share } else { 1 }) * groups * columns * TILE * 4;
        let sets = tiles.div_ceil(groups);
        let room = clusters(product.multiprocessors as usize / row_tiles, ranks).max(1);
        let fits = shared + OWN <= product.shared as usize
            && (!split || product.clusters && sets <= room)
            && (columns == TENS_ROWS || product.rows <= columns);
        let cycles = sets.div_ceil(room) * (share * size).min(all) * (groups * 115).max(300) + if split { 2000 } else { 0 };
        let blocks = if split { sets * ranks } else { sets.min(room) };
        fits.then_some((cycles, Tens { division, ranks, blocks, row_tiles, shared }))
    }

    /// Beside the groups a warp orders copies.
    pub(crate) fn threads(&self) -> usize {
        128 * self.division.groups + 32
    }

    /// The kernel's name behind that of its codes.
    pub(crate) fn name(&self) -> String {
        let Division { columns, split, groups, .. } = self.division;
        format!("tens{columns}_{}{groups}", if split { "split" } else { "" })
    }

    pub(crate) fn grid(&self) -> [usize; 3] {
        [self.blocks, self.row_tiles, 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

}
