//! The tokenizer, carried from `tokenizer.json` to GGUF metadata and back.

use crate::side;
use anyhow::{Context, Result, anyhow, bail};
use onebit_checkpoint::gguf::{Array, Value};
use onebit_text::{GgufVocab, Specials, Tokenizer};
use serde_json::{Map, Value as Json, json};
use std::path::Path;

/// Token types of GGUF.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Text on which both forms of a tokenizer must agree: case, digits, spaces, line breaks, contractions, combining marks
/// in both normal forms, several scripts, emoji.
const PROBE: &str = "It's 12345 o'CLOCK,  don't   wait!\n\n\tfn main() { x += 1.5e-3; }\r\n  e\u{301}\u{e9} \u{915}\u{94d}\u{937} \
                     日本語のテスト 한국어 Привет мир 🙂👩‍👩‍👧 ...  \u{a0}end \n ";

/// GGUF key-values of the tokenizer in a folder, padded to `rows` tokens. Warnings go to `notes`.
///
/// # Errors
/// A tokenizer that GGUF cannot express.
pub(super) fn to_gguf(
    folder: &Path,
    config: &Json,
    rows: usize,
    notes: &mut Vec<String>,
) -> Result<Vec<(String, Value)>> {
    let path = folder.join("tokenizer.json");
    let bytes = side::read(&path)?.ok_or_else(|| anyhow!("{} is missing", path.display()))?;
    let json: Json = serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?;
    let tokenizer = Tokenizer::from_json(&bytes).with_context(|| path.display().to_string())?;
    let tokenizer_config = side::read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let generation = side::read_json(&folder.join("generation_config.json"))?.unwrap_or_default();

    let regex = word_regex(&json).unwrap_or_default();
    let Some(pre) = GgufVocab::word_rule_name(&regex) else {
        bail!("the tokenizer cuts text by the rule `{regex}`, which has no name in GGUF");
    };
    let mut vocab = GgufVocab { model: "gpt2".to_owned(), pre: pre.to_owned(), ..GgufVocab::default() };
    list_tokens(&json, rows, &mut vocab)?;
    vocab.merges = merges(&json)?;
    let id = |name: &str| {
        let named = tokenizer_config.get(name);
        let text = named.and_then(|n| n.as_str().or_else(|| n.get("content").and_then(Json::as_str)));
        text.and_then(|text| tokenizer.id_of(text)).or_else(|| {
            let key = format!("{}_id", name);
            [&generation, config, config.get("text_config").unwrap_or(&Json::Null)]
                .into_iter()
                .find_map(|j| first_id(j.get(&key)?))
        })
    };
    (vocab.bos, vocab.eos, vocab.pad) = (id("bos_token"), id("eos_token"), id("pad_token"));
    vocab.add_bos = tokenizer_config.get("add_bos_token").and_then(Json::as_bool).unwrap_or(false);
    agree(&tokenizer, &Tokenizer::from_gguf(vocab.clone())?)?;

    let stops = onebit_text::stop_tokens(Some(config), Some(&generation), &tokenizer);
    let kept = onebit_text::stop_tokens(None, None, &Tokenizer::from_gguf(vocab.clone())?);
    let lost: Vec<String> = stops.iter().filter(|id| !kept.contains(id)).map(u32::to_string).collect();
    if !lost.is_empty() {
        notes.push(format!("GGUF has no place for the further end tokens {}; they are left out", lost.join(", ")));
    }

    let key = |leaf: &str| format!("tokenizer.ggml.{leaf}");
    let mut out = vec![
        (key("model"), Value::Str(vocab.model)),
        (key("pre"), Value::Str(vocab.pre)),
        (key("tokens"), Value::Array(Array::Str(vocab.tokens))),
        (key("token_type"), Value::Array(Array::I32(vocab.token_types))),
        (key("merges"), Value::Array(Array::Str(vocab.merges))),
        (key("add_bos_token"), Value::Bool(vocab.add_bos)),
    ];
    for (leaf, id) in [("bos_token_id", vocab.bos), ("eos_token_id", vocab.eos), ("padding_token_id", vocab.pad)] {
        out.extend(id.map(|id| (key(leaf), Value::U32(id))));
    }
    let jinja = side::read_text(&folder.join("chat_template.jinja"))?;
    let inline = tokenizer_config.get("chat_template").and_then(Json::as_str).map(str::to_owned);
    if let Some(template) = jinja.or(inline) {
        out.push(("tokenizer.chat_template".to_owned(), Value::Str(template)));
    } else if tokenizer_config.get("chat_template").is_some() {
        notes.push("the chat template is a list of templates, for which GGUF has no key; it is left out".to_owned());
    }
    out.extend(sampling_keys(&generation));
    Ok(out)
}

