//! How the streaming kernel runs a product of few rows: its tile of activations, its threads, its memory.

use crate::Arch;
use crate::launch::{MOST_ROWS, MOST_SLICES, Product, slices};
use crate::params::{BLOCK_ROWS, GROUP};

/// A launch of the streaming kernel; its grid are the blocks of the weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Rows of activations, as in the kernel's name.
    pub tile: usize,
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
}

impl Stream {
    /// `None` where the device lacks the kernel's instructions or the memory.
    pub(crate) fn of(product: &Product) -> Option<Stream> {
        let tile = product.rows.next_power_of_two().min(MOST_ROWS);
        // A tile of two rows needs less memory than a single row, whose digits lie there, too.
        [tile, tile.max(2)].into_iter().find_map(|tile| Stream::tiled(product, tile))
    }

    fn tiled(product: &Product, tile: usize) -> Option<Stream> {
        let slices = slices(product.cols);
        // Whole slices.
        let records = product.cols.div_ceil(GROUP).div_ceil(slices) * slices;
        let weights = if product.swiglu { 2 } else { 1 };
        // Codes and scales of every record, scales and sums of the rows, and one row's digits.
        let inputs = 8 * tile + if tile == 1 { GROUP } else { 0 };
        let shared = records * (weights * BLOCK_ROWS * (16 + 2) + inputs);
        // What the kernel declares: sums of the slices, and what blocks of a cluster tell each other.
        let own = MOST_SLICES * (BLOCK_ROWS + 1) * size_of::<f32>() * tile * weights + 512;
        // Two warps have four slices, and each row is finished by one.
        let threads = 32 * (slices / 2).max(tile);
        let fits = product.arch >= Arch::Sm80 && shared + own <= product.shared as usize;
        fits.then_some(Stream { tile, threads, shared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_ops::Activations;

    fn stream(cols: usize, swiglu: bool, arch: Arch, shared: u32) -> Option<(usize, usize, usize)> {
        let activations = Activations::I8G128;
        let product = Product { rows: 1, cols, activations, swiglu, arch, shared, clusters: true };
        Stream::of(&product).map(|s| (s.tile, s.threads, s.shared))
    }

    #[test]
    fn what_streams_fits_the_shared_memory() {
        let pair = Some((1, 128, 40 * (2 * (512 + 64) + 8 + 128)));
        assert_eq!(stream(5120, true, Arch::Sm90a, 227 << 10), pair);
        assert_eq!(stream(5120, true, Arch::Sm80, 163 << 10), pair);
        assert_eq!(stream(5120, true, Arch::Sm75, 64 << 10), None);
        // 136 records in 16 slices of 9.
        let down = |shared| stream(17408, false, Arch::Sm89, shared);
        assert_eq!(down(227 << 10), Some((1, 256, 144 * (512 + 64 + 8 + 128))));
        assert_eq!(down(99 << 10), Some((2, 256, 144 * (512 + 64 + 2 * 8))));
        assert_eq!(down(64 << 10), None);
    }
}
