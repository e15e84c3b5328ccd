//! The engine as a source of tokens.

use crate::host::{Progress, TokenSource};
use onebit_engine::{Engine, EngineError, Event, Request, RequestId, Stats};

impl TokenSource for Engine {
    type Id = RequestId;

    fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        Engine::submit(self, request)
    }

    fn cancel(&mut self, id: RequestId) {
        // It may have ended in the last step.
        let _ = Engine::cancel(self, id);
    }

    fn cancel_choice(&mut self, id: RequestId, choice: usize) {
        let _ = Engine::cancel_choice(self, id, choice);
    }

    fn step(&mut self) -> Result<Vec<(RequestId, Progress)>, EngineError> {
        let events = Engine::step(self)?;
        Ok(events.into_iter().map(|event| (event.id(), progress(event))).collect())
    }

    fn is_idle(&self) -> bool {
        Engine::is_idle(self)
    }

    fn stats(&self) -> Stats {
        Engine::stats(self)
    }
}

fn progress(event: Event) -> Progress {
    match event {
        Event::Prefill { done, total, .. } => Progress::Prefill { done, total },
        Event::Diverged { at, cached, prompt, .. } => Progress::Diverged { at, cached, prompt },
        Event::Token { choice, token, reasoning, logprobs, .. } => {
            Progress::Token { choice, token, reasoning, logprobs }
        }
        Event::Finished { choice, reason, usage, .. } => Progress::Finished { choice, reason, usage },
        Event::Failed { error, .. } => Progress::Failed(error),
    }
}
