//! What is read once: several answers to a prompt, requests that begin alike, sequences that had to give way.

mod common;

use common::{END, Probe, Source, VOCAB, engine, load, one_hot, prompt, unused};
use onebit_engine::{
    Engine, EngineError, EngineOptions, Event, FinishReason, Request, RequestId, SamplingParams, Usage,
};
use onebit_ops::KvFormat;
use std::collections::BTreeMap;

fn options() -> EngineOptions {
    let base = EngineOptions { kv: KvFormat::F32, prefill_rows: Some(32), ..EngineOptions::new(512) };
    EngineOptions { sequences: 8, checkpoints: 4, cached_tokens: Some(2048), ..base }
}

fn drawn(tokens: Vec<u32>, max: usize, seed: u64) -> Request {
    let sampling = SamplingParams { temperature: 0.9, seed: Some(seed), ..SamplingParams::default() };
    Request { sampling, max_tokens: Some(max), ..Request::new(tokens) }
}

#[derive(Debug, Default, Clone, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    usage: Usage,
    reason: Option<FinishReason>,
}

type Answers = BTreeMap<(RequestId, usize), Answer>;

/// Runs everything to its end; `each` sees the engine before every step.
fn drain(engine: &mut Engine, mut each: impl FnMut(&Engine)) -> Answers {
    let mut answers = Answers::new();
    while !engine.is_idle() {
        each(engine);
        for event in engine.step().expect("a good step") {
            match event {
                Event::Token { id, choice, token, .. } => answers.entry((id, choice)).or_default().tokens.push(token),
                Event::Finished { id, choice, reason, usage } => {
                    let answer = answers.entry((id, choice)).or_default();
                    (answer.reason, answer.usage) = (Some(reason), usage);
                }
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Prefill { .. } | Event::Diverged { .. } => {}
            }
        }
    }
    assert_eq!(engine.step(), Ok(vec![]), "nothing leaked");
    answers
}

fn alone(source: &Source, request: Request) -> Vec<u32> {
    let (mut engine, _) = engine(source, Probe::default(), options());
    engine.submit(request).expect("a good request");
    drain(&mut engine, |_| {}).into_values().next().map(|a| a.tokens).unwrap_or_default()
}

#[test]
fn several_answers_share_the_reading_of_their_prompt() {
    for source in [Source::dense(512), Source::hybrid(512)] {
        for (sequences, cache, len) in [(8, true, 100), (2, true, 100), (1, true, 70), (8, false, 100), (8, true, 2)] {
            let (mut engine, probe) = engine(&source, Probe::default(), EngineOptions { sequences, ..options() });
            let request = Request { choices: 4, cache, ..drawn(prompt(len, 1), 6, 9) };
            let id = engine.submit(request.clone()).expect("a good request");
            let answers = drain(&mut engine, |_| {});
            assert_eq!(answers.len(), 4);
            // The prompt but its last token once; then each answer that token and all but the last of its own.
            let rows = len - 1 + 4 * 6;
            assert_eq!(probe.rows_read(), rows, "{sequences} at once, cache {cache}");
            let texts: Vec<_> = (0..4).map(|choice| &answers[&(id, choice)].tokens).collect();
            assert!(texts.iter().enumerate().all(|(i, a)| texts[..i].iter().all(|b| a != b)), "they differ: {texts:?}");
            assert!(answers.values().all(|a| a.usage.cached_tokens == 0 && a.usage.prompt_tokens == len));
            assert_eq!(*texts[0], alone(&source, Request { choices: 1, ..request.clone() }), "the first as if alone");
            let again = engine.submit(request).expect("a good request");
            let second = drain(&mut engine, |_| {});
            assert!((0..4).all(|c| second[&(again, c)].tokens == answers[&(id, c)].tokens));
            let cached = second[&(again, 3)].usage.cached_tokens;
            assert_eq!(cached, if cache { len - 1 } else { 0 });
        }
    }
}

