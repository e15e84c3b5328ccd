//! `onebit serve` with more clients than it answers at a time, and with an end in the middle of their work.

use crate::serve::{Server, metric, read_tokens, user};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Sends a chat over a socket of its own, which the caller reads or closes.
fn send(server: &Server, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(server.base.trim_start_matches("http://")).expect("connected");
    let body = body.to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-length: ";
    socket.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).expect("sent");
    socket
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(240), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An answer that does not end by itself.
fn endless() -> Value {
    json!({"messages": [user("Tell me a story")], "ignore_eos": true, "stream": true, "reasoning_effort": "none"})
}

#[test]
fn a_system_prompt_that_all_have_in_common_is_read_once() {
    let server = Server::start(&["seedling", "--parallel", "4"]);
    let system = json!({"role": "system", "content": "You answer in one short sentence. ".repeat(240)});
    let of = |text: &str| vec![system.clone(), user(text)];
    let asked: Vec<String> = (1..=16).map(|n| format!("{n} and {n}: how much is it?")).collect();
    // Where conversations under this system prompt part.
    let (a, b) = (server.tokens(&of("a"), &json!({})), server.tokens(&of("0"), &json!({})));
    let shared = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    assert!(shared > 1500, "{shared} tokens are many for this model");
    let own: usize = asked.iter().map(|text| server.tokens(&of(text), &json!({})).len() - shared).sum();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |text: &String| server.chat(&of(text), &json!({"max_tokens": 4}));
        let threads: Vec<_> = asked.iter().map(|text| scope.spawn(move || ask(text))).collect();
        threads.into_iter().map(|t| t.join().expect("an answer")).collect()
    });
    assert_eq!(answers.iter().filter(|answer| answer.cached < shared).count(), 1, "one reads it for all");
    let read = read_tokens(&server);
    assert!((shared..=shared + own).contains(&read), "{read} read; {shared} in common and {own} of their own");
}

#[test]
fn equal_seeds_give_equal_answers_alone_and_in_a_crowd() {
    let server = Server::start(&["seedling"]);
    let drawn =
        |seed: u64| server.chat(&[user("Name a colour and a tree")], &json!({"temperature": 1, "seed": seed})).text;
    let alone = drawn(42);
    let crowd: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = [42, 42, 42, 42, 7, 8, 9, 10].map(|seed| scope.spawn(move || drawn(seed))).into();
        threads.into_iter().map(|t| t.join().expect("an answer")).collect()
    });
    assert!(crowd[..4].iter().all(|text| *text == alone), "{alone} {crowd:?}");
    assert!(crowd[4..].iter().any(|text| *text != alone), "other seeds, other answers");
}

#[test]
fn who_leaves_the_queue_or_the_batch_is_forgotten() {
    let server = Server::start(&["seedling", "--parallel", "1"]);
    let (running, waiting) = ("vllm:num_requests_running", "vllm:num_requests_waiting");
    let mut first = send(&server, &endless());
    wait_for("the first runs", || metric(&server, running) == 1.0);
    first.read_exact(&mut [0; 12]).expect("it begins");
    for stream in [true, false] {
        let second = send(&server, &json!({"messages": [user("Hi")], "stream": stream}));
        wait_for("the second waits", || metric(&server, waiting) == 1.0);
        drop(second);
        wait_for("the second is forgotten", || metric(&server, waiting) == 0.0);
        assert_eq!(metric(&server, running), 1.0, "the first goes on");
    }
    drop(first);
    wait_for("the first is forgotten", || metric(&server, running) == 0.0);
    assert_eq!(metric(&server, "vllm:kv_cache_usage_perc"), 0.0);
    assert_eq!(metric(&server, "onebit:state_slots{model_name=\"seedling\",use=\"running\"}"), 0.0);
    server.chat(&[user("Hi")], &json!({}));
}

#[test]
fn what_the_engine_refuses_names_its_field() {
    let server = Server::start(&["seedling"]);
    let regex = |pattern: &str| json!({"response_format": {"type": "regex", "pattern": pattern}});
    let endless = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
    let schema = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": endless}}});
    let nothing = json!({"response_format": {"type": "grammar", "grammar": "start: start\n"}});
    for (fields, field) in [
        (json!({"logit_bias": {"99999": 1}}), "logit_bias"),
        (regex("("), "response_format"),
        (schema, "response_format"),
        (nothing, "response_format"),
    ] {
        let mut body = json!({"messages": [user("Hi")], "max_tokens": 4});
        for (key, value) in fields.as_object().expect("fields") {
            body[key] = value.clone();
        }
        let (status, reply) = server.post("/v1/chat/completions", &body);
        assert_eq!((status, &reply["error"]["param"]), (400, &json!(field)), "{reply}");
        assert!(!reply.to_string().contains("verbose"), "{reply}");
    }
    // A form holds whatever the reasoning before it does.
    for effort in ["none", "low"] {
        let more = json!({"response_format": {"type": "regex", "pattern": "(yes|no)"}, "reasoning_effort": effort,
            "max_tokens": 400, "temperature": 1, "thinking_budget": if effort == "low" { 50 } else { 0 }});
        let answer = server.chat(&[user("Is a tree a plant?")], &more);
        assert!(["yes", "no"].contains(&answer.text.as_str()), "{effort}: {}", answer.text);
    }
}

#[test]
fn reasoning_keeps_to_its_budget() {
    let server = Server::start(&["seedling"]);
    for budget in [0, 1, 50] {
        let body = json!({"messages": [user("Why is the sky blue?")], "thinking_budget": budget, "max_tokens": 120,
            "temperature": 0});
        let (status, reply) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{reply}");
        let used = reply["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().expect("a count");
        assert!(used <= budget, "{used} of {budget}");
        assert!(reply["choices"][0]["message"]["content"].as_str().is_some_and(|text| !text.is_empty()), "{reply}");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_lets_a_long_prompt_be_read_and_answered() {
    let mut server = Server::start(&["seedling", "--drain", "600"]);
    let long = "The river runs over old stones. ".repeat(210);
    let body = json!({"messages": [user(&long)], "stream": true, "max_tokens": 6, "reasoning_effort": "none"});
    let idle: Vec<TcpStream> =
        (0..50).map(|_| TcpStream::connect(server.base.trim_start_matches("http://")).expect("connected")).collect();
    let mut socket = send(&server, &body);
    wait_for("the prompt is being read", || metric(&server, "vllm:num_requests_running") == 1.0);
    let sent =
        std::process::Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("the stream goes on");
    assert!(text.contains("\"finish_reason\":") && text.contains("data: [DONE]"), "{text}");
    assert!(server.child.wait().expect("it ends").success());
    drop(idle);
}

#[test]
fn a_server_that_was_killed_leaves_its_port() {
    let mut server = Server::start(&["seedling"]);
    let mut socket = send(&server, &endless());
    socket.read_exact(&mut [0; 12]).expect("it begins");
    server.child.kill().expect("killed");
    server.child.wait().expect("it ends");
    let port = server.base.rsplit(':').next().expect("a port").to_owned();
    let again = Server::start(&["seedling", "--port", &port]);
    assert_eq!(again.base, server.base);
    again.chat(&[user("Hi")], &json!({}));
}
