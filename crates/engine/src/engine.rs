//! The engine as its owner sees it, and its step.

use crate::error::EngineError;
use crate::event::{Event, FinishReason, Usage};
use crate::flight::Flight;
use crate::options::{EngineOptions, list};
use crate::plans::Plans;
use crate::request::{Request, RequestId};
use crate::schedule::{Batch, Scheduled, schedule};
use crate::sequence::{Limits, Sequence};
use crate::stats::{Counters, Stats};
use crate::store::Store;
use onebit_models::{Forward, Model};
use onebit_ops::{Activations, Backend, Bucket, OpError, PAGE_ROWS};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Far beyond what a device serves; keeps the sizes of the cache within their integers.
const MAX_SEQUENCES: usize = 4096;

/// Runs requests on one model and one device.
///
/// ```text
/// submit -> waiting -> running -> Finished | Failed
///             step: take requests, schedule a batch, run the plan, publish what came out of the one before
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
    pub(crate) plans: Plans,
    options: EngineOptions,
    runs_ahead: bool,
    /// In the order in which they are to begin.
    pub(crate) waiting: Vec<Sequence>,
    /// In the same order: the last gives way first.
    pub(crate) running: Vec<Sequence>,
    /// The step under way.
    pub(crate) flight: Option<Flight>,
    pub(crate) events: Vec<Event>,
    /// Answers of each request that have not ended, and the prompt tokens that did not have to be read for them.
    pub(crate) open: BTreeMap<RequestId, Open>,
    next_id: u64,
    pub(crate) counters: Counters,
    /// What the device said when it went away.
    pub(crate) lost: Option<OpError>,
}

