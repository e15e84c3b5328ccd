//! A step on its way: started, and taken in when it is done.

use crate::distribution::Distribution;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::event::{Event, FinishReason, TokenLogprobs};
use crate::schedule::{Batch, Item};
use crate::sequence::Awaited;
use crate::store::STRIDE;
use crate::thinking::Place;
use onebit_ops::{OpError, Sampled, StepOutput, Ticket, wait};

/// A step under way.
pub(crate) struct Flight {
    step: u64,
    ticket: Ticket,
    items: Vec<Item>,
    logits: bool,
}

impl Engine {
    /// Starts a step. From here on its rows count as read by whatever is started later. A fault ends the requests in it.
    pub(crate) fn launch(&mut self, batch: Batch) -> Option<Flight> {
        self.counters.steps += 1;
        let step = self.counters.steps;
        let Batch { mut items, inputs, logits } = batch;
        let context = inputs.segments.iter().map(|segment| segment.past + segment.rows.len()).max().unwrap_or(0);
        let needed = (inputs.tokens.len(), context, logits);
        let plan = self.plans.get(&self.model, &*self.backend, self.store.cache(), needed);
        let ticket = match plan.and_then(|plan| self.backend.run(plan, inputs)) {
            Ok(ticket) => ticket,
            Err(error) => {
                self.fail_items(&items, &error);
                return None;
            }
        };
        for item in &mut items {
            let Some(at) = self.find(item) else { continue };
            let sequence = &mut self.running[at];
            sequence.submitted = item.end;
            sequence.awaited = item.row.map(|row| Awaited { step, row });
            if sequence.checkpoints.binary_search(&item.end).is_ok() {
                match self.store.copy_state(&sequence.holding) {
                    Ok(slot) => item.state = slot,
                    Err(error) => {
                        let id = sequence.id();
                        self.fail(id, error.into());
                        continue;
                    }
                }
                if item.state.is_none() {
                    // Nobody need wait for it.
                    sequence.checkpoints.retain(|c| *c != item.end);
                }
            }
        }
        Some(Flight { step, ticket, items, logits })
    }

    /// Waits for a step and takes in what it gives.
    pub(crate) fn land(&mut self, flight: Flight) {
        let output = wait(&*self.backend, flight.ticket).and_then(|output| {
            let rows = flight.items.iter().filter(|i| i.row.is_some()).count();
            let wanted = [rows, if flight.logits { rows * self.model.facts().vocab } else { 0 }];
            let got = [output.sampled.len(), output.values.get("logits").map_or(0, Vec::len)];
            if got == wanted {
                return Ok(output);
            }
            let (wanted, got) = (format!("{wanted:?}"), format!("{got:?}"));
            Err(OpError::Shape { op: "step", what: "tokens and logits".to_owned(), wanted, got })
        });
        match output {
            Ok(output) => flight.items.iter().for_each(|item| self.take_in(item, &output, flight.step)),
            Err(error) => self.fail_items(&flight.items, &error),
        }
    }

    fn find(&self, item: &Item) -> Option<usize> {
        self.running.iter().position(|s| s.id() == item.id && s.choice == item.choice)
    }

    /// Books the rows of one sequence, and its next token when there is one.
    fn take_in(&mut self, item: &Item, output: &StepOutput, step: u64) {
        let Some(at) = self.find(item) else {
            // It ended while the step ran.
            item.state.iter().for_each(|slot| self.store.drop_state(*slot));
            return;
        };
        let sequence = &mut self.running[at];
        sequence.processed = item.end;
        if sequence.awaited.is_some_and(|a| a.step == step) {
            sequence.awaited = None;
        }
        self.store.record(&mut sequence.holding, &sequence.tokens[..item.end]);
        if let Some(slot) = item.state {
            let periodic = item.end.is_multiple_of(STRIDE) && !sequence.shared.marks.contains(&item.end);
            self.store.save(&sequence.holding, item.end, slot, periodic);
        }
        if sequence.usage.completion_tokens == 0 && sequence.choice == 0 {
            let (id, done, total) = (sequence.id(), item.end, sequence.shared.prompt);
            self.events.push(Event::Prefill { id, done, total });
        }
        let Some(row) = item.row else { return };
        let ended = match output.sampled[row].token {
            Sampled::NOT_FINITE => Err(EngineError::NonFinite { step, position: item.end - 1 }),
            _ => self.next_token(at, row, output),
        };
        match ended {
            Ok(None) => {}
            Ok(Some(reason)) => self.finish(at, reason),
            Err(error) => self.fail(item.id, error),
        }
    }

    /// Gives a sequence its next token. Returns why its answer ends, if it does.
    fn next_token(&mut self, at: usize, row: usize, output: &StepOutput) -> Result<Option<FinishReason>, EngineError> {
        if let Some(tokens) = self.running[at].forced() {
            return self.force(at, tokens);
        }
        let sequence = &mut self.running[at];
        let Sampled { token, logprob } = output.sampled[row];
        if sequence.shared.eos.contains(&token) {
            return match sequence.owes_form() {
                Some(closing) => self.force(at, closing),
                None => Ok(Some(FinishReason::Stop(token))),
            };
        }
        let logprobs = sequence.shared.logprobs.map(|count| {
            let vocab = self.model.facts().vocab;
            let logits = output.values.get("logits").filter(|_| count > 0).map(|l| &l[row * vocab..(row + 1) * vocab]);
            let Some(distribution) = logits.map(Distribution::of) else {
                return TokenLogprobs { chosen: logprob, top: Vec::new() };
            };
            // Both from one sum, so that the likeliest token has one probability and not two.
            let top = distribution.top(count).into_iter().map(|(t, p)| (t, p as f32)).collect();
            TokenLogprobs { chosen: distribution.log_prob(token) as f32, top }
        });
        let (place, reason) = self.append(at, token, false, logprobs)?;
        if reason.is_some() {
            return Ok(reason);
        }
        let gap = self.running[at].gap(place);
        self.force(at, gap)
    }

    fn force(&mut self, at: usize, tokens: Vec<u32>) -> Result<Option<FinishReason>, EngineError> {
        for token in tokens {
            let (_, reason) = self.append(at, token, true, None)?;
            if reason.is_some() {
                return Ok(reason);
            }
        }
        Ok(None)
    }

    fn append(
        &mut self,
        at: usize,
        token: u32,
        forced: bool,
        logprobs: Option<TokenLogprobs>,
    ) -> Result<(Place, Option<FinishReason>), EngineError> {
        let sequence = &mut self.running[at];
        let (id, choice) = (sequence.id(), sequence.choice);
        let (place, reason) = sequence.push(token, forced)?;
        self.counters.generated_tokens += 1;
        self.events.push(Event::Token { id, choice, token, reasoning: place != Place::Answer, logprobs });
        Ok((place, reason))
    }

    fn fail_items(&mut self, items: &[Item], error: &OpError) {
        items.iter().filter_map(|i| i.state).for_each(|slot| self.store.drop_state(slot));
        for item in items {
            self.fail(item.id, error.clone().into());
        }
        // What the device has written cannot be told.
        self.store.forget();
        if self.backend.is_lost() {
            self.lost.get_or_insert(error.clone());
        }
    }
}
