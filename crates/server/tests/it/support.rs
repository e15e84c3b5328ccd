//! A tokenizer with any tokens, a scripted source, a server around both, and a client.

use crate::brush::{self, Painted};
use onebit_engine::{EngineError, FinishReason, Pool, Request, SamplingParams, Stats, TokenLogprobs, Usage};
use onebit_server::{Card, LoadError, Loaded, ModelEntry, ModelText, Progress, Server, ServerOptions, TokenSource};
use onebit_text::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

pub(crate) const THINKS: &str = include_str!("../../../../testdata/chat/think_tools.jinja");
pub(crate) const TAGS: &str = include_str!("../../../../testdata/chat/parts_tags.jinja");

/// Special texts of the test vocabulary, behind the 256 bytes. Control tokens come first.
const SPECIALS: [(&str, bool); 7] = [
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<|endoftext|>", true),
    ("<think>", false),
    ("</think>", false),
    ("<tool_call>", false),
    ("</tool_call>", false),
];
pub(crate) const START: u32 = 256;
pub(crate) const END: u32 = 257;
const FIRST_CHUNK: u32 = 263;
pub(crate) const CONTEXT: usize = 2048;

/// A step of a script.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Say {
    Token(u32),
    /// A step without a token for this answer.
    Wait,
    Fail(EngineError),
}

/// What a script says to a request, for each of its answers.
type Plan = dyn Fn(&Request, usize) -> Vec<Say> + Send + Sync;

/// What the source has seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) requests: Vec<Request>,
    pub(crate) cancelled: usize,
    pub(crate) under_way: usize,
    /// Steps with something to do.
    pub(crate) steps: usize,
}

struct Run {
    id: u64,
    request: Request,
    read: usize,
    answers: Vec<Track>,
}

struct Track {
    script: std::collections::VecDeque<Say>,
    open: bool,
    usage: Usage,
    over: bool,
}

/// Runs scripts as an engine runs requests: a queue, prefill in chunks, one token a step, limits, end tokens.
pub(crate) struct Script {
    plan: Arc<Plan>,
    seen: Arc<Mutex<Seen>>,
    /// A step waits while a test holds this.
    gate: Arc<Mutex<()>>,
    /// Requests that run; those behind them wait.
    parallel: usize,
    runs: Vec<Run>,
    told: Vec<(u64, Progress)>,
    next: u64,
    chunk: usize,
    pace: Duration,
}

impl TokenSource for Script {
    type Id = u64;

    fn submit(&mut self, request: Request) -> Result<u64, EngineError> {
        request.sampling.validate()?;
        let tokens = request.tokens.len();
        if tokens >= CONTEXT {
            return Err(EngineError::PromptTooLong { tokens, context: CONTEXT });
        }
        let open = request.thinking.as_ref().is_some_and(|t| t.open);
        let answer = |choice| Track {
            script: (self.plan)(&request, choice).into(),
            open,
            usage: Usage { prompt_tokens: tokens, ..Usage::default() },
            over: false,
        };
        let answers = (0..request.choices).map(answer).collect();
        self.next += 1;
        let mut seen = self.seen.lock().expect("no panic");
        seen.requests.push(request.clone());
        seen.under_way += 1;
        self.runs.push(Run { id: self.next, request, read: 0, answers });
        Ok(self.next)
    }

    fn cancel(&mut self, id: u64) {
        let before = self.runs.len();
        self.runs.retain(|run| run.id != id);
        let mut seen = self.seen.lock().expect("no panic");
        seen.cancelled += before - self.runs.len();
        seen.under_way = self.runs.len();
    }

