//! `onebit pull`: a repository's files into the Hugging Face cache.

use crate::args::PullArgs;
use crate::{Usage, backends, load, resolve, terminal};
use anyhow::{Context, Result, anyhow, bail};
use indicatif::ProgressBar;
use onebit_checkpoint::image_folders;
use onebit_hub::{Client, HubConfig, Progress, PullOptions, RepoRef, WeightFormat, choose, pull};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Instant;

/// Runs the command. The path to run is the only line on stdout.
///
/// # Errors
/// Names that mean nothing, packs that do not run, everything that can go wrong with network and disk.
pub fn run(args: &PullArgs) -> Result<()> {
    let parse = |text: &str| RepoRef::parse(text).map_err(|e| anyhow!(Usage(e.to_string())));
    let mut repo = parse(&args.repo)?;
    if let Some(revision) = &args.revision {
        if repo.revision.is_some() {
            bail!(Usage(format!("`{}` names a revision already; leave --revision out", args.repo)));
        }
        // Read together, so that the revision passes the same checks.
        repo = parse(&format!("{}@{revision}", args.repo))?;
    }
    resolve::refuse_rotated(&repo)?;
    let backend = backends::open_to_look(args.backend, None)?;
    let config = HubConfig::from_env()?;
    let client = Client::new(&config);
    let listing = client.list(&repo)?;
    let choice = choose(&repo, &listing.files, &|format| {
        backends::runs_file(&*backend, format) || format == WeightFormat::IMAGE
    })?;
    terminal::say(&format!("{}; {}", choice.reason, terminal::bytes(choice.bytes())));

    let started = Instant::now();
    let mut shown = Shown::default();
    let mut progress = |event: Progress<'_>| shown.take(&event);
    let snapshot =
        pull(&client, &config.cache(), &repo, &listing, &choice.files, &mut PullOptions::new(&mut progress))?;
    let path = resolve::model_path(&choice, |name| Ok(snapshot.file(name)?), snapshot.dir())?;
    // What is damaged or of a kind that cannot run is found now and not at the first prompt.
    let damaged = || format!("{repo} was downloaded, but");
    let run = if choice.format.is_image() {
        check_image(&path).with_context(damaged)?;
        format!("onebit image {repo} --prompt 'PROMPT'")
    } else {
        load::open(&path, &load::Options::default()).with_context(damaged)?;
        format!("onebit run {repo} 'PROMPT'")
    };
    terminal::say(&format!("done in {}; run it with: {run}", terminal::seconds(started.elapsed())));
    writeln!(std::io::stdout(), "{}", path.display())?;
    Ok(())
}

/// Every part of an image model, by its headers.
fn check_image(path: &Path) -> Result<()> {
    let folders = image_folders(path)?;
    let open = |folder: &Path| load::open_any(folder, &load::Options::default());
    let parts = [open(&folders.text_encoder)?, open(&folders.transformer)?, open(&folders.vae)?];
    let [text, transformer, vae] = &parts;
    let checked = onebit_models::image::facts([text, transformer, vae]);
    checked.map(drop).map_err(|(part, error)| anyhow!("{part}: {error}"))
}

/// Progress on stderr: a bar on a terminal, one line for each file elsewhere.
#[derive(Default)]
struct Shown {
    bar: Option<ProgressBar>,
    lines: bool,
}

impl Shown {
    fn take(&mut self, event: &Progress<'_>) {
        self.lines = !std::io::stderr().is_terminal();
        match event {
            Progress::Start { file, have, size } => {
                let bar = terminal::bytes_bar(file, size.unwrap_or(0));
                bar.set_position(*have);
                // The speed counts from here and not from what an earlier try has left.
                bar.reset_eta();
                self.bar = Some(bar);
                if self.lines {
                    let resumed =
                        if *have > 0 { format!(", {} of it are here", terminal::bytes(*have)) } else { String::new() };
                    let size = size.map_or_else(|| "unknown size".to_owned(), terminal::bytes);
                    terminal::say(&format!("{file}: {size}{resumed}"));
                }
            }
            Progress::Bytes { have, .. } => {
                if let Some(bar) = &self.bar {
                    bar.set_position(*have);
                }
            }
            Progress::Waiting { file } => terminal::say(&format!("{file}: another process downloads it; waiting")),
            Progress::Retry { file, reason, pause } => {
                self.clear();
                terminal::say(&format!("{file}: {reason}; trying again in {}", terminal::seconds(*pause)));
            }
            Progress::Done { .. } => self.clear(),
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