#[test]
fn one_answer_of_several_can_be_cancelled() {
    let source = Source::hybrid(512);
    let (mut engine, _) = engine(&source, Probe::default(), options());
    let all = unused(&engine);
    let id = engine.submit(Request { choices: 3, ..drawn(prompt(40, 1), 10, 9) }).expect("a good request");
    (0..5).for_each(|_| drop(engine.step().expect("a good step")));
    engine.cancel_choice(id, 1).expect("under way");
    assert!(engine.cancel_choice(id, 1).is_err() && engine.cancel_choice(id, 7).is_err());
    let answers = drain(&mut engine, |_| {});
    let reasons = [0, 1, 2].map(|choice| answers[&(id, choice)].reason);
    assert_eq!(reasons, [FinishReason::Length, FinishReason::Cancelled, FinishReason::Length].map(Some));
    assert!(engine.cancel(id).is_err());
    assert_eq!(unused(&engine), all);
}

#[test]
fn a_system_prompt_of_many_requests_is_read_once() {
    for source in [Source::dense(512), Source::hybrid(512)] {
        let (mut engine, probe) = engine(&source, Probe::default(), options());
        let system = prompt(200, 1);
        let request = |i: u32| {
            let tokens = [system.clone(), vec![i; 3], prompt(8, i + 2)].concat();
            // As a server marks them: the end of the system prompt, and the next turn.
            Request { checkpoints: vec![200, 209], ..drawn(tokens, 3, u64::from(i)) }
        };
        let ids: Vec<RequestId> = (0..16).map(|i| engine.submit(request(i)).expect("a good request")).collect();
        let answers = drain(&mut engine, |_| {});
        // The system prompt once, each request's own 11 tokens, two of each answer.
        assert_eq!(probe.rows_read(), 200 + 16 * (11 + 2));
        let cached: usize = answers.values().map(|a| a.usage.cached_tokens).sum();
        assert_eq!(cached, 15 * 200);
        assert_eq!(engine.stats().counters.cached_tokens, 15 * 200);
        for i in [0, 1, 15] {
            assert_eq!(answers[&(ids[i as usize], 0)].tokens, alone(&source, request(i)), "request {i}");
        }
    }
}

#[test]
fn a_long_system_prompt_is_read_once_by_all_who_come_at_once() {
    // Where states are saved and not only pages; the dense one would take minutes of scalar attention.
    const SYSTEM: usize = 4000;
    let source = Source::hybrid(4352);
    let options = EngineOptions { context: 4352, cached_tokens: Some(2 * 4352), ..options() };
    let (mut engine, probe) = engine(&source, Probe::default(), options);
    let system = prompt(SYSTEM, 1);
    for i in 0..16 {
        let tokens = [system.clone(), vec![i; 3], prompt(8, i + 2)].concat();
        let request = Request { checkpoints: vec![SYSTEM, SYSTEM + 9], ..drawn(tokens, 3, u64::from(i)) };
        engine.submit(request).expect("a good request");
    }
    let answers = drain(&mut engine, |_| {});
    assert_eq!(answers.len(), 16);
    assert_eq!(probe.rows_read(), SYSTEM + 16 * (11 + 2));
    assert_eq!(engine.stats().counters.cached_tokens, 15 * SYSTEM as u64);
}

#[test]
fn a_beginning_that_nobody_marked_is_shared_too() {
    let source = Source::hybrid(512);
    let (mut engine, probe) = engine(&source, Probe::default(), options());
    let head = prompt(150, 1);
    let request = |i: u32| drawn([head.clone(), vec![i], prompt(20, i)].concat(), 2, 1);
    // Together: the first to read is asked to save its state where the others part.
    (0..4).for_each(|i| assert!(engine.submit(request(i)).is_ok()));
    let answers = drain(&mut engine, |_| {});
    // Without marks a state is saved at 128, and less than a page beyond it another is not worth while.
    assert_eq!(answers.values().map(|a| a.usage.cached_tokens).sum::<usize>(), 3 * 128);
    assert_eq!(probe.rows_read(), 128 + 4 * (43 + 1));
    let longer = |i: u32| drawn([prompt(200, 7), vec![i], prompt(60, i)].concat(), 1, 1);
    (0..3).for_each(|i| assert!(engine.submit(longer(i)).is_ok()));
    let answers = drain(&mut engine, |_| {});
    assert_eq!(answers.values().map(|a| a.usage.cached_tokens).sum::<usize>(), 2 * 200);
    // One after another on a fresh cache: the second finds out where they part, the third profits.
    engine.forget();
    let cached = [10, 11, 12].map(|i| {
        engine.submit(request(i)).expect("a good request");
        drain(&mut engine, |_| {}).values().map(|a| a.usage.cached_tokens).sum::<usize>()
    });
    assert_eq!(cached, [0, 128, 150]);
}

