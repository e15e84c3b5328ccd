//! Many activation rows through AMX: 16 x 16 sums of 64 products of bytes in one instruction.
//!
//! Weight bits become bytes once for all activation rows ([`weights`]), activations become bytes once for all weights
//! ([`activations`]), and [`matmul`] brings them together in [`tiles`].

mod activations;
mod machine;
mod matmul;
mod tiles;
mod weights;

pub(super) use activations::OPERAND;
pub(super) use machine::detected;
pub(super) use matmul::{fewest, int_blocks};
