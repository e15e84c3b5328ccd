//! x86-64: what the compiler does not find in the generic loops.

pub(crate) mod avx2;

use crate::generic::Kernels;

/// Proof that this machine has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        let found = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c");
        found.then_some(Avx2(()))
    }
}

/// The kernels of a machine with these instructions.
pub(crate) fn kernels(_: Avx2) -> &'static Kernels {
    &avx2::KERNELS
}
