//! `/v1/images/generations`, and requests at the wrong door.

use crate::brush::MOST_WORDS;
use crate::support::{Say, Setup, Site, Vocabulary, with_message};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::io::BufRead;
use std::time::{Duration, Instant};

const PATH: &str = "/v1/images/generations";

/// A server of the text model `script` and, for pictures, `brush`.
fn site(pace: u64) -> Site {
    Setup { pictures: Some(Duration::from_millis(pace)), ..Setup::default() }
        .plan(Vocabulary::of(&[]), |_, _| vec![Say::Token(97)])
}

/// Width and height in a PNG's header.
fn size_of(entry: &Value) -> (u32, u32) {
    let png = BASE64.decode(entry["b64_json"].as_str().expect("base64")).expect("base64");
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().expect("four bytes"));
    (number(16), number(20))
}

fn refused(site: &Site, body: Value, field: &str, words: &[&str]) {
    let reply = site.post(PATH, &body);
    assert_eq!(reply.status, 400, "{body}: {}", reply.json);
    assert_eq!(reply.json["error"]["param"], field, "{body}: {}", reply.json);
    let message = reply.json["error"]["message"].as_str().expect("a sentence");
    words.iter().for_each(|word| assert!(message.contains(word), "{message:?} has no {word:?}"));
}

#[test]
fn the_size_is_honoured_or_refused() {
    let site = site(0);
    for (size, want) in
        [("512x512", (512, 512)), ("256x768", (256, 768)), ("1024x1024", (1024, 1024)), ("auto", (512, 512))]
    {
        let reply = site.post(PATH, &json!({"model": "brush", "prompt": "a tree", "size": size}));
        assert_eq!(reply.status, 200, "{}", reply.json);
        assert_eq!(size_of(&reply.json["data"][0]), want);
        assert_eq!(reply.json["size"], format!("{}x{}", want.0, want.1));
    }
    for wrong in ["500x512", "0x512", "large", "512"] {
        refused(&site, json!({"prompt": "a tree", "size": wrong}), "size", &[]);
    }
}

#[test]
fn several_pictures_have_seeds_that_follow_each_other() {
    let site = site(0);
    let reply =
        site.post(PATH, &json!({"prompt": "a tree", "n": 3, "seed": 7, "steps": 2, "guidance": 1.5, "size": "64x64"}));
    let data = reply.json["data"].as_array().expect("pictures");
    assert_eq!(data.iter().map(|p| p["seed"].as_u64()).collect::<Vec<_>>(), [Some(7), Some(8), Some(9)]);
    assert_ne!(data[0]["b64_json"], data[1]["b64_json"]);
    let painted = site.painted.lock().expect("no panic");
    assert_eq!(painted.orders.iter().map(|o| (o.seed, o.steps)).collect::<Vec<_>>(), [(7, 2), (8, 2), (9, 2)]);
    assert_eq!(painted.orders[0].guidance, 1.5);
    drop(painted);
    // The same seed alone gives the same picture; no seed gives another one each time.
    let alone = site.post(PATH, &json!({"prompt": "a tree", "seed": 9, "steps": 2, "size": "64x64"}));
    assert_eq!(alone.json["data"][0]["b64_json"], data[2]["b64_json"]);
    let fresh = || site.post(PATH, &json!({"prompt": "a tree", "size": "64x64"})).json["data"][0]["seed"].as_u64();
    assert_ne!(fresh(), fresh());
}

#[test]
fn every_field_works_or_is_refused_by_name() {
    let site = site(0);
    for (field, value, words) in [
        ("response_format", json!("url"), &["b64_json"][..]),
        ("n", json!(0), &["1 to 10"]),
        ("n", json!(11), &["1 to 10"]),
        ("n", json!("two"), &[]),
        ("steps", json!(0), &["at least 1"]),
        ("seed", json!(-5), &["fresh"]),
        ("quality", json!("hd"), &["steps"]),
        ("style", json!("vivid"), &["prompt"]),
        ("background", json!("transparent"), &["opaque"]),
        ("output_format", json!("webp"), &["PNG"]),
        ("output_compression", json!(50), &["PNG"]),
        ("partial_images", json!(2), &["steps"]),
        ("negative_prompt", json!("rain"), &["prompt"]),
        ("image", json!("aGk="), &["text"]),
        ("prompt", json!(" "), &["missing"]),
        ("prompt", json!("word ".repeat(MOST_WORDS + 1)), &["513", "512"]),
    ] {
        let mut body = json!({"prompt": "a tree", "size": "64x64"});
        body[field] = value;
        refused(&site, body, field, words);
    }
    refused(&site, json!({"model": "brush"}), "prompt", &[]);
    assert!(site.painted.lock().expect("no panic").orders.is_empty(), "nothing was begun");
    let harmless = json!({
        "prompt": "word ".repeat(MOST_WORDS), "size": "64x64", "response_format": "b64_json", "output_format": "png",
        "quality": "standard", "background": "opaque", "moderation": "low", "user": "me", "style": null, "seed": -1,
        "partial_images": 0, "n": 1, "unheard_of": {"x": 1}, "output_compression": 100, "stream": false,
    });
    let reply = site.post(PATH, &harmless);
    assert_eq!(reply.status, 200, "{}", reply.json);
    assert_eq!(reply.json["data"][0]["prompt_tokens"], MOST_WORDS);
}

