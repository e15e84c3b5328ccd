//! What comes out does not depend on how the work was cut: chunks, neighbours, earlier users of the same memory.

mod common;

use common::{Probe, Source, engine, load, prompt, tokens, unused};
use onebit_engine::{Engine, EngineOptions, Event, FinishReason, PromptOutputs, Request, RequestId, SamplingParams};
use onebit_ops::KvFormat;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

const MODELS: [fn(usize) -> Source; 2] = [Source::dense, Source::hybrid];

fn with_rows(rows: usize) -> EngineOptions {
    EngineOptions { prefill_rows: Some(rows), kv: KvFormat::F32, ..EngineOptions::new(256) }
}

fn sampled(prompt: Vec<u32>, max: usize, seed: u64) -> Request {
    let sampling = SamplingParams { temperature: 0.9, top_p: 0.95, seed: Some(seed), ..SamplingParams::default() };
    Request { sampling, max_tokens: Some(max), ..Request::new(prompt) }
}

fn greedy(prompt: Vec<u32>, max: usize) -> Request {
    Request { sampling: SamplingParams::greedy(), max_tokens: Some(max), ..Request::new(prompt) }
}

/// All outputs of a prompt, rows put together again.
fn read(engine: &mut Engine, tokens: &[u32], outputs: &PromptOutputs) -> BTreeMap<String, Vec<f32>> {
    let mut all: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    let mut next = 0;
    let done = engine.read_prompt(tokens, outputs, |chunk| {
        assert_eq!(chunk.first, next);
        next += chunk.rows;
        for (name, values) in chunk.values {
            all.entry(name).or_default().extend(values);
        }
        ControlFlow::Continue(())
    });
    done.expect("the prompt can be read");
    assert_eq!(next, tokens.len());
    all
}

/// Runs what was submitted to the end.
fn drain(engine: &mut Engine) -> BTreeMap<RequestId, (Vec<u32>, FinishReason)> {
    let mut open: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    let mut ended = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step().expect("a good step") {
            match event {
                Event::Token { id, token, .. } => open.entry(id).or_default().push(token),
                Event::Finished { id, reason, .. } => {
                    ended.insert(id, (open.remove(&id).unwrap_or_default(), reason));
                }
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Prefill { .. } | Event::Diverged { .. } => {}
            }
        }
    }
    ended
}

#[test]
fn a_prompt_split_in_any_way_gives_the_same_rows() {
    for model in MODELS {
        let source = model(256);
        let text = prompt(100, 1);
        let outputs = PromptOutputs { taps: vec![0, 2], final_norm: true };
        let whole = read(&mut engine(&source, Probe::default(), with_rows(256)).0, &text, &outputs);
        assert_eq!(whole.keys().collect::<Vec<_>>(), ["final_norm", "hidden.0", "hidden.2", "logits"]);
        assert_eq!((whole["logits"].len(), whole["hidden.2"].len()), (100 * common::VOCAB, 100 * 128));
        for rows in [1, 7, 64, 65] {
            let cut = read(&mut engine(&source, Probe::default(), with_rows(rows)).0, &text, &outputs);
            assert!(cut == whole, "chunks of {rows}");
        }
    }
}

#[test]
fn an_answer_does_not_depend_on_the_chunks_of_its_prompt() {
    for model in MODELS {
        let source = model(256);
        let run =
            |rows| tokens(&mut engine(&source, Probe::default(), with_rows(rows)).0, sampled(prompt(70, 2), 12, 5));
        let whole = run(256);
        for rows in [1, 7, 64, 65] {
            assert_eq!(run(rows), whole, "chunks of {rows}");
        }
    }
}

#[test]
fn decoding_equals_reading_the_same_tokens() {
    for model in MODELS {
        let source = model(256);
        let (mut engine, _) = engine(&source, Probe::default(), with_rows(64));
        let start = prompt(66, 3);
        let (answer, reason, _) = tokens(&mut engine, greedy(start.clone(), 10));
        assert_eq!((answer.len(), reason), (10, FinishReason::Length));
        let all: Vec<u32> = start.iter().chain(&answer).copied().collect();
        let logits = &read(&mut engine, &all, &PromptOutputs::default())["logits"];
        for (i, token) in answer.iter().enumerate() {
            let row = &logits[(start.len() - 1 + i) * common::VOCAB..][..common::VOCAB];
            let best = (0..row.len()).fold(0, |best, j| if row[j] > row[best] { j } else { best });
            assert_eq!(best as u32, *token, "token {i}");
        }
    }
}

