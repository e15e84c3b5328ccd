//! The built-in models: they answer and draw when none is named, say so, and are deterministic.

use crate::support::{arg, onebit};
use onebit::builtin::BuiltIn;
use onebit::picture::png;
use serde_json::Value;
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
    let better = BuiltIn::IMAGE.name();
    assert!(said.contains("no model is named, so the built-in") && said.contains("simple shapes"), "{said}");
    assert!(said.contains("onebit pull image-ternary-4b"), "{said}");
    assert_eq!((unnamed.1, unnamed.2), (128, 128), "the size that it was made for");
    let has = |name: &str, value: &str| texts.iter().any(|(n, v)| n == name && v == value);
    assert!(has("model", better) && has("max_sequence_length", "64"), "{texts:?}");
    // By its name, from its own picture, and in the files of the repository.
    let (said, _, named) = draw(&[better]);
    assert!(!said.contains("no model is named"), "{said}");
    assert!(unnamed == named, "another picture by its name");
    let again = folder.path().join("again.png");
    let from = folder.path().join("p.png");
    onebit(&["image", "--from", arg(&from), "-o", arg(&again)]).run().ok();
    assert!(std::fs::read(&from).ok() == std::fs::read(&again).ok(), "another file from its own picture");
    let hash = |texts: &[(String, String)]| texts.iter().find(|(name, _)| name == "model_hash").cloned();
    let (_, texts_of_one_bit, one_bit) = draw(&["sprout"]);
    assert!(one_bit != named && hash(&texts_of_one_bit) != hash(&texts), "two models");
    let files = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/sprout");
    let (_, read, pixels) = draw(&[arg(&files)]);
    assert_eq!(hash(&read), hash(&texts_of_one_bit));
    assert!(pixels == one_bit, "another picture from the files");
}

/// Both on one sheet, in the size that they were made for, without a file or a network.
#[test]
fn the_picture_models_are_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("p.txt"), "a red circle\na blue square\n").expect("written");
    let args = ["image", "compare", "sprout", "sprout-ternary", "--prompts", "p.txt", "--json", "--quiet"];
    let json = onebit(&args).dir(&folder).run().ok().json();
    let cells = json["cells"].as_array().expect("cells");
    let of =
        |cell: &Value| (cell["model"].as_str().map(str::to_owned), cell["width"].as_u64(), cell["error"].is_null());
    let wanted = |name: &str| (Some(name.to_owned()), Some(128), true);
    let [one, other] = ["sprout", "sprout-ternary"].map(wanted);
    assert_eq!(cells.iter().map(of).collect::<Vec<_>>(), [one.clone(), one, other.clone(), other]);
    assert_ne!(cells[0]["model_hash"], cells[2]["model_hash"]);
    let sheet = std::fs::read(folder.path().join("sheet.png")).expect("the sheet");
    assert!(png::decode(Cursor::new(sheet)).is_ok());
}

/// What a picture takes is as said, from the smallest model on: a quarter off at most, which is what the system rounds.
#[test]
fn the_memory_of_a_small_picture_is_foretold() {
    let folder = tempfile::tempdir().expect("a folder");
    for more in [&[][..], &["--low-memory"], &["--size", "512x512"]] {
        let args = ["image", "--prompt", "a red circle", "--json", "--quiet", "--force", "-o", "p.png"];
        let json = onebit(&[&args, more].concat()).dir(&folder).run().ok().json();
        let [said, taken] = ["predicted_peak_bytes", "peak_rss"].map(|key| json[key].as_f64().expect("bytes"));
        println!("{more:?}: {said} said, {taken} taken");
        assert!((0.75..1.25).contains(&(said / taken)), "{more:?}: {said} said, {taken} taken");
    }
}

#[test]
fn the_picture_models_answer_no_prompts() {
    for (model, bits) in [("sprout", "1-bit"), ("sprout-ternary", "2-bit")] {
        let words = [&format!("{model} is")[..], &format!("onebit image {model}")];
        onebit(&["run", model, "Hello!"]).run().fails(1, &words);
        let info = onebit(&["info", model]).run().ok().stdout;
        for part in ["flux2", bits, "9.9 M parameters", "128x128"] {
            assert!(info.contains(part), "no {part:?} in {info}");
        }
    }
    onebit(&["doctor", BuiltIn::IMAGE.name()]).run().ok();
    let refused = onebit(&["image", "seedling", "--prompt", "A tree"]).run();
    refused.fails(1, &["the built-in sprout and sprout-ternary"]);
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
