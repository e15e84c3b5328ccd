//! What a request may ask for beside tokens: probabilities, biases, penalties, a form.

mod common;

use common::{END, END_THINK, Probe, Source, THINK, VOCAB, byte_tokenizer, bytes, engine, one_hot, prompt};
use onebit_engine::{
    Constraint, Engine, EngineError, EngineOptions, Event, FinishReason, Request, SamplingParams, Thinking,
};
use onebit_text::{ConstraintFactory, Grammar};
use std::sync::Arc;

fn greedy(tokens: Vec<u32>) -> Request {
    Request { sampling: SamplingParams::greedy(), eos: vec![END], max_tokens: Some(40), ..Request::new(tokens) }
}

fn scripted(script: impl Fn(usize, u32) -> Vec<f32> + Send + Sync + 'static) -> Engine {
    let probe = Probe::scripted(move |at, token| Ok(script(at, token)));
    let options = EngineOptions { run_ahead: Some(true), sequences: 4, ..EngineOptions::new(256) };
    engine(&Source::dense(256), probe, options).0
}

fn run(engine: &mut Engine, request: Request) -> Vec<Event> {
    engine.submit(request).expect("a good request");
    let mut events = Vec::new();
    while !engine.is_idle() {
        events.extend(engine.step().expect("a good step"));
    }
    assert_eq!(engine.step(), Ok(vec![]), "nothing leaked");
    events
}

fn tokens(events: &[Event]) -> Vec<u32> {
    events.iter().filter_map(|e| if let Event::Token { token, .. } = e { Some(*token) } else { None }).collect()
}

fn reason(events: &[Event]) -> Option<FinishReason> {
    events.iter().find_map(|e| if let Event::Finished { reason, .. } = e { Some(*reason) } else { None })
}

#[test]
fn probabilities_are_those_of_the_model() {
    let odds = [0.5f32, 0.25, 0.125, 0.125];
    let logits = move |_: usize, _: u32| {
        let mut logits = vec![-1e30; VOCAB];
        odds.iter().enumerate().for_each(|(i, p)| logits[10 + i] = p.ln() + 3.0);
        logits
    };
    for count in [0, 1, 3, 20] {
        let mut engine = scripted(logits);
        // Bias and temperature change what is chosen, not what is reported.
        let sampling = SamplingParams { logit_bias: vec![(12, 50.0)], ..SamplingParams::greedy() };
        let request = Request { logprobs: Some(count), sampling, max_tokens: Some(3), ..greedy(prompt(3, 1)) };
        for event in run(&mut engine, request) {
            let Event::Token { token, logprobs, .. } = event else { continue };
            let logprobs = logprobs.expect("they were asked for");
            assert_eq!((token, logprobs.top.len()), (12, count));
            assert!((logprobs.chosen - 0.125f32.ln()).abs() < 1e-6);
            let wanted = [(10, 0.5f32), (11, 0.25), (12, 0.125), (13, 0.125)];
            for ((token, logprob), (wanted, p)) in logprobs.top.iter().zip(wanted) {
                assert!(*token == wanted && (logprob - p.ln()).abs() < 1e-6, "{logprobs:?}");
            }
            assert!(logprobs.top.iter().map(|(_, p)| p.exp()).sum::<f32>() <= 1.0 + 1e-6);
        }
    }
    let mut engine = scripted(logits);
    let error = engine.submit(Request { logprobs: Some(21), ..greedy(vec![1]) }).expect_err("too many");
    assert!(matches!(error, EngineError::Parameter { name: "logprobs", .. }), "{error}");
    let events = run(&mut engine, greedy(prompt(3, 1)));
    assert!(events.iter().all(|e| !matches!(e, Event::Token { logprobs: Some(_), .. })), "only where asked for");
}

