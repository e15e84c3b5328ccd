//! What can go wrong with a repository, each as one sentence.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// A repository that cannot be found, read or downloaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// Not a repository reference.
    #[error(
        "\"{text}\" is not a model name: {reason}; write owner/name[:file-or-type][@revision] or a short name from `onebit models`"
    )]
    BadReference {
        /// What was written.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A file name that could leave its folder.
    #[error("the file name {name:?} in {place} is refused, because it is not a plain name inside the repository")]
    UnsafeName {
        /// The name.
        name: String,
        /// Where it was listed.
        place: String,
    },
    /// A folder for the cache is not known.
    #[error("no folder for models is known: set HF_HOME or HOME")]
    NoCacheFolder,
    /// Nothing of the repository is on the disk.
    #[error("{repo} is not in the cache {}: run `onebit pull {repo}`", cache.display())]
    NotCached {
        /// The repository.
        repo: String,
        /// The cache folder.
        cache: PathBuf,
    },
    /// The wanted revision is not on the disk.
    #[error("{repo} is in the cache, but revision {revision} is not (looked for {}): run `onebit pull {repo}@{revision}`", path.display())]
    NoRevision {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
        /// The file or folder that is missing.
        path: PathBuf,
    },
    /// A file of the repository is not on the disk, or not all of it.
    #[error("{repo} is in the cache, but {file} is not ({reason}; looked for {}): run `onebit pull {repo}`", path.display())]
    MissingFile {
        /// The repository.
        repo: String,
        /// The file inside it.
        file: String,
        /// Why it is missing.
        reason: &'static str,
        /// Where it should be.
        path: PathBuf,
    },
    /// The network is needed, but switched off.
    #[error(
        "{what} needs the network, but HF_HUB_OFFLINE is set: unset it, or use a model that is already in the cache"
    )]
    Offline {
        /// What was to be done.
        what: String,
    },
    /// 401: the hub wants a token or refuses this one.
    #[error("the hub refuses access to {repo} (401): {}", if *has_token { "the token in HF_TOKEN or the token file is not valid" } else { "the name is wrong, or the repository is private and needs HF_TOKEN" })]
    Unauthorized {
        /// The repository.
        repo: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// 403: known, but not allowed.
    #[error(
        "the hub does not allow access to {repo} (403): accept its conditions on its page with the account of your token"
    )]
    Forbidden {
        /// The repository.
        repo: String,
    },
    /// 404.
    #[error("the hub has no {what} (404): check the name and the revision")]
    NotFound {
        /// Repository and file.
        what: String,
    },
    /// 429 after all tries.
    #[error("the hub asks to wait ({what}, 429): try again in some minutes, or set HF_TOKEN for a higher limit")]
    RateLimited {
        /// What was asked for.
        what: String,
    },
    /// Any other status.
    #[error("the hub answered {status} to {what}: try again later")]
    Status {
        /// The status code.
        status: u16,
        /// What was asked for.
        what: String,
    },
    /// No answer, or a broken one.
    #[error("{what} failed: {reason}; check the network and HF_ENDPOINT ({endpoint}), what is already here is kept")]
    Network {
        /// What was asked for.
        what: String,
        /// The cause.
        reason: String,
        /// The hub's address.
        endpoint: String,
    },
    /// An answer that is not what the hub's interface promises.
    #[error("the hub's answer to {what} cannot be read: {reason}; check HF_ENDPOINT ({endpoint})")]
    Answer {
        /// What was asked for.
        what: String,
        /// What is wrong.
        reason: String,
        /// The hub's address.
        endpoint: String,
    },
    /// Not enough room on the disk.
    #[error("{repo} needs {need} bytes more, but {} has {have} free: free some space, or set HF_HOME to a larger disk", path.display())]
    NoSpace {
        /// The repository.
        repo: String,
        /// Bytes still to download.
        need: u64,
        /// Bytes free.
        have: u64,
        /// The cache folder.
        path: PathBuf,
    },
    /// A download of the wrong length.
    #[error("{file} has {got} bytes, but the hub lists {wanted}: it was discarded, pull again")]
    WrongSize {
        /// The file.
        file: String,
        /// Listed size.
        wanted: u64,
        /// Size of what came.
        got: u64,
    },
    /// A download with other content than listed.
    #[error("{file} has the checksum {got}, but the hub lists {wanted}: it was discarded, pull again")]
    WrongHash {
        /// The file.
        file: String,
        /// Listed checksum.
        wanted: String,
        /// Checksum of what came.
        got: String,
    },
    /// The repository holds no weights that could be run.
    #[error("{repo} has no weights that run here: {found}")]
    NothingSupported {
        /// The repository.
        repo: String,
        /// What it has.
        found: String,
    },
    /// The selector fits no weights.
    #[error("{repo} has no weights \"{selector}\": it has {found}")]
    NoMatch {
        /// The repository.
        repo: String,
        /// The selector.
        selector: String,
        /// What it has.
        found: String,
    },
    /// The selector fits several.
    #[error("\"{selector}\" fits several files of {repo}: {found}; write more of the name")]
    Ambiguous {
        /// The repository.
        repo: String,
        /// The selector.
        selector: String,
        /// The files.
        found: String,
    },
    /// The selector names a helper file.
    #[error(
        "{file} of {repo} is not a language model but a helper file (projector, drafter or cache bias): choose the model's own weights"
    )]
    Helper {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
    },
    /// A server without byte ranges.
    #[error(
        "the server of {file} does not serve parts of a file, so its header cannot be read alone: run `onebit pull {repo}`"
    )]
    NoRanges {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
    },
    /// The disk.
    #[error("{doing} {} failed: {source}", path.display())]
    Io {
        /// What was being done, as "reading".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
}

impl HubError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
