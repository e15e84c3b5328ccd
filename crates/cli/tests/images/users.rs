//! What users of image models have met elsewhere, in miniature.

use crate::case::{self, Case, Job, Published};
use onebit::image_shape;
use onebit_backend_cpu::{CpuBackend, CpuOptions};
use onebit_engine::image::{
    ImageError, ImageEvent, ImageModel, ImageOptions, ImageRequest, ImageSettings, ImageTree, Picture, Residency,
};
use onebit_models::image::{ImagePart, ImageSize};
use onebit_ops::{Activations, Backend, SourceError, WeightSource};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

fn model() -> (Case, ImageModel) {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    let case = Case::all().remove(0);
    let model = case.model(&backend, Activations::F32);
    (case, model)
}

fn small(case: &Case) -> Job {
    case.jobs().into_iter().find(|job| job.text_tokens == 64).unwrap()
}

fn make(model: &mut ImageModel, request: &ImageRequest) -> Result<Picture, ImageError> {
    model.generate(request, &mut |_| ControlFlow::Continue(()))
}

/// Numbers of about the size of noise.
fn noise(size: ImageSize) -> Vec<f32> {
    (0..size.tokens() * 128).map(|i| 1.4 * (i as f32 * i as f32 * 0.37).sin()).collect()
}

/// Where the temporaries of the whole picture exceed the bound its last layers are run in stripes, down to the thinnest, which take
/// less memory and give the same picture: norms have the statistics of all stripes. What differs is the rounding of these
/// statistics, one unit of f32 in a factor, which thirty layers take to some 1e-5 of a range of two; a level is 8e-3 wide, so
/// that none moves by more than one, and few do.
#[test]
fn stripes_bound_memory_and_give_the_same_picture() {
    let (_, mut model) = model();
    let size = ImageSize::new(384, 272).unwrap();
    let settings = ImageSettings { steps: 1, text_tokens: 64, ..ImageSettings::new(size) };
    let whole = model.plan(&settings).unwrap();
    let part = |plan: &onebit_engine::image::ImagePlan| {
        plan.parts.iter().find(|p| p.part == ImagePart::Vae).unwrap().temporaries
    };
    assert_eq!(whole.tiles, 1);
    let error = model.plan(&ImageSettings { decode_bytes: Some(1000), ..settings }).unwrap_err();
    let ImageError::Parameter { name: "decode bytes", wanted, .. } = &error else { panic!("{error}") };
    assert!(wanted.contains("thinnest"), "{error}");
    let least: u64 = wanted.split(' ').next().unwrap().parse().unwrap();
    assert!(least < part(&whole) / 2, "{least} of {}", part(&whole));
    let request = |settings| ImageRequest { prompt: "a tree".to_owned(), settings, noise: noise(size) };
    let one = make(&mut model, &request(settings)).unwrap();
    let mut tiles = 1;
    for bound in [part(&whole) - 1, (part(&whole) + least) / 2, least] {
        let settings = ImageSettings { decode_bytes: Some(bound), ..settings };
        let plan = model.plan(&settings).unwrap();
        assert!(plan.tiles > 1 && part(&plan) <= bound, "{plan:?}");
        assert!(plan.parts[2].operations > whole.parts[2].operations, "layers are run more than once");
        let many = make(&mut model, &request(settings)).unwrap();
        assert_eq!((one.tiles, many.tiles), (1, plan.tiles));
        let off: Vec<u8> = one.rgb.iter().zip(&many.rgb).map(|(a, b)| a.abs_diff(*b)).filter(|d| *d > 0).collect();
        println!("{} tiles: {} of {} levels differ", many.tiles, off.len(), one.rgb.len());
        assert!(off.iter().all(|d| *d == 1) && off.len() < one.rgb.len() / 100, "{} levels", off.len());
        tiles = tiles.max(plan.tiles);
    }
    assert!(tiles >= 16, "{tiles}");
}

/// The published size plans less than 2.2 GB for 512 x 512 and 3 GB for 1024 x 1024 with one part at a time, decodes both in
/// one piece, and decodes larger pictures in tiles that keep to the same bound.
#[test]
fn the_published_size_is_planned_within_bounds() {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    for name in image_shape::NAMES {
        let options = ImageOptions { activations: Activations::I9G128, keep_biases: false, free_bytes: None };
        let model = ImageModel::open(Box::new(Published(name)), backend.clone(), options).unwrap();
        for (side, most, whole) in
            [(512, 2_200_000_000, true), (1024, 3_000_000_000, true), (1536, 3_500_000_000, false)]
        {
            let size = ImageSize::new(side, side).unwrap();
            let settings = ImageSettings { residency: Residency::OneByOne, ..ImageSettings::new(size) };
            let plan = model.plan(&settings).unwrap();
            println!("{name} {size}: {plan:?}");
            assert!(plan.peak <= most, "{name} {size}: {} bytes", plan.peak);
            let all = model.plan(&ImageSettings { residency: Residency::All, ..settings }).unwrap();
            assert!(plan.peak + 500_000_000 < all.peak, "{name} {size}: {} of {}", plan.peak, all.peak);
            assert_eq!(plan.tiles == 1, whole, "{name} {size}");
        }
        let parameters = model.facts().transformer.parameters;
        assert!((3_680_501_760..3_900_000_000).contains(&parameters), "{parameters}");
    }
}

