//! The MODEL argument of commands that take one model and nothing else.

use crate::resolve;
use clap::Args;

/// One model, by position or by `-m`.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelArg {
    /// Folder, .gguf file, owner/name[:file-or-type] or short name [env: ONEBIT_MODEL=]
    #[arg(value_name = "MODEL")]
    positional: Option<String>,
    /// The same as the positional MODEL
    #[arg(short = 'm', long = "model", value_name = "MODEL", conflicts_with = "positional")]
    flag: Option<String>,
}

impl ModelArg {
    /// What the user named, here or in `ONEBIT_MODEL`; `None` asks for the built-in model.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        self.flag.clone().or_else(|| self.positional.clone()).or_else(default_model)
    }

    /// A lone word that can only be a prompt.
    #[must_use]
    pub fn prompt(&self) -> Option<&str> {
        self.positional.as_deref().filter(|word| !resolve::is_model(word))
    }
}

/// `ONEBIT_MODEL`, unless it is empty.
#[must_use]
pub fn default_model() -> Option<String> {
    std::env::var("ONEBIT_MODEL").ok().filter(|name| !name.is_empty())
}
