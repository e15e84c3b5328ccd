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
