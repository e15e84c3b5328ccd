//! What a person sees while a picture is made: what is loaded, what it will take, and each step.

use super::forecast;
use crate::terminal::{self, say, seconds};
use indicatif::ProgressBar;
use onebit_engine::image::{ImageEvent, ImagePlan};
use onebit_models::image::ImagePart;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Progress of one picture on stderr: bars on a terminal, a line for each step elsewhere, nothing when quiet.
pub struct Progress<'a> {
    plan: &'a ImagePlan,
    steps: usize,
    quiet: bool,
    bar: Option<ProgressBar>,
    /// What is being loaded, so that each part gets a bar of its own.
    loading: Option<ImagePart>,
    /// When the text encoder began, until it is done.
    encoder: Option<Instant>,
    encoded: Duration,
    last_step: Instant,
    decoder_runs: u64,
    /// The time that was expected, counted from the first step on.
    pub expected: Option<Duration>,
}

impl<'a> Progress<'a> {
    /// Of a picture with this plan.
    #[must_use]
    pub fn new(plan: &'a ImagePlan, steps: usize, quiet: bool) -> Self {
        let now = Instant::now();
        Progress {
            plan,
            steps,
            quiet,
            bar: None,
            loading: None,
            encoder: None,
            encoded: Duration::ZERO,
            last_step: now,
            decoder_runs: 0,
            expected: None,
        }
    }

    /// Takes an event in and shows what it means.
    pub fn take(&mut self, event: &ImageEvent<'_>) {
        if let Some(begun) = self.encoder.take() {
            self.encoded += begun.elapsed();
        }
        match event {
            ImageEvent::Loading { part, bytes, total } => self.load(*part, *bytes, *total),
            ImageEvent::Running(part) => self.run(*part),
            ImageEvent::Step { step, steps, .. } => self.step(*step, *steps),
        }
    }

    fn load(&mut self, part: ImagePart, bytes: u64, total: u64) {
        if self.quiet {
            return;
        }
        if self.loading.replace(part) != Some(part) {
            self.clear();
            self.bar = Some(terminal::bytes_bar(&format!("loading the {part}"), total));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }

    fn run(&mut self, part: ImagePart) {
        self.loading = None;
        self.clear();
        match part {
            ImagePart::TextEncoder => self.encoder = Some(Instant::now()),
            ImagePart::Transformer => {
                self.last_step = Instant::now();
                self.announce();
                if !self.quiet {
                    self.bar = Some(terminal::steps_bar("step", self.steps as u64));
                }
            }
            ImagePart::Vae => {
                // Told before each run.
                self.decoder_runs += 1;
                if !self.quiet {
                    let bar = terminal::steps_bar("making pixels", self.plan.decoder_runs as u64);
                    bar.set_position(self.decoder_runs - 1);
                    self.bar = Some(bar);
                }
            }
        }
    }

    fn announce(&mut self) {
        let Some(time) = forecast::rest(self.plan, self.encoded) else { return };
        self.expected = Some(time);
        if !self.quiet {
            say(&format!("the prompt is read; by its time steps and pixels will take about {}", seconds(time)));
        }
    }

    fn step(&mut self, step: usize, steps: usize) {
        let took = std::mem::replace(&mut self.last_step, Instant::now()).elapsed();
        if let Some(bar) = &self.bar {
            bar.set_position(step as u64);
        }
        if !self.quiet && !std::io::stderr().is_terminal() {
            say(&format!("step {step} of {steps}: {}", seconds(took)));
        }
    }

    /// Takes what is shown away.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
