//! Steps that start before the tokens of the one before are known: the same answers, and nothing lost.

mod common;

use common::{END, Probe, Source, VOCAB, bytes, engine, one_hot, prompt, unused};
use onebit_engine::{Engine, EngineOptions, Event, FinishReason, Request, RequestId, SamplingParams, Thinking};
use onebit_ops::{KvFormat, Sampled, StepInputs};
use std::collections::BTreeMap;

fn options(run_ahead: bool) -> EngineOptions {
    let base = EngineOptions { kv: KvFormat::F32, prefill_rows: Some(16), ..EngineOptions::new(256) };
    EngineOptions { sequences: 3, run_ahead: Some(run_ahead), ..base }
}

fn drawn(tokens: Vec<u32>, max: usize, seed: u64) -> Request {
    let sampling = SamplingParams { temperature: 0.9, top_k: 40, seed: Some(seed), ..SamplingParams::default() };
    Request { sampling, max_tokens: Some(max), ..Request::new(tokens) }
}

type Answers = BTreeMap<RequestId, (Vec<u32>, Option<FinishReason>)>;

fn drain(engine: &mut Engine) -> Answers {
    let mut answers = Answers::new();
    while !engine.is_idle() {
        for event in engine.step().expect("a good step") {
            let answer = answers.entry(event.id()).or_default();
            match event {
                Event::Token { token, .. } => answer.0.push(token),
                Event::Finished { reason, .. } => answer.1 = Some(reason),
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Prefill { .. } | Event::Diverged { .. } => {}
            }
        }
    }
    assert_eq!(engine.step(), Ok(vec![]), "nothing leaked");
    answers
}

fn carried(steps: &[StepInputs]) -> usize {
    steps.iter().map(|s| s.carried.len()).sum()
}

#[test]
fn running_ahead_changes_no_answer() {
    for source in [Source::dense(256), Source::hybrid(256)] {
        // End tokens that do come up, at different times.
        let eos: Vec<u32> = (0..VOCAB as u32).step_by(17).collect();
        let requests = [(3, 40, 1), (70, 5, 2), (20, 30, 3), (1, 25, 4), (33, 1, 5)];
        let run = |ahead| {
            let (mut engine, probe) = engine(&source, Probe::default(), options(ahead));
            for (n, max, seed) in requests {
                let request = Request { eos: eos.clone(), ..drawn(prompt(n, seed), max, u64::from(seed)) };
                engine.submit(request).expect("a good request");
            }
            let answers = drain(&mut engine);
            (answers, carried(&probe.take_steps()))
        };
        let ((ahead, some), (plain, none)) = (run(true), run(false));
        assert_eq!(ahead, plain);
        assert!(some > 20 && none == 0, "{some} rows went ahead");
        let ends = plain.values().filter(|(_, reason)| matches!(reason, Some(FinishReason::Stop(_)))).count();
        assert!((1..5).contains(&ends), "{plain:?}");
    }
}

#[test]
fn the_host_is_waited_for_where_the_next_token_needs_it() {
    let source = Source::dense(256);
    let penalty = |params: SamplingParams| SamplingParams { repetition_penalty: 1.3, ..params };
    let run = |ahead| {
        let (mut engine, probe) = engine(&source, Probe::default(), options(ahead));
        let request = drawn(prompt(5, 1), 20, 1);
        let sampling = penalty(request.sampling.clone());
        engine.submit(Request { sampling, ..request }).expect("a good request");
        engine.submit(drawn(prompt(9, 2), 20, 2)).expect("a good request");
        let answers = drain(&mut engine);
        (answers, carried(&probe.take_steps()))
    };
    assert_eq!(run(true), run(false));
    assert_eq!(run(true).1, 0);
}

