//! `cargo xtask record-quality`: what the built-in model's quality tests compare with.

use crate::process::{cargo, output, run as run_command};
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::process::Command;

/// Short stretches of the held-out texts: seconds in a test.
const TEXTS: &[&str] = &[
    "eval",
    "seedling",
    "--text",
    "models/training/heldout/teacher.txt",
    "--text",
    "models/training/heldout/human.txt",
    "--window",
    "128",
    "--limit",
    "3",
    "--json",
];
const PROMPTS: &[&str] = &["What is 23 + 45?", "What is the moon?", "Tell me a short story about a tree."];
const GREEDY: &[&str] =
    &["--temperature", "0", "--repeat-penalty", "1", "--activations", "f32", "--max-tokens", "24", "--json"];
pub(crate) const FILE: &str = "crates/cli/tests/commands/quality.json";

/// A program to measure, and where it is started.
pub(crate) struct Measured<'a> {
    pub(crate) program: &'a Path,
    /// A folder that has the texts where the repository has them.
    pub(crate) folder: &'a Path,
    pub(crate) env: &'a [(&'a str, &'a Path)],
}

impl Measured<'_> {
    fn json(&self, args: &[&str]) -> Result<Value> {
        let mut command = Command::new(self.program);
        let text = output(command.current_dir(self.folder).args(args).envs(self.env.iter().copied()))?;
        serde_json::from_str(&text).context("onebit printed no JSON")
    }

    /// The perplexity of each text, with more options.
    pub(crate) fn perplexities(&self, options: &[&str]) -> Result<Map<String, Value>> {
        let json = self.json(&[TEXTS, options].concat())?;
        let texts = json["texts"].as_array().context("no texts")?.iter();
        let one = |text: &Value| {
            let name = text["file"].as_str().context("a text without a name")?;
            Ok((name.to_owned(), text["model"]["perplexity"]["value"].clone()))
        };
        texts.map(one).collect()
    }

    /// The greedy answer to each prompt.
    pub(crate) fn answers(&self) -> Result<Map<String, Value>> {
        let mut answers = Map::new();
        for prompt in PROMPTS {
            let json = self.json(&[&["run", "seedling", prompt], GREEDY].concat())?;
            answers.insert((*prompt).to_owned(), json["answer"].clone());
        }
        Ok(answers)
    }
}

/// Builds the program, measures, and writes the file.
pub(crate) fn run(root: &Path) -> Result<()> {
    run_command(cargo().current_dir(root).args(["build", "--release", "--package", "onebit"]))?;
    let program = crate::target_dir(root).join("release/onebit");
    let env = [("ONEBIT_BACKEND", Path::new("cpu"))];
    let onebit = Measured { program: &program, folder: root, env: &env };
    let record = json!({
        "made_by": "cargo xtask record-quality",
        "texts": {
            "arguments": TEXTS,
            "f32": onebit.perplexities(&["--activations", "f32"])?,
            "default": onebit.perplexities(&[])?,
        },
        "greedy": {"arguments": GREEDY, "answers": onebit.answers()?},
    });
    std::fs::write(root.join(FILE), serde_json::to_string_pretty(&record)? + "\n")?;
    println!("{FILE}: perplexities and {} answers", PROMPTS.len());
    Ok(())
}