    fn cancel_choice(&mut self, id: u64, choice: usize) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.id == id) {
            let answer = &mut run.answers[choice];
            if !answer.over {
                answer.over = true;
                let (reason, usage) = (FinishReason::Cancelled, answer.usage);
                self.told.push((id, Progress::Finished { choice, reason, usage }));
            }
        }
    }

    fn step(&mut self) -> Result<Vec<(u64, Progress)>, EngineError> {
        std::thread::sleep(self.pace);
        let _passed = self.gate.lock();
        self.seen.lock().expect("no panic").steps += usize::from(!self.runs.is_empty());
        let mut told = std::mem::take(&mut self.told);
        for run in self.runs.iter_mut().take(self.parallel) {
            step(run, self.chunk, &mut told);
        }
        let failed = |id: u64| told.iter().any(|(of, p)| *of == id && matches!(p, Progress::Failed(_)));
        self.runs.retain(|run| !run.answers.iter().all(|a| a.over) && !failed(run.id));
        self.seen.lock().expect("no panic").under_way = self.runs.len();
        Ok(told)
    }

    fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.told.is_empty()
    }

    fn stats(&self) -> Stats {
        let running = self.runs.len().min(self.parallel);
        let pages = Pool { total: 100, running, cached: 0 };
        Stats { running, waiting: self.runs.len() - running, pages, ..Stats::default() }
    }
}

fn step(run: &mut Run, chunk: usize, told: &mut Vec<(u64, Progress)>) {
    let total = run.request.tokens.len();
    if run.read < total {
        if run.read == 0 {
            told.push((run.id, Progress::Prefill { done: 0, total }));
        }
        run.read = (run.read + chunk).min(total);
        told.push((run.id, Progress::Prefill { done: run.read, total }));
        return;
    }
    let request = &run.request;
    let (start, end) = request.thinking.as_ref().map_or((None, u32::MAX), |t| (t.start, t.end));
    for (choice, answer) in run.answers.iter_mut().enumerate().filter(|(_, a)| !a.over) {
        let mut finish = |answer: &mut Track, reason: FinishReason| {
            answer.over = true;
            told.push((run.id, Progress::Finished { choice, reason, usage: answer.usage }));
        };
        match answer.script.pop_front() {
            None => finish(answer, FinishReason::Stop(END)),
            Some(Say::Wait) => {}
            Some(Say::Fail(error)) => {
                told.push((run.id, Progress::Failed(error)));
                return;
            }
            Some(Say::Token(token)) if request.eos.contains(&token) => finish(answer, FinishReason::Stop(token)),
            Some(Say::Token(token)) => {
                let first = answer.usage.completion_tokens == 0;
                let marker = token == end || (first && start == Some(token));
                let reasoning = answer.open || (first && start == Some(token));
                answer.usage.completion_tokens += 1;
                answer.usage.reasoning_tokens += usize::from(answer.open && !marker);
                answer.open = (answer.open || (first && start == Some(token))) && token != end;
                let logprobs = request.logprobs.map(|top| scripted_logprobs(token, top));
                told.push((run.id, Progress::Token { choice, token, reasoning, logprobs }));
                if request.max_tokens == Some(answer.usage.completion_tokens) {
                    answer.over = true;
                    let usage = answer.usage;
                    told.push((run.id, Progress::Finished { choice, reason: FinishReason::Length, usage }));
                } else if total + answer.usage.completion_tokens >= CONTEXT {
                    answer.over = true;
                    let usage = answer.usage;
                    told.push((run.id, Progress::Finished { choice, reason: FinishReason::ContextFull, usage }));
                }
            }
        }
    }
}

/// The chosen token has probability 1/2, the next 1/4, and so on.
fn scripted_logprobs(token: u32, top: usize) -> TokenLogprobs {
    let half = std::f32::consts::LN_2;
    let others = (0..top as u32).map(|i| (token + i, -half * (i + 1) as f32)).collect();
    TokenLogprobs { chosen: -half, top: others }
}

/// A vocabulary of the 256 bytes, special texts, and any chunks of bytes.
pub(crate) struct Vocabulary {
    chunks: Vec<Vec<u8>>,
}

impl Vocabulary {
    /// A token for every chunk.
    pub(crate) fn of(chunks: &[&[u8]]) -> Self {
        let distinct: BTreeSet<Vec<u8>> =
            chunks.iter().filter(|c| c.len() > 1 && special(c).is_none()).map(|c| c.to_vec()).collect();
        Vocabulary { chunks: distinct.into_iter().collect() }
    }

    /// The token of a chunk that the vocabulary was made with.
    pub(crate) fn id(&self, chunk: &[u8]) -> u32 {
        if let Some(id) = special(chunk) {
            return id;
        }
        match chunk {
            [byte] => u32::from(*byte),
            _ => FIRST_CHUNK + self.chunks.iter().position(|c| c == chunk).expect("a chunk of the vocabulary") as u32,
        }
    }

