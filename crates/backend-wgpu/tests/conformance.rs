//! Every conformance case on a GPU through wgpu.

use onebit_backend_wgpu::{AdapterKind, WgpuBackend, WgpuOptions, gpu_is_possible};

/// A GPU where there is one. A software adapter takes minutes, and runs when `ONEBIT_TEST_BACKEND` asks for it.
fn adapter() -> Option<WgpuBackend> {
    let asked = std::env::var("ONEBIT_TEST_BACKEND").as_deref() == Ok("wgpu");
    if !asked && !gpu_is_possible() {
        return None;
    }
    match WgpuBackend::new(WgpuOptions::default()) {
        Ok(backend) => Some(backend).filter(|b| asked || b.adapter().kind != AdapterKind::Software),
        Err(error) => {
            // Whoever asks for it must not be told that it passed.
            assert!(!asked, "{error}");
            None
        }
    }
}

onebit_conformance::conformance!(optional adapter);