#[test]
fn short_prompts_hit_as_well() {
    for (source, again) in [(Source::dense(512), [29, 299]), (Source::hybrid(512), [24, 294])] {
        for (len, again) in [30, 300].into_iter().zip(again) {
            let (mut engine, _) = engine(&source, Probe::default(), options());
            let request = || Request { checkpoints: vec![len - 6], ..drawn(prompt(len, 3), 2, 1) };
            let cached = [0, 1, 2].map(|_| {
                engine.submit(request()).expect("a good request");
                drain(&mut engine, |_| {}).values().map(|a| a.usage.cached_tokens).sum::<usize>()
            });
            assert_eq!(cached, [0, again, again]);
        }
    }
}

#[test]
fn a_prompt_that_parts_early_from_a_like_one_is_reported() {
    let source = Source::dense(512);
    let (mut engine, _) = engine(&source, Probe::default(), options());
    let diverged = |engine: &mut Engine, tokens: Vec<u32>| {
        engine.submit(drawn(tokens, 1, 1)).expect("a good request");
        let mut found = None;
        while !engine.is_idle() {
            for event in engine.step().expect("a good step") {
                if let Event::Diverged { at, cached, prompt, .. } = event {
                    found = Some((at, cached, prompt));
                }
            }
        }
        found
    };
    let text = prompt(300, 1);
    assert_eq!(diverged(&mut engine, text.clone()), None);
    // A clock near the beginning.
    let mut later = text.clone();
    later[20] = 319;
    assert_eq!(diverged(&mut engine, later), Some((20, text[20], 319)));
    // The same again, a longer one, one that parts late, and one that has only a header in common.
    assert_eq!(diverged(&mut engine, text.clone()), None);
    assert_eq!(diverged(&mut engine, [text.clone(), prompt(20, 9)].concat()), None);
    let mut late = text.clone();
    late[250] = 319;
    assert_eq!(diverged(&mut engine, late), None);
    assert_eq!(diverged(&mut engine, [text[..8].to_vec(), vec![5; 200]].concat()), None);
}

#[test]
fn sequences_give_way_and_come_back_with_the_same_answer() {
    // The next token follows from the last one and its place, and a little from the draw.
    let script = || {
        Probe::scripted(|at, token| {
            let mut logits = one_hot((token.wrapping_mul(31) + at as u32) % 300);
            logits[(at * 7) % 300] = 30.0;
            Ok(logits)
        })
    };
    let alone = |source: &Source, request: Request| {
        let (mut engine, _) = engine(source, script(), options());
        engine.submit(request).expect("a good request");
        drain(&mut engine, |_| {}).into_values().next().map(|a| a.tokens).unwrap_or_default()
    };
    for source in [Source::dense(512), Source::hybrid(512)] {
        // 16 pages: three sequences are let in, and then outgrow them.
        let tight = EngineOptions { sequences: 4, cached_tokens: Some(1024), ..options() };
        for run_ahead in [false, true] {
            let (mut engine, _) =
                engine(&source, script(), EngineOptions { run_ahead: Some(run_ahead), ..tight.clone() });
            let request = |i: u32| drawn(prompt(20 + i as usize, i), 480 - 10 * i as usize, u64::from(i));
            let ids: Vec<RequestId> = (0..4).map(|i| engine.submit(request(i)).expect("a good request")).collect();
            let mut most = 0;
            let answers = drain(&mut engine, |engine| most = most.max(load(engine).1));
            for (i, id) in ids.iter().enumerate() {
                let answer = &answers[&(*id, 0)];
                assert_eq!(answer.reason, Some(FinishReason::Length));
                assert_eq!(answer.tokens, alone(&source, request(i as u32)), "sequence {i}, ahead {run_ahead}");
                assert_eq!((answer.usage.prompt_tokens, answer.usage.cached_tokens), (20 + i, 0));
            }
            assert!(most > 1 && engine.stats().counters.preempted > 0, "{most} {:?}", engine.stats());
        }
    }
}

