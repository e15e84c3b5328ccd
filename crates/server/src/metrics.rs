//! Counters and histograms for Prometheus. Names are vLLM's where vLLM has the same thing, so that its dashboards and
//! routers read them.

use crate::catalog::Catalog;
use crate::generation::{Finish, Totals};
use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::time::{Duration, Instant};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Stop,
    Length,
    Calls,
    /// The client left.
    Abandoned,
    Error,
}

impl Ending {
    pub(crate) fn of(finish: &Finish) -> Self {
        match finish {
            Finish::Stop | Finish::StopString(_) => Self::Stop,
            Finish::Length | Finish::ContextFull => Self::Length,
            Finish::Calls => Self::Calls,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Calls => "tool_calls",
            Self::Abandoned => "abort",
            Self::Error => "error",
        }
    }
}

const MODEL: &[&str] = &["model_name"];

/// Seconds, from a fast token to a long document on a slow machine.
const SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100_000.0,
    200_000.0,
];

/// Everything that is counted.
pub(crate) struct Metrics {
    registry: Registry,
    running: IntGaugeVec,
    waiting: IntGaugeVec,
    cache_usage: GaugeVec,
    cache_config: IntGaugeVec,
    slots: IntGaugeVec,
    prompt_tokens: IntCounterVec,
    generation_tokens: IntCounterVec,
    prefix_queries: IntCounterVec,
    prefix_hits: IntCounterVec,
    preemptions: IntCounterVec,
    endings: IntCounterVec,
    first_token: HistogramVec,
    between_tokens: HistogramVec,
    whole: HistogramVec,
    queue: HistogramVec,
    prefill: HistogramVec,
    decode: HistogramVec,
    prompt_size: HistogramVec,
    answer_size: HistogramVec,
    asked_answers: HistogramVec,
    asked_tokens: HistogramVec,
}

impl Metrics {
    pub(crate) fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let gauge = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntGaugeVec> {
            let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let counter = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntCounterVec> {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let histogram = |name: &str, help: &str, buckets: &[f64]| -> prometheus::Result<HistogramVec> {
            let histogram = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), MODEL)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let cache_usage =
            GaugeVec::new(Opts::new("vllm:kv_cache_usage_perc", "KV pages in use by requests. 1 is all."), MODEL)?;
        registry.register(Box::new(cache_usage.clone()))?;
        Ok(Self {
            running: gauge("vllm:num_requests_running", "Sequences in the batch.", MODEL)?,
            waiting: gauge("vllm:num_requests_waiting", "Requests in the queue.", MODEL)?,
            cache_usage,
            cache_config: gauge(
                "vllm:cache_config_info",
                "Tokens in a KV page, and pages.",
                &["model_name", "block_size", "num_gpu_blocks"],
            )?,
            slots: gauge(
                "onebit:state_slots",
                "Recurrent state slots: all, in use by requests, kept for later prompts.",
                &["model_name", "use"],
            )?,
            prompt_tokens: counter("vllm:prompt_tokens_total", "Prompt tokens, cached ones included.", MODEL)?,
            generation_tokens: counter("vllm:generation_tokens_total", "Generated tokens.", MODEL)?,
            prefix_queries: counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up.", MODEL)?,
            prefix_hits: counter("vllm:prefix_cache_hits_total", "Prompt tokens that were cached.", MODEL)?,
            preemptions: counter("vllm:num_preemptions_total", "Sequences put back for want of pages.", MODEL)?,
            endings: counter("vllm:request_success_total", "Ended answers.", &["model_name", "finished_reason"])?,
            first_token: histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", SECONDS)?,
            between_tokens: histogram("vllm:inter_token_latency_seconds", "From token to token.", SECONDS)?,
            whole: histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.", SECONDS)?,
            queue: histogram("vllm:request_queue_time_seconds", "In the queue.", SECONDS)?,
            prefill: histogram("vllm:request_prefill_time_seconds", "Reading the prompt.", SECONDS)?,
            decode: histogram("vllm:request_decode_time_seconds", "Writing the answer.", SECONDS)?,
            prompt_size: histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", TOKENS)?,
            answer_size: histogram("vllm:request_generation_tokens", "Tokens of all answers to a prompt.", TOKENS)?,
            asked_answers: histogram("vllm:request_params_n", "Answers asked for.", TOKENS)?,
            asked_tokens: histogram("vllm:request_params_max_tokens", "Limit of tokens asked for.", TOKENS)?,
            registry,
        })
    }

    /// A token has come.
    pub(crate) fn token(&self, model: &str, submitted: Instant, last: Option<Instant>, now: Instant) {
        match last {
            None => self.first_token.with_label_values(&[model]).observe((now - submitted).as_secs_f64()),
            Some(last) => self.between_tokens.with_label_values(&[model]).observe((now - last).as_secs_f64()),
        }
    }

    /// An answer has ended.
    pub(crate) fn finished(&self, model: &str, ending: Ending) {
        self.endings.with_label_values(&[model, ending.name()]).inc();
    }

    /// A request is over.
    pub(crate) fn request(&self, model: &str, totals: &Totals, answers: usize, max_tokens: Option<usize>) {
        let seconds = |histogram: &HistogramVec, time: Duration| {
            histogram.with_label_values(&[model]).observe(time.as_secs_f64());
        };
        let tokens = |histogram: &HistogramVec, count: usize| {
            histogram.with_label_values(&[model]).observe(count as f64);
        };
        seconds(&self.whole, totals.queued + totals.prefill + totals.decode);
        seconds(&self.queue, totals.queued);
        seconds(&self.prefill, totals.prefill);
        seconds(&self.decode, totals.decode);
        tokens(&self.prompt_size, totals.prompt_tokens);
        tokens(&self.answer_size, totals.completion_tokens);
        tokens(&self.asked_answers, answers);
        if let Some(max_tokens) = max_tokens {
            tokens(&self.asked_tokens, max_tokens);
        }
    }

    /// Everything as text, with what the engines tell now.
    pub(crate) fn text(&self, catalog: &Catalog) -> prometheus::Result<String> {
        for entry in catalog.entries() {
            let Some(model) = entry.ready() else { continue };
            let (stats, name) = (model.host.stats(), [model.name.as_str()]);
            let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            self.running.with_label_values(&name).set(count(stats.running));
            self.waiting.with_label_values(&name).set(count(stats.waiting));
            let share = stats.pages.running as f64 / stats.pages.total.max(1) as f64;
            self.cache_usage.with_label_values(&name).set(share);
            let config = [name[0], "64", &stats.pages.total.to_string()];
            self.cache_config.with_label_values(&config).set(1);
            let slots = [("all", stats.slots.total), ("running", stats.slots.running), ("cached", stats.slots.cached)];
            for (purpose, n) in slots {
                self.slots.with_label_values(&[name[0], purpose]).set(count(n));
            }
            // The engine counts from its own start, which is later than the process's where it was loaded anew.
            let raise = |counter: &IntCounterVec, to: u64| {
                let counter = counter.with_label_values(&name);
                counter.inc_by(to.saturating_sub(counter.get()));
            };
            raise(&self.prompt_tokens, stats.counters.prompt_tokens);
            raise(&self.generation_tokens, stats.counters.generated_tokens);
            raise(&self.prefix_queries, stats.counters.prompt_tokens);
            raise(&self.prefix_hits, stats.counters.cached_tokens);
            raise(&self.preemptions, stats.counters.preempted);
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}
