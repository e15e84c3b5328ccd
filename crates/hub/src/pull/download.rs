//! One file, from its last received byte on, until its checksum is right.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use ureq::http::StatusCode;

use super::{Progress, PullOptions, create_dir, incomplete_path};
use crate::cache::Cache;
use crate::client::{Client, FileAnswer};
use crate::digest::Checksum;
use crate::error::HubError;
use crate::listing::RepoFile;
use crate::repo_ref::RepoRef;

const CHUNK: usize = 256 << 10;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct Job<'a> {
    pub(super) client: &'a Client,
    pub(super) cache: &'a Cache,
    pub(super) repo: &'a RepoRef,
    pub(super) commit: &'a str,
    pub(super) file: &'a RepoFile,
    pub(super) blob: &'a Path,
}

/// How a try ended.
enum Try {
    Complete,
    /// Worth another one; the bytes so far are kept.
    Failed {
        error: HubError,
        wait: Option<Duration>,
    },
}

impl Job<'_> {
    pub(super) fn run(&self, options: &mut PullOptions<'_>) -> Result<(), HubError> {
        let _lock = self.lock(options)?;
        if self.is_complete() {
            return Ok(());
        }
        let path = incomplete_path(self.blob);
        let mut part = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(HubError::io("opening", &path))?;
        let resumed = self.length(&part, &path)? > 0;
        self.receive(&mut part, &path, options)?;
        match self.verify(&mut part, &path) {
            // What an earlier try left may have been wrong: once more from the start.
            Err(HubError::WrongHash { .. } | HubError::WrongSize { .. }) if resumed => {
                part.set_len(0).map_err(HubError::io("emptying", &path))?;
                self.receive(&mut part, &path, options)?;
                self.verify(&mut part, &path)
            }
            other => other,
        }
        .inspect_err(|_| {
            // Discarded, as the error says; a leftover would only fail again.
            std::fs::remove_file(&path).ok();
        })?;
        part.sync_all().map_err(HubError::io("writing", &path))?;
        drop(part);
        std::fs::rename(&path, self.blob).map_err(HubError::io("writing", self.blob))
    }

    /// Other processes, and other tools that use the same lock files, wait.
    fn lock(&self, options: &mut PullOptions<'_>) -> Result<File, HubError> {
        let name = self.blob.file_name().unwrap_or_default().to_string_lossy();
        let path = self.cache.lock_path(self.repo, &name);
        if let Some(parent) = path.parent() {
            create_dir(parent)?;
        }
        let lock = File::create(&path).map_err(HubError::io("creating", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                (options.progress)(Progress::Waiting { file: &self.file.name });
                lock.lock().map_err(HubError::io("locking", &path))?;
            }
            Err(TryLockError::Error(e)) => return Err(HubError::io("locking", &path)(e)),
        }
        Ok(lock)
    }

    /// A content that is named by its checksum was checked when it was named.
    fn is_complete(&self) -> bool {
        self.file.blob_name().is_some()
            && std::fs::metadata(self.blob).is_ok_and(|m| self.file.size.is_none_or(|size| m.len() == size))
    }

    fn length(&self, part: &File, path: &Path) -> Result<u64, HubError> {
        part.metadata().map(|m| m.len()).map_err(HubError::io("reading", path))
    }

    /// Tries until everything has come. Pauses grow only while nothing comes.
    fn receive(&self, part: &mut File, path: &Path, options: &mut PullOptions<'_>) -> Result<(), HubError> {
        let file = self.file.name.as_str();
        let mut have = self.length(part, path)?;
        if self.file.size.is_some_and(|size| have > size) {
            part.set_len(0).map_err(HubError::io("emptying", path))?;
            have = 0;
        }
        (options.progress)(Progress::Start { file, have, size: self.file.size });
        let (mut fruitless, mut pause) = (0, options.pause);
        while self.file.size != Some(have) || have == 0 {
            let (error, wait) = match self.try_once(part, path, have, options)? {
                Try::Complete => return Ok(()),
                Try::Failed { error, wait } => (error, wait),
            };
            let now = self.length(part, path)?;
            if now > have {
                (fruitless, pause) = (0, options.pause);
            }
            have = now;
            fruitless += 1;
            if fruitless >= options.tries {
                return Err(error);
            }
            let pause_now = wait.unwrap_or(pause).min(LONGEST_PAUSE);
            let reason = error.to_string();
            (options.progress)(Progress::Retry { file, reason, pause: pause_now });
            std::thread::sleep(pause_now);
            pause = pause.saturating_mul(2);
        }
        Ok(())
    }

    fn try_once(
        &self,
        part: &mut File,
        path: &Path,
        have: u64,
        options: &mut PullOptions<'_>,
    ) -> Result<Try, HubError> {
        let name = self.file.name.as_str();
        let what = format!("{name} of {}", self.repo.id());
        let range = (have > 0).then_some((have, None));
        let answer = match self.client.open_file(self.repo, self.commit, name, range) {
            Ok(answer) => answer,
            Err(error @ HubError::Network { .. }) => return Ok(Try::Failed { error, wait: None }),
            Err(error) => return Err(error),
        };
        self.check_unchanged(&answer)?;
        let start = match (answer.status, answer.range) {
            (206, Some((first, _))) if first == have => have,
            (200, _) => 0,
            // Parts are not served as asked: from the start.
            (206 | 416, _) if have > 0 => {
                part.set_len(0).map_err(HubError::io("emptying", path))?;
                let error = self.client.network_error(&what, &"the download could not be continued");
                return Ok(Try::Failed { error, wait: Some(Duration::ZERO) });
            }
            (status, _) => {
                let code = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
                let error = match self.client.check_status(code, self.repo, &what) {
                    Err(error) => error,
                    Ok(()) => HubError::Status { status, what },
                };
                return if status == 429 || status >= 500 {
                    Ok(Try::Failed { error, wait: answer.retry_after })
                } else {
                    Err(error)
                };
            }
        };
        let expected = answer.length.map(|length| start + length);
        part.set_len(start).and_then(|()| part.seek(SeekFrom::Start(start))).map_err(HubError::io("writing", path))?;
        let have = match self.copy(answer, part, path, start, options)? {
            Ok(have) => have,
            Err(reason) => {
                let error = self.client.network_error(&what, &reason);
                return Ok(Try::Failed { error, wait: None });
            }
        };
        match self.file.size.or(expected) {
            Some(size) if have < size => {
                let reason = format!("it stopped at {have} of {size} bytes");
                let error = self.client.network_error(&what, &reason);
                Ok(Try::Failed { error, wait: None })
            }
            _ => Ok(Try::Complete),
        }
    }

    /// The inner error is the network's, the outer one the disk's. Never takes
    /// more than one byte over the listed size.
    fn copy(
        &self,
        answer: FileAnswer,
        part: &mut File,
        path: &Path,
        start: u64,
        options: &mut PullOptions<'_>,
    ) -> Result<Result<u64, std::io::Error>, HubError> {
        let limit = self.file.size.map_or(u64::MAX, |size| size.saturating_sub(start).saturating_add(1));
        let mut body = answer.body.take(limit);
        let mut have = start;
        let mut chunk = vec![0; CHUNK];
        loop {
            let n = match body.read(&mut chunk) {
                Ok(0) => return Ok(Ok(have)),
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Ok(Err(e)),
            };
            part.write_all(&chunk[..n]).map_err(HubError::io("writing", path))?;
            have += n as u64;
            (options.progress)(Progress::Bytes { file: &self.file.name, have });
        }
    }

    /// The hub names a checksum with each answer: another one than listed means
    /// that the file was replaced in between.
    fn check_unchanged(&self, answer: &FileAnswer) -> Result<(), HubError> {
        match (&answer.linked_etag, &self.file.sha256) {
            (Some(got), Some(wanted)) if got != wanted => {
                Err(HubError::WrongHash { file: self.file.name.clone(), wanted: wanted.clone(), got: got.clone() })
            }
            _ => Ok(()),
        }
    }

    fn verify(&self, part: &mut File, path: &Path) -> Result<(), HubError> {
        let reading = || HubError::io("reading", path);
        let file = self.file.name.clone();
        let got = self.length(part, path)?;
        if let Some(wanted) = self.file.size.filter(|&size| size != got) {
            return Err(HubError::WrongSize { file, wanted, got });
        }
        part.seek(SeekFrom::Start(0)).map_err(reading())?;
        let mut sum = Checksum::for_file(self.file, got);
        let mut chunk = vec![0; CHUNK];
        loop {
            match part.read(&mut chunk).map_err(reading())? {
                0 => break,
                n => sum.update(&chunk[..n]),
            }
        }
        match (sum.finish(), self.file.blob_name()) {
            (Some(got), Some(wanted)) if !got.eq_ignore_ascii_case(wanted) => {
                Err(HubError::WrongHash { file, wanted: wanted.to_owned(), got })
            }
            _ => Ok(()),
        }
    }
}
