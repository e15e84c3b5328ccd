//! Windows and limits.

use crate::cancel::send;
use crate::support::{CONTEXT, Say, Setup, Site, Vocabulary, with_message};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn talkative() -> Site {
    Setup::default().plan(Vocabulary::of(&[]), |_, _| vec![Say::Token(97); 3 * CONTEXT])
}

#[test]
fn the_window_ends_an_answer_as_a_limit_does() {
    let site = talkative();
    let reply = site.chat(json!({"max_tokens": CONTEXT, "reasoning_effort": "none"}));
    assert_eq!(reply.json["choices"][0]["finish_reason"], "length");
    assert_eq!(reply.json["usage"]["total_tokens"], CONTEXT);
    let user = json!([{"role": "user", "content": "hi"}]);
    let claude = site.post("/v1/messages", &json!({"messages": user, "max_tokens": CONTEXT})).json;
    assert_eq!(claude["stop_reason"], "model_context_window_exceeded");
    let response = site.post("/v1/responses", &json!({"input": "hi", "reasoning": {"effort": "none"}})).json;
    assert_eq!(
        (&response["status"], &response["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
}

#[test]
fn a_prompt_too_long_is_refused_with_both_numbers() {
    let site = talkative();
    let long = "x".repeat(CONTEXT);
    let requests: [(&str, Value); 5] = [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": long}], "stream": true})),
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/responses", json!({"input": long})),
        ("/v1/messages", json!({"messages": [{"role": "user", "content": long}], "max_tokens": 1})),
        ("/api/chat", json!({"messages": [{"role": "user", "content": long}]})),
    ];
    for (path, body) in requests {
        let reply = site.post(path, &body);
        assert_eq!(reply.status, 400, "{path}");
        let error = &reply.json["error"];
        let message = error["message"].as_str().or_else(|| error.as_str()).expect("a sentence");
        assert!(message.contains(&CONTEXT.to_string()) && message.contains("tokens"), "{message}");
    }
    let reply = site.post("/v1/completions", &json!({"prompt": long}));
    assert_eq!(reply.json["error"]["code"], "context_length_exceeded");
}

#[test]
fn truncation_on_request_only() {
    let site = talkative();
    let turn = |n: usize| json!({"role": "user", "content": format!("{n}:{}", "x".repeat(300))});
    let mut messages = vec![json!({"role": "system", "content": "rules"})];
    messages.extend((0..8).flat_map(|n| [turn(n), json!({"role": "assistant", "content": "a"})]));
    messages.push(turn(9));
    let mut body = json!({"messages": messages, "max_tokens": 5});
    assert_eq!(site.post("/v1/chat/completions", &body).status, 400);
    body["truncation"] = json!("auto");
    assert_eq!(site.post("/v1/chat/completions", &body).status, 200);
    let prompt = Vocabulary::of(&[]).tokenizer().decode(&site.last_request().tokens);
    assert!(prompt.contains("rules") && prompt.contains("9:x") && !prompt.contains("0:x"));
    // As many turns as there is room for, and not one more; thousands of them take no longer than a few.
    let turns = |count: usize| -> Vec<Value> { (0..count).map(|_| json!({"role": "user", "content": "y"})).collect() };
    let tokens = |count: usize| {
        let reply = site.post("/tokenize", &json!({"messages": turns(count)}));
        reply.json["count"].as_u64().expect("a count") as usize
    };
    let body = json!({"messages": turns(5000), "max_tokens": 5, "truncation": "auto"});
    assert_eq!(site.post("/v1/chat/completions", &body).status, 200);
    let read = site.last_request().tokens.len();
    let turn = tokens(2) - tokens(1);
    assert!(read <= CONTEXT - 5 && read + turn > CONTEXT - 5, "{read} of {CONTEXT}, {turn} each");
    let long = json!({"prompt": "x".repeat(CONTEXT), "truncate_prompt_tokens": 100, "max_tokens": 1});
    assert_eq!(site.post("/v1/completions", &long).status, 200);
    assert_eq!(site.last_request().tokens.len(), 100);
}

#[test]
fn limits_have_one_meaning_under_every_name() {
    let site = talkative();
    let used = |fields: Value| site.chat(fields).json["usage"]["completion_tokens"].clone();
    assert_eq!(used(json!({"max_tokens": 7})), 7);
    assert_eq!(used(json!({"max_completion_tokens": 8, "max_tokens": 7})), 8);
    for bad in [json!({"max_tokens": 0}), json!({"max_completion_tokens": -2}), json!({"max_tokens": "many"})] {
        let reply = site.chat(bad.clone());
        assert_eq!(reply.status, 400, "{bad}");
        let field = bad.as_object().and_then(|o| o.keys().next()).expect("a field");
        assert_eq!(reply.json["error"]["param"], *field);
    }
    // The older API has its own default.
    let reply = site.post("/v1/completions", &json!({"prompt": "x"}));
    assert_eq!(reply.json["usage"]["completion_tokens"], 16);
}

#[test]
fn a_request_that_fails_at_once_gets_a_status_and_a_late_fault_an_event() {
    let broken = onebit_engine::EngineError::NonFinite { step: 3, position: 1 };
    let fault = broken.clone();
    let site = Setup::default().plan(Vocabulary::of(&[]), move |_, _| vec![Say::Fail(fault.clone())]);
    for stream in [false, true] {
        let reply = site.chat(json!({"stream": stream}));
        assert_eq!(reply.status, 500, "never an empty 200");
        assert_eq!(reply.json["error"]["message"], broken.to_string());
    }
    let late = broken.clone();
    let site = Setup::default()
        .plan(Vocabulary::of(&[]), move |_, _| vec![Say::Token(97), Say::Token(98), Say::Fail(late.clone())]);
    let streamed = site.chat_stream(json!({"reasoning_effort": "none"}));
    assert_eq!(streamed.content, "ab");
    assert_eq!(streamed.error.expect("an error event")["message"], broken.to_string());
}

#[test]
fn a_queue_has_an_end() {
    let mut setup = Setup { parallel: 1, pace: Duration::from_millis(2), ..Setup::default() };
    setup.options.max_requests = 3;
    let site = setup.plan(Vocabulary::of(&[]), |_, _| vec![Say::Token(97); CONTEXT]);
    let body = with_message(json!({"stream": true, "reasoning_effort": "none"}));
    let crowd: Vec<_> = (0..3).map(|_| send(&site, "/v1/chat/completions", &body)).collect();
    let begun = Instant::now();
    while site.seen.lock().expect("no panic").requests.len() < crowd.len() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the requests do not arrive");
        std::thread::sleep(Duration::from_millis(1));
    }
    for (path, body) in [
        ("/v1/chat/completions", with_message(json!({"max_tokens": 1}))),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 1})),
        ("/v1/messages", with_message(json!({"max_tokens": 1}))),
    ] {
        let reply = site.post(path, &body);
        assert_eq!((reply.status, &reply.json["error"]["type"]), (503, &json!("overloaded_error")), "{path}");
        assert!(reply.json["error"]["message"].as_str().is_some_and(|m| m.contains("--max-requests")));
    }
    assert_eq!(site.get("/health").0, 200);
    // The places of those who leave are free.
    drop(crowd);
    let begun = Instant::now();
    while site.chat(json!({"max_tokens": 1})).status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody is let in any more");
    }
}
