//! Downloads from a hub on this machine.

use std::path::Path;
use std::time::Duration;

use crate::server::{Answer, Request, Server};
use onebit_hub::{Cache, Client, HubConfig, HubError, Progress, PullOptions, RepoRef, Snapshot, pull};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const CONFIG: &[u8] = b"hello\n";
/// Git's id of `CONFIG`.
const CONFIG_ID: &str = "ce013625030ba8dba906f756967f9e9ca394464a";

fn weights() -> Vec<u8> {
    (0..700_000u32).map(|i| (i * 7 % 251) as u8).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn listing(files: Value) -> Answer {
    Answer::new(200, json!({"sha": COMMIT, "siblings": files}).to_string())
}

fn usual_listing() -> Answer {
    let weights = weights();
    listing(json!([
        {"rfilename": "config.json", "size": CONFIG.len(), "blobId": CONFIG_ID},
        {"rfilename": "sub/model.safetensors", "size": weights.len(), "blobId": CONFIG_ID,
         "lfs": {"sha256": sha256(&weights), "size": weights.len()}},
    ]))
}

fn usual_file(request: &Request) -> Answer {
    if request.path.ends_with("config.json") {
        Answer::file(request, CONFIG)
    } else {
        Answer::file(request, &weights())
    }
}

struct Setup {
    dir: tempfile::TempDir,
    config: HubConfig,
    repo: RepoRef,
}

impl Setup {
    fn new(endpoint: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let config = HubConfig {
            cache: dir.path().join("モデル　é"),
            endpoint: endpoint.to_owned(),
            token: Some("hf_secret".into()),
            offline: false,
        };
        Self { dir, config, repo: RepoRef::parse("prism-ml/tiny").expect("valid") }
    }

    fn cache(&self) -> Cache {
        self.config.cache()
    }

    fn blobs(&self) -> std::path::PathBuf {
        self.config.cache.join("models--prism-ml--tiny/blobs")
    }

    fn pull_with(&self, free: u64) -> (Result<Snapshot, HubError>, Vec<String>) {
        let client = Client::new(&self.config);
        let mut events = Vec::new();
        let mut progress = |p: Progress<'_>| match p {
            Progress::Bytes { .. } => {}
            other => events.push(format!("{other:?}")),
        };
        let free_space = |_: &Path| Ok(free);
        let mut options =
            PullOptions { progress: &mut progress, free_space: &free_space, tries: 3, pause: Duration::from_millis(1) };
        let result = client
            .list(&self.repo)
            .and_then(|l| pull(&client, &self.cache(), &self.repo, &l, &l.files.clone(), &mut options));
        (result, events)
    }

    fn pull(&self) -> Result<Snapshot, HubError> {
        self.pull_with(u64::MAX).0
    }
}

fn read(snapshot: &Snapshot, name: &str) -> Vec<u8> {
    std::fs::read(snapshot.file(name).expect("there")).expect("readable")
}

#[test]
fn fresh_pull_then_offline_then_nothing_to_do() {
    let server =
        Server::start(|n, r| if n == 0 || r.path.starts_with("/api") { usual_listing() } else { usual_file(r) });
    let mut setup = Setup::new(&server.url);
    let snapshot = setup.pull().expect("pulled");
    assert_eq!(read(&snapshot, "config.json"), CONFIG);
    assert_eq!(read(&snapshot, "sub/model.safetensors"), weights());
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].path, "/api/models/prism-ml/tiny/revision/main?blobs=true");
    assert_eq!(requests[2].path, format!("/prism-ml/tiny/resolve/{COMMIT}/sub/model.safetensors"));
    assert!(requests.iter().all(|r| r.header("authorization") == Some("Bearer hf_secret")));

    setup.pull().expect("pulled again");
    assert_eq!(server.requests().len(), 4, "only the list is asked for again");

    setup.config.offline = true;
    assert!(matches!(setup.pull(), Err(HubError::Offline { .. })));
    let found = setup.cache().resolve(&setup.repo).expect("offline from the cache");
    assert_eq!(found.dir(), snapshot.dir());
    let names: Vec<String> = found.files().expect("listed").into_iter().map(|f| f.name).collect();
    assert_eq!(names, ["config.json", "sub/model.safetensors"]);
    assert_eq!(server.requests().len(), 4, "offline touches no network");
}

