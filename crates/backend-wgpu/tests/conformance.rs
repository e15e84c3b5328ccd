//! Every conformance case on an adapter, where there is one; a software adapter counts.

use onebit_backend_wgpu::{WgpuBackend, WgpuOptions};

fn adapter() -> Option<WgpuBackend> {
    match WgpuBackend::new(WgpuOptions::default()) {
        Ok(backend) => Some(backend),
        Err(error) => {
            // Whoever asks for it must not be told that it passed.
            assert_ne!(std::env::var("ONEBIT_TEST_BACKEND").as_deref(), Ok("wgpu"), "{error}");
            None
        }
    }
}

onebit_conformance::conformance!(optional adapter);
