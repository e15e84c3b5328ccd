//! Text out: reasoning budgets, stop strings, split characters.

mod common;

use common::{EMOJI, END, END_THINK, Probe, Source, THINK, byte_tokenizer, bytes, engine, one_hot};
use onebit_engine::{
    EngineError, EngineOptions, FinishReason, Request, SamplingParams, TextCompletion, TextEvent, Thinking,
};
use std::ops::ControlFlow;

const PROMPT: usize = 4;

fn request(thinking: Option<Thinking>) -> Request {
    let sampling = SamplingParams::greedy();
    Request { sampling, thinking, eos: vec![END], ..Request::new(bytes("ask:")) }
}

/// Runs a request against a scripted answer; every piece of text on its way equals the completion.
fn run(probe: Probe, request: Request, stop: &[&str]) -> TextCompletion {
    let (mut engine, _) = engine(&Source::dense(512), probe, EngineOptions::new(512));
    let stop: Vec<String> = stop.iter().map(|s| (*s).to_owned()).collect();
    let (mut reasoning, mut answer) = (String::new(), String::new());
    let done = engine.generate_text(&byte_tokenizer(), request, &stop, |event| {
        match event {
            TextEvent::Reasoning(text) => reasoning.push_str(text),
            TextEvent::Answer(text) => answer.push_str(text),
            TextEvent::Prefill { done, total } => assert_eq!((*done, *total), (PROMPT, PROMPT)),
        }
        ControlFlow::Continue(())
    });
    let done = done.expect("the request succeeds");
    assert_eq!((&reasoning, &answer), (&done.reasoning, &done.answer));
    assert_eq!(engine.step(), Ok(vec![]), "nothing leaked");
    done
}

fn says(tokens: &[u32]) -> Probe {
    Probe::says(PROMPT, tokens, END)
}

fn thinking(open: bool, budget: Option<usize>) -> Option<Thinking> {
    Thinking::of(&byte_tokenizer(), open, budget).expect("the markers can be encoded")
}

/// Thinks `hmm ` for ever; once the block is closed, answers `yes`.
fn endless() -> Probe {
    let closed = std::sync::Mutex::new(None);
    Probe::scripted(move |at, token| {
        let mut closed = closed.lock().expect("one thread");
        // The closing text ends with two line breaks, read in one step; only the last row gives logits.
        if token == u32::from(b'\n') && closed.is_none() && at >= PROMPT {
            *closed = Some(at);
        }
        Ok(one_hot(match *closed {
            Some(start) => bytes("yes").get(at - start).copied().unwrap_or(END),
            None => u32::from(b"hmm "[at % 4]),
        }))
    })
}

#[test]
fn thinking_is_taken_apart_and_counted() {
    let mut script = bytes("why\n");
    script.push(END_THINK);
    script.extend(bytes("\n\nbecause"));
    let done = run(says(&script), request(thinking(true, None)), &[]);
    assert_eq!((done.reasoning.as_str(), done.answer.as_str()), ("why", "because"));
    assert_eq!((done.usage.reasoning_tokens, done.usage.completion_tokens), (4, 14));
    assert_eq!(done.reason, FinishReason::Stop(END));
    // The model opens the block itself.
    script.insert(0, THINK);
    let done = run(says(&script), request(thinking(false, None)), &[]);
    assert_eq!((done.reasoning.as_str(), done.answer.as_str()), ("why", "because"));
    assert_eq!((done.usage.reasoning_tokens, done.usage.completion_tokens), (4, 15));
    // Markers in an answer without a block are text.
    let mut script = bytes("a");
    script.extend([THINK, END_THINK]);
    let done = run(says(&script), request(thinking(false, Some(0))), &[]);
    assert_eq!((done.reasoning.as_str(), done.answer.as_str()), ("", "a<think></think>"));
    assert_eq!(done.usage.reasoning_tokens, 0);
}

#[test]
fn the_budget_closes_the_block_and_the_answer_follows() {
    for budget in [0, 1, 50] {
        let done = run(endless(), request(thinking(true, Some(budget))), &[]);
        let thought: String = "hmm ".chars().cycle().skip(3).take(budget).collect();
        assert_eq!((done.reasoning.trim_end(), done.answer.as_str()), (thought.trim_end(), "yes"), "budget {budget}");
        assert_eq!(done.usage.reasoning_tokens, budget);
        // The closing text is a line break, the marker and two line breaks.
        assert_eq!(done.usage.completion_tokens, budget + 4 + 3);
        assert_eq!(done.reason, FinishReason::Stop(END));
    }
}

