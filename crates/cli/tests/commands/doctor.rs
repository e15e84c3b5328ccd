//! `onebit doctor`.

use crate::support::{Copy, arg, golden_gguf, onebit};

#[test]
fn this_machine_is_well() {
    let output = onebit(&["doctor", "--bits", "1", "--backend", "auto"]).run().ok();
    for part in ["cpu/portable", "known answer", "symmetric", "offsets of their own", "checks passed"] {
        assert!(output.stdout.contains(part), "no {part:?} in {output:?}");
    }
    assert!(!output.stdout.contains("FAIL"), "{output:?}");
}

#[test]
fn a_model_is_tested_on_its_own_weights() {
    for path in [crate::support::golden("qwen35_2bit_ternary"), golden_gguf("gguf_qwen3_1bit_untied")] {
        let output = onebit(&["doctor", arg(&path)]).run().ok();
        assert!(output.stdout.contains("layers.0") && output.stdout.contains("no published Bonsai pack"), "{output:?}");
    }
}

#[test]
fn damaged_scales_are_found() {
    let model = Copy::of("qwen3_1bit_untied");
    model.edit("model.safetensors", |bytes| {
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).expect("a header");
        let begin = json["model.layers.1.mlp.up_proj.scales"]["data_offsets"][0].as_u64().expect("an offset");
        let at = 8 + header + begin as usize;
        // Infinity in binary16.
        bytes[at..at + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
    });
    let output = onebit(&["doctor", model.arg()]).run();
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stdout.contains("FAIL") && output.stdout.contains("no finite number: 1"), "{output:?}");
    assert!(output.stderr.contains("checks failed"), "{output:?}");
}
