//! GGUF headers: whole files, and prefixes of longer ones.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use onebit_checkpoint::gguf::Header;
use onebit_checkpoint::{Inventory, Parsed};

fuzz_target!(|data: &[u8]| {
    let len = data.len() as u64;
    // The second length makes data run past the prefix, as over HTTP.
    for file_len in [len, len.saturating_mul(64)] {
        let Ok(parsed) = Header::parse(data, file_len) else { continue };
        let Parsed::Header(header) = parsed else { continue };
        for group in [None, Some(64), Some(128)] {
            let files = vec![("m.gguf".to_owned(), header.clone())];
            let Ok(inventory) = Inventory::from_gguf(Path::new("m.gguf"), files, group) else { continue };
            for tensor in inventory.tensors() {
                assert!(tensor.offset.checked_add(tensor.bytes).is_some_and(|end| end <= file_len));
            }
            assert!(inventory.packed().all(|(_, matrix)| matrix.bytes() <= file_len));
        }
    }
});
