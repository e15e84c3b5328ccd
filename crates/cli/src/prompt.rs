//! From messages to the tokens of a request.

use crate::Usage;
use crate::args::Think;
use crate::side::TextSide;
use anyhow::{Result, bail};
use onebit_engine::Thinking;
use onebit_text::{Message, RenderOptions, Specials};
use serde_json::Value as Json;

/// A prompt in tokens, with what the engine must know about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// The model's reasoning block, when it has one.
    pub thinking: Option<Thinking>,
    /// Where later prompts are likely to go on differently, ascending.
    pub branches: Vec<usize>,
}

/// Continues a text as it is, special tokens included.
///
/// # Errors
/// Text that cannot be encoded.
pub fn raw(side: &TextSide, text: &str) -> Result<Prepared> {
    let mut tokens: Vec<u32> = side.tokenizer.bos_to_add().into_iter().collect();
    tokens.extend(side.tokenizer.encode(text, Specials::Parse)?);
    Ok(Prepared { tokens, thinking: None, branches: Vec::new() })
}

/// Renders a conversation with the model's chat template, up to the header of the next answer. `tools` are function
/// definitions that the model may call, as requests carry them.
///
/// # Errors
/// A model without a template, a template that refuses, a thinking switch that the model does not have.
pub fn chat(side: &TextSide, messages: &[Message], tools: &[Json], think: Option<Think>) -> Result<Prepared> {
    let Some(template) = &side.template else {
        bail!("the model has no chat template; `onebit run --raw` continues a text without one");
    };
    let markers = template.think_markers();
    if let Some(think) = think
        && markers.is_none()
    {
        let flag = match think {
            Think::On => "on".to_owned(),
            Think::Off => "off".to_owned(),
            Think::Budget(n) => n.to_string(),
        };
        bail!(Usage(format!("--think {flag} has no effect here: this model does not think before it answers")));
    }
    let switch = think.map(|think| think != Think::Off);
    let options = RenderOptions { enable_thinking: switch, ..RenderOptions::default() };
    let prompt = template.render(&side.tokenizer, messages, tools, &options)?;
    let tokens = prompt.encode(&side.tokenizer)?;
    let thinking = match &markers {
        Some(markers) => {
            let budget = match think {
                Some(Think::Off) => Some(0),
                Some(Think::Budget(n)) => Some(n),
                Some(Think::On) | None => None,
            };
            Thinking::of(&side.tokenizer, prompt.opens_thinking(markers), budget)?
        }
        None => None,
    };
    let branches = template.branches(&side.tokenizer, messages, tools, &options, &tokens);
    Ok(Prepared { tokens, thinking, branches })
}
