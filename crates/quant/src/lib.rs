//! Block layouts of 1-bit, 2-bit, 4-bit and 8-bit weights, with scalar encode and decode.
//!
//! This crate is the **oracle**: every fast kernel of the engine is judged against the few lines here that say
//! what a stored byte means. It knows bytes, rows and columns; it knows no tensor name, no file and no device.
//!
//! Every packed format is presented the same way. A row of a matrix is cut into groups along the input axis, and a
//! weight of a group is
//!
//! ```text
//! w = scale * code + bias        code: unsigned integer; scale, bias: one f32 each per group
//! ```
//!
//! | format | codes | scale | bias |
//! |---|---|---|---|
//! | MLX affine 1, 2, 4, 8 bit | `0..2^bits` | stored | stored |
//! | `Q1_0` | 0, 1 | `2d` | `-d` |
//! | `Q2_0` (64 and 128), `PQ2_0` | 0..=3, Bonsai uses 0..=2 | `d` | `-d` |
//! | `PTQ1_0` | 0..=2 | `d` | `-d` |
//! | `Q4_0` | 0..=15 | `d` | `-8d` |
//! | `Q4_1` | 0..=15 | `d` | `m` |
//! | `Q8_0` | 0..=255 (stored byte + 128) | `d` | `-128d` |
//!
//! One file of [`formats`] holds one family: its layout diagram, its row of the format table, its reader and its
//! writer. [`Matrix`] is a borrowed weight matrix as it lies in a file, [`Packed`] an owned one.
//!
//! ```
//! use onebit_quant::{Format, Matrix};
//! // One row of 128 weights in Q1_0: d = 0.5 (f16 0x3800), all bits set.
//! let mut block = vec![0xffu8; 18];
//! block[..2].copy_from_slice(&0x3800u16.to_le_bytes());
//! let m = Matrix::new(Format::Q1_0, 1, 128, &block, &[], &[])?;
//! let mut row = [0.0f32; 128];
//! m.decode_row(0, &mut row);
//! assert!(row.iter().all(|&w| w == 0.5));
//! # Ok::<(), onebit_quant::QuantError>(())
//! ```

#![forbid(unsafe_code)]

mod encode;
mod error;
pub mod float;
mod format;
pub mod formats;
mod matrix;
mod symmetry;

pub use encode::{Exactness, Packed, Reencoded, pack, quantize, reencode};
pub use error::QuantError;
pub use format::{Format, GgufType, ParamType};
pub use matrix::{Group, MAX_GROUP, Matrix};
pub use symmetry::{Residual, Symmetry};
