//! The tokens that a text encoder reads: one message of a user, and an answer that begins without thinking.

use super::ImageError;
use onebit_text::{Specials, Tokenizer};

/// Ids of a prompt in its frame. Letters of the prompt never become control tokens.
pub(super) fn encode(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>, ImageError> {
    let mut ids = tokenizer.encode("<|im_start|>", Specials::Parse)?;
    // In one piece: "user", the line break and the prompt's first letters may merge.
    ids.extend(tokenizer.encode(&format!("user\n{prompt}"), Specials::Literal)?);
    let frame = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    ids.extend(tokenizer.encode(frame, Specials::Parse)?);
    Ok(ids)
}

/// The id that stands behind the prompt up to the full length.
pub(super) fn padding(tokenizer: &Tokenizer) -> Result<u32, ImageError> {
    let found = tokenizer.id_of("<|endoftext|>").or_else(|| tokenizer.pad());
    found.ok_or_else(|| ImageError::Tokenizer("it has no token `<|endoftext|>` to pad prompts with".to_owned()))
}
