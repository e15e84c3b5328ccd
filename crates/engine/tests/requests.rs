//! How requests begin, end and fail, with the model's numbers written by hand.

mod common;

use common::{END, Probe, Source, VOCAB, engine, load, one_hot, prompt, tokens, unused};
use onebit_engine::{Engine, EngineError, EngineOptions, Event, FinishReason, Request, SamplingParams, Thinking};
use onebit_models::{LoadOptions, Model};
use onebit_ops::{Activations, KvFormat, OpError};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn greedy(prompt: Vec<u32>) -> Request {
    Request { sampling: SamplingParams::greedy(), eos: vec![END], ..Request::new(prompt) }
}

fn scripted(probe: Probe, context: usize) -> Engine {
    engine(&Source::dense(4096), probe, EngineOptions::new(context)).0
}

#[test]
fn ends_at_the_end_token_which_is_not_published() {
    let mut engine = scripted(Probe::says(3, &[10, 11, 12], END), 64);
    let (answer, reason, usage) = tokens(&mut engine, greedy(prompt(3, 1)));
    assert_eq!((answer, reason), (vec![10, 11, 12], FinishReason::Stop(END)));
    assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens), (3, 0, 3));
}

#[test]
fn ends_at_max_tokens_and_at_the_window() {
    let mut engine = scripted(Probe::says(100, &[], 7), 128);
    let run = |engine: &mut Engine, max_tokens| {
        let (answer, reason, _) = tokens(engine, Request { max_tokens, ..greedy(prompt(100, 1)) });
        (answer.len(), reason)
    };
    assert_eq!(run(&mut engine, Some(5)), (5, FinishReason::Length));
    assert_eq!(run(&mut engine, Some(300)), (28, FinishReason::ContextFull));
    assert_eq!(run(&mut engine, None), (28, FinishReason::ContextFull));
    assert_eq!(run(&mut engine, Some(28)), (28, FinishReason::Length));
    // Whether everything is back is checked by the next idle step.
    assert_eq!(engine.step(), Ok(vec![]));
    let error = engine.submit(greedy(prompt(129, 1))).expect_err("too long");
    assert_eq!(error, EngineError::PromptTooLong { tokens: 129, context: 128 });
    assert!(error.to_string().contains("129 tokens") && error.to_string().contains("128 tokens"), "{error}");
    assert!(engine.submit(greedy(prompt(128, 1))).is_err(), "no room for an answer");
    let (answer, reason, _) = tokens(&mut engine, greedy(prompt(127, 1)));
    assert_eq!((answer.len(), reason), (1, FinishReason::ContextFull));
}

#[test]
fn a_device_that_is_gone_ends_the_engine() {
    let (mut engine, probe) = engine(&Source::dense(4096), Probe::says(3, &[10, 11, 12], END), EngineOptions::new(64));
    tokens(&mut engine, greedy(prompt(3, 1)));
    probe.lost.store(true, Ordering::Relaxed);
    engine.submit(greedy(prompt(3, 1))).expect("a good request");
    for _ in 0..2 {
        let error = engine.step().expect_err("the device is gone");
        assert_eq!(error.to_string(), "probe device: the device was lost");
    }
}

#[test]
fn ties_go_to_the_lowest_token() {
    let probe = Probe::scripted(|_, _| {
        let mut logits = vec![-1.0; VOCAB];
        logits[300] = 2.0;
        logits[17] = 2.0;
        logits[44] = 2.0;
        Ok(logits)
    });
    let mut engine = scripted(probe, 64);
    let request = Request { max_tokens: Some(2), ..greedy(prompt(1, 1)) };
    assert_eq!(tokens(&mut engine, request).0, [17, 17]);
    let sampling = SamplingParams { top_k: 1, ..SamplingParams::default() };
    let request = Request { sampling, max_tokens: Some(2), ..Request::new(prompt(1, 1)) };
    assert_eq!(tokens(&mut engine, request).0, [17, 17]);
}

