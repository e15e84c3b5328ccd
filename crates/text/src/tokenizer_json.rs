//! Reading `tokenizer.json`.

use serde::Deserialize;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use crate::error::TokenizerError;
use crate::special::SpecialToken;
use crate::tokenizer::{NamedIds, Parts};

/// Ids above this are taken as damage, so that no lying file makes a huge
/// table. The largest Bonsai vocabulary has 248,320 entries.
pub(crate) const MAX_VOCAB: usize = 1 << 22;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    decoder: Option<DecoderWrapper>,
    model: ModelWrapper,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

/// Checks the file and takes it apart.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parts, TokenizerError> {
    let file: File = serde_json::from_slice(bytes).map_err(|e| TokenizerError::Json { reason: e.to_string() })?;
    let bpe = match file.model {
        ModelWrapper::BPE(bpe) => bpe,
        other => return Err(wrong_model(&other)),
    };
    if !matches!(file.decoder, Some(DecoderWrapper::ByteLevel(_))) {
        return Err(TokenizerError::Unsupported {
            part: "decoder",
            got: if file.decoder.is_some() { "of another kind" } else { "missing" }.into(),
            wanted: "ByteLevel",
        });
    }
    let Some(pre_tokenizer) = file.pre_tokenizer else {
        return Err(TokenizerError::Unsupported {
            part: "pre-tokenizer",
            got: "missing".into(),
            wanted: "a regex split with ByteLevel",
        });
    };
    for token in &file.added_tokens {
        if token.single_word || token.lstrip || token.rstrip {
            return Err(TokenizerError::Unsupported {
                part: "special token matching",
                got: format!("lstrip, rstrip or single_word for \"{}\"", token.content),
                wanted: "exact matching",
            });
        }
    }

    let entries: Vec<(u32, String)> = bpe.get_vocab().into_iter().map(|(entry, id)| (id, entry)).collect();
    let specials: Vec<SpecialToken> =
        file.added_tokens.into_iter().map(|t| SpecialToken { id: t.id, text: t.content, control: t.special }).collect();
    let highest = entries.iter().map(|(id, _)| *id).chain(specials.iter().map(|t| t.id)).max();
    let Some(highest) = highest else {
        return Err(TokenizerError::Damaged { reason: "it has no token".into() });
    };
    let size = highest as usize + 1;
    if size > MAX_VOCAB {
        return Err(TokenizerError::Damaged {
            reason: format!("it names token id {highest}, but ids end at {}", MAX_VOCAB - 1),
        });
    }
    Ok(Parts { bpe, normalizer: file.normalizer, pre_tokenizer, specials, entries, size, named: NamedIds::default() })
}

fn wrong_model(model: &ModelWrapper) -> TokenizerError {
    let got = match model {
        ModelWrapper::BPE(_) => "BPE",
        ModelWrapper::WordPiece(_) => "WordPiece",
        ModelWrapper::WordLevel(_) => "WordLevel",
        ModelWrapper::Unigram(_) => "Unigram",
    };
    TokenizerError::Unsupported { part: "model", got: got.into(), wanted: "BPE" }
}
