//! Every documented field works or is refused by name; everything unknown is passed over.

use crate::support::{Say, Setup, Site, Vocabulary, with_message};
use onebit_engine::{Request, SamplingParams};
use serde_json::{Value, json};

/// Fields of a chat completion that may be left out, those that are refused by name too.
pub(crate) const CHAT_FIELDS: [&str; 53] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "repeat_penalty",
    "repeat_last_n",
    "logit_bias",
    "seed",
    "n",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "grammar",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "enable_thinking",
    "thinking_budget",
    "chat_template_kwargs",
    "include_reasoning",
    "continue_final_message",
    "add_generation_prompt",
    "truncation",
    "user",
    "metadata",
    "store",
    "audio",
    "modalities",
    "prediction",
    "verbosity",
    "best_of",
    "min_tokens",
    "web_search_options",
];

fn site() -> Site {
    let sampling = SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.9, ..SamplingParams::default() };
    Setup { sampling, ..Setup::default() }.plan(Vocabulary::of(&[]), |_, choice| vec![Say::Token(97 + choice as u32)])
}

/// The engine's request for a chat with these fields.
fn request(site: &Site, fields: Value) -> Request {
    let reply = site.chat(fields.clone());
    assert_eq!(reply.status, 200, "{fields}: {}", reply.json);
    site.last_request()
}

#[test]
fn fields_that_choose_tokens_reach_the_engine() {
    let site = site();
    let of = |fields: Value| request(&site, fields).sampling;
    let silent = of(json!({}));
    assert_eq!((silent.temperature, silent.top_k, silent.top_p, silent.seed), (0.6, 20, 0.9, None), "the model's own");
    assert_eq!(of(json!({"temperature": 0})).temperature, 0.0);
    assert_eq!(of(json!({"top_p": 0.5})).top_p, 0.5);
    assert_eq!(of(json!({"top_k": 5})).top_k, 5);
    assert_eq!(of(json!({"top_k": -1})).top_k, 0);
    assert_eq!(of(json!({"min_p": 0.1})).min_p, 0.1);
    assert_eq!(of(json!({"presence_penalty": 1.5})).presence_penalty, 1.5);
    assert_eq!(of(json!({"frequency_penalty": -1})).frequency_penalty, -1.0);
    assert_eq!(of(json!({"repetition_penalty": 1.2})).repetition_penalty, 1.2);
    assert_eq!(of(json!({"repeat_penalty": 1.3})).repetition_penalty, 1.3);
    assert_eq!(of(json!({"repeat_last_n": 64})).penalty_window, Some(64));
    let blind = of(json!({"repeat_last_n": 0, "repeat_penalty": 1.3, "presence_penalty": 1}));
    assert_eq!(
        (blind.repetition_penalty, blind.presence_penalty),
        (1.0, 0.0),
        "who looks at nothing penalises nothing"
    );
    assert_eq!(of(json!({"seed": 42})).seed, Some(42));
    assert_eq!(of(json!({"logit_bias": {"97": 5, "98": -100}})).logit_bias, [(97, 5.0), (98, -100.0)]);
}

