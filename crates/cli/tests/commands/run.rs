//! `onebit run` on tiny models.

use crate::support::{Copy, Output, arg, golden, golden_gguf, onebit};
use clap::Parser;
use onebit::answer::{self, Ask, Sink};
use onebit::args::{Cli, Command, Think};
use onebit::prompt;
use onebit::session::{Session, Wishes};
use onebit_engine::{SamplingParams, TextEvent};
use onebit_text::Message;
use std::ops::ControlFlow;
use std::time::Duration;

/// A short answer of the dense tiny model with its template.
fn ask(model: &Copy, extra: &[&str]) -> Output {
    onebit(&[&["run", model.arg(), "Name three rivers", "--max-tokens", "24"][..], extra].concat()).run()
}

#[test]
fn the_answer_is_on_stdout_and_the_rest_on_stderr() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let output = ask(&model, &["--think", "off", "--seed", "3"]).ok();
    assert!(output.stdout.ends_with('\n') && output.stdout.len() > 1, "{output:?}");
    assert!(output.stderr.contains("prompt tokens") && output.stderr.contains("seed 3"), "{output:?}");
    // The makers' sampling, as generation_config.json has it.
    assert!(output.stderr.contains("temperature 0.6, top-k 20, top-p 0.95"), "{output:?}");
    assert!(!output.stderr.contains('\x1b'), "colours without a terminal: {output:?}");
    let quiet = ask(&model, &["--think", "off", "--seed", "3", "--quiet"]).ok();
    assert_eq!((quiet.stdout, quiet.stderr), (output.stdout, String::new()));
}

#[test]
fn equal_seeds_give_equal_answers() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let answer = |seed: &str, threads: &str| {
        ask(&model, &["--think", "off", "-q", "--seed", seed, "--threads", threads]).ok().stdout
    };
    assert_eq!(answer("7", "1"), answer("7", "2"));
    assert_ne!(answer("7", "1"), answer("8", "1"));
    let silent = || ask(&model, &["--think", "off", "--json"]).ok().json()["sampling"]["seed"].as_u64();
    let (a, b) = (silent().expect("a seed"), silent().expect("a seed"));
    assert_ne!(a, b, "no seed twice");
    let said = ask(&model, &["--think", "off", "-q", "--seed", &a.to_string()]).ok().stdout;
    assert!(!said.is_empty());
}

#[test]
fn greedy_takes_no_seed() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let answer = |seed: &str| ask(&model, &["--think", "off", "-q", "--temperature", "0", "--seed", seed]).ok().stdout;
    assert_eq!(answer("1"), answer("2"));
}

#[test]
fn every_option_of_the_answer_changes_it() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let answer = |extra: &[&str]| ask(&model, &[&["--think", "off", "-q", "--seed", "5"], extra].concat()).ok().stdout;
    let plain = answer(&[]);
    let first = ask(&model, &["--think", "off", "-q", "--temperature", "0"]).ok().stdout;
    for extra in [
        &["--temperature", "3"][..],
        &["--top-k", "1"],
        &["--top-p", "0.05"],
        &["--min-p", "0.9"],
        &["--repeat-penalty", "50"],
        &["--presence-penalty", "2", "--temperature", "0"],
        &["--frequency-penalty", "2", "--temperature", "0"],
        &["--system", "Answer in French"],
        &["--max-tokens", "2"],
    ] {
        let other = answer(extra);
        let same = if extra.contains(&"0") && extra.contains(&"2") { &first } else { &plain };
        assert_ne!(&other, same, "{extra:?}");
    }
    // The likeliest token is forbidden.
    let json = ask(&model, &["--think", "off", "--temperature", "0", "--json", "--max-tokens", "1"]).ok().json();
    assert_eq!(json["usage"]["completion_tokens"], 1);
}

#[test]
fn json_has_everything() {
    let model = Copy::of("qwen35_1bit_untied").with_template();
    let output = ask(&model, &["--think", "6", "--seed", "1", "--json"]).ok();
    let json = output.json();
    assert_eq!(output.stdout.lines().count(), 1);
    assert_eq!(json["model"], "model");
    assert_eq!(json["finish_reason"], "length");
    assert_eq!(json["usage"]["completion_tokens"], 24);
    assert_eq!(json["sampling"]["temperature"], 0.6);
    assert_eq!(json["sampling"]["seed"], 1);
    assert!(json["timings"]["prompt_tok_s"].as_f64().is_some_and(|v| v > 0.0), "{json}");
    // A random model does not stop thinking by itself: the budget closes the block, and an answer follows.
    assert!(json["usage"]["reasoning_tokens"].as_u64().is_some_and(|n| n <= 6), "{json}");
    assert!(json["answer"].as_str().is_some_and(|a| !a.is_empty()), "{json}");
}

