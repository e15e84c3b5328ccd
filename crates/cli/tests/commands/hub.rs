//! `pull`, and `info` and `run` on repositories, against a hub on this machine.

use crate::support::{Copy, Output, golden_gguf, onebit};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A hub with repositories of files. Its thread ends with the test.
struct Hub {
    url: String,
    home: tempfile::TempDir,
    log: Arc<Mutex<Vec<String>>>,
}

type Files = BTreeMap<String, Vec<u8>>;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

impl Hub {
    /// Serves `owner/name` with these files; connections close after `cut` bytes of a body once.
    fn start(repo: &str, files: Files, cut: Option<usize>) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let log = Arc::new(Mutex::new(Vec::new()));
        let (seen, repo, cut) = (Arc::clone(&log), repo.to_owned(), Arc::new(Mutex::new(cut)));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that hangs up is part of the test.
                let _ = answer(stream, &repo, &files, &cut, &seen);
            }
        });
        Hub { url, home: tempfile::tempdir().expect("a folder"), log }
    }

    fn run(&self, args: &[&str]) -> Output {
        onebit(args).env("HF_ENDPOINT", &self.url).env("HF_HOME", self.home.path()).run()
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().expect("the log").clone()
    }
}

fn answer(
    mut stream: TcpStream,
    repo: &str,
    files: &Files,
    cut: &Mutex<Option<usize>>,
    log: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut range = None;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("range: bytes=") {
            range = Some(value.to_owned());
        }
    }
    log.lock().expect("the log").push(format!("{path} {}", range.as_deref().unwrap_or("-")));
    let mut send = |status: &str, headers: &str, body: &[u8]| -> std::io::Result<()> {
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n", body.len())?;
        let limit = cut.lock().expect("the cut").take_if(|c| *c < body.len()).unwrap_or(body.len());
        stream.write_all(&body[..limit])
    };
    if path.starts_with(&format!("/api/models/{repo}/revision/")) {
        let sum = |content: &[u8]| Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect::<String>();
        let file = |(name, content): (&String, &Vec<u8>)| {
            let size = content.len();
            serde_json::json!({"rfilename": name, "size": size, "lfs": {"sha256": sum(content), "size": size}})
        };
        let siblings: Vec<_> = files.iter().map(file).collect();
        return send("200 OK", "", serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string().as_bytes());
    }
    let name = path.strip_prefix(&format!("/{repo}/resolve/{COMMIT}/"));
    let Some(content) = name.and_then(|name| files.get(name)) else { return send("404 Not Found", "", b"") };
    let Some(range) = range else { return send("200 OK", "", content) };
    let (first, last) = range.split_once('-').unwrap_or((&range, ""));
    let first: usize = first.parse().unwrap_or(0);
    let last = last.parse::<usize>().map_or(content.len() - 1, |l| l.min(content.len() - 1));
    if first >= content.len() {
        return send("416 Range Not Satisfiable", "", b"");
    }
    let headers = format!("Content-Range: bytes {first}-{last}/{}\r\n", content.len());
    send("206 Partial Content", &headers, &content[first..=last])
}

fn folder_files(folder: &Path) -> Files {
    let entries = std::fs::read_dir(folder).expect("the folder").flatten();
    entries.map(|e| (e.file_name().to_string_lossy().into_owned(), std::fs::read(e.path()).expect("a file"))).collect()
}

fn mlx_hub(cut: Option<usize>) -> Hub {
    let model = Copy::of("qwen3_1bit_untied").with_template();
    Hub::start("tiny/model-mlx-1bit", folder_files(&model.path), cut)
}

