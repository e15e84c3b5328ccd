//! Ids as the reference tokenizer gives them, from both kinds of file.

use onebit_text::{GgufVocab, Specials, Tokenizer, TokenizerError, stop_tokens};
use serde_json::{Value, json};

use crate::{testdata, tokenizer};

fn gguf_vocab(family: &str) -> GgufVocab {
    let json: Value =
        serde_json::from_slice(&testdata(&format!("tokenizer/{family}.gguf-vocab.json"))).expect("valid JSON");
    let texts = |key: &str| -> Vec<String> {
        let list = json[key].as_array().expect("a list");
        list.iter().map(|v| v.as_str().expect("a text").to_owned()).collect()
    };
    let types = json["token_type"].as_array().expect("a list");
    GgufVocab {
        model: json["model"].as_str().expect("a text").to_owned(),
        pre: json["pre"].as_str().expect("a text").to_owned(),
        tokens: texts("tokens"),
        merges: texts("merges"),
        token_types: types.iter().map(|v| v.as_i64().expect("a number") as i32).collect(),
        eos: json["eos"].as_u64().map(|id| id as u32),
        ..GgufVocab::default()
    }
}

fn from_gguf(family: &str) -> Tokenizer {
    Tokenizer::from_gguf(gguf_vocab(family)).expect("a tokenizer")
}

fn both(family: &str) -> [Tokenizer; 2] {
    [tokenizer(family), from_gguf(family)]
}

#[test]
fn reference_encodings() {
    for family in ["qwen3", "qwen35"] {
        let cases: Vec<Value> =
            serde_json::from_slice(&testdata(&format!("tokenizer/{family}.encodings.json"))).expect("valid JSON");
        assert_eq!(cases.len(), 15);
        for tokenizer in both(family) {
            for case in &cases {
                let text = case["text"].as_str().expect("a text");
                let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("ids");
                assert_eq!(tokenizer.encode(text, Specials::Parse).expect("ids"), ids, "{text:?}");
                assert_eq!(tokenizer.decode(&ids), case["decoded"].as_str().expect("a text"));
            }
        }
    }
}

/// A letter and a combining mark (its two bytes written `Ì§`) are one word for
/// the newer family only, so only there can they merge.
#[test]
fn families_differ_in_combining_marks() {
    let ids = |pre: &str| {
        let vocab = GgufVocab {
            model: "gpt2".into(),
            pre: pre.into(),
            tokens: ["x", "Ì", "§", "xÌ", "xÌ§"].map(String::from).to_vec(),
            merges: ["x Ì", "xÌ §"].map(String::from).to_vec(),
            ..GgufVocab::default()
        };
        let tokenizer = Tokenizer::from_gguf(vocab).expect("a tokenizer");
        tokenizer.encode("x\u{327}", Specials::Literal).expect("ids")
    };
    assert_eq!(ids("qwen2"), [0, 1, 2]);
    assert_eq!(ids("qwen35"), [4]);
    assert_eq!(ids("qwen3.5"), [4]);
}

#[test]
fn literal_text_has_no_special_ids() {
    for tokenizer in both("qwen35") {
        for special in ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</tool_call>"] {
            let id = tokenizer.id_of(special).expect("a special token");
            assert_eq!(tokenizer.encode(special, Specials::Parse).expect("ids"), [id]);
            let literal = tokenizer.encode(special, Specials::Literal).expect("ids");
            assert!(literal.len() > 1 && !literal.contains(&id), "{special}");
            assert_eq!(tokenizer.decode(&literal), special);
        }
    }
}

#[test]
fn token_bytes_are_true_bytes() {
    for tokenizer in both("qwen3") {
        let ids = tokenizer.encode("é 🙂", Specials::Literal).expect("ids");
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).collect();
        assert_eq!(bytes, "é 🙂".as_bytes());
        assert!(ids.iter().any(|&id| std::str::from_utf8(&tokenizer.token_bytes(id)).is_err()));
        let end = tokenizer.id_of("<|im_end|>").expect("there");
        assert_eq!(tokenizer.token_bytes(end), b"<|im_end|>");
        assert!(tokenizer.is_special(end));
        assert!(!tokenizer.is_special(tokenizer.id_of("<think>").expect("there")));
        for outside in [320, 100_000, u32::MAX] {
            assert_eq!(tokenizer.token_bytes(outside), b"");
        }
    }
    assert_eq!(tokenizer("qwen3").vocab_size(), 306);
    assert_eq!(from_gguf("qwen3").vocab_size(), 320, "with its padding");
    assert_eq!(from_gguf("qwen3").token_bytes(319), b"", "padding has no text");
}

#[test]
fn stop_ids_from_all_sources() {
    let tokenizer = tokenizer("qwen35");
    assert_eq!(stop_tokens(None, None, &tokenizer), [280, 282]);
    let config = json!({"eos_token_id": 7, "text_config": {"eos_token_id": [8, 280]}});
    let generation = json!({"eos_token_id": [9, 282, "x", -1, 1.5]});
    assert_eq!(stop_tokens(Some(&config), Some(&generation), &tokenizer), [7, 8, 9, 280, 282]);
    assert_eq!(stop_tokens(Some(&json!({"eos_token_id": null})), None, &tokenizer), [280, 282]);
}

#[test]
fn unknown_rules_are_refused() {
    let with = |change: &dyn Fn(&mut GgufVocab)| {
        let mut vocab = gguf_vocab("qwen3");
        change(&mut vocab);
        Tokenizer::from_gguf(vocab).expect_err("refused")
    };
    let error = with(&|v| v.pre = "llama-bpe".into()).to_string();
    assert!(error.contains("\"llama-bpe\"") && error.contains("qwen35"), "{error}");
    assert!(matches!(with(&|v| v.model = "llama".into()), TokenizerError::Unsupported { .. }));
    assert!(matches!(with(&|v| v.tokens.clear()), TokenizerError::Damaged { .. }));
    assert!(matches!(with(&|v| v.token_types.truncate(3)), TokenizerError::Damaged { .. }));
    assert!(matches!(with(&|v| v.token_types[0] = 77), TokenizerError::Damaged { .. }));
    assert!(matches!(with(&|v| v.eos = Some(320)), TokenizerError::Damaged { .. }));
    assert!(matches!(with(&|v| v.tokens[1] = "!".into()), TokenizerError::Damaged { .. }));
    assert!(matches!(with(&|v| v.merges[0] = "he".into()), TokenizerError::Merges { .. }));
    assert!(matches!(with(&|v| v.merges[0] = "h nothere".into()), TokenizerError::Merges { .. }));
}

#[test]
fn bad_json_is_refused() {
    let change = |pointer: &str, value: Value| {
        let mut json: Value = serde_json::from_slice(&testdata("tokenizer/qwen3.tokenizer.json")).expect("valid");
        *json.pointer_mut(pointer).expect("there") = value;
        Tokenizer::from_json(json.to_string().as_bytes()).expect_err("refused")
    };
    for text in ["", "{}", "<html>", "[1]"] {
        let error = Tokenizer::from_json(text.as_bytes()).expect_err("refused");
        assert!(matches!(error, TokenizerError::Json { .. }), "{text}: {error}");
    }
    assert!(matches!(change("/decoder", Value::Null), TokenizerError::Unsupported { .. }));
    assert!(matches!(change("/pre_tokenizer", Value::Null), TokenizerError::Unsupported { .. }));
    assert!(matches!(change("/added_tokens/0/lstrip", true.into()), TokenizerError::Unsupported { .. }));
    assert!(matches!(change("/added_tokens/0/id", u32::MAX.into()), TokenizerError::Damaged { .. }));
}
