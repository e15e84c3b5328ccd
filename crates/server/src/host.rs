//! A thread that owns a source of tokens and steps it. Requests go in by a channel, and what happens to each comes out
//! by a channel of its own.

use onebit_engine::{Counters, EngineError, FinishReason, Request, Stats, TokenLogprobs, Usage};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Instant;
use tokio::sync::{mpsc as events, oneshot, watch};

/// What happened to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// Part of the prompt has been read; the first of these says how much of it was cached.
    Prefill {
        /// Prompt tokens in the cache.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// An earlier prompt began like this one and then went another way.
    Diverged {
        /// Tokens that both share.
        at: usize,
        /// The earlier prompt's next token.
        cached: u32,
        /// This prompt's.
        prompt: u32,
    },
    /// A token of an answer.
    Token {
        /// Which of the answers.
        choice: usize,
        /// The token.
        token: u32,
        /// True inside the reasoning block and for its markers.
        reasoning: bool,
        /// How likely it was.
        logprobs: Option<TokenLogprobs>,
    },
    /// An answer is complete.
    Finished {
        /// Which of them.
        choice: usize,
        /// Why.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
    /// The request could not be served; nothing follows.
    Failed(EngineError),
}

/// What runs requests: an engine, or a script in tests. It is stepped by one thread and starts none.
pub trait TokenSource: 'static {
    /// Names a request.
    type Id: Copy + Eq + Hash;

    /// Takes a request.
    ///
    /// # Errors
    /// What is wrong with it; nothing has happened then.
    fn submit(&mut self, request: Request) -> Result<Self::Id, EngineError>;

    /// Ends a request, wherever it is. Nothing happens when it is not under way.
    fn cancel(&mut self, id: Self::Id);

    /// Ends one answer of a request.
    fn cancel_choice(&mut self, id: Self::Id, choice: usize);

    /// One step for everybody; returns what happened since the last.
    ///
    /// # Errors
    /// When the source is broken and must not be used further.
    fn step(&mut self) -> Result<Vec<(Self::Id, Progress)>, EngineError>;

    /// Nothing waits, runs, or is still to be told.
    fn is_idle(&self) -> bool;

    /// Counts, at any time.
    fn stats(&self) -> Stats;
}

/// What happened, and when the step began that it happened in.
type Told = (Instant, Progress);

type Sender = events::UnboundedSender<Told>;

enum Command {
    Submit { key: u64, request: Box<Request>, events: Sender, accepted: oneshot::Sender<Result<(), EngineError>> },
    Cancel { key: u64 },
    CancelChoice { key: u64, choice: usize },
}

/// The thread, seen from outside. It ends when this and all [`Job`]s are gone.
pub(crate) struct Host {
    commands: mpsc::Sender<Command>,
    shared: Arc<Mutex<Shared>>,
    ended: Ended,
    next_key: AtomicU64,
    thread: std::thread::JoinHandle<()>,
}

/// Closes when the thread has ended and why is noted. Whoever hears of a broken engine waits for it, so that the next to
/// ask finds the engine broken and not about to be.
#[derive(Clone)]
struct Ended(watch::Receiver<()>);

impl Ended {
    async fn wait(&mut self) {
        // Nothing is ever sent: a change is the end.
        while self.0.changed().await.is_ok() {}
    }
}

/// What the thread tells without being asked.
#[derive(Default)]
struct Shared {
    stats: Stats,
    /// Why the source can no longer be used.
    broken: Option<String>,
}

/// A request under way. Dropping it cancels the request within one step.
pub(crate) struct Job {
    key: u64,
    commands: mpsc::Sender<Command>,
    events: events::UnboundedReceiver<Told>,
    ended: Ended,
}