#[test]
fn goes_on_where_it_was_cut() {
    let server = Server::start(|n, r| match n {
        0 => usual_listing(),
        2 => usual_file(r).cut_after(300_000),
        3 => usual_file(r).cut_after(100_000),
        _ => usual_file(r),
    });
    let setup = Setup::new(&server.url);
    let (result, events) = setup.pull_with(u64::MAX);
    assert_eq!(read(&result.expect("pulled"), "sub/model.safetensors"), weights());
    let starts: Vec<_> = server.requests()[2..].iter().map(Request::range_start).collect();
    assert_eq!(starts, [None, Some(300_000), Some(400_000)]);
    assert_eq!(events.iter().filter(|e| e.starts_with("Retry")).count(), 2, "{events:?}");
}

#[test]
fn goes_on_after_the_program_was_stopped() {
    let server = Server::start(|n, r| if n == 0 { usual_listing() } else { usual_file(r) });
    let setup = Setup::new(&server.url);
    let part = setup.blobs().join(format!("{}.incomplete", sha256(&weights())));
    std::fs::create_dir_all(setup.blobs()).expect("created");
    std::fs::write(&part, &weights()[..1234]).expect("written");
    setup.pull().expect("pulled");
    assert_eq!(server.requests()[2].range_start(), Some(1234));
    assert!(!part.exists());
}

#[test]
fn damaged_leftover_is_fetched_anew() {
    let server = Server::start(|n, r| if n == 0 { usual_listing() } else { usual_file(r) });
    let setup = Setup::new(&server.url);
    std::fs::create_dir_all(setup.blobs()).expect("created");
    let part = setup.blobs().join(format!("{}.incomplete", sha256(&weights())));
    std::fs::write(&part, vec![9; 1000]).expect("written");
    assert_eq!(read(&setup.pull().expect("pulled"), "sub/model.safetensors"), weights());
}

#[test]
fn server_without_ranges_starts_again() {
    let server = Server::start(|n, r| match n {
        0 => usual_listing(),
        2 => Answer::new(200, weights()).cut_after(1000),
        _ if r.path.ends_with("config.json") => Answer::new(200, CONFIG),
        _ => Answer::new(200, weights()),
    });
    let setup = Setup::new(&server.url);
    assert_eq!(read(&setup.pull().expect("pulled"), "sub/model.safetensors"), weights());
}

#[test]
fn wrong_content_never_gets_a_name() {
    let server = Server::start(|n, r| match n {
        0 => usual_listing(),
        1 => usual_file(r),
        _ => Answer::new(200, vec![1; weights().len()]),
    });
    let setup = Setup::new(&server.url);
    let error = setup.pull().expect_err("refused");
    assert!(matches!(&error, HubError::WrongHash { file, .. } if file == "sub/model.safetensors"), "{error}");
    let snapshot = setup.config.cache.join("models--prism-ml--tiny/snapshots").join(COMMIT);
    assert!(!snapshot.join("sub/model.safetensors").exists());
    assert_eq!(std::fs::read_dir(setup.blobs()).expect("there").count(), 1, "only config.json");
}

#[test]
fn endless_answer_is_bounded() {
    let server = Server::start(|n, r| match n {
        0 => usual_listing(),
        1 => usual_file(r),
        _ => Answer::new(200, vec![1; 3 * weights().len()]),
    });
    let error = Setup::new(&server.url).pull().expect_err("refused");
    assert!(matches!(error, HubError::WrongSize { got, .. } if got == weights().len() as u64 + 1), "{error}");
}

#[test]
fn file_replaced_on_the_hub() {
    let server = Server::start(|n, r| match n {
        0 => usual_listing(),
        1 => usual_file(r),
        _ => usual_file(r).header("x-linked-etag", format!("\"{}\"", sha256(b"other"))),
    });
    assert!(matches!(Setup::new(&server.url).pull(), Err(HubError::WrongHash { .. })));
}

#[test]
fn statuses_are_sentences() {
    let status = |code: u16| {
        let server = Server::start(move |_, _| Answer::new(code, "no"));
        Setup::new(&server.url).pull().expect_err("refused")
    };
    assert!(matches!(status(401), HubError::Unauthorized { has_token: true, .. }));
    assert!(matches!(status(403), HubError::Forbidden { .. }));
    assert!(matches!(status(404), HubError::NotFound { .. }));
    assert!(matches!(status(429), HubError::RateLimited { .. }));
    assert!(matches!(status(500), HubError::Status { status: 500, .. }));
    assert!(!status(401).to_string().contains("hf_secret"));
}