#[test]
fn pulled_then_run_without_the_network() {
    let hub = mlx_hub(None);
    let output = hub.run(&["pull", "tiny/model-mlx-1bit"]).ok();
    let path = Path::new(output.stdout.trim());
    assert!(path.join("model.safetensors").exists() && path.starts_with(hub.home.path()), "{output:?}");
    assert!(output.stderr.contains("onebit run tiny/model-mlx-1bit 'PROMPT'"), "{output:?}");
    let requests = hub.log().len();
    let run = ["run", "tiny/model-mlx-1bit", "hi", "--think", "off", "--max-tokens", "3", "--json"];
    let json = hub.run(&run).ok().json();
    assert_eq!(json["model"], "tiny/model-mlx-1bit");
    assert_eq!(hub.log().len(), requests, "run asked the network");
    // A second pull brings nothing but the list.
    hub.run(&["pull", "tiny/model-mlx-1bit"]).ok();
    assert_eq!(hub.log().len(), requests + 1, "{:?}", hub.log());
    assert_eq!(hub.run(&["models", "--json"]).ok().json()[0]["downloaded"], false);
}

#[test]
fn an_interrupted_download_goes_on() {
    let hub = mlx_hub(Some(100_000));
    hub.run(&["pull", "tiny/model-mlx-1bit"]).ok();
    let resumed = hub.log().iter().any(|l| l.contains("model.safetensors 100000-"));
    assert!(resumed, "{:?}", hub.log());
}

#[test]
fn described_before_a_download() {
    let hub = mlx_hub(None);
    let output = hub.run(&["info", "tiny/model-mlx-1bit", "--json"]).ok();
    let json = output.json();
    assert_eq!(json["model"]["matrices"], 23);
    assert_eq!(json["runs"], true);
    assert!(output.stderr.contains("to download"), "{output:?}");
    assert!(hub.log().iter().all(|l| !l.contains("tokenizer.json")), "{:?}", hub.log());
    hub.run(&["info", "tiny/model-mlx-1bit", "--check"]).fails(1, &["is not downloaded"]);
}

#[test]
fn the_best_file_is_chosen_and_named() {
    let gguf = std::fs::read(golden_gguf("gguf_qwen3_1bit_untied")).expect("the case");
    let ternary = std::fs::read(golden_gguf("gguf_qwen3_2bit_ternary")).expect("the case");
    let files = BTreeMap::from([
        ("tiny-Q1_0.gguf".to_owned(), gguf),
        ("tiny-Q2_0_g64.gguf".to_owned(), ternary),
        ("tiny-mmproj-BF16.gguf".to_owned(), b"not a model".to_vec()),
    ]);
    let hub = Hub::start("tiny/model-gguf", files, None);
    let output = hub.run(&["info", "tiny/model-gguf"]).ok();
    assert!(output.stderr.contains("tiny-Q1_0.gguf (Q1_0): the best packed weights of 2"), "{output:?}");
    let output = hub.run(&["pull", "tiny/model-gguf:Q2_0_g64"]).ok();
    assert!(output.stdout.trim().ends_with("tiny-Q2_0_g64.gguf"), "{output:?}");
    hub.run(&["run", "tiny/model-gguf:Q2_0_g64", "--raw", "hi", "--max-tokens", "2"]).ok();
    hub.run(&["run", "tiny/model-gguf:Q1_0", "hi"]).fails(1, &["Q1_0"]);
    hub.run(&["pull", "tiny/model-gguf:mmproj-BF16.gguf"]).fails(1, &["helper file"]);
    hub.run(&["pull", "tiny/model-gguf:Q9"]).fails(1, &["has no weights \"Q9\""]);
}

#[test]
fn failures_of_the_hub() {
    let hub = mlx_hub(None);
    hub.run(&["pull", "tiny/other"]).fails(1, &["404"]);
    hub.run(&["pull", "not a name"]).fails(2, &["is not a model name"]);
    hub.run(&["pull", "a/b@c", "--revision", "d"]).fails(2, &["names a revision already"]);
    let offline =
        onebit(&["pull", "tiny/model-mlx-1bit"]).env("HF_HOME", hub.home.path()).env("HF_HUB_OFFLINE", "1").run();
    offline.fails(1, &["HF_HUB_OFFLINE"]);
    let mut files = folder_files(&Copy::of("qwen3_1bit_untied").path);
    files.get_mut("model.safetensors").expect("weights").truncate(1000);
    let hub = Hub::start("tiny/broken-mlx-1bit", files, None);
    hub.run(&["pull", "tiny/broken-mlx-1bit"]).fails(1, &["was downloaded, but", "cut off"]);
}
