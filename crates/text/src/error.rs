//! What can go wrong with text, each as one sentence.

use thiserror::Error;

/// A tokenizer that cannot be built or used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.json` is not the JSON that it should be.
    #[error("tokenizer.json cannot be read ({reason}): download it again, or take it from the base model's repository")]
    Json {
        /// The parser's words, with line and column.
        reason: String,
    },
    /// A tokenizer of another family.
    #[error(
        "the tokenizer's {part} is {got}, but only {wanted} is supported: this file is not a Bonsai or Qwen tokenizer"
    )]
    Unsupported {
        /// Which part of the tokenizer.
        part: &'static str,
        /// What the file says.
        got: String,
        /// What would work.
        wanted: &'static str,
    },
    /// Metadata that contradicts itself.
    #[error("the tokenizer metadata is damaged: {reason}; download the file again")]
    Damaged {
        /// What contradicts what.
        reason: String,
    },
    /// The merge rules and the vocabulary do not fit each other.
    #[error("the tokenizer's merge rules cannot be used ({reason}); download the file again")]
    Merges {
        /// The library's words.
        reason: String,
    },
    /// A text that the tokenizer could not encode.
    #[error("a text of {bytes} bytes could not be encoded: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// The library's words.
        reason: String,
    },
}

/// A conversation that cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template file itself is wrong.
    #[error(
        "the chat template in {origin} is not valid Jinja (line {line}): {reason}; use --raw to prompt without a template"
    )]
    Syntax {
        /// Where the template came from.
        origin: String,
        /// Line in the template.
        line: usize,
        /// The parser's words.
        reason: String,
    },
    /// `tokenizer_config.json` has no readable template field.
    #[error("{origin} cannot be read as a chat template: {reason}")]
    Source {
        /// Where the template was looked for.
        origin: String,
        /// What is wrong there.
        reason: String,
    },
    /// The template called `raise_exception`.
    #[error("the model's chat template refuses this conversation: {message}")]
    Refused {
        /// The template's own words.
        message: String,
    },
    /// The template failed while it ran.
    #[error("the chat template in {origin} failed at line {line}: {reason}")]
    Render {
        /// Where the template came from.
        origin: String,
        /// Line in the template.
        line: usize,
        /// The engine's words.
        reason: String,
    },
    /// An image or video for a template that knows none.
    #[error("message {index} holds an image or video, but this model's chat template takes text only")]
    MediaUnsupported {
        /// Index of the message.
        index: usize,
    },
    /// An image or video in a system message.
    #[error("message {index} is a system message with an image or video: put media into a user message")]
    MediaInSystem {
        /// Index of the message.
        index: usize,
    },
    /// Arguments of an earlier tool call that are not a JSON object.
    #[error(
        "message {index} calls the tool \"{tool}\" with arguments that are not a JSON object: send an object or its JSON text"
    )]
    ToolArguments {
        /// Index of the message.
        index: usize,
        /// Name of the tool.
        tool: String,
    },
    /// Every character that could mark protected text occurs in the input.
    #[error("the conversation uses every private Unicode character, so its text cannot be protected: remove some")]
    NoMarker,
}

/// Stop strings that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StopError {
    /// An empty stop string would stop every answer before its first letter.
    #[error("stop string {index} is empty: leave it out")]
    Empty {
        /// Its index in the list.
        index: usize,
    },
}

/// A form of answers that cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// A vocabulary that forms cannot be compiled for.
    #[error("answers of a prescribed form are not possible with this model's vocabulary: {reason}")]
    Vocabulary {
        /// The library's words.
        reason: String,
    },
    /// A form that cannot be read, or that asks for what is not supported.
    #[error("the {kind} cannot be kept: {reason}")]
    Grammar {
        /// What kind of form it is.
        kind: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl ConstraintError {
    pub(crate) fn grammar(kind: &'static str, reason: String) -> Self {
        ConstraintError::Grammar { kind, reason }
    }
}
