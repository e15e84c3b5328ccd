//! Byte-level BPE: text to ids and ids to bytes.

use ahash::AHashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use crate::byte_level;
use crate::error::TokenizerError;
use crate::gguf_vocab::{self, GgufVocab};
use crate::special::{SpecialSet, SpecialToken, Stretch};
use crate::tokenizer_json;

/// What the texts of special tokens mean in a text to encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// `<|im_end|>` is the control token: for text that a template wrote.
    Parse,
    /// `<|im_end|>` is ten ordinary characters: for text that a person wrote.
    Literal,
}

/// Ids that a tokenizer file names for itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NamedIds {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) pad: Option<u32>,
    pub(crate) add_bos: bool,
}

/// The parts that both file kinds give.
pub(crate) struct Parts {
    pub(crate) bpe: BPE,
    pub(crate) normalizer: Option<NormalizerWrapper>,
    pub(crate) pre_tokenizer: PreTokenizerWrapper,
    /// Every special token, controls and others.
    pub(crate) specials: Vec<SpecialToken>,
    /// Vocabulary entries in the byte alphabet, special tokens excluded.
    pub(crate) entries: Vec<(u32, String)>,
    /// One more than the highest id, unused ids included.
    pub(crate) size: usize,
    pub(crate) named: NamedIds,
}

/// A byte-level BPE tokenizer of the Qwen families.
///
/// The merging is done by a library; special tokens are cut out here, so that
/// one instance encodes both template text and literal text.
pub struct Tokenizer {
    /// Knows no special token: it merges the text between them.
    merger: tokenizers::Tokenizer,
    specials: SpecialSet,
    ids: AHashMap<String, u32>,
    /// All tokens' bytes in one buffer; token `i` is `spans[i]..spans[i + 1]`.
    bytes: Vec<u8>,
    spans: Vec<u32>,
    named: NamedIds,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("specials", &self.specials.tokens().len())
            .field("named", &self.named)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// From the bytes of a `tokenizer.json`.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Self::from_parts(tokenizer_json::parse(bytes)?)
    }

    /// From the tokenizer metadata of a GGUF file.
    pub fn from_gguf(vocab: GgufVocab) -> Result<Self, TokenizerError> {
        Self::from_parts(gguf_vocab::parse(vocab)?)
    }

    fn from_parts(parts: Parts) -> Result<Self, TokenizerError> {
        let mut table: Vec<Option<Box<[u8]>>> = vec![None; parts.size];
        let mut scratch = Vec::new();
        for (id, entry) in &parts.entries {
            scratch.clear();
            byte_level::append_bytes(entry, &mut scratch);
            table[*id as usize] = Some(scratch.as_slice().into());
        }
        let mut ids = AHashMap::with_capacity(parts.specials.len());
        for special in &parts.specials {
            table[special.id as usize] = Some(special.text.as_bytes().into());
            ids.insert(special.text.clone(), special.id);
        }
        let mut bytes = Vec::with_capacity(table.iter().flatten().map(|t| t.len()).sum());
        let mut spans = Vec::with_capacity(parts.size + 1);
        spans.push(0);
        for token in &table {
            bytes.extend_from_slice(token.as_deref().unwrap_or_default());
            let end = u32::try_from(bytes.len())
                .map_err(|_| TokenizerError::Damaged { reason: "its tokens hold more than 4 GiB of text".into() })?;
            spans.push(end);
        }

        let mut merger = tokenizers::Tokenizer::new(parts.bpe);
        merger.with_normalizer(parts.normalizer).map_err(|e| TokenizerError::Damaged { reason: e.to_string() })?;
        merger.with_pre_tokenizer(Some(parts.pre_tokenizer));
        let specials = SpecialSet::new(parts.specials).map_err(|reason| TokenizerError::Damaged { reason })?;
        Ok(Self { merger, specials, ids, bytes, spans, named: parts.named })
    }

    /// Ids of a text. A beginning-of-text token is never added: see
    /// [`Tokenizer::bos_to_add`].
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TokenizerError> {
        let mut out = Vec::with_capacity(text.len() / 3 + 1);
        match specials {
            Specials::Literal => self.merge_into(text, &mut out)?,
            Specials::Parse => {
                for stretch in self.specials.split(text) {
                    match stretch {
                        Stretch::Plain(plain) => self.merge_into(plain, &mut out)?,
                        Stretch::Special(id) => out.push(id),
                    }
                }
            }
        }
        Ok(out)
    }

    fn merge_into(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if text.is_empty() {
            return Ok(());
        }
        let encoding = self
            .merger
            .encode_fast(text, false)
            .map_err(|e| TokenizerError::Encode { bytes: text.len(), reason: e.to_string() })?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// Text of some ids, special tokens included. Bytes that are not UTF-8
    /// become U+FFFD; an id outside the vocabulary gives nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            bytes.extend_from_slice(self.token_slice(id));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The true bytes of one token, which need not be whole characters.
    /// Empty for an id outside the vocabulary or an unused one.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.token_slice(id).to_vec()
    }

    pub(crate) fn token_slice(&self, id: u32) -> &[u8] {
        let at = id as usize;
        match (self.spans.get(at), self.spans.get(at.saturating_add(1))) {
            (Some(&start), Some(&end)) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }

    /// Id of a special token by its text, such as `<|im_end|>`.
    pub fn id_of(&self, special: &str) -> Option<u32> {
        self.ids.get(special).copied()
    }

    /// One more than the highest id. The model's matrix may have more or
    /// fewer rows: size logits by the matrix, not by this.
    pub fn vocab_size(&self) -> usize {
        self.spans.len() - 1
    }

    /// Whether the id is a control token, which is not shown to a person.
    /// Thinking and tool markers are special texts, but not control tokens.
    pub fn is_special(&self, id: u32) -> bool {
        self.specials.tokens().iter().any(|t| t.id == id && t.control)
    }

    /// Beginning-of-text id that the file names.
    pub fn bos(&self) -> Option<u32> {
        self.named.bos
    }

    /// End-of-text id that the file names; see [`crate::stop_tokens`] for all.
    pub fn eos(&self) -> Option<u32> {
        self.named.eos
    }

    /// Padding id that the file names.
    pub fn pad(&self) -> Option<u32> {
        self.named.pad
    }

    /// The id that must stand before every prompt, for the few files that ask.
    pub fn bos_to_add(&self) -> Option<u32> {
        self.named.bos.filter(|_| self.named.add_bos)
    }

    pub(crate) fn specials(&self) -> &SpecialSet {
        &self.specials
    }
}
