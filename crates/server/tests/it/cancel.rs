//! Clients that leave, at every stage.

use crate::support::{Say, Setup, Site, Vocabulary, with_message};
use serde_json::{Value, json};
use std::io::{BufRead, Read, Write};
use std::time::{Duration, Instant};

/// A server that takes 2 ms a step, reads so many prompt tokens in one, and runs one request at a time.
fn slow(plan: Vec<Say>, chunk: usize) -> Site {
    slow_for(1, plan, chunk)
}

/// The same for so many requests at a time.
fn slow_for(parallel: usize, plan: Vec<Say>, chunk: usize) -> Site {
    Setup { chunk, parallel, pace: Duration::from_millis(2), ..Setup::default() }
        .plan(Vocabulary::of(&[]), move |_, _| plan.clone())
}

/// Sends a request over a socket of its own, which the caller closes by dropping it.
pub(crate) fn send(site: &Site, path: &str, body: &Value) -> std::net::TcpStream {
    send_with(site, path, body, "")
}

/// The same, with more bytes behind the request, in one piece.
fn send_with(site: &Site, path: &str, body: &Value, behind: &str) -> std::net::TcpStream {
    let address = site.base.trim_start_matches("http://");
    let mut socket = std::net::TcpStream::connect(address).expect("connected");
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(format!("{head}{body}{behind}").as_bytes()).expect("sent");
    socket
}

/// The number of requests that the server knows to be abandoned.
fn abandoned(site: &Site) -> usize {
    let (_, metrics) = site.get("/metrics");
    let line = metrics.lines().find(|line| line.contains("finished_reason=\"abort\""));
    line.and_then(|line| line.rsplit(' ').next()).map_or(0, |count| count.parse().expect("a count"))
}

/// Waits for something that the server does by itself.
fn wait_for(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn streamed_and_whole_at_every_stage() {
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(1500)}]});
    let plain = with_message(json!({"reasoning_effort": "none"}));
    let thinking = with_message(json!({"reasoning_effort": "high"}));
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tool = json!([{"type": "function", "function": {"name": "weather", "parameters": city}}]);
    let tools = with_message(json!({"tools": tool, "reasoning_effort": "none"}));
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"";
    let calling: Vec<Say> = call.bytes().map(u32::from).chain([97; 1500]).map(Say::Token).collect();
    let talking = || vec![Say::Token(97); 1500];
    let silent = [vec![Say::Token(97)], vec![Say::Wait; 100_000]].concat();
    let quick = 4096;
    // Each with the steps that bring a request into its stage.
    let stages: [(&str, Site, Value, usize); 5] = [
        ("queue", slow(silent, quick), plain.clone(), 0),
        ("prefill", slow(talking(), 1), long, 3),
        ("decode", slow(talking(), quick), plain, 5),
        ("reasoning", slow(talking(), quick), thinking, 5),
        ("tools", slow(calling, quick), tools, 300),
    ];
    for (stage, site, mut body, into) in stages {
        let in_front = (stage == "queue").then(|| {
            let mut stream = site.open("/v1/chat/completions", &with_message(json!({"stream": true})));
            stream.read_line(&mut String::new()).expect("it begins");
            stream
        });
        let others = usize::from(in_front.is_some());
        for (round, stream) in [true, false, true, false].into_iter().enumerate() {
            body["stream"] = json!(stream);
            let steps = || site.seen.lock().expect("no panic").steps;
            let from = steps();
            let socket = send(&site, "/v1/chat/completions", &body);
            wait_for(&format!("{stage}: the request arrives"), || {
                let seen = site.seen.lock().expect("no panic");
                seen.under_way == others + 1 && seen.steps > from + into
            });
            let held = site.gate.lock().expect("no panic");
            let before = steps();
            drop(socket);
            wait_for(&format!("{stage}: the server sees the client leave"), || abandoned(&site) == round + 1);
            drop(held);
            wait_for(&format!("{stage}: the request ends"), || site.seen.lock().expect("no panic").under_way == others);
            let seen = site.seen.lock().expect("no panic");
            assert_eq!(seen.cancelled, round + 1, "{stage}: the source is told");
            // The step that was waiting at the gate, and no other for this client.
            assert!(in_front.is_some() || seen.steps <= before + 1, "{stage}: {} steps", seen.steps - before);
        }
        drop(in_front);
        site.wait_until_idle();
    }
}

/// The HTTP library holds what it has read beyond a request, and does not look for the end of the connection behind it.
#[test]
fn bytes_behind_a_request_do_not_hide_that_the_client_has_left() {
    let site = slow(vec![Say::Token(97); 1800], 4096);
    let body = with_message(json!({"reasoning_effort": "none"}));
    let next = "GET /health HTTP/1.1\r\nhost: a\r\n\r\n";
    for (round, behind) in ["\r\n", next, &next.repeat(20)].into_iter().enumerate() {
        let socket = send_with(&site, "/v1/chat/completions", &body, behind);
        wait_for("the request arrives", || site.seen.lock().expect("no panic").under_way == 1);
        drop(socket);
        wait_for("the server sees the client leave", || abandoned(&site) == round + 1);
        site.wait_until_idle();
        assert_eq!(site.seen.lock().expect("no panic").cancelled, round + 1, "{behind:?}");
    }
    // Who stays has an answer to each.
    let last = next.replace("host", "connection: close\r\nhost");
    let mut socket = send_with(&site, "/v1/chat/completions", &with_message(json!({"max_tokens": 3})), &last);
    let mut answers = String::new();
    socket.read_to_string(&mut answers).expect("text");
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
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
    let site = slow_for(3, vec![Say::Token(97); 1800], 4096);
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
