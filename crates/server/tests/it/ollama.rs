//! Ollama's API.

use crate::support::Setup;
use serde_json::{Value, json};
use std::io::BufRead;

#[test]
fn lines_end_with_the_counts() {
    let (site, _) = Setup::default().says_in_cuts("hm</think>\n\nHi");
    let body =
        json!({"model": "script:latest", "messages": [{"role": "user", "content": "hi"}], "options": {"seed": 14}});
    let lines: Vec<Value> = site
        .open("/api/chat", &body)
        .lines()
        .map(|line| serde_json::from_str(&line.expect("text")).expect("JSON"))
        .collect();
    let all = |key: &str| -> String { lines.iter().filter_map(|l| l["message"][key].as_str()).collect() };
    assert_eq!((all("thinking").as_str(), all("content").as_str()), ("hm", "Hi"));
    let (last, others) = lines.split_last().expect("lines");
    assert!(others.iter().all(|l| l["done"] == false && l["model"] == "script:latest"));
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    for key in ["total_duration", "load_duration", "prompt_eval_count", "eval_count", "eval_duration"] {
        assert!(last[key].is_u64(), "{key}");
    }
}

#[test]
fn options_reach_the_engine() {
    let site = Setup::default().says(&[b"x"]);
    let user = json!([{"role": "user", "content": "hi"}]);
    let options = json!({
        "temperature": 0.5, "top_k": 3, "top_p": 0.4, "min_p": 0.1, "repeat_penalty": 1.1, "repeat_last_n": 32,
        "presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 5, "num_predict": 4, "num_ctx": 1024, "num_thread": 4,
    });
    let reply =
        site.post("/api/chat", &json!({"messages": user, "options": options, "stream": false, "keep_alive": "5m"}));
    assert_eq!(reply.status, 200, "{}", reply.json);
    let request = site.last_request();
    let s = &request.sampling;
    assert_eq!((s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty), (0.5, 3, 0.4, 0.1, 1.1));
    assert_eq!((s.penalty_window, s.presence_penalty, s.frequency_penalty, s.seed), (Some(32), 0.5, 0.25, Some(5)));
    assert_eq!(request.max_tokens, Some(4));
    let blind = json!({"repeat_penalty": 1.5, "repeat_last_n": 0});
    site.post("/api/chat", &json!({"messages": user, "options": blind, "stream": false}));
    assert_eq!(site.last_request().sampling.repetition_penalty, 1.0, "0 looks at no token");
    for (options, word) in
        [(json!({"num_ctx": 99999}), "num_ctx"), (json!({"mirostat": 2}), "mirostat"), (json!({"top_k": "x"}), "top_k")]
    {
        let reply = site.post("/api/chat", &json!({"messages": user, "options": options}));
        assert_eq!(reply.status, 400);
        assert!(reply.json["error"].as_str().is_some_and(|e| e.contains(word)), "{}", reply.json);
    }
    for top in [-1, 21] {
        let reply = site.post("/api/chat", &json!({"messages": user, "logprobs": true, "top_logprobs": top}));
        assert_eq!(reply.json["error"], format!("`top_logprobs`: must be from 0 to 20, got {top}"));
    }
}

#[test]
fn listings() {
    let site = Setup::default().says(&[b"x"]);
    let (_, tags) = site.get("/api/tags");
    let tags: Value = serde_json::from_str(&tags).expect("JSON");
    assert_eq!(
        (&tags["models"][0]["name"], &tags["models"][0]["details"]["parameter_size"]),
        (&json!("script"), &json!("1.7B"))
    );
    let show = site.post("/api/show", &json!({"model": "script"})).json;
    assert_eq!(show["capabilities"], json!(["completion", "tools", "thinking"]));
    assert_eq!(show["model_info"]["script.context_length"], crate::support::CONTEXT);
    let (status, version) = site.get("/api/version");
    assert_eq!(status, 200);
    assert!(version.contains("version"));
    let load = site.post("/api/chat", &json!({"model": "script", "messages": []})).json;
    assert_eq!(load["done_reason"], "load");
}
