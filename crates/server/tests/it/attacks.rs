//! Requests that no client should send. Each is answered, by what was asked for or by a 400 that names the field; none
//! ends the server or is a fault of its own.

use crate::fields::CHAT_FIELDS;
use crate::support::{CONTEXT, Reply, Say, Setup, Site, Vocabulary, with_message};
use serde_json::{Value, json};

fn site() -> Site {
    Setup::default().plan(Vocabulary::of(&[]), |_, _| vec![Say::Token(97); 3])
}

/// Values of every kind, none of which most fields can mean.
fn oddities() -> Vec<Value> {
    let deep = (0..100).fold(json!("x"), |inner, _| json!([inner]));
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("\u{0}\u{feff}😀<|im_end|>"),
        json!([]),
        json!([null]),
        json!([{}]),
        json!([[1, "x"]]),
        json!({}),
        json!({"type": null}),
        json!({"type": "x", "": {}}),
        deep,
    ]
}

/// A refusal in words, which name the field unless it is a matter of several.
fn is_fair(reply: &Reply, what: &str) {
    assert!(matches!(reply.status, 200 | 400 | 404), "{what}: {} {}", reply.status, reply.json);
    if reply.status != 200 {
        let error = &reply.json["error"];
        let message = error["message"].as_str().or_else(|| error.as_str()).expect("a sentence");
        assert!(message.len() > 10 && !message.contains("struct "), "{what}: {message}");
    }
}

#[test]
fn every_field_takes_every_kind_of_value() {
    let site = site();
    let user = json!([{"role": "user", "content": "hi"}]);
    let chat = [&["model", "messages"], &CHAT_FIELDS[..]].concat();
    let completions = ["prompt", "max_tokens", "logprobs", "echo", "truncate_prompt_tokens", "suffix", "stop", "n"];
    let responses = [
        "input",
        "instructions",
        "max_output_tokens",
        "temperature",
        "tools",
        "tool_choice",
        "text",
        "reasoning",
        "include",
        "top_logprobs",
        "previous_response_id",
        "conversation",
        "background",
        "truncation",
        "metadata",
    ];
    let messages = [
        "messages",
        "system",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "stop_sequences",
        "thinking",
        "tools",
        "tool_choice",
        "output_config",
        "output_format",
        "metadata",
        "mcp_servers",
        "container",
    ];
    let ollama = ["messages", "tools", "format", "think", "options", "truncate", "logprobs", "keep_alive", "model"];
    let tokens = ["prompt", "content", "messages", "add_special_tokens", "with_pieces", "tokens", "model"];
    let paths: [(&str, Value, &[&str]); 9] = [
        ("/v1/chat/completions", json!({"messages": user, "max_tokens": 2}), &chat),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 2}), &completions),
        ("/v1/responses", json!({"input": "x", "max_output_tokens": 2}), &responses),
        ("/v1/messages", json!({"messages": user, "max_tokens": 2}), &messages),
        ("/v1/messages/count_tokens", json!({"messages": user}), &["messages", "system", "tools", "thinking"]),
        ("/api/chat", json!({"messages": user, "stream": false}), &ollama),
        ("/tokenize", json!({"prompt": "x"}), &tokens),
        ("/detokenize", json!({"tokens": [97]}), &tokens),
        ("/apply-template", json!({"messages": user}), &["messages", "tools", "chat_template_kwargs", "model"]),
    ];
    for (path, body, fields) in paths {
        for field in fields {
            for value in oddities() {
                let mut body = body.clone();
                body[*field] = value;
                is_fair(&site.post(path, &body), &format!("{path} {field} {}", body[*field]));
            }
        }
    }
    // The same inside messages, parts, tools and options.
    let inner = |key: &str, value: Value| -> Vec<(&str, Value)> {
        let mut message = json!({"role": "user", "content": "hi"});
        message[key] = value.clone();
        let mut part = json!({"type": "text", "text": "hi"});
        part[key] = value.clone();
        let mut function = json!({"name": "f", "parameters": {"type": "object"}});
        function[key] = value.clone();
        let mut options = json!({});
        options[key] = value;
        let tool = json!([{"type": "function", "function": function}]);
        vec![
            ("/v1/chat/completions", json!({"messages": [message.clone()], "max_tokens": 2})),
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": [part.clone()]}], "max_tokens": 2}),
            ),
            ("/v1/chat/completions", json!({"messages": user, "tools": tool, "max_tokens": 2})),
            ("/v1/messages", json!({"messages": [message.clone()], "max_tokens": 2})),
            ("/v1/messages", json!({"messages": [{"role": "user", "content": [part.clone()]}], "max_tokens": 2})),
            ("/v1/responses", json!({"input": [message.clone()], "max_output_tokens": 2})),
            ("/v1/responses", json!({"input": [{"role": "user", "content": [part]}], "max_output_tokens": 2})),
            ("/api/chat", json!({"messages": [message], "options": options, "stream": false})),
        ]
    };
    let keys =
        ["role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "type", "text", "parameters"];
    let more =
        ["num_predict", "stop", "num_ctx", "strict", "description", "thinking", "tool_use_id", "input", "source"];
    for key in keys.into_iter().chain(more) {
        for value in oddities() {
            for (path, body) in inner(key, value) {
                is_fair(&site.post(path, &body), &format!("{path} {body}"));
            }
        }
    }
    assert_eq!(site.chat(json!({})).status, 200);
}