/// `generation_config.json` as the sampling keys of GGUF.
fn sampling_keys(generation: &Json) -> Vec<(String, Value)> {
    let key = |leaf: &str| format!("general.sampling.{leaf}");
    let mut out = Vec::new();
    if generation.get("do_sample").and_then(Json::as_bool) == Some(false) {
        out.push((key("temp"), Value::F32(0.0)));
        return out;
    }
    if let Some(k) = generation.get("top_k").and_then(Json::as_u64).and_then(|k| i32::try_from(k).ok()) {
        out.push((key("top_k"), Value::I32(k)));
    }
    for (json, leaf) in
        [("temperature", "temp"), ("top_p", "top_p"), ("min_p", "min_p"), ("repetition_penalty", "penalty_repeat")]
    {
        out.extend(generation.get(json).and_then(Json::as_f64).map(|v| (key(leaf), Value::F32(v as f32))));
    }
    out
}

/// The regex by which the tokenizer cuts words.
fn word_regex(json: &Json) -> Option<String> {
    let steps = json.pointer("/pre_tokenizer/pretokenizers")?.as_array()?;
    let regex = steps.iter().find_map(|step| step.pointer("/pattern/Regex")?.as_str());
    regex.map(str::to_owned)
}

/// Tokens and their types by id.
fn list_tokens(json: &Json, rows: usize, vocab: &mut GgufVocab) -> Result<()> {
    let entries = json.pointer("/model/vocab").and_then(Json::as_object);
    let entries = entries.ok_or_else(|| anyhow!("tokenizer.json has no vocabulary"))?;
    let added = json.get("added_tokens").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    let id_of = |value: Option<&Json>| value.and_then(Json::as_u64).map(|id| id as usize);
    let highest =
        entries.values().map(|v| id_of(Some(v))).chain(added.iter().map(|a| id_of(a.get("id")))).flatten().max();
    let size = highest.map_or(0, |id| id + 1).max(rows);
    // A padding entry as other converters write it.
    vocab.tokens = (0..size).map(|id| format!("[PAD{id}]")).collect();
    vocab.token_types = vec![UNUSED; size];
    for (text, id) in entries {
        let id = id_of(Some(id)).ok_or_else(|| anyhow!("tokenizer.json gives `{text}` an id that is no number"))?;
        vocab.tokens[id].clone_from(text);
        vocab.token_types[id] = NORMAL;
    }
    for token in added {
        let (Some(id), Some(text)) = (id_of(token.get("id")), token.get("content").and_then(Json::as_str)) else {
            bail!("tokenizer.json has an added token without id or content");
        };
        let special = token.get("special").and_then(Json::as_bool).unwrap_or(false);
        text.clone_into(&mut vocab.tokens[id]);
        vocab.token_types[id] = if special { CONTROL } else { USER_DEFINED };
    }
    Ok(())
}

/// Merge rules, whichever way the file spells them.
fn merges(json: &Json) -> Result<Vec<String>> {
    let rules = json.pointer("/model/merges").and_then(Json::as_array);
    let rules = rules.ok_or_else(|| anyhow!("tokenizer.json has no merge rules"))?;
    let rule = |rule: &Json| match rule {
        Json::String(text) => Some(text.clone()),
        Json::Array(pair) => match pair.as_slice() {
            [Json::String(left), Json::String(right)] => Some(format!("{left} {right}")),
            _ => None,
        },
        _ => None,
    };
    rules.iter().map(|r| rule(r).ok_or_else(|| anyhow!("tokenizer.json has the merge rule {r}"))).collect()
}

fn first_id(value: &Json) -> Option<u32> {
    let one = |v: &Json| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Json::Array(ids) => ids.iter().find_map(one),
        other => one(other),
    }
}

