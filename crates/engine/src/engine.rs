//! The step loop.

use crate::core::{Batch, BatchItem, Event, FinishReason, Request, RequestId, Sequence, Usage, Waiting};
use crate::error::EngineError;
use crate::plans::Plans;
use crate::schedule::schedule;
use crate::store::Store;
use crate::thinking::Place;
use onebit_models::{Forward, Model};
use onebit_ops::{Activations, Backend, Bucket, KvFormat, OpError, PAGE_ROWS, StepOutput, wait};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Far beyond what a device serves; keeps the sizes of the cache within their integers.
const MAX_SEQUENCES: usize = 4096;

/// How an engine is laid out. See [`MemoryPlan`](crate::MemoryPlan) for a context that fits the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineOptions {
    /// Tokens that one sequence may hold, prompt and answer together.
    pub context: usize,
    /// Sequences that run at once; more wait.
    pub sequences: usize,
    /// Cached tokens of all sequences together, those kept for later prompts included; `None` for
    /// `sequences * context`.
    pub cached_tokens: Option<usize>,
    /// States of recurrent models that can be saved for later prompts, beside the running ones.
    pub checkpoints: usize,
    /// How keys and values are stored.
    pub kv: KvFormat,
    /// How matmul inputs are rounded; `None` for the backend's own choice.
    pub activations: Option<Activations>,
    /// Prompt tokens that one step reads; `None` for the backend's own choice.
    pub prefill_rows: Option<usize>,
}

impl EngineOptions {
    /// One sequence of up to `context` tokens, keys and values in half precision.
    pub fn new(context: usize) -> Self {
        EngineOptions {
            context,
            sequences: 1,
            cached_tokens: None,
            checkpoints: 1,
            kv: KvFormat::F16,
            activations: None,
            prefill_rows: None,
        }
    }
}

/// Runs requests on one model and one device.
///
/// ```text
/// submit -> waiting -> running -> Finished | Failed
///             step: take requests, schedule a batch, run the plan, sample, publish
/// ```
///
/// A sequence's tokens do not depend on the sequences beside it. The engine starts no thread and keeps no global:
/// whoever owns it calls [`step`](Engine::step).
pub struct Engine {
    pub(crate) model: Arc<Model>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) activations: Activations,
    pub(crate) prefill_rows: usize,
    pub(crate) store: Store,
    options: EngineOptions,
    plans: Plans,
    waiting: VecDeque<Waiting>,
    running: Vec<Sequence>,
    events: Vec<Event>,
    next_id: u64,
    pub(crate) steps: u64,
}

/// How [`Engine::generate`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Why.
    pub reason: FinishReason,
    /// What it used.
    pub usage: Usage,
}

impl Engine {
    /// Lays out the cache. Plans are compiled when they are first needed.
    ///
    /// # Errors
    /// [`EngineError::Parameter`] for an option outside its range, [`OpError::OutOfMemory`] for a cache that does not
    /// fit the device.
    pub fn new(model: Arc<Model>, backend: Arc<dyn Backend>, options: EngineOptions) -> Result<Engine, EngineError> {
        let facts = model.facts();
        let caps = backend.caps();
        let EngineOptions { context, sequences, .. } = options;
        if context < 2 || context > facts.context {
            let wanted = format!("from 2 to the {} tokens that the model was made for", facts.context);
            return Err(EngineError::parameter("context", wanted, context));
        }
        if !(1..=MAX_SEQUENCES).contains(&sequences) {
            return Err(EngineError::parameter("sequences", format!("from 1 to {MAX_SEQUENCES}"), sequences));
        }
        let cached = options.cached_tokens.unwrap_or(sequences * context.next_multiple_of(PAGE_ROWS));
        if cached < context {
            return Err(EngineError::parameter("cached_tokens", format!("at least the context of {context}"), cached));
        }
        let prefill_rows = options.prefill_rows.unwrap_or(caps.prefill_rows).min(context);
        if prefill_rows == 0 {
            return Err(EngineError::parameter("prefill_rows", "at least 1", 0));
        }
        if !caps.kv_formats.contains(&options.kv) {
            return Err(EngineError::parameter("kv", list(&caps.kv_formats), options.kv));
        }
        let activations = options.activations.unwrap_or(caps.default_activations);
        if !caps.activations.contains(&activations) {
            return Err(EngineError::parameter("activations", list(&caps.activations), activations));
        }
        let spec = options.cache_spec(facts);
        let store = Store::new(backend.clone(), backend.cache(spec)?, options.checkpoints);
        let full = Bucket { rows: prefill_rows + sequences - 1, logits: sequences, context };
        let plans = Plans::new(Forward::new(activations), full);
        Ok(Engine {
            model,
            backend,
            activations,
            prefill_rows,
            store,
            options,
            plans,
            waiting: VecDeque::new(),
            running: Vec::new(),
            events: Vec::new(),
            next_id: 1,
            steps: 0,
        })
    }

