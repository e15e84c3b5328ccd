//! aarch64: what the compiler does not find in the generic loops. Every such machine has NEON.

mod neon;

pub(crate) use neon::KERNELS as NEON;
