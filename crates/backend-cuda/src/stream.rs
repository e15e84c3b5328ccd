//! How the streaming kernel runs a product of few rows: the blocks of its weight, their memory, and what is on its way.

use crate::Arch;
use crate::launch::{MOST_ROWS, MOST_SLICES, Product, ROUNDING_CLUSTER, slices};
use crate::params::{BLOCK_ROWS, GROUP};

/// Most stages that the kernel has barriers for.
const MOST_STAGES: usize = 4;

/// Thread blocks of a multiprocessor where they have several turns: enough that one computes while others wait.
const TOGETHER: usize = 2;

/// Bytes that the system takes of a thread block's shared memory.
const TAKEN: usize = 1024;

/// A launch of the streaming kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Rows of activations, as in the kernel's name.
    pub tile: usize,
    pub grid: usize,
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Blocks of one weight that lie there at a time.
    pub stages: usize,
}

impl Stream {
    /// For `blocks` blocks of a weight; `None` where the device lacks the kernel's instructions or the memory.
    pub(crate) fn of(product: &Product, blocks: usize) -> Option<Stream> {
        let tile = product.rows.next_power_of_two().min(MOST_ROWS);
        // A tile of two rows needs less memory than a single row, whose digits lie there, too.
        [tile, tile.max(2)].into_iter().find_map(|tile| Stream::tiled(product, blocks, tile))
    }

    fn tiled(product: &Product, blocks: usize, tile: usize) -> Option<Stream> {
        if product.arch < Arch::Sm80 {
            return None;
        }
        let slices = slices(product.cols);
        // Whole slices.
        let records = product.cols.div_ceil(GROUP).div_ceil(slices) * slices;
        let weights = if product.swiglu { 2 } else { 1 };
        let unit = records * BLOCK_ROWS * (16 + 2);
        // Scales and sums of the rows, and one row's digits.
        let inputs = records * (8 * tile + if tile == 1 { GROUP } else { 0 });
        // What the kernel declares: sums of two turns or one, and some barriers and letters.
        let sums = MOST_SLICES * (BLOCK_ROWS + 1) * size_of::<f32>() * tile * weights * if tile == 1 { 2 } else { 1 };
        let own = sums + 512;
        let memory = product.shared as usize + TAKEN;
        let most = |together: usize| (memory / together).saturating_sub(own + TAKEN + inputs) / unit;
        if most(1) < weights {
            return None;
        }
        let (mut grid, mut stages) = (blocks, weights);
        let multiprocessors = product.multiprocessors as usize;
        // The kernel refills its stages by bulk copies only.
        if product.arch >= Arch::Sm90a && blocks > multiprocessors * 3 / 2 {
            let together = (1..=TOGETHER).rev().find(|n| most(*n) >= weights).unwrap_or(1);
            // Whole clusters, should it round its results.
            let cluster = ROUNDING_CLUSTER as usize;
            grid = blocks.min((multiprocessors * together).next_multiple_of(cluster));
            stages = most(together).min(MOST_STAGES);
        }
        // Two warps have four slices, and each row is finished by one.
        let threads = 32 * (slices / 2).max(tile);
        Some(Stream { tile, grid, threads, shared: stages * unit + inputs, stages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_ops::Activations;

    fn product(rows: usize, cols: usize, swiglu: bool, arch: Arch, shared: u32) -> Product {
        let activations = Activations::I8G128;
        Product { rows, cols, activations, swiglu, arch, shared, clusters: true, multiprocessors: 132 }
    }

    #[test]
    fn a_large_weight_has_turns_where_copies_come_in_bulk() {
        let hopper = Stream::of(&product(1, 5120, true, Arch::Sm90a, 227 << 10), 544).unwrap();
        assert_eq!((hopper.tile, hopper.grid, hopper.threads), (1, 264, 128));
        assert!(hopper.stages >= 2 && hopper.shared < 114 << 10);
        let ampere = Stream::of(&product(1, 5120, true, Arch::Sm80, 163 << 10), 544).unwrap();
        assert_eq!((ampere.grid, ampere.stages), (544, 2));
        assert_eq!(Stream::of(&product(1, 5120, true, Arch::Sm75, 64 << 10), 544), None);
    }

    #[test]
    fn what_streams_fits_the_shared_memory() {
        // 136 records in 16 slices of 9.
        let down = |shared| Stream::of(&product(1, 17408, false, Arch::Sm89, shared), 160).map(|s| (s.tile, s.shared));
        assert_eq!(down(227 << 10), Some((1, 144 * (512 + 64 + 8 + 128))));
        assert_eq!(down(99 << 10), Some((2, 144 * (512 + 64 + 2 * 8))));
        assert_eq!(down(64 << 10), None);
    }
}
