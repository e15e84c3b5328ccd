//! Clients that leave, at every stage.

use crate::support::{Say, Setup, Site, Vocabulary, with_message};
use serde_json::{Value, json};
use std::io::{BufRead, Read, Write};
use std::time::{Duration, Instant};

/// A server that takes 2 ms a step and reads so many prompt tokens in one.
fn slow(plan: Vec<Say>, chunk: usize) -> Site {
    Setup { chunk, pace: Duration::from_millis(2), ..Setup::default() }
        .plan(Vocabulary::of(&[]), move |_, _| plan.clone())
}

/// Sends a request over a socket of its own, which the caller closes by dropping it.
pub(crate) fn send(site: &Site, path: &str, body: &Value) -> std::net::TcpStream {
    let address = site.base.trim_start_matches("http://");
    let mut socket = std::net::TcpStream::connect(address).expect("connected");
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes()).expect("sent");
    socket
}

#[test]
fn streamed_and_whole_at_every_stage() {
    let long = "x".repeat(1500);
    let stages: [(&str, Site, Value); 3] = [
        ("prefill", slow(vec![Say::Token(97)], 1), json!({"messages": [{"role": "user", "content": long}]})),
        ("decode", slow(vec![Say::Token(97); 1500], 4096), with_message(json!({"reasoning_effort": "none"}))),
        ("reasoning", slow(vec![Say::Token(97); 1500], 4096), with_message(json!({"reasoning_effort": "high"}))),
    ];
    for (stage, site, mut body) in stages {
        for (round, stream) in [true, false, true, false, true, false].into_iter().enumerate() {
            body["stream"] = json!(stream);
            let socket = send(&site, "/v1/chat/completions", &body);
            let begun = Instant::now();
            while site.seen.lock().expect("no panic").under_way == 0 {
                assert!(begun.elapsed() < Duration::from_secs(10), "{stage}: the request did not arrive");
                std::thread::sleep(Duration::from_millis(1));
            }
            let before = site.seen.lock().expect("no panic").steps;
            drop(socket);
            site.wait_until_idle();
            let seen = site.seen.lock().expect("no panic");
            assert_eq!(seen.cancelled, round + 1, "{stage}: the source is told");
            assert!(seen.steps - before < 200, "{stage}: {} steps for nobody", seen.steps - before);
        }
    }
}

#[test]
fn a_fresh_request_is_served_after_many_have_left() {
    let site = slow(vec![Say::Token(97); 1800], 4096);
    for _ in 0..20 {
        let mut stream = site.open("/v1/chat/completions", &with_message(json!({"stream": true})));
        let mut line = String::new();
        stream.read_line(&mut line).expect("it begins");
        drop(stream);
    }
    site.wait_until_idle();
    let begun = Instant::now();
    assert_eq!(site.chat(json!({"max_tokens": 3})).status, 200);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(site.seen.lock().expect("no panic").cancelled, 20);
}

#[test]
fn prompts_in_one_request_end_together() {
    let site = slow(vec![Say::Token(97); 1800], 4096);
    let body = json!({"prompt": ["a", "b", "c"], "max_tokens": 1800, "n": 2, "stream": true});
    let mut stream = site.open("/v1/completions", &body);
    stream.read_line(&mut String::new()).expect("it begins");
    assert_eq!(site.seen.lock().expect("no panic").under_way, 3);
    drop(stream);
    site.wait_until_idle();
    assert_eq!(site.seen.lock().expect("no panic").cancelled, 3);
}

#[test]
fn a_long_silence_has_signs_of_life() {
    let mut setup = Setup { pace: Duration::from_millis(5), ..Setup::default() };
    setup.options.keep_alive = Duration::from_millis(50);
    let site = setup.plan(Vocabulary::of(&[]), |_, _| {
        let mut plan = vec![Say::Wait; 350];
        plan.push(Say::Token(97));
        plan
    });
    let read = |path: &str, body: Value| -> String {
        let mut text = String::new();
        site.open(path, &body).read_to_string(&mut text).expect("text");
        text
    };
    let chat = read("/v1/chat/completions", with_message(json!({"stream": true, "reasoning_effort": "none"})));
    assert!(chat.matches(": keep-alive\n\n").count() >= 3 && chat.contains("\"content\":\"a\""), "{chat}");
    let user = json!([{"role": "user", "content": "hi"}]);
    let claude = read("/v1/messages", json!({"messages": user, "max_tokens": 9, "stream": true}));
    assert!(claude.matches("event: ping").count() >= 3, "{claude}");
}