#[test]
fn a_budget_is_only_a_limit() {
    let script = [bytes("ok"), vec![END_THINK], bytes("yes")].concat();
    for budget in [2, 3, 50] {
        let done = run(says(&script), request(thinking(true, Some(budget))), &[]);
        let closed_by_us = budget == 2;
        assert_eq!(done.reasoning, "ok");
        assert_eq!(done.usage.reasoning_tokens, 2);
        assert_eq!(done.answer == "yes", !closed_by_us, "{}", done.answer);
    }
    let ends = |max_tokens| {
        let done = run(endless(), Request { max_tokens: Some(max_tokens), ..request(thinking(true, Some(5))) }, &[]);
        (done.reason, done.usage.completion_tokens)
    };
    // In the block, in the closing text, in the answer.
    assert_eq!([ends(3), ends(7), ends(10)], [3, 7, 10].map(|n| (FinishReason::Length, n)));
}

#[test]
fn a_stop_string_cuts_exactly_before_itself() {
    let text = "alpha beta gamma delta";
    for (stop, answer, by) in [
        (&["beta gamma"][..], "alpha ", 0),
        (&["delta", "gamma"], "alpha beta ", 1),
        (&["beta gammon", "be"], "alpha ", 1),
        (&["a"], "", 0),
    ] {
        let done = run(says(&bytes(text)), request(None), stop);
        assert_eq!((done.answer.as_str(), done.stopped_by), (answer, Some(by)));
        assert_eq!(done.reason, FinishReason::StopString);
        assert!(done.usage.completion_tokens < text.len(), "the model does not run on");
    }
    let done = run(says(&bytes(text)), request(None), &["delta!"]);
    assert_eq!((done.answer.as_str(), done.stopped_by), (text, None), "what was held back comes at the end");
    assert_eq!(done.reason, FinishReason::Stop(END));
}

#[test]
fn stop_strings_are_not_looked_for_in_reasoning() {
    let script = [bytes("no stop here"), vec![END_THINK], bytes("go stop now")].concat();
    let done = run(says(&script), request(thinking(true, None)), &["stop"]);
    assert_eq!((done.reasoning.as_str(), done.answer.as_str()), ("no stop here", "go "));
    assert_eq!(done.reason, FinishReason::StopString);
}

#[test]
fn characters_are_never_split() {
    for script in [bytes("a🙂b"), [bytes("a"), EMOJI.to_vec(), bytes("b")].concat()] {
        let (mut engine, _) = engine(&Source::dense(512), says(&script), EngineOptions::new(512));
        let mut pieces = Vec::new();
        let done = engine.generate_text(&byte_tokenizer(), request(None), &[], |event| {
            if let TextEvent::Answer(text) = event {
                pieces.push(text.clone());
            }
            ControlFlow::Continue(())
        });
        assert_eq!(done.map(|d| d.answer), Ok("a🙂b".to_owned()));
        assert_eq!(pieces, ["a", "🙂", "b"]);
    }
    // Cut off inside a character.
    let done = run(says(&bytes("a🙂")), Request { max_tokens: Some(3), ..request(None) }, &[]);
    assert_eq!((done.answer.as_str(), done.reason), ("a\u{fffd}", FinishReason::Length));
    // A stop string behind half a character.
    let done = run(says(&[bytes("é!"), vec![0xe9], bytes("!x")].concat()), request(None), &["\u{fffd}!"]);
    assert_eq!(done.answer, "é!");
}

#[test]
fn breaking_ends_the_text_and_an_empty_stop_is_refused() {
    let (mut engine, _) = engine(&Source::dense(512), says(&bytes("one two")), EngineOptions::new(512));
    let tokenizer = byte_tokenizer();
    let mut seen = String::new();
    let done = engine.generate_text(&tokenizer, request(None), &["e t?".to_owned()], |event| {
        if let TextEvent::Answer(text) = event {
            seen.push_str(text);
        }
        if seen == "on" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let done = done.expect("the request succeeds");
    assert_eq!((seen.as_str(), done.answer.as_str(), done.reason), ("on", "on", FinishReason::Cancelled));
    let refused = engine.generate_text(&tokenizer, request(None), &[String::new()], |_| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(EngineError::Stop(_))), "{refused:?}");
    assert!(engine.is_idle());
}
