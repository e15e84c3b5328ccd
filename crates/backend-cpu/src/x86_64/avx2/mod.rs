//! Kernels for 256-bit registers: byte tables and sums in bytes.

pub(super) mod bits;
pub(super) mod tables;
mod vector;

pub(super) use vector::F32x8;