    pub(crate) fn tokenizer(&self) -> Tokenizer {
        let alphabet = alphabet();
        let spelled = |bytes: &[u8]| bytes.iter().map(|b| alphabet[usize::from(*b)]).collect::<String>();
        let mut vocab = serde_json::Map::new();
        for byte in 0..=255u8 {
            vocab.insert(spelled(&[byte]), json!(byte));
        }
        for (index, chunk) in self.chunks.iter().enumerate() {
            vocab.insert(spelled(chunk), json!(FIRST_CHUNK + index as u32));
        }
        let added: Vec<Value> = SPECIALS
            .iter()
            .enumerate()
            .map(|(index, (content, control))| {
                json!({"id": 256 + index, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": control})
            })
            .collect();
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        let json = json!({
            "version": "1.0", "added_tokens": added, "normalizer": null, "pre_tokenizer": level, "decoder": level,
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        Tokenizer::from_json(json.to_string().as_bytes()).expect("a good tokenizer")
    }
}

fn special(chunk: &[u8]) -> Option<u32> {
    SPECIALS.iter().position(|(text, _)| text.as_bytes() == chunk).map(|at| 256 + at as u32)
}

/// The letters that byte-level tokenizers write bytes with.
fn alphabet() -> Vec<char> {
    let plain = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut shifted = 0xff;
    (0..256u32)
        .map(|b| {
            let code = if plain(b) {
                b
            } else {
                shifted += 1;
                shifted
            };
            char::from_u32(code).expect("below the surrogates")
        })
        .collect()
}

/// A server for one test.
pub(crate) struct Site {
    pub(crate) base: String,
    pub(crate) seen: Arc<Mutex<Seen>>,
    /// No step begins while this is held.
    pub(crate) gate: Arc<Mutex<()>>,
    pub(crate) stop: mpsc::Sender<()>,
    /// How often the model was loaded.
    pub(crate) loads: Arc<AtomicUsize>,
    /// What the source of pictures has seen.
    pub(crate) painted: Arc<Mutex<Painted>>,
    thread: Option<std::thread::JoinHandle<()>>,
    agent: ureq::Agent,
}

/// How a test's server differs from the usual one.
pub(crate) struct Setup {
    pub(crate) template: Option<&'static str>,
    pub(crate) options: ServerOptions,
    pub(crate) chunk: usize,
    pub(crate) pace: Duration,
    pub(crate) parallel: usize,
    pub(crate) sampling: SamplingParams,
    /// More models: name, and the reason if it is unavailable.
    pub(crate) others: Vec<(&'static str, Option<&'static str>)>,
    /// A model for pictures, which takes so long for a step.
    pub(crate) pictures: Option<Duration>,
    /// How long it takes to load a model.
    pub(crate) loading: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            template: Some(THINKS),
            options: ServerOptions::default(),
            chunk: CONTEXT,
            pace: Duration::ZERO,
            parallel: usize::MAX,
            sampling: SamplingParams::default(),
            others: Vec::new(),
            pictures: None,
            loading: Duration::ZERO,
        }
    }
}

impl Setup {
    /// A server of the model `script`, which says these chunks, each a token, to everything.
    pub(crate) fn says(self, chunks: &[&[u8]]) -> Site {
        let vocabulary = Vocabulary::of(chunks);
        let script: Vec<Say> = chunks.iter().map(|chunk| Say::Token(vocabulary.id(chunk))).collect();
        self.plan(vocabulary, move |_, _| script.clone())
    }

    pub(crate) fn plan(
        self,
        vocabulary: Vocabulary,
        plan: impl Fn(&Request, usize) -> Vec<Say> + Send + Sync + 'static,
    ) -> Site {
        self.plan_at(0, vocabulary, plan)
    }

    /// On a certain port; 0 is any that is free.
    pub(crate) fn plan_at(
        self,
        port: u16,
        vocabulary: Vocabulary,
        plan: impl Fn(&Request, usize) -> Vec<Say> + Send + Sync + 'static,
    ) -> Site {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let loads = Arc::new(AtomicUsize::new(0));
        let plan: Arc<Plan> = Arc::new(plan);
        let gate = Arc::new(Mutex::new(()));
        let Setup { template, options, chunk, pace, parallel, sampling, others, pictures, loading } = self;
        let vocabulary = Arc::new(vocabulary);
        let loader = {
            let (seen, gate, loads) = (Arc::clone(&seen), Arc::clone(&gate), Arc::clone(&loads));
            move || -> Result<Loaded, LoadError> {
                loads.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(loading);
                let text = ModelText {
                    tokenizer: vocabulary.tokenizer(),
                    template: template.map(|t| ChatTemplate::from_source(t, "test").expect("valid Jinja")),
                    sampling: sampling.clone(),
                    eos: vec![END],
                };
                let (plan, seen, gate) = (Arc::clone(&plan), Arc::clone(&seen), Arc::clone(&gate));
                let make = move || Script {
                    plan,
                    seen,
                    gate,
                    parallel,
                    runs: Vec::new(),
                    told: Vec::new(),
                    next: 0,
                    chunk,
                    pace,
                };
                Loaded::new(make, text, CONTEXT, 320).map_err(|e| LoadError::Failed(e.to_string()))
            }
        };
        let card =
            Card { architecture: "script".into(), parameters: 1_720_000_000, format: "Q1_0".into(), ..Card::default() };
        let mut models = vec![ModelEntry::new("script", card.clone(), Box::new(loader.clone()))];
        for (name, reason) in others {
            models.push(match reason {
                Some(reason) => ModelEntry::unavailable(name, card.clone(), reason),
                None => ModelEntry::new(name, card.clone(), Box::new(loader.clone())),
            });
        }
        let painted = Arc::default();
        models.extend(pictures.map(|pace| brush::entry(&painted, pace)));
        let server = Server::new(models, options).expect("good options");
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let (stop, stopped) = mpsc::channel(2);
        let thread = std::thread::spawn(move || server.run_until(listener, stopped).expect("served"));
        let agent = ureq::Agent::new_with_config(
            ureq::Agent::config_builder()
                .http_status_as_error(false)
                .timeout_global(Some(Duration::from_secs(30)))
                .max_idle_connections(0)
                .build(),
        );
        Site { base, seen, gate, stop, loads, painted, thread: Some(thread), agent }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.stop.try_send(());
        let _ = self.stop.try_send(());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the server ends in order");
            }
        }
    }
}

