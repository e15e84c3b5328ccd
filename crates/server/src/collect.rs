//! Whole answers, for clients that do not stream. They are put together from the pieces that a stream would send.

use crate::choice::{Logprob, Part};
use crate::error::ApiError;
use crate::generation::{Finish, Piece, Totals};
use crate::stream::Pieces;

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) reasoning: String,
    /// All text, before, between and behind calls.
    pub(crate) text: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) logprobs: Vec<Logprob>,
    pub(crate) finish: Finish,
}

/// A call as the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON text; of a call that was cut short, the beginning of one.
    pub(crate) arguments: String,
}

/// Waits for all answers.
pub(crate) async fn collect(mut generation: impl Pieces) -> Result<(Vec<Answer>, Totals), ApiError> {
    let mut answers: Vec<Answer> = Vec::new();
    let empty = || Answer {
        reasoning: String::new(),
        text: String::new(),
        calls: Vec::new(),
        logprobs: Vec::new(),
        finish: Finish::Stop,
    };
    while let Some(piece) = generation.next().await {
        match piece {
            Piece::Prefill { .. } => {}
            Piece::Part { choice, part } => {
                answers.resize_with(answers.len().max(choice + 1), empty);
                add(&mut answers[choice], part);
            }
            Piece::End { choice, finish, logprobs } => {
                answers.resize_with(answers.len().max(choice + 1), empty);
                answers[choice].finish = finish;
                answers[choice].logprobs.extend(logprobs);
            }
            Piece::Done(totals) => return Ok((answers, totals)),
            Piece::Failed(error) => return Err(error),
        }
    }
    Err(ApiError::internal("the engine ended an answer without saying why"))
}

fn add(answer: &mut Answer, part: Part) {
    match part {
        Part::Reasoning(text) => answer.reasoning.push_str(&text),
        Part::Text(text, logprobs) => {
            answer.text.push_str(&text);
            answer.logprobs.extend(logprobs);
        }
        Part::CallBegin { id, name, .. } => answer.calls.push(Call { id, name, arguments: String::new() }),
        Part::CallArguments { call, text } => {
            if let Some(call) = answer.calls.get_mut(call) {
                call.arguments.push_str(&text);
            }
        }
        Part::CallEnd { .. } => {}
    }
}
