//! The eight tile registers: 16 rows of 64 bytes each.
//!
//! ```text
//! tmm0..3   sums, 16 activation rows x 16 weight rows: activations 4 and weights 6, 4 and 7, 5 and 6, 5 and 7
//! tmm4, 5   activations, up to 64 columns of a row in each row
//! tmm6, 7   weights, four columns of 16 weight rows in each row
//! ```
//!
//! The compiler has no intrinsics for them yet, so each function here is one instruction of assembly. What a register holds
//! lives on between them: nothing is compiled with the feature, so nothing else touches them.

use std::arch::asm;
use std::marker::PhantomData;

/// Bytes of a row.
pub(super) const ROW: usize = 64;

/// 64 columns of 16 weight rows: four columns of each in a row.
pub(super) type Tile = [[u8; ROW]; 16];

/// Sums of an activation row and 16 weight rows.
pub(super) type Sums = [i32; 16];

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

    /// All sums become zero.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        // SAFETY: the tiles are configured.
        unsafe { asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem)) };
    }

    /// Loads register `R`: activations or weights, rows `stride` bytes apart.
    ///
    /// # Safety
    /// All rows must be readable, of columns as in `new`.
    #[inline(always)]
    pub(super) unsafe fn load<const R: u8>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the caller's promise; the tiles are configured.
        unsafe {
            asm!(
                "tileloadd tmm{register}, [{from} + {stride} * 1]",
                register = const R,
                from = in(reg) from,
                stride = in(reg) stride,
                options(nostack, readonly)
            );
        }
    }

    /// Adds the products of activations `A`, signed or not, and weights `W` to the sums `S`.
    #[inline(always)]
    pub(super) fn multiply<const S: u8, const A: u8, const W: u8, const SIGNED: bool>(&mut self) {
        // SAFETY: the tiles are configured.
        unsafe {
            if SIGNED {
                asm!("tdpbssd tmm{s}, tmm{a}, tmm{w}", s = const S, a = const A, w = const W, options(nostack, nomem));
            } else {
                asm!("tdpbusd tmm{s}, tmm{a}, tmm{w}", s = const S, a = const A, w = const W, options(nostack, nomem));
            }
        }
    }

    /// Writes the sums `S`.
    #[inline(always)]
    pub(super) fn store<const S: u8>(&mut self, to: &mut [Sums; 16]) {
        // SAFETY: a tile of sums has 16 rows of 64 bytes at most; the tiles are configured.
        unsafe {
            asm!(
                "tilestored [{to} + {stride} * 1], tmm{register}",
                register = const S,
                to = in(reg) to,
                stride = in(reg) ROW,
                options(nostack)
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the tiles are configured. The system need not save what is not in use.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
