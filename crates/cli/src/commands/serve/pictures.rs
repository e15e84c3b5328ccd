//! An image model behind HTTP.

use super::models::Loading;
use crate::args::{ImageRunOptions, image_size};
use crate::commands::image::file_of;
use crate::picture::recipe::{Noise, Recipe};
use crate::picture::studio::Studio;
use crate::resolve::Located;
use crate::terminal::{bytes, say};
use anyhow::Result;
use onebit_engine::NoiseRng;
use onebit_engine::image::{ImageError, ImageEvent, ImagePlan};
use onebit_models::image::{ImagePart, ImageSize, schedule::Shift};
use onebit_server::{
    Card, LoadError, Loaded, Loader, ModelEntry, ModelKind, Picture, PictureCheck, PictureDefaults, PictureError,
    PictureOrder, PictureSource, PictureStage,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// Where a request is silent.
fn defaults(studio: &Studio) -> PictureDefaults {
    let size = studio.usual_size();
    PictureDefaults { width: size.width(), height: size.height(), steps: 4, guidance: 1.0 }
}

/// An image model that is opened now. Its weights are read for the first picture.
pub(super) fn now(located: Located, loading: &Loading) -> Result<ModelEntry> {
    let studio = open(&located, loading)?;
    let (size, plan) = default_plan(&studio)?;
    say(&format!(
        "{} on {}: makes pictures; one of {size} takes about {} of memory at most",
        located.name,
        studio.device,
        bytes(plan.peak)
    ));
    let card = card(&studio, &located)?;
    let loaded = loaded(studio, &located, loading)?;
    Ok(ModelEntry::loaded(located.name.clone(), card, loaded, loader(located, loading)))
}

/// An image model that is opened when it is first asked for. Its headers are read now.
pub(super) fn later(located: Located, loading: &Loading) -> Result<ModelEntry> {
    let card = card(&open(&located, loading)?, &located)?;
    say(&format!("{}: makes pictures; is opened when it is first asked for", located.name));
    Ok(ModelEntry::new(located.name.clone(), card, loader(located, loading)))
}

fn open(located: &Located, loading: &Loading) -> Result<Studio> {
    let backend = Arc::clone(&loading.backend);
    let options = ImageRunOptions::of(&loading.run);
    let backend = if backend.caps().images { backend } else { crate::backends::open_for_images(&loading.run, false)? };
    Studio::open(located, backend, &options)
}

fn loader(located: Located, loading: &Loading) -> Loader {
    let loading = loading.clone();
    Box::new(move || {
        let made = loading.with_device().and_then(|loading| loaded(open(&located, &loading)?, &located, &loading));
        made.map_err(|error| LoadError::Failed(format!("{error:#}")))
    })
}

/// The source, and beside it the model opened once more to judge orders while a picture is made. Neither holds weights yet.
fn loaded(studio: Studio, located: &Located, loading: &Loading) -> Result<Loaded> {
    let judge = open(located, loading)?;
    let defaults = defaults(&studio);
    let check: PictureCheck = Arc::new(move |order| check(&judge, order));
    let (located, loading) = (located.clone(), loading.clone());
    Ok(Loaded::pictures(move || Easel { studio, located, loading }, check, defaults)?)
}

/// Of a picture that a request is silent about.
fn default_plan(studio: &Studio) -> Result<(ImageSize, ImagePlan)> {
    let PictureDefaults { width, height, steps, guidance } = defaults(studio);
    let recipe = recipe(studio, &PictureOrder { prompt: String::new(), width, height, steps, guidance, seed: 0 })?;
    Ok((recipe.size, studio.plan(&recipe)?))
}

fn card(studio: &Studio, located: &Located) -> Result<Card> {
    let facts = studio.facts();
    let (size, plan) = default_plan(studio)?;
    let bytes = plan.parts.iter().map(|part| part.weights).sum();
    Ok(Card {
        kind: ModelKind::Image,
        architecture: facts.architecture.to_owned(),
        parameters: facts.parameters,
        bytes,
        format: facts.format.clone(),
        path: located.path.display().to_string(),
        trained_context: studio.defaults(size).text_tokens,
    })
}

fn recipe(studio: &Studio, order: &PictureOrder) -> Result<Recipe, PictureError> {
    let size =
        image_size(order.width, order.height).map_err(|message| PictureError::Order { field: "size", message })?;
    Ok(Recipe {
        prompt: order.prompt.clone(),
        size,
        steps: order.steps,
        guidance: order.guidance,
        shift: Shift::Empirical,
        text_tokens: studio.defaults(size).text_tokens,
        noise: Noise::Seed(NoiseRng::Torch, order.seed),
    })
}

fn check(judge: &Studio, order: &PictureOrder) -> Result<(), PictureError> {
    let recipe = recipe(judge, order)?;
    let tokens = judge.tokens(&order.prompt).map_err(error)?;
    let most = recipe.text_tokens;
    if tokens > most {
        let message = format!("has {tokens} tokens with its frame, and {most} are read: shorten it");
        return Err(PictureError::Order { field: "prompt", message });
    }
    judge.plan(&recipe).map(drop).map_err(error)
}

fn error(error: ImageError) -> PictureError {
    match error {
        ImageError::Parameter { name, wanted, got } => {
            PictureError::Order { field: name, message: format!("must be {wanted}, got {got}") }
        }
        ImageError::Memory { .. } => PictureError::NoRoom(error.to_string()),
        ImageError::Cancelled => PictureError::Cancelled,
        other => PictureError::Failed(other.to_string()),
    }
}

/// Makes pictures for the server.
struct Easel {
    studio: Studio,
    located: Located,
    loading: Loading,
}

impl Easel {
    /// Opens device and model anew where the device went away in an earlier picture.
    fn mend(&mut self) -> Result<()> {
        if self.loading.backend.is_lost() {
            let loading = self.loading.with_device()?;
            self.studio = open(&self.located, &loading)?;
            self.loading = loading;
        }
        Ok(())
    }
}

impl PictureSource for Easel {
    fn make(
        &mut self,
        order: &PictureOrder,
        watch: &mut dyn FnMut(PictureStage) -> ControlFlow<()>,
    ) -> Result<Picture, PictureError> {
        let begun = Instant::now();
        self.mend().map_err(|error| PictureError::Failed(format!("{error:#}")))?;
        let recipe = recipe(&self.studio, order)?;
        let noise =
            NoiseRng::Torch.latent(order.seed, self.studio.facts().channels, recipe.size.rows(), recipe.size.columns());
        // Loading goes in many small pieces, each of which is a chance to stop.
        let mut stage = PictureStage::Prompt;
        let picture = self.studio.paint(&recipe, &order.prompt, noise, &mut |event| {
            stage = match event {
                ImageEvent::Loading { .. } => stage,
                ImageEvent::Running(ImagePart::TextEncoder) => PictureStage::Prompt,
                ImageEvent::Running(ImagePart::Transformer) => PictureStage::Steps { done: 0, total: order.steps },
                ImageEvent::Running(ImagePart::Vae) => PictureStage::Pixels,
                ImageEvent::Step { step, steps, .. } => PictureStage::Steps { done: step, total: steps },
            };
            watch(stage)
        });
        let picture = picture.map_err(error)?;
        let png = file_of(&self.studio, &recipe, &picture, false)
            .map_err(|error| PictureError::Failed(format!("{error:#}")))?;
        Ok(Picture { png, prompt_tokens: picture.tokens, seconds: begun.elapsed().as_secs_f64() })
    }
}
