//! How answers begin, give way and end.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::event::{Event, FinishReason};
use crate::request::RequestId;
use crate::sequence::Sequence;
use crate::store::{Claim, STRIDE, Store};
use onebit_ops::PAGE_ROWS;

/// Tokens of an answer for which a sequence is promised pages when it begins. What it writes beyond that may cost another
/// sequence its place, so that long answers that never come do not keep others out.
const RESERVE: usize = 256;

/// A beginning of fewer tokens than this is read again rather than waited for or saved.
const LEAST_GAIN: usize = 16;

impl Engine {
    /// Moves waiting answers to the running ones, in order, while there is room. One whose prompt begins like one that is
    /// being read waits until it can have that beginning; those behind it need not.
    pub(crate) fn take_requests(&mut self) {
        let mut at = 0;
        while at < self.waiting.len() && self.running.len() < self.options().sequences {
            if comes_soon(&self.waiting[at], &mut self.running, &self.store) {
                at += 1;
                continue;
            }
            let next = &self.waiting[at];
            let left = next.shared.max_tokens.map_or(RESERVE, |max| max - next.usage.completion_tokens).min(RESERVE);
            let longest = (next.tokens.len() + left).min(self.options().context);
            match self.store.claim(next.shared.space, &next.tokens, longest) {
                Ok(None) => break,
                Ok(Some(claim)) => {
                    let sequence = self.waiting.remove(at);
                    self.begin(sequence, claim);
                }
                Err(error) => self.fail(next.id(), error.into()),
            }
        }
    }

    fn begin(&mut self, mut sequence: Sequence, claim: Claim) {
        let Claim { holding, tokens, common, diverged } = claim;
        let id = sequence.id();
        if let Some(open) = self.open.get_mut(&id)
            && open.cached.is_none()
        {
            open.cached = Some(tokens);
            self.counters.prompt_tokens += sequence.shared.prompt as u64;
            self.counters.cached_tokens += tokens as u64;
            if let Some(d) = diverged {
                self.events.push(Event::Diverged { id, at: d.at, cached: d.cached, prompt: d.prompt });
            }
        }
        sequence.usage.cached_tokens = self.open.get(&id).and_then(|open| open.cached).unwrap_or(0);
        (sequence.holding, sequence.submitted, sequence.processed) = (holding, tokens, tokens);
        sequence.checkpoints = if self.store.is_recurrent() { checkpoints(&sequence, common) } else { Vec::new() };
        let at = self.running.partition_point(|s| s.order() < sequence.order());
        self.running.insert(at, sequence);
    }

    /// The last of the running answers gives its memory to the others and begins again later.
    pub(crate) fn preempt(&mut self) {
        let Some(mut sequence) = self.running.pop() else { return };
        self.counters.preempted += 1;
        self.leave(&mut sequence);
        (sequence.submitted, sequence.processed, sequence.awaited) = (0, 0, None);
        self.enqueue(sequence);
    }

    /// Gives up what a sequence holds; what it has read stays for whoever begins alike.
    fn leave(&mut self, sequence: &mut Sequence) {
        let mut holding = std::mem::take(&mut sequence.holding);
        self.store.record(&mut holding, &sequence.tokens[..sequence.submitted]);
        self.store.release(holding, true);
    }

    pub(crate) fn finish(&mut self, at: usize, reason: FinishReason) {
        let mut sequence = self.running.remove(at);
        if let FinishReason::Stop(token) = reason {
            // A step that ran ahead has read the end token as well.
            let read = sequence.submitted - sequence.tokens.len().min(sequence.submitted);
            sequence.tokens.extend(std::iter::repeat_n(token, read));
        }
        self.leave(&mut sequence);
        self.close(&sequence, reason);
    }

