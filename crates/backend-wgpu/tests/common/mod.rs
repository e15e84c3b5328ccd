//! The adapter that tests run on.

use onebit_backend_wgpu::{AdapterKind, WgpuBackend, WgpuOptions, gpu_is_possible};

/// A GPU where there is one. A software adapter takes minutes, and runs when `ONEBIT_TEST_BACKEND` asks for it.
pub(crate) fn adapter_with(options: WgpuOptions) -> Option<WgpuBackend> {
    let asked = std::env::var("ONEBIT_TEST_BACKEND").as_deref() == Ok("wgpu");
    if !asked && !gpu_is_possible() {
        return None;
    }
    match WgpuBackend::new(options) {
        Ok(backend) => Some(backend).filter(|b| asked || b.adapter().kind != AdapterKind::Software),
        Err(error) => {
            // Whoever asks for it must not be told that it passed.
            assert!(!asked, "{error}");
            None
        }
    }
}
