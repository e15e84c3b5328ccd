//! One answer on its way: its tokens so far, what it holds, and how its next token is to be chosen.

use crate::constraint::{Allowed, Constraint, allowed};
use crate::error::EngineError;
use crate::event::{FinishReason, Usage};
use crate::random::Random;
use crate::request::{Request, RequestId};
use crate::sampler::Sampler;
use crate::store::Holding;
use crate::thinking::{Place, Thinking, ThinkingState};
use crate::tree::Space;
use onebit_ops::Draw;
use std::cmp::Reverse;
use std::sync::Arc;

/// What all answers to one request have in common.
pub(crate) struct Shared {
    pub(crate) id: RequestId,
    priority: i32,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) eos: Vec<u32>,
    thinking: Option<Thinking>,
    pub(crate) logprobs: Option<usize>,
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Where it looks for what was read before, and leaves what it reads.
    pub(crate) space: Space,
    /// Positions at which the caller wants the state to be saved.
    pub(crate) marks: Vec<usize>,
    choices: usize,
    has_penalties: bool,
    /// Tokens that a sequence may hold, and that the model knows.
    limits: Limits,
}

/// Sizes that every sequence is held to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) context: usize,
    pub(crate) vocab: usize,
}

/// The token of a step under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Awaited {
    pub(crate) step: u64,
    /// Its logit row.
    pub(crate) row: usize,
}

pub(crate) struct Sequence {
    pub(crate) shared: Arc<Shared>,
    pub(crate) choice: usize,
    sampler: Sampler,
    thinking: Option<ThinkingState>,
    constraint: Option<Box<dyn Constraint>>,
    /// The tokens that may come next, where they are constrained.
    mask: Option<Arc<[u32]>>,
    /// Prompt and answer, as far as they are known.
    pub(crate) tokens: Vec<u32>,
    /// Tokens given to the device, one of them perhaps not known yet.
    pub(crate) submitted: usize,
    /// Tokens of the steps that are done.
    pub(crate) processed: usize,
    /// Prompt positions where the state is saved, ascending.
    pub(crate) checkpoints: Vec<usize>,
    pub(crate) awaited: Option<Awaited>,
    pub(crate) holding: Holding,
    pub(crate) usage: Usage,
}

/// Where a state can serve a prompt of `len` tokens. Behind the whole prompt it serves only one that goes on; a token
/// earlier, the same prompt again as well, which must read its last token for the logits.
fn usable(mut checkpoints: Vec<usize>, len: usize) -> Vec<usize> {
    checkpoints.iter_mut().for_each(|at| *at = (*at).min(len - 1));
    checkpoints.retain(|at| *at > 0);
    checkpoints.dedup();
    checkpoints
}

impl Sequence {
    /// The answers to a request, which has been validated.
    pub(crate) fn all(id: RequestId, request: Request, limits: Limits) -> Result<Vec<Sequence>, EngineError> {
        let Request { tokens, sampling, choices, max_tokens, eos, thinking, logprobs, priority, .. } = request;
        let seed = sampling.seed.unwrap_or_else(Random::fresh_seed);
        let shared = Arc::new(Shared {
            id,
            priority,
            max_tokens,
            eos,
            thinking,
            logprobs,
            prompt: tokens.len(),
            space: if request.cache { 0 } else { id.0 },
            marks: usable(request.checkpoints, tokens.len()),
            choices,
            has_penalties: sampling.has_penalties(),
            limits,
        });
        let one = |choice| {
            let mut sequence = Sequence {
                shared: shared.clone(),
                choice,
                sampler: Sampler::new(sampling.clone(), seed, choice),
                thinking: shared.thinking.as_ref().map(ThinkingState::new),
                constraint: request.constraint.as_ref().map(|c| c.fork()),
                mask: None,
                tokens: tokens.clone(),
                submitted: 0,
                processed: 0,
                checkpoints: Vec::new(),
                awaited: None,
                holding: Holding::default(),
                usage: Usage { prompt_tokens: tokens.len(), ..Usage::default() },
            };
            sequence.constrain()?;
            Ok(sequence)
        };
        (0..choices).map(one).collect()
    }

    pub(crate) fn id(&self) -> RequestId {
        self.shared.id
    }

    /// Who comes first, and who gives way last.
    pub(crate) fn order(&self) -> (Reverse<i32>, RequestId, usize) {
        (Reverse(self.shared.priority), self.shared.id, self.choice)
    }

