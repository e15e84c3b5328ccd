//! The built-in model: it answers when none is named, says so, and is deterministic.

use crate::support::onebit;

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