    /// The options that it was made with.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The model that it runs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Activations that its plans use.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// Requests waiting and running.
    pub fn load(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Nothing waits, runs, or is still to be published.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.events.is_empty()
    }

    /// KV pages and state slots that no running sequence holds.
    pub fn unused(&self) -> (usize, usize) {
        self.store.unused()
    }

    /// Forgets what ended sequences have left for later prompts.
    pub fn forget(&mut self) {
        self.store.forget();
    }

    /// Takes a request.
    ///
    /// # Errors
    /// [`EngineError`] with the first thing wrong with it; nothing has happened then.
    pub fn submit(&mut self, mut request: Request) -> Result<RequestId, EngineError> {
        let facts = self.model.facts();
        request.validate(facts.vocab, self.options.context)?;
        if facts.state.is_none() {
            // Pages can be cut at any token; only recurrent state has to be saved on the way.
            request.checkpoints.clear();
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Waiting { id, request });
        Ok(id)
    }

    /// Ends a request, wherever it is. What it held is free when this returns; the next [`step`](Engine::step)
    /// publishes its end.
    ///
    /// # Errors
    /// [`EngineError::UnknownRequest`] when it is neither waiting nor running.
    pub fn cancel(&mut self, id: RequestId) -> Result<(), EngineError> {
        if let Some(at) = self.waiting.iter().position(|w| w.id == id) {
            let usage = Usage { prompt_tokens: self.waiting[at].request.tokens.len(), ..Usage::default() };
            self.waiting.remove(at);
            self.events.push(Event::Finished { id, reason: FinishReason::Cancelled, usage });
            return Ok(());
        }
        let at = self.running.iter().position(|s| s.id == id).ok_or(EngineError::UnknownRequest(id.0))?;
        self.finish(at, FinishReason::Cancelled);
        Ok(())
    }