#[test]
fn broken_numbers_end_the_request_and_not_the_engine() {
    for bad in [f32::NAN, f32::INFINITY] {
        let probe = Probe::scripted(move |at, _| {
            let mut logits = one_hot(9);
            if at == 6 {
                logits[123] = bad;
            }
            Ok(logits)
        });
        let mut engine = scripted(probe, 64);
        let all = unused(&engine);
        let error = engine.generate(greedy(prompt(5, 1)), |_| ControlFlow::Continue(())).expect_err("not finite");
        let EngineError::NonFinite { step: 3, position: 6 } = error else { panic!("{error:?}") };
        assert!(error.to_string().contains("step 3") && error.to_string().contains("position 6"), "{error}");
        assert_eq!(unused(&engine), all);
        let request = Request { max_tokens: Some(2), ..greedy(prompt(5, 1)) };
        assert_eq!(tokens(&mut engine, request).0, [9, 9], "the engine goes on");
    }
}

#[test]
fn a_failing_neighbour_or_device_touches_only_its_own() {
    let lost = || OpError::Device { backend: "probe".to_owned(), message: "gone".to_owned() };
    let probe = Probe::scripted(move |at, token| match (at, token) {
        (_, 5) => Ok(vec![f32::NAN; VOCAB]),
        (3, 6) => Err(lost()),
        _ => Ok(one_hot(9)),
    });
    let options = EngineOptions { sequences: 2, ..EngineOptions::new(64) };
    let (mut engine, _) = engine(&Source::dense(64), probe, options);
    let good = engine.submit(Request { max_tokens: Some(3), ..greedy(vec![1, 2]) }).expect("good");
    let bad = engine.submit(greedy(vec![5])).expect("good");
    let mut events = Vec::new();
    while !engine.is_idle() {
        events.extend(engine.step().expect("a good step"));
    }
    let failed = |e: &&Event| matches!(e, Event::Failed { error: EngineError::NonFinite { .. }, .. });
    assert_eq!(events.iter().filter(failed).map(Event::id).collect::<Vec<_>>(), [bad]);
    let ended = |e: &&Event| matches!(e, Event::Finished { reason: FinishReason::Length, .. });
    assert_eq!(events.iter().filter(ended).map(Event::id).collect::<Vec<_>>(), [good]);

    let error = engine.generate(greedy(vec![1, 1, 1, 6]), |_| ControlFlow::Continue(())).expect_err("device lost");
    assert_eq!(error.to_string(), "probe device: gone");
    assert_eq!(engine.step(), Ok(vec![]), "nothing leaked");
}

#[test]
fn every_parameter_outside_its_range_is_refused_by_name() {
    let mut engine = scripted(Probe::says(1, &[], END), 64);
    let base = SamplingParams::default;
    let nan = f32::NAN;
    let cases = [
        ("temperature", SamplingParams { temperature: nan, ..base() }),
        ("temperature", SamplingParams { temperature: -0.1, ..base() }),
        ("temperature", SamplingParams { temperature: f32::INFINITY, ..base() }),
        ("top_p", SamplingParams { top_p: 0.0, ..base() }),
        ("top_p", SamplingParams { top_p: 1.01, ..base() }),
        ("min_p", SamplingParams { min_p: nan, ..base() }),
        ("min_p", SamplingParams { min_p: -0.5, ..base() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..base() }),
        ("presence_penalty", SamplingParams { presence_penalty: 2.5, ..base() }),
        ("frequency_penalty", SamplingParams { frequency_penalty: nan, ..base() }),
        ("penalty_window", SamplingParams { penalty_window: Some(0), ..base() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(1, 101.0)], ..base() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(1, nan)], ..base() }),
    ];
    for (wanted, sampling) in cases {
        let error = engine.submit(Request { sampling, ..Request::new(vec![1]) }).expect_err(wanted);
        assert!(matches!(error, EngineError::Parameter { name, .. } if name == wanted), "{error:?}");
    }
    let vocab = VOCAB as u32;
    let biased = SamplingParams { logit_bias: vec![(vocab, 1.0)], ..base() };
    let thinking = |thinking| Request { thinking: Some(thinking), ..Request::new(vec![1]) };
    let block = Thinking { start: None, end: 257, open: true, budget: Some(1), closing: vec![10] };
    let requests = [
        (Request::new(vec![]), "the prompt is empty; at least one token is needed"),
        (Request::new(vec![vocab]), "`prompt` holds token 320, but the model's vocabulary ends at 319"),
        (
            Request { sampling: biased, ..Request::new(vec![1]) },
            "`logit_bias` holds token 320, but the model's vocabulary ends at 319",
        ),
        (Request { max_tokens: Some(0), ..Request::new(vec![1]) }, "`max_tokens` must be at least 1, got 0"),
        (
            Request { checkpoints: vec![2], ..Request::new(vec![1]) },
            "`checkpoints` must be ascending positions from 1 to 1, got [2]",
        ),
        (thinking(block.clone()), "`thinking.closing` must be a run of tokens with the end marker 257, got [10]"),
        (
            thinking(Thinking { end: 999, ..block }),
            "`thinking` holds token 999, but the model's vocabulary ends at 319",
        ),
    ];
    for (request, sentence) in requests {
        assert_eq!(engine.submit(request).expect_err(sentence).to_string(), sentence);
    }
    assert!(engine.is_idle());
}

