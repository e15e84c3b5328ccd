//! Tool calls of both forms, cut at every byte, in streams and whole.

use crate::support::{Setup, TAGS, THINKS, with_message};
use serde_json::{Value, json};

fn offered() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
                "where": {"type": "object"},
            },
            "required": ["city"],
        }}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
    ])
}

/// Content, reasoning, calls and reason of an answer; the same in a stream and whole, however it is cut.
#[track_caller]
fn check(template: &'static str, text: &'static str, content: &str, reasoning: &str, calls: &[(&str, Value)]) {
    let (site, cuts) = Setup { template: Some(template), ..Setup::default() }.says_in_cuts(text);
    let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
    for seed in cuts {
        let fields = json!({"tools": offered(), "seed": seed});
        let streamed = site.chat_stream(fields.clone());
        assert_eq!((streamed.content.as_str(), streamed.reasoning.as_str()), (content, reasoning), "cut at {seed}");
        let read = |calls: &[(String, String, String)]| -> Vec<(String, Value)> {
            let arguments = |text: &str| serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
            calls.iter().map(|(_, name, text)| (name.clone(), arguments(text))).collect()
        };
        let wanted: Vec<(String, Value)> = calls.iter().map(|(name, a)| ((*name).to_owned(), a.clone())).collect();
        assert_eq!(read(&streamed.calls), wanted, "cut at {seed}");
        assert_eq!(streamed.finish, [reason], "cut at {seed}");
        let ids: std::collections::BTreeSet<&String> = streamed.calls.iter().map(|(id, ..)| id).collect();
        assert_eq!(ids.len(), calls.len(), "ids differ");

        let whole = site.chat(fields);
        let choice = &whole.json["choices"][0];
        let of_whole: Vec<(String, String, String)> = choice["message"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|c| {
                let text = |v: &Value| v.as_str().expect("text").to_owned();
                (text(&c["id"]), text(&c["function"]["name"]), text(&c["function"]["arguments"]))
            })
            .collect();
        assert_eq!(read(&of_whole), wanted, "whole, cut at {seed}");
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), content);
        assert_eq!(choice["finish_reason"], reason);
    }
}

#[test]
fn json_form() {
    check(
        THINKS,
        "hm\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>",
        "Let me look.",
        "hm",
        &[("weather", json!({"city": "Köln"}))],
    );
}

#[test]
fn tag_form_is_typed_by_the_schema() {
    check(
        TAGS,
        "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork \"<b>\" {1} é\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=where>\n{\"lat\": 1.5}\n</parameter>\n</function>\n</tool_call>",
        "",
        "",
        &[("weather", json!({"city": "New\nYork \"<b>\" {1} é", "days": 3, "exact": true, "where": {"lat": 1.5}}))],
    );
}

#[test]
fn two_calls_and_text_behind() {
    check(
        TAGS,
        "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>\nDone.",
        "Done.",
        "",
        &[("now", json!({})), ("now", json!({}))],
    );
}

#[test]
fn before_inside_and_behind_the_reasoning() {
    let call = json!({});
    check(THINKS, "a\n<tool_call>{\"name\": \"now\"}</tool_call>\n</think>\n\nb", "b", "a", &[("now", call.clone())]);
    check(
        THINKS,
        "<tool_call>{\"name\": \"now\"}</tool_call></think><tool_call>{\"name\": \"now\"}</tool_call>",
        "",
        "",
        &[("now", call.clone()), ("now", call)],
    );
}

#[test]
fn a_long_call_streams_while_it_is_written() {
    let text = "<tool_call>\n<function=weather>\n<parameter=city>\nA long list of places that the caller wants to know \
        about, and which does not end before two hundred and fifty-six bytes have gone by: Aachen, Berlin, Coburg, \
        Dresden, Essen, Fürth, Gera, Hamm, Ilmenau, Jena, Köln, Lübeck, Mainz, Neuss, Olpe.\n</parameter>\n</function>\n</tool_call>";
    let place = text.split("<parameter=city>\n").nth(1).and_then(|t| t.split("\n</parameter>").next()).expect("a city");
    check(TAGS, text, "", "", &[("weather", json!({"city": place}))]);
    let (site, _) = Setup { template: Some(TAGS), ..Setup::default() }.says_in_cuts(text);
    let body = with_message(json!({"tools": offered(), "seed": text.len()}));
    let events = site.events("/v1/chat/completions", &body);
    let deltas = events.iter().filter(|(_, data)| data["choices"][0]["delta"]["tool_calls"].is_array());
    assert!(deltas.count() > 10, "the arguments come in pieces");
}

