//! Safetensors headers, with and without a configuration.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use onebit_checkpoint::safetensors::Header;
use onebit_checkpoint::{Inventory, Parsed};

fuzz_target!(|data: &[u8]| {
    let len = data.len() as u64;
    // Most inputs would die at the length field, so the JSON alone is tried too.
    let framed = [&len.to_le_bytes()[..], data].concat();
    for (bytes, file_len) in [(data, len), (data, len.saturating_mul(64)), (&framed, len + 8), (&framed, len + 8 + 176)]
    {
        let Ok(parsed) = Header::parse(bytes, file_len) else { continue };
        let Parsed::Header(header) = parsed else { continue };
        for config in [serde_json::Value::Null, serde_json::json!({ "quantization": { "bits": 1, "group_size": 128 } })]
        {
            let files = [("m".to_owned(), header.clone())];
            let Ok(inventory) = Inventory::from_safetensors(Path::new("m"), config, &files) else { continue };
            for tensor in inventory.tensors() {
                assert!(tensor.offset.checked_add(tensor.bytes).is_some_and(|end| end <= file_len));
            }
            assert!(inventory.packed().all(|(_, matrix)| matrix.bytes() <= file_len));
        }
    }
});
