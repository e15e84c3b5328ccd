//! The contract of `onebit_ops::Backend` on a GPU.

use crate::adapter::{AdapterKind, Device, Found, NAME};
use crate::bandwidth::read_bandwidth;
use crate::cache::Memory;
use crate::memory::Buffer;
use crate::pipelines::Pipelines;
use crate::plan::{UnderWay, WgpuPlan, memory};
use crate::translated::Translated;
use crate::tuning::Tuning;
use crate::weight;
use onebit_ops::{
    Activations, Backend, Cache, CacheSpec, Caps, FormatSupport, Fusions, KvFormat, OpError, Plan, PlanOptions,
    Program, SlotState, StepInputs, StepOutput, Ticket, UploadOptions, Vector, Weight,
};
use onebit_quant::{Format, Matrix};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Wishes of whoever makes the backend.
#[derive(Debug, Clone, Default)]
pub struct WgpuOptions {
    /// Part of the adapter's name; without a wish what the variable `ONEBIT_WGPU_ADAPTER` names, or else a discrete GPU before
    /// an integrated one, and that before software.
    pub adapter: Option<String>,
    /// Bytes of one chunk of a weight, where that is less than the adapter can bind: for tests of weights that are cut.
    pub chunk_bytes: Option<u64>,
    /// Folder for what the driver makes of the kernels; without one every start waits for its compiler.
    pub kernel_cache: Option<PathBuf>,
    /// How products are cut; without a wish as it was measured and kept in the same folder.
    pub tuning: Option<Tuning>,
}

/// Runs programs on a GPU through Vulkan, Metal or DX12.
pub struct WgpuBackend {
    caps: Caps,
    device: Arc<Device>,
    pipelines: Pipelines,
    next_ticket: AtomicU64,
    under_way: Mutex<HashMap<Ticket, UnderWay>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held leaves whole values behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WgpuBackend {
    /// Opens the device. Kernels are translated when a plan first needs them.
    ///
    /// # Errors
    /// [`OpError::Device`] with one sentence: no driver, no such adapter, or one that lacks what the kernels need.
    pub fn new(options: WgpuOptions) -> Result<Self, OpError> {
        let wanted =
            options.adapter.or_else(|| std::env::var("ONEBIT_WGPU_ADAPTER").ok().filter(|name| !name.is_empty()));
        let tuning = |found: &Found| {
            let kept = || Tuning::read(options.kernel_cache.as_deref()?, found);
            options.tuning.or_else(kept).unwrap_or_default()
        };
        let device = Arc::new(Device::open(wanted.as_deref(), options.chunk_bytes, tuning)?);
        let pipelines = Pipelines::new(options.kernel_cache.and_then(|folder| Translated::open(&device, &folder)));
        let software = device.found.kind == AdapterKind::Software;
        let caps = Caps {
            name: NAME.to_owned(),
            device: device.describe(),
            activations: vec![Activations::F32, Activations::I8G128, Activations::I9G128],
            default_activations: Activations::I8G128,
            kv_formats: vec![KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4],
            prefill_rows: if software { 64 } else { 512 },
            asynchronous: true,
            images: true,
            tables_in_files: false,
        };
        Ok(WgpuBackend { caps, device, pipelines, next_ticket: AtomicU64::new(0), under_way: Mutex::default() })
    }

    /// The adapter in use.
    #[must_use]
    pub fn adapter(&self) -> &Found {
        &self.device.found
    }
}

impl Backend for WgpuBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn fusions(&self) -> Fusions {
        Fusions { norm: true, residual: true, swiglu: false }
    }

    fn format_support(&self, format: Format) -> FormatSupport {
        let layout = match (format.dense(), format.bits()) {
            (Some(kind), _) => format!("dense-{}", kind.name().to_lowercase()),
            (None, bits) => format!("bits{bits}"),
        };
        FormatSupport::Kernel(format!("{layout}/{}", self.device.found.api.to_lowercase()))
    }

    fn trial_key(&self) -> Option<String> {
        Some(self.device.found.key())
    }

    fn is_lost(&self) -> bool {
        self.device.is_lost()
    }

    fn read_bandwidth(&self) -> Result<Option<f64>, OpError> {
        read_bandwidth(&self.device, &self.pipelines)
    }

    fn upload(&self, name: &str, parts: &[Matrix<'_>], options: UploadOptions) -> Result<Weight, OpError> {
        weight::upload(&self.device, name, parts, options)
    }

    fn upload_vector(&self, values: &[f32]) -> Result<Vector, OpError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(Vector::new(values.len(), Arc::new(Buffer::holding(&self.device, &bytes, "a vector")?)))
    }

