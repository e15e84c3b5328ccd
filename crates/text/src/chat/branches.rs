//! Where later prompts part from this one: the places that a cache should remember.

use super::{ChatTemplate, RenderOptions};
use crate::message::{Message, Role};
use crate::tokenizer::Tokenizer;
use serde_json::Value;

impl ChatTemplate {
    /// Positions in `tokens`, the rendered and encoded prompt of these messages, at which other prompts are likely to go
    /// on differently; ascending.
    ///
    /// * The end of the system prompt and the tools, for other conversations under the same one.
    /// * Where the next turn of this conversation parts from the header of the answer: templates drop the reasoning of
    ///   earlier turns, and an empty reasoning block with it.
    ///
    /// They are found by rendering those prompts, whatever the template.
    pub fn branches(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        tools: &[Value],
        options: &RenderOptions,
        tokens: &[u32],
    ) -> Vec<usize> {
        let options = RenderOptions { add_generation_prompt: false, ..options.clone() };
        let shared = |messages: &[Message]| {
            // A template that refuses the variant tells nothing, and costs no more than a prompt read again.
            let prompt = self.render(tokenizer, messages, tools, &options).ok();
            let other = prompt.and_then(|prompt| prompt.encode(tokenizer).ok()).unwrap_or_default();
            other.iter().zip(tokens).take_while(|(a, b)| a == b).count()
        };
        let mut positions = Vec::new();
        let system: Vec<Message> = messages.iter().filter(|m| m.role.is_system()).cloned().collect();
        if !system.is_empty() || !tools.is_empty() {
            // Two texts that begin differently, lest one begins like the message that is there.
            let with = |text: &str| shared(&[system.as_slice(), &[Message::user(text)]].concat());
            positions.push(with("a").min(with("0")));
        }
        if messages.last().is_some_and(|m| m.role != Role::Assistant) {
            let turn = [Message::assistant("a"), Message::user("a")];
            positions.push(shared(&[messages, &turn].concat()));
        }
        positions.retain(|at| (1..=tokens.len()).contains(at));
        positions.sort_unstable();
        positions.dedup();
        positions
    }
}
