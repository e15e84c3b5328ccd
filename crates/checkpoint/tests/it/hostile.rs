//! Valid files with bytes changed at random: every parser returns, none panics, none allocates beyond its input.

use std::path::Path;

use onebit_checkpoint::mlx::Quantization;
use onebit_checkpoint::{Inventory, Parsed, gguf, safetensors};
use proptest::prelude::*;

use crate::support::{Gguf, kv, string, t, tensors_of, triplet, watch};

fn safetensors_file() -> Vec<u8> {
    let mut entries = triplet("model.embed_tokens", 4, 8, 2);
    entries.push(("n".into(), "F16", 2, vec![4]));
    tensors_of(&entries)
}

fn gguf_file() -> Vec<u8> {
    let tensors = [t("a.weight", &[256, 16], 42, 0), t("b.weight", &[128, 2], 41, 1152), t("n", &[8], 0, 1216)];
    let mut gguf = Gguf::new(&tensors, 1248);
    let list = [8u32.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec(), string("x"), string("yz")].concat();
    gguf.key_values.push(kv("tokens", 9, &list));
    gguf.key_values.push(kv("general.alignment", 4, &32u32.to_le_bytes()));
    gguf.bytes()
}

/// Changes some bytes, mostly of the header, and perhaps the length.
fn mutated(file: Vec<u8>, edits: &[(usize, u8)], keep: usize) -> Vec<u8> {
    let mut file = file;
    let len = file.len();
    for &(at, value) in edits {
        file[at % len] = value;
    }
    file.truncate(len - keep % len);
    file
}

fn through_gguf(bytes: &[u8], file_len: u64) {
    if let Ok(Parsed::Header(header)) = gguf::Header::parse(bytes, file_len) {
        for group in [None, Some(64), Some(128)] {
            let files = vec![("m.gguf".to_owned(), header.clone())];
            if let Ok(inventory) = Inventory::from_gguf(Path::new("m.gguf"), files, group) {
                exercise(&inventory, file_len);
            }
        }
    }
}

fn through_safetensors(bytes: &[u8], file_len: u64, config: serde_json::Value) {
    if let Ok(Parsed::Header(header)) = safetensors::Header::parse(bytes, file_len) {
        let files = [("m".to_owned(), header)];
        if let Ok(inventory) = Inventory::from_safetensors(Path::new("m"), config, &files) {
            exercise(&inventory, file_len);
        }
    }
}

/// What every accepted file must hold.
fn exercise(inventory: &Inventory, file_len: u64) {
    for tensor in inventory.tensors() {
        assert!(tensor.offset.checked_add(tensor.bytes).unwrap() <= file_len, "{tensor:?}");
        assert!(tensor.describe().len() < 500);
    }
    for (_, matrix) in inventory.packed() {
        assert!(matrix.bytes() <= file_len);
    }
    let _ = inventory.kind().to_string();
}

/// A generous bound for files of a few kilobytes.
const SMALL: usize = 1 << 20;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn changed_gguf_files(edits in prop::collection::vec((0usize..400, any::<u8>()), 0..6), keep in 0usize..3, longer in 0u64..64) {
        let bytes = mutated(gguf_file(), &edits, keep);
        let ((), largest, _) = watch(|| through_gguf(&bytes, bytes.len() as u64 + longer));
        prop_assert!(largest < SMALL);
    }

    #[test]
    fn changed_safetensors_files(edits in prop::collection::vec((0usize..500, any::<u8>()), 0..4), keep in 0usize..3, longer in 0u64..64) {
        let bytes = mutated(safetensors_file(), &edits, keep);
        let config = serde_json::json!({ "quantization": { "bits": 1, "group_size": 128 } });
        let ((), largest, _) = watch(|| through_safetensors(&bytes, bytes.len() as u64 + longer, config));
        prop_assert!(largest < SMALL);
    }

    #[test]
    fn numbers_in_the_header_replaced_by_extremes(which in 0usize..40, value in prop::sample::select(vec![
        "0", "1", "-1", "18446744073709551615", "18446744073709551616", "9223372036854775808", "1e30", "null", "[]", "\"8\"", "4294967296",
    ])) {
        // The n-th number of the JSON text.
        let file = safetensors_file();
        let text = std::str::from_utf8(&file[8..8 + file[0] as usize + 256 * file[1] as usize]).unwrap();
        let mut starts: Vec<usize> = text.match_indices(|c: char| c.is_ascii_digit()).map(|(i, _)| i).collect();
        starts.retain(|&i| i > 0 && text.as_bytes()[i - 1].is_ascii_punctuation());
        let at = starts[which % starts.len()];
        let end = at + text[at..].find(|c: char| !c.is_ascii_digit()).unwrap();
        let changed = format!("{}{value}{}", &text[..at], &text[end..]);
        let bytes = crate::support::safetensors(&changed, None, &[0; 300]);
        let config = serde_json::json!({ "quantization": { "bits": 1, "group_size": 128 } });
        let ((), largest, _) = watch(|| through_safetensors(&bytes, bytes.len() as u64, config));
        prop_assert!(largest < SMALL);
    }

    #[test]
    fn every_prefix_of_a_file_asks_for_more_or_decides(cut in 0usize..2000, edits in prop::collection::vec((0usize..400, any::<u8>()), 0..2)) {
        for (file, is_gguf) in [(gguf_file(), true), (safetensors_file(), false)] {
            let bytes = mutated(file, &edits, 0);
            let len = bytes.len() as u64;
            let prefix = &bytes[..cut.min(bytes.len())];
            let need = if is_gguf {
                gguf::Header::parse(prefix, len).map(|p| if let Parsed::NeedBytes(n) = p { n } else { u64::MAX })
            } else {
                safetensors::Header::parse(prefix, len).map(|p| if let Parsed::NeedBytes(n) = p { n } else { u64::MAX })
            };
            if let Ok(need) = need && need != u64::MAX {
                prop_assert!(need > prefix.len() as u64 && need <= len);
            }
        }
    }

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), file_len in any::<u64>()) {
        through_gguf(&bytes, file_len);
        through_gguf(&[b"GGUF\x03\0\0\0", bytes.as_slice()].concat(), file_len);
        through_safetensors(&bytes, file_len, serde_json::Value::Null);
        let _ = safetensors::Index::parse(&bytes);
    }

    #[test]
    fn arbitrary_quantization_sections(text in r#"\{("(bits|group_size|mode|a|model\.a)":(1|"x"|false|null|\{"bits":2\}|\[\]),){0,4}"z":1\}"#) {
        let section: serde_json::Value = serde_json::from_str(&text).unwrap();
        let _ = Quantization::parse(&serde_json::json!({ "quantization": section }));
    }
}
