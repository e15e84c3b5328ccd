//! A tokenizer from the metadata of a GGUF file.

use ahash::AHashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use crate::error::TokenizerError;
use crate::special::SpecialToken;
use crate::tokenizer::{NamedIds, Parts};
use crate::tokenizer_json::MAX_VOCAB;

/// The `tokenizer.ggml.*` keys of a GGUF file, as plain data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GgufVocab {
    /// `model`: the kind of tokenizer; `gpt2` means byte-level BPE.
    pub model: String,
    /// `pre`: the name of the rule that cuts text into words.
    pub pre: String,
    /// `tokens`, by id.
    pub tokens: Vec<String>,
    /// `merges`: two entries with a space between them, best first.
    pub merges: Vec<String>,
    /// `token_type`, by id; may be empty, when all are normal.
    pub token_types: Vec<i32>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: bool,
}

/// Word rule of the Qwen 2 and 3 models: letters, single digits, runs of
/// punctuation, and spaces that stay with the line break or the next word.
const QWEN2_WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same for Qwen 3.5 and later, where combining marks belong to letters.
const QWEN35_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Values of `token_type`.
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
    pub(super) const BYTE: i32 = 6;
}

impl GgufVocab {
    /// The regex of the word rule of this name (`pre`), for the rules that are known.
    pub fn word_rule(pre: &str) -> Option<&'static str> {
        match pre {
            "qwen2" => Some(QWEN2_WORDS),
            "qwen35" | "qwen3.5" => Some(QWEN35_WORDS),
            _ => None,
        }
    }

    /// The name (`pre`) of the word rule with this regex.
    pub fn word_rule_name(regex: &str) -> Option<&'static str> {
        ["qwen2", "qwen35"].into_iter().find(|pre| Self::word_rule(pre) == Some(regex))
    }
}

fn damaged(reason: impl Into<String>) -> TokenizerError {
    TokenizerError::Damaged { reason: reason.into() }
}

/// Checks the metadata and takes it apart.
pub(crate) fn parse(vocab: GgufVocab) -> Result<Parts, TokenizerError> {
    if vocab.model != "gpt2" {
        return Err(TokenizerError::Unsupported {
            part: "model (tokenizer.ggml.model)",
            got: format!("\"{}\"", vocab.model),
            wanted: "\"gpt2\" (byte-level BPE)",
        });
    }
    let Some(words) = GgufVocab::word_rule(&vocab.pre) else {
        return Err(TokenizerError::Unsupported {
            part: "word rule (tokenizer.ggml.pre)",
            got: format!("\"{}\"", vocab.pre),
            wanted: "\"qwen2\" or \"qwen35\"",
        });
    };
    let size = vocab.tokens.len();
    if size == 0 || size > MAX_VOCAB {
        return Err(damaged(format!("it lists {size} tokens, not 1 to {MAX_VOCAB}")));
    }
    if !vocab.token_types.is_empty() && vocab.token_types.len() != size {
        return Err(damaged(format!("it lists {size} tokens but {} token types", vocab.token_types.len())));
    }
    for (name, id) in [("bos", vocab.bos), ("eos", vocab.eos), ("padding", vocab.pad)] {
        if let Some(id) = id.filter(|&id| id as usize >= size) {
            return Err(damaged(format!("its {name} id {id} is not among its {size} tokens")));
        }
    }

    let merges = vocab
        .merges
        .iter()
        .map(|rule| match rule.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() => Ok((left.to_owned(), right.to_owned())),
            _ => Err(TokenizerError::Merges {
                reason: format!("\"{rule}\" is not two entries with a space between them"),
            }),
        })
        .collect::<Result<Vec<_>, _>>()?;

    let mut specials = Vec::new();
    let mut entries = Vec::with_capacity(size);
    for (id, text) in vocab.tokens.into_iter().enumerate() {
        let token_type = vocab.token_types.get(id).copied().unwrap_or(kind::NORMAL);
        let id = id as u32;
        match token_type {
            kind::NORMAL | kind::BYTE => entries.push((id, text)),
            kind::CONTROL | kind::UNKNOWN => {
                specials.push(SpecialToken { id, text, control: true });
            }
            kind::USER_DEFINED => specials.push(SpecialToken { id, text, control: false }),
            // Padding of the list to a round size: no text has these.
            kind::UNUSED => {}
            other => return Err(damaged(format!("token {id} has the unknown type {other}"))),
        }
    }
    let table: AHashMap<String, u32> = entries.iter().map(|(id, t)| (t.clone(), *id)).collect();
    if table.len() != entries.len() {
        return Err(damaged("two tokens have the same text"));
    }
    let bpe = BPE::builder()
        .vocab_and_merges(table, merges)
        .build()
        .map_err(|e| TokenizerError::Merges { reason: e.to_string() })?;
    let split = Split::new(SplitPattern::Regex(words.to_owned()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| damaged(e.to_string()))?;
    let pre_tokenizer = PreTokenizerWrapper::Sequence(Sequence::new(vec![
        PreTokenizerWrapper::Split(split),
        PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)),
    ]));
    Ok(Parts {
        bpe,
        normalizer: Some(NormalizerWrapper::NFC(NFC)),
        pre_tokenizer,
        specials,
        entries,
        size,
        named: NamedIds { bos: vocab.bos, eos: vocab.eos, pad: vocab.pad, add_bos: vocab.add_bos },
    })
}
