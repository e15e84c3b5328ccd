//! The golden image models on the reference and on every tier of the processor, against the reference pipeline; and what users
//! of image models have met elsewhere.

mod case;
mod forecasts;
mod original;
mod users;

use case::{Case, Job};
use onebit_backend_cpu::{CpuBackend, CpuOptions, Tier};
use onebit_backend_cuda::{CudaBackend, CudaOptions};
use onebit_backend_wgpu::{WgpuBackend, WgpuOptions};
use onebit_engine::image::Picture;
use onebit_models::image::schedule::{self, Shift};
use onebit_ops::reference::Reference;
use onebit_ops::{Activations, Backend};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Limits of the reference pipeline in f32: what stands in `testdata/README.md`. Two of its own runs, one in float64, differ
/// by 7e-6 in the flow; the sinusoids of the time add 1e-4, since at a thousand radians one unit of f32 turns an angle by 4e-5.
const EMBEDDINGS: f32 = 3e-4;
const LATENTS: f32 = 3e-4;

/// Every job of every case in f32: latents after each step, pixels within one level.
fn exact(backend: &Arc<dyn Backend>) {
    for case in Case::all() {
        let mut model = case.model(backend, Activations::F32);
        for job in case.jobs() {
            let picture = model.generate(&job.request(), &mut |_| ControlFlow::Continue(())).unwrap();
            judge(&case, &job, &picture);
        }
    }
}

fn judge(case: &Case, job: &Job, picture: &Picture) {
    let at = format!("{} {}", case.name, job.name);
    assert_eq!(picture.tokens, job.prompt_tokens, "{at}: tokens of the prompt");
    for (i, latents) in picture.latents.iter().enumerate() {
        let off = case::distance(&case.values(&format!("{}.latents.{}", job.name, i + 1)), latents);
        assert!(off <= LATENTS, "{at}: latents after step {} are {off} off", i + 1);
    }
    let worst = case.levels(job).iter().zip(&picture.rgb).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(worst <= Some(1), "{at}: a level is {worst:?} off");
}

#[test]
fn the_reference_in_f32() {
    let backend: Arc<dyn Backend> = Arc::new(Reference::new());
    exact(&backend);
}

#[test]
fn every_tier_of_the_processor_in_f32() {
    for tier in Tier::available() {
        let backend: Arc<dyn Backend> =
            Arc::new(CpuBackend::new(CpuOptions { threads: Some(2), tier: Some(tier) }).unwrap());
        exact(&backend);
    }
}

/// A device that runs image models, where there is one.
fn cuda() -> Option<Arc<dyn Backend>> {
    match CudaBackend::new(CudaOptions::default()) {
        Ok(backend) => Some(Arc::new(backend) as Arc<dyn Backend>).filter(|backend| backend.caps().images),
        Err(error) => {
            // Whoever asks for a device must not be told that all is well without one.
            assert_ne!(std::env::var("ONEBIT_TEST_BACKEND").as_deref(), Ok("cuda"), "{error}");
            println!("cuda did not run: {error}");
            None
        }
    }
}

#[test]
fn cuda_in_f32() {
    cuda().iter().for_each(exact);
}

/// An adapter where one is asked for; a software adapter would take minutes that nobody expects.
fn wgpu() -> Option<Arc<dyn Backend>> {
    if std::env::var("ONEBIT_TEST_BACKEND").as_deref() != Ok("wgpu") {
        println!("not run: ONEBIT_TEST_BACKEND is not wgpu");
        return None;
    }
    Some(Arc::new(WgpuBackend::new(WgpuOptions::default()).expect("an adapter was asked for")))
}

#[test]
fn wgpu_in_f32() {
    wgpu().iter().for_each(exact);
}

/// The text encoder by itself: every row that the golden file keeps, padding among them.
#[test]
fn embeddings_of_prompt_and_padding() {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    for case in Case::all() {
        let texts = case.text_encoder(&*backend);
        for job in case.jobs() {
            let ids = case.ids(&format!("{}.ids", job.name));
            let got = texts.read(&ids, job.prompt_tokens);
            for (name, first, rows) in job.kept_embeddings() {
                let cols = got.len() / ids.len();
                let off = case::distance(&case.values(&name), &got[first * cols..(first + rows) * cols]);
                assert!(off <= EMBEDDINGS, "{} {name}: {off} off", case.name);
            }
        }
    }
}

/// Hidden states of the first step, which say where a wrong flow comes from, and the flow itself.
#[test]
fn the_transformer_block_by_block() {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    for case in Case::all() {
        case.check_blocks(&*backend, LATENTS);
    }
}

/// With integer activations a picture stays at 40 dB and more from the f32 one. The simulation of the reference pipeline with
/// eight bits has 47 to 48 dB; 40 leaves a factor of two for a worse draw of the weights.
fn integers_keep_the_picture(backend: &Arc<dyn Backend>) {
    for case in Case::all() {
        for activations in [Activations::I8G128, Activations::I9G128] {
            let mut model = case.model(backend, activations);
            for job in case.jobs() {
                let picture = model.generate(&job.request(), &mut |_| ControlFlow::Continue(())).unwrap();
                let psnr = case::psnr(&case.levels(&job), &picture.rgb);
                println!("{} {} {activations}: {psnr:.1} dB", case.name, job.name);
                assert!(psnr >= 40.0, "{} {} {activations}: {psnr:.1} dB", case.name, job.name);
            }
        }
    }
}

#[test]
fn integer_activations_keep_the_picture() {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    integers_keep_the_picture(&backend);
}

#[test]
fn cuda_keeps_the_picture_with_integer_activations() {
    cuda().iter().for_each(integers_keep_the_picture);
}

#[test]
fn wgpu_keeps_the_picture_with_integer_activations() {
    wgpu().iter().for_each(integers_keep_the_picture);
}

/// The fixed shift of another runtime, which the checkpoints' own file names too.
#[test]
fn a_fixed_shift() {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    for case in Case::all() {
        let mut model = case.model(&backend, Activations::F32);
        for job in case.jobs() {
            let wanted = case.values(&format!("{}.mu3.sigmas", job.name));
            for (got, wanted) in schedule::sigmas(job.size.tokens(), 4, Shift::Fixed(3.0)).iter().zip(&wanted) {
                assert!((*got as f32 - wanted).abs() < 1e-6, "{got} for {wanted}");
            }
            let mut request = job.request();
            request.settings.shift = Shift::Fixed(3.0);
            let picture = model.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap();
            let wanted = case.values(&format!("{}.mu3.latents.4", job.name));
            let off = case::distance(&wanted, &picture.latents[3][..wanted.len()]);
            assert!(off <= LATENTS, "{} {}: {off} off", case.name, job.name);
        }
    }
}
