//! Damaged, lying and foreign files: exit 1, one sentence that names the file, quickly, and never a panic.

use crate::support::{Copy, Output, golden_gguf, onebit};
use std::path::Path;
use std::time::Duration;

/// Far more than the work takes, because tests share the machine; a load that had begun would show.
const QUICK: Duration = Duration::from_secs(5);

/// `run` fails on it with a sentence that holds all of `parts`, mapped and unmapped alike.
#[track_caller]
fn refused(path: &Path, parts: &[&str]) -> Output {
    let path = path.to_str().expect("UTF-8");
    let output = onebit(&["run", path, "hi"]).run().fails(1, parts);
    assert!(output.time < QUICK, "{output:?}");
    onebit(&["run", path, "hi", "--no-mmap"]).run().fails(1, parts);
    output
}

fn model() -> Copy {
    Copy::of("qwen3_1bit_untied")
}

const WEIGHTS: &str = "model.safetensors";

/// A name, a change of the bytes, and a part of the sentence about it.
type Damage = (&'static str, fn(&mut Vec<u8>), &'static str);

#[test]
fn cut_off_and_too_long() {
    let cases: [Damage; 4] = [
        ("one byte", |b| b.truncate(b.len() - 1), "1 are missing"),
        ("a page", |b| b.truncate(b.len() - 4096), "4096 are missing"),
        ("half", |b| b.truncate(b.len() / 2), "are missing"),
        ("trailing", |b| b.extend([0; 16]), "16 bytes after its last tensor"),
    ];
    for (name, change, part) in cases {
        let model = model();
        model.edit(WEIGHTS, change);
        refused(&model.path, &[WEIGHTS, part]);
        println!("{name}");
    }
}

#[test]
fn something_else_under_the_name_of_weights() {
    let cases: [(&[u8], &str); 4] = [
        (b"", "is empty (0 bytes)"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "Git LFS pointer"),
        (b"abc", "cut off"),
    ];
    for (bytes, part) in cases {
        let model = model();
        std::fs::write(model.file(WEIGHTS), bytes).expect("written");
        refused(&model.path, &[WEIGHTS, part]);
    }
}

#[test]
fn lying_header_lengths() {
    for length in [0u64, 8, 1 << 31, 1 << 63, u64::MAX] {
        let model = model();
        model.edit(WEIGHTS, |b| b[..8].copy_from_slice(&length.to_le_bytes()));
        refused(&model.path, &[WEIGHTS]);
    }
}

#[test]
fn a_tensor_twice() {
    let model = model();
    model.edit(WEIGHTS, |b| {
        let text = String::from_utf8_lossy(b).into_owned();
        let (a, c) = ("model.layers.0.mlp.gate_proj.scales", "model.layers.1.mlp.gate_proj.scales");
        let at = text.find(a).expect("the name");
        b[at..at + a.len()].copy_from_slice(c.as_bytes());
    });
    refused(&model.path, &["model.layers.1.mlp.gate_proj.scales", "twice"]);
}

#[test]
fn shards_missing_or_elsewhere() {
    let index = "model.safetensors.index.json";
    let model = Copy::of("qwen3_mixed");
    let shard = "model-00002-of-00002.safetensors";
    std::fs::remove_file(model.file(shard)).expect("removed");
    refused(&model.path, &[shard, "finish the download"]);
    for name in ["../model.safetensors", "/etc/hostname", "a/../../x", r"C:\\x", r"\\\\?\\x"] {
        let model = Copy::of("qwen3_mixed");
        model.replace(index, shard, name);
        refused(&model.path, &["refused"]);
    }
    let model = Copy::of("qwen3_mixed");
    std::fs::write(model.file(index), "{").expect("written");
    refused(&model.path, &[index, "invalid JSON"]);
}

#[test]
fn configurations_that_do_not_fit() {
    let model = model();
    model.replace("config.json", "\"model_type\": \"qwen3\"", "\"model_type\": \"llama\"");
    refused(&model.path, &["llama", "qwen3, qwen35"]);

    let model = self::model();
    std::fs::remove_file(model.file("config.json")).expect("removed");
    refused(&model.path, &["config.json is missing"]);

    let model = self::model();
    model.replace("config.json", "\"bits\": 1", "\"bits\": 2");
    refused(&model.path, &["layer `", "config.json says 2-bit g128", "1-bit g128"]);

    let model = self::model();
    model.replace("config.json", "\"num_attention_heads\": 4", "\"num_attention_heads\": 8");
    refused(&model.path, &["q_proj", "wanted shape"]);

    let model = self::model();
    model.replace("config.json", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"");
    refused(&model.path, &["hidden_act", "gelu"]);
}

