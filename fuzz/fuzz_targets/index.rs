//! Shard indexes and the `quantization` section: whatever is accepted stays inside the folder.
#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use onebit_checkpoint::mlx::Quantization;
use onebit_checkpoint::safetensors::Index;

fuzz_target!(|data: &[u8]| {
    if let Ok(index) = Index::parse(data) {
        for shard in index.shards() {
            assert!(Path::new(shard).components().all(|part| matches!(part, Component::Normal(_))));
            assert!(!shard.contains(['\\', ':', '\0']));
        }
    }
    if let Ok(config) = serde_json::from_slice(data) {
        if let Ok(quantization) = Quantization::parse(&config) {
            let _ = quantization.lookup("model.layers.0.mlp.up_proj");
        }
    }
});
