//! Several prompts in one request: their generations run side by side, and their answers are numbered through.

use crate::error::ApiError;
use crate::generation::{Generation, Piece, Totals};
use crate::stream::Pieces;
use futures_util::stream::{BoxStream, SelectAll, StreamExt, unfold};

/// Generations as one. Dropping it ends them all.
pub(crate) struct Several {
    streams: SelectAll<BoxStream<'static, Piece>>,
    left: usize,
    totals: Totals,
    over: bool,
}

impl Several {
    /// `answers` is how many each generation gives.
    pub(crate) fn new(generations: Vec<Generation>, answers: usize) -> Self {
        let left = generations.len();
        let mut streams = SelectAll::new();
        for (prompt, generation) in generations.into_iter().enumerate() {
            let numbered = unfold(generation, move |mut generation| async move {
                let piece = generation.next().await?;
                Some((numbered(piece, prompt * answers), generation))
            });
            streams.push(numbered.boxed());
        }
        Self { streams, left, totals: Totals::default(), over: false }
    }

    async fn step(&mut self) -> Option<Piece> {
        while !self.over {
            match self.streams.next().await {
                Some(Piece::Done(totals)) => {
                    self.add(&totals);
                    self.left -= 1;
                    if self.left == 0 {
                        self.over = true;
                        return Some(Piece::Done(self.totals));
                    }
                }
                Some(Piece::Failed(error)) => {
                    self.over = true;
                    return Some(Piece::Failed(error));
                }
                Some(piece) => return Some(piece),
                None => {
                    self.over = true;
                    return Some(Piece::Failed(ApiError::internal("the engine ended an answer without saying why")));
                }
            }
        }
        None
    }

    fn add(&mut self, totals: &Totals) {
        let sum = &mut self.totals;
        sum.prompt_tokens += totals.prompt_tokens;
        sum.cached_tokens += totals.cached_tokens;
        sum.completion_tokens += totals.completion_tokens;
        sum.reasoning_tokens += totals.reasoning_tokens;
        sum.queued = sum.queued.max(totals.queued);
        sum.prefill = sum.prefill.max(totals.prefill);
        sum.decode = sum.decode.max(totals.decode);
    }
}

impl Pieces for Several {
    fn next(&mut self) -> impl Future<Output = Option<Piece>> + Send {
        self.step()
    }
}

fn numbered(piece: Piece, offset: usize) -> Piece {
    match piece {
        Piece::Part { choice, part } => Piece::Part { choice: choice + offset, part },
        Piece::End { choice, finish, logprobs } => Piece::End { choice: choice + offset, finish, logprobs },
        other => other,
    }
}
