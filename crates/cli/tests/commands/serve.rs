//! `onebit serve` with the built-in model: its start and end, and what a conversation costs over HTTP.

use crate::support::onebit;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

/// A server of its own.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) base: String,
    /// What it said before it listened.
    pub(crate) said: String,
    agent: ureq::Agent,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Server {
        let (server, log) = Server::launch(args);
        // The log must not fill the pipe.
        std::thread::spawn(move || log.for_each(drop));
        server
    }

    /// A server that listens, and what it writes into its log from then on.
    fn launch(args: &[&str]) -> (Server, Lines<BufReader<ChildStderr>>) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onebit"));
        command.args(["serve", "--port", "0"]).args(args).env_clear().env("HOME", "/nonexistent");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut said = String::new();
        let base = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended: {said}")).expect("text");
            if let Some(base) = line.strip_prefix("listening on ") {
                break base.to_owned();
            }
            said.push_str(&line);
            said.push('\n');
        };
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(300)))
            .build();
        (Server { child, base, said, agent: ureq::Agent::new_with_config(config) }, lines)
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let mut response = self.agent.get(format!("{}{path}", self.base)).call().expect("an answer");
        serde_json::from_str(&response.body_mut().read_to_string().expect("text")).expect("JSON")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let mut response = self.agent.post(format!("{}{path}", self.base)).send(body.to_string()).expect("an answer");
        let text = response.body_mut().read_to_string().expect("text");
        (response.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// A greedy answer to a conversation.
    pub(crate) fn chat(&self, messages: &[Value], more: &Value) -> Answer {
        let mut body = json!({"messages": messages, "temperature": 0, "max_tokens": 12});
        for (key, value) in more.as_object().expect("fields") {
            body[key] = value.clone();
        }
        let (status, reply) = self.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{reply}");
        let count = |v: &Value| v.as_u64().expect("a count") as usize;
        Answer {
            text: reply["choices"][0]["message"]["content"].as_str().expect("text").to_owned(),
            prompt: count(&reply["usage"]["prompt_tokens"]),
            cached: count(&reply["usage"]["prompt_tokens_details"]["cached_tokens"]),
        }
    }

    pub(crate) fn tokens(&self, messages: &[Value], more: &Value) -> Vec<u64> {
        let mut body = more.clone();
        body["messages"] = json!(messages);
        let (_, reply) = self.post("/tokenize", &body);
        reply["tokens"].as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id")).collect()
    }
}

/// A value of the metrics; the line begins with these words, and 0 when there is none yet.
pub(crate) fn metric(server: &Server, line: &str) -> f64 {
    let mut response = server.agent.get(format!("{}/metrics", server.base)).call().expect("an answer");
    let text = response.body_mut().read_to_string().expect("text");
    let found = text.lines().find(|l| l.starts_with(line)).and_then(|l| l.rsplit(' ').next());
    found.map_or(0.0, |value| value.parse().expect("a number"))
}

/// Prompt tokens that have been read, and not found in the cache.
pub(crate) fn read_tokens(server: &Server) -> usize {
    (metric(server, "vllm:prompt_tokens_total") - metric(server, "vllm:prefix_cache_hits_total")) as usize
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
}

pub(crate) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

const SAID: [&str; 10] = [
    "Hello there, how are you today?",
    "What is a tree?",
    "And what is a river?",
    "Which of the two is older?",
    "Name a colour.",
    "Why is the sky blue?",
    "Tell me about the sea.",
    "What is 3 + 4?",
    "And 5 + 6?",
    "Thank you, goodbye!",
];

#[test]
fn the_start_says_what_clients_need() {
    let server = Server::start(&["seedling"]);
    for part in
        ["context ", "requests at a time", "tokens/s", "20,000 tokens takes", "coding agents need a context of 32,768"]
    {
        assert!(server.said.contains(part), "no {part:?} in {}", server.said);
    }
}

#[cfg(unix)]
#[test]
fn a_signal_ends_it_in_order() {
    let mut server = Server::start(&["seedling"]);
    assert_eq!(server.chat(&[user("Hi")], &json!({})).cached, 0);
    let sent = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    assert!(server.child.wait().expect("it ends").success());
}

#[cfg(unix)]
#[test]
fn a_log_that_cannot_be_written_costs_nothing_else() {
    let (mut server, log) = Server::launch(&["seedling"]);
    // From here on every line of the log is a broken pipe.
    drop(log);
    assert_eq!(server.chat(&[user("Hi")], &json!({})).cached, 0);
    assert_eq!(server.post("/nowhere", &json!({})).0, 404);
    let sent = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    assert!(server.child.wait().expect("it ends").success());
}

#[test]
fn what_cannot_be_served_ends_the_program() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    onebit(&["serve", "seedling", "--port", &port]).run().fails(1, &["cannot listen on", &port]);
    onebit(&["serve", "/nowhere/model"]).run().fails(1, &["/nowhere/model does not exist"]);
    onebit(&["serve", "seedling", "--port", "0", "--alias", "x=other"]).run().fails(2, &["--alias x=other"]);
    onebit(&["serve", "--port", "0", "--shape", "bonsai-image-4b"]).run().fails(2, &["a shape for pictures", "bench"]);
    let taken = ["serve", "seedling", "sprout", "--port", "0", "--alias", "sprout=seedling"];
    onebit(&taken).run().fails(2, &["--alias sprout=seedling", "a model of its own"]);
    let twice = ["serve", "seedling", "sprout", "--port", "0", "--alias", "x=seedling", "--alias", "x=sprout"];
    onebit(&twice).run().fails(2, &["--alias x=sprout", "a name of seedling"]);
    onebit(&["serve", "seedling", "--port", "0", "--cors", "nonsense"]).run().fails(2, &["--cors", "nonsense"]);
}

