//! `onebit convert`: the same logits from the other container, or a refusal with the reason.

use crate::support::{Copy, arg, golden, golden_gguf, onebit};
use onebit::load::{self, Options};
use onebit_backend_cpu::{CpuBackend, CpuOptions};
use onebit_engine::{Engine, EngineOptions, PromptOutputs};
use onebit_models::{LoadOptions, Model};
use onebit_ops::{Activations, Backend, KvFormat};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Logits of 70 tokens with f32 activations.
fn logits(path: &Path) -> Vec<f32> {
    let source = load::open(path, &Options { mmap: true, q2_0_group: None }).unwrap_or_else(|e| panic!("{e:#}"));
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions::default()).expect("a backend"));
    let model = Model::load(&source, &*backend, LoadOptions::default(), &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
    let options = EngineOptions { kv: KvFormat::F32, activations: Some(Activations::F32), ..EngineOptions::new(128) };
    let mut engine = Engine::new(Arc::new(model), backend, options).expect("an engine");
    let tokens: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % 320).collect();
    let mut out = Vec::new();
    let read = engine.read_prompt(&tokens, &PromptOutputs::default(), |mut chunk| {
        out.extend(chunk.values.remove("logits").unwrap_or_default());
        ControlFlow::Continue(())
    });
    read.expect("logits");
    out
}

#[track_caller]
fn same_logits(a: &Path, b: &Path) {
    let (a, b) = (logits(a), logits(b));
    assert_eq!(a.len(), b.len());
    let (error, size) = a
        .iter()
        .zip(&b)
        .fold((0.0f64, 0.0f64), |(e, s), (a, b)| (e + f64::from(a - b).powi(2), s + f64::from(*a).powi(2)));
    // Equal weights; sums over reordered heads round differently, and hybrids of random weights make much of that.
    assert!((error / size).sqrt() < 1e-4, "{}", (error / size).sqrt());
}

/// Converts into a fresh place under this name.
fn converted(src: &Path, name: &str, extra: &[&str]) -> (tempfile::TempDir, std::path::PathBuf, String) {
    let dir = tempfile::tempdir().expect("a folder");
    let dst = dir.path().join(name);
    let output = onebit(&[&["convert", arg(src), arg(&dst)], extra].concat()).run().ok();
    assert!(output.stdout.is_empty());
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("the folder").collect();
    assert_eq!(left.len(), 1, "{left:?}");
    (dir, dst, output.stderr)
}

#[test]
fn mlx_to_gguf_and_back() {
    for case in [
        "qwen3_1bit_tied_yarn",
        "qwen3_1bit_untied",
        "qwen3_1bit_bf16",
        "qwen3_2bit_ternary",
        "qwen35_1bit_untied",
        "qwen35_1bit_tied_ld64",
        "qwen35_2bit_ternary",
    ] {
        let source = golden(case);
        let (_d, file, _) = converted(&source, "m.gguf", &[]);
        same_logits(&source, &file);
        let (_d, folder, _) = converted(&file, "back", &[]);
        same_logits(&source, &folder);
    }
}

#[test]
fn gguf_to_mlx_and_back() {
    for case in
        ["gguf_qwen3_1bit_tied_yarn", "gguf_qwen3_1bit_untied", "gguf_qwen3_2bit_ternary", "gguf_qwen35_1bit_mtp"]
    {
        let source = golden_gguf(case);
        let (_d, folder, _) = converted(&source, "folder", &[]);
        same_logits(&source, &folder);
        let (_d, file, _) = converted(&folder, "back.GGUF", &[]);
        same_logits(&source, &file);
    }
}

#[test]
fn twins_meet() {
    for (mlx, gguf) in [("qwen3_1bit_untied", "gguf_qwen3_1bit_untied"), ("qwen35_1bit_mtp", "gguf_qwen35_1bit_mtp")] {
        let (_d, folder, _) = converted(&golden_gguf(gguf), "folder", &[]);
        same_logits(&golden(mlx), &folder);
    }
}

#[test]
fn unconverted_files_get_their_norm_offsets() {
    let source = golden("qwen35_hf_bf16");
    let (_d, file, stderr) = converted(&source, "m.gguf", &[]);
    same_logits(&source, &file);
    assert!(stderr.contains("multi-token-prediction head are left out"), "{stderr}");
}

