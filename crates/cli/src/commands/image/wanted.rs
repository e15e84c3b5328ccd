//! What is to be made: from the arguments, and from a picture that is to be made again.

use crate::args::{ImageArgs, default_model, image_size};
use crate::picture::png;
use crate::picture::recipe::{Maker, Noise, Recipe};
use crate::picture::studio::Studio;
use crate::{Usage, resolve, sampling, terminal};
use anyhow::{Context, Result, anyhow, bail};
use onebit_engine::NoiseRng;
use onebit_models::image::{ImageSize, schedule::Shift};
use std::fs::File;
use std::io::{BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// Where the noise comes from.
pub(super) enum Source {
    /// A generator.
    Seed(NoiseRng, u64),
    /// A file.
    File(PathBuf),
}

/// What is to be made.
pub(super) struct Wanted {
    /// As the user named it, or the picture that is made again; `None` for the built-in one.
    pub(super) model: Option<String>,
    /// Of the first picture. Noise from a file has no hash yet, and size and text tokens that nobody names are those of no
    /// model.
    recipe: Recipe,
    /// Neither the arguments nor an earlier picture say how large.
    size_is_open: bool,
    /// Nor how many tokens are read.
    tokens_are_open: bool,
    pub(super) source: Source,
    /// Who made the picture that is made again.
    pub(super) maker: Option<Maker>,
    /// That picture.
    pub(super) from: PathBuf,
    /// The noise file that it was made from.
    earlier_noise: Option<String>,
}

impl Wanted {
    /// Puts arguments, an earlier picture and defaults together, in this order.
    ///
    /// # Errors
    /// [`Usage`] for what is missing or contradicts itself, and pictures that cannot be read.
    pub(super) fn read(args: &ImageArgs) -> Result<Wanted> {
        let paint = &args.paint;
        if args.count > 1 && (paint.noise.is_some() || paint.latents_out.is_some()) {
            bail!(Usage("--noise and --latents-out are about one picture; leave -n out".to_owned()));
        }
        let earlier = args.from.as_deref().map(earlier).transpose()?;
        let (recipe, maker) = earlier.map_or((None, None), |(recipe, maker)| (Some(recipe), Some(maker)));
        let base = recipe.as_ref();
        let prompt = match (&args.prompt, base) {
            (Some(prompt), _) => prompt.clone(),
            (None, Some(base)) => base.prompt.clone(),
            (None, None) => args.model.prompt().map_or_else(piped_prompt, |word| Ok(word.to_owned()))?,
        };
        if prompt.trim().is_empty() {
            bail!(Usage("the prompt is empty; say what the picture shows: --prompt 'A bonsai tree'".to_owned()));
        }
        let source = source(args, base)?;
        let size = size(args, base)?;
        let text_tokens = paint.max_sequence_length.or(base.map(|b| b.text_tokens));
        let recipe = Recipe {
            prompt,
            size: size.unwrap_or(ImageSize::USUAL),
            steps: paint.steps.or(base.map(|b| b.steps)).unwrap_or(4),
            guidance: paint.guidance.or(base.map(|b| b.guidance)).unwrap_or(1.0),
            shift: paint.shift.or(base.map(|b| b.shift)).unwrap_or(Shift::Empirical),
            text_tokens: text_tokens.unwrap_or(0),
            noise: match &source {
                Source::Seed(rng, seed) => Noise::Seed(*rng, *seed),
                Source::File(_) => Noise::File(String::new()),
            },
        };
        let earlier_noise = match base.map(|b| &b.noise) {
            Some(Noise::File(hash)) => Some(hash.clone()),
            _ => None,
        };
        let model = model(args, maker.as_ref())?;
        Ok(Wanted {
            model,
            recipe,
            size_is_open: size.is_none(),
            tokens_are_open: text_tokens.is_none(),
            source,
            maker,
            from: args.from.clone().unwrap_or_default(),
            earlier_noise,
        })
    }

    /// The recipe of the first picture, with what is open as the model has it.
    pub(super) fn recipe(&self, studio: &Studio) -> Recipe {
        let mut recipe = self.recipe.clone();
        if self.size_is_open {
            recipe.size = studio.usual_size();
        }
        if self.tokens_are_open {
            recipe.text_tokens = studio.defaults(recipe.size).text_tokens;
        }
        recipe
    }

    /// The recipe of one of several pictures.
    pub(super) fn numbered(&self, recipe: &Recipe, index: usize) -> Recipe {
        let noise = match &recipe.noise {
            Noise::Seed(rng, seed) => Noise::Seed(*rng, seed.wrapping_add(index as u64)),
            Noise::File(hash) => Noise::File(hash.clone()),
        };
        Recipe { noise, ..recipe.clone() }
    }

    /// Says when the noise is not that of the picture that is made again.
    pub(super) fn compare_noise(&self, hash: &str, quiet: bool) {
        if !quiet && self.earlier_noise.as_deref().is_some_and(|earlier| earlier != hash) {
            terminal::say(&format!(
                "note: {} was made from other noise than that file's, so the picture will differ",
                self.from.display()
            ));
        }
    }
}

fn earlier(path: &Path) -> Result<(Recipe, Maker)> {
    let context = || path.display().to_string();
    let file = File::open(path).with_context(context)?;
    let texts = png::texts(BufReader::new(file)).with_context(context)?;
    Recipe::read(&texts).with_context(context)
}

fn source(args: &ImageArgs, base: Option<&Recipe>) -> Result<Source> {
    let paint = &args.paint;
    if let Some(path) = &paint.noise {
        return Ok(Source::File(path.clone()));
    }
    let rng = paint.noise_rng.map(crate::args::NoiseRngName::rng);
    match (base.map(|b| &b.noise), paint.seed) {
        (Some(Noise::File(hash)), None) => bail!(Usage(format!(
            "{} was made from a noise file ({hash}); name it with --noise, or give a --seed instead",
            args.from.as_deref().unwrap_or(Path::new("")).display()
        ))),
        (Some(Noise::Seed(earlier, seed)), given) => Ok(Source::Seed(rng.unwrap_or(*earlier), given.unwrap_or(*seed))),
        (_, given) => Ok(Source::Seed(rng.unwrap_or_default(), given.unwrap_or_else(sampling::fresh_seed))),
    }
}

fn size(args: &ImageArgs, base: Option<&Recipe>) -> Result<Option<ImageSize>> {
    let paint = &args.paint;
    let given = match (paint.width, paint.height) {
        (Some(width), Some(height)) => Some(image_size(width, height).map_err(|e| anyhow!(Usage(e)))?),
        _ => paint.size,
    };
    Ok(given.or(base.map(|b| b.size)))
}

/// The model that is named, else the one in `ONEBIT_MODEL`, else that of the earlier picture where its name leads to files.
fn model(args: &ImageArgs, maker: Option<&Maker>) -> Result<Option<String>> {
    let is_prompt = args.prompt.is_none() && maker.is_none() && args.model.prompt().is_some();
    let name = if is_prompt { default_model() } else { args.model.name() };
    if name.is_some() {
        return Ok(name);
    }
    let Some(maker) = maker else { return Ok(None) };
    match resolve::named(&maker.model) {
        Some(resolve::Named::Repo(_) | resolve::Named::BuiltIn(_)) => Ok(Some(maker.model.clone())),
        _ => bail!(Usage(format!(
            "{} was made by {} ({}), and the file does not say where that is; name the model",
            args.from.as_deref().unwrap_or(Path::new("")).display(),
            maker.model,
            maker.model_hash
        ))),
    }
}

fn piped_prompt() -> Result<String> {
    let mut stdin = std::io::stdin();
    let mut bytes = Vec::new();
    if !stdin.is_terminal() {
        stdin.read_to_end(&mut bytes).context("stdin")?;
    }
    let text = String::from_utf8(bytes).context("stdin is not UTF-8 text")?;
    match text.trim() {
        "" => bail!(Usage("there is no prompt; say what the picture shows: --prompt 'A bonsai tree'".to_owned())),
        prompt => Ok(prompt.to_owned()),
    }
}
