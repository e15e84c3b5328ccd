//! One golden image model with its jobs and expected outputs.

use onebit::image_shape::ImageShape;
use onebit::source::Source;
use onebit::{load, side};
use onebit_checkpoint::{ImageFolders, image_folders};
use onebit_engine::image::{ImageModel, ImageOptions, ImageRequest, ImageSettings, ImageTree};
use onebit_models::LoadOptions;
use onebit_models::image::text_encoder::{self, TextEncoder};
use onebit_models::image::transformer::{Transformer, names};
use onebit_models::image::{ImagePart, ImageSize};
use onebit_ops::{
    Activations, Backend, CacheSpec, KvFormat, KvSpec, PlanOptions, Program, Segment, SourceError, StepInputs,
    StepOutput, WeightSource, wait,
};
use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A golden case.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    expected: Vec<u8>,
    facts: serde_json::Value,
}

/// One picture of a case.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) size: ImageSize,
    pub(crate) text_tokens: usize,
    pub(crate) prompt_tokens: usize,
    prompt: String,
    noise: Vec<f32>,
}

impl Job {
    pub(crate) fn request(&self) -> ImageRequest {
        let settings = ImageSettings { text_tokens: self.text_tokens, ..ImageSettings::new(self.size) };
        ImageRequest { prompt: self.prompt.clone(), settings, noise: self.noise.clone() }
    }

    /// Names of the embeddings that the golden file keeps, with their first row and how many.
    pub(crate) fn kept_embeddings(&self) -> Vec<(String, usize, usize)> {
        let name = |leaf: &str| format!("{}.prompt_embeds{leaf}", self.name);
        if self.text_tokens <= 128 {
            return vec![(name(""), 0, self.text_tokens)];
        }
        vec![(name(".first48"), 0, 48), (name(".last8"), self.text_tokens - 8, 8)]
    }
}

/// The files of a model.
pub(crate) struct Tree(pub(crate) ImageFolders);

impl Tree {
    fn source(&self, part: ImagePart) -> Source {
        let folder = match part {
            ImagePart::TextEncoder => &self.0.text_encoder,
            ImagePart::Transformer => &self.0.transformer,
            ImagePart::Vae => &self.0.vae,
        };
        load::open_any(folder, &load::Options::default()).unwrap()
    }
}

impl ImageTree for Tree {
    fn open(&self, part: ImagePart) -> Result<Box<dyn WeightSource + '_>, SourceError> {
        Ok(Box::new(self.source(part)))
    }
    fn tokenizer(&self) -> Result<Vec<u8>, SourceError> {
        Ok(side::read(&self.0.tokenizer).unwrap().unwrap())
    }
}

/// A model of the published size, made up.
pub(crate) struct Published(pub(crate) &'static str);

impl ImageTree for Published {
    fn open(&self, part: ImagePart) -> Result<Box<dyn WeightSource + '_>, SourceError> {
        Ok(Box::new(ImageShape::new(self.0, part).unwrap()))
    }
    fn tokenizer(&self) -> Result<Vec<u8>, SourceError> {
        Ok(std::fs::read(Case::all()[0].folder.join("tokenizer/tokenizer.json")).unwrap())
    }
}

/// A text encoder on a device.
pub(crate) struct Reader<'a> {
    backend: &'a dyn Backend,
    encoder: TextEncoder,
}

impl Reader<'_> {
    /// The output for padded ids of which the first `keys` are the prompt.
    pub(crate) fn read(&self, ids: &[u32], keys: usize) -> Vec<f32> {
        let program = self.encoder.program(ids.len(), keys, Activations::F32);
        let segment = Segment { rows: 0..ids.len(), slot: 0, pages: vec![], past: 0, accepted: 0, speculative: false };
        let inputs = StepInputs {
            tokens: ids.to_vec(),
            positions: (0..ids.len()).map(|p| [p as u32; 3]).collect(),
            segments: vec![segment],
            ..StepInputs::default()
        };
        run(self.backend, program, inputs).values.remove(text_encoder::OUTPUT).unwrap()
    }
}

fn run(backend: &dyn Backend, program: Program, inputs: StepInputs) -> StepOutput {
    let kv = KvSpec { layers: 0, heads: 0, dim: 0, pages: 0, format: KvFormat::F32 };
    let cache = backend.cache(CacheSpec { kv, state: None }).unwrap();
    let plan = backend.compile(program, &cache, PlanOptions::default()).unwrap();
    wait(backend, backend.run(&plan, inputs).unwrap()).unwrap()
}

