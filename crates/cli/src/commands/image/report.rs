//! What is said about pictures, and the same as JSON.

use super::Made;
use crate::picture::recipe::{Noise, Recipe, shift_text};
use crate::picture::studio::{Fitted, Studio};
use crate::terminal::{bytes, say, seconds};
use crate::{memory, terminal};
use onebit_engine::image::ImagePlan;
use serde_json::{Value, json};
use std::path::Path;

/// What is known before the work begins.
pub(super) fn announce(studio: &Studio, recipe: &Recipe, plan: &ImagePlan) {
    let mut how =
        vec![if plan.one_by_one { "parts are loaded one by one" } else { "all parts stay loaded" }.to_owned()];
    if plan.tiles > 1 {
        how.push(format!("pixels are made in {} tiles", plan.tiles));
    }
    say(&format!(
        "{} on {}: {}, {} {}, {}; peak memory about {} ({})",
        studio.name,
        studio.device,
        recipe.size,
        recipe.steps,
        if recipe.steps == 1 { "step" } else { "steps" },
        recipe.seed_text(),
        bytes(plan.peak),
        how.join(", ")
    ));
}

/// What a command has made.
pub(super) struct Report {
    head: Value,
    pictures: Vec<Value>,
    last: String,
}

impl Report {
    pub(super) fn new(studio: &Studio, recipe: &Recipe, plan: &ImagePlan, fitted: &Fitted) -> Self {
        let maker = &studio.maker;
        let head = json!({
            "model": studio.name,
            "model_hash": maker.model_hash,
            "device": studio.device,
            "backend": maker.backend,
            "activations": maker.activations,
            "prompt": recipe.prompt,
            "prompt_tokens": fitted.tokens,
            "prompt_dropped": fitted.dropped,
            "max_sequence_length": recipe.text_tokens,
            "width": recipe.size.width(),
            "height": recipe.size.height(),
            "steps": recipe.steps,
            "guidance": recipe.guidance,
            "shift": shift_text(recipe.shift),
            "one_by_one": plan.one_by_one,
            "tiles": plan.tiles,
            "predicted_peak_bytes": plan.peak,
            "predicted_operations": plan.operations(),
        });
        Report { head, pictures: Vec::new(), last: String::new() }
    }

    pub(super) fn add(&mut self, path: &Path, recipe: &Recipe, made: &Made) {
        let (seed, rng) = match &recipe.noise {
            Noise::Seed(rng, seed) => (json!(seed), json!(rng.as_str())),
            Noise::File(hash) => (Value::Null, json!(format!("file {hash}"))),
        };
        let picture = &made.picture;
        let parts: Vec<Value> = picture
            .seconds
            .iter()
            .map(|(part, [load, run])| json!({"part": part.to_string(), "load_s": load, "run_s": run}))
            .collect();
        self.pictures.push(json!({
            "file": path.display().to_string(),
            "seed": seed,
            "noise": rng,
            "seconds": made.time.as_secs_f64(),
            "predicted_seconds": made.expected.map(|time| time.as_secs_f64()),
            "parts": parts,
            "one_by_one": picture.one_by_one,
            "tiles": picture.tiles,
        }));
        let spent: Vec<String> =
            picture.seconds.iter().map(|(part, [load, run])| format!("{part} {load:.1} + {run:.1} s")).collect();
        self.last = format!(
            "{}: {}, {} in {} (loading + running: {})",
            path.display(),
            recipe.size,
            recipe.seed_text(),
            seconds(made.time),
            spent.join(", ")
        );
    }

    /// One line about the last picture, with the peak of memory so far.
    pub(super) fn say_last(&self, plan: &ImagePlan) {
        let peak = memory::peak().map_or_else(
            || "peak memory unknown on this system".to_owned(),
            |peak| format!("peak memory {}, predicted {}", bytes(peak), bytes(plan.peak)),
        );
        let line = format!("{}; {peak}", self.last);
        say(&terminal::styled(&line, terminal::DIM, terminal::stderr_colours()));
    }

    /// Everything, in one object.
    pub(super) fn to_json(&self) -> Value {
        let mut all = self.head.clone();
        all["peak_rss"] = json!(memory::peak());
        all["pictures"] = json!(self.pictures);
        all
    }
}