/// What is left of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Open {
    pub(crate) answers: usize,
    pub(crate) cached: Option<usize>,
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
    /// [`EngineError::Parameter`] for an option outside its range, [`OpError::OutOfMemory`](onebit_ops::OpError::OutOfMemory) for a cache that does not
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
        let runs_ahead = options.run_ahead.unwrap_or(caps.asynchronous);
        let store = Store::new(backend.clone(), backend.cache(options.cache_spec(facts))?);
        let full = Bucket { rows: prefill_rows + sequences - 1, logits: sequences, context };
        let plans = Plans::new(Forward::new(activations), full);
        Ok(Engine {
            model,
            backend,
            activations,
            prefill_rows,
            store,
            plans,
            options,
            runs_ahead,
            waiting: Vec::new(),
            running: Vec::new(),
            flight: None,
            events: Vec::new(),
            open: BTreeMap::new(),
            next_id: 1,
            counters: Counters::default(),
            lost: None,
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

    /// What it holds and has done.
    pub fn stats(&self) -> Stats {
        Stats {
            waiting: self.waiting.len(),
            running: self.running.len(),
            pages: self.store.pages(),
            slots: self.store.slots(),
            counters: self.counters,
        }
    }

    /// Nothing waits, runs, or is still to be published.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.flight.is_none() && self.events.is_empty()
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
        let limits = Limits { vocab: self.model.facts().vocab, context: self.options.context };
        request.validate(limits.vocab, limits.context)?;
        let id = RequestId(self.next_id);
        let sequences = Sequence::all(id, request, limits)?;
        self.next_id += 1;
        self.open.insert(id, Open { answers: sequences.len(), cached: None });
        sequences.into_iter().for_each(|sequence| self.enqueue(sequence));
        Ok(id)
    }

    pub(crate) fn enqueue(&mut self, sequence: Sequence) {
        let at = self.waiting.partition_point(|s| s.order() < sequence.order());
        self.waiting.insert(at, sequence);
    }

    /// Ends a request with all its answers, wherever they are. What they held is free when this returns; the next
    /// [`step`](Engine::step) publishes their ends.
    ///
    /// # Errors
    /// [`EngineError::UnknownRequest`] when none of them is under way.
    pub fn cancel(&mut self, id: RequestId) -> Result<(), EngineError> {
        if !self.open.contains_key(&id) {
            return Err(EngineError::UnknownRequest(id.0));
        }
        while let Some(choice) = self.waiting.iter().chain(&self.running).find(|s| s.id() == id).map(|s| s.choice) {
            self.cancel_choice(id, choice)?;
        }
        Ok(())
    }

    /// Ends one answer of a request; the others go on.
    ///
    /// # Errors
    /// [`EngineError::UnknownRequest`] when it is not under way.
    pub fn cancel_choice(&mut self, id: RequestId, choice: usize) -> Result<(), EngineError> {
        let is_it = |s: &Sequence| s.id() == id && s.choice == choice;
        if let Some(at) = self.waiting.iter().position(is_it) {
            let sequence = self.waiting.remove(at);
            self.close(&sequence, FinishReason::Cancelled);
            return Ok(());
        }
        let at = self.running.iter().position(is_it).ok_or(EngineError::UnknownRequest(id.0))?;
        self.finish(at, FinishReason::Cancelled);
        Ok(())
    }

    /// One step for all running sequences; returns what happened since the last.
    ///
    /// A fault of one request, or of the device, ends the requests that it touches with [`Event::Failed`].
    ///
    /// # Errors
    /// [`EngineError::Integrity`] when the engine itself has lost count, [`EngineError::Device`] when the device is gone with all that
    /// it held. The engine should not be used further; whoever wants to go on opens the device and an engine anew.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        self.take_requests();
        if self.flight.is_none() {
            match self.batch()? {
                Some(batch) => self.flight = self.launch(batch),
                None if self.running.is_empty() && self.waiting.is_empty() => self.store.check_idle()?,
                None => {}
            }
        }
        let next = match self.flight {
            Some(_) => self.batch_ahead()?.and_then(|batch| self.launch(batch)),
            None => None,
        };
        if let Some(flight) = std::mem::replace(&mut self.flight, next) {
            self.land(flight);
        }
        if let Some(lost) = &self.lost {
            return Err(lost.clone().into());
        }
        Ok(std::mem::take(&mut self.events))
    }

    /// The next step's work, with nothing under way. Where a page is missing, the last of the running sequences gives
    /// way.
    fn batch(&mut self) -> Result<Option<Batch>, EngineError> {
        loop {
            match self.schedule(false)? {
                Scheduled::Batch(batch) => return Ok(Some(batch)),
                Scheduled::Nothing => return Ok(None),
                Scheduled::NoRoom if self.running.len() > 1 => self.preempt(),
                Scheduled::NoRoom => {
                    return Err(EngineError::Integrity("one sequence alone has no room".to_owned()));
                }
            }
        }
    }

    /// A step's work that can start before the one under way is done.
    fn batch_ahead(&mut self) -> Result<Option<Batch>, EngineError> {
        if !self.runs_ahead || self.running.iter().any(Sequence::needs_host) {
            return Ok(None);
        }
        match self.schedule(true)? {
            Scheduled::Batch(batch) => Ok(Some(batch)),
            Scheduled::Nothing | Scheduled::NoRoom => Ok(None),
        }
    }

    fn schedule(&mut self, ahead: bool) -> Result<Scheduled, EngineError> {
        let scheduled = schedule(&mut self.running, &mut self.store, self.prefill_rows, ahead);
        scheduled.map_err(|error| EngineError::Integrity(error.to_string()))
    }

    /// Runs one request to its end. The callback sees every event but the last; breaking cancels the request.
    ///
    /// # Errors
    /// [`EngineError::Busy`] when other requests are under way, [`EngineError::Parameter`] for more than one answer,
    /// those of [`submit`](Engine::submit) and [`step`](Engine::step), and what made the request fail.
    pub fn generate(
        &mut self,
        request: Request,
        mut on_event: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<Completion, EngineError> {
        self.require_idle()?;
        if request.choices > 1 {
            return Err(EngineError::parameter("choices", "1", request.choices));
        }
        let id = self.submit(request)?;
        let mut wanted = true;
        let mut done = None;
        // A step that ran ahead of the end is still to come in.
        while done.is_none() || !self.is_idle() {
            for event in self.step()? {
                match event {
                    Event::Finished { reason, usage, .. } => done = Some(Ok(Completion { reason, usage })),
                    Event::Failed { error, .. } => done = Some(Err(error)),
                    event if wanted && on_event(&event).is_break() => {
                        wanted = false;
                        // It may have ended in this very step, and then has nothing left to cancel.
                        let _ = self.cancel(id);
                    }
                    _ => {}
                }
            }
        }
        done.unwrap_or(Err(EngineError::UnknownRequest(id.0)))
    }

    pub(crate) fn require_idle(&self) -> Result<(), EngineError> {
        if self.is_idle() {
            return Ok(());
        }
        Err(EngineError::Busy { running: self.open.len() })
    }
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