#[test]
fn thinking_goes_to_stderr() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let run = |extra: &[&str]| ask(&model, &[&["--seed", "2", "--temperature", "0"], extra].concat()).ok();
    let (on, off) = (run(&["--think", "8"]), run(&["--think", "off"]));
    let json = run(&["--think", "8", "--json"]).json();
    let thinking = json["thinking"].as_str().expect("thinking");
    assert!(!thinking.is_empty() && on.stderr.contains(thinking), "{on:?} {json}");
    assert!(!on.stdout.contains("<think>") && !off.stdout.contains("<think>"));
    assert_eq!(on.stdout.trim_end(), json["answer"].as_str().expect("an answer").trim_end());
    // A model that thinks to the end has answered nothing, and that is said.
    let endless = run(&["--think", "on"]);
    if endless.stdout.trim().is_empty() {
        assert!(endless.stderr.contains("--think off"), "{endless:?}");
    }
}

#[test]
fn the_answer_is_cut_before_a_stop_string() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let run = |extra: &[&str]| ask(&model, &[&["--think", "off", "--temperature", "0"], extra].concat()).ok();
    let whole = run(&["-q"]).stdout;
    let middle: String = whole.trim_end().chars().skip(4).take(3).collect();
    let at = whole.find(&middle).expect("a part of it");
    let cut = run(&["--stop", "never said", "--stop", &middle]);
    assert_eq!(cut.stdout.trim_end_matches('\n'), whole[..at].trim_end_matches('\n'), "{middle:?}");
    assert!(cut.stderr.contains("ended by --stop"), "{cut:?}");
}

#[test]
fn stdin_is_the_prompt_or_is_appended() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let tokens = |args: &[&str], stdin: Option<&str>| {
        let args = [&["run", "--think", "off", "--max-tokens", "1", "--json"], args].concat();
        let call = onebit(&args);
        let output = match stdin {
            Some(text) => call.stdin(text).run(),
            None => call.run(),
        };
        output.ok().json()["usage"]["prompt_tokens"].as_u64().expect("a count")
    };
    let by_word = tokens(&[model.arg(), "hello there"], None);
    assert_eq!(tokens(&[model.arg()], Some("hello there")), by_word);
    assert_eq!(tokens(&["-m", model.arg()], Some("hello there")), by_word);
    assert!(tokens(&["-m", model.arg(), "hello there"], Some("and more text")) > by_word + 5);
    let output = onebit(&["run", model.arg()]).stdin(vec![0xff, 0xfe]).run();
    output.fails(1, &["stdin is not UTF-8"]);
}

#[test]
fn the_model_may_come_from_the_environment() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let run = |args: &[&str]| onebit(args).env("ONEBIT_MODEL", &model.path).env("ONEBIT_MAX_TOKENS", "2").run();
    run(&["run", "hello"]).ok();
    run(&["info"]).ok();
}

#[test]
fn variables_for_a_whole_shell_do_not_get_in_the_way() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let plain = golden("qwen3_1bit_untied");
    let run = |args: &[&str], think: &str| {
        let args = [&["run", "--max-tokens", "4", "--json"], args].concat();
        onebit(&args).env("ONEBIT_SYSTEM", "be brief").env("ONEBIT_THINK", think).run()
    };
    let tokens = |output: Output| output.ok().json()["usage"]["prompt_tokens"].as_u64().expect("a count");
    let asked = tokens(onebit(&["run", "--max-tokens", "4", "--json", model.arg(), "hi", "--think", "off"]).run());
    assert!(tokens(run(&[model.arg(), "hi"], "off")) > asked, "the system message is there");
    assert_eq!(tokens(run(&[model.arg(), "hi", "--raw"], "off")), 2);
    run(&[arg(&plain), "hi"], "off").ok();
    run(&[model.arg(), "hi"], "perhaps").fails(2, &["ONEBIT_THINK is `perhaps`"]);
}