/// What has a meaning and is of another kind is refused by its name, in every dialect: passed over, it would be missed
/// where nobody looks, in the answer.
#[test]
fn a_value_of_the_wrong_kind_is_named() {
    let site = site();
    let chat = |fields: Value| ("/v1/chat/completions", with_message(fields));
    let message = |message: Value| ("/v1/chat/completions", json!({"messages": [message]}));
    let claude = |fields: Value| {
        let mut body = with_message(fields);
        body["max_tokens"] = json!(2);
        ("/v1/messages", body)
    };
    let blocks = |role: &str, content: Value| {
        ("/v1/messages", json!({"messages": [{"role": role, "content": content}], "max_tokens": 2}))
    };
    let ollama = |fields: Value| ("/api/chat", with_message(fields));
    let said = |message: Value| ("/api/chat", json!({"messages": [message]}));
    let function = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    for ((path, body), field) in [
        (chat(json!({"tools": {}})), "tools"),
        (chat(function(json!({"name": "f", "description": 5}))), "tools[0].function.description"),
        (chat(function(json!({"name": "f", "strict": "yes"}))), "tools[0].function.strict"),
        (chat(function(json!({"name": "f", "parameters": "x"}))), "tools[0].function.parameters"),
        (chat(json!({"chat_template_kwargs": {"enable_thinking": "no"}})), "chat_template_kwargs.enable_thinking"),
        (chat(json!({"chat_template_kwargs": {"thinking_budget": "5"}})), "chat_template_kwargs.thinking_budget"),
        (chat(json!({"continue_final_message": true})), "continue_final_message"),
        (message(json!({"role": "assistant", "tool_calls": {}})), "messages[0].tool_calls"),
        (message(json!({"role": "assistant", "function_call": "f"})), "messages[0].function_call.name"),
        (message(json!({"role": "assistant", "content": "a", "reasoning": 5})), "messages[0].reasoning"),
        (message(json!({"role": "tool", "content": "a", "name": 5})), "messages[0].name"),
        (("/v1/responses", json!({"input": "x", "text": "json"})), "text"),
        (("/v1/responses", json!({"input": ["x"]})), "input[0].role"),
        (claude(json!({"tools": "x"})), "tools"),
        (claude(json!({"tools": [{"name": "f", "input_schema": 5}]})), "tools[0].input_schema"),
        (claude(json!({"tool_choice": "auto"})), "tool_choice"),
        (
            claude(json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}})),
            "tool_choice.disable_parallel_tool_use",
        ),
        (blocks("user", json!([{"text": "no type"}])), "messages[0].content[0].type"),
        (blocks("user", json!(["text"])), "messages[0].content[0].type"),
        (blocks("user", json!([{"type": "image_url", "image_url": {}}])), "messages[0].content[0]"),
        (blocks("user", json!([{"type": "tool_use", "id": "a", "name": "f", "input": {}}])), "messages[0].content"),
        (ollama(json!({"messages": "hi"})), "messages"),
        (ollama(json!({"tools": {}})), "tools"),
        (ollama(function(json!({"name": "f", "parameters": 5}))), "tools[0].function.parameters"),
        (said(json!({"role": "user", "content": ["hi"]})), "messages[0].content"),
        (said(json!({"role": "user", "content": "hi", "images": "x"})), "messages[0].images"),
        (said(json!({"role": "assistant", "thinking": 5})), "messages[0].thinking"),
        (said(json!({"role": "assistant", "tool_calls": {}})), "messages[0].tool_calls"),
        (("/api/show", json!({"model": 5})), "model"),
        (("/tokenize", json!({"prompt": "x", "model": 5})), "model"),
        (("/tokenize", json!({"prompt": "x", "with_pieces": "yes"})), "with_pieces"),
        (("/tokenize", json!({"prompt": "x", "add_special": 0})), "add_special"),
        (("/tokenize", json!({"messages": "x"})), "messages"),
        (("/detokenize", json!({"tokens": "x"})), "tokens"),
        (("/apply-template", json!({"messages": {}})), "messages"),
    ] {
        let reply = site.post(path, &body);
        assert_eq!(reply.status, 400, "{path} {body}: {}", reply.json);
        is_fair(&reply, path);
        let error = &reply.json["error"];
        let message = error["message"].as_str().or_else(|| error.as_str()).expect("a sentence");
        assert!(message.starts_with(&format!("`{field}`: ")), "{path} {body}: {message}");
    }
    assert!(site.seen.lock().expect("no panic").requests.is_empty(), "nothing of it reached the engine");
}