#[test]
fn packed_tensors_keep_every_byte() {
    let source = golden("qwen35_1bit_untied");
    let (_d, file, _) = converted(&source, "m.gguf", &[]);
    let (_d, folder, _) = converted(&file, "back", &[]);
    let open = |path: &Path| load::open(path, &Options::default()).expect("opens");
    let (a, b) = (open(&source), open(&folder));
    let mut compared = 0;
    for tensor in a.checkpoint().tensors() {
        let bytes = |s: &onebit::source::Source| s.checkpoint().bytes(&tensor.name).expect("read").map(<[u8]>::to_vec);
        // Several logarithms have the same decay; any of them may come back.
        if !tensor.name.ends_with("A_log") {
            assert_eq!(bytes(&a), bytes(&b), "{}", tensor.name);
            compared += 1;
        }
    }
    assert!(compared > 100);
}

#[test]
fn what_goes_along() {
    let source = Copy::of("qwen3_1bit_tied_yarn").with_template();
    let (_d, file, _) = converted(&source.path, "m.gguf", &[]);
    let (_d, folder, _) = converted(&file, "back", &[]);
    let info = |path: &Path| onebit(&["info", arg(path), "--json"]).run().ok().json();
    let (a, b, c) = (info(&source.path), info(&file), info(&folder));
    for key in ["chat_template", "thinking", "end_tokens", "temperature", "top_k", "top_p"] {
        assert_eq!(a["text"][key], b["text"][key], "{key}");
        assert_eq!(a["text"][key], c["text"][key], "{key}");
    }
    assert_eq!(a["model"], c["model"]);
    let answer = |path: &Path| {
        let args = [
            "run",
            arg(path),
            "Hello, wörld 🙂",
            "--think",
            "off",
            "--temperature",
            "0",
            "-q",
            "--max-tokens",
            "12",
            "--activations",
            "f32",
        ];
        onebit(&args).run().ok().stdout
    };
    assert_eq!(answer(&source.path), answer(&file));
    assert_eq!(answer(&source.path), answer(&folder));
}

#[test]
fn both_block_sizes_of_two_bits() {
    let source = golden("qwen3_2bit_ternary");
    let (_d, small, _) = converted(&source, "small.gguf", &["--gguf-group", "128"]);
    let (_e, large, _) = converted(&source, "large.gguf", &["--gguf-group", "64"]);
    let formats = |path: &Path| onebit(&["info", arg(path)]).run().ok().stdout;
    assert!(formats(&small).contains("PQ2_0") && formats(&large).contains("Q2_0"));
    same_logits(&small, &large);
    let (_d, back, _) = converted(&large, "back", &[]);
    assert!(formats(&back).contains("MLX affine 2-bit g128"), "equal neighbours join again");
}

#[test]
fn groups_that_straddle_value_heads_become_dense() {
    let (_d, file, stderr) = converted(&golden("qwen35_1bit_tied_ld64"), "m.gguf", &[]);
    assert!(stderr.contains("stored as F16"), "{stderr}");
    assert!(onebit(&["info", arg(&file)]).run().ok().stdout.contains("F16"));
}

#[test]
fn what_has_no_lossless_form_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let dst = dir.path().join("m.gguf");
    for (case, parts) in [
        ("qwen3_1bit_affine", &["does not follow from its scale", "Q1_0"][..]),
        ("qwen3_1bit_g64", &["groups of 128"]),
        ("qwen35_1bit_bf16_g64", &["groups of 128"]),
        ("qwen3_mixed", &["no lossless form in GGUF"]),
    ] {
        let source = golden(case);
        onebit(&["convert", arg(&source), arg(&dst)]).run().fails(1, &[&[case, "tensor `"], parts].concat());
        let left: Vec<_> = std::fs::read_dir(dir.path()).expect("the folder").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn places_that_are_wrong() {
    let (mlx, gguf) = (golden("qwen3_1bit_untied"), golden_gguf("gguf_qwen3_1bit_untied"));
    let dir = tempfile::tempdir().expect("a folder");
    let new = |name: &str| dir.path().join(name);
    onebit(&["convert", arg(&mlx), arg(dir.path())]).run().fails(1, &["exists already"]);
    onebit(&["convert", arg(&mlx), arg(&new("x"))]).run().fails(1, &["in safetensors already"]);
    onebit(&["convert", arg(&gguf), arg(&new("x.gguf"))]).run().fails(1, &["a GGUF file already"]);
    onebit(&["convert", arg(&gguf), arg(&new("x")), "--gguf-group", "128"])
        .run()
        .fails(2, &["--gguf-group", "leave it out"]);
    onebit(&["convert", "./nowhere", arg(&new("x.gguf"))]).run().fails(1, &["./nowhere does not exist"]);
    onebit(&["convert", arg(&mlx), arg(&new("no/such/x.gguf"))]).run().fails(1, &["x.gguf"]);
}