/// Fails unless both forms cut a difficult text alike.
fn agree(a: &Tokenizer, b: &Tokenizer) -> Result<()> {
    for specials in [Specials::Parse, Specials::Literal] {
        let (a, b) = (a.encode(PROBE, specials)?, b.encode(PROBE, specials)?);
        if a != b {
            bail!(
                "the tokenizer has no exact form in the other container: a test text gives {} and {} tokens",
                a.len(),
                b.len()
            );
        }
    }
    Ok(())
}

/// The text files of an MLX folder.
pub(super) struct SideFiles {
    /// Name and content.
    pub(super) files: Vec<(&'static str, Vec<u8>)>,
    /// End, begin and padding ids for `config.json`.
    pub(super) ids: Map<String, Json>,
}

/// `tokenizer.json` and its companions from GGUF metadata.
///
/// # Errors
/// A tokenizer that the file cannot express.
pub(super) fn to_mlx(source: &crate::source::Source) -> Result<SideFiles> {
    let vocab = side::gguf_vocab(source)?;
    let original = Tokenizer::from_gguf(vocab.clone())?;
    let json = tokenizer_json(&vocab)?;
    let bytes = serde_json::to_vec(&json)?;
    agree(&original, &Tokenizer::from_json(&bytes)?)?;

    let text = side::TextSide::read(source)?;
    let token = |id: Option<u32>| id.and_then(|id| vocab.tokens.get(id as usize)).map(|t| json!(t));
    let mut config = Map::new();
    config.insert("add_bos_token".to_owned(), json!(vocab.add_bos));
    for (key, id) in [("bos_token", vocab.bos), ("eos_token", vocab.eos), ("pad_token", vocab.pad)] {
        config.extend(token(id).map(|t| (key.to_owned(), t)));
    }
    config.insert("tokenizer_class".to_owned(), json!("Qwen2Tokenizer"));
    let mut ids = Map::new();
    for (key, id) in [("bos_token_id", vocab.bos), ("pad_token_id", vocab.pad)] {
        ids.extend(id.map(|id| (key.to_owned(), json!(id))));
    }
    ids.insert("eos_token_id".to_owned(), json!(text.eos));

    let mut generation = ids.clone();
    let side::GenerationDefaults { temperature, top_k, top_p, min_p, repetition_penalty, .. } = text.defaults;
    if let Some(temperature) = temperature {
        generation.insert("do_sample".to_owned(), json!(temperature > 0.0));
    }
    generation.extend(top_k.map(|k| ("top_k".to_owned(), json!(k))));
    for (key, value) in [
        ("temperature", temperature.filter(|t| *t > 0.0)),
        ("top_p", top_p),
        ("min_p", min_p),
        ("repetition_penalty", repetition_penalty),
    ] {
        generation.extend(value.map(|v| (key.to_owned(), super::hyper::short(f64::from(v)))));
    }
    let mut files = vec![
        ("tokenizer.json", bytes),
        ("tokenizer_config.json", serde_json::to_vec_pretty(&config)?),
        ("generation_config.json", serde_json::to_vec_pretty(&generation)?),
    ];
    let template = source.checkpoint().meta("tokenizer.chat_template").and_then(onebit_checkpoint::Meta::as_str);
    files.extend(template.map(|t| ("chat_template.jinja", t.as_bytes().to_vec())));
    Ok(SideFiles { files, ids })
}

fn tokenizer_json(vocab: &GgufVocab) -> Result<Json> {
    let words = GgufVocab::word_rule(&vocab.pre).ok_or_else(|| anyhow!("unknown word rule `{}`", vocab.pre))?;
    let mut entries = Map::new();
    let mut added = Vec::new();
    for (id, text) in vocab.tokens.iter().enumerate() {
        match vocab.token_types.get(id).copied().unwrap_or(NORMAL) {
            UNUSED => {}
            kind @ (UNKNOWN | CONTROL | USER_DEFINED) => added.push(json!({
                "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": kind != USER_DEFINED,
            })),
            _ => {
                entries.insert(text.clone(), json!(id));
            }
        }
    }
    let merges: Vec<Json> = vocab
        .merges
        .iter()
        .map(|rule| rule.split_once(' ').map(|(left, right)| json!([left, right])))
        .collect::<Option<_>>()
        .ok_or_else(|| anyhow!("a merge rule has no space"))?;
    let byte_level = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": false, "use_regex": false});
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false},
            byte_level(false),
        ]},
        "post_processor": byte_level(false),
        "decoder": byte_level(false),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": entries, "merges": merges,
        },
    }))
}
