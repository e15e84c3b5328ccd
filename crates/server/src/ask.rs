//! What every dialect's request becomes: one form, without wire types.

use crate::error::ApiError;
use crate::tools::Tools;
use onebit_engine::SamplingParams;
use onebit_text::{Content, Grammar, Message};
use serde_json::{Map, Value};

/// A request for answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ask {
    pub(crate) prompt: Prompt,
    pub(crate) sampling: Sampling,
    /// Most tokens of an answer; to the end of the context without it.
    pub(crate) max_tokens: Option<usize>,
    /// Answers to the prompt; 0 and 1 are one.
    pub(crate) choices: usize,
    /// Texts that end an answer and are not part of it.
    pub(crate) stop: Vec<String>,
    /// Token ids that end an answer as its end tokens do.
    pub(crate) stop_tokens: Vec<u32>,
    /// The model's end tokens do not end the answer.
    pub(crate) ignore_eos: bool,
    /// Tell how likely each token of the answer was, and so many others beside it.
    pub(crate) logprobs: Option<usize>,
    pub(crate) thinking: Wish,
    /// The form of the answer.
    pub(crate) format: Option<Format>,
    /// The client has asked for the beginning of a prompt that is too long to be dropped.
    pub(crate) truncate: bool,
}

/// What is to be continued.
#[derive(Debug, Clone)]
pub(crate) enum Prompt {
    Chat(Box<Chat>),
    /// Text as it is, with special tokens.
    Text(String),
    Tokens(Vec<u32>),
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Tokens(Vec::new())
    }
}

/// About the bytes that a template writes around a message.
const MARKUP: usize = 32;

impl Prompt {
    /// About how many bytes of text must be made tokens.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Prompt::Text(text) => text.len(),
            Prompt::Tokens(_) => 0,
            Prompt::Chat(chat) => {
                let json = |value: &Value| value.to_string().len();
                let said = chat.messages.iter().map(|message| {
                    let text = match &message.content {
                        Content::Text(text) => text.len(),
                        Content::Null | Content::Parts(_) => 0,
                    };
                    let calls: usize = message.tool_calls.iter().map(|call| json(&call.arguments)).sum();
                    MARKUP + text + message.reasoning.as_ref().map_or(0, String::len) + calls
                });
                let tools = chat
                    .tools
                    .specs
                    .iter()
                    .map(|tool| tool.description.as_ref().map_or(0, String::len) + json(&tool.parameters));
                said.sum::<usize>() + tools.sum::<usize>() + chat.variables.values().map(json).sum::<usize>()
            }
        }
    }
}

/// A conversation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chat {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Tools,
    /// The last message is the assistant's and is to be continued.
    pub(crate) prefill: bool,
    /// More variables for the template.
    pub(crate) variables: Map<String, Value>,
}

/// The form of an answer, and the field that asked for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Format {
    pub(crate) grammar: Grammar,
    pub(crate) field: &'static str,
}

/// How tokens are chosen, as far as the client says.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sampling {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    /// Tokens that the penalties look at; -1 is all, and 0 none.
    pub(crate) penalty_window: Option<i64>,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) seed: Option<i64>,
}

impl Sampling {
    /// The values with the model's own where the client is silent.
    pub(crate) fn over(&self, model: &SamplingParams) -> Result<SamplingParams, ApiError> {
        // 0 and -1 both mean all tokens to clients.
        let top_k = match self.top_k {
            None => model.top_k,
            Some(k) if k <= 0 => 0,
            Some(k) => usize::try_from(k).unwrap_or(usize::MAX),
        };
        let penalty_window = match self.penalty_window {
            None => model.penalty_window,
            Some(-1 | 0) => None,
            Some(n) => Some(usize::try_from(n).map_err(|_| {
                let message = format!("must be at least 1, 0 for no penalties, or -1 for the whole context, got {n}");
                ApiError::field("repeat_last_n", message)
            })?),
        };
        // Who looks at no token penalises none.
        let penalises = self.penalty_window != Some(0);
        let penalty =
            |asked: Option<f32>, model: f32, neutral| if penalises { asked.unwrap_or(model) } else { neutral };
        Ok(SamplingParams {
            temperature: self.temperature.unwrap_or(model.temperature),
            top_k,
            top_p: self.top_p.unwrap_or(model.top_p),
            min_p: self.min_p.unwrap_or(model.min_p),
            repetition_penalty: penalty(self.repetition_penalty, model.repetition_penalty, 1.0),
            presence_penalty: penalty(self.presence_penalty, model.presence_penalty, 0.0),
            frequency_penalty: penalty(self.frequency_penalty, model.frequency_penalty, 0.0),
            penalty_window,
            logit_bias: self.logit_bias.clone(),
            // Negative seeds are other numbers, not errors; -1 asks for a fresh one in llama.cpp's tradition.
            seed: self.seed.filter(|seed| *seed != -1).map(i64::cast_unsigned),
        })
    }
}

