//! The built-in models: they answer and draw when none is named, say so, and are deterministic.

use crate::support::{arg, onebit};
use onebit::picture::png;
use std::io::Cursor;

/// Greedy, f32: a trained model has margins far above rounding, so the text is the same on every tier.
const EXACT: [&str; 5] = ["--temperature", "0", "--activations", "f32", "--max-tokens"];

#[test]
fn it_answers_when_no_model_is_named_and_says_so() {
    let output = onebit(&["run", "What is 23 + 45?"]).run().ok();
    assert!(!output.stdout.trim().is_empty(), "{output:?}");
    assert!(output.stderr.contains("no model is named, so the built-in"), "{output:?}");
    assert!(output.stderr.contains("onebit pull "), "{output:?}");
}

#[test]
fn its_name_names_it_and_needs_no_note() {
    let output = onebit(&[&["run", "seedling", "Hello!"][..], &EXACT, &["8"]].concat()).run().ok();
    assert!(!output.stderr.contains("no model is named"), "{output:?}");
    onebit(&["info", "seedling"]).run().ok();
    onebit(&["info"]).run().ok();
}

#[test]
fn pictures_are_drawn_when_no_model_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let draw = |args: &[&str]| {
        let file = folder.path().join("p.png");
        let usual =
            ["image", "--prompt", "a red circle above a blue square", "--seed", "1", "--force", "-o", arg(&file)];
        let output = onebit(&[&usual, args].concat()).run().ok();
        let bytes = std::fs::read(&file).expect("the picture");
        (
            output.stderr,
            png::texts(Cursor::new(&bytes)).expect("texts"),
            png::decode(Cursor::new(&bytes)).expect("pixels"),
        )
    };
    let (said, texts, unnamed) = draw(&[]);
    assert!(said.contains("no model is named, so the built-in") && said.contains("simple shapes"), "{said}");
    assert!(said.contains("onebit pull image-ternary-4b"), "{said}");
    assert_eq!((unnamed.1, unnamed.2), (128, 128), "the size that it was made for");
    let has = |name: &str, value: &str| texts.iter().any(|(n, v)| n == name && v == value);
    assert!(has("model", "sprout") && has("max_sequence_length", "64"), "{texts:?}");
    // By its name, from its own picture, and in the files of the repository.
    let (said, _, named) = draw(&["sprout"]);
    assert!(!said.contains("no model is named"), "{said}");
    assert!(unnamed == named, "another picture by its name");
    let again = folder.path().join("again.png");
    let from = folder.path().join("p.png");
    onebit(&["image", "--from", arg(&from), "-o", arg(&again)]).run().ok();
    assert!(std::fs::read(&from).ok() == std::fs::read(&again).ok(), "another file from its own picture");
    let files = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/sprout");
    let (_, read, pixels) = draw(&[arg(&files)]);
    let hash = |texts: &[(String, String)]| texts.iter().find(|(name, _)| name == "model_hash").cloned();
    assert_eq!(hash(&read), hash(&texts));
    assert!(pixels == named, "another picture from the files");
}

#[test]
fn the_picture_model_answers_no_prompts() {
    onebit(&["run", "sprout", "Hello!"]).run().fails(1, &["sprout is", "onebit image sprout"]);
    let info = onebit(&["info", "sprout"]).run().ok().stdout;
    assert!(info.contains("flux2"), "{info}");
}

#[test]
fn every_tier_gives_the_same_greedy_text() {
    let answer = |tier: &str| {
        let args = [&["run", "seedling", "What is the moon?"][..], &EXACT, &["24"]].concat();
        onebit(&args).env("ONEBIT_CPU", tier).run().ok().stdout
    };
    let portable = answer("portable");
    assert!(portable.to_lowercase().contains("moon"), "{portable}");
    for tier in onebit_backend_cpu::Tier::available() {
        assert_eq!(answer(tier.name()), portable, "{}", tier.name());
    }
}

#[test]
fn bench_measures_sequences_together() {
    let args = ["bench", "seedling", "-p", "4", "-n", "4", "-r", "1", "--sequences", "1,3", "--json"];
    let json = onebit(&args).run().ok().json();
    let rates = json["sequences"].as_array().expect("a list");
    assert_eq!(rates.iter().map(|r| r["sequences"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(3)]);
    assert!(rates.iter().all(|r| r["tg_tok_s"].as_f64().is_some_and(|rate| rate > 0.0)), "{rates:?}");
    onebit(&["bench", "seedling", "-n", "0", "--sequences", "2"]).run().fails(2, &["--sequences", "-n"]);
    onebit(&["bench", "seedling", "--sequences", "0"]).run().fails(2, &["--sequences"]);
}
