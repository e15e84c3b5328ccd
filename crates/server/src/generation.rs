//! The answers to one request, as they come.

use crate::app::{App, cut_off};
use crate::ask::Ask;
use crate::choice::{Choice, Cut, Logprob, Part};
use crate::error::ApiError;
use crate::host::{Job, Progress};
use crate::metrics::Ending;
use crate::model::SharedModel;
use crate::prepare::{Prepared, prepare};
use onebit_engine::{FinishReason, Usage};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Why a request ends that is no fault of its own.
const SHUTTING_DOWN: &str = "the request was cut off: the server is shutting down";

/// What happens on the way to the answers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    /// So much of the prompt has been read.
    Prefill { done: usize, total: usize },
    /// A stretch of one of the answers.
    Part { choice: usize, part: Part },
    /// One of the answers is over. The logprobs are of tokens without text of their own.
    End { choice: usize, finish: Finish, logprobs: Vec<Logprob> },
    /// All of them are.
    Done(Totals),
    /// The request failed; nothing follows.
    Failed(ApiError),
}

/// Why an answer is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended it.
    Stop,
    /// A stop string of the client did.
    StopString(String),
    /// The limit of tokens did.
    Length,
    /// The context is full.
    ContextFull,
    /// It calls tools.
    Calls,
}

/// What a request took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    /// Of all answers.
    pub(crate) completion_tokens: usize,
    pub(crate) reasoning_tokens: usize,
    pub(crate) queued: Duration,
    /// Time to read the prompt.
    pub(crate) prefill: Duration,
    /// Time to write the answers, from the first token on.
    pub(crate) decode: Duration,
}

