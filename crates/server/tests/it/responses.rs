//! The Responses API: order of events, shapes that its clients send.

use crate::support::{Setup, TAGS};
use serde_json::{Value, json};

#[test]
fn events_come_in_order_and_are_numbered() {
    let (site, _) = Setup::default().says_in_cuts("hm</think>\n\nHi");
    let events = site.events("/v1/responses", &json!({"input": "hi", "reasoning": {"effort": "high"}, "seed": 8}));
    let order: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let mut order_once = order.clone();
    order_once.dedup();
    assert_eq!(
        order_once,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["sequence_number"], &data["type"]), (&json!(number), &json!(name)));
    }
    let last = &events.last().expect("an end").1["response"];
    assert_eq!(last["status"], "completed");
    assert_eq!(
        (&last["output"][0]["content"][0]["text"], &last["output"][1]["content"][0]["text"]),
        (&json!("hm"), &json!("Hi"))
    );
    assert!(last["usage"]["output_tokens_details"]["reasoning_tokens"].is_u64());
    let ids: Vec<&Value> =
        events.iter().filter(|(n, _)| n.contains("text.delta")).map(|(_, d)| &d["item_id"]).collect();
    assert_eq!((ids.first(), ids.last()), (Some(&&last["output"][0]["id"]), Some(&&last["output"][1]["id"])));
}

#[test]
fn a_coding_agents_request() {
    let (site, _) = Setup { template: Some(TAGS), ..Setup::default() }.says_in_cuts(
        "<tool_call>\n<function=shell>\n<parameter=command>\n[\"ls\"]\n</parameter>\n</function>\n</tool_call>",
    );
    let body = json!({
        "model": "script",
        "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "sandbox: on"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list files"}]},
            {"type": "reasoning", "summary": [], "content": null, "encrypted_content": null},
            {"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"pwd\"]}", "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "/src"},
        ],
        "tools": [
            {"type": "function", "name": "shell", "description": "d", "strict": false, "parameters": {"type": "object",
             "properties": {"command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"]}},
            {"type": "web_search", "external_web_access": true},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": false,
        "reasoning": null,
        "store": false,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {},
    });
    let events = site.events("/v1/responses", &body);
    let done = events.iter().find(|(name, _)| name == "response.function_call_arguments.done").expect("a call");
    assert_eq!(
        serde_json::from_str::<Value>(done.1["arguments"].as_str().expect("text")).expect("JSON"),
        json!({"command": ["ls"]})
    );
    let item = &events.last().expect("an end").1["response"]["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("shell")));
    assert!(item["call_id"].as_str().is_some_and(|id| id.starts_with("call_")));
    let prompt = crate::support::Vocabulary::of(&[]).tokenizer().decode(&site.last_request().tokens);
    assert!(prompt.starts_with("<|im_start|>system\nYou are a coding agent.\n\nsandbox: on<|im_end|>"), "{prompt}");
}

/// Coding agents group some of their tools, and expect the group's name beside the tool's in a call.
#[test]
fn tools_in_groups_are_called_by_both_names() {
    let (site, _) = Setup { template: Some(TAGS), ..Setup::default() }.says_in_cuts(
        "<tool_call>\n<function=agents__close>\n<parameter=target>\na1\n</parameter>\n</function>\n</tool_call>",
    );
    let target = json!({"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]});
    let body = json!({
        "input": [
            {"role": "user", "content": "close a1, then a2"},
            {"type": "function_call", "namespace": "agents", "name": "close", "arguments": "{\"target\":\"a2\"}", "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": "closed"},
        ],
        "tools": [
            {"type": "function", "name": "shell", "parameters": {"type": "object"}},
            {"type": "namespace", "name": "agents", "description": "Helpers.",
             "tools": [{"type": "function", "name": "close", "description": "Ends one.", "parameters": target}]},
        ],
        "reasoning": {"effort": "none"},
    });
    let is_named = |item: &Value| {
        assert_eq!(
            (&item["type"], &item["namespace"], &item["name"]),
            (&json!("function_call"), &json!("agents"), &json!("close"))
        );
    };
    let whole = site.post("/v1/responses", &body);
    assert_eq!(whole.status, 200, "{}", whole.json);
    is_named(&whole.json["output"][0]);
    let prompt = crate::support::Vocabulary::of(&[]).tokenizer().decode(&site.last_request().tokens);
    assert!(
        prompt.contains("<function=agents__close>"),
        "the earlier call has the name that the model knows: {prompt}"
    );
    let events = site.events("/v1/responses", &body);
    let item_of = |name: &str| &events.iter().find(|(event, _)| event == name).expect("an event").1["item"];
    is_named(item_of("response.output_item.added"));
    is_named(item_of("response.output_item.done"));
    is_named(&events.last().expect("an end").1["response"]["output"][0]);
    let done = events.iter().find(|(event, _)| event == "response.function_call_arguments.done").expect("arguments");
    assert_eq!((&done.1["name"], &done.1["arguments"]), (&json!("close"), &json!("{\"target\":\"a1\"}")));
}

#[test]
fn what_needs_memory_is_refused() {
    let site = Setup::default().says(&[b"x"]);
    for field in ["previous_response_id", "conversation"] {
        let mut body = json!({"input": "hi"});
        body[field] = json!("resp_1");
        assert_eq!(site.post("/v1/responses", &body).json["error"]["param"], field);
    }
    let background = site.post("/v1/responses", &json!({"input": "hi", "background": true, "store": true}));
    assert_eq!(background.json["error"]["param"], "background");
    assert_eq!(site.get("/v1/responses/resp_1").0, 404);
    let stored = site.post("/v1/responses", &json!({"input": "hi", "store": true, "background": false}));
    assert_eq!((stored.status, &stored.json["store"]), (200, &json!(false)));
}

#[test]
fn logprobs_and_counts() {
    let site = Setup::default().says(&[b"x", b"y"]);
    let include = json!(["message.output_text.logprobs"]);
    let body = json!({"input": "hi", "include": include, "top_logprobs": 2, "reasoning": {"effort": "none"}});
    let reply = site.post("/v1/responses", &body).json;
    assert_eq!(reply["output"][0]["content"][0]["logprobs"].as_array().map(Vec::len), Some(2));
    let counted = site.post("/v1/responses/input_tokens", &body).json;
    assert_eq!(counted["input_tokens"], reply["usage"]["input_tokens"]);
}
