//! Reading parts of a remote file, for headers before a download.

use std::io::Read;

use ureq::http::StatusCode;

use crate::client::Client;
use crate::error::HubError;
use crate::names::check_name;
use crate::repo_ref::RepoRef;

/// A remote file, read by byte ranges. Every read is one request: ask for a
/// whole header at once.
#[derive(Debug)]
pub struct RangeReader<'a> {
    client: &'a Client,
    repo: RepoRef,
    revision: String,
    name: String,
    size: Option<u64>,
}

impl<'a> RangeReader<'a> {
    /// A file at a revision: a listing's commit, or the reference's own.
    pub fn new(client: &'a Client, repo: &RepoRef, revision: &str, name: &str) -> Result<Self, HubError> {
        check_name(name, &repo.id())?;
        Ok(Self { client, repo: repo.clone(), revision: revision.to_owned(), name: name.to_owned(), size: None })
    }

    /// The file's size, known after the first read.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// `len` bytes from `offset` on, or fewer where the file ends before.
    pub fn read_at(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, HubError> {
        if len == 0 || self.size.is_some_and(|size| offset >= size) {
            return Ok(Vec::new());
        }
        let what = format!("{} of {}", self.name, self.repo.id());
        let last = offset.saturating_add(len as u64 - 1);
        let range = Some((offset, Some(last)));
        let answer = self.client.open_file(&self.repo, &self.revision, &self.name, range)?;
        match (answer.status, answer.range) {
            (206, Some((first, size))) if first == offset => self.size = Some(size),
            // The whole file comes; its beginning can be read all the same.
            (200, _) if offset == 0 => self.size = answer.length,
            (200 | 206, _) => {
                return Err(HubError::NoRanges { repo: self.repo.id(), file: self.name.clone() });
            }
            // The offset is behind the end.
            (416, _) => return Ok(Vec::new()),
            (status, _) => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
                self.client.check_status(status, &self.repo, &what)?;
                return Err(HubError::Status { status: status.as_u16(), what });
            }
        }
        let wanted = self.size.map_or(len, |s| len.min(usize::try_from(s - offset).unwrap_or(len)));
        // Grows with what comes: the size is only a claim.
        let mut bytes = Vec::new();
        answer.body.take(wanted as u64).read_to_end(&mut bytes).map_err(|e| self.client.network_error(&what, &e))?;
        if self.size.is_some() && bytes.len() < wanted {
            return Err(self.client.network_error(&what, &"the answer ended early"));
        }
        Ok(bytes)
    }
}
