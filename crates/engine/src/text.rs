//! Text in front of the engine: whole characters, reasoning apart from the answer, a cut exactly before a stop string.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::event::{Event, FinishReason, Usage};
use crate::request::Request;
use crate::thinking::Thinking;
use onebit_text::{
    Specials, StopError, StopMatcher, TextStream, ThinkMarkers, ThinkPiece, ThinkingSplitter, Tokenizer, TokenizerError,
};
use std::ops::ControlFlow;

/// Turns the tokens of one request into text.
///
/// Bytes of a character that is not complete are held back, and of the answer the longest end that may still become a
/// stop string. Stop strings are looked for in the answer only: reasoning may contain them.
#[derive(Debug, Clone)]
pub struct TextGeneration {
    stream: TextStream,
    splitter: Option<ThinkingSplitter>,
    stops: StopMatcher,
}

impl TextGeneration {
    /// For one request. `splitter` takes the reasoning apart, for models that have any.
    ///
    /// # Errors
    /// [`StopError`] for an empty stop string.
    pub fn new(splitter: Option<ThinkingSplitter>, stop: &[String]) -> Result<Self, StopError> {
        Ok(TextGeneration { stream: TextStream::new(), splitter, stops: StopMatcher::new(stop.iter().cloned())? })
    }

    /// Adds a token and returns the text that is certain.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Vec<ThinkPiece> {
        let text = self.stream.push(tokenizer, token);
        self.split(&text)
    }

    /// Ends the text: what was held back is text after all.
    pub fn finish(&mut self) -> Vec<ThinkPiece> {
        let text = self.stream.finish();
        let mut pieces = self.split(&text);
        let rest = self.splitter.as_mut().map(ThinkingSplitter::finish).unwrap_or_default();
        pieces.extend(rest.into_iter().filter_map(|piece| self.cut(piece)));
        if self.stopped_by().is_none() {
            pieces.extend(answer(self.stops.finish()));
        }
        pieces
    }

    /// Index of the stop string that ended the answer, if one did. What comes later is swallowed.
    pub fn stopped_by(&self) -> Option<usize> {
        self.stops.stopped_by()
    }

    fn split(&mut self, text: &str) -> Vec<ThinkPiece> {
        let pieces = match &mut self.splitter {
            Some(splitter) => splitter.push(text),
            None => vec![ThinkPiece::Answer(text.to_owned())],
        };
        pieces.into_iter().filter_map(|piece| self.cut(piece)).collect()
    }

    fn cut(&mut self, piece: ThinkPiece) -> Option<ThinkPiece> {
        match piece {
            ThinkPiece::Answer(text) => answer(self.stops.push(&text).text),
            reasoning @ ThinkPiece::Reasoning(_) => Some(reasoning),
        }
    }
}

fn answer(text: String) -> Option<ThinkPiece> {
    (!text.is_empty()).then_some(ThinkPiece::Answer(text))
}

/// What [`Engine::generate_text`] reports on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextEvent {
    /// Part of the prompt has been read.
    Prefill {
        /// Prompt tokens in the cache.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// Text of the reasoning block.
    Reasoning(String),
    /// Text of the answer.
    Answer(String),
}

impl From<ThinkPiece> for TextEvent {
    fn from(piece: ThinkPiece) -> Self {
        match piece {
            ThinkPiece::Reasoning(text) => TextEvent::Reasoning(text),
            ThinkPiece::Answer(text) => TextEvent::Answer(text),
        }
    }
}

/// How [`Engine::generate_text`] ended, with all that it reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextCompletion {
    /// Text of the reasoning block.
    pub reasoning: String,
    /// Text of the answer.
    pub answer: String,
    /// Index of the stop string that ended it.
    pub stopped_by: Option<usize>,
    /// Why it ended.
    pub reason: FinishReason,
    /// What it used.
    pub usage: Usage,
}

impl Engine {
    /// Runs one request to its end as text. Breaking cancels it; what was held back is then still reported in the
    /// completion.
    ///
    /// # Errors
    /// Those of [`Engine::generate`], and [`EngineError::Stop`] for an empty stop string.
    pub fn generate_text(
        &mut self,
        tokenizer: &Tokenizer,
        request: Request,
        stop: &[String],
        mut on_event: impl FnMut(&TextEvent) -> ControlFlow<()>,
    ) -> Result<TextCompletion, EngineError> {
        let splitter = request.thinking.as_ref().map(|thinking| thinking.splitter(tokenizer));
        let mut text = TextGeneration::new(splitter, stop)?;
        let (mut reasoning, mut answer) = (String::new(), String::new());
        let mut take = |event: TextEvent, wanted: bool| -> ControlFlow<()> {
            match &event {
                TextEvent::Reasoning(piece) => reasoning.push_str(piece),
                TextEvent::Answer(piece) => answer.push_str(piece),
                TextEvent::Prefill { .. } => {}
            }
            if wanted { on_event(&event) } else { ControlFlow::Continue(()) }
        };
        let mut broken = false;
        let completion = self.generate(request, |event| {
            match event {
                Event::Prefill { done, total, .. } => {
                    broken |= take(TextEvent::Prefill { done: *done, total: *total }, !broken).is_break();
                }
                Event::Token { token, .. } => {
                    for piece in text.push(tokenizer, *token) {
                        broken |= take(piece.into(), !broken).is_break();
                    }
                }
                Event::Diverged { .. } | Event::Finished { .. } | Event::Failed { .. } => {}
            }
            if broken || text.stopped_by().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        for piece in text.finish() {
            broken |= take(piece.into(), !broken).is_break();
        }
        let stopped_by = text.stopped_by();
        let reason = if stopped_by.is_some() { FinishReason::StopString } else { completion.reason };
        Ok(TextCompletion { reasoning, answer, stopped_by, reason, usage: completion.usage })
    }
}

impl Thinking {
    /// The reasoning block of a model whose vocabulary has `<think>` and `</think>`; `None` for other models. `open`
    /// says that the prompt ends inside the block.
    ///
    /// # Errors
    /// [`TokenizerError`] when the closing text cannot be encoded.
    pub fn of(tokenizer: &Tokenizer, open: bool, budget: Option<usize>) -> Result<Option<Thinking>, TokenizerError> {
        let markers = ThinkMarkers::default();
        let Some(end) = tokenizer.id_of(&markers.close) else { return Ok(None) };
        let closing = tokenizer.encode(&format!("\n{}\n\n", markers.close), Specials::Parse)?;
        Ok(Some(Thinking { start: tokenizer.id_of(&markers.open), end, open, budget, closing }))
    }

    /// Takes the text of the block apart from the answer.
    pub fn splitter(&self, tokenizer: &Tokenizer) -> ThinkingSplitter {
        let mut markers = ThinkMarkers { close: tokenizer.decode(&[self.end]), ..ThinkMarkers::default() };
        if let Some(start) = self.start {
            markers.open = tokenizer.decode(&[start]);
        }
        ThinkingSplitter::new(markers, self.open)
    }
}
