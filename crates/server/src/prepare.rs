//! From a request in its inner form to what the engine runs and what takes its tokens apart.

use crate::ask::{Ask, Chat, Prompt, Wish};
use crate::error::ApiError;
use crate::grammar::{self, Beside, Calls};
use crate::model::Model;
use crate::tools::ToolChoice;
use onebit_engine::{Constraint, Request, Thinking};
use onebit_text::{Message, OutputSplitter, RenderOptions, Role, Specials};

/// A call with a longer body is handed out while it is written.
const LONGEST_WHOLE_CALL: usize = 256;

/// Bias that keeps a token from being chosen.
const NEVER: f32 = -100.0;

/// A request for the engine, and how to read what it answers.
pub(crate) struct Prepared {
    pub(crate) request: Request,
    pub(crate) reading: Reading,
}

/// How the tokens of an answer are read.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) splitter: OutputSplitter,
    pub(crate) stop: Vec<String>,
    /// The answer ends with its first call.
    pub(crate) one_call: bool,
}

/// Renders, encodes and checks a request. Takes long for long prompts: not for an async thread.
pub(crate) fn prepare(model: &Model, ask: Ask, default: Wish) -> Result<Prepared, ApiError> {
    let tokenizer = &model.text.tokenizer;
    let wish = ask.thinking.or(default);
    let rendered = match &ask.prompt {
        Prompt::Chat(chat) => truncated(model, &ask, chat, wish)?,
        Prompt::Text(text) => {
            let mut tokens: Vec<u32> = tokenizer.bos_to_add().into_iter().collect();
            tokens.extend(tokenizer.encode(text, Specials::Parse)?);
            Rendered { tokens, thinking: None, branches: Vec::new() }
        }
        Prompt::Tokens(tokens) => Rendered { tokens: tokens.clone(), thinking: None, branches: Vec::new() },
    };
    let Rendered { mut tokens, thinking, branches } = rendered;
    if ask.truncate && !matches!(ask.prompt, Prompt::Chat(_)) {
        let room = model.context.saturating_sub(room_for_answer(&ask, model.context));
        tokens.drain(..tokens.len().saturating_sub(room));
    }
    let mut sampling = ask.sampling.over(&model.text.sampling)?;
    let mut splitter = OutputSplitter::new(thinking.as_ref().map(|t| t.splitter(tokenizer)), Vec::new());
    let mut one_call = false;
    if let Prompt::Chat(chat) = &ask.prompt
        && !chat.tools.specs.is_empty()
    {
        if chat.tools.choice == ToolChoice::None {
            // The tools stay in the prompt, where a cached prefix has them; the token that opens a call is barred.
            sampling.logit_bias.extend(tokenizer.id_of("<tool_call>").map(|id| (id, NEVER)));
        }
        let thinking = thinking.as_ref().map(|t| t.splitter(tokenizer));
        splitter = OutputSplitter::new(thinking, chat.tools.to_find()).streaming(LONGEST_WHOLE_CALL);
        one_call = chat.tools.one_call;
    }
    let constraint = constraint(model, &ask, thinking.as_ref())?;
    if let Some(unknown) = ask.stop_tokens.iter().find(|id| **id as usize >= model.vocab) {
        let message = format!("there is no token {unknown}; the last is {}", model.vocab.saturating_sub(1));
        return Err(ApiError::field("stop_token_ids", message));
    }
    let mut eos = if ask.ignore_eos { Vec::new() } else { model.text.eos.clone() };
    eos.extend(&ask.stop_tokens);
    let request = Request {
        sampling,
        choices: ask.choices.max(1),
        max_tokens: ask.max_tokens,
        eos,
        thinking,
        logprobs: ask.logprobs,
        constraint,
        checkpoints: branches,
        ..Request::new(tokens)
    };
    Ok(Prepared { request, reading: Reading { splitter, stop: ask.stop, one_call } })
}

/// The tokens of a prompt.
pub(crate) fn prompt_tokens(model: &Model, prompt: &Prompt, wish: Wish) -> Result<Vec<u32>, ApiError> {
    match prompt {
        Prompt::Chat(chat) => Ok(rendered(model, chat, wish)?.tokens),
        Prompt::Text(text) => Ok(model.text.tokenizer.encode(text, Specials::Parse)?),
        Prompt::Tokens(tokens) => Ok(tokens.clone()),
    }
}

/// The text of a conversation as the model reads it.
pub(crate) fn prompt_text(model: &Model, chat: &Chat, wish: Wish) -> Result<String, ApiError> {
    Ok(model.text.tokenizer.decode(&rendered(model, chat, wish)?.tokens))
}

struct Rendered {
    tokens: Vec<u32>,
    thinking: Option<Thinking>,
    /// Where later prompts may leave this one, ascending.
    branches: Vec<usize>,
}

/// A conversation, without its oldest messages where it is too long and the client allows that.
fn truncated(model: &Model, ask: &Ask, chat: &Chat, wish: Wish) -> Result<Rendered, ApiError> {
    let whole = rendered(model, chat, wish)?;
    let room = model.context.saturating_sub(room_for_answer(ask, model.context));
    if !ask.truncate || whole.tokens.len() <= room {
        return Ok(whole);
    }
    // The fewest turns, by halving: rendering thousands of messages again for each of them would take minutes.
    let without = |turns: usize| {
        let messages = without_oldest(&chat.messages, turns);
        rendered(model, &Chat { messages, ..chat.clone() }, wish)
    };
    let (mut kept, mut dropped) = (0, turns(&chat.messages).saturating_sub(1));
    let mut best = if dropped == 0 { whole } else { without(dropped)? };
    while dropped - kept > 1 {
        let middle = kept.midpoint(dropped);
        let shorter = without(middle)?;
        if shorter.tokens.len() <= room {
            (dropped, best) = (middle, shorter);
        } else {
            kept = middle;
        }
    }
    Ok(best)
}

