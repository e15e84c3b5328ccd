//! The ids that end an answer.

use serde_json::Value;

use crate::tokenizer::Tokenizer;

/// Texts that end a turn in every Bonsai model.
const END_TEXTS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// All ids that end an answer, ascending: those of `config.json` (also in its
/// `text_config`), of `generation_config.json`, and the tokenizer's own. The
/// sources disagree in published files, and each alone lets answers run on.
pub fn stop_tokens(config: Option<&Value>, generation_config: Option<&Value>, tokenizer: &Tokenizer) -> Vec<u32> {
    let text_config = config.and_then(|c| c.get("text_config"));
    let mut out: Vec<u32> = [config, text_config, generation_config]
        .into_iter()
        .flatten()
        .filter_map(|json| json.get("eos_token_id"))
        .flat_map(listed_ids)
        .chain(END_TEXTS.iter().filter_map(|text| tokenizer.id_of(text)))
        .chain(tokenizer.eos())
        .collect();
    out.sort_unstable();
    out.dedup();
    out
}

/// One id or a list of them; anything else names none.
fn listed_ids(value: &Value) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(ids) => ids.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}
