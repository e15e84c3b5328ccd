//! From words to models, loaded now or when they are first asked for.

use super::{layout, pictures, start};
use crate::args::{GenerateOptions, RunOptions, ServeArgs};
use crate::builtin::BuiltIn;
use crate::resolve::Located;
use crate::shape::Shape;
use crate::side::TextSide;
use crate::source::Source;
use crate::terminal::say;
use crate::{Usage, backends, image_model, image_shape, load, memory, resolve, sampling};
use anyhow::{Context, Result, anyhow, bail};
use onebit_engine::{Engine, EngineOptions, MemoryError, MemoryPlan, SamplingParams};
use onebit_models::{Facts, Model, Part, outline};
use onebit_ops::{Backend, FormatSupport};
use onebit_quant::Format;
use onebit_server::{Card, LoadError, Loaded, Loader, ModelEntry, ModelKind, ModelText};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// What loading a model takes beside its files.
#[derive(Clone)]
pub(super) struct Loading {
    pub(super) backend: Arc<dyn Backend>,
    /// The device as it was opened last; it may have been lost since.
    current: Arc<Mutex<Arc<dyn Backend>>>,
    pub(super) run: RunOptions,
    parallel: Option<usize>,
}

/// A model that is ready to be stepped.
pub(super) struct Opened {
    pub(super) engine: Engine,
    pub(super) text: ModelText,
    pub(super) plan: MemoryPlan,
    pub(super) facts: Facts,
}

/// All models that the user names. A single one is loaded here, so that what is wrong with it ends the program; of
/// several, one that cannot run is listed with the reason.
pub(super) fn entries(args: &ServeArgs) -> Result<Vec<ModelEntry>> {
    let backend = backends::open(&args.run, false)?;
    let loading = Loading {
        current: Arc::new(Mutex::new(backend.clone())),
        backend,
        run: args.run.clone(),
        parallel: args.parallel,
    };
    if let Some(shape) = &args.shape {
        return Ok(vec![of_shape(shape, &loading)?]);
    }
    let mut words = args.models.clone();
    words.extend(args.model.clone());
    if words.is_empty() {
        words.extend(std::env::var("ONEBIT_MODEL").ok().filter(|name| !name.is_empty()));
    }
    match words.as_slice() {
        [] => Ok(vec![now(BuiltIn::TEXT.by_default(), &loading)?]),
        [one] => Ok(vec![now(resolve::locate_any(one, &*loading.backend)?, &loading)?]),
        several => Ok(several.iter().map(|word| later(word, &loading)).collect()),
    }
}

/// A model that is loaded now.
fn now(located: Located, loading: &Loading) -> Result<ModelEntry> {
    if let Some(choice) = &located.choice {
        say(&format!("note: {choice}"));
    }
    if image_model::is_one(&located.path) {
        return pictures::now(located, loading);
    }
    let source = load::open(&located.path, &loading.run.files())?;
    let card = card(&source, &located.path)?;
    let mut opened = open(&located, loading, false)?;
    start::say_about(&located.name, &loading.backend.caps().device, &mut opened)?;
    let loaded = loaded(opened)?;
    Ok(ModelEntry::loaded(located.name.clone(), card, loaded, loader(located, loading)))
}

/// A model that is loaded when it is first asked for. Its headers are read now.
fn later(word: &str, loading: &Loading) -> ModelEntry {
    let checked = resolve::locate_any(word, &*loading.backend).and_then(|located| {
        if image_model::is_one(&located.path) {
            return pictures::later(located, loading);
        }
        let source = load::open(&located.path, &loading.run.files())?;
        TextSide::require(&source)?;
        let card = card(&source, &located.path)?;
        let (_, parts) = outline(&source).with_context(|| located.path.display().to_string())?;
        covered(parts.parts.iter(), &*loading.backend)?;
        let context = card.trained_context;
        say(&format!("{}: is loaded when it is first asked for (made for {context} tokens)", located.name));
        Ok(ModelEntry::new(located.name.clone(), card, loader(located, loading)))
    });
    match checked {
        Ok(entry) => entry,
        Err(error) => {
            let reason = format!("{error:#}");
            say(&format!("warning: {word} is unavailable: {reason}"));
            ModelEntry::unavailable(word, Card::default(), reason)
        }
    }
}

/// Fails for the first matrix that has no kernel on the backend.
fn covered<'a>(parts: impl Iterator<Item = &'a Part>, backend: &dyn Backend) -> Result<()> {
    for part in parts {
        if let FormatSupport::Unsupported(advice) = backend.format_support(part.format) {
            bail!(
                "{} is stored as {}, which has no kernel on {}: {advice}",
                part.tensor,
                part.format,
                backend.caps().name
            );
        }
    }
    Ok(())
}

impl Loading {
    /// The same with a device that is there: one that went away is opened anew, once for all models.
    pub(super) fn with_device(&self) -> Result<Loading> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.is_lost() {
            *current = backends::open(&self.run, true)?;
            say(&format!("note: the device was lost; {} is opened anew", current.caps().device));
        }
        Ok(Loading { backend: current.clone(), ..self.clone() })
    }
}