#[test]
fn a_stream_tells_every_step() {
    let site = site(1);
    let body = json!({"prompt": "a tree", "n": 2, "seed": 3, "size": "64x64", "stream": true});
    let events = site.events(PATH, &body);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    // The prompt, four steps, the pixels, the picture; twice; and the end.
    let one = [["image_generation.progress"; 6].as_slice(), &["image_generation.completed"]].concat();
    assert_eq!(names, [one.as_slice(), &one, &[""]].concat());
    let steps = |index: u64| -> Vec<u64> {
        let of = |e: &&(String, Value)| e.1["index"] == index && e.1["stage"] == "steps";
        events.iter().filter(of).map(|(_, data)| data["step"].as_u64().expect("a step")).collect()
    };
    assert_eq!((steps(0), steps(1)), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));
    let pictures: Vec<&Value> = events.iter().map(|(_, data)| data).filter(|d| d["b64_json"].is_string()).collect();
    assert_eq!(pictures.iter().map(|p| p["seed"].as_u64()).collect::<Vec<_>>(), [Some(3), Some(4)]);
    assert_eq!(size_of(pictures[0]), (64, 64));
    assert_eq!(pictures[0]["type"], "image_generation.completed");
    // The same pictures as without a stream.
    let whole = site.post(PATH, &json!({"prompt": "a tree", "n": 2, "seed": 3, "size": "64x64"}));
    assert_eq!(whole.json["data"][1]["b64_json"], pictures[1]["b64_json"]);
}

#[test]
fn no_picture_is_an_error_and_never_a_file() {
    let site = site(0);
    let reply = site.post(PATH, &json!({"prompt": "please fail", "size": "64x64"}));
    assert_eq!(reply.status, 500);
    assert!(reply.json["error"]["message"].as_str().is_some_and(|m| m.contains("NaN")), "{}", reply.json);
    let events = site.events(PATH, &json!({"prompt": "please fail", "size": "64x64", "n": 2}));
    let (name, data) = &events[events.len() - 2];
    assert!(name == "error" && data["error"]["message"].as_str().is_some_and(|m| m.contains("NaN")), "{data}");
    assert!(events.iter().all(|(_, data)| data["b64_json"].is_null()));
    assert_eq!(site.post(PATH, &json!({"prompt": "a tree", "size": "64x64"})).status, 200, "the next one is fine");
}

#[test]
fn a_source_that_has_died_is_loaded_anew() {
    let site = site(0);
    let reply = site.post(PATH, &json!({"prompt": "please panic", "size": "64x64"}));
    assert_eq!(reply.status, 500, "{}", reply.json);
    // The thread may still be on its way out.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(site.post(PATH, &json!({"prompt": "a tree", "size": "64x64"})).status, 200);
}

