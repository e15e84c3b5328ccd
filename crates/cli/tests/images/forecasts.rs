//! What is said before a picture is made, against what `bench/record` holds of pictures that were: from the smallest models to
//! the published size. No clock is asked.

use crate::case::{Published, Tree};
use onebit::builtin::BuiltIn;
use onebit::image_shape;
use onebit::picture::forecast;
use onebit_backend_cpu::{CpuBackend, CpuOptions};
use onebit_engine::image::{ImageModel, ImageOptions, ImagePlan, ImageSettings, ImageTree, Residency};
use onebit_models::image::ImageSize;
use onebit_ops::{Activations, Backend};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Records whose file has a name that begins so, with their names.
fn records(start: &str) -> Vec<(String, Value)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/record");
    let mut all = Vec::new();
    for machine in std::fs::read_dir(root).unwrap() {
        for file in std::fs::read_dir(machine.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with(start) {
                let text = std::fs::read_to_string(&path).unwrap();
                all.push((path.display().to_string(), serde_json::from_str(&text).unwrap()));
            }
        }
    }
    assert!(!all.is_empty(), "no records of {start}");
    all
}

fn open(tree: Box<dyn ImageTree>) -> ImageModel {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    let options = ImageOptions { activations: Activations::I9G128, keep_biases: false, free_bytes: None };
    ImageModel::open(tree, backend, options).unwrap()
}

/// A plan for the size of a record.
fn plan(model: &ImageModel, (width, height): (usize, usize), residency: Residency) -> ImagePlan {
    let size = ImageSize::new(width, height).unwrap();
    model.plan(&ImageSettings { residency, ..model.settings(size) }).unwrap()
}

/// What is forecast from the time of the text encoder, by what the rest took, for so many runs of each part.
fn off(plan: &ImagePlan, parts: &Value, runs: [f64; 3]) -> f64 {
    let taken = |index: usize| runs[index] * parts[index]["run_s"].as_f64().unwrap();
    let expected = forecast::rest(plan, Duration::from_secs_f64(taken(0))).unwrap();
    expected.as_secs_f64() / (taken(1) + taken(2))
}

/// A forecast of time may be off by the factor by which machines differ in what one kind of work costs beside another: of
/// pictures of the published size and 512x512, steps and decoder take 4.6 times as long as the encoder on one and 12.7 times on
/// another. No one factor is nearer to both than the root of their ratio, 1.66.
fn near(name: &str, off: f64) {
    println!("{name}: {off:.2} of the time");
    assert!((1.0 / 1.7..1.7).contains(&off), "{name}: {off} of the time");
}

/// Parts of the published size one by one, as `bench` measures them: the plan of what a record was made of.
fn measured(record: &Value) -> ImagePlan {
    let shape = record["model"].as_str().unwrap().split(' ').next().unwrap();
    let (width, height) = record["size"].as_str().unwrap().split_once('x').unwrap();
    let size = (width.parse().unwrap(), height.parse().unwrap());
    let name = image_shape::NAMES.into_iter().find(|name| *name == shape).unwrap();
    plan(&open(Box::new(Published(name))), size, Residency::OneByOne)
}

#[test]
fn the_time_of_the_published_size() {
    for (name, record) in image_shape::NAMES.into_iter().flat_map(records) {
        near(&name, off(&measured(&record), &record["parts"], [1.0, 4.0, 1.0]));
    }
}

/// `bench` holds the made-up embedding twice, which an embedding in a file is not at all, so that only those pictures count that
/// take more than the text encoder. It has no tokenizer and fewer copies; what is said is above what was taken by no more.
#[test]
fn the_memory_of_the_published_size() {
    let large = |record: &Value| record["size"] == "1024x1024";
    let all = ["bonsai-image-4b", "memory-bonsai-image-4b"].into_iter().flat_map(records);
    let mut judged = 0;
    for (name, record) in all.filter(|(_, record)| large(record)) {
        let (plan, peak) = (measured(&record), record["peak_rss"].as_u64().unwrap());
        println!("{name}: {} said, {peak} taken", plan.peak);
        assert!(peak <= plan.peak && plan.peak - peak <= 100_000_000, "{name}: {peak}, said {}", plan.peak);
        judged += 1;
    }
    assert_eq!(judged, 2, "pictures of 1024x1024 on a processor");
}

/// Pictures of the built-in models, by `onebit image sprout --json`.
#[test]
fn the_built_in_models() {
    for (name, record) in records("picture-") {
        let model = BuiltIn::find(record["model"].as_str().unwrap()).unwrap();
        let model = open(Box::new(Tree(model.image_folders().unwrap())));
        let side = |key: &str| record[key].as_u64().unwrap() as usize;
        let plan = plan(&model, (side("width"), side("height")), Residency::All);
        for picture in record["pictures"].as_array().unwrap() {
            near(&name, off(&plan, &picture["parts"], [1.0; 3]));
        }
        let peak = record["peak_rss"].as_u64().unwrap();
        println!("{name}: {} said, {peak} taken", plan.peak);
        let ratio = plan.peak as f64 / peak as f64;
        assert!((0.8..1.25).contains(&ratio), "{name}: {peak}, said {}", plan.peak);
    }
}