/// Tokens that truncation leaves for the answer.
fn room_for_answer(ask: &Ask, context: usize) -> usize {
    ask.max_tokens.unwrap_or(context / 4).min(context / 2).max(1)
}

/// Turns of a conversation: each begins with a message of the user.
fn turns(messages: &[Message]) -> usize {
    messages.iter().filter(|m| m.role == Role::User).count()
}

/// The conversation without its first so many turns. System messages stay, and what stands before the first turn.
fn without_oldest(messages: &[Message], turns: usize) -> Vec<Message> {
    let mut turn = 0;
    let stays = |m: &&Message| {
        turn += usize::from(m.role == Role::User);
        turn == 0 || turn > turns || m.role.is_system()
    };
    messages.iter().filter(stays).cloned().collect()
}

fn rendered(model: &Model, chat: &Chat, wish: Wish) -> Result<Rendered, ApiError> {
    let tokenizer = &model.text.tokenizer;
    let template = model.template()?;
    let markers = template.think_markers();
    if markers.is_none() && wish.on == Some(true) {
        return Err(ApiError::bad(format!(
            "the model {} does not reason before it answers: leave out the fields that turn reasoning on",
            model.name
        )));
    }
    if !chat.tools.specs.is_empty() && template.tool_form().is_none() {
        let message = format!("the chat template of {} knows no tools", model.name);
        return Err(ApiError::field("tools", message));
    }
    let (messages, begun) = match chat.messages.split_last() {
        Some((last, before)) if chat.prefill && last.role == Role::Assistant => (before, Some(last.content.text())),
        _ => (chat.messages.as_slice(), None),
    };
    // An answer that has begun is past its reasoning.
    let wish = if begun.is_some() { Wish::OFF } else { wish };
    let options = RenderOptions { enable_thinking: wish.on, extra: chat.variables.clone(), ..RenderOptions::default() };
    let tools = chat.tools.for_template();
    let prompt = template.render(tokenizer, messages, &tools, &options)?;
    let mut tokens = prompt.encode(tokenizer)?;
    let mut open = markers.as_ref().is_some_and(|markers| prompt.opens_thinking(markers));
    if let Some(begun) = &begun {
        if let (true, Some(markers)) = (open, &markers) {
            tokens.extend(tokenizer.encode(&format!("\n{}\n\n", markers.close), Specials::Parse)?);
            open = false;
        }
        tokens.extend(tokenizer.encode(begun, Specials::Literal)?);
    }
    let budget = if wish.on == Some(false) { Some(0) } else { wish.budget };
    let thinking = if markers.is_some() { Thinking::of(tokenizer, open, budget)? } else { None };
    let branches = template.branches(tokenizer, messages, &tools, &options, &tokens);
    Ok(Rendered { tokens, thinking, branches })
}

/// The constraint that format and tools ask for together.
fn constraint(model: &Model, ask: &Ask, thinking: Option<&Thinking>) -> Result<Option<Box<dyn Constraint>>, ApiError> {
    let after_reasoning = thinking.is_some_and(|t| t.open && t.budget != Some(0));
    let named = |field: &str, error: ApiError| match error.param {
        None => ApiError { param: Some(field.to_owned()), ..error },
        Some(_) => error,
    };
    let tools = match &ask.prompt {
        Prompt::Chat(chat) => Some(&chat.tools),
        _ => None,
    };
    let callable = tools.map(|tools| tools.callable()).unwrap_or_default();
    let forced = tools.is_some_and(|tools| tools.is_forced());
    let strict = callable.iter().any(|tool| tool.strict);
    let format = ask.format.as_ref();
    let form = model.text.template.as_ref().and_then(|t| t.tool_form());
    let calls = |beside| Calls {
        form: form.unwrap_or(onebit_text::ToolForm::Json),
        tools: &callable,
        one: tools.is_some_and(|tools| tools.one_call),
        beside,
        after_reasoning,
    };
    let (grammar, field) = match format {
        _ if forced => (calls(Beside::Nothing).grammar(&model.text.tokenizer), "tool_choice"),
        Some(format) if !callable.is_empty() => {
            let grammar = calls(Beside::Form(&format.grammar)).grammar(&model.text.tokenizer).ok_or_else(|| {
                ApiError::field(format.field, "a grammar cannot be combined with tools; use a JSON schema or a regex")
            })?;
            (Some(grammar), format.field)
        }
        Some(format) if after_reasoning => {
            (grammar::after_reasoning(&format.grammar).or_else(|| Some(format.grammar.clone())), format.field)
        }
        Some(format) => (Some(format.grammar.clone()), format.field),
        None if strict => (calls(Beside::Text).grammar(&model.text.tokenizer), "tools"),
        None => (None, ""),
    };
    let Some(grammar) = grammar else { return Ok(None) };
    let constraint = model.constraint(&grammar).map_err(|error| named(field, error))?;
    Ok(Some(Box::new(constraint)))
}
