//! A conversation is read once: what an ended sequence has left serves the next prompt, and changes no answer.

mod common;

use common::{Probe, Source, engine, prompt, tokens, unused};
use onebit_engine::{EngineOptions, PromptOutputs, Request, SamplingParams};
use onebit_ops::KvFormat;
use std::ops::ControlFlow;

fn options() -> EngineOptions {
    EngineOptions { kv: KvFormat::F32, prefill_rows: Some(32), ..EngineOptions::new(512) }
}

fn request(tokens: Vec<u32>, checkpoints: Vec<usize>) -> Request {
    let sampling = SamplingParams { temperature: 0.8, seed: Some(3), ..SamplingParams::default() };
    Request { sampling, max_tokens: Some(8), checkpoints, ..Request::new(tokens) }
}

/// The answer, and how many prompt tokens were not read again; the same request on a fresh engine answers the same.
fn check(engine: &mut onebit_engine::Engine, source: &Source, request: Request) -> (Vec<u32>, usize) {
    let (answer, _, usage) = tokens(engine, request.clone());
    let (cold, _, cold_usage) = tokens(&mut common::engine(source, Probe::default(), options()).0, request);
    assert_eq!((&answer, cold_usage.cached_tokens), (&cold, 0));
    (answer, usage.cached_tokens)
}

#[test]
fn a_longer_prompt_goes_on_where_the_last_one_ended() {
    for source in [Source::dense(512), Source::hybrid(512)] {
        let (mut engine, probe) = engine(&source, Probe::default(), options());
        let mut text = prompt(200, 1);
        let (answer, cached) = check(&mut engine, &source, request(text.clone(), vec![]));
        assert_eq!(cached, 0);
        text.extend(answer);
        text.extend(prompt(20, 2));
        probe.take_steps();
        // The last token of the answer was chosen but never read.
        assert_eq!(check(&mut engine, &source, request(text, vec![])).1, 207);
        assert_eq!(probe.rows_read(), 21 + 7);
    }
}

#[test]
fn dropped_reasoning_costs_one_turn_and_not_the_conversation() {
    for (source, turn_2) in [(Source::dense(512), 104), (Source::hybrid(512), 100)] {
        let (mut engine, _) = engine(&source, Probe::default(), options());
        // A prompt of 100 tokens and a generation prompt of 4; the template drops half of the answer later.
        let mut text = prompt(104, 1);
        let (answer, _) = check(&mut engine, &source, request(text.clone(), vec![100]));
        text.extend(&answer[5..]);
        let start = text.len() + 16;
        text.extend(prompt(20, 3));
        assert_ne!(answer[0], answer[5], "the conversations part after the generation prompt");
        let (answer, cached) = check(&mut engine, &source, request(text.clone(), vec![start]));
        assert_eq!(cached, turn_2);
        // The third turn comes back to the second.
        text.extend(&answer[5..]);
        text.extend(prompt(20, 4));
        assert_ne!(answer[0], answer[5]);
        let (_, cached) = check(&mut engine, &source, request(text, vec![]));
        assert_eq!(cached, if turn_2 == 100 { start } else { start + 4 });
    }
}

#[test]
fn the_same_prompt_again_reads_only_its_end() {
    for (source, again) in [(Source::dense(512), 149), (Source::hybrid(512), 146)] {
        let (mut engine, _) = engine(&source, Probe::default(), options());
        let first = check(&mut engine, &source, request(prompt(150, 1), vec![146]));
        for _ in 0..3 {
            assert_eq!(check(&mut engine, &source, request(prompt(150, 1), vec![146])), (first.0.clone(), again));
        }
    }
}

#[test]
fn a_cancelled_answer_is_kept_too() {
    let source = Source::hybrid(512);
    let (mut engine, _) = engine(&source, Probe::default(), options());
    let mut text = prompt(100, 1);
    let mut seen = Vec::new();
    let done = engine.generate(request(text.clone(), vec![]), |event| {
        if let onebit_engine::Event::Token { token, .. } = event {
            seen.push(*token);
        }
        if seen.len() == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(done.is_ok());
    text.extend(&seen);
    text.extend(prompt(9, 2));
    assert_eq!(check(&mut engine, &source, request(text, vec![])).1, 103);
}

#[test]
fn what_is_kept_gives_way_to_what_runs() {
    let source = Source::hybrid(512);
    let (mut engine, _) = engine(&source, Probe::default(), options());
    let all = unused(&engine);
    for i in 0..6 {
        assert_eq!(check(&mut engine, &source, request(prompt(480, i), vec![200, 400])).1, 0);
        assert_eq!(unused(&engine), all, "kept memory counts as unused");
        assert_eq!(engine.step(), Ok(vec![]), "nothing is lost or doubled");
    }
    // Two states were to be saved and one may be: the later one stays.
    let mut text = prompt(410, 5);
    text.extend(prompt(5, 77));
    assert_eq!(check(&mut engine, &source, request(text, vec![])).1, 400);
    engine.forget();
    assert_eq!(check(&mut engine, &source, request(prompt(480, 5), vec![])).1, 0);
    let rows = engine.read_prompt(&prompt(30, 5), &PromptOutputs::default(), |_| ControlFlow::Continue(()));
    assert_eq!((rows, unused(&engine)), (Ok(()), all));
    assert_eq!(engine.step(), Ok(vec![]));
}

#[test]
fn many_sequences_share_saved_states_fairly() {
    let source = Source::hybrid(512);
    let options = EngineOptions { sequences: 3, checkpoints: 2, cached_tokens: Some(1024), ..options() };
    let (mut engine, _) = engine(&source, Probe::default(), options);
    let all = unused(&engine);
    for round in 0..4 {
        for i in 0..5 {
            let request = request(prompt(60 + 30 * i, i as u32 + round), vec![10, 20, 30, 50]);
            engine.submit(request).expect("a good request");
        }
        while !engine.is_idle() {
            engine.step().expect("a good step");
        }
        assert_eq!(unused(&engine), all);
        assert_eq!(engine.step(), Ok(vec![]));
    }
}
