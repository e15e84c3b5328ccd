//! Every conformance case on the GPU, where there is one, with the code path that `ONEBIT_CUDA_ARCH` names.

use onebit_backend_cuda::{CudaBackend, CudaOptions};

fn gpu() -> Option<CudaBackend> {
    match CudaBackend::new(CudaOptions::default()) {
        Ok(backend) => Some(backend),
        Err(error) => {
            // `cargo xtask gpu-check` asks for it: there a missing GPU is a failure.
            assert_ne!(std::env::var("ONEBIT_TEST_BACKEND").as_deref(), Ok("cuda"), "{error}");
            None
        }
    }
}

onebit_conformance::conformance!(optional gpu);
