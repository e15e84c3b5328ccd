//! Every flag and every `ONEBIT_*` variable has a row in `docs/tuning.md`, and the document names no other.

use super::tree::Tree;
use anyhow::Result;
use std::collections::BTreeSet;

const DOCUMENT: &str = "docs/tuning.md";
const ARGUMENTS: &str = "crates/cli/src/args/";
/// What clap adds by itself.
const BUILT_IN: [&str; 2] = ["--help", "--version"];

/// Compares the code with the document, both ways.
pub(super) fn documented(tree: &Tree) -> Result<Vec<String>> {
    let mut code: BTreeSet<String> = variables_in_code(tree);
    for (_, text) in tree.rust().filter(|(name, _)| name.starts_with(ARGUMENTS)) {
        code.extend(long_flags(text));
    }
    let mut breaches = Vec::new();
    if code.is_empty() {
        breaches.push(format!("no flag found in {ARGUMENTS}"));
    }
    // The first cell of a table row names what the row is about. A bar inside a cell is written with a backslash.
    let document = tree.text(DOCUMENT).replace("\\|", "/");
    let rows = document.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
    let named: BTreeSet<String> = rows.flat_map(names).collect();
    breaches.extend(code.difference(&named).map(|name| format!("{name} is not in {DOCUMENT}")));
    let unknown = named.difference(&code).filter(|name| !BUILT_IN.contains(&name.as_str()));
    breaches.extend(unknown.map(|name| format!("{name} is in {DOCUMENT} but not in the code")));
    Ok(breaches)
}

/// The flags and variables in a piece of text.
fn names(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
    let wanted = parts.filter(|p| p.strip_prefix("--").is_some_and(|f| !f.is_empty()) || is_variable(p));
    wanted.map(str::to_owned).collect()
}

fn is_variable(word: &str) -> bool {
    word.strip_prefix(concat!("ONE", "BIT_")).is_some_and(|rest| !rest.is_empty())
}

fn variables_in_code(tree: &Tree) -> BTreeSet<String> {
    let product = tree.rust().filter(|(name, _)| name.starts_with("crates/") && name.contains("/src/"));
    product.flat_map(|(_, text)| names(text)).filter(|name| is_variable(name)).collect()
}

/// The long flags of clap's derive attributes: `long = "name"`, or the field's name with dashes.
fn long_flags(text: &str) -> Vec<String> {
    let mut flags = Vec::new();
    for part in text.split("#[arg(").skip(1) {
        let Some((attribute, rest)) = part.split_once(")]\n") else { continue };
        let Some(long) = attribute.split(',').map(str::trim).find(|a| *a == "long" || a.starts_with("long =")) else {
            continue;
        };
        let field = rest.trim_start().trim_start_matches("pub ").split(':').next().unwrap_or_default();
        let name = long.split('"').nth(1).map_or_else(|| field.replace('_', "-"), str::to_owned);
        flags.push(format!("--{name}"));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::{long_flags, names};

    #[test]
    fn flags_are_found_in_derive_attributes() {
        let text = "#[arg(short = 'm', long = \"model\", value_name = \"M\")]\nflag: Option<String>,\n\
                    /// Doc\n#[arg(long)]\npub no_mmap: bool,\n#[arg(value_name = \"SRC\")]\npub src: String,\n\
                    #[arg(\n    long,\n    env = \"X\"\n)]\npub top_k: usize,";
        assert_eq!(long_flags(text), ["--model", "--no-mmap", "--top-k"]);
    }

    #[test]
    fn names_in_a_table_cell() {
        assert_eq!(names(" `-n`, `--max-tokens N`, `ONEBIT_X` "), ["--max-tokens", "ONEBIT_X"]);
    }
}
