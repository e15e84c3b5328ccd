//! How `linear_tens` divides a product of tens of rows: which of its kernels runs, its grid, its memory.

use crate::Arch;
use crate::launch::{MOST_ROWS, Product};
use crate::params::{BLOCK_ROWS, Codes, GROUP, TENS_ROWS};
use onebit_ops::Activations;

/// A launch of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tens {
    /// Activation rows of a thread block, as in the kernel's name.
    pub columns: usize,
    /// Whether a block keeps the activations of all records.
    pub kept: bool,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
}

/// Most rows for which it is the fastest kernel.
const ROWS: usize = 96;

/// Groups of four warps that multiply.
const GROUPS: usize = 4;

/// What the kernel declares at most: a tile's total, and barriers.
const OWN: usize = 9 << 10;

/// Records of a stage and stages, as in `linear_tens.cu`.
fn ring(codes: Codes, kept: bool) -> [usize; 2] {
    match (codes, kept) {
        (Codes::Bits1, true) => [5, 2],
        (Codes::Bits1, false) => [3, 3],
        (_, true) => [2, 2],
        (_, false) => [2, 3],
    }
}

impl Tens {
    /// `None` where it does not run, or has no room.
    pub(crate) fn of(codes: Codes, product: &Product) -> Option<Tens> {
        let &Product { rows, arch, activations, .. } = product;
        let runs = (MOST_ROWS + 1..=ROWS).contains(&rows)
            && arch == Arch::Sm90a
            && activations == Activations::I8G128
            && matches!(codes, Codes::Bits1 | Codes::Bits2);
        // Blocks that keep the activations order all of them at once, and read them once for all their tiles.
        let tens = || [true, false].into_iter().map(|kept| Tens::divided(codes, product, kept));
        runs.then(tens)?.find(|tens| tens.shared + OWN <= product.shared as usize)
    }

    fn divided(codes: Codes, product: &Product, kept: bool) -> Tens {
        let columns = if product.rows <= TENS_ROWS / 2 { TENS_ROWS / 2 } else { TENS_ROWS };
        let [records, stages] = ring(codes, kept);
        // Rows and what goes with them; codes and scales of two blocks.
        let inputs = columns * GROUP + 8 * TENS_ROWS;
        let weights = 2 * BLOCK_ROWS * (16 * codes.units(GROUP) + 2);
        let (stage, align) = if kept { (weights, 128) } else { (weights + inputs, 1024) };
        let rings = GROUPS * stages * (records * stage).next_multiple_of(align);
        let shared = rings + if kept { product.cols.div_ceil(GROUP) * inputs } else { 0 };
        Tens { columns, kept, shared }
    }

    /// Beside these groups one finishes tiles, and a warp orders copies.
    pub(crate) const THREADS: usize = 128 * (GROUPS + 1) + 32;

    /// As in the names of kernels.
    pub(crate) fn name(&self) -> String {
        format!("tens{}{}", self.columns, if self.kept { "_kept" } else { "" })
    }

    /// For `tiles` of 64 weight rows: a block a multiprocessor, which takes one tile after another.
    pub(crate) fn grid(product: &Product, tiles: usize) -> [usize; 3] {
        let row_tiles = product.rows.div_ceil(TENS_ROWS);
        [tiles.min((product.multiprocessors as usize / row_tiles).max(1)), row_tiles, 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tens(rows: usize, cols: usize, codes: Codes, shared: u32) -> Option<(String, usize)> {
        let (activations, arch) = (Activations::I8G128, Arch::Sm90a);
        let product =
            Product { rows, cols, activations, swiglu: false, arch, shared, multiprocessors: 132, clusters: true };
        Tens::of(codes, &product).map(|tens| (tens.name(), tens.shared))
    }

    #[test]
    fn activations_are_kept_where_they_have_room() {
        let most = 227 << 10;
        let named = |name: &str, shared| Some((name.to_owned(), shared));
        assert_eq!(tens(32, 5120, Codes::Bits1, most), named("tens32_kept", 8 * 5760 + 40 * 4352));
        assert_eq!(tens(32, 6144, Codes::Bits1, most), named("tens32", 12 * 17408));
        assert_eq!(tens(16, 6144, Codes::Bits1, most), named("tens16_kept", 8 * 5760 + 48 * 2304));
        assert_eq!(tens(32, 5120, Codes::Bits2, most), named("tens32_kept", 8 * 4352 + 40 * 4352));
        assert_eq!(tens(32, 17408, Codes::Bits2, most), named("tens32", 12 * 13312));
        assert_eq!(tens(32, 5120, Codes::Bits1, 99 << 10), None);
        assert_eq!(tens(8, 5120, Codes::Bits1, most), None);
        assert_eq!(tens(97, 5120, Codes::Bits1, most), None);
    }

    #[test]
    fn a_block_a_multiprocessor_takes_the_tiles() {
        let product = |rows| Product {
            rows,
            cols: 5120,
            activations: Activations::I8G128,
            swiglu: false,
            arch: Arch::Sm90a,
            shared: 227 << 10,
            multiprocessors: 132,
            clusters: true,
        };
        assert_eq!(Tens::grid(&product(32), 544), [132, 1, 1]);
        assert_eq!(Tens::grid(&product(33), 544), [66, 2, 1]);
        assert_eq!(Tens::grid(&product(32), 80), [80, 1, 1]);
    }
}
