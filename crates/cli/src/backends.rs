//! The choice of a backend. The only place that names one.

use crate::args::{BackendName, RunOptions};
use anyhow::{Result, bail};
use onebit_backend_cpu::{CpuBackend, CpuOptions, Tier};
use onebit_ops::reference::Reference;
use onebit_ops::{Backend, FormatSupport};
use onebit_quant::{Format, ParamType};
use std::sync::Arc;

/// Opens the backend that was asked for.
///
/// # Errors
/// When it is not there; `auto` never fails over in silence.
pub fn open(options: &RunOptions) -> Result<Arc<dyn Backend>> {
    open_named(options.backend, options.threads)
}

/// As [`open`], for commands without the other options.
///
/// # Errors
/// When it is not there.
pub fn open_named(name: BackendName, threads: Option<usize>) -> Result<Arc<dyn Backend>> {
    match name {
        BackendName::Reference => Ok(Arc::new(Reference::new())),
        BackendName::Auto | BackendName::Cpu => Ok(Arc::new(CpuBackend::new(CpuOptions { threads, tier: None })?)),
        BackendName::Cuda | BackendName::Wgpu => {
            bail!("this build of onebit has no {} backend; use --backend cpu", name.as_str())
        }
    }
}

/// One way to run on this machine, for reports and checks.
pub struct Candidate {
    /// `reference`, `cpu/avx2`.
    pub name: String,
    /// It.
    pub backend: Arc<dyn Backend>,
}

/// Every backend and tier of this machine, the reference first.
///
/// # Errors
/// A tier that was found and cannot be opened.
pub fn all(threads: Option<usize>) -> Result<Vec<Candidate>> {
    let mut out = vec![Candidate { name: "reference".to_owned(), backend: Arc::new(Reference::new()) }];
    for tier in Tier::available() {
        let backend = Arc::new(CpuBackend::new(CpuOptions { threads, tier: Some(tier) })?);
        out.push(Candidate { name: format!("cpu/{}", tier.name()), backend });
    }
    Ok(out)
}

/// Backends of the program's design that this build lacks.
pub const ABSENT: [&str; 2] = ["cuda", "wgpu"];

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

/// GB/s that the chosen device reads, measured now; `None` where it cannot be measured.
///
/// # Errors
/// Too little memory for the probe.
pub fn read_bandwidth(options: &RunOptions) -> Result<Option<f64>> {
    match options.backend {
        BackendName::Auto | BackendName::Cpu => {
            let threads = match options.threads {
                Some(threads) => threads,
                None => CpuBackend::new(CpuOptions::default())?.threads(),
            };
            Ok(Some(onebit_backend_cpu::measure_read_bandwidth(threads)?))
        }
        BackendName::Reference | BackendName::Cuda | BackendName::Wgpu => Ok(None),
    }
}
