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

/// As in `linear_tens.cu`, for either number of activation rows.
const DIVISIONS: [(Codes, bool, [usize; 3]); 10] = [
    (Codes::Bits1, false, [2, 5, 4]),
    (Codes::Bits1, false, [3, 5, 4]),
    (Codes::Bits1, false, [5, 5, 3]),
    (Codes::Bits1, true, [3, 5, 3]),
    (Codes::Bits1, true, [4, 4, 3]),
    (Codes::Bits2, false, [2, 5, 4]),
    (Codes::Bits2, false, [3, 5, 3]),
    (Codes::Bits2, false, [5, 3, 3]),
    (Codes::Bits2, true, [3, 3, 3]),
    (Codes::Bits2, true, [4, 3, 2]),
];

/// Most rows for which it is the fastest kernel.
const ROWS: usize = 96;

/// Weight rows of a tile.
const TILE: usize = 2 * BLOCK_ROWS;

/// What the kernel declares at most: barriers, with what the driver keeps.
const OWN: usize = 2 << 10;

/// Clusters of so many blocks that a device has room for at once, a block a multiprocessor: these lie in groups of about 16, which
/// clusters do not cross.
fn clusters(multiprocessors: usize, ranks: usize) -> usize {
    (if ranks > 2 { multiprocessors - multiprocessors / 12 } else { multiprocessors }) / ranks
}

/// Cycles that a record of a tile takes where so many groups of a block multiply (one H200, `lab/cuda/prefill.md`).
fn record_cycles(groups: usize) -> usize {
    match groups {
        0..=2 => 215,
        3 => 195,
        4 => 185,
        _ => 180,
    }
}

/// And those that it takes the blocks of a cluster to add up the sums of a slice.
const JOIN_CYCLES: usize = 600;

impl Tens {
    /// Whether it runs, for any number of weight rows.
    pub(crate) fn runs(codes: Codes, product: &Product) -> bool {
        Tens::of(codes, product, 1).is_some()
    }

    /// For so many tiles of 64 weight rows; `None` where it does not run, or has no room.
    pub(crate) fn of(codes: Codes, product: &Product, tiles: usize) -> Option<Tens> {
        let &Product { rows, arch, activations, .. } = product;
        if !(MOST_ROWS + 1..=ROWS).contains(&rows) || arch != Arch::Sm90a || activations != Activations::I8G128 {
            return None;
        }
        let columns = if rows <= TENS_ROWS / 2 { TENS_ROWS / 2 } else { TENS_ROWS };
        let ranks = |split: bool| if split { [2, 4, 8].as_slice() } else { &[1] };
        let all = DIVISIONS.iter().filter(|(of, ..)| *of == codes).flat_map(|&(codes, split, [groups, records, stages])| {
            let division = Division { codes, columns, split, groups, records, stages };
            ranks(split).iter().filter_map(move |&ranks| Tens::divided(division, ranks, product, tiles))
        });
        // The first one of those that take the fewest cycles, as counted.
        all.min_by_key(|(cycles, _)| *cycles).map(|(_, tens)| tens)
    }

    fn divided(division: Division, ranks: usize, product: &Product, tiles: usize) -> Option<(usize, Tens)> {
        let Division { codes, columns, split, groups, records, stages } = division;
        let row_tiles = product.rows.div_ceil(TENS_ROWS);
        // Records of a row and of a slice, slices of a row and of a block.
        let all = product.cols.div_ceil(GROUP);
        let size = all.div_ceil(slices(product.cols));
        let count = all.div_ceil(size);
        let share = count.div_ceil(ranks);
        // Rows and what goes with them; codes and scales of two blocks for each group.
        let record = columns * GROUP + 8 * TENS_ROWS + groups * TILE * (16 * codes.units(GROUP) + 2);
        let sums = groups * columns * TILE * 4;
        let shared = stages * (records * record).next_multiple_of(1024) + if split { count * sums / ranks } else { sums };
        let sets = tiles.div_ceil(groups);
        let room = (clusters(product.multiprocessors as usize, ranks) / row_tiles).max(1);
        let fits = shared + OWN <= product.shared as usize
            && (!split || product.clusters && ranks <= count && sets <= room);
        let turns = sets.div_ceil(room);
        let cycles = turns * groups * (share * size).min(all) * record_cycles(groups) + if split { share * JOIN_CYCLES } else { 0 };
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
