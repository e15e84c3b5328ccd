//! Never wrong in silence: faults inside well-formed files and impossible options.

use crate::support::{arg, golden, onebit};
use safetensors::SafeTensors;
use std::path::Path;
use tempfile::TempDir;

/// A copy of a golden case's files.
fn copy(case: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(golden(case)).expect("the case") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).expect("a copy");
    }
    dir
}

/// Overwrites the first bytes of a tensor.
fn patch(folder: &Path, tensor: &str, bytes: &[u8]) {
    let path = folder.join("model.safetensors");
    let mut file = std::fs::read(&path).expect("the weights");
    let start = SafeTensors::deserialize(&file).expect("valid").tensor(tensor).expect("the tensor").data().as_ptr();
    let offset = start as usize - file.as_ptr() as usize;
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
    std::fs::write(path, file).expect("written");
}

#[test]
fn a_scale_that_is_no_number_ends_every_kind_of_run() {
    let nan = 0x7e00u16.to_le_bytes();
    let cases = [
        ("qwen3_1bit_untied", "model.layers.0.self_attn.q_proj.scales"),
        ("qwen3_1bit_untied", "model.layers.1.self_attn.k_proj.scales"),
        ("qwen3_1bit_untied", "model.layers.1.self_attn.v_proj.scales"),
        ("qwen3_1bit_untied", "model.layers.2.mlp.down_proj.scales"),
        ("qwen3_1bit_untied", "lm_head.scales"),
        ("qwen35_1bit_untied", "language_model.model.layers.0.linear_attn.in_proj_qkv.scales"),
        ("qwen35_1bit_untied", "language_model.model.layers.1.linear_attn.out_proj.scales"),
        ("qwen35_1bit_untied", "language_model.model.layers.3.self_attn.k_proj.scales"),
    ];
    for (case, tensor) in cases {
        let dir = copy(case);
        patch(dir.path(), tensor, &nan);
        for options in
            [&["--kv-quant", "none"][..], &["--kv-quant", "q8"], &["--kv-quant", "q4"], &["--activations", "f32"]]
        {
            let args =
                [&["run", arg(dir.path()), "hello", "--max-tokens", "2", "--temperature", "0"][..], options].concat();
            let output = onebit(&args).run();
            assert!(output.code == 1 && output.stderr.contains("NaN"), "{tensor} {options:?}: {output:#?}");
        }
    }
}

#[test]
fn layers_that_the_configuration_leaves_out_are_no_secret() {
    let dir = copy("qwen3_1bit_untied");
    let path = dir.path().join("config.json");
    let config = std::fs::read_to_string(&path).expect("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["num_hidden_layers"] = 2.into();
    std::fs::write(&path, config.to_string()).expect("written");
    let output = onebit(&["run", arg(dir.path()), "hello"]).run();
    output.fails(1, &["model.layers.2.", "layer count"]);
}

#[test]
fn sizes_that_the_tensors_contradict_are_refused() {
    for (key, value) in [("hidden_size", "512"), ("rms_norm_eps", "-1.0"), ("rms_norm_eps", "1e300")] {
        let dir = copy("qwen3_1bit_untied");
        let path = dir.path().join("config.json");
        let mut config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).expect("config.json")).expect("JSON");
        config[key] = serde_json::from_str(value).expect("a number");
        std::fs::write(&path, config.to_string()).expect("written");
        onebit(&["run", arg(dir.path()), "hello"]).run().fails(1, &[key]);
    }
}

#[test]
fn thread_counts_beyond_reason_are_bad_usage() {
    let case = golden("qwen3_1bit_untied");
    for count in ["0", "100000", "18446744073709551615"] {
        onebit(&["run", arg(&case), "hello", "--threads", count]).run().fails(2, &["from 1 to 1024"]);
    }
}

#[test]
fn logits_are_written_to_the_file_that_is_there() {
    let (case, dir) = (golden("qwen3_1bit_untied"), tempfile::tempdir().expect("a folder"));
    let run = |out: &Path| onebit(&["logits", arg(&case), "--tokens", "1,2", "--out", arg(out)]).run();
    run(&dir.path().join("no/folder/out.safetensors")).fails(1, &["no/folder"]);
    let (target, link) = (dir.path().join("target"), dir.path().join("link"));
    std::fs::write(&target, "").expect("written");
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    run(&link).ok();
    assert!(link.is_symlink() && std::fs::metadata(&target).expect("the target").len() > 0);
}

#[test]
fn sampling_values_of_another_type_are_refused() {
    for (text, key) in
        [("{\"temperature\": \"hot\"}", "temperature"), ("{\"eos_token_id\": [1, \"a\"]}", "eos_token_id")]
    {
        let dir = copy("qwen3_1bit_untied");
        std::fs::write(dir.path().join("generation_config.json"), text).expect("written");
        onebit(&["run", arg(dir.path()), "hello"]).run().fails(1, &["generation_config.json", key]);
    }
}

#[test]
fn a_device_is_no_model() {
    onebit(&["info", "/dev/null"]).run().fails(1, &["/dev/null", "neither a file nor a folder"]);
}

#[test]
fn an_image_model_is_described_and_named_with_its_command() {
    let pack = golden("../images/flux2_2bit_ternary");
    for command in ["run", "chat", "bench"] {
        let args: &[&str] = if command == "run" { &["run", arg(&pack), "hello"] } else { &[command, arg(&pack)] };
        onebit(args).run().fails(1, &["an image model (2-bit, groups of 128)", "onebit image", arg(&pack)]);
    }
    let info = onebit(&["info", arg(&pack), "--json"]).run().ok().json();
    assert_eq!((&info["runs"], &info["image"]["double_blocks"]), (&true.into(), &2.into()), "{info:#}");
    assert_eq!(info["image"]["pictures"].as_array().map(Vec::len), Some(3), "{info:#}");
    let text = onebit(&["info", arg(&pack)]).run().ok().stdout;
    assert!(text.contains("2 double and 3 single blocks") && text.contains("--low-memory"), "{text}");
}

#[test]
fn an_image_model_without_a_part_says_how_to_get_it() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(dir.path().join("transformer-packed-mflux")).expect("a folder");
    for name in ["config.json", "diffusion_pytorch_model.safetensors"] {
        let name = format!("transformer-packed-mflux/{name}");
        std::fs::copy(golden("../images/flux2_1bit").join(&name), dir.path().join(&name)).expect("a copy");
    }
    let info = onebit(&["info", arg(dir.path())]).run().ok().stdout;
    assert!(
        info.contains("does not run") && info.contains("no text encoder") && info.contains("onebit pull"),
        "{info}"
    );
}

#[test]
fn a_bench_of_an_image_shape_takes_its_own_options_alone() {
    let shape = ["bench", "--shape", "bonsai-image-4b"];
    onebit(&[&shape[..], &["-p", "7"]].concat()).run().fails(2, &["--size and --steps"]);
    onebit(&[&shape[..], &["--size", "500x500"]].concat()).run().fails(2, &["multiples of 16"]);
    onebit(&[&shape[..], &["--steps", "9"]].concat()).run().fails(2, &["--steps takes 1 to 4"]);
    onebit(&["bench", "--shape", "bonsai-8b", "--steps", "2"]).run().fails(2, &["shape of an image model"]);
}