/// A tree that tells which parts were opened.
struct Watched(case::Tree, Arc<Mutex<Vec<ImagePart>>>);

impl ImageTree for Watched {
    fn open(&self, part: ImagePart) -> Result<Box<dyn WeightSource + '_>, SourceError> {
        self.1.lock().unwrap().push(part);
        self.0.open(part)
    }
    fn tokenizer(&self) -> Result<Vec<u8>, SourceError> {
        self.0.tokenizer()
    }
}

/// Parts that stay in memory are read once, and others once for each picture, each when its turn comes.
#[test]
fn parts_are_read_in_turn() {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    let case = Case::all().remove(0);
    let opened = Arc::new(Mutex::new(Vec::new()));
    let tree = Box::new(Watched(case.tree(), opened.clone()));
    let options = ImageOptions { activations: Activations::F32, keep_biases: false, free_bytes: None };
    let mut model = ImageModel::open(tree, backend, options).unwrap();
    let mut request = small(&case).request();
    let in_turn = ImagePart::ALL.to_vec();
    for (residency, wanted) in [
        (Residency::OneByOne, in_turn.clone()),
        (Residency::OneByOne, in_turn.clone()),
        (Residency::All, in_turn),
        (Residency::All, Vec::new()),
    ] {
        opened.lock().unwrap().clear();
        request.settings.residency = residency;
        make(&mut model, &request).unwrap();
        assert_eq!(*opened.lock().unwrap(), wanted, "{residency:?}");
    }
}

/// One part at a time gives the same picture, and its plan takes no more: of so small a model all that is freed stays with the
/// allocator.
#[test]
fn parts_one_by_one() {
    let (case, mut model) = model();
    let mut request = small(&case).request();
    let mut made = Vec::new();
    for residency in [Residency::All, Residency::OneByOne, Residency::Auto] {
        request.settings.residency = residency;
        made.push((model.plan(&request.settings).unwrap(), make(&mut model, &request).unwrap()));
    }
    let [(all, first), (one, second), (auto, third)] = made.as_slice() else { panic!("three pictures") };
    assert!(!first.one_by_one && second.one_by_one && !third.one_by_one);
    assert_eq!((&first.rgb, &first.latents), (&second.rgb, &second.latents));
    assert_eq!(first.rgb, third.rgb);
    assert!(one.peak <= all.peak && auto.peak == all.peak, "{} and {}", one.peak, all.peak);
}

/// Numbers that break down are an error that names the step, and never a picture; large ones are no matter for the decoder.
#[test]
fn broken_numbers_are_an_error() {
    let (case, mut model) = model();
    let mut request = small(&case).request();
    request.noise.iter_mut().for_each(|v| *v *= 10.0);
    assert!(make(&mut model, &request).is_ok(), "latents of ten times the size");
    // The largest number that there is, about: sums of it overflow.
    let largest = request.noise.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    request.noise.iter_mut().for_each(|v| *v *= 3e38 / largest);
    let error = make(&mut model, &request).unwrap_err();
    assert!(matches!(error, ImageError::Broken { .. }), "{error}");
    request.noise[5] = f32::NAN;
    assert!(matches!(make(&mut model, &request), Err(ImageError::Parameter { name: "noise", .. })));
}

/// Prompts of any length up to the text encoder's rows count to the last word, and longer ones are refused with the count.
#[test]
fn long_prompts_are_read_to_the_end() {
    let (case, mut model) = model();
    let job = small(&case);
    let frame = model.tokens("").unwrap();
    let word = |model: &ImageModel, text: &str| model.tokens(text).unwrap();
    let with_tokens = |model: &ImageModel, wanted: usize, last: &str| {
        let mut prompt = last.to_owned();
        while word(model, &prompt) < wanted {
            prompt.insert_str(0, "z ");
        }
        prompt
    };
    for tokens in [76, 78, 500, 512] {
        let [one, other] = ["tree", "bird"].map(|last| {
            let prompt = with_tokens(&model, tokens, last);
            let settings = ImageSettings { steps: 1, ..ImageSettings::new(job.size) };
            ImageRequest { prompt, settings, noise: job.request().noise }
        });
        if [&one, &other].iter().any(|r| word(&model, &r.prompt) > 512) {
            continue;
        }
        let (one, other) = (make(&mut model, &one).unwrap(), make(&mut model, &other).unwrap());
        assert!(one.tokens >= tokens && one.latents != other.latents, "{tokens} tokens");
    }
    for text in ["", "\u{1f333}\u{1f98a}", "盆栽の木", "\n\n  a\ttree"] {
        let request = ImageRequest { prompt: text.to_owned(), ..job.request() };
        assert!(make(&mut model, &request).unwrap().tokens >= frame, "{text:?}");
    }
    let prompt = with_tokens(&model, 513, "tree");
    let tokens = word(&model, &prompt);
    let settings = ImageSettings { steps: 1, ..ImageSettings::new(job.size) };
    let error = make(&mut model, &ImageRequest { prompt, settings, noise: job.request().noise }).unwrap_err();
    assert_eq!(error, ImageError::PromptTooLong { tokens, most: 512 });
    assert!(error.to_string().contains(&format!("by {} tokens", tokens - 512)), "{error}");
}

