//! Every conformance case on a GPU through wgpu.

mod common;

use onebit_backend_wgpu::{WgpuBackend, WgpuOptions};

fn adapter() -> Option<WgpuBackend> {
    common::adapter_with(WgpuOptions::default())
}

onebit_conformance::conformance!(optional adapter);

/// Weights that are cut into one block of rows each, as an adapter with small bindings has them.
mod small_chunks {
    use super::common::adapter_with;
    use onebit_backend_wgpu::WgpuOptions;

    #[test]
    fn products_and_tables_are_whole() {
        let Some(backend) = adapter_with(WgpuOptions { chunk_bytes: Some(1), ..WgpuOptions::default() }) else {
            return eprintln!("not run: no adapter");
        };
        for group in ["matmul_members", "embedding"] {
            onebit_conformance::assert_group(group, &backend);
        }
    }
}
