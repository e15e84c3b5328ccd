//! What is said at the start: the context, how fast prompts are read, and what that means for coding agents.

use super::models::Opened;
use crate::terminal::{bytes, count, say, seconds};
use anyhow::Result;
use onebit_engine::{Engine, Request, SamplingParams};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// A coding agent's instructions and tools.
const AGENT_PROMPT: usize = 20_000;

/// What coding agents need to work for more than a few turns.
const AGENT_CONTEXT: usize = 32_768;

/// Tokens of the first measured prompt, and of the longest.
const SHORT: usize = 16;
const LONG: usize = 512;

/// A measurement that would take longer than this is not taken.
const PATIENCE: Duration = Duration::from_secs(2);

/// Measures how fast prompts are read and prints what matters to clients.
pub(super) fn say_about(name: &str, device: &str, opened: &mut Opened) -> Result<()> {
    let rate = prefill_rate(&mut opened.engine, opened.facts.vocab)?;
    let context = opened.plan.context;
    let options = opened.engine.options();
    let trained = opened.facts.context;
    say(&format!(
        "{name} on {device}: context {} of the model's {} tokens, {} requests at a time, memory {}",
        count(context as u64),
        count(trained as u64),
        options.sequences,
        bytes(opened.plan.total())
    ));
    let wait = Duration::from_secs_f64(AGENT_PROMPT as f64 / rate);
    say(&format!(
        "prompts are read at {rate:.0} tokens/s: one of {} tokens takes {} the first time, and what follows a prompt that is \
         cached takes the time of its new tokens",
        count(AGENT_PROMPT as u64),
        seconds(wait)
    ));
    if context < AGENT_CONTEXT {
        let advice = if trained < AGENT_CONTEXT {
            "this model was made for less"
        } else {
            "free memory, --kv-quant q8 or a smaller model give it more, and --ctx N sets it"
        };
        say(&format!(
            "note: coding agents need a context of {} tokens at least; {advice}",
            count(AGENT_CONTEXT as u64)
        ));
    }
    Ok(())
}

/// Prompt tokens a second. A short prompt says whether a longer one is worth its time.
fn prefill_rate(engine: &mut Engine, vocab: usize) -> Result<f64> {
    let longest = LONG.min(engine.options().context.saturating_sub(1)).max(1);
    // The first run also compiles the plan.
    measure(engine, SHORT.min(longest), vocab)?;
    let mut rate = measure(engine, SHORT.min(longest), vocab)?;
    if longest as f64 / rate < PATIENCE.as_secs_f64() {
        measure(engine, longest, vocab)?;
        rate = measure(engine, longest, vocab)?;
    }
    engine.forget();
    Ok(rate)
}

fn measure(engine: &mut Engine, tokens: usize, vocab: usize) -> Result<f64> {
    let tokens: Vec<u32> = (0..tokens).map(|i| ((i * 7919 + 13) % vocab) as u32).collect();
    let count = tokens.len();
    let request =
        Request { sampling: SamplingParams::greedy(), max_tokens: Some(1), cache: false, ..Request::new(tokens) };
    let started = Instant::now();
    engine.generate(request, |_| ControlFlow::Continue(()))?;
    Ok(count as f64 / started.elapsed().as_secs_f64().max(1e-9))
}
