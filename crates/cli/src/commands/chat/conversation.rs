//! What was said, and its form on disk.

use anyhow::{Context, Result, bail};
use onebit_text::{Message, Role};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A conversation: a system message, and turns of user and assistant.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Conversation {
    pub(super) system: Option<String>,
    turns: Vec<Message>,
}

/// The file that `/save` writes.
#[derive(Serialize, Deserialize)]
struct Saved {
    #[serde(default)]
    model: String,
    messages: Vec<SavedMessage>,
}

#[derive(Serialize, Deserialize)]
struct SavedMessage {
    role: String,
    content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
}

impl Conversation {
    /// Messages without the system message.
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    /// Everything in order.
    pub(super) fn messages(&self) -> Vec<Message> {
        self.system.iter().map(|s| Message::system(s.clone())).chain(self.turns.iter().cloned()).collect()
    }

    /// Everything, and one more message of the user.
    pub(super) fn with(&self, text: &str) -> Vec<Message> {
        let mut messages = self.messages();
        messages.push(Message::user(text));
        messages
    }

    /// The user says something.
    pub(super) fn say(&mut self, text: String) {
        self.turns.push(Message::user(text));
    }

    /// The model answers.
    pub(super) fn answer(&mut self, text: String, reasoning: String) {
        let message = Message::assistant(text);
        self.turns.push(Message { reasoning: Some(reasoning), ..message });
    }

    /// Removes the last message of the user with what followed, and returns its text.
    pub(super) fn take_back(&mut self) -> Option<String> {
        let at = self.turns.iter().rposition(|m| m.role == Role::User)?;
        let text = self.turns[at].content.text();
        self.turns.truncate(at);
        Some(text)
    }

    /// Forgets all turns.
    pub(super) fn clear(&mut self) {
        self.turns.clear();
    }

    /// Writes the conversation as JSON.
    pub(super) fn save(&self, path: &Path, model: &str) -> Result<()> {
        let role = |role: Role| match role {
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        let messages = self.messages().into_iter().map(|m| SavedMessage {
            role: role(m.role).to_owned(),
            content: m.content.text(),
            reasoning: m.reasoning.filter(|r| !r.is_empty()),
        });
        let saved = Saved { model: model.to_owned(), messages: messages.collect() };
        let text = serde_json::to_string_pretty(&saved)? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Reads what [`Conversation::save`] wrote, or any list of messages in that form.
    pub(super) fn load(path: &Path) -> Result<Conversation> {
        let name = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(name)?;
        let saved: Saved =
            serde_json::from_str(&text).with_context(|| format!("{} is no saved conversation", path.display()))?;
        let mut conversation = Conversation::default();
        for (index, message) in saved.messages.into_iter().enumerate() {
            match Role::parse(&message.role) {
                Some(Role::System | Role::Developer) if index == 0 => conversation.system = Some(message.content),
                Some(Role::User) => conversation.say(message.content),
                Some(Role::Assistant) => {
                    conversation.answer(message.content, message.reasoning.unwrap_or_default());
                }
                _ => bail!(
                    "{}: message {index} has the role `{}`, wanted user or assistant",
                    path.display(),
                    message.role
                ),
            }
        }
        Ok(conversation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_and_loaded_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("é.json");
        let mut c = Conversation { system: Some("be brief".to_owned()), ..Conversation::default() };
        c.say("a\nb".to_owned());
        c.answer("c".to_owned(), "why".to_owned());
        c.save(&path, "m").expect("saved");
        assert_eq!(Conversation::load(&path).expect("loaded"), c);
        assert_eq!(c.take_back().as_deref(), Some("a\nb"));
        assert_eq!((c.len(), c.take_back()), (0, None));
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.json");
        for text in ["", "[]", "{\"messages\": [{\"role\": \"tool\", \"content\": \"\"}]}"] {
            std::fs::write(&path, text).expect("written");
            let error = format!("{:#}", Conversation::load(&path).expect_err(text));
            assert!(error.contains("x.json"), "{error}");
        }
    }
}
