//! The cases, one file for each group.

pub(crate) mod contract;
pub(crate) mod matmul_batches;
pub(crate) mod matmul_epilogues;
pub(crate) mod matmul_formats;
pub(crate) mod matmul_integers;
pub(crate) mod matmul_members;
pub(crate) mod matmul_surroundings;
pub(crate) mod matmul_widths;
pub(crate) mod replay;
