//! `--cache-repack`: repacked weights are kept in a file, found again, and never trusted too far.

use crate::support::{Copy, Output, arg, golden_gguf, onebit};
use std::fs;
use std::path::{Path, PathBuf};

fn ask(model: &str, extra: &[&str]) -> Output {
    let call = ["run", model, "Name three rivers", "--raw", "--max-tokens", "12", "--temperature", "0"];
    onebit(&[&call[..], extra].concat()).run()
}

/// The option for a folder.
fn kept_in(folder: &Path) -> String {
    format!("--cache-repack={}", folder.display())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn weights_are_kept_found_and_give_the_same_answer() {
    for case in ["qwen3_1bit_untied", "qwen35_2bit_ternary", "qwen3_1bit_affine"] {
        let model = Copy::of(case).with_template();
        let cache = model.dir.path().join("a folder/that is made");
        let option = kept_in(&cache);
        let plain = ask(model.arg(), &[]).ok();
        let first = ask(model.arg(), &[&option]).ok();
        assert!(first.stderr.contains("keeping repacked weights"), "{first:?}");
        let [file] = files(&cache).try_into().expect("one file");
        assert_eq!(file.extension().and_then(|e| e.to_str()), Some("weights"));
        let written = fs::read(&file).expect("the file");
        let second = ask(model.arg(), &[&option]).ok();
        assert!(!second.stderr.contains("repacked"), "{second:?}");
        assert_eq!([&first.stdout, &second.stdout], [&plain.stdout; 2]);
        assert_eq!(fs::read(&file).expect("the file"), written, "the second run only reads");
        // The variable means the same; the model may be moved, and offsets that are kept are another layout.
        let moved = model.dir.path().join("moved");
        fs::rename(&model.path, &moved).expect("a new name");
        let onebit_run = ["run", arg(&moved), "Name three rivers", "--raw", "-n", "12", "--temperature", "0"];
        let third = onebit(&onebit_run).env("ONEBIT_CACHE_REPACK", &cache).run().ok();
        assert!(!third.stderr.contains("repacked"), "{third:?}");
        assert_eq!(third.stdout, plain.stdout);
        ask(arg(&moved), &[&option, "--keep-biases"]).ok();
        assert_eq!(files(&cache).len(), 2);
    }
}

#[test]
fn a_file_that_is_not_what_it_should_be_is_made_anew() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let (cache, other) = (model.dir.path().join("kept"), model.dir.path().join("other"));
    let (option, other_option) = (kept_in(&cache), kept_in(&other));
    let right = ask(model.arg(), &[&option]).ok().stdout;
    ask(arg(&golden_gguf("gguf_qwen3_1bit_untied")), &[&other_option]).ok();
    let [file] = files(&cache).try_into().expect("one file");
    let [foreign] = files(&other).try_into().expect("one file");
    let written = fs::read(&file).expect("the file");
    let mut flipped = written.clone();
    *flipped.last_mut().expect("a byte") ^= 1;
    let bad = [
        (written[..written.len() - 1].to_vec(), "should be"),
        (b"onebit-w".to_vec(), "no file of repacked weights"),
        (vec![], "no file of repacked weights"),
        (vec![b'x'; 100], "no file of repacked weights"),
        (flipped, "index"),
        (fs::read(foreign).expect("a file"), "another model"),
    ];
    for (bytes, why) in bad {
        fs::write(&file, bytes).expect("a file");
        let output = ask(model.arg(), &[&option]).ok();
        assert!(output.stderr.contains(why) && output.stderr.contains("made anew"), "no {why:?} in {output:?}");
        assert_eq!(output.stdout, right);
        assert_eq!(fs::read(&file).expect("the file"), written);
    }
}

#[test]
fn a_changed_model_is_another_one() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let cache = model.dir.path().join("kept");
    ask(model.arg(), &[&kept_in(&cache)]).ok();
    let weights = fs::File::options().append(true).open(model.path.join("model.safetensors")).expect("the weights");
    weights.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(7)).expect("a time");
    ask(model.arg(), &[&kept_in(&cache)]).ok();
    assert_eq!(files(&cache).len(), 2);
}

#[test]
fn what_cannot_be_kept_is_said_and_answered_all_the_same() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let right = ask(model.arg(), &[]).ok().stdout;
    let taken = model.dir.path().join("a file");
    fs::write(&taken, "").expect("a file");
    let output = ask(model.arg(), &[&kept_in(&taken)]).ok();
    assert!(output.stderr.contains("not kept") && output.stderr.contains("a file"), "{output:?}");
    assert_eq!(output.stdout, right);
    let quiet = ask(model.arg(), &[&kept_in(&taken), "--quiet"]).ok();
    assert_eq!((quiet.stdout, quiet.stderr), (right, String::new()));
    ask(model.arg(), &["--cache-repack", "--no-mmap"]).fails(2, &["--no-mmap", "--cache-repack"]);
}

#[test]
fn info_finds_kept_weights_and_models_deletes_them() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let caches = model.dir.path().join("caches");
    let call = |args: &[&str]| onebit(args).env("XDG_CACHE_HOME", &caches).run().ok();
    assert!(call(&["info", model.arg(), "--json"]).json()["repacked"].is_null());
    call(&["run", model.arg(), "hello", "--raw", "-n", "1", "--cache-repack"]);
    let [file] = files(&caches.join("onebit/repack")).try_into().expect("one file");
    let bytes = fs::metadata(&file).expect("the file").len();
    let report = call(&["info", model.arg(), "--json"]).json();
    assert_eq!(report["repacked"]["path"], arg(&file));
    assert_eq!(report["repacked"]["bytes"], bytes);
    assert!(call(&["info", model.arg()]).stdout.contains(arg(&file)));
    let foreign = file.with_extension("txt");
    fs::write(&foreign, "not ours").expect("a file");
    let said = call(&["models", "--clear-cache"]).stdout;
    assert!(said.contains("1 files of repacked weights deleted"), "{said}");
    assert_eq!(files(&caches.join("onebit/repack")), [foreign]);
    assert!(call(&["models", "--clear-cache=/nonexistent/folder"]).stdout.contains("0 files"));
}