    fn cache(&self, spec: CacheSpec) -> Result<Cache, OpError> {
        Ok(Cache::new(spec, Arc::new(Memory::new(&self.device, spec)?)))
    }

    fn clear_slot(&self, cache: &Cache, slot: usize) -> Result<(), OpError> {
        memory(cache, &self.device)?.clear_slot(slot)
    }

    fn copy_slot(&self, cache: &Cache, from: usize, to: usize) -> Result<(), OpError> {
        memory(cache, &self.device)?.copy_slot(from, to)
    }

    fn copy_page(&self, cache: &Cache, from: u32, to: u32) -> Result<(), OpError> {
        memory(cache, &self.device)?.copy_page(from, to)
    }

    fn read_slot(&self, cache: &Cache, slot: usize, layer: usize) -> Result<SlotState, OpError> {
        memory(cache, &self.device)?.read_slot(slot, layer)
    }

    fn compile(&self, program: Program, cache: &Cache, options: PlanOptions) -> Result<Plan, OpError> {
        let program = program.lower(self.fusions());
        let plan = WgpuPlan::new(&self.device, &self.pipelines, program, cache.clone(), options.profile)?;
        self.pipelines.keep();
        Ok(Plan::new(Box::new(Arc::new(plan))))
    }

    fn run(&self, plan: &Plan, inputs: StepInputs) -> Result<Ticket, OpError> {
        let plan: &Arc<WgpuPlan> = plan.payload().ok_or(OpError::ForeignHandle("a plan"))?;
        let memory = memory(&plan.cache, &self.device)?;
        inputs.check(plan.program(), plan.cache.spec(), plan.vocab)?;
        let step = plan.submit(&self.pipelines, &mut memory.hold(), &inputs)?;
        let ticket = Ticket(self.next_ticket.fetch_add(1, Ordering::Relaxed));
        lock(&self.under_way).insert(ticket, step);
        Ok(ticket)
    }

    fn poll(&self, ticket: Ticket) -> Result<Option<StepOutput>, OpError> {
        let mut under_way = lock(&self.under_way);
        let missing = || OpError::Inputs(format!("step {} is not under way", ticket.0));
        if !under_way.get(&ticket).ok_or_else(missing)?.is_done()? {
            return Ok(None);
        }
        let step = under_way.remove(&ticket).ok_or_else(missing)?;
        drop(under_way);
        step.take().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_gone_is_a_clean_error() {
        if crate::adapters().is_empty() {
            return eprintln!("not run: no adapter");
        }
        let backend = WgpuBackend::new(WgpuOptions::default()).unwrap();
        backend.upload_vector(&[1.0]).unwrap();
        backend.device.device.destroy();
        assert!(!backend.is_lost());
        // The device says so when it is looked at.
        assert!(matches!(backend.device.look(), Err(OpError::Device { .. })));
        assert!(backend.is_lost());
        let spec = CacheSpec {
            kv: onebit_ops::KvSpec { layers: 1, heads: 1, dim: 64, pages: 1, format: KvFormat::F16 },
            state: None,
        };
        let gone = [backend.upload_vector(&[1.0]).map(drop), backend.cache(spec).map(drop)];
        for result in gone {
            assert!(matches!(result, Err(OpError::Device { .. })), "{result:?}");
        }
        // Another one opens beside what is left of it.
        let anew = WgpuBackend::new(WgpuOptions::default()).unwrap();
        anew.upload_vector(&[1.0]).unwrap();
        assert!(!anew.is_lost());
    }

    #[test]
    fn every_format_has_a_kernel_whose_name_says_what_runs() {
        if crate::adapters().is_empty() {
            return eprintln!("not run: no adapter");
        }
        let backend = WgpuBackend::new(WgpuOptions::default()).unwrap();
        for format in [Format::Q1_0, Format::Q2_0G128, Format::Pq2_0, Format::Ptq1_0, Format::Q4_1, Format::BF16] {
            let FormatSupport::Kernel(name) = backend.format_support(format) else {
                panic!("{format} is left to somebody else");
            };
            assert!(name.contains('/') && (name.starts_with("bits") || name.starts_with("dense-")), "{name}");
        }
    }

    #[test]
    fn an_adapter_that_is_not_there_is_refused_by_name() {
        let options = WgpuOptions { adapter: Some("no such adapter".to_owned()), ..WgpuOptions::default() };
        let Err(error) = WgpuBackend::new(options) else { panic!("an adapter has this name") };
        let text = error.to_string();
        assert!(text.contains("no such adapter") || text.contains("no driver"), "{text}");
    }
}
