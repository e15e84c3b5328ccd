//! Folders: shards and their index, the layout of the HF cache, and what else may lie around.

use std::fs;
use std::path::Path;

use onebit_checkpoint::safetensors::Index;
use onebit_checkpoint::{Problem, open};

use crate::support::{Gguf, MAPPED, folder, golden, kv_str, opened, refused, t, tensors};

const INDEX: &str = "model.safetensors.index.json";

fn index(map: &[(&str, &str)]) -> Vec<u8> {
    let entries: Vec<String> = map.iter().map(|(tensor, shard)| format!("{tensor:?}:{shard:?}")).collect();
    format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#, entries.join(",")).into_bytes()
}

fn shard(tensor: &str) -> Vec<u8> {
    tensors(&[(tensor, "F32", 4, &[2, 2])])
}

fn three_shards() -> tempfile::TempDir {
    folder(&[
        (INDEX, &index(&[("a", "s1.safetensors"), ("b", "s2.safetensors"), ("c", "s3.safetensors")])),
        ("s1.safetensors", &shard("a")),
        ("s2.safetensors", &shard("b")),
        ("s3.safetensors", &shard("c")),
    ])
}

#[test]
fn shards_open_as_one_model_by_folder_or_index() {
    let dir = three_shards();
    for path in [dir.path().to_owned(), dir.path().join(INDEX)] {
        let c = opened(&path);
        assert_eq!(c.files(), ["s1.safetensors", "s2.safetensors", "s3.safetensors"]);
        for name in ["a", "b", "c"] {
            assert_eq!(c.matrix(name).unwrap().unwrap().rows, 2);
        }
    }
    // One shard by its own name is that file alone.
    assert_eq!(opened(&dir.path().join("s2.safetensors")).tensors().len(), 1);
}

#[test]
fn a_missing_shard_is_named() {
    let dir = three_shards();
    fs::remove_file(dir.path().join("s2.safetensors")).unwrap();
    let error = refused(dir.path());
    assert!(matches!(&*error.problem, Problem::MissingShard(name) if name == "s2.safetensors"), "{error}");
}

#[test]
fn a_truncated_middle_shard_is_named_with_the_missing_bytes() {
    for cut in [1, 5, 16] {
        let dir = three_shards();
        let bytes = shard("b");
        fs::write(dir.path().join("s2.safetensors"), &bytes[..bytes.len() - cut]).unwrap();
        let text = refused(dir.path()).to_string();
        assert!(text.contains("s2.safetensors: is cut off") && text.contains(&format!("{cut} are missing")), "{text}");
    }
}

#[test]
fn an_index_that_promises_what_a_shard_lacks_is_refused() {
    let dir = three_shards();
    let map =
        index(&[("a", "s2.safetensors"), ("b", "s2.safetensors"), ("c", "s3.safetensors"), ("x", "s1.safetensors")]);
    fs::write(dir.path().join(INDEX), map).unwrap();
    assert!(refused(dir.path()).to_string().contains("places tensor `a` in shard `s2.safetensors`"));
    fs::write(dir.path().join("s1.safetensors"), shard("b")).unwrap();
    assert!(refused(dir.path()).to_string().contains("`b` appears twice"));
}

