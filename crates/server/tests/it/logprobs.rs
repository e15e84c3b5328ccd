//! Log-probabilities.

use crate::support::Setup;
use serde_json::{Value, json};

fn half() -> Vec<&'static [u8]> {
    let emoji = "🙂".as_bytes();
    vec![b"a", &emoji[..2], &emoji[2..], b"z"]
}

#[test]
fn with_and_without_alternatives() {
    let site = Setup::default().says(&half());
    for top in [json!(null), json!(0), json!(1), json!(20)] {
        let fields = json!({"logprobs": true, "top_logprobs": top, "reasoning_effort": "none"});
        let whole = site.chat(fields.clone()).json["choices"][0]["logprobs"]["content"].clone();
        let streamed = site.chat_stream(fields);
        assert_eq!(json!(streamed.logprobs), whole, "the same in a stream");
        let entries = whole.as_array().expect("a list");
        assert_eq!(entries.len(), 4, "one for each token, halves of characters included");
        for entry in entries {
            let listed = entry["top_logprobs"].as_array().expect("a list");
            assert_eq!(listed.len() as u64, top.as_u64().unwrap_or(0));
            let sum: f64 = listed.iter().map(|t| t["logprob"].as_f64().expect("a number").exp()).sum();
            assert!(sum <= 1.0 + 1e-6, "probabilities of {sum}");
        }
        // Natural logarithm of one half.
        assert!((entries[0]["logprob"].as_f64().expect("a number") + std::f64::consts::LN_2).abs() < 1e-6);
        assert_eq!((&entries[1]["bytes"], &entries[1]["token"]), (&json!([0xf0, 0x9f]), &json!("\u{fffd}")));
    }
    let too_many = site.chat(json!({"logprobs": true, "top_logprobs": 21}));
    assert_eq!((too_many.status, &too_many.json["error"]["param"]), (400, &json!("top_logprobs")));
    let alone = site.chat(json!({"top_logprobs": 2}));
    assert_eq!((alone.status, &alone.json["error"]["param"]), (400, &json!("top_logprobs")));
    assert_eq!(site.chat(json!({"logprobs": null})).json["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn the_older_form() {
    let site = Setup::default().says(&half());
    let reply = site.post("/v1/completions", &json!({"prompt": "x", "logprobs": 2})).json;
    let logprobs = &reply["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "\u{fffd}", "\u{fffd}\u{fffd}", "z"]));
    assert_eq!(logprobs["token_logprobs"].as_array().map(Vec::len), Some(4));
    assert_eq!(logprobs["text_offset"][1], 1);
}

#[test]
fn tokens_of_reasoning_calls_and_stops_are_not_of_the_answer() {
    let (site, _) = Setup::default().says_in_cuts("hm</think>ab STOP more");
    let text = "hm</think>ab STOP more";
    let fields = json!({"logprobs": true, "stop": "STOP", "seed": text.len(), "reasoning_effort": "high"});
    // The script's markers come in bytes, so that its source calls every token reasoning: nothing is left.
    let reply = site.chat(fields);
    assert_eq!(reply.json["choices"][0]["logprobs"]["content"], json!([]));
    let (site, _) = Setup::default().says_in_cuts("ab STOP more");
    let fields = json!({"logprobs": true, "stop": "STOP", "seed": "ab STOP more".len(), "reasoning_effort": "none"});
    let reply = site.chat(fields.clone());
    let tokens: String = reply.json["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|t| t["token"].as_str().expect("text"))
        .collect();
    assert_eq!((tokens.as_str(), &reply.json["choices"][0]["message"]["content"]), ("ab ", &json!("ab ")));
    assert_eq!(site.chat_stream(fields).logprobs.len(), 3);
}