    /// Known tokens that the next steps must read.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len().saturating_sub(self.submitted)
    }

    /// The token before which the answers to one prompt part: all of them read the last one for themselves.
    pub(crate) fn fork(&self) -> Option<usize> {
        (self.shared.choices > 1 && self.shared.prompt > 1).then(|| self.shared.prompt - 1)
    }

    /// The next prompt position where the state is to be saved, if it lies ahead.
    pub(crate) fn next_checkpoint(&self) -> Option<usize> {
        self.checkpoints.iter().copied().find(|at| *at > self.submitted)
    }

    /// Saves the state at a position ahead.
    pub(crate) fn add_checkpoint(&mut self, position: usize) {
        if let Err(at) = self.checkpoints.binary_search(&position) {
            self.checkpoints.insert(at, position);
        }
    }

    /// Its next token depends on the ones before in ways that only the host knows.
    pub(crate) fn needs_host(&self) -> bool {
        self.constraint.is_some() || self.shared.has_penalties
    }

    /// Whatever the token under way is, another one follows it; unless it ends the answer, which nobody can know.
    pub(crate) fn goes_on(&self) -> bool {
        let Limits { context, .. } = self.shared.limits;
        let is_last = self.shared.max_tokens.is_some_and(|max| self.usage.completion_tokens + 1 >= max);
        !is_last && self.tokens.len() + 1 < context && !self.is_spent()
    }

    /// The draw of the token behind `ahead` tokens that are not known yet.
    pub(crate) fn draw(&self, ahead: usize) -> Draw {
        let (prompt, mask) = (self.shared.prompt, self.mask.clone());
        self.sampler.draw(self.tokens.len() + ahead - prompt, &self.tokens, prompt, mask)
    }

    fn is_spent(&self) -> bool {
        let (thinking, state) = (&self.shared.thinking, &self.thinking);
        thinking.as_ref().zip(state.as_ref()).is_some_and(|(thinking, state)| state.is_spent(thinking))
    }

    /// What takes the place of the next token, when the reasoning has used up its budget.
    pub(crate) fn forced(&self) -> Option<Vec<u32>> {
        let thinking = self.shared.thinking.as_ref().filter(|_| self.is_spent())?;
        Some(thinking.closing.clone())
    }

    /// What takes the place of an end token inside the reasoning, when an answer of a prescribed form is still to come.
    pub(crate) fn owes_form(&self) -> Option<Vec<u32>> {
        let is_open = self.thinking.as_ref().is_some_and(ThinkingState::is_open);
        let thinking = self.shared.thinking.as_ref().filter(|_| is_open && self.constraint.is_some())?;
        Some(thinking.closing.clone())
    }

    /// Takes the next token of the answer. Returns what it belongs to, and why the answer ends with it, if it does.
    pub(crate) fn push(&mut self, token: u32, forced: bool) -> Result<(Place, Option<FinishReason>), EngineError> {
        let place = match (&self.shared.thinking, &mut self.thinking) {
            (Some(thinking), Some(state)) => state.push(thinking, token, forced),
            _ => Place::Answer,
        };
        self.tokens.push(token);
        self.usage.completion_tokens += 1;
        self.usage.reasoning_tokens += usize::from(place == Place::Inside);
        if let Some(constraint) = self.constraint.as_mut().filter(|_| place == Place::Answer && !forced) {
            constraint.accept(token).map_err(EngineError::Constraint)?;
        }
        let complete = self.constrain()?;
        let Limits { context, .. } = self.shared.limits;
        let full = (self.tokens.len() >= context).then_some(FinishReason::ContextFull);
        let length = self.shared.max_tokens.filter(|max| self.usage.completion_tokens >= *max);
        Ok((place, complete.or(length.map(|_| FinishReason::Length)).or(full)))
    }

    /// Line breaks and the like that stand between the end of the reasoning and an answer whose form is prescribed.
    pub(crate) fn gap(&self, place: Place) -> Vec<u32> {
        let closed = place == Place::Marker && self.constraint.is_some();
        match &self.shared.thinking {
            Some(thinking) if closed && self.tokens.last() == Some(&thinking.end) => {
                let end = thinking.closing.iter().position(|t| *t == thinking.end);
                end.map_or(Vec::new(), |at| thinking.closing[at + 1..].to_vec())
            }
            _ => Vec::new(),
        }
    }

    /// Finds out which tokens may come next. Says so when none is left to come.
    fn constrain(&mut self) -> Result<Option<FinishReason>, EngineError> {
        let Some(constraint) = &mut self.constraint else { return Ok(None) };
        self.mask = None;
        if self.thinking.as_ref().is_some_and(ThinkingState::is_open) {
            return Ok(None);
        }
        let Limits { vocab, .. } = self.shared.limits;
        match allowed(&mut **constraint, vocab, &self.shared.eos).map_err(EngineError::Constraint)? {
            Allowed::Nothing => Ok(Some(FinishReason::Complete)),
            Allowed::Mask(mut mask) => {
                // The model may still open its reasoning.
                let state = self.thinking.as_ref().filter(|state| state.may_open());
                if let Some(start) = state.and(self.shared.thinking.as_ref()).and_then(|t| t.start) {
                    let mut words = mask.to_vec();
                    words[start as usize / 32] |= 1 << (start % 32);
                    mask = words.into();
                }
                self.mask = Some(mask);
                Ok(None)
            }
        }
    }
}
