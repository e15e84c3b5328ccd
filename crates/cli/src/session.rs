//! A model ready to answer: files found, memory checked, weights on the device.

use crate::args::RunOptions;
use crate::builtin::BuiltIn;
use crate::resolve::Located;
use crate::side::TextSide;
use crate::{advice, backends, load, resolve, terminal};
use anyhow::{Context, Result};
use onebit_engine::{Engine, EngineOptions, MemoryPlan};
use onebit_models::outline;
use onebit_ops::Backend;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A model ready to answer.
pub struct Session {
    /// The name to show.
    pub name: String,
    /// It.
    pub engine: Engine,
    /// Its text side.
    pub text: TextSide,
    /// What it takes.
    pub plan: MemoryPlan,
    /// Device and kernels in words.
    pub device: String,
    /// Time from the start to the first token being possible.
    pub load_time: Duration,
}

/// What a command wants beside the user's options.
#[derive(Debug, Clone, Copy)]
pub struct Wishes {
    /// States of recurrent models to save for later prompts.
    pub checkpoints: usize,
    /// Nothing on stderr but errors.
    pub quiet: bool,
}

impl Session {
    /// Finds, checks and loads a model; `None` asks for the built-in one.
    ///
    /// # Errors
    /// Whatever keeps it from running, before anything large is read where the headers already tell.
    pub fn open(model: Option<&str>, options: &RunOptions, wishes: Wishes) -> Result<Session> {
        let (backend, located) = locate(model, options, wishes.quiet)?;
        Self::start(backend, located, options, wishes)
    }

    /// Checks and loads files that were found.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn start(backend: Arc<dyn Backend>, located: Located, options: &RunOptions, wishes: Wishes) -> Result<Session> {
        let started = Instant::now();
        let path = || located.path.display().to_string();
        let source = load::open(&located.path, &options.files())?;
        TextSide::require(&source)?;
        let (facts, parts) = outline(&source).with_context(path)?;

        let activations = options.activations.resolve(backend.caps().default_activations);
        let wanted = EngineOptions {
            kv: options.kv_quant.resolve(activations),
            activations: Some(activations),
            checkpoints: wishes.checkpoints,
            ..EngineOptions::new(facts.context)
        };
        let free = backends::free_memory(&*backend)?;
        let plan = MemoryPlan::fit(&facts, parts.bytes(), &wanted, options.ctx, free)
            .map_err(|error| advice::too_large(error, &located.name, facts.parameters, &*backend))?;
        if plan.context < facts.context && options.ctx.is_none() && !wishes.quiet {
            terminal::say(&format!(
                "note: the context is {} of the model's {} tokens; --ctx N sets another",
                terminal::count(plan.context as u64),
                terminal::count(facts.context as u64)
            ));
        }
        // A large vocabulary takes as long as some of the weights.
        let (text, model) = thread::scope(|scope| {
            let text = scope.spawn(|| TextSide::read(&source));
            let model = load::model(&source, &*backend, options, &path(), wishes.quiet);
            (text.join().unwrap_or_else(|panic| resume_unwind(panic)), model)
        });
        let (text, model) = (text?, model?);
        let device = backend.caps().device.clone();
        let engine = Engine::new(model, backend, EngineOptions { context: plan.context, ..wanted })?;
        Ok(Session { name: located.name, engine, text, plan, device, load_time: started.elapsed() })
    }
}

/// Opens a backend and finds the model's files; `None` asks for the built-in model. The choice between several files of
/// a repository is printed unless `quiet`.
///
/// # Errors
/// Those of [`resolve::locate`] and [`backends::open`].
pub fn locate(model: Option<&str>, options: &RunOptions, quiet: bool) -> Result<(Arc<dyn Backend>, Located)> {
    let backend = backends::open(options, quiet)?;
    let located = match model {
        Some(word) => resolve::locate(word, &*backend)?,
        None => BuiltIn::TEXT.by_default(),
    };
    if let Some(choice) = located.choice.as_ref().filter(|_| !quiet) {
        terminal::say(&format!("note: {choice}"));
    }
    Ok((backend, located))
}