#[test]
fn shard_names_that_leave_the_folder_are_refused() {
    for name in [
        "../x",
        "..",
        ".",
        "",
        "/etc/hostname",
        "a/../../x",
        "a/./b",
        "a//b",
        "a/",
        "C:\\x",
        "C:x",
        "\\\\?\\x",
        "a\\b",
        "a\0b",
        "a\nb",
    ] {
        let text = serde_like(name);
        let bytes = format!(r#"{{"weight_map":{{"a":"{text}"}}}}"#);
        let problem = Index::parse(bytes.as_bytes()).unwrap_err();
        assert!(matches!(problem, Problem::UnsafeShard(_)), "{name:?}: {problem}");
        let dir = folder(&[(INDEX, bytes.as_bytes())]);
        let error = refused(dir.path());
        assert!(matches!(*error.problem, Problem::UnsafeShard(_)), "{name:?}: {error}");
    }
    for name in ["model-00001-of-00002.safetensors", "shards/a.safetensors", "モデル é.safetensors", "..a", "a..b"]
    {
        assert!(Index::parse(&index(&[("a", name)])).is_ok(), "{name}");
    }
}

/// JSON escapes for a name.
fn serde_like(name: &str) -> String {
    name.chars()
        .map(|c| match c {
            '\\' => "\\\\".to_owned(),
            c if c.is_control() => format!("\\u{:04x}", c as u32),
            c => c.to_string(),
        })
        .collect()
}

#[test]
fn broken_indexes_are_errors() {
    for bytes in [&b"{"[..], b"[]", b"{}", b"{\"weight_map\":[]}", b"{\"weight_map\":{\"a\":1}}", b"\xff\xfe"] {
        let dir = folder(&[(INDEX, bytes)]);
        assert!(matches!(*refused(dir.path()).problem, Problem::Json { part: "index", .. }));
    }
    let dir = folder(&[(INDEX, b"{\"weight_map\":{}}")]);
    assert!(matches!(*refused(dir.path()).problem, Problem::NoWeights(_)));
    let dir = folder(&[(INDEX, b"version https://git-lfs.github.com/spec/v1\n")]);
    assert!(matches!(*refused(dir.path()).problem, Problem::LfsPointer(_)));
}

#[cfg(unix)]
#[test]
fn links_of_the_hf_cache_work_and_links_out_of_the_folder_do_not() {
    use std::os::unix::fs::symlink;
    let root = tempfile::tempdir().unwrap();
    let repo = root.path().join("models--o--m");
    let snapshot = repo.join("snapshots/0123abc");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repo.join("blobs")).unwrap();
    let link = |name: &str, blob: &str, bytes: &[u8]| {
        fs::write(repo.join("blobs").join(blob), bytes).unwrap();
        symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
    };
    link(INDEX, "b0", &index(&[("a", "s1.safetensors"), ("b", "s2.safetensors")]));
    link("config.json", "b1", br#"{"model_type":"qwen3"}"#);
    link("s1.safetensors", "b2", &shard("a"));
    link("s2.safetensors", "b3", &shard("b"));
    let c = opened(&snapshot);
    assert_eq!((c.tensors().len(), c.meta("model_type").and_then(|m| m.as_str())), (2, Some("qwen3")));

    // Copied instead of linked, as on Windows without symlink rights.
    fs::remove_file(snapshot.join("s2.safetensors")).unwrap();
    fs::copy(repo.join("blobs/b3"), snapshot.join("s2.safetensors")).unwrap();
    opened(&snapshot);

    // A link whose blob is gone is a missing shard.
    fs::remove_file(repo.join("blobs/b2")).unwrap();
    assert!(refused(&snapshot).to_string().contains("shard `s1.safetensors` is missing"));

    // A link to somewhere else is refused, from a snapshot and from a plain folder.
    let outside = root.path().join("outside.safetensors");
    fs::write(&outside, shard("a")).unwrap();
    let plain = three_shards();
    for folder in [snapshot.as_path(), plain.path()] {
        let _ = fs::remove_file(folder.join("s1.safetensors"));
        symlink(&outside, folder.join("s1.safetensors")).unwrap();
        assert!(matches!(*refused(folder).problem, Problem::UnsafeShard(_)));
    }
}

#[test]
fn names_outside_ascii_open_and_are_printed_intact() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("モデル　é");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("model.safetensors"), shard("a")).unwrap();
    assert_eq!(opened(&dir).tensors().len(), 1);
    fs::write(dir.join("model.safetensors"), b"").unwrap();
    assert!(refused(&dir).to_string().contains("モデル　é"));
}

#[test]
fn what_a_folder_lacks_is_said() {
    let dir = folder(&[]);
    assert!(refused(dir.path()).to_string().contains("it is empty"));
    let dir = folder(&[("README.md", b"x"), ("b1.incomplete", b"x")]);
    assert!(refused(dir.path()).to_string().contains("`b1.incomplete` is an unfinished download"));
    let dir = folder(&[("README.md", b"x")]);
    assert!(refused(dir.path()).to_string().contains("it holds README.md"));
    assert!(matches!(*open(Path::new("/no/such/model"), &MAPPED).unwrap_err().problem, Problem::NotFound));
}

