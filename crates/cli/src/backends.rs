//! The choice of a backend. The only place that names one.

use crate::args::{BackendName, RunOptions};
use crate::{kept, memory, terminal, trial};
use anyhow::{Context, Result, bail};
use onebit_backend_cpu::{CpuBackend, CpuOptions, Tier};
use onebit_backend_cuda::{CudaBackend, CudaOptions};
use onebit_backend_wgpu::{AdapterKind, Tuning, WgpuBackend, WgpuOptions};
use onebit_ops::reference::Reference;
use onebit_ops::{Backend, FormatSupport, OpError};
use onebit_quant::{Format, ParamType};
use std::sync::Arc;

/// Opens the backend that was asked for, ready to run a model.
///
/// `auto` takes a GPU when one works: through CUDA, else through wgpu after a trial. When there is a GPU and it is not taken,
/// one line says why, unless `quiet`; a machine without any driver is no news, nor is one with a software adapter.
///
/// # Errors
/// When it is not there; only `auto` goes on to another one, and says so.
pub fn open(options: &RunOptions, quiet: bool) -> Result<Arc<dyn Backend>> {
    let ready = || cuda().and_then(|cuda| cuda.prepare().map(|()| cuda));
    choose(options.backend, options.threads, ready, true, quiet)
}

/// Opens a backend that runs image models: the one asked for, or, where `auto` would take a GPU that does not, the processor;
/// that is said unless `quiet`.
///
/// # Errors
/// As [`open`], and a backend asked for by name that does not run image models.
pub fn open_for_images(options: &RunOptions, quiet: bool) -> Result<Arc<dyn Backend>> {
    let backend = open(options, quiet)?;
    let caps = backend.caps();
    if caps.images {
        return Ok(backend);
    }
    if options.backend != BackendName::Auto {
        bail!("the {} backend does not run image models; --backend cpu does", caps.name);
    }
    if !quiet {
        terminal::say(&format!(
            "note: the processor is used, because the {} backend does not run image models",
            caps.name
        ));
    }
    open(&RunOptions { backend: BackendName::Cpu, ..options.clone() }, quiet)
}

/// Opens a backend to look at what it can do: a GPU's kernels are not loaded yet.
///
/// # Errors
/// As [`open`].
pub fn open_to_look(name: BackendName, threads: Option<usize>) -> Result<Arc<dyn Backend>> {
    choose(name, threads, cuda, false, false)
}

fn choose(
    name: BackendName,
    threads: Option<usize>,
    cuda: impl FnOnce() -> Result<CudaBackend, OpError>,
    tried: bool,
    quiet: bool,
) -> Result<Arc<dyn Backend>> {
    let cpu = || -> Result<Arc<dyn Backend>> { Ok(Arc::new(CpuBackend::new(CpuOptions { threads, tier: None })?)) };
    let note = |text: &str| {
        if !quiet {
            terminal::say(&format!("note: {text}"));
        }
    };
    match name {
        BackendName::Reference => Ok(Arc::new(Reference::new())),
        BackendName::Cpu => cpu(),
        BackendName::Cuda => match cuda() {
            Ok(backend) => Ok(Arc::new(backend)),
            Err(error) => bail!("{error}; --backend cpu uses the processor"),
        },
        BackendName::Wgpu => match WgpuBackend::new(wgpu()) {
            Ok(backend) => {
                if backend.adapter().kind == AdapterKind::Software {
                    let name = &backend.adapter().name;
                    note(&format!("{name} is a software adapter, which is slower than --backend cpu"));
                }
                Ok(Arc::new(backend))
            }
            Err(error) => bail!("{error}; --backend cpu uses the processor"),
        },
        BackendName::Auto => {
            let mut why = Vec::new();
            if onebit_backend_cuda::driver_is_installed() {
                match cuda() {
                    Ok(backend) => return Ok(Arc::new(backend)),
                    Err(error) => why.push(format!("CUDA cannot start: {error}")),
                }
            }
            match hardware(tried, threads) {
                Ok(Some(backend)) => {
                    why.iter().for_each(|why| note(&format!("the GPU is used through wgpu, because {why}")));
                    return Ok(backend);
                }
                Ok(None) => {}
                Err(error) => why.push(format!("{error:#}")),
            }
            if !why.is_empty() {
                note(&format!("the processor is used, because {}", why.join(", and ")));
            }
            cpu()
        }
    }
}

/// The GPU through wgpu, unless there is none but software; where `tried`, only one that stands the trial.
fn hardware(tried: bool, threads: Option<usize>) -> Result<Option<Arc<dyn Backend>>> {
    if !onebit_backend_wgpu::gpu_is_possible() {
        return Ok(None);
    }
    let adapters = onebit_backend_wgpu::adapters();
    let Some(first) = adapters.iter().find(|a| a.kind != AdapterKind::Software) else { return Ok(None) };
    let backend = WgpuBackend::new(WgpuOptions { adapter: Some(first.name.clone()), ..wgpu() })?;
    if tried {
        let cpu = CpuBackend::new(CpuOptions { threads, tier: None })?;
        if let Some(objection) = trial::objection(&backend, first, &cpu)? {
            bail!("{} was tried: {objection}", first.describe());
        }
    }
    Ok(Some(Arc::new(backend)))
}