/// Control tokens in a prompt are letters.
#[test]
fn a_prompt_cannot_leave_its_frame() {
    let (_, model) = model();
    let (plain, marked) = (model.tokens("a").unwrap(), model.tokens("a<|im_end|>").unwrap());
    assert!(marked > plain + 1, "{marked} tokens after {plain}");
}

/// Work stops between steps, and the model makes the next picture.
#[test]
fn a_picture_can_be_stopped() {
    let (case, mut model) = model();
    let request = small(&case).request();
    let mut steps = Vec::new();
    let stopped = model.generate(&request, &mut |event| {
        if let ImageEvent::Step { step, steps: all, latents } = event {
            steps.push((step, all, latents.len()));
            if step == 2 {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    });
    assert_eq!(stopped, Err(ImageError::Cancelled));
    assert_eq!(steps, [(1, 4, request.noise.len()), (2, 4, request.noise.len())]);
    let whole = make(&mut model, &request).unwrap();
    assert_eq!(whole.latents.len(), 4);
}

/// At guidance 0 the prompt has no weight: the picture is that of the empty prompt.
#[test]
fn guidance_weighs_the_prompt() {
    let (case, mut model) = model();
    let mut request = small(&case).request();
    request.settings.guidance = 0.0;
    let without = make(&mut model, &request).unwrap();
    let empty = ImageRequest { prompt: String::new(), ..small(&case).request() };
    let empty = make(&mut model, &empty).unwrap();
    // `e + 0 (v - e)` is e, bit for bit.
    assert_eq!(without.latents, empty.latents);
    request.settings.guidance = 2.0;
    let strong = make(&mut model, &request).unwrap();
    assert_ne!(strong.latents, make(&mut model, &small(&case).request()).unwrap().latents);
    let plans = [1.0, 2.0]
        .map(|guidance| model.plan(&ImageSettings { guidance, ..request.settings }).unwrap().parts[1].operations);
    assert_eq!(plans[1], 2 * plans[0]);
}

/// Values outside their range are refused by name before anything is loaded.
#[test]
fn bad_settings_are_refused_by_name() {
    let (case, mut model) = model();
    let good = small(&case).request();
    let with = |change: &dyn Fn(&mut ImageRequest)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    for (name, request) in [
        ("steps", with(&|r| r.settings.steps = 0)),
        ("guidance", with(&|r| r.settings.guidance = f32::NAN)),
        ("guidance", with(&|r| r.settings.guidance = -1.0)),
        ("text tokens", with(&|r| r.settings.text_tokens = 0)),
        ("text tokens", with(&|r| r.settings.text_tokens = 1 << 20)),
        ("noise", with(&|r| r.noise.truncate(5))),
        ("shift", with(&|r| r.settings.shift = onebit_models::image::schedule::Shift::Fixed(f64::INFINITY))),
    ] {
        let error = make(&mut model, &request).unwrap_err();
        assert!(matches!(&error, ImageError::Parameter { name: found, .. } if *found == name), "{name}: {error}");
    }
    for (width, height) in [(0, 64), (64, 65), (17, 16), (8192, 64)] {
        assert!(ImageSize::new(width, height).is_none());
    }
}

/// The same model unpacked into a plain tree of diffusers gives the same pictures.
#[test]
fn an_unpacked_tree_runs() {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    for case in Case::all() {
        let folder = tempfile::tempdir().unwrap();
        let unpacked = case.unpack(folder.path());
        let mut model = unpacked.model(&backend, Activations::F32);
        let words = &model.facts().transformer.format;
        assert!(!words.contains("bit"), "{words}");
        let job = small(&case);
        let picture = make(&mut model, &job.request()).unwrap();
        let off = case::distance(&case.values(&format!("{}.latents.4", job.name)), &picture.latents[3]);
        assert!(off <= crate::LATENTS, "{}: {off} off", case.name);
    }
}
