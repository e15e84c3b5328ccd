//! The driver, found at run time, and the one device and stream that a backend works on.

use crate::Arch;
use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use cudarc::driver::{CudaContext, CudaStream};
use onebit_ops::OpError;
use std::sync::{Arc, Mutex};

/// The backend's name in reports and errors.
pub(crate) const NAME: &str = "cuda";

/// The oldest CUDA version whose driver runs the embedded code (as `cuDriverGetVersion` counts), and the first driver
/// that has it.
const LEAST_VERSION: (i32, &str) = (12_000, "525");

/// A fault of the device or its driver.
pub(crate) fn fault(message: impl Into<String>) -> OpError {
    OpError::Device { backend: NAME.to_owned(), message: message.into() }
}

/// Turns the driver's codes into sentences.
pub(crate) trait During<T> {
    /// What was being done, such as `copying to the device`.
    fn during(self, what: &str) -> Result<T, OpError>;
}

impl<T> During<T> for Result<T, DriverError> {
    fn during(self, what: &str) -> Result<T, OpError> {
        self.map_err(|error| fault(format!("{what}: {}", words(error))))
    }
}

/// The driver's words for an error.
pub(crate) fn words(error: DriverError) -> String {
    match (error.error_string(), error.error_name()) {
        (Ok(text), Ok(name)) => format!("{} ({})", text.to_string_lossy(), name.to_string_lossy()),
        _ => format!("error {}", error.0 as u32),
    }
}

/// Too little memory on the device, in numbers.
pub(crate) fn out_of_memory(wanted: u64, what: &str, available: u64) -> OpError {
    OpError::OutOfMemory { what: what.to_owned(), backend: NAME.to_owned(), wanted, available }
}

/// A device with the stream that everything of one backend is ordered by.
pub(crate) struct Device {
    pub context: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    /// Where graphs are captured, one at a time: never anything that runs.
    pub capture: Mutex<Arc<CudaStream>>,
    pub name: String,
    pub capability: (i32, i32),
    /// The code path that its kernels come from.
    pub arch: Arch,
    /// CUDA version of the driver, such as 12040.
    pub driver: i32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most bytes of shared memory that a block may ask for.
    pub shared_bytes: u32,
    /// Whether blocks can run in clusters: its code and the device know of them.
    pub clusters: bool,
}

impl Device {
    /// Opens the first device that `CUDA_VISIBLE_DEVICES` leaves.
    ///
    /// # Errors
    /// One sentence: no driver, one too old, no device, one too old, or a wish that it cannot run.
    pub(crate) fn open(wish: Option<Arch>) -> Result<Device, OpError> {
        let driver = driver_version()?;
        let wish = match wish {
            Some(arch) => Some(arch),
            None => Arch::from_environment()?,
        };
        let context = CudaContext::new(0).map_err(|error| fault(cannot_start(error)))?;
        let ask = |attribute| context.attribute(attribute).during("asking the device for its sizes");
        let name = context.name().during("asking the device for its name")?;
        let capability = context.compute_capability().during("asking the device for its compute capability")?;
        let arch = Arch::choose(wish, &name, capability)?;
        let multiprocessors = ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        let shared_bytes = ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32;
        let clusters = arch >= Arch::Sm90a && ask(Attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)? != 0;
        // cudarc would wait for the whole device before the first stream, which breaks what another thread captures on it.
        // SAFETY: this only ends cudarc's own order of slices, of which there are none here.
        unsafe { context.disable_event_tracking() };
        let stream = || context.new_stream().during("creating a stream");
        let (stream, capture) = (stream()?, Mutex::new(stream()?));
        Ok(Device { context, stream, capture, name, capability, arch, driver, multiprocessors, shared_bytes, clusters })
    }

    /// Whether kernels of a graph may begin before those in front of them have ended: the code has to know of it, and the
    /// driver has to keep it when it captures a graph (CUDA 12.3).
    pub(crate) fn chains_launches(&self) -> bool {
        self.arch >= Arch::Sm90a && self.driver >= 12_030
    }

    /// Makes the device current on the calling thread: functions of the driver that take no handle need it.
    pub(crate) fn bind(&self) -> Result<(), OpError> {
        self.context.bind_to_thread().during("choosing the device")
    }

    /// Waits for everything that was submitted.
    pub(crate) fn synchronize(&self) -> Result<(), OpError> {
        self.stream.synchronize().during("waiting for the device")
    }

    /// Bytes of its memory that are free now.
    pub(crate) fn free_bytes(&self) -> Result<u64, OpError> {
        Ok(self.context.mem_get_info().during("asking for free memory")?.0 as u64)
    }

    /// Checks that so many bytes are free, before anything is touched; returns how many are.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`].
    pub(crate) fn require(&self, bytes: u64, what: &str) -> Result<u64, OpError> {
        let available = self.free_bytes()?;
        if bytes > available { Err(out_of_memory(bytes, what, available)) } else { Ok(available) }
    }

    /// Device, memory and code path in words.
    pub(crate) fn describe(&self) -> String {
        let (major, minor) = self.capability;
        let memory = self
            .context
            .total_mem()
            .map_or_else(|_| String::new(), |bytes| format!("{:.0} GiB, ", bytes as f64 / f64::from(1 << 30)));
        let (version, arch) = (self.driver, self.arch.name());
        format!(
            "{} ({memory}compute capability {major}.{minor}, code for {arch}, driver for CUDA {}.{})",
            self.name,
            version / 1000,
            version % 1000 / 10
        )
    }
}

/// Whether the driver's library can be loaded.
pub(crate) fn is_installed() -> bool {
    // SAFETY: loading the driver runs its initialisers, which every CUDA program does.
    unsafe { sys::is_culib_present() }
}

/// The driver's CUDA version, if there is a driver and it is new enough.
///
/// # Errors
/// No driver, or one too old.
pub(crate) fn driver_version() -> Result<i32, OpError> {
    if !is_installed() {
        return Err(fault("no NVIDIA driver is installed: the library libcuda was not found"));
    }
    let mut version = 0;
    // SAFETY: the pointer is to a live integer, and this function may be called before any other.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().during("asking the driver for its version")?;
    let (least, number) = LEAST_VERSION;
    if version < least {
        return Err(fault(format!(
            "the NVIDIA driver is for CUDA {}.{}, and {}.{} is needed; install driver {number} or newer",
            version / 1000,
            version % 1000 / 10,
            least / 1000,
            least % 1000 / 10
        )));
    }
    Ok(version)
}

/// Why no context could be made, in words that say what to do.
fn cannot_start(error: DriverError) -> String {
    let hidden = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    match (error.0, hidden) {
        (CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_INVALID_DEVICE, Some(list)) => {
            format!("CUDA_VISIBLE_DEVICES={list} leaves no GPU to use")
        }
        (CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_INVALID_DEVICE, None) => {
            "the NVIDIA driver is installed, but it sees no GPU".to_owned()
        }
        (CUresult::CUDA_ERROR_OUT_OF_MEMORY, _) => {
            "the GPU's memory is full: other programs use it (nvidia-smi lists them)".to_owned()
        }
        _ => format!("the GPU cannot be started: {}", words(error)),
    }
}
