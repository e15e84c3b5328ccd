//! The file list of a repository.

use serde_json::Value;

use crate::error::HubError;
use crate::names::check_name;

/// One file of a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepoFile {
    /// Its name, with `/` between folders; checked to be plain.
    pub name: String,
    /// Its size, where known.
    pub size: Option<u64>,
    /// SHA-256 of its content, for large files.
    pub sha256: Option<String>,
    /// Git's id of its content, for small files.
    pub git_id: Option<String>,
}

impl RepoFile {
    /// The name of its content in the cache.
    pub(crate) fn blob_name(&self) -> Option<&str> {
        self.sha256.as_deref().or(self.git_id.as_deref())
    }
}

/// The files of a repository at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The commit that the revision stands for.
    pub commit: String,
    /// Its files.
    pub files: Vec<RepoFile>,
}

impl Listing {
    /// Reads the hub's answer. Every name and id in it is checked, for they
    /// become paths.
    pub(crate) fn read(json: &Value, repo: &str) -> Result<Self, ListingFault> {
        let commit = json["sha"].as_str().filter(|s| is_hex(s)).ok_or("no commit id")?.to_owned();
        let siblings = json["siblings"].as_array().ok_or("no file list")?;
        let mut files = Vec::with_capacity(siblings.len());
        for sibling in siblings {
            let name = sibling["rfilename"].as_str().ok_or("a file without a name")?.to_owned();
            check_name(&name, repo)?;
            let text = |v: &Value| v.as_str().filter(|s| is_hex(s)).map(str::to_owned);
            files.push(RepoFile {
                name,
                size: sibling["size"].as_u64().or_else(|| sibling["lfs"]["size"].as_u64()),
                sha256: text(&sibling["lfs"]["sha256"]).filter(|s| s.len() == 64),
                git_id: text(&sibling["blobId"]).filter(|s| s.len() == 40),
            });
        }
        Ok(Self { commit, files })
    }
}

/// Why an answer is not a file list.
pub(crate) enum ListingFault {
    Shape(&'static str),
    Name(HubError),
}

impl From<&'static str> for ListingFault {
    fn from(reason: &'static str) -> Self {
        Self::Shape(reason)
    }
}

impl From<HubError> for ListingFault {
    fn from(error: HubError) -> Self {
        Self::Name(error)
    }
}

pub(crate) fn is_hex(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}
