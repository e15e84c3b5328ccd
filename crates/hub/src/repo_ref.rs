//! What a person writes to name a model on the hub.

use std::fmt;

use crate::error::HubError;
use crate::packs;

/// `owner/name[:file-or-type][@revision]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoRef {
    /// Who publishes it.
    pub owner: String,
    /// The repository's name.
    pub name: String,
    /// A file name, the end of one, or a type such as `Q1_0`.
    pub selector: Option<String>,
    /// Branch, tag or commit; `main` when not given.
    pub revision: Option<String>,
}

impl RepoRef {
    /// Reads `owner/name[:file-or-type][@revision]`, where a short name of
    /// [`packs`] may stand for `owner/name`.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let bad = |reason| HubError::BadReference { text: text.to_owned(), reason };
        let (rest, revision) = match text.split_once('@') {
            Some((_, "")) => return Err(bad("nothing follows the @")),
            Some((rest, revision)) => (rest, Some(revision)),
            None => (text, None),
        };
        let (id, selector) = match rest.split_once(':') {
            Some((_, "")) => return Err(bad("nothing follows the colon")),
            Some((id, selector)) => (id, Some(selector)),
            None => (rest, None),
        };
        let id = match packs::find(id) {
            Some(pack) if !id.contains('/') => pack.repo_for(selector),
            _ => id,
        };
        let Some((owner, name)) = id.split_once('/') else {
            return Err(bad("it has no owner and is not a short name"));
        };
        if ![owner, name].into_iter().all(is_id_part) {
            return Err(bad("owner and name are letters, digits, '-', '_' and '.'"));
        }
        if revision.is_some_and(|r| !is_revision(r)) {
            return Err(bad("that is no revision"));
        }
        Ok(Self {
            owner: owner.to_owned(),
            name: name.to_owned(),
            selector: selector.map(str::to_owned),
            revision: revision.map(str::to_owned),
        })
    }

    /// Whether a word is meant as a model on the hub: a short name, or the
    /// form `owner/name`.
    pub fn looks_like(text: &str) -> bool {
        Self::parse(text).is_ok()
    }

    /// `owner/name`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// The revision, or the default one.
    pub fn revision_or_main(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for RepoRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        if let Some(selector) = &self.selector {
            write!(f, ":{selector}")?;
        }
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        Ok(())
    }
}

/// The hub's rule for the two parts of an id.
fn is_id_part(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=96).contains(&part.len())
        && part.chars().all(allowed)
        && !part.starts_with(['.', '-'])
        && !part.ends_with(['.', '-'])
        && !part.contains("..")
        // The cache folder's name uses this between the parts.
        && !part.contains("--")
}

/// Git's names, less what could leave a folder.
fn is_revision(text: &str) -> bool {
    crate::names::check_name(text, "").is_ok() && !text.contains([' ', '~', '^', '?', '*', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts() {
        let r = RepoRef::parse("prism-ml/Bonsai-8B-gguf:Q1_0@refs/pr/1").expect("valid");
        assert_eq!((r.owner.as_str(), r.name.as_str()), ("prism-ml", "Bonsai-8B-gguf"));
        assert_eq!(r.selector.as_deref(), Some("Q1_0"));
        assert_eq!(r.revision_or_main(), "refs/pr/1");
        assert_eq!(r.to_string(), "prism-ml/Bonsai-8B-gguf:Q1_0@refs/pr/1");
        assert_eq!(RepoRef::parse("a/b").expect("valid").revision_or_main(), "main");
    }

    #[test]
    fn short_names() {
        for (short, id) in [
            ("bonsai-8b", "prism-ml/Bonsai-8B-mlx-1bit"),
            ("Ternary-27B", "prism-ml/Ternary-Bonsai-27B-mlx-2bit"),
            ("bonsai-1.7b", "prism-ml/Bonsai-1.7B-mlx-1bit"),
            ("bonsai-8b:Q1_0", "prism-ml/Bonsai-8B-gguf"),
        ] {
            assert_eq!(RepoRef::parse(short).expect("known").id(), id);
        }
    }

    #[test]
    fn refused() {
        for text in [
            "", "hello", "a/b/c", "/b", "a/", "../b", "a/..", "a/b:", "a/b@", "a/b@../x", "a b/c", "a--b/c", "./model",
            "a/b@x y", "a/-b",
        ] {
            assert!(RepoRef::parse(text).is_err(), "{text}");
        }
    }
}