#[test]
fn neighbours_do_not_matter() {
    for model in MODELS {
        let source = model(256);
        let requests: Vec<Request> = [(3, 9), (12, 5), (100, 7), (1, 11), (65, 3)]
            .iter()
            .map(|(n, k)| sampled(prompt(*n, *k as u32), 8, *k))
            .collect();
        let options = EngineOptions { sequences: 3, ..with_rows(16) };
        let (mut together, probe) = engine(&source, Probe::default(), options.clone());
        let ids: Vec<RequestId> = requests.iter().map(|r| together.submit(r.clone()).expect("good")).collect();
        assert_eq!(load(&together), (5, 0));
        let ended = drain(&mut together);
        let widest = probe.take_steps().iter().map(|s| s.segments.len()).max();
        assert_eq!(widest, Some(3), "three sequences share a step");
        for (id, request) in ids.iter().zip(requests) {
            let (mut alone, _) = engine(&source, Probe::default(), with_rows(64));
            let (answer, reason, _) = tokens(&mut alone, request);
            assert_eq!(ended[id], (answer, reason));
        }
    }
}

#[test]
fn memory_of_an_earlier_sequence_leaves_no_trace() {
    for model in MODELS {
        let source = model(256);
        for keep in [false, true] {
            let (mut used, _) = engine(&source, Probe::default(), with_rows(32));
            let a = Request { cache: keep, ..sampled(prompt(90, 4), 10, 1) };
            tokens(&mut used, a);
            // Shares 50 tokens with the first, then goes its own way.
            let mut text = prompt(90, 4);
            text.truncate(50);
            text.extend(prompt(20, 5));
            let b = sampled(text, 10, 2);
            let (mut fresh, _) = engine(&source, Probe::default(), with_rows(32));
            let (again, first) = (tokens(&mut used, b.clone()), tokens(&mut fresh, b));
            assert_eq!((again.0, again.1), (first.0, first.1));
        }
    }
}

#[test]
fn cancelling_frees_everything_at_once() {
    let source = Source::hybrid(256);
    let (mut engine, _) = engine(&source, Probe::default(), EngineOptions { sequences: 2, ..with_rows(8) });
    let all = unused(&engine);
    assert_eq!(all, (8, 3));
    let ids: Vec<RequestId> =
        (0..3).map(|i| engine.submit(greedy(prompt(60, i), 50)).expect("a good request")).collect();
    engine.step().expect("a good step");
    assert!(unused(&engine) < all);
    // One in the middle of its prompt, one that has not begun, one still in the queue.
    ids.iter().for_each(|id| engine.cancel(*id).expect("under way"));
    assert_eq!(unused(&engine), all);
    assert!(engine.cancel(ids[0]).is_err());
    let events = engine.step().expect("an idle step with a whole cache");
    let cancelled = |e: &Event| matches!(e, Event::Finished { reason: FinishReason::Cancelled, .. });
    assert!(events.len() == 3 && events.iter().all(cancelled), "{events:?}");
    assert!(engine.is_idle());

    // In the middle of an answer.
    let mut seen = 0;
    let done = engine.generate(greedy(prompt(5, 1), 50), |event| {
        seen += usize::from(matches!(event, Event::Token { .. }));
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(done.map(|d| (d.reason, d.usage.completion_tokens)), Ok((FinishReason::Cancelled, 3)));
    assert_eq!(unused(&engine), all);
}

#[test]
fn quantised_keys_and_values_work_with_every_split_and_neighbour() {
    for model in MODELS {
        let source = model(256);
        for kv in [KvFormat::F16, KvFormat::Q8, KvFormat::Q4] {
            let whole = EngineOptions { kv, ..with_rows(256) };
            let requests = [sampled(prompt(70, 1), 6, 1), sampled(prompt(9, 2), 6, 2)];
            let (mut alone, _) = engine(&source, Probe::default(), whole);
            let expected: Vec<_> = requests.iter().map(|r| tokens(&mut alone, r.clone()).0).collect();
            let (mut cut, _) = engine(&source, Probe::default(), EngineOptions { kv, sequences: 2, ..with_rows(7) });
            let ids: Vec<_> = requests.iter().map(|r| cut.submit(r.clone()).expect("good")).collect();
            let ended = drain(&mut cut);
            assert_eq!(ids.iter().map(|id| ended[id].0.clone()).collect::<Vec<_>>(), expected, "{kv}");
        }
    }
}

#[test]
fn seeds_repeat_and_differ() {
    let source = Source::dense(256);
    let (mut engine, _) = engine(&source, Probe::default(), EngineOptions { sequences: 4, ..with_rows(32) });
    let text = prompt(10, 1);
    let submit = |engine: &mut Engine, seed| {
        let sampling = SamplingParams { seed, ..SamplingParams::default() };
        let request = Request { sampling, max_tokens: Some(16), ..Request::new(text.clone()) };
        engine.submit(request).expect("a good request")
    };
    let ids = [Some(42), Some(42), Some(43), None].map(|seed| submit(&mut engine, seed));
    let late = submit(&mut engine, None);
    let ended = drain(&mut engine);
    assert_eq!(ended[&ids[0]], ended[&ids[1]]);
    assert_ne!(ended[&ids[0]], ended[&ids[2]]);
    assert_ne!(ended[&ids[3]], ended[&late], "no seed means a fresh one");
}