#[test]
fn of_several_gguf_files_the_user_must_choose_but_helpers_do_not_count() {
    let gguf = Gguf::new(&[t("a", &[8], 0, 0)], 32).bytes();
    let dir = folder(&[("m-Q1_0.gguf", &gguf), ("m-mmproj-BF16.gguf", &gguf), ("m-dspark-Q4_1.gguf", &gguf)]);
    assert_eq!(opened(dir.path()).files(), ["m-Q1_0.gguf"]);
    fs::write(dir.path().join("m-PQ2_0.gguf"), &gguf).unwrap();
    let text = refused(dir.path()).to_string();
    assert!(text.contains("m-PQ2_0.gguf, m-Q1_0.gguf"), "{text}");
}

#[test]
fn a_gguf_model_goes_before_a_stray_safetensors_file() {
    let gguf = Gguf { key_values: vec![kv_str("general.architecture", "qwen3")], ..Gguf::new(&[], 0) }.bytes();
    let dir = folder(&[("model.gguf", &gguf), ("expected.safetensors", &shard("a"))]);
    assert!(opened(dir.path()).gguf().is_some());
}

#[test]
fn a_gguf_twin_holds_the_same_weights_as_its_mlx_original() {
    let mlx = opened(&golden("qwen3_1bit_tied_yarn"));
    let twin = opened(&golden("gguf_qwen3_1bit_tied_yarn"));
    let names = [
        ("model.embed_tokens", "token_embd"),
        ("model.layers.0.self_attn.q_proj", "blk.0.attn_q"),
        ("model.layers.2.self_attn.o_proj", "blk.2.attn_output"),
        ("model.layers.1.mlp.down_proj", "blk.1.ffn_down"),
    ];
    for (a, b) in names {
        let (a, b) = (mlx.matrix(a).unwrap().unwrap(), twin.matrix(b).unwrap().unwrap());
        assert_eq!((a.rows, a.cols), (b.rows, b.cols));
        let (mut x, mut y) = (vec![0.0; a.cols], vec![0.0; a.cols]);
        for row in 0..a.rows {
            a.decode_row(row, &mut x);
            b.decode_row(row, &mut y);
            assert_eq!(x, y, "row {row}");
        }
    }
    let norm = |c: &onebit_checkpoint::Checkpoint, name: &str| c.dense(name).unwrap().unwrap();
    assert_eq!(norm(&mlx, "model.norm.weight"), norm(&twin, "output_norm.weight"));
}

#[test]
fn a_mixed_pack_in_two_shards_reads_every_override() {
    let c = opened(&golden("qwen3_mixed"));
    let format = |base: &str| c.matrix(base).unwrap().unwrap().format.to_string();
    assert_eq!(c.files().len(), 2);
    assert_eq!(format("lm_head"), "MLX affine 4-bit g64 F16");
    assert_eq!(format("model.embed_tokens"), "MLX affine 2-bit g128 F16");
    assert_eq!(format("model.layers.0.mlp.down_proj"), "MLX affine 8-bit g64 F16");
    assert_eq!(format("model.layers.1.mlp.gate_proj"), "MLX affine 4-bit g32 F16");
    assert_eq!(format("model.layers.1.self_attn.v_proj"), "F16");
    assert_eq!(format("model.layers.2.mlp.up_proj"), "MLX affine 1-bit g128 F16");
}

/// Opening a pipe would wait for somebody who writes to it.
#[cfg(unix)]
#[test]
fn a_pipe_in_a_folder_is_refused() {
    for name in ["s2.safetensors", "config.json"] {
        let dir = three_shards();
        let path = dir.path().join(name);
        if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = refused(dir.path()).to_string();
        assert!(error.contains(name) && error.contains("neither a file nor a folder"), "{error}");
    }
}
