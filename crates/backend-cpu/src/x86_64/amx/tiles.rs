//! The eight tile registers: 16 rows of 64 bytes each.
//!
//! ```text
//! tmm0..3   sums, 16 activation rows x 16 weight rows: activations 4 and weights 6, 4 and 7, 5 and 6, 5 and 7
//! tmm4, 5   activations, a row of up to 64 columns each
//! tmm6, 7   weights, four columns of 16 weight rows in each row
//! ```
//!
//! The compiler has no intrinsics for them yet, so each function here is one block of assembly. What a register holds
//! lives on between blocks: nothing is compiled with the feature, so nothing else touches them.

use std::arch::asm;
use std::marker::PhantomData;

/// Bytes of a row.
pub(super) const ROW: usize = 64;

/// Sums of 16 weight rows, for each activation row of a tile.
pub(super) type Sums = [[i32; 16]; 16];

/// What `ldtilecfg` reads: palette 1 is the only one that there is.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The shape of this thread's tiles, until it is dropped.
pub(super) struct Tiles {
    /// Registers belong to a thread.
    _thread: PhantomData<*const ()>,
}

impl Tiles {
    /// Tiles of `rows` activation rows and `columns` columns.
    ///
    /// # Safety
    /// The machine and the system must let this process use tiles; 1 to 16 rows, and a multiple of four columns up to
    /// 64. One at a time on a thread.
    pub(super) unsafe fn new(rows: usize, columns: usize) -> Self {
        let mut config = Config { palette: 1, start: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let shapes = [(rows, ROW), (rows, columns), (columns / 4, ROW)];
        for (registers, (rows, bytes)) in [0..4, 4..6, 6..8].into_iter().zip(shapes) {
            config.rows[registers.clone()].fill(rows as u8);
            config.row_bytes[registers].fill(bytes as u16);
        }
        // SAFETY: a configuration of 64 bytes; the caller's promise.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
        Tiles { _thread: PhantomData }
    }

    /// Begins the sums of `T` tiles of activations: every row with `before`, 16 numbers for each tile of weights.
    #[inline(always)]
    pub(super) fn begin<const T: usize>(&mut self, before: &[[i32; 16]; 2]) {
        // SAFETY: rows at a distance of zero are one row of 64 bytes; the tiles are configured.
        unsafe {
            asm!(
                "tileloadd tmm0, [{0} + {2} * 1]",
                "tileloadd tmm1, [{1} + {2} * 1]",
                in(reg) &raw const before[0],
                in(reg) &raw const before[1],
                in(reg) 0usize,
                options(nostack, readonly)
            );
            if T == 2 {
                asm!(
                    "tileloadd tmm2, [{0} + {2} * 1]",
                    "tileloadd tmm3, [{1} + {2} * 1]",
                    in(reg) &raw const before[0],
                    in(reg) &raw const before[1],
                    in(reg) 0usize,
                    options(nostack, readonly)
                );
            }
        }
    }

    /// Adds the products of `T` tiles of activations, rows `stride` bytes apart, with two of weights.
    ///
    /// Activations are unsigned bytes and, with `BOTH`, the signed ones 64 bytes behind them.
    ///
    /// # Safety
    /// All rows of the first `T` tiles must be readable, of columns as in `new`.
    #[inline(always)]
    pub(super) unsafe fn multiply<const T: usize, const BOTH: bool>(
        &mut self,
        activations: [*const u8; 2],
        stride: usize,
        weights: [&[[u8; ROW]; 16]; 2],
    ) {
        // SAFETY: the caller's promise for activations; a tile of weights has 16 rows at most. The tiles are configured.
        unsafe {
            asm!(
                "tileloadd tmm6, [{0} + {2} * 1]",
                "tileloadd tmm7, [{1} + {2} * 1]",
                in(reg) weights[0],
                in(reg) weights[1],
                in(reg) ROW,
                options(nostack, readonly)
            );
            match (T, BOTH) {
                (1, false) => asm!(
                    "tileloadd tmm4, [{0} + {1} * 1]",
                    "tdpbusd tmm0, tmm4, tmm6",
                    "tdpbusd tmm1, tmm4, tmm7",
                    in(reg) activations[0],
                    in(reg) stride,
                    options(nostack, readonly)
                ),
                (1, true) => asm!(
                    "tileloadd tmm4, [{0} + {1} * 1]",
                    "tileloadd tmm5, [{0} + {1} * 1 + 64]",
                    "tdpbusd tmm0, tmm4, tmm6",
                    "tdpbusd tmm1, tmm4, tmm7",
                    "tdpbssd tmm0, tmm5, tmm6",
                    "tdpbssd tmm1, tmm5, tmm7",
                    in(reg) activations[0],
                    in(reg) stride,
                    options(nostack, readonly)
                ),
                (_, false) => asm!(
                    "tileloadd tmm4, [{0} + {2} * 1]",
                    "tileloadd tmm5, [{1} + {2} * 1]",
                    "tdpbusd tmm0, tmm4, tmm6",
                    "tdpbusd tmm1, tmm4, tmm7",
                    "tdpbusd tmm2, tmm5, tmm6",
                    "tdpbusd tmm3, tmm5, tmm7",
                    in(reg) activations[0],
                    in(reg) activations[1],
                    in(reg) stride,
                    options(nostack, readonly)
                ),
                (_, true) => asm!(
                    "tileloadd tmm4, [{0} + {2} * 1]",
                    "tileloadd tmm5, [{1} + {2} * 1]",
                    "tdpbusd tmm0, tmm4, tmm6",
                    "tdpbusd tmm1, tmm4, tmm7",
                    "tdpbusd tmm2, tmm5, tmm6",
                    "tdpbusd tmm3, tmm5, tmm7",
                    "tileloadd tmm4, [{0} + {2} * 1 + 64]",
                    "tileloadd tmm5, [{1} + {2} * 1 + 64]",
                    "tdpbssd tmm0, tmm4, tmm6",
                    "tdpbssd tmm1, tmm4, tmm7",
                    "tdpbssd tmm2, tmm5, tmm6",
                    "tdpbssd tmm3, tmm5, tmm7",
                    in(reg) activations[0],
                    in(reg) activations[1],
                    in(reg) stride,
                    options(nostack, readonly)
                ),
            }
        }
    }

    /// Writes the sums: `[tile of activations][tile of weights]`.
    #[inline(always)]
    pub(super) fn end<const T: usize>(&mut self, sums: &mut [[Sums; 2]; 2]) {
        // SAFETY: a tile of sums has 16 rows of 64 bytes at most; the tiles are configured.
        unsafe {
            asm!(
                "tilestored [{0} + {2} * 1], tmm0",
                "tilestored [{1} + {2} * 1], tmm1",
                in(reg) &raw mut sums[0][0],
                in(reg) &raw mut sums[0][1],
                in(reg) ROW,
                options(nostack)
            );
            if T == 2 {
                asm!(
                    "tilestored [{0} + {2} * 1], tmm2",
                    "tilestored [{1} + {2} * 1], tmm3",
                    in(reg) &raw mut sums[1][0],
                    in(reg) &raw mut sums[1][1],
                    in(reg) ROW,
                    options(nostack)
                );
            }
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the tiles are configured. The system need not save what is not in use.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