#[test]
fn biases_and_penalties_reach_the_choice() {
    let flat = |_: usize, _: u32| {
        let mut logits = vec![0.0; VOCAB];
        (20..26).for_each(|t| logits[t] = 5.0);
        logits
    };
    let with = |sampling: SamplingParams| {
        let request = Request { sampling, max_tokens: Some(8), ..greedy(vec![1, 20]) };
        tokens(&run(&mut scripted(flat), request))
    };
    let base = SamplingParams::greedy;
    assert_eq!(with(base()), [20; 8]);
    assert_eq!(with(SamplingParams { logit_bias: vec![(30, 6.0), (20, -100.0)], ..base() }), [30; 8]);
    // The prompt holds 20; each token that was said loses to one that was not.
    let repetition = with(SamplingParams { repetition_penalty: 1.5, ..base() });
    assert_eq!(repetition[..5], [21, 22, 23, 24, 25]);
    let presence = with(SamplingParams { presence_penalty: 1.0, ..base() });
    assert_eq!(presence, [20, 21, 22, 23, 24, 25, 20, 20]);
    let frequency = with(SamplingParams { frequency_penalty: 1.0, ..base() });
    assert_eq!(frequency, [20, 21, 22, 23, 24, 25, 20, 21]);
}

/// A model that would say `x` for ever, and ends where it is let.
fn stubborn() -> Engine {
    scripted(|_, _| {
        let mut logits = one_hot(u32::from(b'x'));
        logits[END as usize] = 20.0;
        logits
    })
}

fn form(grammar: Grammar) -> Option<Box<dyn Constraint>> {
    let factory = ConstraintFactory::new(&byte_tokenizer(), VOCAB).expect("a good vocabulary");
    Some(Box::new(factory.compile(&grammar).expect("a good grammar")))
}