#[test]
fn fields_that_end_and_shape_answers() {
    let site = site();
    assert_eq!(request(&site, json!({"max_completion_tokens": 9})).max_tokens, Some(9));
    assert_eq!(request(&site, json!({"max_tokens": -1})).max_tokens, None);
    assert_eq!(request(&site, json!({"logprobs": true, "top_logprobs": 3})).logprobs, Some(3));
    assert_eq!(request(&site, json!({"stop_token_ids": [99]})).eos, [257, 99]);
    assert!(request(&site, json!({"ignore_eos": true})).eos.is_empty());
    let three = site.chat(json!({"n": 3, "reasoning_effort": "none"}));
    let texts: Vec<&Value> =
        three.json["choices"].as_array().expect("a list").iter().map(|c| &c["message"]["content"]).collect();
    assert_eq!(texts, ["a", "b", "c"]);
    assert_eq!(three.json["usage"]["completion_tokens"], 3, "usage is of all answers");
    assert_eq!(site.last_request().choices, 3, "the prompt is read once");
    let streamed = site.chat_stream(json!({"n": 2, "reasoning_effort": "none"}));
    assert_eq!((streamed.content.as_str(), streamed.finish.len()), ("ab", 2));
    assert_eq!(streamed.usage["completion_tokens"], 2);
    let without = site.events("/v1/chat/completions", &with_message(json!({})));
    assert!(without.iter().all(|(_, data)| data["usage"].is_null()), "usage in a stream is for those who ask");
    let hidden = site.chat(json!({"include_reasoning": false, "reasoning_effort": "high"}));
    assert!(hidden.json["choices"][0]["message"].get("reasoning_content").is_none());
    let shown = site.chat(json!({"reasoning_effort": "high"}));
    assert_eq!(shown.json["choices"][0]["message"]["reasoning_content"], "a");
    assert_eq!(shown.json["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
}

#[test]
fn completions_take_every_form_of_prompt() {
    let site = site();
    let texts = |body: Value| -> Vec<String> {
        let reply = site.post("/v1/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.json);
        let choices = reply.json["choices"].as_array().expect("a list").clone();
        choices.iter().map(|c| c["text"].as_str().expect("text").to_owned()).collect()
    };
    assert_eq!(texts(json!({"prompt": "x"})), ["a"]);
    assert_eq!(texts(json!({"prompt": [120, 121]})), ["a"]);
    assert_eq!(site.last_request().tokens, [120, 121]);
    assert_eq!(texts(json!({"prompt": ["x", "y"], "n": 2})), ["a", "b", "a", "b"]);
    assert_eq!(texts(json!({"prompt": [[120], [121]]})), ["a", "a"]);
    assert_eq!(texts(json!({"prompt": "x", "echo": true})), ["xa"]);
    let both = site.post("/v1/completions", &json!({"prompt": ["x", "yy"]})).json;
    assert_eq!(both["usage"]["prompt_tokens"], 3);
    for bad in [json!({}), json!({"prompt": []}), json!({"prompt": 5}), json!({"prompt": [1, "x"]})] {
        assert_eq!(site.post("/v1/completions", &bad).json["error"]["param"], "prompt", "{bad}");
    }
}

#[test]
fn values_out_of_range_are_named() {
    let site = site();
    for (fields, field) in [
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"n": 0}), "n"),
        (json!({"n": 129}), "n"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": 5}), "stop"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"97": 200}}), "logit_bias"),
        (json!({"seed": "x"}), "seed"),
        (json!({"repeat_last_n": -2}), "repeat_last_n"),
        (json!({"stop_token_ids": [320]}), "stop_token_ids"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": 1}), "stream_options"),
        (json!({"reasoning_effort": "lots"}), "reasoning_effort"),
        (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({"tools": "x"}), "tools"),
        (json!({"truncation": "maybe"}), "truncation"),
    ] {
        let reply = site.chat(fields.clone());
        assert_eq!(reply.status, 400, "{fields}");
        assert_eq!(reply.json["error"]["param"], field, "{fields}: {}", reply.json);
        assert_eq!(reply.json["error"]["type"], "invalid_request_error");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let site = site();
    for (fields, field) in [
        (json!({"audio": {"voice": "x"}}), "audio"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"prediction": {"type": "content"}}), "prediction"),
        (json!({"web_search_options": {}}), "web_search_options"),
        (json!({"verbosity": "low"}), "verbosity"),
        (json!({"best_of": 3}), "best_of"),
        (json!({"min_tokens": 3}), "min_tokens"),
        (json!({"tools": [{"type": "custom", "name": "x"}]}), "tools[0].type"),
    ] {
        let reply = site.chat(fields.clone());
        assert_eq!((reply.status, &reply.json["error"]["param"]), (400, &json!(field)), "{fields}");
    }
    let harmless = json!({"modalities": ["text"], "verbosity": "medium", "best_of": 1, "min_tokens": 0, "audio": null});
    assert_eq!(site.chat(harmless).status, 200);
    for (body, field) in [
        (json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (json!({"prompt": "x", "echo": true, "logprobs": 1}), "echo"),
        (json!({"prompt": "x", "logprobs": 21}), "logprobs"),
    ] {
        assert_eq!(site.post("/v1/completions", &body).json["error"]["param"], field);
    }
    // Pictures are refused before anybody could look for them: nothing is ever fetched.
    for url in ["http://127.0.0.1/x.png", "http://169.254.169.254/", "file:///etc/passwd", "data:image/png;base64,AA=="]
    {
        let content = json!([{"type": "image_url", "image_url": {"url": url}}]);
        let reply = site.chat(json!({"messages": [{"role": "user", "content": content}]}));
        assert_eq!((reply.status, &reply.json["error"]["param"]), (400, &json!("messages[0].content[0]")));
    }
}

#[test]
fn unknown_fields_and_nulls_are_passed_over() {
    let site = site();
    let unknown = json!({
        "id": "x", "opts": {"a": [1]}, "store": true, "metadata": {"k": "v"}, "user": "u", "service_tier": "auto",
        "prompt_cache_key": "p", "safety_identifier": "s", "parallel_tool_calls": true, "extra": null,
        "messages": [{"role": "user", "content": "hi", "id": 5, "cache_control": {"type": "ephemeral"}, "extra": [{}]}],
    });
    assert_eq!(site.chat(unknown).status, 200);
    let mut nulls = json!({"model": null, "stream": null});
    for name in CHAT_FIELDS {
        nulls[name] = Value::Null;
    }
    assert_eq!(site.chat(nulls).status, 200);
    let hosted =
        json!({"tools": [{"type": "web_search"}, {"type": "mcp", "server_label": "x"}], "tool_choice": "auto"});
    assert_eq!(site.chat(hosted).status, 200);
}

#[test]
fn seeds_are_per_request_and_fresh_without_one() {
    let site = site();
    let seeds: Vec<Option<u64>> = [json!({"seed": 1}), json!({"seed": 2}), json!({}), json!({"seed": -1})]
        .into_iter()
        .map(|fields| request(&site, fields).sampling.seed)
        .collect();
    assert_eq!(seeds, [Some(1), Some(2), None, None]);
}

#[test]
fn bodies_that_are_no_request() {
    let site = site();
    for body in ["", "{", "[1]", "\"x\"", "{\"messages\": }"] {
        let reply = site.post_raw("/v1/chat/completions", body, &[]);
        assert_eq!((reply.status, &reply.json["error"]["type"]), (400, &json!("invalid_request_error")), "{body}");
    }
    // The type of the body is not looked at.
    let good = with_message(json!({})).to_string();
    assert_eq!(site.post_raw("/v1/chat/completions", &good, &[("content-type", "text/plain")]).status, 200);
}
