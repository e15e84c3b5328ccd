//! `onebit chat` with lines from a pipe.

use crate::support::{Copy, Output, onebit};

fn chat(model: &Copy, lines: &str, extra: &[&str]) -> Output {
    let args = [&["chat", model.arg(), "--max-tokens", "6", "--temperature", "0", "--think", "off"], extra].concat();
    onebit(&args).stdin(lines).env("XDG_STATE_HOME", model.dir.path().join("state")).run()
}

fn model(case: &str) -> Copy {
    Copy::of(case).with_template()
}

#[test]
fn answers_and_commands() {
    let model = model("qwen3_1bit_untied");
    let output =
        chat(&model, "hello\n/help\n/stats\n/nope\n/system be brief\n/system\nagain\n/quit\nnever\n", &[]).ok();
    assert!(output.stdout.lines().count() >= 2, "{output:?}");
    for part in ["/clear", "last answer:", "/nope is no command", "be brief"] {
        assert!(output.stderr.contains(part), "no {part:?} in {output:?}");
    }
    assert!(!output.stderr.contains("error"), "{output:?}");
}

#[test]
fn a_conversation_goes_on_from_its_cache() {
    for case in ["qwen3_1bit_untied", "qwen35_1bit_untied"] {
        let model = model(case);
        let output = chat(&model, "a first message of some length\nsecond\n/stats\n", &[]).ok();
        let stats = output.stderr.lines().find(|l| l.starts_with("last answer:")).expect("statistics");
        assert!(stats.contains("cached)"), "{case}: {stats}");
    }
}

#[test]
fn cached_answers_equal_cold_ones() {
    for case in ["qwen3_1bit_untied", "qwen35_1bit_untied"] {
        let model = model(case);
        let saved = model.dir.path().join("talk.json");
        let save = format!("/save {}\n", saved.display());
        let warm = chat(&model, &format!("one\n{save}two\n"), &["--activations", "f32"]).ok();
        let cold = chat(&model, "two\n", &["--activations", "f32", "--load", saved.to_str().expect("UTF-8")]).ok();
        assert!(warm.stdout.ends_with(&cold.stdout), "{case}: {warm:?} {cold:?}");
    }
}

#[test]
fn saved_loaded_taken_back() {
    let model = model("qwen3_1bit_untied");
    let saved = model.dir.path().join("talk.json");
    let path = saved.display();
    let output = chat(
        &model,
        &format!("/system S\nhello\n/undo\nbye\n/retry\n/save {path}\n/clear\n/undo\n/load {path}\n/load /nowhere\n"),
        &[],
    )
    .ok();
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&saved).expect("saved")).expect("JSON");
    let messages = json["messages"].as_array().expect("messages");
    let roles: Vec<&str> = messages.iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert_eq!((&messages[0]["content"], &messages[1]["content"]), (&"S".into(), &"bye".into()));
    assert!(output.stderr.contains("loaded 2 messages") && output.stderr.contains("/nowhere"), "{output:?}");
}

#[test]
fn texts_of_several_lines() {
    let model = model("qwen3_1bit_untied");
    let saved = model.dir.path().join("talk.json");
    let lines = format!("\"\"\"one\n/quit\nthree\"\"\"\nfour \\\nfive\n/save {}\n", saved.display());
    chat(&model, &lines, &[]).ok();
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&saved).expect("saved")).expect("JSON");
    let said: Vec<&str> = json["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .filter(|m| m["role"] == "user")
        .filter_map(|m| m["content"].as_str())
        .collect();
    assert_eq!(said, ["one\n/quit\nthree", "four \nfive"]);
}

#[test]
fn a_message_that_is_too_long_is_taken_back() {
    let model = model("qwen3_1bit_untied");
    let output = chat(&model, &format!("{}\nshort\n", "long ".repeat(300)), &["--ctx", "128"]).ok();
    assert!(output.stderr.contains("error: the prompt has") && output.stderr.contains("taken back"), "{output:?}");
    assert!(!output.stdout.trim().is_empty(), "{output:?}");
}

#[test]
fn history_is_kept_unless_it_is_not_wanted() {
    let model = model("qwen3_1bit_untied");
    let file = model.dir.path().join("state/onebit/chat_history");
    chat(&model, "hello\n", &["--no-history"]).ok();
    assert!(!file.exists());
    chat(&model, "hello\n", &[]).ok();
    assert!(std::fs::read_to_string(&file).expect("a history").contains("hello"));
}