impl Job {
    /// What happens next, and when its step began; `None` when nothing more will.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        let told = self.events.recv().await;
        if told.is_none() {
            self.ended.wait().await;
        }
        told
    }

    /// Ends one of the answers.
    pub(crate) fn cancel_choice(&self, choice: usize) {
        let _ = self.commands.send(Command::CancelChoice { key: self.key, choice });
    }

    /// Ends the request, now rather than when this is dropped.
    pub(crate) fn cancel(&self) {
        // A host that has ended has nothing left to cancel.
        let _ = self.commands.send(Command::Cancel { key: self.key });
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Host {
    /// Starts the thread. The source is made on it, since it need not be `Send`.
    pub(crate) fn start<S: TokenSource>(make: impl FnOnce() -> S + Send + 'static) -> std::io::Result<Self> {
        let (commands, inbox) = mpsc::channel();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let told = Arc::clone(&shared);
        let (end, ended) = watch::channel(());
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let ending = Ending { shared: told, _end: end };
            let source = make();
            let before = source.stats().counters;
            let mut worker = Worker { source, before, jobs: HashMap::new(), keys: HashMap::new() };
            lock(&ending.shared).stats = worker.stats();
            if let Some(fault) = worker.run(&inbox, &ending.shared) {
                lock(&ending.shared).broken = Some(fault.to_string());
            }
        })?;
        Ok(Self { commands, shared, ended: Ended(ended), next_key: AtomicU64::new(0), thread })
    }

    /// Ends the thread and waits until what it held is free. No [`Job`] may be left.
    pub(crate) fn end(self) {
        let Self { commands, thread, .. } = self;
        drop(commands);
        // A thread that panicked has freed what it held as well.
        let _ = thread.join();
    }

    /// Hands a request to the source.
    ///
    /// # Errors
    /// What the source finds wrong with it, or why there is no source any more.
    pub(crate) async fn submit(&self, request: Request) -> Result<Result<Job, EngineError>, String> {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        let (events, receiver) = events::unbounded_channel();
        let (accepted, answer) = oneshot::channel();
        let command = Command::Submit { key, request: Box::new(request), events, accepted };
        self.commands.send(command).map_err(|_| self.fault())?;
        // Made before the answer is awaited: whoever gives up waiting cancels.
        let job = Job { key, commands: self.commands.clone(), events: receiver, ended: self.ended.clone() };
        match answer.await {
            Ok(verdict) => Ok(verdict.map(|()| job)),
            Err(_) => {
                self.ended.clone().wait().await;
                Err(self.fault())
            }
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        lock(&self.shared).stats
    }

    /// Why the source can no longer be used, if it cannot.
    pub(crate) fn broken(&self) -> Option<String> {
        lock(&self.shared).broken.clone()
    }

    fn fault(&self) -> String {
        self.broken().unwrap_or_else(|| "the engine has ended".to_owned())
    }
}

/// Notes the end of the thread, also when it panicked.
struct Ending {
    shared: Arc<Mutex<Shared>>,
    /// Closes [`Ended`], after the reason is noted.
    _end: watch::Sender<()>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let unexpected = || "the engine's thread has ended unexpectedly; please report this".to_owned();
        lock(&self.shared).broken.get_or_insert_with(unexpected);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The counts are plain values: a thread that panicked while holding them has left nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker<S: TokenSource> {
    source: S,
    /// Counts of what the source did before it came here.
    before: Counters,
    jobs: HashMap<S::Id, (u64, Sender)>,
    keys: HashMap<u64, S::Id>,
}

impl<S: TokenSource> Worker<S> {
    /// Take what has come, step, tell. Returns the fault that ended it, or nothing when nobody is left to serve.
    fn run(&mut self, inbox: &mpsc::Receiver<Command>, shared: &Mutex<Shared>) -> Option<EngineError> {
        loop {
            if self.source.is_idle() {
                match inbox.recv() {
                    Ok(command) => self.obey(command),
                    Err(mpsc::RecvError) => return None,
                }
            }
            while let Ok(command) = inbox.try_recv() {
                self.obey(command);
            }
            let begun = Instant::now();
            match self.source.step() {
                Ok(events) => {
                    // Before anybody hears of an end: who asks then finds it in the counts.
                    lock(shared).stats = self.stats();
                    events.into_iter().for_each(|(id, progress)| self.tell(id, (begun, progress)));
                }
                Err(fault) => {
                    for (_, events) in self.jobs.values() {
                        let _ = events.send((begun, Progress::Failed(fault.clone())));
                    }
                    return Some(fault);
                }
            }
        }
    }

    fn stats(&self) -> Stats {
        let (stats, before) = (self.source.stats(), &self.before);
        let counters = Counters {
            steps: stats.counters.steps - before.steps,
            prompt_tokens: stats.counters.prompt_tokens - before.prompt_tokens,
            cached_tokens: stats.counters.cached_tokens - before.cached_tokens,
            generated_tokens: stats.counters.generated_tokens - before.generated_tokens,
            finished: stats.counters.finished - before.finished,
            failed: stats.counters.failed - before.failed,
            cancelled: stats.counters.cancelled - before.cancelled,
            preempted: stats.counters.preempted - before.preempted,
        };
        Stats { counters, ..stats }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit { key, request, events, accepted } => {
                let verdict = self.source.submit(*request).map(|id| {
                    self.jobs.insert(id, (key, events));
                    self.keys.insert(key, id);
                });
                let _ = accepted.send(verdict);
            }
            Command::Cancel { key } => {
                if let Some(id) = self.keys.remove(&key) {
                    self.jobs.remove(&id);
                    self.source.cancel(id);
                }
            }
            Command::CancelChoice { key, choice } => {
                if let Some(id) = self.keys.get(&key) {
                    self.source.cancel_choice(*id, choice);
                }
            }
        }
    }

    /// An id stays known until its [`Job`] is dropped, which happens soon after its last event.
    fn tell(&mut self, id: S::Id, told: Told) {
        if let Some((_, events)) = self.jobs.get(&id) {
            let _ = events.send(told);
        }
    }
}