#[test]
fn a_row_too_many_is_the_only_cost_and_is_remembered() {
    for source in [Source::dense(256), Source::hybrid(256)] {
        let answer = [5, 6, 7, 8];
        let mut steps = BTreeMap::new();
        for ahead in [false, true] {
            let (mut engine, probe) = engine(&source, Probe::says(10, &answer, END), options(ahead));
            let request = Request { eos: vec![END], ..drawn(prompt(10, 1), 50, 1) };
            engine.submit(request).expect("a good request");
            let ended = drain(&mut engine);
            assert!(
                ended.values().all(|(tokens, reason)| *tokens == answer && *reason == Some(FinishReason::Stop(END)))
            );
            steps.insert(ahead, probe.rows_read());
            // The end token was read as well, so it need not be read again.
            let mut longer = prompt(10, 1);
            longer.extend(answer);
            longer.extend([END, 1, 2]);
            let id = engine.submit(drawn(longer, 1, 1)).expect("a good request");
            let mut cached = None;
            while !engine.is_idle() {
                for event in engine.step().expect("a good step") {
                    match event {
                        Event::Finished { id: ended, usage, .. } if ended == id => cached = Some(usage.cached_tokens),
                        _ => {}
                    }
                }
            }
            assert_eq!(cached, Some(if ahead { 15 } else { 14 }));
        }
        assert_eq!(steps[&true], steps[&false] + 1);
    }
}

#[test]
fn budgets_and_limits_are_kept_to_the_token() {
    let end = 257;
    let block = |budget| Thinking { start: None, end, open: true, budget: Some(budget), closing: vec![10, end, 10] };
    for budget in [0, 1, 5] {
        for max in [1, 3, 6, 7, 8, 20] {
            let run = |ahead| {
                let probe = Probe::scripted(|at, _| Ok(one_hot(bytes("hmm ")[at % 4])));
                let (mut engine, _) =
                    engine(&Source::dense(64), probe, EngineOptions { context: 24, ..options(ahead) });
                let request = Request { thinking: Some(block(budget)), ..drawn(prompt(4, 1), max, 1) };
                engine.submit(request).expect("a good request");
                drain(&mut engine)
            };
            assert_eq!(run(true), run(false), "budget {budget}, at most {max}");
        }
    }
    let run = |ahead| {
        let (mut engine, _) =
            engine(&Source::dense(64), Probe::default(), EngineOptions { context: 24, ..options(ahead) });
        engine.submit(Request { max_tokens: None, ..drawn(prompt(4, 1), 1, 1) }).expect("a good request");
        drain(&mut engine)
    };
    let answers = run(true);
    assert_eq!(answers, run(false));
    assert!(answers.values().all(|(t, reason)| t.len() == 20 && *reason == Some(FinishReason::ContextFull)));
}

#[test]
fn cancelling_between_steps_frees_all_and_leaves_the_rest_alone() {
    for source in [Source::dense(256), Source::hybrid(256)] {
        for cancel_at in 0..12 {
            let run = |ahead: bool, cancelled: bool| {
                let (mut engine, _) = engine(&source, Probe::default(), options(ahead));
                let all = unused(&engine);
                let stays = engine.submit(drawn(prompt(20, 1), 12, 1)).expect("a good request");
                let goes = engine.submit(drawn(prompt(40, 2), 30, 2)).expect("a good request");
                let mut tokens = Vec::new();
                for step in 0.. {
                    if step == cancel_at && cancelled {
                        engine.cancel(goes).expect("under way");
                    }
                    for event in engine.step().expect("a good step") {
                        match event {
                            Event::Token { id, token, .. } if id == stays => tokens.push(token),
                            Event::Failed { error, .. } => panic!("{error}"),
                            _ => {}
                        }
                    }
                    if engine.is_idle() {
                        break;
                    }
                }
                assert_eq!(unused(&engine), all);
                assert_eq!(engine.step(), Ok(vec![]));
                tokens
            };
            assert_eq!(run(true, true), run(false, false), "cancelled before step {cancel_at}");
        }
    }
}

#[test]
fn broken_numbers_end_only_their_request() {
    let probe = Probe::scripted(|at, _| Ok(if at == 12 { vec![f32::NAN; VOCAB] } else { one_hot(9) }));
    let (mut engine, _) = engine(&Source::dense(256), probe, options(true));
    let bad = engine.submit(drawn(prompt(10, 1), 9, 1)).expect("a good request");
    let good = engine.submit(drawn(prompt(3, 2), 5, 2)).expect("a good request");
    let mut events = Vec::new();
    while !engine.is_idle() {
        events.extend(engine.step().expect("a good step"));
    }
    assert!(events.iter().any(|e| e.id() == bad && matches!(e, Event::Failed { .. })));
    assert!(!events.iter().any(|e| matches!(e, Event::Token { token, .. } if *token == Sampled::NOT_FINITE)));
    assert!(events.iter().any(|e| e.id() == good && matches!(e, Event::Finished { .. })));
    assert_eq!(engine.step(), Ok(vec![]), "nothing leaked");
}
