//! Answers of a prescribed form: which tokens may come next under a JSON schema, a regular expression or a grammar.
//!
//! The parsing is done by `llguidance`. Forms come from strangers: a form that cannot be kept, in whole, is refused when it
//! is compiled, and its parser works within fixed limits.

use crate::error::ConstraintError;
use crate::tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, earley::SlicedBiasComputer};
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// The form of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema, as JSON text, allows.
    JsonSchema(String),
    /// Text that a regular expression matches from its first to its last character.
    Regex(String),
    /// A context-free grammar in llguidance's variant of Lark. Special tokens are written as they are, `<tool_call>`;
    /// `%json { ... }` stands for JSON of a schema.
    Lark(String),
}

/// Compiles forms for one vocabulary. Making it takes a while for a large one; it serves any number of requests.
pub struct ConstraintFactory {
    factory: ParserFactory,
    vocab: usize,
}

impl ConstraintFactory {
    /// For a tokenizer and a model whose logits have `vocab` values. Tokens that the tokenizer does not have are never
    /// allowed.
    ///
    /// # Errors
    /// [`ConstraintError::Vocabulary`] for tokens that the library cannot work with.
    pub fn new(tokenizer: &Tokenizer, vocab: usize) -> Result<Self, ConstraintError> {
        let fail = |reason: String| ConstraintError::Vocabulary { reason };
        let size = u32::try_from(vocab).map_err(|e| fail(e.to_string()))?;
        let mut words: Vec<Vec<u8>> = (0..size).map(|id| tokenizer.token_slice(id).to_vec()).collect();
        for special in tokenizer.specials().tokens() {
            if let Some(word) = words.get_mut(special.id as usize) {
                // The mark keeps letters of a text from being read as the token.
                word.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
        }
        // Ends of answers are the engine's business: no token ends one here.
        let trie = TokTrie::from(&TokRxInfo::new(size, INVALID_TOKEN), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|e| fail(e.to_string()))?;
        factory.quiet();
        // Errors are shown to the person who asked and may be logged: no grammar and no answer in them.
        factory.limits_mut().verbose_errors = false;
        Ok(ConstraintFactory { factory, vocab })
    }

    /// Compiles a form.
    ///
    /// # Errors
    /// [`ConstraintError::Grammar`] when it cannot be read, or asks for what is not supported.
    pub fn compile(&self, grammar: &Grammar) -> Result<TokenConstraint, ConstraintError> {
        let (kind, grammar) = match grammar {
            Grammar::JsonObject => {
                ("JSON object", TopLevelGrammar::from_json_schema(spaced(json!({ "type": "object" }))))
            }
            Grammar::JsonSchema(text) => {
                let schema = serde_json::from_str(text);
                let schema = schema.map_err(|e| ConstraintError::grammar("JSON schema", e.to_string()))?;
                ("JSON schema", TopLevelGrammar::from_json_schema(spaced(schema)))
            }
            Grammar::Regex(text) => ("regular expression", TopLevelGrammar::from_regex(text)),
            Grammar::Lark(text) => ("grammar", TopLevelGrammar::from_lark(text.clone())),
        };
        let parser =
            llguidance::panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| self.factory.create_parser(grammar)));
        let parser = parser.map_err(|e| ConstraintError::grammar(kind, in_words(&e)))?;
        let mut constraint = TokenConstraint { matcher: Matcher::new(Ok(parser)), complete: false, vocab: self.vocab };
        constraint.look().map_err(|reason| ConstraintError::grammar(kind, reason))?;
        Ok(constraint)
    }
}

/// The library's error as a person can read it: without its mark for details left out, and its name for a dead end.
fn in_words(error: &impl ToString) -> String {
    let text = error.to_string().replace("<non-verbose/>", "");
    match text.trim() {
        "NoExtensionBias" => "no text has this form".to_owned(),
        text => text.to_owned(),
    }
}

/// JSON of a schema as the body of a rule of [`Grammar::Lark`], spaced as [`Grammar::JsonSchema`] is.
pub fn json_rule(schema: Json) -> String {
    format!("%json {}", spaced(schema))
}

/// JSON on one line, with a blank behind commas and colons or without, unless the schema says otherwise: small models
/// write line breaks without end where they may.
fn spaced(mut schema: Json) -> Json {
    let spacing = json!({ "whitespace_flexible": false, "item_separator": r",\x20?", "key_separator": r":\x20?" });
    if let Some(object) = schema.as_object_mut() {
        object.entry("x-guidance").or_insert(spacing);
    }
    schema
}

/// A form, and how far an answer has come in it.
pub struct TokenConstraint {
    matcher: Matcher,
    complete: bool,
    vocab: usize,
}

impl TokenConstraint {
    /// The tokens that may come next: bit `t % 32` of word `t / 32` for token `t`. None when nothing is left to say. End
    /// tokens are no part of it.
    ///
    /// # Errors
    /// A sentence, when the form is too complex to go on.
    pub fn mask(&mut self) -> Result<Arc<[u32]>, String> {
        let words = self.vocab.div_ceil(32);
        if self.matcher.is_stopped() && self.complete {
            return Ok(vec![0; words].into());
        }
        let mask = self.matcher.compute_mask().map_err(|e| in_words(&e))?;
        Ok(mask.as_slice()[..words].into())
    }

    /// Takes the next token of the answer.
    ///
    /// # Errors
    /// A sentence, when the form does not allow it.
    pub fn accept(&mut self, token: u32) -> Result<(), String> {
        self.matcher.consume_token(token).map_err(|e| in_words(&e))?;
        self.look()
    }

    /// The answer may end here.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The same form at the same place, for another answer.
    #[must_use]
    pub fn fork(&self) -> Self {
        TokenConstraint { matcher: self.matcher.deep_clone(), complete: self.complete, vocab: self.vocab }
    }

    fn look(&mut self) -> Result<(), String> {
        self.complete = self.matcher.is_accepting().map_err(|e| in_words(&e))?;
        Ok(())
    }
}

impl std::fmt::Debug for TokenConstraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenConstraint").field("complete", &self.complete).finish_non_exhaustive()
    }
}