#[test]
fn clients_that_leave_end_their_picture_at_the_next_step() {
    let site = site(20);
    for (round, stream) in [true, false, true, false].into_iter().enumerate() {
        let body = json!({"prompt": "a tree", "steps": 500, "n": 3, "size": "64x64", "stream": stream});
        let socket = crate::cancel::send(&site, PATH, &body);
        let begun = Instant::now();
        while !site.painted.lock().expect("no panic").under_way {
            assert!(begun.elapsed() < Duration::from_secs(10), "the order did not arrive");
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = site.painted.lock().expect("no panic").steps;
        drop(socket);
        while site.painted.lock().expect("no panic").under_way {
            assert!(begun.elapsed() < Duration::from_secs(20), "it goes on for nobody");
            std::thread::sleep(Duration::from_millis(1));
        }
        let painted = site.painted.lock().expect("no panic");
        assert_eq!(painted.stopped, round + 1);
        assert!(painted.steps - before < 50, "{} steps for nobody", painted.steps - before);
        assert_eq!(painted.orders.len(), round + 1, "the second and third picture were never begun");
    }
    // An order whose client leaves while it waits is never begun.
    let long = crate::cancel::send(&site, PATH, &json!({"prompt": "long", "steps": 100, "size": "64x64"}));
    std::thread::sleep(Duration::from_millis(60));
    let waiting = crate::cancel::send(&site, PATH, &json!({"prompt": "waiting", "size": "64x64"}));
    std::thread::sleep(Duration::from_millis(60));
    drop((waiting, long));
    let reply = site.post(PATH, &json!({"prompt": "a tree", "size": "64x64", "steps": 1}));
    assert_eq!(reply.status, 200);
    let painted = site.painted.lock().expect("no panic");
    assert!(painted.orders.iter().all(|order| order.prompt != "waiting"));
}

#[test]
fn probes_and_text_are_answered_while_a_picture_is_made() {
    let site = site(20);
    let mut stream = site.open(PATH, &json!({"prompt": "a tree", "steps": 300, "size": "64x64", "stream": true}));
    stream.read_line(&mut String::new()).expect("it begins");
    let begun = Instant::now();
    assert_eq!(site.get("/health").0, 200);
    assert_eq!(site.get("/metrics").0, 200);
    assert_eq!(site.get("/v1/models").0, 200);
    assert_eq!(site.chat(json!({"max_tokens": 1})).status, 200);
    assert!(begun.elapsed() < Duration::from_secs(4), "they do not wait for the picture");
    assert!(site.painted.lock().expect("no panic").under_way);
}

#[test]
fn the_wrong_door_names_the_right_one() {
    let site = site(0);
    refused(&site, json!({"model": "script", "prompt": "a tree"}), "model", &["/v1/chat/completions", "brush"]);
    let doors = [
        ("/v1/chat/completions", with_message(json!({"model": "brush"}))),
        ("/v1/completions", json!({"model": "brush", "prompt": "a"})),
        ("/v1/responses", json!({"model": "brush", "input": "a"})),
        ("/v1/messages", json!({"model": "brush", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]})),
        ("/api/chat", json!({"model": "brush", "messages": [{"role": "user", "content": "hi"}]})),
        ("/tokenize", json!({"model": "brush", "content": "hi"})),
    ];
    for (path, body) in doors {
        let reply = site.post(path, &body);
        let text = reply.json.to_string();
        assert_eq!(reply.status, 400, "{path}: {text}");
        assert!(text.contains("/v1/images/generations") && text.contains("script"), "{path}: {text}");
    }
    for path in ["/v1/images/edits", "/v1/images/variations"] {
        let reply = site.post(path, &json!({"model": "brush", "prompt": "a", "image": "aGk="}));
        assert_eq!(reply.status, 400);
        assert!(reply.json.to_string().contains("/v1/images/generations"), "{}", reply.json);
    }
}

#[test]
fn a_server_without_pictures_says_so() {
    let site = Setup::default().plan(Vocabulary::of(&[]), |_, _| vec![Say::Token(97)]);
    refused(&site, json!({"prompt": "a tree"}), "model", &["script answers with text", "no model of this server"]);
}

#[test]
fn listings_tell_the_kind() {
    let site = site(0);
    let (_, text) = site.get("/v1/models");
    let list: Value = serde_json::from_str(&text).expect("JSON");
    let kinds: Vec<(&str, &str)> = list["data"]
        .as_array()
        .expect("models")
        .iter()
        .map(|m| (m["id"].as_str().expect("a name"), m["kind"].as_str().expect("a kind")))
        .collect();
    assert_eq!(kinds, [("script", "text"), ("brush", "image")]);
    assert_eq!(site.post(PATH, &json!({"prompt": "a tree", "size": "64x64"})).status, 200);
    let props: Value = serde_json::from_str(&site.get("/props").1).expect("JSON");
    assert_eq!(props["models"][1]["kind"], "image");
    assert_eq!(props["models"][1]["status"], "loaded");
    assert_eq!(props["models"][1]["pictures"]["steps"], 4);
}
