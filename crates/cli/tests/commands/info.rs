//! `onebit info` and `onebit models`.

use crate::support::{Copy, arg, golden, golden_gguf, onebit};
use onebit::shape::Shape;
use onebit_checkpoint::StoredType;
use onebit_checkpoint::safetensors::{TensorSpec, header_bytes};
use onebit_ops::WeightSource;
use onebit_quant::ParamType;
use serde_json::json;
use std::io::Write;
use std::time::Duration;

#[test]
fn a_dense_model() {
    let model = Copy::of("qwen3_1bit_tied_yarn").with_template();
    let text = onebit(&["info", model.arg()]).run().ok().stdout;
    for part in [
        "qwen3: 3 layers",
        "MLX affine 1-bit g128 F16",
        "cpu/portable",
        "thinking that can be switched",
        "temperature 0.6",
        "keys and values for each token",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let json = onebit(&["info", model.arg(), "--json"]).run().ok().json();
    assert_eq!(json["model"]["architecture"], "qwen3");
    assert_eq!(json["model"]["matrices"], 22);
    assert_eq!(json["runs"], true);
    assert_eq!(json["text"]["end_tokens"], serde_json::json!([280, 282]));
    let parts = json["parts"].as_array().expect("parts");
    let bytes: u64 = parts.iter().filter_map(|p| p["bytes"].as_u64()).sum();
    assert_eq!(json["model"]["matrix_bytes"], bytes);
    assert!(json["problems"].as_array().is_some_and(Vec::is_empty), "{json}");
}

#[test]
fn a_hybrid_with_parts_that_text_does_not_load() {
    let json = onebit(&["info", arg(&golden("qwen35_1bit_mtp")), "--json"]).run().ok().json();
    assert_eq!(json["model"]["architecture"], "qwen35");
    let groups: Vec<&str> =
        json["other"].as_array().expect("a list").iter().filter_map(|o| o["group"].as_str()).collect();
    assert!(groups.iter().any(|g| g.starts_with("multi-token prediction")), "{groups:?}");
    assert!(json["memory"]["state_bytes_per_sequence"].as_u64().is_some_and(|b| b > 0), "{json}");
    let json = onebit(&["info", arg(&golden_gguf("gguf_qwen3_2bit_ternary")), "--json"]).run().ok().json();
    assert_eq!((&json["container"], &json["runs"]), (&"GGUF".into(), &true.into()));
}

#[test]
fn scales_are_read_on_demand() {
    let check =
        |case: &str| onebit(&["info", arg(&golden(case)), "--json", "--check"]).run().ok().json()["check"].clone();
    let symmetric = check("qwen3_1bit_untied");
    assert_eq!((&symmetric["affine"], &symmetric["rounding_only"]), (&0.into(), &0.into()), "{symmetric}");
    assert_eq!(symmetric["shed_bytes"], symmetric["offset_bytes"]);
    let affine = check("qwen3_1bit_affine");
    assert!(affine["affine"].as_u64().is_some_and(|n| n > 0), "{affine}");
    let text = onebit(&["info", arg(&golden("qwen3_1bit_affine")), "--check"]).run().ok().stdout;
    assert!(text.contains("need not stay in memory") && text.contains("affine"), "{text}");
}

#[test]
fn what_does_not_run_is_described_all_the_same() {
    let model = Copy::of("qwen3_1bit_untied");
    std::fs::write(model.file("hadamard.json"), "{}").expect("written");
    let text = onebit(&["info", model.arg()]).run().ok().stdout;
    assert!(text.contains("does not run") && text.contains("Hadamard"), "{text}");
    std::fs::write(model.file("model.safetensors"), "").expect("written");
    onebit(&["info", model.arg()]).run().fails(1, &["is empty"]);
}

/// A sparse file with the header of the 1-bit 27B: every tensor at its real size.
fn shaped_like_27b(folder: &std::path::Path) {
    let shape = Shape::new("bonsai-27b").expect("a known shape");
    let mut specs = Vec::new();
    for (name, dims) in shape.tensors() {
        match name.strip_suffix(".weight").filter(|_| dims.len() == 2) {
            Some(base) if shape.matrix(base).is_ok_and(|m| m.is_some()) => {
                let groups = vec![dims[0], dims[1] * 32 / 128];
                specs.push(TensorSpec { name: name.clone(), stored: StoredType::U32, shape: dims });
                for part in ["scales", "biases"] {
                    let stored = StoredType::Float(ParamType::F16);
                    specs.push(TensorSpec { name: format!("{base}.{part}"), stored, shape: groups.clone() });
                }
            }
            _ => specs.push(TensorSpec { name, stored: StoredType::Float(ParamType::F16), shape: dims }),
        }
    }
    let header = header_bytes(&[("format", "mlx")], &specs).expect("a header");
    let data: u64 = specs.iter().map(|s| s.bytes().expect("a size")).sum();
    let mut file = std::fs::File::create(folder.join("model.safetensors")).expect("a file");
    file.write_all(&header).expect("written");
    file.set_len(header.len() as u64 + data).expect("a sparse file");
    let config = serde_json::json!({
        "model_type": "qwen3_5",
        "quantization": {"group_size": 128, "bits": 1},
        "text_config": {
            "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 262_144, "tie_word_embeddings": false,
            "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
            "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
        },
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
}

#[test]
fn the_27b_is_described_from_its_header_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    shaped_like_27b(dir.path());
    let call = || onebit(&["info", arg(dir.path()), "--json"]).run().ok();
    let output = call();
    let json = output.json();
    assert_eq!(json["model"]["matrices"], 498);
    assert_eq!(json["model"]["parameters"], 26_893_352_960u64);
    assert_eq!(json["tensor_bytes"], 4_207_377_408u64);
    assert_eq!(json["memory"]["kv_bytes_per_token"], 65_536);
    // 0.2 s on a machine of its own; other tests run beside this one, so the best of a few counts.
    let best = (0..5).map(|_| call().time).min().unwrap_or_default();
    let limit = if cfg!(debug_assertions) { 1000 } else { 200 };
    assert!(best < Duration::from_millis(limit), "{best:?}");
}

#[test]
fn the_table_of_models() {
    let text = onebit(&["models"]).run().ok().stdout;
    for part in [
        "bonsai-1.7b",
        "ternary-27b",
        "not yet: rotated weights",
        "makes pictures",
        "memory at 8,192",
        "80.5*",
        "built in",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let json = onebit(&["models", "--json"]).run().ok().json();
    let rows = json.as_array().expect("rows");
    let row = |name: &str| rows.iter().find(|r| r["name"] == name).expect("the row").clone();
    assert_eq!(row("bonsai-27b")["supported"], true);
    // 4.21 GB of weights, 0.54 GB of keys and values, two states of 157 MB, 0.3 GB for the rest.
    assert_eq!(row("bonsai-27b")["memory_bytes"], 4_207_377_408u64 + 8192 * 65_536 + 2 * 156_893_184 + 300_000_000);
    assert_eq!(row("ternary-2-27b")["supported"], false);
    for (name, bits, makes, default) in
        [("seedling", 1, "text", true), ("sprout", 1, "pictures", false), ("sprout-ternary", 2, "pictures", true)]
    {
        let row = row(name);
        assert_eq!((&row["built_in"], &row["bits"], &row["default"]), (&json!(true), &json!(bits), &json!(default)));
        assert!(row["answers_with"] == makes && row["parameters"].as_u64() > Some(9_000_000), "{row}");
        assert!(text.contains(&format!("\n{name} ")), "no {name} in {text}");
    }
    let quantised = onebit(&["models", "--json", "--kv-quant", "q4", "--ctx", "32768"]).run().ok().json();
    assert_ne!(quantised, json);
}