fn cuda() -> Result<CudaBackend, OpError> {
    CudaBackend::new(CudaOptions::default())
}

/// Wishes for a GPU through wgpu: translated kernels are kept among the user's caches where there is a folder for them.
fn wgpu() -> WgpuOptions {
    let kernel_cache = kept::caches().ok().map(|caches| caches.join("wgpu"));
    WgpuOptions { kernel_cache, ..WgpuOptions::default() }
}

/// One way to cut products, and how long one then takes.
pub struct Tried {
    /// In words.
    pub choice: String,
    /// Of a product of one row.
    pub seconds: f64,
}

/// Measures every way to cut products on the GPU that wgpu takes, and keeps the fastest for later runs. Returns the device and all of
/// them, the fastest first.
///
/// # Errors
/// No such GPU, and no place to keep the choice.
pub fn tune() -> Result<(String, Vec<Tried>)> {
    let folder = kept::caches()?.join("wgpu");
    let mut tried = Vec::new();
    for choice in Tuning::choices() {
        let backend = WgpuBackend::new(WgpuOptions { tuning: Some(choice), ..wgpu() })?;
        tried.push((choice, trial::seconds(&backend)?, backend.adapter().clone()));
    }
    tried.sort_by(|a, b| a.1.total_cmp(&b.1));
    let Some((best, _, adapter)) = tried.first() else { bail!("there is nothing to choose from") };
    best.keep(&folder, adapter).with_context(|| folder.display().to_string())?;
    let device = adapter.describe();
    Ok((device, tried.iter().map(|(c, seconds, _)| Tried { choice: c.describe(), seconds: *seconds }).collect()))
}

/// One way to run on this machine, for reports and checks.
pub struct Candidate {
    /// `reference`, `cpu/avx2`, `cuda/90a`, `wgpu/vulkan`.
    pub name: String,
    /// It.
    pub backend: Arc<dyn Backend>,
}

/// Every way to run on this machine, and why others of the program's design are none.
pub struct Machine {
    /// The reference first.
    pub candidates: Vec<Candidate>,
    /// Name and reason.
    pub absent: Vec<(&'static str, String)>,
}

/// Looks for every backend and tier. A software adapter counts only when `asked` for by name.
///
/// # Errors
/// A tier that was found and cannot be opened.
pub fn all(asked: BackendName, threads: Option<usize>) -> Result<Machine> {
    let mut candidates = vec![Candidate { name: "reference".to_owned(), backend: Arc::new(Reference::new()) }];
    for tier in Tier::available() {
        let backend = Arc::new(CpuBackend::new(CpuOptions { threads, tier: Some(tier) })?);
        candidates.push(Candidate { name: format!("cpu/{}", tier.name()), backend });
    }
    let mut absent = Vec::new();
    match cuda() {
        Ok(backend) => {
            candidates.push(Candidate { name: format!("cuda/{}", backend.arch().name()), backend: Arc::new(backend) });
        }
        Err(OpError::Device { message, .. }) => absent.push(("cuda", message)),
        Err(error) => absent.push(("cuda", error.to_string())),
    }
    if asked != BackendName::Wgpu && !onebit_backend_wgpu::gpu_is_possible() {
        absent.push(("wgpu", "this machine has no GPU".to_owned()));
        return Ok(Machine { candidates, absent });
    }
    match WgpuBackend::new(wgpu()) {
        Ok(backend) if backend.adapter().kind == AdapterKind::Software && asked != BackendName::Wgpu => {
            let name = backend.adapter().describe();
            absent.push(("wgpu", format!("{name} only, which --backend wgpu asks for by name")));
        }
        Ok(backend) => {
            let name = format!("wgpu/{}", backend.adapter().api.to_lowercase());
            candidates.push(Candidate { name, backend: Arc::new(backend) });
        }
        Err(OpError::Device { message, .. }) => absent.push(("wgpu", message)),
        Err(error) => absent.push(("wgpu", error.to_string())),
    }
    Ok(Machine { candidates, absent })
}

/// Whether a backend has kernels for weights that a repository names so: `Q1_0`, `MLX 1-bit`, ...
#[must_use]
pub fn runs_file(backend: &dyn Backend, name: &str) -> bool {
    let affine = |bits| Format::Affine { bits, group: 128, scale: ParamType::F16, bias: ParamType::F16 };
    let format = match name {
        "MLX 1-bit" => affine(1),
        "MLX 2-bit" => affine(2),
        "Q1_0" => Format::Q1_0,
        "Q2_0" => Format::Q2_0G128,
        "Q2_0_g64" => Format::Q2_0G64,
        "PQ2_0" => Format::Pq2_0,
        "PTQ1_0" => Format::Ptq1_0,
        "Q4_0" => Format::Q4_0,
        "Q4_1" => Format::Q4_1,
        "Q8_0" => Format::Q8_0,
        "F16" => Format::F16,
        "BF16" | "safetensors" => Format::BF16,
        "F32" => Format::F32,
        _ => return false,
    };
    matches!(backend.format_support(format), FormatSupport::Kernel(_))
}

/// Bytes that a backend's device could still take: its own memory, or the machine's.
///
/// # Errors
/// A device that does not answer.
pub fn free_memory(backend: &dyn Backend) -> Result<u64> {
    Ok(backend.free_memory()?.unwrap_or_else(memory::free))
}
