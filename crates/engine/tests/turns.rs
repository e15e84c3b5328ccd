//! A conversation of ten turns: each turn reads what differs from the one before, and nothing else.

mod common;

use common::{END, END_THINK, Probe, Source, byte_tokenizer, bytes, engine, one_hot};
use onebit_engine::{EngineOptions, Event, Request, SamplingParams, Thinking};
use onebit_text::{ChatTemplate, Message, RenderOptions};
use std::sync::{Arc, Mutex};

fn template() -> ChatTemplate {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/chat/think_tools.jinja");
    let source = std::fs::read_to_string(path).expect("testdata is there");
    ChatTemplate::from_source(&source, "think_tools.jinja").expect("a good template")
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Length of the prompt under way, and what the model answers.
type Script = Arc<Mutex<(usize, Vec<u32>)>>;

fn probe(script: &Script) -> Probe {
    let script = script.clone();
    Probe::scripted(move |at, _| {
        let script = script.lock().expect("one thread");
        let (prompt, answer) = &*script;
        Ok(one_hot((at + 1).checked_sub(*prompt).and_then(|i| answer.get(i)).copied().unwrap_or(END)))
    })
}

#[test]
fn each_turn_reads_only_what_differs() {
    let (tokenizer, template) = (byte_tokenizer(), template());
    for source in [Source::dense(4096), Source::hybrid(4096)] {
        for (thinks, run_ahead) in [(true, false), (false, false), (true, true), (false, true)] {
            let script = Script::default();
            let options = EngineOptions {
                checkpoints: 2,
                prefill_rows: Some(128),
                run_ahead: Some(run_ahead),
                ..EngineOptions::new(4096)
            };
            let (mut engine, probe) = engine(&source, probe(&script), options);
            let options = RenderOptions { enable_thinking: Some(thinks), ..RenderOptions::default() };
            let mut messages = vec![Message::system("You are a patient gardener. ".repeat(4))];
            // The last turn as it was given to the model and came back.
            let mut before: Vec<u32> = Vec::new();
            for turn in 0..10 {
                messages.push(Message::user(format!("Question number {turn}, please.")));
                let prompt = template.render(&tokenizer, &messages, &[], &options).expect("a good conversation");
                let tokens = prompt.encode(&tokenizer).expect("text");
                let checkpoints = template.branches(&tokenizer, &messages, &[], &options, &tokens);
                let visible = format!("Answer {turn} is this.");
                let mut answer =
                    if thinks { [bytes("Hm, let me see.\n"), vec![END_THINK]].concat() } else { Vec::new() };
                answer.extend(bytes(&format!("{}{visible}", if thinks { "\n\n" } else { "" })));
                *script.lock().expect("one thread") = (tokens.len(), answer.clone());
                let request = Request {
                    sampling: SamplingParams::greedy(),
                    eos: vec![END],
                    thinking: Thinking::of(&tokenizer, thinks, None).expect("the markers can be encoded"),
                    checkpoints,
                    ..Request::new(tokens.clone())
                };
                engine.submit(request).expect("a good request");
                probe.take_steps();
                let mut usage = None;
                while !engine.is_idle() {
                    for event in engine.step().expect("a good step") {
                        match event {
                            Event::Finished { usage: u, .. } => usage = Some(u),
                            Event::Failed { error, .. } => panic!("{error}"),
                            _ => {}
                        }
                    }
                }
                let usage = usage.expect("an end");
                let shared = common_prefix(&before, &tokens);
                assert_eq!((usage.cached_tokens, usage.completion_tokens), (shared, answer.len()), "turn {turn}");
                let ahead = usize::from(run_ahead);
                assert_eq!(probe.rows_read(), tokens.len() - shared + answer.len() + ahead, "turn {turn}");
                if turn > 0 {
                    // The previous visible answer, the new message, and the words of the template around them.
                    assert!(tokens.len() - shared < 2 * visible.len() + 90, "{} of {}", shared, tokens.len());
                }
                before = [tokens, answer].concat();
                messages.push(Message::assistant(visible));
            }
        }
    }
}

#[test]
fn another_conversation_under_the_same_system_prompt_begins_behind_it() {
    let (tokenizer, template) = (byte_tokenizer(), template());
    for source in [Source::dense(4096), Source::hybrid(4096)] {
        let script = Script::default();
        let options = EngineOptions { checkpoints: 4, prefill_rows: Some(128), ..EngineOptions::new(4096) };
        let (mut engine, _) = engine(&source, probe(&script), options);
        let system = Message::system("You are a patient gardener. ".repeat(9));
        let mut cached = Vec::new();
        for question in ["What is a tree?", "How deep do roots go?", "9 seeds, how many trees?"] {
            let messages = [system.clone(), Message::user(question)];
            let prompt = template.render(&tokenizer, &messages, &[], &RenderOptions::default()).expect("good");
            let tokens = prompt.encode(&tokenizer).expect("text");
            let checkpoints = template.branches(&tokenizer, &messages, &[], &RenderOptions::default(), &tokens);
            assert_eq!(checkpoints.len(), 2);
            *script.lock().expect("one thread") = (tokens.len(), bytes("ok"));
            let request = Request { eos: vec![END], checkpoints: checkpoints.clone(), ..Request::new(tokens) };
            let done = engine.generate(request, |_| std::ops::ControlFlow::Continue(())).expect("an answer");
            cached.push((done.usage.cached_tokens, checkpoints[0]));
        }
        assert!(cached[0].0 == 0 && cached[1..].iter().all(|(cached, end)| cached == end), "{cached:?}");
    }
}
