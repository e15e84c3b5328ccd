//! A hub on this machine: an HTTP server in a thread, with a script for each
//! request.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// First byte of the range that was asked for.
    pub(crate) fn range_start(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.split('-').next()?.parse().ok()
    }
}

/// What the server says.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Closes the connection after so many bytes of the body.
    pub(crate) cut_after: Option<usize>,
}

impl Answer {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), cut_after: None }
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn cut_after(mut self, bytes: usize) -> Self {
        self.cut_after = Some(bytes);
        self
    }

    /// A file, or the part of it that the request asks for.
    pub(crate) fn file(request: &Request, content: &[u8]) -> Self {
        let Some(range) = request.header("range") else { return Self::new(200, content) };
        let (first, last) = range.trim_start_matches("bytes=").split_once('-').expect("a range");
        let first: usize = first.parse().expect("a number");
        let last: usize = last.parse().map_or(content.len() - 1, |l: usize| l.min(content.len() - 1));
        if first >= content.len() {
            return Self::new(416, "");
        }
        let size = content.len();
        Self::new(206, &content[first..=last]).header("content-range", format!("bytes {first}-{last}/{size}"))
    }
}

type Script = dyn Fn(usize, &Request) -> Answer + Send + Sync;

/// A running server. Its thread ends with the test process.
pub(crate) struct Server {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// `script` gets the number of the request and the request.
    pub(crate) fn start(script: impl Fn(usize, &Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, script): (_, Arc<Script>) = (Arc::clone(&requests), Arc::new(script));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, script) = (Arc::clone(&seen), Arc::clone(&script));
                std::thread::spawn(move || serve(stream, &seen, &*script));
            }
        });
        Self { url, requests }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no panic").clone()
    }
}

fn serve(mut stream: TcpStream, seen: &Mutex<Vec<Request>>, script: &Script) {
    let Some(request) = read(&stream) else { return };
    let number = {
        let mut seen = seen.lock().expect("no panic");
        seen.push(request.clone());
        seen.len() - 1
    };
    let answer = script(number, &request);
    let mut head =
        format!("HTTP/1.1 {} x\r\nconnection: close\r\ncontent-length: {}\r\n", answer.status, answer.body.len());
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let sent = answer.cut_after.unwrap_or(answer.body.len());
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&answer.body[..sent])).ok();
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Some(Request { path, headers })
}