    /// One step for all running sequences; returns what happened since the last.
    ///
    /// A fault of one request, or of the device, ends the requests that it touches with [`Event::Failed`].
    ///
    /// # Errors
    /// [`EngineError::Integrity`] when the engine itself has lost count; it should not be used further.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        self.take_requests();
        match schedule(&mut self.running, &mut self.store, self.prefill_rows) {
            Ok(Some(batch)) => match self.run(&batch) {
                Ok(output) => self.sample(&batch, output),
                Err(error) => self.fail_batch(&batch, &error),
            },
            Ok(None) => self.store.check_idle()?,
            Err(error) => return Err(EngineError::Integrity(error.to_string())),
        }
        Ok(self.publish())
    }

    /// Runs one request to its end. The callback sees every event but the last; breaking cancels the request.
    ///
    /// # Errors
    /// [`EngineError::Busy`] when other requests are under way, those of [`submit`](Engine::submit) and
    /// [`step`](Engine::step), and what made the request fail.
    pub fn generate(
        &mut self,
        request: Request,
        mut on_event: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<Completion, EngineError> {
        self.require_idle()?;
        let id = self.submit(request)?;
        let mut wanted = true;
        loop {
            for event in self.step()? {
                match event {
                    Event::Finished { reason, usage, .. } => return Ok(Completion { reason, usage }),
                    Event::Failed { error, .. } => return Err(error),
                    event if wanted && on_event(&event).is_break() => {
                        wanted = false;
                        // It may have ended in this very step, and then has nothing left to cancel.
                        let _ = self.cancel(id);
                    }
                    _ => {}
                }
            }
        }
    }

    pub(crate) fn require_idle(&self) -> Result<(), EngineError> {
        if self.is_idle() {
            return Ok(());
        }
        Err(EngineError::Busy { running: self.waiting.len() + self.running.len() })
    }

    /// Moves waiting requests to the running ones, in order, while there is room.
    fn take_requests(&mut self) {
        while self.running.len() < self.options.sequences
            && let Some(next) = self.waiting.front()
        {
            let prompt = &next.request.tokens;
            let longest = next.request.max_tokens.map_or(self.options.context, |max| prompt.len().saturating_add(max));
            match self.store.claim(prompt, longest.min(self.options.context)) {
                Ok(None) => break,
                claimed => {
                    let Some(waiting) = self.waiting.pop_front() else { break };
                    match claimed {
                        Ok(Some(holding)) => self.running.push(Sequence::new(waiting, holding)),
                        Ok(None) => {}
                        Err(error) => self.events.push(Event::Failed { id: waiting.id, error: error.into() }),
                    }
                }
            }
        }
    }

    fn run(&mut self, batch: &Batch) -> Result<StepOutput, OpError> {
        self.steps += 1;
        let rows = batch.inputs.tokens.len();
        let plan = self.plans.get(&self.model, &*self.backend, self.store.cache(), rows)?;
        let ticket = self.backend.run(plan, batch.inputs.clone())?;
        let output = wait(&*self.backend, ticket)?;
        let wanted = batch.inputs.logit_rows.len() * self.model.facts().vocab;
        let got = output.values.get("logits").map_or(0, Vec::len);
        if got != wanted {
            let what = "values".to_owned();
            let (wanted, got) = (wanted.to_string(), got.to_string());
            return Err(OpError::Shape { op: "logits", what, wanted, got });
        }
        Ok(output)
    }

    /// Books what was read, and chooses the next token of every sequence that is up to date.
    fn sample(&mut self, batch: &Batch, mut output: StepOutput) {
        let vocab = self.model.facts().vocab;
        let mut logits = output.values.remove("logits").unwrap_or_default();
        let mut ended = Vec::new();
        for item in &batch.items {
            let row = item.logits.map(|row| &mut logits[row * vocab..(row + 1) * vocab]);
            match self.advance(item, row) {
                Ok(None) => {}
                Ok(Some(reason)) => ended.push((item.sequence, Ok(reason))),
                Err(error) => ended.push((item.sequence, Err(error))),
            }
        }
        // From the back, so that indices stay right.
        ended.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, end) in ended {
            match end {
                Ok(reason) => self.finish(at, reason),
                Err(error) => self.fail(at, error),
            }
        }
    }

    /// Takes one sequence forward by the rows that were read.
    fn advance(&mut self, item: &BatchItem, logits: Option<&mut [f32]>) -> Result<Option<FinishReason>, EngineError> {
        let sequence = &mut self.running[item.sequence];
        let checkpoint = sequence.next_checkpoint();
        sequence.computed += item.rows;
        if checkpoint == Some(sequence.computed) {
            self.store.checkpoint(&mut sequence.holding, sequence.computed)?;
        }
        if sequence.usage.completion_tokens == 0 {
            let (done, total) = (sequence.computed, sequence.usage.prompt_tokens);
            self.events.push(Event::Prefill { id: sequence.id, done, total });
        }
        let Some(logits) = logits else { return Ok(None) };
        if let Some(token) = logits.iter().position(|l| !l.is_finite()) {
            let (position, value) = (sequence.computed - 1, logits[token]);
            return Err(EngineError::NonFinite { step: self.steps, position, token, value });
        }
        if let (Some(thinking), Some(state)) = (&sequence.request.thinking, &sequence.thinking)
            && state.is_spent(thinking)
        {
            let closing = thinking.closing.clone();
            return Ok(closing.into_iter().find_map(|token| self.append(item.sequence, token, true)));
        }
        let token = sequence.sampler.choose(logits, &sequence.tokens, sequence.usage.prompt_tokens);
        if sequence.request.eos.contains(&token) {
            return Ok(Some(FinishReason::Stop(token)));
        }
        Ok(self.append(item.sequence, token, false))
    }

    /// Adds a token to an answer. Returns why the answer ends with it, if it does.
    fn append(&mut self, at: usize, token: u32, forced: bool) -> Option<FinishReason> {
        let sequence = &mut self.running[at];
        let place = match (&sequence.request.thinking, &mut sequence.thinking) {
            (Some(thinking), Some(state)) => state.push(thinking, token, forced),
            _ => Place::Answer,
        };
        sequence.tokens.push(token);
        sequence.usage.completion_tokens += 1;
        sequence.usage.reasoning_tokens += usize::from(place == Place::Inside);
        self.events.push(Event::Token { id: sequence.id, token, reasoning: place != Place::Answer });
        if sequence.request.max_tokens.is_some_and(|max| sequence.usage.completion_tokens >= max) {
            return Some(FinishReason::Length);
        }
        (sequence.tokens.len() >= self.options.context).then_some(FinishReason::ContextFull)
    }

    fn finish(&mut self, at: usize, reason: FinishReason) {
        let mut sequence = self.running.remove(at);
        self.events.push(Event::Finished { id: sequence.id, reason, usage: sequence.usage });
        if sequence.request.keep && sequence.computed > 0 {
            sequence.tokens.truncate(sequence.computed);
            self.store.keep(sequence.holding, sequence.tokens);
        } else {
            self.store.release(sequence.holding);
        }
    }

    fn fail(&mut self, at: usize, error: EngineError) {
        let sequence = self.running.remove(at);
        self.store.release(sequence.holding);
        self.events.push(Event::Failed { id: sequence.id, error });
    }

    fn fail_batch(&mut self, batch: &Batch, error: &OpError) {
        let mut touched: Vec<usize> = batch.items.iter().map(|item| item.sequence).collect();
        touched.sort_unstable();
        for at in touched.into_iter().rev() {
            self.fail(at, error.clone().into());
        }
    }

    fn publish(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

fn list<T: ToString>(known: &[T]) -> String {
    format!("one of {}", known.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_can_move_to_a_thread_of_its_own() {
        fn movable<T: Send>() {}
        movable::<Engine>();
    }
}
