//! x86-64: what the compiler does not find in the generic loops.

pub(crate) mod avx2;
pub(crate) mod avx512;

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

/// Proof that this machine has what [`Avx2`] says and AVX-512 F, BW and VL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        Avx2::detect()?;
        let found = std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512vl");
        found.then_some(Avx512(()))
    }
}

/// The kernels of a machine with AVX2.
pub(crate) fn avx2_kernels(_: Avx2) -> &'static Kernels {
    &avx2::KERNELS
}

/// The kernels of a machine with AVX-512.
pub(crate) fn avx512_kernels(_: Avx512) -> &'static Kernels {
    &avx512::KERNELS
}
