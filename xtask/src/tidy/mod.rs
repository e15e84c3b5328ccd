//! The rules of ARCHITECTURE.md that a program can check. Each is a function and a test.

mod docs;
mod edges;
mod flags;
mod sources;
mod tree;

use anyhow::{Result, bail};
use std::path::Path;
use tree::Tree;

/// One rule: what it wants, and the check that returns a line for each breach.
struct Rule {
    name: &'static str,
    check: fn(&Tree) -> Result<Vec<String>>,
}

const RULES: &[Rule] = &[
    Rule { name: "crates depend on each other only as ARCHITECTURE.md lists", check: edges::crate_edges },
    Rule { name: "crates keep to their kind of dependencies", check: edges::outside_dependencies },
    Rule { name: "every module begins with //!", check: sources::module_docs },
    Rule { name: "no numbered versions of a name", check: sources::numbered_names },
    Rule { name: "nothing unfinished", check: sources::unfinished },
    Rule { name: "no path of somebody's machine", check: sources::machine_paths },
    Rule { name: "unsafe only in backends and in the file mapping", check: sources::unsafe_code },
    Rule { name: "an ignored test says why", check: sources::ignored_tests },
    Rule { name: "features only where a backend is chosen", check: sources::features },
    Rule { name: "models know no backend and no platform", check: sources::plain_models },
    Rule { name: "no large file, and little test data", check: sources::sizes },
    Rule { name: "files, not links to them", check: sources::links },
    Rule { name: "every architecture has goldens and a line in the docs", check: docs::registry_rows },
    Rule { name: "the docs name files that exist", check: docs::paths_exist },
    Rule { name: "every crate has a paragraph in ARCHITECTURE.md", check: docs::crates_described },
    Rule { name: "the README names CI's test command", check: docs::test_command },
    Rule { name: "every flag and variable is in docs/tuning.md, and no other", check: flags::documented },
];

/// Checks every rule and prints what is broken.
pub(crate) fn run(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let mut broken = 0;
    for rule in RULES {
        for line in (rule.check)(&tree)? {
            eprintln!("{}: {line}", rule.name);
            broken += 1;
        }
    }
    for warning in sources::long_files(&tree) {
        eprintln!("warning: {warning}");
    }
    if broken > 0 {
        bail!("tidy: {broken} breaches");
    }
    eprintln!("tidy: {} rules hold", RULES.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{RULES, Tree};

    /// Runs each rule on the workspace, so that `cargo test` fails where CI would.
    #[test]
    fn the_workspace_is_tidy() {
        let tree = Tree::read(&crate::root()).expect("the workspace can be read");
        let breaches = RULES.iter().flat_map(|rule| {
            let lines = (rule.check)(&tree).expect("the rule can be checked");
            lines.into_iter().map(move |line| format!("{}: {line}", rule.name))
        });
        let breaches: Vec<String> = breaches.collect();
        assert!(breaches.is_empty(), "{}", breaches.join("\n"));
    }
}
