//! Reading parts of remote files from a hub on this machine.

use crate::server::{Answer, Server};
use onebit_hub::{Client, HubConfig, HubError, RangeReader, RepoRef};

fn client(url: &str) -> Client {
    Client::new(&HubConfig { cache: "/nowhere".into(), endpoint: url.to_owned(), token: None, offline: false })
}

fn repo() -> RepoRef {
    RepoRef::parse("o/n").expect("valid")
}

#[test]
fn parts_of_a_file() {
    let server = Server::start(|_, r| Answer::file(r, b"0123456789"));
    let client = client(&server.url);
    let mut reader = RangeReader::new(&client, &repo(), "main", "a b.gguf").expect("a plain name");
    assert_eq!(reader.size(), None);
    assert_eq!(reader.read_at(2, 3).expect("read"), b"234");
    assert_eq!(reader.size(), Some(10));
    assert_eq!(reader.read_at(8, 100).expect("read"), b"89");
    assert_eq!(reader.read_at(10, 5).expect("read"), b"");
    assert_eq!(reader.read_at(0, 0).expect("read"), b"");
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].path, "/o/n/resolve/main/a%20b.gguf");
    assert_eq!(requests[0].header("range"), Some("bytes=2-4"));
}

#[test]
fn server_without_ranges_serves_the_beginning_only() {
    let server = Server::start(|_, _| Answer::new(200, "0123456789"));
    let client = client(&server.url);
    let mut reader = RangeReader::new(&client, &repo(), "main", "a").expect("a plain name");
    assert_eq!(reader.read_at(0, 4).expect("read"), b"0123");
    assert!(matches!(reader.read_at(4, 4), Err(HubError::NoRanges { .. })));
}

#[test]
fn faults() {
    let server = Server::start(|n, r| match n {
        0 => Answer::new(404, ""),
        1 => Answer::file(r, b"0123456789").cut_after(2),
        _ => Answer::new(416, ""),
    });
    let client = client(&server.url);
    let mut reader = RangeReader::new(&client, &repo(), "main", "a").expect("a plain name");
    assert!(matches!(reader.read_at(0, 4), Err(HubError::NotFound { .. })));
    assert!(matches!(reader.read_at(0, 4), Err(HubError::Network { .. })));
    assert_eq!(reader.read_at(5, 4).expect("behind the end"), b"");
    assert!(matches!(RangeReader::new(&client, &repo(), "main", "../a"), Err(HubError::UnsafeName { .. })));
}