#[test]
fn of_several_models_the_broken_one_is_listed() {
    let server = Server::start(&["seedling", "/nowhere/model"]);
    let mut response = server.agent.get(format!("{}/v1/models", server.base)).call().expect("an answer");
    let json: Value = serde_json::from_str(&response.body_mut().read_to_string().expect("text")).expect("JSON");
    assert_eq!(json["data"][0]["status"]["value"], "available");
    assert_eq!(json["data"][1]["status"]["value"], "unavailable");
    assert!(json["data"][1]["status"]["reason"].as_str().is_some_and(|r| r.contains("does not exist")));
    assert_eq!(server.chat(&[user("Hi")], &json!({"model": "seedling"})).cached, 0);
}

/// A turn reads the tokens behind what it has in common with the turn before, and not one more; less where the answer
/// itself comes back as it was said. Of a prompt that is whole in the next one, the last token is read again: the state
/// is saved before it, so that it also serves the same prompt once more.
#[test]
fn a_turn_reads_only_what_is_new() {
    let server = Server::start(&["seedling"]);
    for thinking in [false, true] {
        let more =
            json!({"enable_thinking": thinking, "thinking_budget": if thinking { 8 } else { 0 }, "max_tokens": 24});
        let mut messages = vec![json!({"role": "system", "content": format!("You are a friend ({thinking}).")})];
        let mut earlier: Vec<u64> = Vec::new();
        for (turn, said) in SAID.into_iter().enumerate() {
            messages.push(user(said));
            let tokens = server.tokens(&messages, &more);
            let before = read_tokens(&server);
            let answer = server.chat(&messages, &more);
            assert_eq!(answer.prompt, tokens.len());
            let read = read_tokens(&server) - before;
            assert_eq!(read, answer.prompt - answer.cached, "the answer tells what was read");
            let common = tokens.iter().zip(&earlier).take_while(|(a, b)| a == b).count();
            assert!(turn == 0 || common > 10, "turns have their beginning in common");
            let common = common.min(earlier.len().saturating_sub(1));
            assert!(read <= tokens.len() - common, "{said}: {read} of {} read, {common} in common", tokens.len());
            earlier = tokens;
            messages.push(json!({"role": "assistant", "content": answer.text}));
        }
    }
}

#[test]
fn the_cache_never_changes_an_answer() {
    let head = "The little boat went down the river and saw many things on its way to the sea. ".repeat(12);
    let ask = |end: &str| vec![json!({"role": "system", "content": head}), user(end)];
    let (a, b) = (ask("What did it see first, and what did it see last?"), ask("What did it see, then?"));
    let fresh = Server::start(&["seedling", "--activations", "f32"]);
    let cold = fresh.chat(&b, &json!({}));
    let server = Server::start(&["seedling", "--activations", "f32"]);
    let first = server.chat(&a, &json!({}));
    let partial = server.chat(&b, &json!({}));
    assert_eq!((first.cached, cold.cached), (0, 0));
    assert!(partial.cached > 100, "the head is shared: {partial:?}");
    assert_eq!(partial.text, cold.text, "what an earlier prompt left is not seen");
    let again = server.chat(&b, &json!({}));
    assert_eq!(again.text, cold.text);
    assert!(again.cached >= partial.cached);
}

#[test]
fn short_prompts_are_cached_as_well() {
    let server = Server::start(&["seedling"]);
    for words in [10, 100, 500] {
        let text = format!("{words} {}", "tree ".repeat(words));
        let first = server.chat(&[user(&text)], &json!({}));
        let second = server.chat(&[user(&text)], &json!({}));
        assert_eq!(second.text, first.text);
        assert!(second.cached * 2 > second.prompt, "{second:?}");
    }
}

#[test]
fn requests_that_share_a_prompt_read_it_once_and_do_not_change_each_other() {
    let server = Server::start(&["seedling", "--parallel", "4"]);
    let system = json!({"role": "system", "content": "You answer in one short sentence. ".repeat(60)});
    let asked: Vec<String> = (1..=16).map(|n| format!("What is {n} + {n}?")).collect();
    let first = server.chat(&[system.clone(), user(&asked[0])], &json!({}));
    let others: Vec<Answer> = std::thread::scope(|scope| {
        let threads: Vec<_> = asked[1..]
            .iter()
            .map(|text| scope.spawn(|| server.chat(&[system.clone(), user(text)], &json!({}))))
            .collect();
        threads.into_iter().map(|t| t.join().expect("an answer")).collect()
    });
    for (text, answer) in asked[1..].iter().zip(&others) {
        assert!(answer.cached + 80 > first.prompt, "{text}: {answer:?}");
        let alone = server.chat(&[system.clone(), user(text)], &json!({"seed": 1}));
        assert_eq!(alone.text, answer.text, "{text}");
    }
}

#[test]
fn rows_of_any_length_do_not_touch_each_other() {
    let server = Server::start(&["seedling"]);
    let prompts = ["Hi".to_owned(), "Tell me about trees and seas".to_owned(), "Why is the sky blue? ".repeat(30)];
    let alone: Vec<String> = prompts.iter().map(|p| server.chat(&[user(p)], &json!({})).text).collect();
    let fresh = Server::start(&["seedling"]);
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = prompts.iter().map(|p| scope.spawn(|| fresh.chat(&[user(p)], &json!({})).text)).collect();
        threads.into_iter().map(|t| t.join().expect("an answer")).collect()
    });
    assert_eq!(together, alone);
}