#[test]
fn higher_priorities_begin_first() {
    let source = Source::dense(512);
    let (mut engine, _) = engine(&source, Probe::says(4, &[1, 2], END), EngineOptions { sequences: 1, ..options() });
    let request = |i: u32, priority| Request { priority, eos: vec![END], ..drawn(prompt(4, i), 5, 1) };
    let order = [(1, 0), (2, -1), (3, 5), (4, 0)].map(|(i, p)| engine.submit(request(i, p)).expect("a good request"));
    let mut ended = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().expect("a good step") {
            if let Event::Finished { id, .. } = event {
                ended.push(id);
            }
        }
    }
    assert_eq!(ended, [order[2], order[0], order[3], order[1]]);
}

#[test]
fn what_does_not_share_leaves_nothing_behind() {
    let source = Source::hybrid(512);
    let (mut engine, _) = engine(&source, Probe::default(), options());
    let request = || Request { cache: false, ..drawn(prompt(150, 1), 4, 1) };
    for _ in 0..2 {
        engine.submit(request()).expect("a good request");
        let answers = drain(&mut engine, |_| {});
        assert!(answers.values().all(|a| a.usage.cached_tokens == 0));
        let stats = engine.stats();
        assert_eq!((stats.pages.cached, stats.slots.cached, stats.pages.running, stats.slots.running), (0, 0, 0, 0));
    }
}

#[test]
fn long_prompts_save_states_on_their_way_and_thin_them_out() {
    let source = Source::hybrid(8192);
    let wide = EngineOptions { context: 8192, cached_tokens: Some(8192), checkpoints: 16, ..options() };
    let (mut engine, _) =
        engine(&source, Probe::scripted(|_, _| Ok(one_hot(9))), EngineOptions { sequences: 1, ..wide });
    let text: Vec<u32> = (0..7000u32).map(|i| i * 7919 % VOCAB as u32).collect();
    engine.submit(Request { checkpoints: vec![6990], ..drawn(text.clone(), 2, 1) }).expect("a good request");
    drain(&mut engine, |_| {});
    // 2048, 4096 and 6144 on the way, 6990 as asked, and the end.
    assert_eq!(engine.stats().slots.cached, 5);
    let mut branch = text[..5000].to_vec();
    branch.extend([300; 50]);
    engine.submit(drawn(branch, 1, 1)).expect("a good request");
    assert!(drain(&mut engine, |_| {}).values().all(|a| a.usage.cached_tokens == 4096));
}

#[test]
fn a_failing_answer_takes_its_siblings_with_it_and_nobody_else() {
    let probe =
        Probe::scripted(|at, token| Ok(if at == 12 && token != 9 { vec![f32::NAN; VOCAB] } else { one_hot(9) }));
    let (mut engine, _) = engine(&Source::hybrid(512), probe, options());
    let bad = engine.submit(Request { choices: 3, ..drawn(prompt(13, 1), 9, 1) }).expect("a good request");
    let good = engine.submit(drawn(prompt(3, 2), 15, 2)).expect("a good request");
    let mut events = Vec::new();
    while !engine.is_idle() {
        events.extend(engine.step().expect("a good step"));
    }
    let of = |id| events.iter().filter(move |e| e.id() == id);
    assert_eq!(of(bad).filter(|e| matches!(e, Event::Failed { error: EngineError::NonFinite { .. }, .. })).count(), 1);
    assert!(!of(bad).any(|e| matches!(e, Event::Finished { .. })));
    assert_eq!(of(good).filter(|e| matches!(e, Event::Token { .. })).count(), 15);
    assert_eq!(engine.step(), Ok(vec![]), "nothing leaked");
}
