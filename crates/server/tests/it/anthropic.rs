//! The Messages API: order of events, shapes that its clients send.

use crate::support::{Setup, TAGS};
use serde_json::{Value, json};

fn names(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn events_come_in_order() {
    let (site, cuts) = Setup::default().says_in_cuts("hm</think>\n\nHi <b>");
    for seed in [0, *cuts.end()] {
        let body = json!({
            "messages": [{"role": "user", "content": "hi"}], "max_tokens": 99,
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": seed},
        });
        let events = site.events("/v1/messages", &body);
        assert!(events.iter().all(|(name, data)| data["type"] == *name), "names and types agree");
        let mut order = names(&events);
        order.dedup();
        assert_eq!(
            order,
            [
                "message_start",
                "ping",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]
        );
        let delta = |kind: &str, key: &str| -> String {
            events
                .iter()
                .filter(|(_, d)| d["delta"]["type"] == kind)
                .filter_map(|(_, d)| d["delta"][key].as_str())
                .collect()
        };
        assert_eq!(delta("thinking_delta", "thinking"), "hm");
        assert_eq!(delta("text_delta", "text"), "Hi <b>");
        assert!(!delta("signature_delta", "signature").is_empty());
        let end = &events[events.len() - 2].1;
        assert_eq!(end["delta"]["stop_reason"], "end_turn");
        assert!(end["usage"]["output_tokens"].as_u64().is_some_and(|n| n > 0));
        let start = &events[0].1["message"]["usage"];
        assert!(start["input_tokens"].as_u64().is_some_and(|n| n > 0));
    }
}

#[test]
fn tools_stream_as_json() {
    let (site, _) = Setup { template: Some(TAGS), ..Setup::default() }
        .says_in_cuts("<tool_call>\n<function=Bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>");
    let tools = json!([{"name": "Bash", "description": "d", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}]);
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99, "tools": tools});
    let events = site.events("/v1/messages", &body);
    let mut order = names(&events);
    order.dedup();
    assert_eq!(order[2..5], ["content_block_start", "content_block_delta", "content_block_stop"]);
    let start = events.iter().find(|(name, _)| name == "content_block_start").expect("a block");
    assert_eq!((&start.1["content_block"]["name"], &start.1["content_block"]["input"]), (&json!("Bash"), &json!({})));
    let input: String = events.iter().filter_map(|(_, d)| d["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&input).expect("JSON"), json!({"command": "ls"}));
    assert_eq!(events[events.len() - 2].1["delta"]["stop_reason"], "tool_use");
}

#[test]
fn a_coding_agents_request() {
    let site = Setup::default().says(&[b"ok"]);
    let body = json!({
        "model": "script",
        "max_tokens": 32000,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0f3a1;"},
            {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Folder: /src", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        ],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>be brief</system-reminder>"},
                {"type": "text", "text": "list files", "cache_control": {"type": "ephemeral"}},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "look", "signature": "onebit"},
                {"type": "redacted_thinking", "data": "xxx"},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.rs\nb.rs", "is_error": false},
                {"type": "text", "text": "go on"},
            ]},
            {"role": "system", "content": "a late rule"},
        ],
        "tools": [
            {"name": "Bash", "input_schema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
             "properties": {"command": {"type": "string"}}, "required": ["command"], "additionalProperties": false}},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "metadata": {"user_id": "u"},
        "temperature": 1,
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "stream": true,
    });
    let events = site.events("/v1/messages?beta=true", &body);
    assert_eq!(names(&events).last(), Some(&"message_stop"));
    let request = site.last_request();
    let prompt = crate::support::Vocabulary::of(&[]).tokenizer().decode(&request.tokens);
    assert!(prompt.starts_with("<|im_start|>system\nYou are a coding agent.\nFolder: /src\n\na late rule"), "{prompt}");
    assert!(prompt.contains("a.rs\nb.rs") && prompt.contains("go on"));
    assert_eq!(request.thinking.map(|t| t.budget), Some(Some(4096)));
}

#[test]
fn errors_are_of_this_dialect() {
    let site = Setup::default().says(&[b"ok"]);
    let reply = site.post("/v1/messages", &json!({"messages": []}));
    assert_eq!((reply.status, &reply.json["type"]), (400, &json!("error")));
    assert_eq!(reply.json["error"]["type"], "invalid_request_error");
    let reply = site.post("/v1/messages", &json!({"model": "other", "messages": [{"role": "user", "content": "x"}]}));
    assert_eq!((reply.status, &reply.json["error"]["type"]), (404, &json!("not_found_error")));
    let image = json!([{"type": "image", "source": {"type": "url", "url": "http://localhost/"}}]);
    let reply = site.post("/v1/messages", &json!({"messages": [{"role": "user", "content": image}]}));
    assert_eq!(reply.status, 400);
}
