//! Scores of given tokens: the same in any chunks, context apart, faults by position.

mod common;

use common::{Probe, Source, VOCAB, engine, one_hot, prompt, unused};
use onebit_engine::{Engine, EngineError, EngineOptions, Request};
use onebit_ops::KvFormat;

fn options() -> EngineOptions {
    EngineOptions { kv: KvFormat::F32, ..EngineOptions::new(256) }
}

/// Log-probability of every token after the first `from + 1`, read in chunks of `rows`.
fn scores(engine: &mut Engine, tokens: &[u32], from: usize, rows: usize) -> Vec<f64> {
    let mut scorer = engine.scorer(rows).expect("an idle engine");
    scorer.begin(tokens, from).expect("good tokens");
    let mut out = Vec::new();
    while let Some(rows) = scorer.next_rows().expect("a good step") {
        for (position, row) in rows.iter() {
            assert_eq!(position, from + out.len());
            out.push(tokens.get(position + 1).map_or(0.0, |next| row.log_prob(*next)));
        }
    }
    out
}

#[test]
fn chunks_and_context_do_not_change_a_score() {
    for source in [Source::dense(256), Source::hybrid(256)] {
        let (mut engine, probe) = engine(&source, Probe::default(), options());
        let (free, text) = (unused(&engine), prompt(100, 3));
        let whole = scores(&mut engine, &text, 0, 256);
        assert_eq!(whole.len(), 100);
        assert!(whole[..99].iter().all(|p| *p < 0.0), "{whole:?}");
        for rows in [1, 7, 64] {
            assert_eq!(scores(&mut engine, &text, 0, rows), whole, "chunks of {rows}");
        }
        probe.take_steps();
        assert_eq!(scores(&mut engine, &text, 70, 32), whole[70..]);
        let asked: Vec<usize> = probe.take_steps().iter().map(|step| step.logit_rows.len()).collect();
        assert_eq!(asked, [0, 0, 26, 4], "context rows give no logits");
        assert_eq!(unused(&engine), free);
    }
}

#[test]
fn a_scorer_takes_one_sequence_after_another() {
    let (mut engine, _) = engine(&Source::hybrid(256), Probe::default(), options());
    let (first, second) = (prompt(40, 1), prompt(50, 2));
    let alone = scores(&mut engine, &second, 0, 16);
    let free = unused(&engine);
    let mut scorer = engine.scorer(16).expect("an idle engine");
    scorer.begin(&first, 0).expect("good tokens");
    scorer.next_rows().expect("a good step");
    // The first is left in the middle.
    scorer.begin(&second, 0).expect("good tokens");
    let row = scorer.next_rows().expect("a good step").expect("rows");
    assert_eq!(row.iter().next().expect("a row").1.log_prob(second[1]), alone[0]);
    drop(scorer);
    assert_eq!(unused(&engine), free);
}

#[test]
fn a_logit_that_is_no_number_is_named_by_its_position() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let script = move |at: usize, _: u32| {
            let mut logits = one_hot(0);
            if at >= 21 {
                logits[5] = bad;
            }
            Ok(logits)
        };
        let (mut engine, _) = engine(&Source::dense(256), Probe::scripted(script), options());
        let mut scorer = engine.scorer(8).expect("an idle engine");
        scorer.begin(&prompt(40, 1), 0).expect("good tokens");
        let error = (0..3).find_map(|_| scorer.next_rows().err()).expect("a fault");
        assert!(matches!(error, EngineError::NonFinite { position: 21, .. }), "{error:?}");
        assert!(error.to_string().contains("after position 21"), "{error}");
    }
}

#[test]
fn what_cannot_be_scored() {
    let (mut engine, _) = engine(&Source::dense(256), Probe::default(), options());
    assert!(matches!(engine.scorer(0).err(), Some(EngineError::Parameter { name: "rows", .. })));
    let mut scorer = engine.scorer(8).expect("an idle engine");
    assert_eq!(scorer.begin(&[], 0), Err(EngineError::EmptyPrompt));
    assert_eq!(scorer.begin(&[0; 257], 0), Err(EngineError::TooManyTokens { tokens: 257, context: 256 }));
    let unknown = EngineError::UnknownToken { name: "tokens", token: VOCAB as u32, vocab: VOCAB };
    assert_eq!(scorer.begin(&[VOCAB as u32], 0), Err(unknown));
    drop(scorer);
    engine.submit(Request::new(vec![1])).expect("a good request");
    assert!(matches!(engine.scorer(8).err(), Some(EngineError::Busy { running: 1 })));
}