#[test]
fn an_answer_keeps_to_its_form() {
    let grammar = Grammar::Regex("[ab]{3}x?".to_owned());
    let events = run(&mut stubborn(), Request { constraint: form(grammar.clone()), ..greedy(bytes("p")) });
    assert_eq!((tokens(&events), reason(&events)), (bytes("aaax"), Some(FinishReason::Complete)));
    // Where it may end, the end token is a choice like others.
    let probe = || scripted(|_, _| one_hot(END));
    let events = run(&mut probe(), Request { constraint: form(grammar), ..greedy(bytes("p")) });
    assert_eq!((tokens(&events), reason(&events)), (bytes("aaa"), Some(FinishReason::Stop(END))));
    let schema = r#"{"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": false}"#;
    // White space is allowed as well, but nobody wants it.
    let sampling =
        SamplingParams { logit_bias: [9, 10, 13, 32].map(|t| (t, -9.0)).to_vec(), ..SamplingParams::greedy() };
    let request = Request { constraint: form(Grammar::JsonSchema(schema.to_owned())), sampling, ..greedy(bytes("p")) };
    let text = byte_tokenizer().decode(&tokens(&run(&mut stubborn(), request)));
    assert!([r#"{"n":1}"#, r#"{"n":22}"#].contains(&text.as_str()), "{text}");
}

#[test]
fn several_answers_keep_to_a_form_each() {
    let sampling = SamplingParams { temperature: 5.0, seed: Some(3), ..SamplingParams::default() };
    let grammar = Grammar::Regex("[a-z]{4}".to_owned());
    let request = Request { constraint: form(grammar), choices: 3, sampling, ..greedy(bytes("p")) };
    let events = run(&mut scripted(|_, _| vec![0.0; VOCAB]), request);
    let answer = |n: usize| -> Vec<u32> {
        let of = |e: &Event| {
            if let Event::Token { choice, token, .. } = e { (*choice == n).then_some(*token) } else { None }
        };
        events.iter().filter_map(of).collect()
    };
    let answers = [answer(0), answer(1), answer(2)];
    assert!(answers.iter().all(|a| a.len() == 4 && a.iter().all(|t| (97..123).contains(t))), "{answers:?}");
    assert!(answers[0] != answers[1] && answers[1] != answers[2]);
}

#[test]
fn reasoning_is_free_and_the_answer_after_it_is_not() {
    let tokenizer = byte_tokenizer();
    let thinking = |open, budget| Thinking::of(&tokenizer, open, budget).expect("the markers can be encoded");
    let script = |start: usize| {
        // Thinks `hm`, closes the block, then would go on with `x`.
        move |at: usize, _: u32| {
            let said = [u32::from(b'h'), u32::from(b'm'), END_THINK];
            let mut logits = one_hot(said.get(at - start).copied().unwrap_or(u32::from(b'x')));
            logits[END as usize] = 20.0;
            logits
        }
    };
    let grammar = || form(Grammar::Regex("(yes|no)".to_owned()));
    let text = |events: &[Event]| tokenizer.decode(&tokens(events));
    let request = Request { thinking: thinking(true, None), constraint: grammar(), ..greedy(bytes("p")) };
    let events = run(&mut scripted(script(0)), request);
    assert_eq!((text(&events), reason(&events)), ("hm</think>\n\nno".to_owned(), Some(FinishReason::Complete)));
    // Closed by the budget.
    let request = Request { thinking: thinking(true, Some(1)), constraint: grammar(), ..greedy(bytes("p")) };
    assert_eq!(text(&run(&mut scripted(script(0)), request)), "h\n</think>\n\nno");
    // Opened by the model itself, or not at all.
    let opens = move |at: usize, token: u32| if at == 0 { one_hot(THINK) } else { script(1)(at, token) };
    let request = || Request { thinking: thinking(false, None), constraint: grammar(), ..greedy(bytes("p")) };
    assert_eq!(text(&run(&mut scripted(opens), request())), "<think>hm</think>\n\nno");
    assert_eq!(text(&run(&mut scripted(|_, _| one_hot(7)), request())), "no");
    // An end inside the block ends the block: the form is still owed.
    let gives_up = move |at: usize, _: u32| one_hot(if at == 0 { u32::from(b'h') } else { END });
    let request = Request { thinking: thinking(true, None), constraint: grammar(), ..greedy(bytes("p")) };
    let events = run(&mut scripted(gives_up), request);
    assert_eq!((text(&events), reason(&events)), ("h\n</think>\n\nno".to_owned(), Some(FinishReason::Complete)));
    // Without a form nothing is owed.
    let request = Request { thinking: thinking(true, None), ..greedy(bytes("p")) };
    let events = run(&mut scripted(gives_up), request);
    assert_eq!((text(&events), reason(&events)), ("h".to_owned(), Some(FinishReason::Stop(END))));
}

/// Fails after some tokens, or allows nothing.
struct Broken {
    left: usize,
    words: usize,
}

impl Constraint for Broken {
    fn mask(&mut self) -> Result<Arc<[u32]>, String> {
        Ok(vec![if self.left == 0 { 0 } else { u32::MAX }; self.words].into())
    }
    fn accept(&mut self, _: u32) -> Result<(), String> {
        self.left -= 1;
        Ok(())
    }
    fn is_complete(&self) -> bool {
        false
    }
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Broken { ..*self })
    }
}

#[test]
fn a_form_that_cannot_be_kept_is_an_error_and_not_a_free_answer() {
    let mut engine = scripted(|_, _| one_hot(9));
    let broken = |left, words| Request { constraint: Some(Box::new(Broken { left, words })), ..greedy(vec![1]) };
    let words = VOCAB.div_ceil(32);
    for (request, why) in
        [(broken(0, words), "no token can follow"), (broken(5, 3), "a mask of 3 words for 320 tokens")]
    {
        let error = engine.submit(request).expect_err(why).to_string();
        assert_eq!(error, format!("the constraint cannot be kept: {why}"));
    }
    assert!(engine.is_idle());
    let events = run(&mut engine, broken(3, words));
    assert!(matches!(events.last(), Some(Event::Failed { error: EngineError::Constraint(_), .. })), "{events:?}");
}