fn loader(located: Located, loading: &Loading) -> Loader {
    let loading = loading.clone();
    Box::new(move || {
        let sentence = |error: &anyhow::Error| format!("{error:#}");
        let loading = loading.with_device().map_err(|error| LoadError::Failed(sentence(&error)))?;
        let opened = open(&located, &loading, true).map_err(|error| match error.downcast_ref::<MemoryError>() {
            Some(MemoryError::DoesNotFit { .. } | MemoryError::ContextDoesNotFit { .. }) => {
                LoadError::NoRoom(sentence(&error))
            }
            _ => LoadError::Failed(sentence(&error)),
        })?;
        loaded(opened).map_err(|error| LoadError::Failed(sentence(&error)))
    })
}

fn open(located: &Located, loading: &Loading, quiet: bool) -> Result<Opened> {
    let path = || located.path.display().to_string();
    let source = load::open(&located.path, &loading.run.files())?;
    TextSide::require(&source)?;
    let (facts, parts) = outline(&source).with_context(path)?;
    covered(parts.parts.iter(), &*loading.backend).with_context(path)?;
    let (options, plan) = options(&facts, parts.bytes(), loading).with_context(|| located.name.clone())?;
    let text = text(TextSide::read(&source)?)?;
    let model = load::model(&source, &*loading.backend, &loading.run, &path(), quiet)?;
    finish(model, text, options, plan, loading)
}

fn options(facts: &Facts, weights: u64, loading: &Loading) -> Result<(EngineOptions, MemoryPlan), MemoryError> {
    let activations = loading.run.activations.resolve(loading.backend.caps().default_activations);
    let base = EngineOptions {
        kv: loading.run.kv_quant.resolve(activations),
        activations: Some(activations),
        ..EngineOptions::new(facts.context)
    };
    layout::layout(facts, weights, &base, loading.run.ctx, loading.parallel, memory::free())
}

fn finish(
    model: Arc<Model>,
    text: ModelText,
    options: EngineOptions,
    plan: MemoryPlan,
    loading: &Loading,
) -> Result<Opened> {
    let facts = model.facts().clone();
    let engine = Engine::new(model, Arc::clone(&loading.backend), options)?;
    Ok(Opened { engine, text, plan, facts })
}

fn loaded(opened: Opened) -> Result<Loaded> {
    let Opened { engine, text, plan, facts } = opened;
    Ok(Loaded::new(move || engine, text, plan.context, facts.vocab)?)
}

fn text(side: TextSide) -> Result<ModelText> {
    let nothing = GenerateOptions::default();
    let sampling = SamplingParams { seed: None, ..sampling::merge(&nothing, &side.defaults)? };
    Ok(ModelText { tokenizer: side.tokenizer, template: side.template, sampling, eos: side.eos })
}

fn card(source: &Source, path: &Path) -> Result<Card> {
    let (facts, parts) = outline(source).with_context(|| path.display().to_string())?;
    Ok(card_of(&facts, parts.parts.iter(), parts.bytes(), path.display().to_string()))
}

fn card_of<'a>(facts: &Facts, parts: impl Iterator<Item = &'a Part>, bytes: u64, path: String) -> Card {
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for part in parts {
        *sizes.entry(format_name(part.format)).or_default() += part.rows * part.cols;
    }
    let most = sizes.into_iter().max_by_key(|(_, size)| *size).map(|(name, _)| name);
    Card {
        kind: ModelKind::Text,
        architecture: facts.architecture.to_owned(),
        parameters: facts.parameters,
        bytes,
        format: most.unwrap_or_default(),
        path,
        trained_context: facts.context,
    }
}

fn format_name(format: Format) -> String {
    format.to_string()
}

/// Random weights with the built-in model's vocabulary: their text is noise anyway.
fn of_shape(name: &str, loading: &Loading) -> Result<ModelEntry> {
    if image_shape::NAMES.contains(&name.to_ascii_lowercase().as_str()) {
        let message = format!(
            "{name} is a shape for pictures, which `onebit bench --shape {name}` measures; serve takes those of text"
        );
        return Err(anyhow!(Usage(message)));
    }
    let shape = Shape::new(name).map_err(|e| anyhow!(Usage(e.to_string())))?;
    let (facts, parts) = outline(&shape)?;
    let card = card_of(&facts, parts.parts.iter(), parts.bytes(), String::new());
    let (options, plan) = options(&facts, parts.bytes(), loading)?;
    let built_in = load::open(&BuiltIn::TEXT.located().path, &loading.run.files())?;
    let side = text(TextSide::read(&built_in)?)?;
    // An end token that comes by chance would cut the load short.
    let side = ModelText { eos: Vec::new(), ..side };
    let model = load::weights(&shape, &*loading.backend, &loading.run, None, name, false)?;
    let mut opened = finish(model, side, options, plan, loading)?;
    start::say_about(name, &loading.backend.caps().device, &mut opened)?;
    let reason = format!("the engine of {name} has failed; start the server anew");
    let loader: Loader = Box::new(move || Err(LoadError::Failed(reason.clone())));
    Ok(ModelEntry::loaded(name, card, loaded(opened)?, loader))
}
