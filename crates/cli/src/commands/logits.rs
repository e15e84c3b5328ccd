//! `onebit logits`: every row's logits in a file, to be compared with another implementation's.

use crate::args::LogitsArgs;
use crate::{load, session, terminal};
use anyhow::{Context, Result};
use onebit_engine::{Engine, EngineOptions, PromptOutputs};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Runs the command.
///
/// # Errors
/// Whatever keeps the model from running, and a file that cannot be written.
pub fn run(args: &LogitsArgs) -> Result<()> {
    let (backend, located) = session::locate(args.model.name().as_deref(), &args.run, false)?;
    let source = load::open(&located.path, &args.run.files())?;
    let model = load::model(&source, &*backend, &args.run, &located.name, true)?;
    let layers = model.facts().layers;

    let activations = args.run.activations.resolve(backend.caps().default_activations);
    let options = EngineOptions {
        kv: args.run.kv_quant.resolve(activations),
        activations: Some(activations),
        prefill_rows: args.chunk,
        checkpoints: 0,
        ..EngineOptions::new(args.run.ctx.unwrap_or(args.tokens.len().max(2)))
    };
    let mut engine = Engine::new(model, backend, options)?;
    let outputs = match args.hidden {
        true => PromptOutputs { taps: (0..=layers).collect(), final_norm: true },
        false => PromptOutputs::default(),
    };
    let mut tensors: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    engine.read_prompt(&args.tokens, &outputs, |chunk| {
        for (name, values) in chunk.values {
            tensors.entry(name).or_default().extend(values.iter().flat_map(|v| v.to_le_bytes()));
        }
        ControlFlow::Continue(())
    })?;

    let rows = args.tokens.len();
    let views = tensors.iter().map(|(name, bytes)| {
        let shape = vec![rows, bytes.len() / 4 / rows];
        TensorView::new(Dtype::F32, shape, bytes).map(|view| (name.as_str(), view))
    });
    let views: Vec<_> = views.collect::<Result<_, _>>()?;
    let bytes = safetensors::serialize(views, None)?;
    std::fs::write(&args.out, bytes).with_context(|| args.out.display().to_string())?;
    terminal::say(&format!(
        "{}: {} for {rows} tokens",
        args.out.display(),
        tensors.into_keys().collect::<Vec<_>>().join(", ")
    ));
    Ok(())
}
