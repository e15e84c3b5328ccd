//! Every golden case on every backend and tier: logits, hidden states, recurrent state, greedy text and prompt splits,
//! against outputs of the reference implementations.

mod case;
mod judge;
mod pairs;
mod runner;

use case::Case;
use judge::{Judged, Profile};
use onebit_backend_cpu::{CpuBackend, CpuOptions, Tier};
use onebit_backend_cuda::{CudaBackend, CudaOptions};
use onebit_backend_wgpu::{WgpuBackend, WgpuOptions};
use onebit_conformance::mock::MockDevice;
use onebit_ops::reference::Reference;
use onebit_ops::{Activations, Backend};
use runner::Runner;
use std::sync::Arc;

/// All prompts of a case whole, then greedy text, decode steps and states; panics with every finding of the backend.
fn check(backend: &Arc<dyn Backend>, activations: Activations, profile: Profile) {
    let cases = Case::all();
    assert!(cases.len() >= 11, "only {} golden cases found", cases.len());
    let mut findings = Vec::new();
    for case in &cases {
        let runner = Runner::new(case, backend, activations);
        let mut judged = Judged::new(case, profile);
        for n in case.prompt_lengths() {
            let ids = case.ids(&format!("ids.{n}"));
            let got = runner.logits(&ids, &[ids.len()]);
            judged.logits(&format!("logits.{n}"), &got);
        }
        if profile == Profile::F32 {
            exact(case, &runner, &mut judged);
        }
        findings.extend(judged.findings());
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// What only f32 activations are judged by: greedy ids, hidden states, decode steps, recurrent state.
fn exact(case: &Case, runner: &Runner, judged: &mut Judged<'_>) {
    for n in [7, 65] {
        let ids = runner.greedy(&case.ids(&format!("ids.{n}")), 32);
        judged.ids(&format!("greedy.ids.{n}"), &ids);
    }
    if case.has("hidden.7") {
        let (hidden, last) = runner.hidden(&case.ids("ids.7"));
        judged.values("hidden.7", &hidden);
        judged.values("final_norm.7", &last);
    }
    if case.has("decode5.ids") {
        let logits = runner.decode_after(&case.ids("ids.65"), &case.ids("decode5.ids"));
        judged.logits("decode5.logits", &logits);
    }
    if case.has("state.rec.after65.layer0") {
        let state = runner.state_after(&case.ids("ids.65"));
        judged.values("state.rec.after65.layer0", &state.delta);
        // The golden window is (channels, kernel) with the oldest of four columns unused by a window of three.
        let kernel = case.shape("state.conv.after65.layer0")[1];
        let channels = state.window.len() / (kernel - 1);
        let expected = case.values("state.conv.after65.layer0");
        let newest: Vec<f32> = (1..kernel)
            .flat_map(|j| (0..channels).map(move |c| (c, j)))
            .map(|(c, j)| expected[c * kernel + j])
            .collect();
        judged.compare("state.conv.after65.layer0", &newest, &state.window);
    }
}

/// How a prompt is cut concerns the architecture, not the format: one dense model and two head shapes of the hybrid.
const SPLIT_CASES: [&str; 3] = ["qwen3_1bit_tied_yarn", "qwen35_1bit_untied", "qwen35_1bit_tied_ld64"];

/// A prompt cut in any way gives the same logits, to the f32 bound.
fn check_splits(backend: &Arc<dyn Backend>) {
    let mut findings = Vec::new();
    for case in Case::all().into_iter().filter(|c| SPLIT_CASES.contains(&c.name.as_str())) {
        let runner = Runner::new(&case, backend, Activations::F32);
        let ids = case.ids("ids.130");
        for sizes in [vec![1], vec![7], vec![64], vec![65], vec![64, 1, 65], vec![3, 128]] {
            let got = runner.logits(&ids, &sizes);
            let mut judged = Judged::new(&case, Profile::F32);
            judged.logits("logits.130", &got);
            findings.extend(judged.findings().into_iter().map(|f| format!("{f} (chunks {sizes:?})")));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

fn tiers() -> Vec<(Tier, Arc<dyn Backend>)> {
    let open = |tier| -> Arc<dyn Backend> {
        let options = CpuOptions { threads: Some(2), tier: Some(tier) };
        Arc::new(CpuBackend::new(options).expect("an available tier opens"))
    };
    // Tiers with and without VNNI differ only in blocks of 4 and 8 bits, which conformance compares.
    let vnni = |tier: &Tier| matches!(tier.name(), "avx512" | "avxvnni");
    let best = Tier::best();
    Tier::available().into_iter().filter(|t| *t == best || !vnni(t)).map(|t| (t, open(t))).collect()
}

/// The GPU, where there is one.
fn cuda() -> Option<Arc<dyn Backend>> {
    match CudaBackend::new(CudaOptions::default()) {
        Ok(backend) => Some(Arc::new(backend)),
        Err(error) => {
            // `cargo xtask gpu-check` asks for it: there a missing GPU is a failure.
            assert_ne!(std::env::var("ONEBIT_TEST_BACKEND").as_deref(), Ok("cuda"), "{error}");
            eprintln!("not run: {error}");
            None
        }
    }
}

#[test]
fn cuda_equals_the_goldens_in_f32() {
    cuda().iter().for_each(|backend| check(backend, Activations::F32, Profile::F32));
}

#[test]
fn cuda_stays_within_the_int8_profile() {
    for activations in [Activations::I8G128, Activations::I9G128] {
        cuda().iter().for_each(|backend| check(backend, activations, Profile::Int8));
    }
}

#[test]
fn cuda_gives_the_same_logits_however_a_prompt_is_split() {
    cuda().iter().for_each(check_splits);
}

/// An adapter where one is asked for; a software adapter would take minutes that nobody expects.
fn wgpu() -> Option<Arc<dyn Backend>> {
    if std::env::var("ONEBIT_TEST_BACKEND").as_deref() != Ok("wgpu") {
        eprintln!("not run: ONEBIT_TEST_BACKEND is not wgpu");
        return None;
    }
    Some(Arc::new(WgpuBackend::new(WgpuOptions::default()).expect("an adapter was asked for")))
}

#[test]
fn wgpu_equals_the_goldens_in_f32() {
    wgpu().iter().for_each(|backend| check(backend, Activations::F32, Profile::F32));
}

#[test]
fn wgpu_stays_within_the_int8_profile() {
    for activations in [Activations::I8G128, Activations::I9G128] {
        wgpu().iter().for_each(|backend| check(backend, activations, Profile::Int8));
    }
}

#[test]
fn wgpu_gives_the_same_logits_however_a_prompt_is_split() {
    wgpu().iter().for_each(check_splits);
}

#[test]
fn reference_equals_the_goldens_in_f32() {
    let backend: Arc<dyn Backend> = Arc::new(Reference::new());
    check(&backend, Activations::F32, Profile::F32);
}

#[test]
fn reference_stays_within_the_int8_profile() {
    let backend: Arc<dyn Backend> = Arc::new(Reference::new());
    check(&backend, Activations::I8G128, Profile::Int8);
}

#[test]
fn mock_device_equals_the_goldens_in_f32() {
    let backend: Arc<dyn Backend> = Arc::new(MockDevice::new());
    check(&backend, Activations::F32, Profile::F32);
}

#[test]
fn every_cpu_tier_equals_the_goldens_in_f32() {
    for (_, backend) in tiers() {
        check(&backend, Activations::F32, Profile::F32);
    }
}

#[test]
fn every_cpu_tier_stays_within_the_int8_profile() {
    for (_, backend) in tiers() {
        for activations in [Activations::I8G128, Activations::I9G128] {
            check(&backend, activations, Profile::Int8);
        }
    }
}

#[test]
fn prompts_split_in_any_way_give_the_same_logits() {
    let mut backends: Vec<Arc<dyn Backend>> = vec![Arc::new(Reference::new()), Arc::new(MockDevice::new())];
    backends.extend(tiers().into_iter().map(|(_, backend)| backend));
    backends.iter().for_each(check_splits);
}
