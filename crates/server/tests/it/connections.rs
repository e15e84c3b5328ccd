//! Connections that are no use: idle ones, slow ones, broken ones, and clients that do not read.

use crate::support::{CONTEXT, Say, Setup, Site, Vocabulary, with_message};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn site() -> Site {
    Setup::default().plan(Vocabulary::of(&[]), |_, _| vec![Say::Token(97); 3])
}

fn connect(site: &Site) -> TcpStream {
    let socket = TcpStream::connect(site.base.trim_start_matches("http://")).expect("connected");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    socket
}

/// Sends bytes and returns the status of the answer; 0 when the connection is closed without one.
fn status(site: &Site, bytes: &[u8]) -> u16 {
    let mut socket = connect(site);
    // The server may close while this is still written.
    let _ = socket.write_all(bytes);
    let mut head = [0; 12];
    match socket.read_exact(&mut head) {
        Ok(()) => String::from_utf8_lossy(&head[9..12]).parse().expect("a status"),
        Err(_) => 0,
    }
}

#[test]
fn heads_that_are_none() {
    let site = site();
    let flood: String = (0..5000).map(|n| format!("x-{n}: y\r\n")).collect();
    for (what, bytes, wanted) in [
        ("a flood of headers", format!("GET /health HTTP/1.1\r\nhost: a\r\n{flood}\r\n"), [431, 431]),
        ("a header of a megabyte", format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20)), [431, 431]),
        ("a path of a megabyte", format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(1 << 20)), [414, 431]),
        ("no HTTP", "hello\r\n\r\n".to_owned(), [400, 400]),
        ("HTTP/2 at once", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), [0, 400]),
        (
            "two lengths",
            "POST /v1/completions HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x".to_owned(),
            [400, 400],
        ),
        (
            "a length that is no number",
            "POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n".to_owned(),
            [400, 400],
        ),
        (
            "pieces that are none",
            "POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(),
            [400, 400],
        ),
        ("a path with dots", "GET /../../etc/passwd HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), [404, 404]),
    ] {
        let status = status(&site, bytes.as_bytes());
        assert!(wanted.contains(&status), "{what}: {status}");
    }
    let huge = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n\r\n{";
    assert_eq!(status(&site, huge.as_bytes()), 413, "a length beyond the limit is refused before the body");
    assert_eq!(site.chat(json!({})).status, 200);
}

#[test]
fn many_idle_connections_keep_nobody_out() {
    let site = site();
    let idle: Vec<TcpStream> = (0..200).map(|_| connect(&site)).collect();
    let begun: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut socket = connect(&site);
            socket.write_all(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 100\r\n\r\n{").expect("sent");
            socket
        })
        .collect();
    for _ in 0..5 {
        assert_eq!(site.chat(json!({})).status, 200);
    }
    assert_eq!(site.get("/health").0, 200);
    drop((idle, begun));
}

/// Reads until the server closes the connection, and returns what came.
fn until_closed(mut socket: TcpStream) -> String {
    let mut read = Vec::new();
    match socket.read_to_end(&mut read) {
        // Closing with bytes of ours unread is a reset.
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the connection is still open: {error}"),
    }
    String::from_utf8_lossy(&read).into_owned()
}