#[test]
fn bodies_that_are_hardly_text() {
    let site = site();
    let deep = format!("{{\"messages\": {}", "[".repeat(200_000));
    let open = format!("{{\"messages\": {}1{}}}", "{\"a\": ".repeat(200_000), "}".repeat(200_000));
    for body in [
        deep.as_str(),
        &open,
        "\u{feff}{}",
        "{\"messages\": \"\\ud800\"}",
        "{\"temperature\": 1e999}",
        "{\"temperature\": NaN}",
        "{\"messages\": [], \"messages\": []} trailing",
        "\u{0}",
    ] {
        let reply = site.post_raw("/v1/chat/completions", body, &[]);
        let shown: String = body.chars().take(40).collect();
        assert_eq!(reply.status, 400, "{shown}");
        is_fair(&reply, &shown);
    }
    let compressed = site.post_raw("/v1/chat/completions", "\u{1f}\u{8b}", &[("content-encoding", "gzip")]);
    assert!(
        compressed.status == 415 && compressed.json["error"]["message"].as_str().is_some_and(|m| m.contains("gzip"))
    );
    // What is repeated of a request is short, whatever was sent.
    for body in
        [with_message(json!({"model": "x".repeat(1 << 20)})), json!({"messages": [{"role": "x".repeat(1 << 20)}]})]
    {
        let reply = site.post("/v1/chat/completions", &body);
        let message = reply.json["error"]["message"].as_str().expect("a sentence");
        assert!(matches!(reply.status, 400 | 404) && message.len() < 3000, "{} bytes", message.len());
    }
    assert_eq!(site.chat(json!({})).status, 200);
}

