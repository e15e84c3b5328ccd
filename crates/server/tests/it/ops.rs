//! Keys, probes, several models, the end of the server.

use crate::cancel::send;
use crate::support::{Say, Setup, Site, Vocabulary, with_message};
use serde_json::{Value, json};
use std::io::{BufRead, Read, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn busy() -> Site {
    Setup { pace: Duration::from_millis(2), ..Setup::default() }
        .plan(Vocabulary::of(&[]), |_, _| vec![Say::Token(97); 1500])
}

#[test]
fn probes_answer_while_everything_is_busy() {
    let site = busy();
    let streams: Vec<_> = (0..16)
        .map(|_| {
            let mut stream = site.open("/v1/chat/completions", &with_message(json!({"stream": true})));
            stream.read_line(&mut String::new()).expect("it begins");
            stream
        })
        .collect();
    for path in ["/health", "/metrics", "/v1/models", "/props", "/api/tags", "/"] {
        let begun = Instant::now();
        assert_eq!(site.get(path).0, 200, "{path}");
        assert!(begun.elapsed() < Duration::from_secs(2), "{path}");
    }
    let (_, metrics) = site.get("/metrics");
    assert!(metrics.contains("vllm:num_requests_running{model_name=\"script\"} 16"), "{metrics}");
    drop(streams);
    site.wait_until_idle();
}

#[test]
fn metrics_have_the_names_that_dashboards_know() {
    let site = Setup::default().says(&[b"a", b"b"]);
    site.chat(json!({"max_tokens": 5, "reasoning_effort": "none"}));
    let (_, text) = site.get("/metrics");
    for line in [
        "vllm:num_requests_waiting{model_name=\"script\"} 0",
        "vllm:request_success_total{finished_reason=\"stop\",model_name=\"script\"} 1",
        "vllm:time_to_first_token_seconds_count{model_name=\"script\"} 1",
        "vllm:inter_token_latency_seconds_count{model_name=\"script\"} 1",
        "vllm:e2e_request_latency_seconds_count{model_name=\"script\"} 1",
        "vllm:request_generation_tokens_sum{model_name=\"script\"} 2",
        "vllm:request_params_max_tokens_sum{model_name=\"script\"} 5",
        "vllm:cache_config_info{block_size=\"64\",model_name=\"script\",num_gpu_blocks=\"100\"} 1",
        "# TYPE vllm:kv_cache_usage_perc gauge",
        "# TYPE vllm:prefix_cache_hits_total counter",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn keys_are_asked_for() {
    let mut setup = Setup::default();
    setup.options.api_keys = vec!["sesame".into()];
    let site = setup.says(&[b"x"]);
    let body = with_message(json!({})).to_string();
    let send = |headers: &[(&str, &str)]| site.post_raw("/v1/chat/completions", &body, headers);
    let none = send(&[]);
    assert_eq!((none.status, &none.json["error"]["code"]), (401, &json!("invalid_api_key")));
    assert_eq!(send(&[("authorization", "Bearer wrong")]).status, 401);
    assert_eq!(send(&[("authorization", "Bearer sesame")]).status, 200);
    assert_eq!(send(&[("x-api-key", "sesame")]).status, 200);
    assert_eq!(
        (site.get("/health").0, site.get("/").0, site.get("/metrics").0, site.get("/v1/models").0),
        (200, 200, 401, 401)
    );
    let claude = site.post_raw("/v1/messages", &body, &[]);
    assert_eq!((claude.status, &claude.json["error"]["type"]), (401, &json!("authentication_error")));
}

#[test]
fn pages_of_other_origins_are_kept_out() {
    let site = Setup::default().says(&[b"x"]);
    let body = with_message(json!({})).to_string();
    let own = site.base.clone();
    assert_eq!(site.post_raw("/v1/chat/completions", &body, &[("origin", &own)]).status, 200);
    let stranger = site.post_raw("/v1/chat/completions", &body, &[("origin", "https://evil.example")]);
    assert_eq!(stranger.status, 403);
    assert!(stranger.json["error"]["message"].as_str().is_some_and(|m| m.contains("--cors https://evil.example")));
}

#[test]
fn refusals_keep_the_head_of_their_response() {
    let mut setup = Setup::default();
    setup.options.origins = vec!["https://chat.example".into()];
    let site = setup.says(&[b"x"]);
    let head = |method: &str| {
        let mut socket = std::net::TcpStream::connect(site.base.trim_start_matches("http://")).expect("connected");
        let origin = "host: a\r\norigin: https://chat.example\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
        socket.write_all(format!("{method} /v1/chat/completions HTTP/1.1\r\n{origin}").as_bytes()).expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("text");
        answer
    };
    for (method, status, also) in [("POST", "400", "messages"), ("GET", "405", "allow: POST")] {
        let answer = head(method);
        // A page may read what was wrong with its request.
        for part in [status, "access-control-allow-origin: https://chat.example", "server: onebit", also] {
            assert!(answer.contains(part), "no {part:?} in {answer}");
        }
        assert_eq!(answer.matches("content-length").count(), 1, "{answer}");
    }
}

#[test]
fn large_bodies_unknown_paths_and_wrong_methods() {
    let mut setup = Setup::default();
    setup.options.max_body = 10_000;
    let site = setup.says(&[b"x"]);
    let large = with_message(json!({"user": "x".repeat(20_000)}));
    let reply = site.post("/v1/chat/completions", &large);
    assert_eq!(reply.status, 413);
    assert!(reply.json["error"]["message"].as_str().is_some_and(|m| m.contains("10000 bytes")), "{}", reply.json);
    let reply = site.post("/chat/completions", &json!({}));
    assert_eq!(reply.status, 404);
    assert!(reply.json["error"]["message"].as_str().is_some_and(|m| m.contains("/v1")));
    let (status, text) = site.get("/v1/chat/completions");
    assert_eq!(status, 405);
    assert!(text.contains("does not take GET"), "{text}");
}

#[test]
fn several_models_are_listed_as_they_are() {
    let setup =
        Setup { others: vec![("second", None), ("broken", Some("no kernel for tensor x"))], ..Setup::default() };
    let site = setup.says(&[b"x"]);
    assert_eq!(site.loads.load(Ordering::SeqCst), 0, "nothing is loaded before it is asked for");
    let list = || -> Vec<(String, String)> {
        let json: Value = serde_json::from_str(&site.get("/v1/models").1).expect("JSON");
        let text = |v: &Value| v.as_str().expect("text").to_owned();
        json["data"].as_array().expect("a list").iter().map(|m| (text(&m["id"]), text(&m["status"]["value"]))).collect()
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(list(), [pair("script", "available"), pair("second", "available"), pair("broken", "unavailable")]);
    assert_eq!(site.chat(json!({"model": "second"})).status, 200);
    assert_eq!(list()[1], pair("second", "loaded"));
    assert_eq!(site.chat(json!({"model": "second"})).status, 200);
    assert_eq!(site.loads.load(Ordering::SeqCst), 1);
    let broken = site.chat(json!({"model": "broken"}));
    assert_eq!(broken.status, 503);
    assert!(broken.json["error"]["message"].as_str().is_some_and(|m| m.contains("no kernel for tensor x")));
    let unknown = site.chat(json!({"model": "gpt-x"}));
    assert_eq!((unknown.status, &unknown.json["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(site.get("/v1/models/second").0, 200);
    assert_eq!(site.get("/health").0, 200);
}

/// A load that nobody waits for any more still takes memory: another must not begin beside it.
#[test]
fn a_model_is_loaded_once_though_clients_leave_meanwhile() {
    let site = Setup { loading: Duration::from_millis(300), ..Setup::default() }.says(&[b"x"]);
    for _ in 0..3 {
        let socket = send(&site, "/v1/chat/completions", &with_message(json!({})));
        let begun = Instant::now();
        while site.loads.load(Ordering::SeqCst) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "the request does not arrive");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(socket);
    }
    assert_eq!(site.chat(json!({})).status, 200);
    assert_eq!(site.loads.load(Ordering::SeqCst), 1);
}

#[test]
fn a_model_whose_engine_has_ended_is_loaded_anew() {
    let site = Setup::default().plan(Vocabulary::of(&[]), |request, _| {
        assert_ne!(request.sampling.seed, Some(13), "the engine's thread panics here, as this test wants");
        vec![Say::Token(97)]
    });
    assert_eq!(site.chat(json!({})).status, 200);
    let reply = site.chat(json!({"seed": 13}));
    assert_eq!(reply.status, 500, "{}", reply.json);
    assert_eq!(site.chat(json!({})).status, 200);
    assert_eq!(site.loads.load(Ordering::SeqCst), 2);
}

#[test]
fn other_names() {
    let mut setup = Setup::default();
    setup.options.aliases = vec![("gpt-x".into(), "script".into())];
    let site = setup.says(&[b"x"]);
    for name in [json!("script"), json!("gpt-x"), json!("script:latest"), json!(null), json!("")] {
        let reply = site.chat(json!({"model": name}));
        assert_eq!((reply.status, &reply.json["model"]), (200, &json!("script")), "{name}");
    }
    assert_eq!(site.chat(json!({"model": "other"})).status, 404);
    let (status, text) = site.get("/v1/models/%ff");
    assert!(status == 400 && text.contains("invalid_request_error"), "a name that is no text: {text}");
    let mut setup = Setup::default();
    setup.options.any_model = true;
    assert_eq!(setup.says(&[b"x"]).chat(json!({"model": "other"})).status, 200);
}

#[test]
fn requests_under_way_end_before_the_server_does() {
    let site = Setup { pace: Duration::from_millis(2), ..Setup::default() }
        .plan(Vocabulary::of(&[]), |_, _| vec![Say::Token(97); 200]);
    let mut stream = site.open("/v1/chat/completions", &with_message(json!({"stream": true})));
    stream.read_line(&mut String::new()).expect("it begins");
    site.stop.try_send(()).expect("the server listens");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the stream goes on");
    assert!(rest.ends_with("data: [DONE]\n\n"), "the stream has its end");
}

#[test]
fn a_drain_has_a_limit() {
    let mut setup =
        Setup { pace: Duration::from_millis(20), pictures: Some(Duration::from_millis(300)), ..Setup::default() };
    setup.options.drain = Duration::from_millis(100);
    let site = setup.plan(Vocabulary::of(&[]), |_, _| vec![Say::Token(97); 1500]);
    let mut stream = site.open("/v1/chat/completions", &with_message(json!({"stream": true})));
    stream.read_line(&mut String::new()).expect("it begins");
    let whole = [
        send(&site, "/v1/chat/completions", &with_message(json!({}))),
        send(&site, "/v1/images/generations", &json!({"prompt": "a tree", "size": "64x64"})),
    ];
    let begun = Instant::now();
    while site.seen.lock().expect("no panic").requests.len() < 2
        || site.painted.lock().expect("no panic").orders.is_empty()
    {
        assert!(begun.elapsed() < Duration::from_secs(20), "the requests do not arrive");
        std::thread::sleep(Duration::from_millis(1));
    }
    site.stop.try_send(()).expect("the server listens");
    // Those under way are told, in a stream by its last event and else by the status.
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the stream has an end");
    assert!(rest.contains("shutting down") && rest.ends_with("data: [DONE]\n\n"), "{rest}");
    for mut socket in whole {
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("text");
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("shutting down"), "{answer}");
    }
    site.join();
}

#[test]
fn the_page_fetches_nothing_from_elsewhere() {
    let site = Setup::default().says(&[b"x"]);
    let (status, page) = site.get("/");
    assert_eq!(status, 200);
    assert!(page.starts_with("<!doctype html>"));
    for word in ["src=\"http", "href=\"http", "url(http", "@import", "innerHTML"] {
        assert!(!page.contains(word), "{word}");
    }
}
