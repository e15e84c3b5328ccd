//! A model that is ready to answer.

use crate::error::ApiError;
use crate::host::{Host, TokenSource};
use crate::painter::Painter;
use crate::picture::{PictureCheck, PictureDefaults, PictureSource};
use onebit_engine::SamplingParams;
use onebit_text::{ChatTemplate, ConstraintFactory, Grammar, TokenConstraint, Tokenizer};
use std::sync::{Arc, OnceLock};

/// Everything about text that a checkpoint brings along.
#[derive(Debug)]
pub struct ModelText {
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// How conversations become prompts; base models have none.
    pub template: Option<ChatTemplate>,
    /// How the model's makers sample: what holds where a request is silent.
    pub sampling: SamplingParams,
    /// Ids that end an answer.
    pub eos: Vec<u32>,
}

/// What a model answers with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModelKind {
    /// Text, token by token.
    #[default]
    Text,
    /// Pictures.
    Image,
}

impl ModelKind {
    /// The name in listings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ModelKind::Text => "text",
            ModelKind::Image => "image",
        }
    }
}

/// What the listings say about a model, loaded or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Card {
    /// What it answers with.
    pub kind: ModelKind,
    /// The architecture as its config names it.
    pub architecture: String,
    /// Weights in the model.
    pub parameters: u64,
    /// Bytes of the packed weights.
    pub bytes: u64,
    /// The stored format of most weights, such as `Q1_0`.
    pub format: String,
    /// Folder or file.
    pub path: String,
    /// The context that the model was made for.
    pub trained_context: usize,
}

/// What a loader hands over.
pub struct Loaded(Source);

enum Source {
    Text(Box<TextSource>),
    Pictures(Painter),
}

struct TextSource {
    host: Host,
    text: ModelText,
    context: usize,
    vocab: usize,
}

impl Loaded {
    /// A source with its text side. `context` is how many tokens one sequence may hold, `vocab` how many logits there
    /// are. The source is made on a thread of its own.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new<S: TokenSource>(
        make: impl FnOnce() -> S + Send + 'static,
        text: ModelText,
        context: usize,
        vocab: usize,
    ) -> std::io::Result<Self> {
        Ok(Self(Source::Text(Box::new(TextSource { host: Host::start(make)?, text, context, vocab }))))
    }

    /// A source of pictures, made on a thread of its own; `check` judges orders beside it.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn pictures<S: PictureSource>(
        make: impl FnOnce() -> S + Send + 'static,
        check: PictureCheck,
        defaults: PictureDefaults,
    ) -> std::io::Result<Self> {
        Ok(Self(Source::Pictures(Painter::start(make, check, defaults)?)))
    }
}

/// A loaded model of either kind.
pub(crate) enum Ready {
    Text(SharedModel),
    Image(Arc<Painter>),
}

impl Ready {
    pub(crate) fn new(name: String, Loaded(source): Loaded) -> Self {
        match source {
            Source::Text(source) => {
                let TextSource { host, text, context, vocab } = *source;
                Self::Text(Arc::new(Model { name, text, host, context, vocab, constraints: OnceLock::new() }))
            }
            Source::Pictures(painter) => Self::Image(Arc::new(painter)),
        }
    }

    /// Why it can no longer be used, if it cannot.
    pub(crate) fn broken(&self) -> Option<String> {
        match self {
            Self::Text(model) => model.host.broken(),
            Self::Image(painter) => painter.broken(),
        }
    }

    /// What ends it and waits until its memory is free, unless somebody uses it.
    pub(crate) fn end_of_idle(self) -> Result<Box<dyn FnOnce()>, Self> {
        match self {
            Self::Text(model) => match Arc::try_unwrap(model) {
                Ok(model) => Ok(Box::new(|| model.host.end())),
                Err(used) => Err(Self::Text(used)),
            },
            Self::Image(painter) => match Arc::try_unwrap(painter) {
                Ok(painter) => Ok(Box::new(|| painter.end())),
                Err(used) => Err(Self::Image(used)),
            },
        }
    }
}

/// Bytes of the longest form that is compiled. The compiler's own limits refuse longer ones as well, after minutes.
const LARGEST_FORM: usize = 1 << 20;

/// A model that is ready to answer.
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) text: ModelText,
    pub(crate) host: Host,
    pub(crate) context: usize,
    /// Logits that there are.
    pub(crate) vocab: usize,
    /// Made when the first constraint is asked for: it takes a second for a large vocabulary.
    constraints: OnceLock<Result<ConstraintFactory, String>>,
}

impl Model {
    /// The template, for requests that hold a conversation.
    pub(crate) fn template(&self) -> Result<&ChatTemplate, ApiError> {
        self.text.template.as_ref().ok_or_else(|| {
            ApiError::bad(format!(
                "the model {} has no chat template, so it cannot take messages; use /v1/completions with a prompt",
                self.name
            ))
        })
    }

    /// Makes a grammar into a constraint. Takes long: not for an async thread.
    pub(crate) fn constraint(&self, grammar: &Grammar) -> Result<TokenConstraint, ApiError> {
        let bytes = match grammar {
            Grammar::JsonObject => 0,
            Grammar::JsonSchema(text) | Grammar::Regex(text) | Grammar::Lark(text) => text.len(),
        };
        if bytes > LARGEST_FORM {
            let message = format!("the form has {bytes} bytes, and at most {LARGEST_FORM} can be kept");
            return Err(ApiError::bad(message));
        }
        let make = || ConstraintFactory::new(&self.text.tokenizer, self.vocab).map_err(|e| e.to_string());
        let factory = self.constraints.get_or_init(make).as_ref().map_err(ApiError::internal)?;
        let mut constraint = factory.compile(grammar)?;
        // What cannot even begin is refused here, where its field has a name.
        let first = constraint.mask().map_err(|reason| ApiError::bad(format!("the form cannot be kept: {reason}")))?;
        if !constraint.is_complete() && first.iter().all(|word| *word == 0) {
            return Err(ApiError::bad("the form cannot be kept: no text has this form"));
        }
        Ok(constraint)
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("name", &self.name).field("context", &self.context).finish_non_exhaustive()
    }
}

/// A model that answers, shared between requests.
pub(crate) type SharedModel = Arc<Model>;