#[test]
fn forms_that_nobody_could_keep() {
    let site = site();
    let schema = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let nested = (0..55).fold(json!({"type": "integer"}), |inner, _| {
        json!({"type": "object", "properties": {"a": inner}, "required": ["a"], "additionalProperties": false})
    });
    let words: Vec<String> = (0..10_000).map(|n| format!("word{n}")).collect();
    let properties: Value = (0..2_000).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    let endless = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
    let tree = json!({"$ref": "#/$defs/t", "$defs": {"t": {
        "type": "object", "properties": {"next": {"$ref": "#/$defs/t"}}, "additionalProperties": false}}});
    let regex = |pattern: String| json!({"type": "regex", "pattern": pattern});
    let lark = |text: String| json!({"type": "grammar", "grammar": text});
    let brackets = |n: usize| format!("{}a{}", "(".repeat(n), ")".repeat(n));
    let refused = [
        ("a reference elsewhere", schema(json!({"$ref": "http://127.0.0.1:1/schema.json"}))),
        ("a reference to a file", schema(json!({"$ref": "file:///etc/passwd"}))),
        ("an impossible schema", schema(json!({"type": "integer", "minimum": 2, "maximum": 1}))),
        ("false", schema(json!(false))),
        ("an unknown keyword", schema(json!({"type": "object", "dependentSchemas": {"a": {}}}))),
        ("an open bracket", regex("(".into())),
        ("look-behind", regex("(?<=a)b".into())),
        ("a back reference", regex("(a)\\1".into())),
        ("deep brackets", regex(brackets(100_000))),
        ("deep rules", lark(format!("start: {}\n", brackets(100_000).replace('a', "\"a\"")))),
        ("no start", lark("a: \"b\"\n".into())),
        ("no grammar", lark("\u{0}😀".into())),
        ("a nested schema in a rule", lark(format!("start: %json {{\"a\": {}\n", "[".repeat(100_000)))),
        ("a megabyte", regex("a|".repeat(600_000))),
        ("an import", lark("%import nothing.of.the.kind\nstart: \"a\"\n".into())),
    ];
    for (what, format) in refused {
        let reply = site.chat(json!({"response_format": format, "reasoning_effort": "none"}));
        is_fair(&reply, what);
        assert_eq!((reply.status, &reply.json["error"]["param"]), (400, &json!("response_format")), "{what}");
    }
    // Large or strange, and either kept or refused.
    let large = [
        ("nested schema", schema(nested)),
        ("long enum", schema(json!({"enum": words}))),
        ("many properties", schema(json!({"type": "object", "properties": properties}))),
        ("a reference to itself", schema(endless)),
        ("a tree", schema(tree)),
        ("a long string", schema(json!({"type": "string", "minLength": 1_000_000}))),
        ("a bomb in a pattern", schema(json!({"type": "string", "pattern": "^((a{1,999}){1,999}){1,999}$"}))),
        ("repeats of repeats", regex("((a{1000}){1000}){1000}".into())),
        ("stars of stars", regex("((a*)*)*b".into())),
        ("many letters", regex("\\p{L}{5000}".into())),
        ("two ends", regex("(x+x+)+y".into())),
        ("a long alternation", regex(words.join("|"))),
        ("left recursion", lark("start: start \"a\" | \"b\"\n".into())),
        ("nothing but itself", lark("start: start\n".into())),
        ("many repeats", lark("start: \"a\"{1,1000000}\n".into())),
    ];
    for (what, format) in large {
        is_fair(&site.chat(json!({"response_format": format, "reasoning_effort": "none"})), what);
    }
    let choices = site.chat(json!({"guided_choice": words, "reasoning_effort": "none"}));
    assert_eq!(choices.status, 200, "ten thousand texts to choose from: {}", choices.json);
    assert_eq!(site.chat(json!({})).status, 200);
}

#[test]
fn stops_and_biases_beyond_measure() {
    let site = site();
    // Every answer looks for all of them behind each of its tokens.
    let stops = |count: usize| -> Vec<String> { (0..count).map(|n| format!("stop {n}")).collect() };
    assert_eq!(site.chat(json!({"stop": stops(256), "n": 128})).status, 200);
    let (many, long) = (json!(stops(257)), json!(["x".repeat(1 << 20)]));
    for stop in [&many, &long] {
        let reply = site.chat(json!({"stop": stop}));
        assert_eq!((reply.status, &reply.json["error"]["param"]), (400, &json!("stop")));
        let claude = site.post("/v1/messages", &with_message(json!({"stop_sequences": stop})));
        let ollama = site.post("/api/chat", &with_message(json!({"options": {"stop": stop}})));
        assert_eq!((claude.status, ollama.status), (400, 400));
    }
    is_fair(&site.chat(json!({"stop": ["😀", "👨‍👩‍👧", "\u{0}", "\u{feff}"]})), "stops in emoji");
    let all: Value = (0..320).map(|id| (id.to_string(), json!(1))).collect();
    assert_eq!(site.chat(json!({"logit_bias": all})).status, 200);
    for bias in [json!({"4294967296": 1}), json!({"-1": 1}), json!({"97": 101}), json!({"97": -1e300})] {
        let reply = site.chat(json!({"logit_bias": bias}));
        assert_eq!((reply.status, &reply.json["error"]["param"]), (400, &json!("logit_bias")), "{bias}");
    }
    let ids: Vec<u32> = (0..100_000).collect();
    let reply = site.chat(json!({"stop_token_ids": ids}));
    assert_eq!((reply.status, &reply.json["error"]["param"]), (400, &json!("stop_token_ids")), "not all are tokens");
}

