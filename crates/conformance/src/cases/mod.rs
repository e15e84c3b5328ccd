//! The cases, one file for each group.

pub(crate) mod attention;
pub(crate) mod chains;
pub(crate) mod contract;
pub(crate) mod conv;
pub(crate) mod embedding;
pub(crate) mod full_attention;
pub(crate) mod gated_delta;
pub(crate) mod gates;
pub(crate) mod kept;
pub(crate) mod latents;
pub(crate) mod matmul_batches;
pub(crate) mod matmul_epilogues;
pub(crate) mod matmul_formats;
pub(crate) mod matmul_integers;
pub(crate) mod matmul_members;
pub(crate) mod matmul_surroundings;
pub(crate) mod matmul_widths;
pub(crate) mod neighbours;
pub(crate) mod norms;
pub(crate) mod pictures;
pub(crate) mod replay;
pub(crate) mod rope;
pub(crate) mod sample;
pub(crate) mod select;
pub(crate) mod slots;
pub(crate) mod speculation;
