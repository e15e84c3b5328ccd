//! Kernels for 512-bit registers: word tables and sums in words.

pub(super) mod bits;
pub(super) mod blocks;
pub(super) mod floats;
pub(super) mod full_attention;
pub(super) mod tables;
pub(super) mod triples;
mod wide;