fn values<const N: usize>(named: [(&str, Vec<f32>); N]) -> StepInputs {
    StepInputs { values: named.map(|(name, v)| (name.to_owned(), v)).into(), ..StepInputs::default() }
}

impl Case {
    /// Every case.
    pub(crate) fn all() -> Vec<Case> {
        // As the test runner says now: a built test may have been carried to another machine.
        let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&here).join("../../testdata/images");
        ["flux2_1bit", "flux2_2bit_ternary"].map(|name| Case::open(&root.join(name))).into()
    }

    fn open(folder: &Path) -> Case {
        let read =
            |name: &str| std::fs::read(folder.join(name)).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        Case {
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            expected: read("expected.safetensors"),
            facts: serde_json::from_slice(&read("expected.json")).unwrap(),
            folder: folder.to_owned(),
        }
    }

    /// A copy in `to` with every matrix as floats, in the folders of diffusers.
    pub(crate) fn unpack(&self, to: &Path) -> Case {
        let tree = self.tree();
        for (part, name, file) in [
            (ImagePart::TextEncoder, "text_encoder", "model.safetensors"),
            (ImagePart::Transformer, "transformer", "diffusion_pytorch_model.safetensors"),
            (ImagePart::Vae, "vae", "diffusion_pytorch_model.safetensors"),
        ] {
            let folder = match part {
                ImagePart::TextEncoder => &tree.0.text_encoder,
                ImagePart::Transformer => &tree.0.transformer,
                ImagePart::Vae => &tree.0.vae,
            };
            std::fs::create_dir(to.join(name)).unwrap();
            let mut config: serde_json::Value =
                serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
            config.as_object_mut().unwrap().retain(|key, _| !key.starts_with("quantization"));
            std::fs::write(to.join(name).join("config.json"), config.to_string()).unwrap();
            let source = tree.source(part);
            let mut tensors = Vec::new();
            for (tensor, shape) in source.tensors() {
                if tensor.ends_with(".scales") || tensor.ends_with(".biases") || tensor.ends_with("num_batches_tracked")
                {
                    continue;
                }
                let base = tensor.strip_suffix(".weight").filter(|_| shape.len() == 2);
                let matrix = base.and_then(|base| source.matrix(base).unwrap());
                let (shape, values) = match matrix {
                    Some(matrix) => {
                        let mut row = vec![0.0; matrix.cols];
                        let rows = (0..matrix.rows).flat_map(|r| {
                            matrix.decode_row(r, &mut row);
                            row.clone()
                        });
                        (vec![matrix.rows, matrix.cols], rows.collect::<Vec<f32>>())
                    }
                    None => {
                        let dense = source.dense(&tensor).unwrap().unwrap();
                        (dense.shape, dense.values)
                    }
                };
                tensors.push((tensor, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()));
            }
            let views = tensors.iter().map(|(name, shape, bytes)| {
                (name.clone(), safetensors::tensor::TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
            });
            safetensors::serialize_to_file(views, None, &to.join(name).join(file)).unwrap();
        }
        std::fs::create_dir(to.join("tokenizer")).unwrap();
        std::fs::copy(&tree.0.tokenizer, to.join("tokenizer/tokenizer.json")).unwrap();
        self.moved(to)
    }

    /// The same with other files: a folder, or the file of a transformer.
    pub(crate) fn moved(&self, to: &Path) -> Case {
        Case {
            name: self.name.clone(),
            folder: to.to_owned(),
            expected: self.expected.clone(),
            facts: self.facts.clone(),
        }
    }

    pub(crate) fn tree(&self) -> Tree {
        Tree(image_folders(&self.folder).unwrap())
    }

    pub(crate) fn model(&self, backend: &Arc<dyn Backend>, activations: Activations) -> ImageModel {
        let options = ImageOptions { activations, keep_biases: false, free_bytes: None };
        ImageModel::open(Box::new(self.tree()), backend.clone(), options).unwrap()
    }

    pub(crate) fn text_encoder<'a>(&self, backend: &'a dyn Backend) -> Reader<'a> {
        let source = self.tree().source(ImagePart::TextEncoder);
        let encoder = TextEncoder::load(&source, backend, LoadOptions::default(), &mut |_| {}).unwrap();
        Reader { backend, encoder }
    }

    pub(crate) fn jobs(&self) -> Vec<Job> {
        let jobs = self.facts["jobs"].as_object().unwrap().iter();
        jobs.map(|(name, job)| {
            let count = |key: &str| job[key].as_u64().unwrap() as usize;
            Job {
                name: name.clone(),
                size: ImageSize::new(count("width"), count("height")).unwrap(),
                text_tokens: count("max_sequence_length"),
                prompt_tokens: count("n_prompt_tokens"),
                prompt: job["prompt"].as_str().unwrap().to_owned(),
                noise: self.values(&format!("{name}.latents.0")),
            }
        })
        .collect()
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.expected).unwrap()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors().tensor(name).is_ok()
    }

    /// A float tensor, widened to f32.
    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        let tensors = self.tensors();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{}: {name}: {e}", self.name));
        match tensor.dtype() {
            Dtype::F32 => tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::F16 => {
                tensor.data().as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect()
            }
            other => panic!("{name} is {other:?}"),
        }
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        let tensors = self.tensors();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{}: {name}: {e}", self.name));
        assert_eq!(tensor.dtype(), Dtype::I32, "{name}");
        tensor.data().as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    /// The expected picture in levels, `(height, width, 3)`: the decoder's output, which has the channels outside.
    pub(crate) fn levels(&self, job: &Job) -> Vec<u8> {
        let name = format!("{}.vae_out", job.name);
        let planes = self.values(&if self.has(&name) { name } else { format!("{name}.f16") });
        let pixels = job.size.width() * job.size.height();
        let level = |v: f32| ((v / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
        (0..pixels).flat_map(|p| [0, 1, 2].map(|c| level(planes[c * pixels + p]))).collect()
    }

    /// Everything that the golden file keeps of the first step, within `limit` of the largest value of its kind.
    pub(crate) fn check_blocks(&self, backend: &dyn Backend, limit: f32) {
        let source = self.tree().source(ImagePart::Transformer);
        let transformer = Transformer::load(&source, backend, LoadOptions::default(), &mut |_| {}).unwrap();
        let mut compared = 0;
        for job in self.jobs().into_iter().filter(|j| self.has(&format!("{}.prompt_embeds", j.name))) {
            let expected = |leaf: &str| self.values(&format!("{}.{leaf}", job.name));
            let rows = job.text_tokens;
            let prompt = values([(names::PROMPT, expected("prompt_embeds"))]);
            let text = run(backend, transformer.context_program(rows), prompt).values.remove(names::TEXT).unwrap();
            let inputs = values([
                (names::TEXT, text),
                (names::LATENTS, job.noise.clone()),
                (names::TIME, expected("tproj")[..256].to_vec()),
                (names::ANGLES, transformer.angles(job.size, rows)),
            ]);
            let output = run(backend, transformer.program(job.size, rows, Activations::F32, true), inputs);
            let mut pairs =
                vec![("temb".to_owned(), "temb.0".to_owned()), ("flow".to_owned(), "noise_pred.0".to_owned())];
            for i in 0..2 {
                pairs.push((format!("double.{i}.image"), format!("step0.double.{i}.img")));
                pairs.push((format!("double.{i}.text"), format!("step0.double.{i}.txt")));
            }
            for i in [0, 2] {
                pairs.push((format!("single.{i}"), format!("step0.single.{i}")));
            }
            for (ours, theirs) in pairs {
                let wanted = expected(&theirs);
                let largest = wanted.iter().fold(1.0f32, |m, v| m.max(v.abs()));
                let off = distance(&wanted, &output.values[&ours]);
                println!("{} {theirs}: {off:e} of {largest}", self.name);
                assert!(off <= limit * largest, "{} {theirs}: {off} off", self.name);
                compared += 1;
            }
        }
        assert!(compared >= 8, "{}: only {compared} states compared", self.name);
    }
}

/// Largest difference.
pub(crate) fn distance(wanted: &[f32], got: &[f32]) -> f32 {
    assert_eq!(wanted.len(), got.len());
    let off = |(a, b): (&f32, &f32)| if a == b { 0.0 } else { (a - b).abs() };
    wanted.iter().zip(got).map(off).fold(0.0, |m, v| if v.is_nan() { f32::INFINITY } else { m.max(v) })
}

/// Peak signal to noise of levels, in decibels.
pub(crate) fn psnr(wanted: &[u8], got: &[u8]) -> f64 {
    assert_eq!(wanted.len(), got.len());
    let square = |(a, b): (&u8, &u8)| f64::from(a.abs_diff(*b)).powi(2);
    let mean = wanted.iter().zip(got).map(square).sum::<f64>() / wanted.len() as f64;
    10.0 * (255.0f64.powi(2) / mean.max(1e-12)).log10()
}