/// A response: status and body.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) json: Value,
}

impl Site {
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let mut response = self.agent.get(format!("{}{path}", self.base)).call().expect("an answer");
        (response.status().as_u16(), response.body_mut().read_to_string().expect("text"))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_raw(path, &body.to_string(), &[])
    }

    pub(crate) fn post_raw(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = self.agent.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = request.send(body).expect("an answer");
        let text = response.body_mut().read_to_string().expect("text");
        let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Reply { status: response.status().as_u16(), json }
    }

    /// The body of a streamed response, to be read line by line or dropped.
    pub(crate) fn open(&self, path: &str, body: &Value) -> BufReader<Box<dyn Read + Send>> {
        let request = self.agent.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        let response = request.send(body.to_string()).expect("an answer");
        assert_eq!(response.status().as_u16(), 200, "the stream begins");
        BufReader::new(Box::new(response.into_body().into_reader()))
    }

    /// Every event of a stream: its name, or nothing, and its data.
    pub(crate) fn events(&self, path: &str, body: &Value) -> Vec<(String, Value)> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        events(self.open(path, &body))
    }

    /// A chat whose only message is `hi`, with more fields.
    pub(crate) fn chat(&self, fields: Value) -> Reply {
        self.post("/v1/chat/completions", &with_message(fields))
    }

    /// The same as a stream, put together again.
    pub(crate) fn chat_stream(&self, fields: Value) -> Streamed {
        let mut body = with_message(fields);
        body["stream_options"] = json!({"include_usage": true});
        Streamed::of(self.events("/v1/chat/completions", &body))
    }

    /// Waits for the end of a server that has been told to end.
    pub(crate) fn join(mut self) {
        self.thread.take().expect("it runs").join().expect("the server ends in order");
    }

    /// Waits until the source has nothing under way, and fails after a while.
    pub(crate) fn wait_until_idle(&self) {
        let begun = Instant::now();
        while self.seen.lock().expect("no panic").under_way > 0 {
            assert!(begun.elapsed() < Duration::from_secs(10), "a request was not freed");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The request that the source has seen last.
    pub(crate) fn last_request(&self) -> Request {
        self.seen.lock().expect("no panic").requests.last().expect("a request").clone()
    }
}

pub(crate) fn with_message(fields: Value) -> Value {
    let mut body = json!({"model": "script", "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in fields.as_object().expect("fields") {
        body[key] = value.clone();
    }
    body
}

pub(crate) fn events(reader: impl BufRead) -> Vec<(String, Value)> {
    let (mut out, mut name) = (Vec::new(), String::new());
    for line in reader.lines() {
        let line = line.expect("text");
        if let Some(event) = line.strip_prefix("event: ") {
            name = event.to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            let json = serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.to_owned()));
            out.push((std::mem::take(&mut name), json));
        }
    }
    out
}

