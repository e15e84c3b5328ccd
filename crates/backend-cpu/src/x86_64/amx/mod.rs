//! Many activation rows through AMX: 16 x 16 sums of 64 products of bytes in one instruction.
//!
//! Activations become bytes once for all weights ([`activations`]) and a few weights at a time become bytes for all
//! activation rows ([`weights`]); [`mod@line`] brings them together in [`tiles`], in the order that [`matmul`] gives.

mod activations;
mod line;
mod machine;
mod matmul;
mod tiles;
mod weights;

pub(super) use activations::OPERAND;
pub(super) use machine::detected;
pub(super) use matmul::{fewest, int_blocks};