#[test]
fn options_outside_their_range_are_refused_by_name() {
    let probe = Arc::new(Probe::default());
    let model = Model::load(&Source::dense(512), &*probe, LoadOptions::default(), &mut |_| {});
    let model = Arc::new(model.expect("a good checkpoint"));
    let base = || EngineOptions::new(128);
    let cases = [
        ("context", EngineOptions { context: 513, ..base() }),
        ("context", EngineOptions { context: 1, ..base() }),
        ("sequences", EngineOptions { sequences: 0, ..base() }),
        ("cached_tokens", EngineOptions { cached_tokens: Some(127), ..base() }),
        ("prefill_rows", EngineOptions { prefill_rows: Some(0), ..base() }),
    ];
    for (wanted, options) in cases {
        let error = Engine::new(model.clone(), probe.clone(), options).err();
        assert!(matches!(error, Some(EngineError::Parameter { name, .. }) if name == wanted), "{wanted}: {error:?}");
    }
    let good = EngineOptions { kv: KvFormat::Q4, activations: Some(Activations::I8G128), ..base() };
    assert!(Engine::new(model, probe, good).is_ok());
}

#[test]
fn more_requests_than_memory_wait_their_turn() {
    // Two sequences may run, but there are pages for one of full length and a half.
    let options = EngineOptions { sequences: 2, cached_tokens: Some(192), ..EngineOptions::new(128) };
    let (mut engine, _) = engine(&Source::dense(128), Probe::scripted(|_, _| Ok(one_hot(9))), options);
    for _ in 0..3 {
        engine.submit(greedy(prompt(10, 1))).expect("good");
    }
    engine.submit(Request { max_tokens: Some(4), ..greedy(prompt(10, 1)) }).expect("good");
    engine.step().expect("a good step");
    assert_eq!(load(&engine), (3, 1), "the second could grow to 128 tokens, for which there is no room");
    let mut most = 0;
    while !engine.is_idle() {
        engine.step().expect("a good step");
        most = most.max(load(&engine).1);
    }
    assert_eq!(most, 2, "the last one is short enough to run beside another");
    assert_eq!(engine.step(), Ok(vec![]));
}

#[test]
fn one_request_at_a_time_where_it_must_be() {
    let mut engine = scripted(Probe::says(1, &[], END), 64);
    let id = engine.submit(greedy(vec![1])).expect("good");
    let busy = engine.generate(greedy(vec![1]), |_| ControlFlow::Continue(()));
    assert_eq!(busy, Err(EngineError::Busy { running: 1 }));
    engine.cancel(id).expect("under way");
    assert!(engine.step().is_ok_and(|events| events.len() == 1));
    assert!(engine.generate(greedy(vec![1]), |_| ControlFlow::Continue(())).is_ok());
}
