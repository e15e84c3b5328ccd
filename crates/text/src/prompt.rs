//! A rendered conversation, ready to encode.

use crate::error::TokenizerError;
use crate::special::Stretch;
use crate::thinking::ThinkMarkers;
use crate::tokenizer::{Specials, Tokenizer};

/// What a chat template made of a conversation. It still knows which special
/// tokens the template wrote and which are letters of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    marked: String,
    marker: char,
}

impl Prompt {
    pub(crate) fn new(marked: String, marker: char) -> Self {
        Self { marked, marker }
    }

    /// The prompt as a person would read it.
    pub fn text(&self) -> String {
        self.marked.replace(self.marker, "")
    }

    /// Ids of the prompt. Template text is parsed with special tokens on,
    /// message text with special tokens off. No beginning-of-text token is
    /// added: the template writes what the model needs.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        for stretch in tokenizer.specials().split(&self.marked) {
            match stretch {
                Stretch::Special(id) => ids.push(id),
                Stretch::Plain(text) => {
                    let text = text.replace(self.marker, "");
                    ids.extend(tokenizer.encode(&text, Specials::Literal)?);
                }
            }
        }
        Ok(ids)
    }

    /// Whether the template has opened a thinking block and left it open, so
    /// that the model's first words are reasoning.
    pub fn opens_thinking(&self, markers: &ThinkMarkers) -> bool {
        match (self.marked.rfind(&markers.open), self.marked.rfind(&markers.close)) {
            (Some(open), Some(close)) => open > close,
            (open, _) => open.is_some(),
        }
    }
}
