//! `onebit image`: pictures from text.
//!
//! | file | idea |
//! |---|---|
//! | `wanted` | from arguments, or from a picture, to what is to be made |
//! | `report` | what is said and written as JSON |
//! | `compare` | the same pictures by several models |
//! | `sheet` | pictures side by side with words between them |

mod compare;
mod report;
mod sheet;
mod wanted;

use crate::args::{ImageArgs, ImageTask};
use crate::builtin::BuiltIn;
use crate::picture::progress::Progress;
use crate::picture::recipe::{Noise, Recipe};
use crate::picture::studio::{self, Studio};
use crate::picture::{place, png, tensors};
use crate::{Interrupted, resolve, terminal};
use anyhow::{Context, Result, bail};
use onebit_engine::image::{ImageError, ImagePlan, Picture};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wanted::{Source, Wanted};

/// Ctrl-C was pressed.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Runs the command.
///
/// # Errors
/// Bad usage, a model that does not run, a picture that fails, files that cannot be written.
pub fn run(args: &ImageArgs) -> Result<()> {
    if let Some(ImageTask::Compare(args)) = &args.task {
        return compare::run(args);
    }
    let wanted = Wanted::read(args)?;
    let paths = place::numbered(&args.output, args.count);
    place::must_be_png(&args.output)?;
    if let Some(latents) = &args.paint.latents_out {
        place::must_differ(("-o", &args.output), ("--latents-out", latents))?;
        if let Some(noise) = &args.paint.noise {
            place::must_differ(("--noise", noise), ("--latents-out", latents))?;
        }
    }
    place::check(&paths, args.force)?;
    place::check(args.paint.latents_out.as_slice(), args.force)?;
    let located = match &wanted.model {
        Some(word) => resolve::locate_image(word)?,
        None => BuiltIn::IMAGE.by_default(),
    };
    if let Some(choice) = &located.choice
        && !args.quiet
    {
        terminal::say(&format!("note: {choice}"));
    }
    let backend = studio::backend(&args.run, args.quiet)?;
    let mut studio = Studio::open(&located, backend, &args.run)?;
    if let Some(difference) = wanted.maker.as_ref().and_then(|maker| maker.difference(&studio.maker))
        && !args.quiet
    {
        terminal::say(&format!("note: {}: {difference}", wanted.from.display()));
    }
    let mut recipe = wanted.recipe(&studio);
    let fitted = studio.fit(&recipe.prompt, recipe.text_tokens)?;
    if let Some(warning) = fitted.warning(recipe.text_tokens) {
        // Said even when quiet: the picture is not of the whole prompt.
        terminal::say(&format!("warning: {warning}"));
    }
    let file_noise = match &wanted.source {
        Source::Seed(..) => None,
        Source::File(path) => Some(tensors::read_noise(path, recipe.size, studio.facts().channels)?),
    };
    if let Some(file) = &file_noise {
        recipe.noise = Noise::File(file.hash.clone());
        wanted.compare_noise(&file.hash, args.quiet);
    }
    let plan = studio.plan(&recipe).map_err(studio::in_flags)?;
    if !args.quiet {
        report::announce(&studio, &recipe, &plan);
    }
    watch_interrupts(args.quiet)?;

    let mut report = report::Report::new(&studio, &recipe, &plan, &fitted);
    for (index, path) in paths.iter().enumerate() {
        let recipe = wanted.numbered(&recipe, index);
        let noise = match (&file_noise, &recipe.noise) {
            (Some(file), _) => file.values.clone(),
            (None, Noise::Seed(rng, seed)) => {
                rng.latent(*seed, studio.facts().channels, recipe.size.rows(), recipe.size.columns())
            }
            (None, Noise::File(_)) => bail!("there is no noise; name its file with --noise"),
        };
        let context = || path.display().to_string();
        let made = make(&mut studio, &recipe, &fitted.text, noise.clone(), &plan, args.quiet).with_context(context)?;
        let file = file_of(&studio, &recipe, &made.picture, args.no_metadata).with_context(context)?;
        place::write(path, &file)?;
        if let Some(latents) = &args.paint.latents_out {
            let channels = studio.facts().channels;
            let all: Vec<&[f32]> = [&noise].into_iter().chain(&made.picture.latents).map(Vec::as_slice).collect();
            place::write(latents, &tensors::latents_file(&all, channels)?)?;
        }
        report.add(path, &recipe, &made);
        if !args.quiet {
            report.say_last(&plan);
        }
    }
    if args.json {
        writeln!(std::io::stdout(), "{}", report.to_json())?;
    }
    Ok(())
}

/// A picture and what it took.
pub(super) struct Made {
    pub(super) picture: Picture,
    pub(super) time: Duration,
    pub(super) expected: Option<Duration>,
}

fn make(
    studio: &mut Studio,
    recipe: &Recipe,
    prompt: &str,
    noise: Vec<f32>,
    plan: &ImagePlan,
    quiet: bool,
) -> Result<Made> {
    let begun = Instant::now();
    let mut progress = Progress::new(plan, recipe.steps, quiet);
    let picture = studio.paint(recipe, prompt, noise, &mut |event| {
        progress.take(&event);
        if INTERRUPTED.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.clear();
    match picture {
        // It came too late for the last event: what is made is not written any more.
        Ok(_) | Err(ImageError::Cancelled) if INTERRUPTED.load(Ordering::Relaxed) => bail!(Interrupted),
        Ok(picture) => Ok(Made { picture, time: begun.elapsed(), expected: progress.expected }),
        Err(error) => Err(studio::in_flags(error)),
    }
}

/// The PNG file of a picture, with how it was made unless `bare`.
pub(crate) fn file_of(studio: &Studio, recipe: &Recipe, picture: &Picture, bare: bool) -> Result<Vec<u8>> {
    let texts = if bare { Vec::new() } else { recipe.texts(&studio.maker) };
    png::encode(&picture.rgb, picture.size.width(), picture.size.height(), &texts)
}

/// The first Ctrl-C ends the work at the next step, the second at once.
fn watch_interrupts(quiet: bool) -> Result<()> {
    let handler = move || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        if !quiet {
            terminal::say("stopping after this step; Ctrl-C again stops at once");
        }
    };
    ctrlc::set_handler(handler).context("the handler of Ctrl-C")
}

/// `sheet.json` beside `sheet.png`.
fn beside(path: &Path, extension: &str) -> PathBuf {
    path.with_extension(extension)
}
