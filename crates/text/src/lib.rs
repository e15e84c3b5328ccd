//! Text in and out of a language model: tokenizers, chat templates, and the
//! splitting of a streamed answer into reasoning, answer and tool calls.
//!
//! Everything here works on bytes and strings that the caller has read; the
//! crate opens no file and knows no model.
//!
//! * [`Tokenizer`] encodes and decodes; [`TextStream`] decodes token by token.
//! * [`ChatTemplate`] renders a conversation to a [`Prompt`], whose
//!   [`Prompt::encode`] never lets message text become control tokens.
//! * [`StopMatcher`], [`ThinkingSplitter`], [`ToolSplitter`] and
//!   [`OutputSplitter`] cut the stream that comes back.
//! * [`ConstraintFactory`] says which tokens may come next in an answer of a
//!   prescribed form.

#![forbid(unsafe_code)]

mod byte_level;
mod chat;
mod constraint;
mod error;
mod gguf_vocab;
mod hold;
mod json_python;
mod message;
mod output;
mod prompt;
mod protect;
mod special;
mod stop;
mod stop_tokens;
mod stream;
mod thinking;
mod tokenizer;
mod tokenizer_json;
mod tool_parse;
mod tool_stream;
mod tools;

pub use chat::{ChatTemplate, RenderOptions};
pub use constraint::{ConstraintFactory, Grammar, TokenConstraint, json_rule};
pub use error::{ChatError, ConstraintError, StopError, TokenizerError};
pub use gguf_vocab::GgufVocab;
pub use message::{Content, Message, Part, Role};
pub use output::{OutputPiece, OutputSplitter};
pub use prompt::Prompt;
pub use stop::{StopMatcher, StopPiece};
pub use stop_tokens::stop_tokens;
pub use stream::TextStream;
pub use thinking::{ThinkMarkers, ThinkPiece, ThinkingSplitter};
pub use tokenizer::{Specials, Tokenizer};
pub use tools::{CallPart, ToolCall, ToolForm, ToolPiece, ToolSpec, ToolSplitter};
