//! The commands of a chat: lines that begin with `/`.

use crate::args::Think;

/// A command.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Order {
    Help,
    Clear,
    System(Option<String>),
    Think(Option<Think>),
    Retry,
    Undo,
    Save(String),
    Load(String),
    Stats,
    Quit,
    /// No command has this name.
    Unknown(String),
    /// A command that lacks something, with the sentence to say.
    Wrong(String),
}

/// Name, argument and effect of every command, for `/help` and for completion.
const HELP: [(&str, &str, &str); 10] = [
    ("help", "", "this list"),
    ("clear", "", "begin a new conversation; the system message stays"),
    ("system", "[TEXT]", "show or set the system message; `none` removes it"),
    ("think", "on|off|N|auto", "thinking before the answer; N limits it to N tokens, auto is the model's way"),
    ("retry", "", "answer the last message again"),
    ("undo", "", "take the last message and its answer back"),
    ("save", "FILE", "write the conversation as JSON"),
    ("load", "FILE", "go on with a saved conversation"),
    ("stats", "", "memory, and the speed of the last answer"),
    ("quit", "", "leave; Ctrl-D does the same"),
];

impl Order {
    /// Reads a line; `None` for one that is a message. A line of several lines is always a message.
    pub(super) fn parse(line: &str) -> Option<Order> {
        let rest = line.trim().strip_prefix('/')?;
        if rest.contains('\n') || rest.starts_with('/') || rest.is_empty() {
            return None;
        }
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        // A path or a fraction is no command: names are plain words.
        if !name.chars().all(|c| c.is_ascii_alphabetic() || c == '?') {
            return None;
        }
        let argument = argument.trim();
        let file = |order: fn(String) -> Order| match argument {
            "" => Order::Wrong(format!("/{name} needs the name of a file")),
            path => order(path.to_owned()),
        };
        Some(match name {
            "help" | "?" => Order::Help,
            "clear" | "new" => Order::Clear,
            "system" => Order::System((!argument.is_empty()).then(|| argument.to_owned())),
            "think" => match (argument, crate::args::think(argument)) {
                ("auto", _) => Order::Think(None),
                (_, Ok(think)) => Order::Think(Some(think)),
                (_, Err(_)) => Order::Wrong("/think takes on, off, auto or a number of tokens".to_owned()),
            },
            "retry" => Order::Retry,
            "undo" => Order::Undo,
            "save" => file(Order::Save),
            "load" => file(Order::Load),
            "stats" => Order::Stats,
            "quit" | "exit" | "bye" => Order::Quit,
            other => Order::Unknown(other.to_owned()),
        })
    }
}

/// The list that `/help` shows.
pub(super) fn help() -> String {
    let usage = |name: &str, argument: &str| format!("/{name} {argument}").trim_end().to_owned();
    let width = HELP.iter().map(|(name, argument, _)| usage(name, argument).len()).max().unwrap_or(0);
    let mut lines: Vec<String> =
        HELP.iter().map(|(name, argument, effect)| format!("  {:<width$}  {effect}", usage(name, argument))).collect();
    lines.push(
        "Ctrl-C stops an answer. A line that ends in \\ goes on in the next; \"\"\" opens and closes a longer text."
            .to_owned(),
    );
    lines.join("\n")
}

/// Commands that begin so, for completion.
pub(super) fn beginning_with(start: &str) -> Vec<String> {
    HELP.iter().map(|(name, ..)| format!("/{name}")).filter(|name| name.starts_with(start)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_messages() {
        assert_eq!(Order::parse("/help"), Some(Order::Help));
        assert_eq!(Order::parse("  /system  be brief "), Some(Order::System(Some("be brief".to_owned()))));
        assert_eq!(Order::parse("/think 20"), Some(Order::Think(Some(Think::Budget(20)))));
        assert_eq!(Order::parse("/think auto"), Some(Order::Think(None)));
        assert!(matches!(Order::parse("/think"), Some(Order::Wrong(_))));
        assert!(matches!(Order::parse("/save"), Some(Order::Wrong(_))));
        assert_eq!(Order::parse("/nope"), Some(Order::Unknown("nope".to_owned())));
        for message in ["hello", "/usr/bin is a folder", "//", "/", "/help\nme", "1/2"] {
            assert_eq!(Order::parse(message), None, "{message}");
        }
    }

    #[test]
    fn help_lists_every_command() {
        let text = help();
        assert!(HELP.iter().all(|(name, ..)| text.contains(&format!("/{name}"))));
        assert!(HELP.iter().all(|(name, ..)| !matches!(Order::parse(&format!("/{name} x")), Some(Order::Unknown(_)))));
        assert_eq!(beginning_with("/s"), ["/system", "/save", "/stats"]);
    }
}
