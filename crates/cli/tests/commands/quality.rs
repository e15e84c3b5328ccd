//! The built-in model's quality has a floor: perplexity in every format of activations and of keys and values, and
//! greedy text word for word, against numbers that `cargo xtask record-quality` wrote into `quality.json`.

use crate::support::onebit;
use serde_json::Value as Json;
use std::sync::OnceLock;

/// Rounding to integers moves the logarithm of a token's probability by about sqrt(2 KL). The KL of int9 and int8
/// activations and of q8 keys and values is at most 0.005 nats a token on these texts, so that one token moves by 0.1 and
/// the mean of N = 350 independent ones by 0.1 / sqrt(350) = 0.0053, which is 0.5% of the perplexity. More than three
/// times that is a sign of a broken kernel and not of rounding.
const INTEGERS: f64 = 0.02;

/// 4-bit keys and values round 16 times as coarsely as 8-bit ones; the error of attention weights is partly averaged
/// out. Measured: below 1%.
const Q4: f64 = 0.05;

/// f32 sums in another order: about 1e-6 of a logit, far less than this.
const SAME: f64 = 0.001;

fn recorded() -> Json {
    serde_json::from_str(include_str!("quality.json")).expect("the file that xtask wrote")
}

/// Runs the recorded command with more options, from the root of the repository.
fn perplexities(options: &[&str]) -> Vec<(String, f64)> {
    let recorded = recorded();
    let words = recorded["texts"]["arguments"].as_array().expect("arguments").iter();
    let mut args: Vec<&str> = words.map(|word| word.as_str().expect("a word")).collect();
    args.extend(options);
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let json = onebit(&args).dir(root).run().ok().json();
    let texts = json["texts"].as_array().expect("texts").iter();
    let name = |text: &Json| text["file"].as_str().expect("a name").to_owned();
    texts.map(|text| (name(text), text["model"]["perplexity"]["value"].as_f64().expect("a number"))).collect()
}

/// As a user gets it without options, measured once for all tests.
fn default() -> &'static [(String, f64)] {
    static DEFAULT: OnceLock<Vec<(String, f64)>> = OnceLock::new();
    DEFAULT.get_or_init(|| perplexities(&[]))
}

#[track_caller]
fn close(got: &[(String, f64)], wanted: &[(String, f64)], by: f64) {
    assert_eq!(got.len(), wanted.len());
    for ((name, got), (_, wanted)) in got.iter().zip(wanted) {
        assert!((got / wanted - 1.0).abs() <= by, "{name}: perplexity {got} for {wanted}, at most {by} apart");
    }
}

fn recorded_perplexities(kind: &str) -> Vec<(String, f64)> {
    let recorded = recorded();
    let list = recorded["texts"][kind].as_object().expect("perplexities").iter();
    list.map(|(name, value)| (name.clone(), value.as_f64().expect("a number"))).collect()
}

#[test]
fn perplexity_is_the_recorded_one_and_integers_keep_it() {
    let exact = perplexities(&["--activations", "f32"]);
    close(&exact, &recorded_perplexities("f32"), SAME);
    close(default(), &exact, INTEGERS);
    close(default(), &recorded_perplexities("default"), INTEGERS);
}

#[test]
fn quantised_keys_and_values_keep_the_perplexity_and_show_in_it() {
    for (format, by) in [("q8", INTEGERS), ("q4", Q4)] {
        let got = perplexities(&["--kv-quant", format]);
        close(&got, default(), by);
        // A number that did not move at all would say that the format is not used.
        assert!(got.iter().zip(default()).any(|((_, got), (_, other))| got != other), "{format}");
    }
}

/// The recorded prompts, each answered by the recorded command with more options.
#[track_caller]
fn answers_are_recorded(options: &[&str]) {
    let recorded = recorded();
    let arguments: Vec<&str> =
        recorded["greedy"]["arguments"].as_array().expect("arguments").iter().filter_map(Json::as_str).collect();
    let answers = recorded["greedy"]["answers"].as_object().expect("answers");
    assert_eq!(answers.len(), 3);
    for (prompt, answer) in answers {
        let output = onebit(&[&["run", "seedling", prompt], &arguments[..], options].concat()).run().ok().json();
        assert_eq!(output["answer"], *answer, "{prompt}");
    }
}

#[test]
fn greedy_text_is_the_recorded_one() {
    answers_are_recorded(&[]);
}

/// On a software adapter this takes longer than anybody expects, so it must be asked for.
#[test]
fn greedy_text_is_the_recorded_one_on_wgpu() {
    if std::env::var("ONEBIT_TEST_BACKEND").as_deref() != Ok("wgpu") {
        return eprintln!("not run: ONEBIT_TEST_BACKEND is not wgpu");
    }
    answers_are_recorded(&["--backend", "wgpu"]);
}
