//! Stop strings and split characters: cuts at every byte, in streams and whole.

use crate::support::{Setup, Streamed, cut};
use serde_json::{Value, json};

/// The same content and reason in a stream and whole, however the text is cut.
#[track_caller]
fn check(text: &'static str, fields: Value, content: &str, reasoning: &str) {
    let (site, cuts) = Setup::default().says_in_cuts(text);
    for seed in cuts {
        let mut fields = fields.clone();
        fields["seed"] = json!(seed);
        let whole = site.chat(fields.clone());
        let message = &whole.json["choices"][0]["message"];
        assert_eq!(message["content"], content, "whole, cut at {seed}");
        assert_eq!(message["reasoning_content"].as_str().unwrap_or_default(), reasoning, "cut at {seed}");
        let streamed = site.chat_stream(fields);
        assert_eq!((streamed.content.as_str(), streamed.reasoning.as_str()), (content, reasoning), "cut at {seed}");
        assert_eq!(streamed.finish, ["stop"]);
    }
}

const OFF: &str = "none";

#[test]
fn stop_cut_at_every_byte() {
    check("alpha beta gamma delta", json!({"stop": "beta gamma", "reasoning_effort": OFF}), "alpha ", "");
}

#[test]
fn two_stops_of_which_one_begins_the_other() {
    let fields = json!({"stop": ["beta gamma", "beta"], "reasoning_effort": OFF});
    check("alpha beta gamma delta", fields, "alpha ", "");
}

#[test]
fn a_stop_that_never_comes_is_held_only_while_it_may_come() {
    check("alpha beta gam", json!({"stop": ["beta gamma"], "reasoning_effort": OFF}), "alpha beta gam", "");
    let chunks: [&[u8]; 5] = [b"alpha be", b"st", b" beta", b" gas", b"!"];
    let site = Setup::default().says(&chunks);
    let streamed = site.chat_stream(json!({"stop": "beta gamma", "reasoning_effort": OFF}));
    assert_eq!(streamed.pieces, ["alpha ", "best", " ", "beta gas", "!"]);
}

#[test]
fn stop_in_reasoning_is_reasoning() {
    let text = "I say END.\n</think>\n\nHello END more";
    check(text, json!({"stop": "END", "reasoning_effort": "high"}), "Hello ", "I say END.");
}

#[test]
fn stop_that_is_a_whole_token_and_stop_in_unicode() {
    let chunks: [&[u8]; 3] = [b"one", b"STOP", b"two"];
    let site = Setup::default().says(&chunks);
    let reply = site.chat(json!({"stop": ["STOP"], "reasoning_effort": OFF}));
    assert_eq!(reply.json["choices"][0]["message"]["content"], "one");
    site.wait_until_idle();
    check("日本語。終わり。続き", json!({"stop": "終わり", "reasoning_effort": OFF}), "日本語。", "");
}

#[test]
fn the_work_ends_with_the_stop() {
    let mut chunks: Vec<&[u8]> = vec![b"ab", b"STOP"];
    chunks.extend(std::iter::repeat_n(&b"xy"[..], 500));
    let site = Setup { pace: std::time::Duration::from_millis(1), ..Setup::default() }.says(&chunks);
    let reply = site.chat(json!({"stop": "STOP", "reasoning_effort": OFF}));
    let used = reply.json["usage"]["completion_tokens"].as_u64().expect("a count");
    assert!(used < 20, "{used} tokens were generated behind the stop");
}

#[test]
fn characters_split_over_tokens_appear_with_their_last_byte() {
    for text in ["🙂", "a👩‍👩‍👧b", "e\u{301}x", "你好，世界！"] {
        check(text, json!({"reasoning_effort": OFF}), text, "");
    }
    let emoji = "🙂".as_bytes();
    let chunks: [&[u8]; 3] = [&emoji[..2], &emoji[2..], b"!"];
    let site = Setup::default().says(&chunks);
    assert_eq!(site.chat_stream(json!({"reasoning_effort": OFF})).pieces, ["🙂", "!"]);
}

#[test]
fn invalid_and_unfinished_bytes_never_stall() {
    let chunks: [&[u8]; 4] = [b"a", &[0xff], b"b", &[0xf0, 0x9f]];
    let site = Setup::default().says(&chunks);
    let streamed = site.chat_stream(json!({"reasoning_effort": OFF}));
    assert_eq!(
        (streamed.content.as_str(), streamed.finish.as_slice()),
        ("a\u{fffd}b\u{fffd}", &["stop".to_owned()][..])
    );
    // The limit of tokens falls inside a character.
    let emoji = "🙂".as_bytes();
    let pieces = cut(emoji, &[2]);
    let site = Setup::default().says(&pieces);
    let fields = json!({"max_tokens": 1, "reasoning_effort": OFF});
    assert_eq!(site.chat_stream(fields.clone()), {
        let whole = site.chat(fields);
        assert_eq!(whole.json["choices"][0]["finish_reason"], "length");
        Streamed {
            content: whole.json["choices"][0]["message"]["content"].as_str().expect("text").to_owned(),
            pieces: vec!["\u{fffd}".to_owned()],
            finish: vec!["length".to_owned()],
            usage: whole.json["usage"].clone(),
            ..Streamed::default()
        }
    });
}

#[test]
fn every_dialect_cuts_at_the_same_place() {
    let (site, _) = Setup::default().says_in_cuts("alpha beta gamma delta");
    let user = json!([{"role": "user", "content": "hi"}]);
    let claude = site.post("/v1/messages", &json!({"max_tokens": 99, "messages": user, "stop_sequences": ["beta"]}));
    assert_eq!(claude.json["content"][0]["text"], "alpha ");
    assert_eq!((&claude.json["stop_reason"], &claude.json["stop_sequence"]), (&json!("stop_sequence"), &json!("beta")));
    let ollama = json!({"messages": user, "think": false, "stream": false, "options": {"stop": ["beta"]}});
    assert_eq!(site.post("/api/chat", &ollama).json["message"]["content"], "alpha ");
    let text = site.post("/v1/completions", &json!({"prompt": "x", "stop": "beta", "max_tokens": 50}));
    assert_eq!(text.json["choices"][0]["text"], "alpha ");
}
