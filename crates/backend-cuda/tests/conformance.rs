//! Every conformance case on the GPU, where there is one, with the code path that `ONEBIT_CUDA_ARCH` names.

use onebit_backend_cuda::{CudaBackend, CudaOptions};
use std::path::PathBuf;

fn gpu() -> Option<CudaBackend> {
    let folder = std::env::var_os("XDG_CACHE_HOME").map(|caches| PathBuf::from(caches).join("onebit/cuda"));
    match CudaBackend::new(CudaOptions { arch: None, kernel_cache: folder }) {
        Ok(backend) => Some(backend),
        Err(error) => {
            // `cargo xtask gpu-check` asks for it: there a missing GPU is a failure.
            assert_ne!(std::env::var("ONEBIT_TEST_BACKEND").as_deref(), Ok("cuda"), "{error}");
            None
        }
    }
}

onebit_conformance::conformance!(optional gpu);
