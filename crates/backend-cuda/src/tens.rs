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
const DIVISIONS: [(Codes, bool, [usize; 3]); 9] = [
    (Codes::Bits1, false, [2, 5, 4]),
    (Codes::Bits1, false, [3, 5, 4]),
    (Codes::Bits1, false, [5, 5, 3]),
    (Codes::Bits1, true, [3, 5, 3]),
    (Codes::Bits1, true, [4, 4, 3]),
    (Codes::Bits2, false, [2, 5, 4]),
    (Codes::Bits2, false, [3, 5, 3]),
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
        let all =
            DIVISIONS.iter().filter(|(of, ..)| *of == codes).flat_map(|&(codes, split, [groups, records, stages])| {
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
        let shared =
            stages * (records * record).next_multiple_of(1024) + if split { count * sums / ranks } else { sums };
        let sets = tiles.div_ceil(groups);
        let room = (clusters(product.multiprocessors as usize, ranks) / row_tiles).max(1);
        // With few groups and rows a multiprocessor has registers for two blocks.
        let two = columns < TENS_ROWS && groups <= 3 && 2 * (shared + OWN) <= product.shared as usize;
        let fits = shared + OWN <= product.shared as usize
            && (!split || product.clusters && ranks <= count && sets <= if two { 2 * room } else { room });
        let turns = sets.div_ceil(room);
        let cycles = turns * groups * (share * size).min(all) * record_cycles(groups)
            + if split { share * JOIN_CYCLES } else { 0 };
        let blocks = if split { sets * ranks } else { sets.min(room) };
        fits.then_some((cycles, Tens { division, ranks, blocks, row_tiles, shared }))
    }

    /// Beside the groups four warps order copies.
    pub(crate) fn threads(&self) -> usize {
        128 * (self.division.groups + 1)
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

    const MOST: u32 = 227 << 10;

    fn product(rows: usize, cols: usize, shared: u32) -> Product {
        let (activations, arch) = (Activations::I8G128, Arch::Sm90a);
        Product { rows, cols, activations, swiglu: false, arch, shared, multiprocessors: 132, clusters: true }
    }

    /// Name, blocks of a cluster, and grid.
    fn divided(codes: Codes, product: &Product, tiles: usize) -> (String, usize, [usize; 3]) {
        let tens = Tens::of(codes, product, tiles).unwrap();
        (tens.name(), tens.ranks, tens.grid())
    }

    #[test]
    fn blocks_with_more_groups_take_more_tiles_in_one_turn() {
        let of = |tiles| divided(Codes::Bits1, &product(32, 5120, MOST), tiles);
        assert_eq!(of(544), ("tens32_5".to_owned(), 1, [109, 1, 1]));
        assert_eq!(of(384), ("tens32_3".to_owned(), 1, [128, 1, 1]));
        assert_eq!(of(258), ("tens32_2".to_owned(), 1, [129, 1, 1]));
        // More than all have room for: they go on from one to the next.
        assert_eq!(of(3880), ("tens32_5".to_owned(), 1, [132, 1, 1]));
        assert_eq!(divided(Codes::Bits1, &product(9, 5120, MOST), 544), ("tens16_5".to_owned(), 1, [109, 1, 1]));
        // A record of two bits leaves no room for five groups.
        assert_eq!(divided(Codes::Bits2, &product(32, 5120, MOST), 544), ("tens32_3".to_owned(), 1, [132, 1, 1]));
    }

    #[test]
    fn clusters_share_the_slices_of_few_tiles() {
        let of = |cols, tiles| divided(Codes::Bits1, &product(32, cols, MOST), tiles);
        assert_eq!(of(17408, 80), ("tens32_split3".to_owned(), 4, [108, 1, 1]));
        assert_eq!(of(6144, 80), ("tens32_split3".to_owned(), 4, [108, 1, 1]));
        assert_eq!(of(4096, 96), ("tens32_split4".to_owned(), 4, [96, 1, 1]));
        // Two blocks a multiprocessor.
        assert_eq!(divided(Codes::Bits1, &product(16, 17408, MOST), 80), ("tens16_split3".to_owned(), 8, [216, 1, 1]));
        let alone = Product { clusters: false, ..product(32, 17408, MOST) };
        assert_eq!(divided(Codes::Bits1, &alone, 80), ("tens32_2".to_owned(), 1, [40, 1, 1]));
        // Every block has a slice.
        let division = Division { codes: Codes::Bits1, columns: 32, split: true, groups: 3, records: 5, stages: 3 };
        let of = |ranks| Tens::divided(division, ranks, &product(32, 384, MOST), 1).is_some();
        assert!(of(2) && !of(4));
    }

    #[test]
    fn tiles_of_activation_rows_share_the_multiprocessors() {
        let of = |rows| divided(Codes::Bits1, &product(rows, 5120, MOST), 544).2;
        assert_eq!(of(33), [66, 2, 1]);
        assert_eq!(of(96), [44, 3, 1]);
    }

    #[test]
    fn shared_memory_is_that_of_the_kernel() {
        let shared = |codes, cols, tiles| Tens::of(codes, &product(32, cols, MOST), tiles).unwrap().shared;
        // A record has 4,352 bytes of activations, and 1,152 or 2,176 of weights for each group.
        assert_eq!(shared(Codes::Bits1, 5120, 544), 3 * 51200 + 5 * 8192);
        assert_eq!(shared(Codes::Bits1, 17408, 80), 3 * 39936 + 16 * 3 * 8192 / 4);
        assert_eq!(shared(Codes::Bits2, 5120, 258), 4 * 44032 + 2 * 8192);
        assert_eq!(Tens::of(Codes::Bits1, &product(32, 5120, 99 << 10), 544), None);
    }

    #[test]
    fn it_runs_for_some_tens_of_rows() {
        let runs = |rows, codes| Tens::runs(codes, &product(rows, 5120, MOST));
        assert!(!runs(8, Codes::Bits1) && runs(9, Codes::Bits1) && runs(96, Codes::Bits2) && !runs(97, Codes::Bits1));
        assert!(!runs(32, Codes::Bits4));
        assert!(!Tens::runs(Codes::Bits1, &Product { arch: Arch::Sm89, ..product(32, 5120, MOST) }));
    }
}