    /// Publishes the end of an answer that holds nothing any more.
    pub(crate) fn close(&mut self, sequence: &Sequence, reason: FinishReason) {
        let (id, choice, usage) = (sequence.id(), sequence.choice, sequence.usage);
        match reason {
            FinishReason::Cancelled => self.counters.cancelled += 1,
            _ => self.counters.finished += 1,
        }
        self.events.push(Event::Finished { id, choice, reason, usage });
        if let Some(open) = self.open.get_mut(&id) {
            open.answers -= 1;
            if open.answers == 0 {
                self.forget_request(id);
            }
        }
    }

    /// Ends a request with all its answers.
    pub(crate) fn fail(&mut self, id: RequestId, error: EngineError) {
        if !self.open.contains_key(&id) {
            return;
        }
        self.waiting.retain(|s| s.id() != id);
        while let Some(at) = self.running.iter().position(|s| s.id() == id) {
            let sequence = self.running.remove(at);
            self.store.discard(sequence.holding);
        }
        self.counters.failed += 1;
        self.events.push(Event::Failed { id, error });
        self.forget_request(id);
    }

    fn forget_request(&mut self, id: RequestId) {
        self.open.remove(&id);
        self.store.drop_space(id.0);
    }
}

/// Whether a running sequence is about to read a beginning of this prompt that is worth waiting for. It is asked to save
/// its state there, where it has one.
fn comes_soon(waiting: &Sequence, running: &mut [Sequence], store: &Store) -> bool {
    let prompt = &waiting.tokens[..waiting.tokens.len() - 1];
    let mut known = None;
    for reader in running.iter_mut().filter(|r| r.shared.space == waiting.shared.space) {
        let common = reader.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        if common <= reader.processed {
            continue;
        }
        let known = *known.get_or_insert_with(|| store.known(waiting.shared.space, &waiting.tokens));
        let reached = if store.is_recurrent() {
            let ahead = |c: &&usize| **c > reader.processed && **c <= common;
            let planned = reader.checkpoints.iter().rfind(ahead).copied().unwrap_or(0);
            if common > reader.submitted && common >= planned.max(known) + PAGE_ROWS && store.can_save() {
                reader.add_checkpoint(common);
                common
            } else {
                planned
            }
        } else {
            common
        };
        // To wait takes no longer than to read it oneself; but a header in common is no reason to stand back.
        if reached > known && (reached >= LEAST_GAIN || reader.id() == waiting.id()) {
            return true;
        }
    }
    false
}

/// Where the state of a recurrent model is saved while a prompt is read: where the caller says, every [`STRIDE`] tokens,
/// and where the prompt parts from an earlier one, for the next that parts there. A caller that says nothing gets a state
/// near the end, for the same prompt again.
fn checkpoints(sequence: &Sequence, common: usize) -> Vec<usize> {
    let (shared, begun) = (&sequence.shared, sequence.processed);
    if shared.space != 0 {
        // Nobody but the other answers to this very request can use it.
        return sequence.fork().into_iter().filter(|p| *p > begun).collect();
    }
    // A mark that saves only a few tokens is not worth the step that it cuts in two, but the last one always is.
    let mut positions: Vec<usize> = Vec::new();
    for (i, mark) in shared.marks.iter().enumerate().filter(|(_, mark)| **mark > begun) {
        let from = positions.last().copied().unwrap_or(begun);
        if i + 1 == shared.marks.len() || *mark >= from + LEAST_GAIN {
            positions.push(*mark);
        }
    }
    positions.extend(sequence.fork());
    if shared.marks.is_empty() && shared.prompt > PAGE_ROWS {
        positions.push((shared.prompt - 1) / PAGE_ROWS * PAGE_ROWS);
    }
    let is_near = |at: usize| positions.iter().any(|p| *p <= at && at - *p < LEAST_GAIN);
    if common < shared.prompt && common >= begun + LEAST_GAIN && !is_near(common) {
        positions.push(common);
    }
    positions.extend((STRIDE..shared.prompt).step_by(STRIDE));
    positions.retain(|p| *p > begun);
    positions.sort_unstable();
    positions.dedup();
    positions
}
