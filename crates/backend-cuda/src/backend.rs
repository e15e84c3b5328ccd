//! The contract of `onebit_ops::Backend` on a GPU.

use crate::bandwidth::read_bandwidth;
use crate::cache::Memory;
use crate::driver::{Device, NAME};
use crate::memory::Buffer;
use crate::module::Kernels;
use crate::plan::{CudaPlan, UnderWay, memory};
use crate::weight::Loader;
use crate::{Arch, driver};
use onebit_ops::{
    Activations, Backend, Cache, CacheSpec, Caps, FormatSupport, Fusions, KvFormat, OpError, Plan, PlanOptions,
    Program, SlotState, StepInputs, StepOutput, Ticket, UploadOptions, Vector, Weight,
};
use onebit_quant::{Format, Matrix};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Wishes of whoever makes the backend.
#[derive(Debug, Clone, Default)]
pub struct CudaOptions {
    /// Code path; without a wish what the variable `ONEBIT_CUDA_ARCH` names, or else the newest that the device runs.
    pub arch: Option<Arch>,
}

/// Runs programs on the first GPU that `CUDA_VISIBLE_DEVICES` leaves.
pub struct CudaBackend {
    caps: Caps,
    device: Arc<Device>,
    kernels: OnceLock<Arc<Kernels>>,
    loader: Loader,
    next_ticket: AtomicU64,
    under_way: Mutex<HashMap<Ticket, UnderWay>>,
}

/// Whether the driver's library is on this machine, working or not.
#[must_use]
pub fn driver_is_installed() -> bool {
    driver::is_installed()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held leaves whole values behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaBackend {
    /// Opens the device. Kernels are loaded when they are first needed, or by [`CudaBackend::prepare`].
    ///
    /// # Errors
    /// [`OpError::Device`] with one sentence: no driver or one too old, no device or one too old, a code path that does not
    /// exist or that the device does not run.
    pub fn new(options: CudaOptions) -> Result<Self, OpError> {
        let device = Arc::new(Device::open(options.arch)?);
        let caps = Caps {
            name: NAME.to_owned(),
            device: device.describe(),
            activations: vec![Activations::F32, Activations::I8G128, Activations::I9G128],
            default_activations: Activations::I8G128,
            kv_formats: vec![KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4],
            prefill_rows: 2048,
            asynchronous: true,
            images: device.arch.runs_images(),
            tables_in_files: false,
        };
        Ok(CudaBackend {
            caps,
            loader: Loader::new(&device),
            device,
            kernels: OnceLock::new(),
            next_ticket: AtomicU64::new(0),
            under_way: Mutex::default(),
        })
    }

    /// Loads the kernels. On a device newer than all code paths that takes some seconds for the first time.
    ///
    /// # Errors
    /// [`OpError::Device`] when the driver does not accept them.
    pub fn prepare(&self) -> Result<(), OpError> {
        self.kernels().map(drop)
    }

    /// The code path in use.
    #[must_use]
    pub fn arch(&self) -> Arch {
        self.device.arch
    }

    fn kernels(&self) -> Result<&Arc<Kernels>, OpError> {
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let loaded = Arc::new(Kernels::load(&self.device)?);
        // Two threads may both have loaded them; one copy is kept.
        Ok(self.kernels.get_or_init(|| loaded))
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // Steps on their way write to memory that goes with the backend.
        if let Err(OpError::Device { .. }) = self.device.synchronize() {
            lock(&self.under_way).drain().for_each(|(_, step)| std::mem::forget(step));
        }
    }
}

impl Backend for CudaBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn fusions(&self) -> Fusions {
        Fusions { norm: true, residual: true, swiglu: true }
    }

    fn format_support(&self, format: Format) -> FormatSupport {
        let layout = match (format.dense(), format.bits()) {
            (Some(kind), _) => format!("dense-{}", kind.name().to_lowercase()),
            (None, bits) => format!("bits{bits}"),
        };
        FormatSupport::Kernel(format!("{layout}/{}", self.device.arch.name()))
    }

    fn free_memory(&self) -> Result<Option<u64>, OpError> {
        self.device.free_bytes().map(Some)
    }

    fn read_bandwidth(&self) -> Result<Option<f64>, OpError> {
        read_bandwidth(&self.device, self.kernels()?).map(Some)
    }

    fn upload(&self, name: &str, parts: &[Matrix<'_>], options: UploadOptions) -> Result<Weight, OpError> {
        self.loader.upload(name, parts, options)
    }

    fn upload_vector(&self, values: &[f32]) -> Result<Vector, OpError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(Vector::new(values.len(), Arc::new(Buffer::holding(&self.device, &bytes, "a vector")?)))
    }

    fn cache(&self, spec: CacheSpec) -> Result<Cache, OpError> {
        self.loader.rest()?;
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
        let plan = CudaPlan::new(&self.device, self.kernels()?, program, cache.clone(), options.profile)?;
        Ok(Plan::new(Box::new(Arc::new(plan))))
    }

    fn run(&self, plan: &Plan, inputs: StepInputs) -> Result<Ticket, OpError> {
        let plan: &Arc<CudaPlan> = plan.payload().ok_or(OpError::ForeignHandle("a plan"))?;
        let memory = memory(&plan.cache, &self.device)?;
        inputs.check(plan.program(), plan.cache.spec(), plan.vocab)?;
        let step = plan.submit(&mut memory.hold(), &inputs)?;
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
