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

/// Records of a slice for which there is a lean kernel.
const LEAN_SHARES: [usize; 2] = [4, 5];

/// What the kernel declares: sums of the slices, and what blocks of a cluster tell each other.
fn own(tile: usize, weights: usize) -> usize {
    MOST_SLICES * (BLOCK_ROWS + 1) * size_of::<f32>() * tile * weights + 512
}

impl Stream {
    /// `None` where the device lacks the kernel's instructions or the memory.
    pub(crate) fn of(product: &Product) -> Option<Stream> {
        let tile = product.rows.next_power_of_two().min(MOST_ROWS);
        // A tile of two rows needs less memory than a single row, whose digits lie there, too.
        [tile, tile.max(2)].into_iter().find_map(|tile| Stream::tiled(product, tile))
    }

    /// The kernel for gate and up of one row in less memory, where only with it all `blocks` of the weight have room at once: the
    /// records of a slice, as in its name, with threads and memory.
    pub(crate) fn lean(product: &Product, blocks: usize) -> Option<(usize, Stream)> {
        let usual = Stream::of(product).filter(|usual| usual.tile == 1)?;
        let slices = slices(product.cols);
        let share = product.cols.div_ceil(GROUP).div_ceil(slices);
        // Codes, scales and sums of the row.
        let shared = slices * share * (2 * BLOCK_ROWS * 16 + 8);
        let lean = Stream { tile: 1, threads: 16 * slices, shared };
        // What the driver keeps for itself of each block; a multiprocessor has as much more than a block may have.
        const KEPT: usize = 1 << 10;
        let room = |bytes: usize| (product.shared as usize + KEPT) / (bytes + KEPT) * product.multiprocessors as usize;
        let fits = room(usual.shared + own(1, 2)) < blocks && blocks <= room(lean.shared + own(0, 0));
        (product.swiglu && slices < MOST_SLICES && LEAN_SHARES.contains(&share) && fits).then_some((share, lean))
    }

    fn tiled(product: &Product, tile: usize) -> Option<Stream> {
        let slices = slices(product.cols);
        // Whole slices.
        let records = product.cols.div_ceil(GROUP).div_ceil(slices) * slices;
        let weights = if product.swiglu { 2 } else { 1 };
        // Codes and scales of every record, scales and sums of the rows, and one row's digits.
        let inputs = 8 * tile + if tile == 1 { GROUP } else { 0 };
        let shared = records * (weights * BLOCK_ROWS * (16 + 2) + inputs);
        // Two warps have four slices, and each row is finished by one.
        let threads = 32 * (slices / 2).max(tile);
        let fits = product.arch >= Arch::Sm80 && shared + own(tile, weights) <= product.shared as usize;
        fits.then_some(Stream { tile, threads, shared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_ops::Activations;

    fn stream(cols: usize, swiglu: bool, arch: Arch, shared: u32) -> Option<(usize, usize, usize)> {
        let activations = Activations::I8G128;
        let product =
            Product { rows: 1, cols, activations, swiglu, arch, shared, multiprocessors: 132, clusters: true };
        Stream::of(&product).map(|s| (s.tile, s.threads, s.shared))
    }

    #[test]
    fn a_lean_kernel_runs_where_it_alone_has_room() {
        let lean = |cols, blocks, multiprocessors| {
            let activations = Activations::I8G128;
            let (arch, shared) = (Arch::Sm90a, 227 << 10);
            let product =
                Product { rows: 1, cols, activations, swiglu: true, arch, shared, multiprocessors, clusters: true };
            Stream::lean(&product, blocks).map(|(share, stream)| (share, stream.threads, stream.shared))
        };
        // Four blocks of a multiprocessor, and five.
        assert_eq!(lean(5120, 544, 132), Some((5, 128, 40 * (2 * 512 + 8))));
        assert_eq!((lean(5120, 528, 132), lean(5120, 661, 132)), (None, None));
        assert_eq!(lean(6144, 544, 132), None);
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