#[test]
fn kinds_that_cannot_run() {
    let model = model();
    std::fs::write(model.file("hadamard.json"), "{}").expect("written");
    refused(&model.path, &["Hadamard-rotated", "1-bit, groups of 128", "nonsense"]);

    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(dir.path().join("transformer-gemlite-int1")).expect("a folder");
    refused(dir.path(), &["image model (1-bit", "use `onebit image"]);

    refused(tempfile::tempdir().expect("a folder").path(), &["holds no model.safetensors"]);
}

#[test]
fn tokenizers_missing_or_foreign() {
    let model = model();
    std::fs::remove_file(model.file("tokenizer.json")).expect("removed");
    refused(&model.path, &["tokenizer.json is missing"]);
    std::fs::write(model.file("tokenizer.json"), "{}").expect("written");
    refused(&model.path, &["tokenizer.json"]);
    std::fs::copy(model.file("config.json"), model.file("tokenizer.json")).expect("copied");
    refused(&model.path, &["tokenizer.json"]);
    let model = self::model();
    std::fs::write(model.file("chat_template.jinja"), "{% if %}").expect("written");
    refused(&model.path, &["chat_template.jinja", "line 1"]);
}

/// A GGUF case with changed bytes.
fn gguf(change: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.gguf");
    let mut bytes = std::fs::read(golden_gguf("gguf_qwen3_1bit_untied")).expect("the case");
    change(&mut bytes);
    std::fs::write(&path, bytes).expect("written");
    (dir, path)
}

/// Offset of the dimension count of a tensor.
fn entry(bytes: &[u8], tensor: &str) -> usize {
    let at = bytes.windows(tensor.len()).position(|w| w == tensor.as_bytes()).expect("the tensor");
    at + tensor.len()
}

#[test]
fn gguf_files_that_lie() {
    let put = |b: &mut Vec<u8>, at: usize, bytes: &[u8]| b[at..at + bytes.len()].copy_from_slice(bytes);
    let named = |tensor: &'static str, skip: usize, bytes: Vec<u8>| {
        move |b: &mut Vec<u8>| {
            let at = entry(b, tensor) + skip;
            put(b, at, &bytes);
        }
    };
    let embed = "token_embd.weight";
    // After the name: dimension count, two dimensions, type, offset.
    let (_d, path) = gguf(named(embed, 4 + 16, 9999u32.to_le_bytes().to_vec()));
    refused(&path, &["model.gguf", "9999", embed, "41 (Q1_0)"]);
    let (_d, path) = gguf(named(embed, 4, 0u64.to_le_bytes().to_vec()));
    refused(&path, &[embed, "zero dimension"]);
    let (_d, path) = gguf(named(embed, 4, (1u64 << 62).to_le_bytes().to_vec()));
    refused(&path, &[embed]);
    let (_d, path) = gguf(named(embed, 0, 5u32.to_le_bytes().to_vec()));
    refused(&path, &[embed, "5 dimensions"]);
    let (_d, path) = gguf(named(embed, 0, u32::MAX.to_le_bytes().to_vec()));
    refused(&path, &[embed]);
    let (_d, path) = gguf(named(embed, 4 + 16 + 4, 7u64.to_le_bytes().to_vec()));
    refused(&path, &[embed, "alignment"]);
    for (at, bytes) in [
        (4, 9u32.to_le_bytes().to_vec()),
        (8, (1u64 << 60).to_le_bytes().to_vec()),
        (16, (1u64 << 60).to_le_bytes().to_vec()),
    ] {
        let (_d, path) = gguf(|b| put(b, at, &bytes));
        refused(&path, &["model.gguf"]);
    }
    let (_d, path) = gguf(|b| put(b, 0, b"GGML"));
    refused(&path, &["model.gguf"]);
    let (_d, path) = gguf(|b| b.truncate(b.len() - 100));
    refused(&path, &["cut off"]);
    let (_d, path) = gguf(|b| b.extend([1; 64]));
    refused(&path, &["after its last tensor"]);
    let (_d, path) = gguf(|b| b.truncate(5));
    refused(&path, &["model.gguf"]);
}

#[test]
fn helper_files_are_named_as_such() {
    for (architecture, part) in [("clip", "vision projector"), ("dspar", "dspar")] {
        // The same length as `qwen3`, so that nothing else moves.
        let name = format!("{architecture:a<5}");
        let (_d, path) = gguf(|b| {
            let at = entry(b, "general.architecture") + 4 + 8;
            assert_eq!(&b[at..at + 5], b"qwen3");
            b[at..at + 5].copy_from_slice(name.as_bytes());
        });
        let expected = if name == "clipa" { "clipa" } else { part };
        refused(&path, &[expected]);
    }
}

#[test]
fn a_folder_of_several_models_names_them() {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["a.gguf", "b.gguf"] {
        std::fs::copy(golden_gguf("gguf_qwen3_1bit_untied"), dir.path().join(name)).expect("copied");
    }
    refused(dir.path(), &["a.gguf, b.gguf"]);
}