#[test]
fn missing_file_is_named_and_not_tried_again() {
    let server = Server::start(|n, _| if n == 0 { usual_listing() } else { Answer::new(404, "") });
    let error = Setup::new(&server.url).pull().expect_err("refused").to_string();
    assert!(error.contains("config.json of prism-ml/tiny"), "{error}");
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn busy_hub_is_tried_again_and_then_given_up() {
    let server = Server::start(|n, r| match n {
        0 => usual_listing(),
        1 => Answer::new(503, ""),
        2 => Answer::new(429, "").header("retry-after", "0"),
        _ => usual_file(r),
    });
    Setup::new(&server.url).pull().expect("pulled");
    let server = Server::start(|n, _| if n == 0 { usual_listing() } else { Answer::new(503, "") });
    let error = Setup::new(&server.url).pull().expect_err("given up");
    assert!(matches!(error, HubError::Status { status: 503, .. }));
    assert_eq!(server.requests().len(), 4, "the list and three tries");
}

#[test]
fn token_does_not_follow_a_redirect_to_another_host() {
    let cdn = Server::start(|_, r| Answer::file(r, &weights()));
    let target = format!("{}/x?signed", cdn.url);
    let hub = Server::start(move |n, r| match n {
        0 => usual_listing(),
        1 if r.path.ends_with("config.json") => Answer::new(307, "").header("location", "/moved/config.json"),
        2 => usual_file(r),
        _ => Answer::new(302, "")
            .header("location", target.clone())
            .header("x-linked-etag", format!("\"{}\"", sha256(&weights()))),
    });
    let setup = Setup::new(&hub.url);
    let snapshot = setup.pull().expect("pulled");
    assert_eq!(read(&snapshot, "sub/model.safetensors"), weights());
    assert_eq!(hub.requests()[2].path, "/moved/config.json");
    assert_eq!(hub.requests()[2].header("authorization"), Some("Bearer hf_secret"));
    assert_eq!(cdn.requests().len(), 1);
    assert_eq!(cdn.requests()[0].header("authorization"), None);
}

#[test]
fn redirects_in_a_circle_end() {
    let hub = Server::start(|_, _| Answer::new(302, "").header("location", "/again"));
    let error = Setup::new(&hub.url).pull().expect_err("refused").to_string();
    assert!(error.contains("redirects"), "{error}");
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    for name in ["../x", "/etc/hostname", "a/../../x", "C:\\x", "\\\\?\\x", "a\u{0}b", ""] {
        let server = Server::start(move |_, _| listing(json!([{"rfilename": name, "size": 1}])));
        let setup = Setup::new(&server.url);
        let error = setup.pull().expect_err("refused");
        assert!(matches!(error, HubError::UnsafeName { .. }), "{name:?}: {error}");
        assert_eq!(server.requests().len(), 1);
        assert_eq!(std::fs::read_dir(setup.dir.path()).expect("there").count(), 0);
    }
}

#[test]
fn commit_that_leaves_the_folder_is_refused() {
    let server = Server::start(|_, _| Answer::new(200, json!({"sha": "../../x", "siblings": []}).to_string()));
    assert!(matches!(Setup::new(&server.url).pull(), Err(HubError::Answer { .. })));
}

#[test]
fn no_space_is_said_before_the_download() {
    let server = Server::start(|n, r| if n == 0 { usual_listing() } else { usual_file(r) });
    let setup = Setup::new(&server.url);
    let error = setup.pull_with(1000).0.expect_err("refused");
    let total = (CONFIG.len() + weights().len()) as u64;
    assert!(matches!(error, HubError::NoSpace { need, have: 1000, .. } if need == total), "{error}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn html_for_a_list_is_not_a_list() {
    let server = Server::start(|_, _| Answer::new(200, "<html>sign in</html>"));
    let error = Setup::new(&server.url).pull().expect_err("refused").to_string();
    assert!(error.contains("file list of prism-ml/tiny"), "{error}");
    assert!(!error.contains('\n'));
}

#[test]
fn nobody_listens() {
    let setup = Setup::new("http://127.0.0.1:9");
    assert!(matches!(setup.pull(), Err(HubError::Network { .. })));
    let setup = Setup::new("nonsense");
    assert!(matches!(setup.pull(), Err(HubError::Network { .. })));
}

#[test]
fn two_pulls_at_once_load_each_file_once() {
    let server = Server::start(|_, r| {
        if r.path.starts_with("/api") {
            return usual_listing();
        }
        std::thread::sleep(Duration::from_millis(100));
        usual_file(r)
    });
    let setup = Setup::new(&server.url);
    std::thread::scope(|scope| {
        let both = [scope.spawn(|| setup.pull()), scope.spawn(|| setup.pull())];
        for one in both {
            one.join().expect("no panic").expect("pulled");
        }
    });
    let files = server.requests().iter().filter(|r| !r.path.starts_with("/api")).count();
    assert_eq!(files, 2);
}