/// What the client says about reasoning. A part that is silent leaves it to the server, and that to the template.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) on: Option<bool>,
    /// Most tokens of reasoning.
    pub(crate) budget: Option<usize>,
}

/// Names of efforts, and the budget of tokens that each stands for.
const EFFORTS: [(&str, Option<usize>); 8] = [
    ("none", Some(0)),
    ("minimal", Some(512)),
    ("low", Some(1024)),
    ("medium", Some(4096)),
    ("high", Some(16384)),
    ("xhigh", None),
    ("max", None),
    ("auto", None),
];

impl Wish {
    pub(crate) const OFF: Wish = Wish { on: Some(false), budget: None };

    /// From a switch.
    pub(crate) fn switch(on: Option<bool>) -> Self {
        Self { on, budget: None }
    }

    /// From a number of tokens: 0 is off, -1 is no limit.
    pub(crate) fn tokens(budget: Option<i64>, field: &str) -> Result<Self, ApiError> {
        Ok(match budget {
            None => Self::default(),
            Some(-1) => Self::switch(Some(true)),
            Some(0) => Self::OFF,
            Some(n) => {
                let budget = usize::try_from(n)
                    .map_err(|_| ApiError::field(field, format!("must be at least 0, or -1 for no limit, got {n}")))?;
                Self { on: Some(true), budget: Some(budget) }
            }
        })
    }

    /// From a word of OpenAI's and Anthropic's scale.
    pub(crate) fn effort(effort: Option<&str>, field: &str) -> Result<Self, ApiError> {
        let Some(effort) = effort else { return Ok(Self::default()) };
        let names = || EFFORTS.map(|(name, _)| name).join(", ");
        let known = EFFORTS.iter().find(|(name, _)| *name == effort);
        let (name, budget) =
            known.ok_or_else(|| ApiError::field(field, format!("must be one of {}, got `{effort}`", names())))?;
        Ok(match (*name, budget) {
            ("auto", _) => Self::default(),
            (_, Some(0)) => Self::OFF,
            (_, budget) => Self { on: Some(true), budget: *budget },
        })
    }

    /// What this says, and `other` where this is silent. Off is off, whatever budget the other names.
    pub(crate) fn or(self, other: Wish) -> Wish {
        let on = self.on.or(other.on);
        Wish { on, budget: if on == Some(false) { None } else { self.budget.or(other.budget) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_goes_before_the_model() {
        let model = SamplingParams { temperature: 0.6, top_k: 20, seed: None, ..SamplingParams::default() };
        let asked = Sampling { temperature: Some(0.0), top_k: Some(-1), seed: Some(7), ..Sampling::default() };
        let params = asked.over(&model).expect("good values");
        assert_eq!((params.temperature, params.top_k, params.seed), (0.0, 0, Some(7)));
        assert_eq!(Sampling::default().over(&model), Ok(model));
        let blind = Sampling { penalty_window: Some(0), frequency_penalty: Some(1.0), ..Sampling::default() };
        let neutral = SamplingParams { repetition_penalty: 1.3, ..SamplingParams::default() };
        assert_eq!(blind.over(&neutral), Ok(SamplingParams::default()), "no token is looked at");
        let fresh = Sampling { seed: Some(-1), ..Sampling::default() };
        assert_eq!(fresh.over(&SamplingParams::default()).map(|p| p.seed), Ok(None));
    }

    #[test]
    fn all_text_of_a_conversation_counts() {
        let long = "x".repeat(1000);
        let mut thought = Message::new(onebit_text::Role::Assistant, Content::Null);
        thought.reasoning = Some(long.clone());
        thought.tool_calls.push(onebit_text::ToolCall { name: "f".into(), arguments: long.clone().into() });
        let tool = crate::tools::Tool {
            name: "f".into(),
            description: Some(long.clone()),
            parameters: serde_json::json!({"description": long}),
            strict: false,
        };
        let tools = Tools { specs: vec![tool], ..Tools::default() };
        let variables = Map::from_iter([("v".to_owned(), Value::from(long.as_str()))]);
        let chat = Chat { messages: vec![Message::user(long), thought], tools, variables, prefill: false };
        let bytes = Prompt::Chat(Box::new(chat)).text_bytes();
        // Six texts, and little around them.
        assert!((6000..6200).contains(&bytes), "{bytes}");
    }

    #[test]
    fn wishes_in_order() {
        let budget = Wish::tokens(Some(50), "x").expect("a number");
        assert_eq!(budget, Wish { on: Some(true), budget: Some(50) });
        let low = Wish::effort(Some("low"), "x").expect("a word");
        assert_eq!(budget.or(low), budget);
        assert_eq!(Wish::OFF.or(low), Wish::OFF);
        assert_eq!(Wish::default().or(low), low);
        assert_eq!(Wish::switch(Some(true)).or(low).budget, Some(1024));
        assert!(Wish::effort(Some("lots"), "reasoning_effort").is_err());
    }
}