#[test]
fn malformed_calls_are_text_and_the_stream_stays_whole() {
    for text in [
        "x <tool_call>{\"name\": \"now\", \"arguments\": {}</tool_call> y",
        "<tool_call>{oops}</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nPar",
        "the <tool_call> tag",
    ] {
        check(TAGS, text, text, "", &[]);
    }
}

#[test]
fn a_call_cut_by_the_limit_is_text() {
    let text = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    let (site, _) = Setup { template: Some(TAGS), ..Setup::default() }.says_in_cuts(text);
    let reply = site.chat(json!({"tools": offered(), "seed": text.len(), "max_tokens": 20}));
    let choice = &reply.json["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(&text[..20]), &json!("length")));
}

#[test]
fn without_tools_markup_is_text() {
    let text = "<tool_call>{\"name\": \"now\"}</tool_call>";
    let (site, _) = Setup { template: Some(TAGS), ..Setup::default() }.says_in_cuts(text);
    for fields in [json!({}), json!({"tools": []}), json!({"tools": null, "tool_choice": "none"})] {
        assert_eq!(site.chat(fields).json["choices"][0]["message"]["content"], text);
    }
}

#[test]
fn choices() {
    let text = "<tool_call>{\"name\": \"now\"}</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>";
    let (site, _) = Setup { template: Some(TAGS), ..Setup::default() }.says_in_cuts(text);
    // None: the token that opens a call is barred, and what comes is text.
    let none = site.chat(json!({"tools": offered(), "tool_choice": "none"}));
    assert_eq!(none.json["choices"][0]["message"]["content"], text);
    assert_eq!(site.last_request().sampling.logit_bias, [(261, -100.0)]);
    // One call at most: the answer ends with it.
    let one = site.chat(json!({"tools": offered(), "parallel_tool_calls": false}));
    assert_eq!(one.json["choices"][0]["message"]["tool_calls"].as_array().map(Vec::len), Some(1));
    assert_eq!(one.json["choices"][0]["finish_reason"], "tool_calls");
    // The older form.
    let old = site.chat(json!({"functions": [{"name": "now"}]}));
    assert_eq!(old.json["choices"][0]["message"]["function_call"], json!({"name": "now", "arguments": "{}"}));
    assert_eq!(old.json["choices"][0]["finish_reason"], "function_call");
    // Two forms at once, or half of one: neither is passed over.
    for (fields, field) in [
        (json!({"functions": [{"name": "now"}], "tools": offered()}), "functions"),
        (json!({"functions": [{"name": "now"}], "tool_choice": "required"}), "functions"),
        (json!({"function_call": {"name": "now"}}), "function_call"),
    ] {
        let reply = site.chat(fields);
        assert_eq!((reply.status, &reply.json["error"]["param"]), (400, &json!(field)));
    }
    assert_eq!(site.chat(json!({"functions": [], "function_call": "auto", "tools": offered()})).status, 200);
    // A choice of nothing.
    for (choice, tools) in
        [(json!("required"), json!([])), (json!({"type": "function", "function": {"name": "rm"}}), offered())]
    {
        let reply = site.chat(json!({"tools": tools, "tool_choice": choice}));
        assert_eq!((reply.status, &reply.json["error"]["param"]), (400, &json!("tool_choice")));
    }
}

#[test]
fn the_same_call_in_every_dialect() {
    let text = "Now.\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n</function>\n</tool_call>";
    let (site, _) = Setup { template: Some(TAGS), ..Setup::default() }.says_in_cuts(text);
    let user = json!([{"role": "user", "content": "hi"}]);
    let schema = offered()[0]["function"]["parameters"].clone();

    let claude = json!({"max_tokens": 99, "messages": user, "tools": [{"name": "weather", "input_schema": schema}]});
    let reply = site.post("/v1/messages", &claude).json;
    assert_eq!(reply["content"][0], json!({"type": "text", "text": "Now."}));
    assert_eq!(
        (&reply["content"][1]["name"], &reply["content"][1]["input"]),
        (&json!("weather"), &json!({"city": "Köln"}))
    );
    assert_eq!(reply["stop_reason"], "tool_use");

    let flat = json!([{"type": "function", "name": "weather", "parameters": schema}]);
    let reply = site.post("/v1/responses", &json!({"input": "hi", "tools": flat})).json;
    assert_eq!(reply["output"][0]["content"][0]["text"], "Now.");
    assert_eq!(
        (&reply["output"][1]["type"], &reply["output"][1]["arguments"]),
        (&json!("function_call"), &json!("{\"city\":\"Köln\"}"))
    );

    let reply = site.post("/api/chat", &json!({"messages": user, "tools": offered(), "stream": false})).json;
    assert_eq!(
        reply["message"]["tool_calls"][0]["function"],
        json!({"name": "weather", "arguments": {"city": "Köln"}})
    );
}