/// A streamed chat, put together again.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Streamed {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    /// Every piece of content as it came.
    pub(crate) pieces: Vec<String>,
    /// Id, name and arguments.
    pub(crate) calls: Vec<(String, String, String)>,
    pub(crate) finish: Vec<String>,
    pub(crate) usage: Value,
    pub(crate) logprobs: Vec<Value>,
    pub(crate) error: Option<Value>,
}

impl Streamed {
    pub(crate) fn of(events: Vec<(String, Value)>) -> Streamed {
        let mut out = Streamed::default();
        assert_eq!(events.last().map(|(_, data)| data), Some(&json!("[DONE]")), "the stream has its end");
        for (_, data) in &events[..events.len() - 1] {
            if !data["error"].is_null() {
                out.error = Some(data["error"].clone());
                continue;
            }
            if data["usage"].is_object() {
                out.usage = data["usage"].clone();
            }
            for choice in data["choices"].as_array().expect("choices") {
                out.choice(choice);
            }
        }
        out
    }

    fn choice(&mut self, choice: &Value) {
        let delta = &choice["delta"];
        if let Some(text) = delta["content"].as_str().filter(|t| !t.is_empty()) {
            self.content.push_str(text);
            self.pieces.push(text.to_owned());
        }
        if let Some(text) = delta["reasoning_content"].as_str() {
            self.reasoning.push_str(text);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            if let Some(id) = call["id"].as_str() {
                assert_eq!(index, self.calls.len(), "calls come in order");
                let name = call["function"]["name"].as_str().expect("a name");
                self.calls.push((id.to_owned(), name.to_owned(), String::new()));
            }
            self.calls[index].2.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
        self.logprobs.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
        self.finish.extend(choice["finish_reason"].as_str().map(str::to_owned));
    }
}

/// The pieces of a text that is cut at these places.
pub(crate) fn cut<'a>(text: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut out = Vec::new();
    let mut from = 0;
    for place in places.iter().copied().chain([text.len()]) {
        if place > from {
            out.push(&text[from..place]);
            from = place;
        }
    }
    out
}

/// One byte a piece.
pub(crate) fn bytes(text: &[u8]) -> Vec<&[u8]> {
    text.chunks(1).collect()
}

impl Setup {
    /// A server that says one text. The request's seed tells where it is cut: 0 is nowhere, `n` before byte `n`, and
    /// the text's length between all bytes. Returns the seeds of all cuts.
    pub(crate) fn says_in_cuts(self, text: &'static str) -> (Site, std::ops::RangeInclusive<usize>) {
        let text = text.as_bytes();
        let pieces = move |seed: usize| if seed == text.len() { bytes(text) } else { cut(text, &[seed]) };
        let all: Vec<&[u8]> = (0..=text.len()).flat_map(pieces).collect();
        let vocabulary = Vocabulary::of(&all);
        let scripts: Vec<Vec<Say>> = (0..=text.len())
            .map(|seed| pieces(seed).into_iter().map(|piece| Say::Token(vocabulary.id(piece))).collect())
            .collect();
        let site = self
            .plan(vocabulary, move |request, _| scripts[request.sampling.seed.map_or(0, |seed| seed as usize)].clone());
        (site, 0..=text.len())
    }
}