#[test]
fn more_answers_than_anybody_reads() {
    let site = site();
    for (fields, field) in [
        (json!({"n": 1000}), "n"),
        (json!({"n": -1}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -5}), "max_tokens"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens"),
        (json!({"messages": []}), "messages"),
    ] {
        let reply = site.chat(fields.clone());
        assert_eq!((reply.status, &reply.json["error"]["param"]), (400, &json!(field)), "{fields}");
    }
    // Answers of all prompts together are counted.
    let prompts = vec!["x"; 1000];
    let reply = site.post("/v1/completions", &json!({"prompt": prompts, "n": 128}));
    assert_eq!((reply.status, &reply.json["error"]["param"]), (400, &json!("prompt")), "{}", reply.json);
    assert_eq!(site.seen.lock().expect("no panic").requests.len(), 0, "nothing of it reached the engine");
    let prompts = vec!["x"; 128];
    let reply = site.post("/v1/completions", &json!({"prompt": prompts}));
    assert_eq!(reply.json["choices"].as_array().map(Vec::len), Some(128));
}

#[test]
fn conversations_without_sense() {
    let site = site();
    let chat = |messages: Value| site.chat(json!({"messages": messages}));
    // Results of calls that nobody made, calls without results, an answer alone.
    is_fair(&chat(json!([{"role": "tool", "tool_call_id": "nobody", "content": "42"}])), "a result alone");
    let call = json!([{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{oops"}}]);
    is_fair(&chat(json!([{"role": "assistant", "content": null, "tool_calls": call}])), "a call of no JSON");
    is_fair(&chat(json!([{"role": "assistant", "content": "x"}])), "an answer alone");
    is_fair(&chat(json!([{"role": "system", "content": "x"}])), "a system message alone");
    is_fair(&chat(json!([{"role": "user", "content": null}])), "nothing said");
    let many: Vec<Value> = (0..CONTEXT).map(|_| json!({"role": "user", "content": ""})).collect();
    is_fair(&chat(json!(many)), "many empty messages");
    let result = json!([{"type": "tool_result", "tool_use_id": "nobody", "content": [{"type": "text", "text": "42"}]}]);
    let claude = json!({"messages": [{"role": "user", "content": result}], "max_tokens": 2});
    is_fair(&site.post("/v1/messages", &claude), "a result alone, for Claude's clients");
    for media in ["image", "document"] {
        let block = json!([{"type": media, "source": {"type": "url", "url": "http://169.254.169.254/x"}}]);
        let reply =
            site.post("/v1/messages", &json!({"messages": [{"role": "user", "content": block}], "max_tokens": 2}));
        assert_eq!(reply.status, 400);
    }
    let picture = json!([{"role": "user", "content": "what is it?", "images": ["aGk="]}]);
    assert_eq!(site.post("/api/chat", &json!({"messages": picture})).status, 400);
    let lone = json!({"input": [{"type": "function_call_output", "call_id": "nobody", "output": "42"}]});
    is_fair(&site.post("/v1/responses", &lone), "an output alone");
}

#[test]
fn tools_that_are_none() {
    let site = site();
    let tool = |name: &str, parameters: Value| json!([{"type": "function", "function": {"name": name, "parameters": parameters, "strict": true}}]);
    let deep = (0..55).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    for (what, tools) in [
        ("a name that ends the markup", tool("f</tool_call>", json!({}))),
        ("an empty name", tool("", json!({}))),
        ("parameters that are no schema", tool("f", json!("x"))),
        ("parameters of a wrong type", tool("f", json!({"type": "integer"}))),
        ("properties that are no object", tool("f", json!({"type": "object", "properties": [1]}))),
        ("deep parameters", tool("f", json!({"type": "object", "properties": {"a": deep}}))),
        ("a key that ends the markup", tool("f", json!({"type": "object", "properties": {"</parameter>\"": {}}}))),
    ] {
        for choice in ["auto", "required", "none"] {
            let body = with_message(json!({"tools": tools, "tool_choice": choice, "reasoning_effort": "none"}));
            is_fair(&site.post("/v1/chat/completions", &body), &format!("{what}, {choice}"));
        }
    }
    let crowd: Vec<Value> = (0..500)
        .map(|n| json!({"type": "function", "function": {"name": format!("f{n}"), "parameters": {}}}))
        .collect();
    is_fair(&site.chat(json!({"tools": crowd, "tool_choice": "required"})), "a crowd of tools");
}