#[test]
fn who_is_silent_where_it_is_their_turn_is_let_go() {
    let mut setup = Setup { pace: Duration::from_millis(100), ..Setup::default() };
    setup.options.idle = Duration::from_millis(400);
    setup.options.keep_alive = Duration::from_secs(600);
    // Prompts are read in one step; then the answer is silent for longer than any client may be.
    let silence: Vec<Say> = [vec![Say::Wait; 12], vec![Say::Token(97)]].concat();
    let site = setup.plan(Vocabulary::of(&[]), move |_, _| silence.clone());
    let said = |bytes: &str| {
        let mut socket = connect(&site);
        socket.write_all(bytes.as_bytes()).expect("sent");
        until_closed(socket)
    };
    assert_eq!(said(""), "", "no request");
    assert_eq!(said("GET /health HTTP/1.1\r\nhost: a"), "", "half a head");
    let kept = said("GET /health HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(kept.starts_with("HTTP/1.1 200 "), "a request, and none behind it: {kept}");
    let path = "/v1/chat/completions";
    let half = said(&format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{{\"messages\":"));
    assert!(half.starts_with("HTTP/1.1 408 ") && half.contains("invalid_request_error"), "half a body: {half}");
    let half = said(&format!("POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{{\r\n"));
    assert!(half.starts_with("HTTP/1.1 408 "), "half of the pieces: {half}");
    assert!(site.seen.lock().expect("no panic").requests.is_empty(), "nothing of it reached the engine");
    // No clock runs while the server is at work.
    for stream in [false, true] {
        let body = with_message(json!({"stream": stream, "reasoning_effort": "none"})).to_string();
        let answer = said(&format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"finish_reason\":\"stop\""), "{answer}");
    }
}

#[test]
fn an_answer_that_nobody_reads_ends_with_its_work() {
    let words: Vec<Say> = vec![Say::Token(97); CONTEXT];
    let mut setup = Setup { pace: Duration::from_micros(200), ..Setup::default() };
    setup.options.idle = Duration::from_millis(300);
    setup.options.max_requests = 1;
    let site = setup.plan(Vocabulary::of(&[]), move |_, _| words.clone());
    // Some tens of megabytes, more than sockets hold.
    let body = with_message(
        json!({"stream": true, "n": 128, "logprobs": true, "top_logprobs": 20, "reasoning_effort": "none"}),
    );
    let body = body.to_string();
    let mut socket = connect(&site);
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    socket.write_all(head.as_bytes()).expect("sent");
    let begun = Instant::now();
    while site.seen.lock().expect("no panic").requests.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the request does not arrive");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Its place is free again, though the client is still there.
    while site.chat(json!({"max_tokens": 1})).status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody is let in any more");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(socket);
}

#[test]
fn idle_connections_do_not_delay_the_end() {
    let mut setup = Setup::default();
    setup.options.drain = Duration::from_secs(600);
    let site = setup.plan(Vocabulary::of(&[]), |_, _| vec![Say::Token(97); 3]);
    let idle: Vec<TcpStream> = (0..20).map(|_| connect(&site)).collect();
    let kept: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut socket = connect(&site);
            socket.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
            socket.read_exact(&mut [0; 12]).expect("an answer");
            socket
        })
        .collect();
    site.stop.try_send(()).expect("the server listens");
    // Waits for the server, which has no reason to use the ten minutes.
    site.join();
    drop((idle, kept));
}

#[test]
fn a_client_that_does_not_read_stands_in_nobodys_way() {
    let words: Vec<Say> = vec![Say::Token(97); CONTEXT];
    let site = Setup { pace: Duration::from_micros(100), ..Setup::default() }
        .plan(Vocabulary::of(&[]), move |_, _| words.clone());
    // Some megabytes of events each, more than sockets hold.
    let body = with_message(
        json!({"stream": true, "n": 16, "logprobs": true, "top_logprobs": 20, "reasoning_effort": "none"}),
    );
    let body = body.to_string();
    let deaf: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut socket = connect(&site);
            let head = format!("POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            socket.write_all(head.as_bytes()).expect("sent");
            socket
        })
        .collect();
    let begun = Instant::now();
    while site.seen.lock().expect("no panic").requests.len() < deaf.len() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the requests do not arrive");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(site.chat(json!({"max_tokens": 5})).status, 200);
    // What they asked for is written, and kept for them within the limit of their answers; the engine does not wait.
    site.wait_until_idle();
    assert_eq!(site.chat(json!({"max_tokens": 5})).status, 200);
    drop(deaf);
    site.stop.try_send(()).expect("the server listens");
    site.join();
}
