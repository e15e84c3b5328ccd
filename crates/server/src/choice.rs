//! One answer on its way from tokens to text, reasoning and calls.

use crate::error::ApiError;
use crate::id;
use crate::prepare::Reading;
use onebit_engine::TokenLogprobs;
use onebit_text::{CallPart, OutputPiece, OutputSplitter, StopMatcher, TextStream, Tokenizer};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// A stretch of one answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    Reasoning(String),
    /// Text, and how likely its tokens were where the client asked.
    Text(String, Vec<Logprob>),
    /// A call begins: its place among the calls, its id, its name.
    CallBegin {
        call: usize,
        id: String,
        name: String,
    },
    /// The next piece of its arguments' JSON text.
    CallArguments {
        call: usize,
        text: String,
    },
    CallEnd {
        call: usize,
    },
}

/// How likely a token was.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Logprob {
    pub(crate) token: TokenText,
    /// The likeliest tokens at this place.
    pub(crate) top: Vec<TokenText>,
}

/// A token with its natural logarithm of probability.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenText {
    pub(crate) id: u32,
    /// Its true bytes, which need not be whole characters.
    pub(crate) bytes: Vec<u8>,
    pub(crate) logprob: f32,
}

impl TokenText {
    /// The bytes as text, with replacement characters for halves.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Log-probabilities as all dialects write them.
pub(crate) fn logprobs_json(logprobs: &[Logprob]) -> Value {
    let token = |t: &TokenText| json!({"token": t.text(), "logprob": t.logprob, "bytes": t.bytes});
    let entry = |l: &Logprob| {
        let mut entry = token(&l.token);
        entry["top_logprobs"] = l.top.iter().map(token).collect();
        entry
    };
    logprobs.iter().map(entry).collect()
}

/// Why an answer is over before the engine has ended it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cut {
    StopString(String),
    FirstCall,
}

/// The reader of one answer's tokens. The order is: whole characters, reasoning, calls, stop strings.
///
/// Stop strings are looked for in the text of the answer: reasoning and the arguments of calls may contain them.
pub(crate) struct Choice {
    stream: TextStream,
    splitter: OutputSplitter,
    stops: StopMatcher,
    stop_texts: Vec<String>,
    one_call: bool,
    calls: usize,
    /// Bytes of answer text that went into the stop matcher, and that came out.
    fed: usize,
    released: usize,
    /// Tokens whose text is still held back, each with the place where it begins.
    held: VecDeque<(usize, Logprob)>,
    cut: Option<Cut>,
}

impl Choice {
    pub(crate) fn new(reading: &Reading) -> Result<Self, ApiError> {
        Ok(Self {
            stream: TextStream::new(),
            splitter: reading.splitter.clone(),
            stops: StopMatcher::new(reading.stop.iter().cloned())?,
            stop_texts: reading.stop.clone(),
            one_call: reading.one_call,
            calls: 0,
            fed: 0,
            released: 0,
            held: VecDeque::new(),
            cut: None,
        })
    }

    /// Why the answer is over, if something in its text has ended it.
    pub(crate) fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Adds a token.
    pub(crate) fn push(
        &mut self,
        tokenizer: &Tokenizer,
        token: u32,
        reasoning: bool,
        logprobs: Option<TokenLogprobs>,
    ) -> Vec<Part> {
        if self.cut.is_some() {
            return Vec::new();
        }
        if let Some(logprobs) = logprobs.filter(|_| !reasoning) {
            self.held.push_back((self.fed, logprob(tokenizer, token, logprobs)));
        }
        let text = self.stream.push(tokenizer, token);
        let pieces = self.splitter.push(&text);
        self.pass(pieces)
    }

    /// Ends the answer: what was held back is text after all. The logprobs are of tokens without text of their own.
    pub(crate) fn finish(&mut self) -> (Vec<Part>, Vec<Logprob>) {
        let mut parts = Vec::new();
        if self.cut.is_none() {
            let text = self.stream.finish();
            let mut pieces = self.splitter.push(&text);
            pieces.extend(self.splitter.finish());
            parts = self.pass(pieces);
        }
        if self.cut.is_none() {
            let rest = self.stops.finish();
            self.release(rest, &mut parts);
        }
        let left = match self.cut {
            None => self.held.drain(..).map(|(_, logprob)| logprob).collect(),
            Some(_) => Vec::new(),
        };
        (parts, left)
    }

    fn pass(&mut self, pieces: Vec<OutputPiece>) -> Vec<Part> {
        let mut parts = Vec::new();
        for piece in pieces {
            if self.cut.is_some() {
                break;
            }
            match piece {
                OutputPiece::Reasoning(text) => parts.push(Part::Reasoning(text)),
                OutputPiece::Answer(text) => self.answer(&text, &mut parts),
                OutputPiece::Call(call) => {
                    self.begin(call.name, &mut parts);
                    self.arguments(call.arguments.to_string(), &mut parts);
                    self.end(&mut parts);
                }
                OutputPiece::CallPart(CallPart::Begin(name)) => self.begin(name, &mut parts),
                OutputPiece::CallPart(CallPart::Arguments(text)) => self.arguments(text, &mut parts),
                OutputPiece::CallPart(CallPart::End) => self.end(&mut parts),
            }
        }
        parts
    }

    fn answer(&mut self, text: &str, parts: &mut Vec<Part>) {
        self.fed += text.len();
        let piece = self.stops.push(text);
        if let Some(index) = piece.stopped_by {
            self.cut = Some(Cut::StopString(self.stop_texts.get(index).cloned().unwrap_or_default()));
        }
        self.release(piece.text, parts);
    }

    fn release(&mut self, text: String, parts: &mut Vec<Part>) {
        self.released += text.len();
        if text.is_empty() {
            return;
        }
        let mut logprobs = Vec::new();
        while self.held.front().is_some_and(|(start, _)| *start < self.released) {
            logprobs.extend(self.held.pop_front().map(|(_, logprob)| logprob));
        }
        match parts.last_mut() {
            Some(Part::Text(last, of_last)) => {
                last.push_str(&text);
                of_last.extend(logprobs);
            }
            _ => parts.push(Part::Text(text, logprobs)),
        }
    }

    fn begin(&mut self, name: String, parts: &mut Vec<Part>) {
        // Text before a call can no longer become a stop string.
        let rest = self.stops.finish();
        self.release(rest, parts);
        parts.push(Part::CallBegin { call: self.calls, id: id::fresh("call_"), name });
        self.calls += 1;
    }

    fn arguments(&mut self, text: String, parts: &mut Vec<Part>) {
        parts.push(Part::CallArguments { call: self.calls.saturating_sub(1), text });
    }

    fn end(&mut self, parts: &mut Vec<Part>) {
        parts.push(Part::CallEnd { call: self.calls.saturating_sub(1) });
        // The markup of a call is no text of the answer.
        self.held.clear();
        if self.one_call {
            self.cut = Some(Cut::FirstCall);
        }
    }
}

fn logprob(tokenizer: &Tokenizer, token: u32, logprobs: TokenLogprobs) -> Logprob {
    let one = |id: u32, logprob: f32| TokenText { id, bytes: tokenizer.token_bytes(id), logprob };
    let top = logprobs.top.into_iter().map(|(id, logprob)| one(id, logprob)).collect();
    Logprob { token: one(token, logprobs.chosen), top }
}