impl Totals {
    /// Prompt tokens read per second; those from the cache do not count.
    pub(crate) fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens.min(self.prompt_tokens), self.prefill)
    }

    /// Tokens written per second, all answers together. The first comes with the reading of the prompt.
    pub(crate) fn decode_rate(&self) -> f64 {
        rate(self.completion_tokens.saturating_sub(1), self.decode)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// When things happened.
struct Clock {
    submitted: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// A request under way. Dropping it ends the work for it within one step of the engine.
pub(crate) struct Generation {
    // Before the model: a model that is given up must not have jobs.
    job: Job,
    app: Arc<App>,
    model: SharedModel,
    choices: Vec<Choice>,
    /// Answers whose end has been told to the client.
    ended: Vec<bool>,
    /// Answers that the engine is still at work on.
    open: usize,
    queue: VecDeque<Piece>,
    totals: Totals,
    clock: Clock,
    log: Log,
    over: bool,
    /// Becomes true when the server ends before the answers do.
    cut: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

/// What is logged about a request.
struct Log {
    id: String,
    ending: Ending,
    max_tokens: Option<usize>,
}

impl Generation {
    /// Prepares a request and hands it to the engine.
    ///
    /// Everything that is wrong with it is found here, before the first token.
    pub(crate) async fn start(app: &Arc<App>, model: &SharedModel, ask: Ask) -> Result<Self, ApiError> {
        let submitted = Instant::now();
        let place = app.place()?;
        let id = crate::id::fresh("");
        if let Some(dropped) = dropped_tools(&ask) {
            tracing::warn!(request = id, tools = dropped, "left out tools that only their makers' servers run");
        }
        let max_tokens = ask.max_tokens;
        let (preparing, thinking) = (Arc::clone(model), app.options.thinking);
        let bytes = ask.prompt.text_bytes();
        let Prepared { request, reading } = app.prepare(bytes, move || prepare(&preparing, ask, thinking)).await?;
        if app.options.log_prompts {
            tracing::info!(request = id, prompt = model.text.tokenizer.decode(&request.tokens), "prompt");
        }
        let choices: Vec<Choice> =
            (0..request.choices).map(|_| Choice::new(&reading)).collect::<Result<_, ApiError>>()?;
        let totals = Totals { prompt_tokens: request.tokens.len(), ..Totals::default() };
        let mut arrival = Arrival { app, model: &model.name, request: &id, waits: true };
        let job = model.host.submit(request).await;
        arrival.waits = false;
        drop(arrival);
        let job = job.map_err(ApiError::internal)??;
        Ok(Self {
            job,
            app: Arc::clone(app),
            cut: app.cut.subscribe(),
            model: Arc::clone(model),
            ended: vec![false; choices.len()],
            open: choices.len(),
            choices,
            queue: VecDeque::new(),
            totals,
            clock: Clock { submitted, admitted: None, first_token: None, last_token: None },
            log: Log { id, ending: Ending::Abandoned, max_tokens },
            over: false,
            _place: place,
        })
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.totals.prompt_tokens
    }

    /// What happens next; `None` behind [`Piece::Done`] and [`Piece::Failed`].
    pub(crate) async fn next(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = self.queue.pop_front() {
                return Some(piece);
            }
            if self.over {
                return None;
            }
            let told = tokio::select! {
                told = self.job.next() => told,
                () = cut_off(&mut self.cut) => {
                    self.fail(ApiError::unavailable(SHUTTING_DOWN));
                    continue;
                }
            };
            match told {
                Some((begun, progress)) => self.take(progress, begun),
                None => {
                    let reason = self.model.host.broken().unwrap_or_else(|| "the engine has stopped".to_owned());
                    self.fail(ApiError::internal(reason));
                }
            }
        }
    }

    /// `begun` is when the step began that this came from.
    fn take(&mut self, progress: Progress, begun: Instant) {
        let now = Instant::now();
        match progress {
            Progress::Prefill { done, total } => {
                // The step that reads the first of a prompt is the one that let it in.
                self.clock.admitted.get_or_insert(begun.max(self.clock.submitted));
                self.queue.push_back(Piece::Prefill { done, total });
            }
            Progress::Diverged { at, cached, prompt } => self.log_divergence(at, cached, prompt),
            Progress::Token { choice, token, reasoning, logprobs } => {
                self.app.metrics.token(&self.model.name, self.clock.submitted, self.clock.last_token, now);
                self.clock.first_token.get_or_insert(now);
                self.clock.last_token = Some(now);
                let Some(text) = self.choices.get_mut(choice) else { return };
                let parts = text.push(&self.model.text.tokenizer, token, reasoning, logprobs);
                self.queue.extend(parts.into_iter().map(|part| Piece::Part { choice, part }));
                if self.choices[choice].cut().is_some() && !self.ended[choice] {
                    self.end(choice, FinishReason::StopString);
                    self.job.cancel_choice(choice);
                }
            }
            Progress::Finished { choice, reason, usage } => self.finished(choice, reason, usage),
            Progress::Failed(error) => self.fail(error.into()),
        }
    }

    fn finished(&mut self, choice: usize, reason: FinishReason, usage: Usage) {
        if choice >= self.choices.len() || self.over {
            return;
        }
        self.totals.cached_tokens = usage.cached_tokens;
        self.totals.completion_tokens += usage.completion_tokens;
        self.totals.reasoning_tokens += usage.reasoning_tokens;
        if !self.ended[choice] {
            if reason == FinishReason::Cancelled {
                self.fail(ApiError::unavailable(SHUTTING_DOWN));
                return;
            }
            self.end(choice, reason);
        }
        self.open -= 1;
        if self.open == 0 {
            let clock = &self.clock;
            let admitted = clock.admitted.or(clock.first_token).unwrap_or(clock.submitted);
            let first = clock.first_token.unwrap_or(admitted);
            self.totals.queued = admitted - clock.submitted;
            self.totals.prefill = first - admitted;
            self.totals.decode = clock.last_token.unwrap_or(first) - first;
            self.queue.push_back(Piece::Done(self.totals));
            self.over = true;
        }
    }

    /// Tells the client that an answer is over.
    fn end(&mut self, choice: usize, reason: FinishReason) {
        let text = &mut self.choices[choice];
        let (parts, logprobs) = text.finish();
        self.queue.extend(parts.into_iter().map(|part| Piece::Part { choice, part }));
        let finish = match (text.cut(), reason) {
            (Some(Cut::StopString(stop)), _) => Finish::StopString(stop.clone()),
            (Some(Cut::FirstCall), _) => Finish::Calls,
            (None, FinishReason::Length) => Finish::Length,
            (None, FinishReason::ContextFull) => Finish::ContextFull,
            (None, _) if text.calls() > 0 => Finish::Calls,
            (None, _) => Finish::Stop,
        };
        self.ended[choice] = true;
        self.log.ending = Ending::of(&finish);
        self.app.metrics.finished(&self.model.name, self.log.ending);
        self.queue.push_back(Piece::End { choice, finish, logprobs });
    }

    fn fail(&mut self, error: ApiError) {
        self.log.ending = Ending::Error;
        self.app.metrics.finished(&self.model.name, Ending::Error);
        tracing::error!(request = self.log.id, error = error.message, "failed");
        self.queue.push_back(Piece::Failed(error));
        self.over = true;
    }

    /// Says where a prompt left an earlier one that it shares its beginning with: often a date or an id in the system
    /// prompt, which costs the client its cache.
    fn log_divergence(&self, at: usize, cached: u32, prompt: u32) {
        let (request, model) = (&self.log.id, &self.model.name);
        if self.app.options.log_prompts {
            let decode = |token| self.model.text.tokenizer.decode(&[token]);
            let (cached, prompt) = (decode(cached), decode(prompt));
            tracing::info!(
                request,
                model,
                at,
                cached,
                prompt,
                "prefix cache miss: an earlier prompt went on otherwise"
            );
        } else {
            tracing::info!(
                request,
                model,
                at,
                "prefix cache miss: an earlier prompt went on otherwise behind this token (--log-prompts shows how)"
            );
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        // Before it is counted: who sees the count finds the engine told.
        self.job.cancel();
        let answered = self.ended.iter().any(|ended| *ended);
        let ending = if self.over || answered { self.log.ending } else { Ending::Abandoned };
        if ending == Ending::Abandoned {
            self.app.metrics.finished(&self.model.name, ending);
        }
        self.app.metrics.request(&self.model.name, &self.totals, self.choices.len(), self.log.max_tokens);
        let first = self.clock.first_token.map(|first| (first - self.clock.submitted).as_secs_f64());
        tracing::info!(
            request = self.log.id,
            model = self.model.name,
            ending = ending.name(),
            prompt_tokens = self.totals.prompt_tokens,
            cached_tokens = self.totals.cached_tokens,
            completion_tokens = self.totals.completion_tokens,
            first_token_s = first,
            total_s = self.clock.submitted.elapsed().as_secs_f64(),
            prefill_tok_s = self.totals.prefill_rate(),
            decode_tok_s = self.totals.decode_rate(),
            "answered"
        );
    }
}

/// A request that the engine has not accepted yet. A client that leaves in the meantime is counted as well.
struct Arrival<'a> {
    app: &'a App,
    model: &'a str,
    request: &'a str,
    waits: bool,
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        if self.waits {
            self.app.metrics.finished(self.model, Ending::Abandoned);
            let (request, model) = (self.request, self.model);
            tracing::info!(request, model, ending = Ending::Abandoned.name(), "left before it was accepted");
        }
    }
}

/// Names of the hosted tools that were left out.
fn dropped_tools(ask: &Ask) -> Option<String> {
    match &ask.prompt {
        crate::ask::Prompt::Chat(chat) if !chat.tools.dropped.is_empty() => Some(chat.tools.dropped.join(", ")),
        _ => None,
    }
}
