//! Whole small networks: every op in its place, on every backend, against the reference and against answers that were
//! recorded when the reference agreed with the published implementations.

use super::Findings;
use super::random::{Network, VOCAB};
use crate::args::{ActivationsName, KvQuant, RunOptions};
use crate::backends::Candidate;
use anyhow::{Result, anyhow};
use onebit_engine::{Engine, EngineOptions, PromptOutputs, Request, SamplingParams};
use onebit_models::{LoadOptions, Model};
use onebit_ops::reference::Reference;
use onebit_ops::{Activations, Backend, KvFormat};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Tokens of the test prompt: more than one page, so that the cache is paged.
const PROMPT: usize = 70;
/// Tokens of the known answers.
const ANSWER: usize = 8;

/// The networks: hybrid or dense, bits, and the greedy continuation of the test prompt.
const KNOWN: [(&str, bool, u8, [u32; ANSWER]); 4] = [
    ("dense, 1 bit", false, 1, [154, 97, 255, 96, 238, 296, 102, 102]),
    ("dense, 2 bits", false, 2, [297, 297, 297, 297, 297, 297, 275, 275]),
    ("hybrid, 1 bit", true, 1, [30, 190, 95, 32, 120, 276, 219, 239]),
    ("hybrid, 2 bits", true, 2, [75, 193, 31, 24, 83, 72, 220, 284]),
];

/// Largest relative error (root mean square over all logits) with f32 activations.
const F32_BOUND: f64 = 2e-4;
/// The same with integer activations or cached keys and values of fewer bits: both sides round alike, but a sum that lies on a rounding boundary may fall to
/// either side, and later layers carry that on.
const INT_BOUND: f64 = 5e-2;

/// Checks all backends on all networks.
pub(super) fn check(candidates: &[Candidate], options: &RunOptions, findings: &mut Findings) {
    let kinds = match options.activations {
        ActivationsName::Auto => vec![Activations::F32, Activations::I8G128, Activations::I9G128],
        asked => vec![asked.resolve(Activations::F32)],
    };
    let kv = options.kv_quant.resolve(Activations::F32);
    findings.heading("Small networks");
    for (name, hybrid, bits, known) in KNOWN {
        let network = Network::new(hybrid, bits);
        let mut reference = Vec::new();
        for &kind in &kinds {
            match logits(&network, Arc::new(Reference::new()), kind, kv) {
                Ok(logits) => reference.push((kind, logits)),
                Err(error) => findings.fail(format!("reference: {name}, {kind}: {error:#}")),
            }
        }
        for Candidate { name: on, backend } in candidates {
            let label = format!("{on}: {name}, known answer");
            match greedy(&network, backend.clone()) {
                Ok(ids) => findings.check(ids == known, &label, format!("{ids:?}")),
                Err(error) => findings.fail(format!("{label}: {error:#}")),
            }
        }
        for candidate in candidates.iter().filter(|c| c.name != "reference") {
            for (kind, wanted) in reference.iter().filter(|(k, _)| candidate.backend.caps().activations.contains(k)) {
                let label = format!("{}: {name}, {kind}", candidate.name);
                let exact = *kind == Activations::F32 && options.kv_quant == KvQuant::None;
                let bound = if exact { F32_BOUND } else { INT_BOUND };
                match logits(&network, candidate.backend.clone(), *kind, kv) {
                    Ok(got) => {
                        let error = distance(wanted, &got);
                        findings.check(
                            error <= bound,
                            &label,
                            format!("relative error {error:.1e}, bound {bound:.0e}"),
                        );
                    }
                    Err(error) => findings.fail(format!("{label}: {error:#}")),
                }
            }
        }
    }
}

fn prompt() -> Vec<u32> {
    (0..PROMPT).map(|i| ((i * i * 7 + 13 * i + 5) % VOCAB) as u32).collect()
}

fn engine(network: &Network, backend: Arc<dyn Backend>, kind: Activations, kv: KvFormat) -> Result<Engine> {
    let model = Model::load(network, &*backend, LoadOptions::default(), &mut |_| {})?;
    let options = EngineOptions { kv, activations: Some(kind), ..EngineOptions::new(128) };
    Ok(Engine::new(Arc::new(model), backend, options)?)
}

/// Logits of every row of the test prompt.
fn logits(network: &Network, backend: Arc<dyn Backend>, kind: Activations, kv: KvFormat) -> Result<Vec<f32>> {
    let mut engine = engine(network, backend, kind, kv)?;
    let mut out = Vec::new();
    engine.read_prompt(&prompt(), &PromptOutputs::default(), |mut chunk| {
        out.extend(chunk.values.remove("logits").unwrap_or_default());
        ControlFlow::Continue(())
    })?;
    if out.len() == PROMPT * VOCAB { Ok(out) } else { Err(anyhow!("{} logits came", out.len())) }
}

/// Greedy continuation of the test prompt.
fn greedy(network: &Network, backend: Arc<dyn Backend>) -> Result<Vec<u32>> {
    let mut engine = engine(network, backend, Activations::F32, KvFormat::F32)?;
    let request = Request { sampling: SamplingParams::greedy(), max_tokens: Some(ANSWER), ..Request::new(prompt()) };
    let mut ids = Vec::new();
    engine.generate(request, |event| {
        if let onebit_engine::Event::Token { token, .. } = event {
            ids.push(*token);
        }
        ControlFlow::Continue(())
    })?;
    Ok(ids)
}

fn distance(wanted: &[f32], got: &[f32]) -> f64 {
    let pairs = wanted.iter().zip(got).map(|(w, g)| (f64::from(*w), f64::from(*g)));
    let (error, size) = pairs.fold((0.0, 0.0), |(e, s), (w, g)| (e + (w - g).powi(2), s + w * w));
    let distance = (error / f64::max(size, 1e-60)).sqrt();
    if distance.is_nan() || wanted.len() != got.len() { f64::INFINITY } else { distance }
}
