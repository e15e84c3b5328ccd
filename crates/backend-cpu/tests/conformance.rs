//! Every conformance case on every tier that this machine has.

use onebit_backend_cpu::{CpuBackend, CpuOptions, Tier};

fn with(tier: &str, threads: usize) -> Option<CpuBackend> {
    let tier = Tier::named(tier).ok()?;
    CpuBackend::new(CpuOptions { threads: Some(threads), tier: Some(tier) }).ok()
}

mod portable {
    onebit_conformance::conformance!(optional || super::with("portable", 3));
}

mod avx512amx {
    onebit_conformance::conformance!(optional || super::with("avx512amx", 2));
}

mod avx512vnni {
    onebit_conformance::conformance!(optional || super::with("avx512vnni", 2));
}

mod avxvnni {
    onebit_conformance::conformance!(optional || super::with("avxvnni", 2));
}

mod avx512 {
    onebit_conformance::conformance!(optional || super::with("avx512", 2));
}

mod avx2 {
    onebit_conformance::conformance!(optional || super::with("avx2", 2));
}

mod neon {
    onebit_conformance::conformance!(optional || super::with("neon", 2));
}
