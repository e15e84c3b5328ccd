//! Cache folders as other tools and accidents leave them.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use onebit_hub::{Cache, HubError, RepoRef};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

struct Layout {
    dir: tempfile::TempDir,
}

impl Layout {
    fn new() -> Self {
        let layout = Self { dir: tempfile::tempdir().expect("a folder") };
        for folder in ["blobs", "refs"] {
            std::fs::create_dir_all(layout.repo_dir().join(folder)).expect("created");
        }
        layout
    }

    fn repo_dir(&self) -> PathBuf {
        self.dir.path().join("models--o--n")
    }

    fn snapshot(&self, commit: &str) -> PathBuf {
        let dir = self.repo_dir().join("snapshots").join(commit);
        std::fs::create_dir_all(&dir).expect("created");
        dir
    }

    fn blob(&self, name: &str) {
        std::fs::write(self.repo_dir().join("blobs").join(name), name).expect("written");
    }

    fn main(&self, commit: &str) {
        std::fs::write(self.repo_dir().join("refs/main"), commit).expect("written");
    }

    fn link(&self, name: &str, target: &Path) {
        symlink(target, self.snapshot(COMMIT).join(name)).expect("linked");
    }

    fn file(&self, reference: &str, name: &str) -> Result<PathBuf, HubError> {
        let repo = RepoRef::parse(reference).expect("valid");
        Cache::new(self.dir.path().to_owned()).resolve(&repo)?.file(name)
    }
}

#[test]
fn linked_with_and_without_a_ref() {
    let layout = Layout::new();
    layout.blob("abc1234");
    layout.link("config.json", Path::new("../../blobs/abc1234"));
    assert!(layout.file("o/n", "config.json").is_ok());
    layout.main(COMMIT);
    assert!(layout.file("o/n", "config.json").is_ok());
    assert!(layout.file(&format!("o/n@{COMMIT}"), "config.json").is_ok());
    let error = layout.file("o/n@v9", "config.json").expect_err("not there");
    assert!(matches!(error, HubError::NoRevision { .. }), "{error}");
}

#[test]
fn copied_with_empty_blobs() {
    let layout = Layout::new();
    layout.main(COMMIT);
    std::fs::write(layout.snapshot(COMMIT).join("config.json"), "{}").expect("written");
    assert!(layout.file("o/n", "config.json").is_ok());
}

#[test]
fn blobs_only() {
    let layout = Layout::new();
    layout.main(COMMIT);
    layout.blob("abc1234");
    let error = layout.file("o/n", "config.json").expect_err("no names").to_string();
    assert!(error.contains("contents are there, but not their names"), "{error}");
    assert!(error.contains("onebit pull o/n"), "{error}");
}

#[test]
fn unfinished_download() {
    let layout = Layout::new();
    layout.main(COMMIT);
    layout.blob("abc1234");
    layout.blob("def5678.incomplete");
    layout.link("config.json", Path::new("../../blobs/abc1234"));
    assert!(layout.file("o/n", "config.json").is_ok());
    let error = layout.file("o/n", "model.safetensors").expect_err("unfinished").to_string();
    assert!(error.contains("model.safetensors") && error.contains("not finished"), "{error}");
}

#[test]
fn content_gone_is_listed_without_a_size() {
    let layout = Layout::new();
    layout.main(COMMIT);
    layout.link("model.safetensors", Path::new("../../blobs/gone"));
    let error = layout.file("o/n", "model.safetensors").expect_err("gone").to_string();
    assert!(error.contains("its content is gone"), "{error}");
    let repo = RepoRef::parse("o/n").expect("valid");
    let snapshot = Cache::new(layout.dir.path().to_owned()).resolve(&repo).expect("there");
    assert_eq!(snapshot.files().expect("listed")[0].size, None);
    assert_eq!(snapshot.broken_files(), ["model.safetensors"]);
}

#[test]
fn link_out_of_the_repository_is_refused() {
    let layout = Layout::new();
    layout.main(COMMIT);
    let outside = layout.dir.path().join("secret");
    std::fs::write(&outside, "x").expect("written");
    layout.link("config.json", &outside);
    let error = layout.file("o/n", "config.json").expect_err("outside");
    assert!(matches!(error, HubError::UnsafeName { .. }), "{error}");
    assert!(matches!(layout.file("o/n", "../config.json"), Err(HubError::UnsafeName { .. })));
}

#[test]
fn newest_snapshot_without_a_ref() {
    let layout = Layout::new();
    let newer = "f123456789abcdef0123456789abcdef01234567";
    std::fs::write(layout.snapshot(COMMIT).join("a"), "").expect("written");
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(layout.snapshot(newer).join("a"), "").expect("written");
    assert!(layout.file("o/n", "a").expect("there").starts_with(layout.snapshot(newer)));
}

#[test]
fn lying_ref_stays_inside() {
    let layout = Layout::new();
    layout.main("../../..");
    assert!(layout.file("o/n", "config.json").is_err());
}

#[test]
fn nothing_there() {
    let layout = Layout::new();
    assert!(matches!(layout.file("a/b", "x"), Err(HubError::NotCached { .. })));
}