#[test]
fn a_folder_with_a_foreign_name() {
    let model = Copy::named("qwen3_1bit_untied", "モデル　é Кот").with_template();
    let output = ask(&model, &["--think", "off", "--json"]).ok();
    assert_eq!(output.json()["model"], "モデル　é Кот");
    std::fs::remove_file(model.file("tokenizer.json")).expect("removed");
    ask(&model, &[]).fails(1, &["モデル　é Кот", "tokenizer.json is missing"]);
}

#[test]
fn without_a_template_the_prompt_is_continued() {
    let case = golden("qwen3_1bit_untied");
    let run = |extra: &[&str]| {
        let args = [&["run", arg(&case), "Once upon a time", "--max-tokens", "8", "--seed", "1"], extra].concat();
        onebit(&args).run().ok()
    };
    let (plain, raw) = (run(&[]), run(&["--raw"]));
    assert!(plain.stderr.contains("no chat template") && !raw.stderr.contains("no chat template"));
    assert_eq!(plain.stdout, raw.stdout);
    onebit(&["chat", arg(&case)]).run().fails(1, &["no chat template", "--raw"]);
}

#[test]
fn every_format_and_backend_answers() {
    let folders = ["qwen3_2bit_ternary", "qwen3_mixed", "qwen35_2bit_ternary", "qwen35_hf_bf16", "qwen35_1bit_mtp"];
    let files = ["gguf_qwen3_1bit_untied", "gguf_qwen3_2bit_ternary", "gguf_qwen35_1bit_mtp"];
    let models = folders.iter().map(|c| golden(c)).chain(files.iter().map(|c| golden_gguf(c)));
    for model in models {
        for backend in ["cpu", "reference"] {
            let args = ["run", arg(&model), "--raw", "hello", "--max-tokens", "3", "--backend", backend, "--no-mmap"];
            onebit(&args).run().ok();
        }
    }
}

#[test]
fn the_context_is_obeyed() {
    let model = Copy::of("qwen35_1bit_untied").with_template();
    let run = |ctx: &str, prompt: &str| {
        onebit(&["run", model.arg(), prompt, "--think", "off", "--temperature", "0", "--ctx", ctx]).run()
    };
    let full = run("64", "hello").ok();
    assert!(full.stderr.contains("the context is full"), "{full:?}");
    run("64", &"long ".repeat(200)).fails(1, &["prompt has", "context of 64"]);
    for kv in ["none", "q8", "q4"] {
        let args = ["run", model.arg(), "hi", "--max-tokens", "4", "--kv-quant", kv, "--activations", "f32"];
        onebit(&args).run().ok();
    }
}

/// Counts what a person would see.
#[derive(Default)]
struct Seen {
    hints: usize,
    answered_before_the_hint: bool,
    answered: bool,
}

impl Sink for Seen {
    fn piece(&mut self, event: &TextEvent) -> ControlFlow<()> {
        self.answered |= matches!(event, TextEvent::Answer(text) if !text.trim().is_empty());
        ControlFlow::Continue(())
    }

    fn long_wait(&mut self) {
        self.hints += 1;
        self.answered_before_the_hint = self.answered;
    }
}

#[test]
fn one_hint_when_thinking_takes_long() {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    let cli = Cli::parse_from(["onebit", "run", model.arg(), "hi", "--think", "12", "--seed", "1"]);
    let Command::Run(args) = cli.command else { panic!("a run") };
    let hints = |think: Think, patience: Duration| {
        let wishes = Wishes { checkpoints: 0, quiet: true };
        let mut session = Session::open(Some(model.arg()), &args.run, wishes).expect("a session");
        let prepared = prompt::chat(&session.text, &[Message::user("hi")], &[], Some(think)).expect("a prompt");
        let sampling = SamplingParams { seed: Some(1), ..SamplingParams::default() };
        let ask = Ask { sampling: &sampling, max_tokens: Some(30), stop: &[], cache: false, patience };
        let mut seen = Seen::default();
        answer::ask(&mut session, prepared, &ask, &mut seen).expect("an answer");
        assert!(!seen.answered_before_the_hint);
        seen.hints
    };
    assert_eq!(hints(Think::Budget(12), Duration::ZERO), 1);
    assert_eq!(hints(Think::Budget(12), Duration::from_secs(3600)), 0);
    assert_eq!(hints(Think::Off, Duration::ZERO), 0);
}
