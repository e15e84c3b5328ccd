//! Finding a GPU, opening it, and the sentences for what goes wrong.

use crate::shaders::SLICES;
use crate::tuning::Tuning;
use onebit_ops::OpError;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use wgpu::{Backends, DeviceType, ErrorFilter, Features, Limits};

/// The backend's name in errors and reports.
pub(crate) const NAME: &str = "wgpu";

/// What stands behind an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the machine's memory.
    Integrated,
    /// A GPU behind a virtual machine, or one that does not say.
    Other,
    /// The processor.
    Software,
}

impl AdapterKind {
    fn of(kind: DeviceType) -> AdapterKind {
        match kind {
            DeviceType::DiscreteGpu => AdapterKind::Discrete,
            DeviceType::IntegratedGpu => AdapterKind::Integrated,
            DeviceType::Cpu => AdapterKind::Software,
            DeviceType::VirtualGpu | DeviceType::Other => AdapterKind::Other,
        }
    }

    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AdapterKind::Discrete => "discrete GPU",
            AdapterKind::Integrated => "integrated GPU",
            AdapterKind::Other => "GPU",
            AdapterKind::Software => "software adapter",
        }
    }

    fn rank(self) -> usize {
        [AdapterKind::Discrete, AdapterKind::Integrated, AdapterKind::Other, AdapterKind::Software]
            .iter()
            .position(|kind| *kind == self)
            .unwrap_or_default()
    }
}

/// An adapter of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// As its driver calls it.
    pub name: String,
    /// `Vulkan`, `Metal` or `Dx12`.
    pub api: String,
    /// What it is.
    pub kind: AdapterKind,
    /// Driver and version.
    pub driver: String,
}

impl Found {
    fn of(adapter: &wgpu::Adapter) -> Found {
        let info = adapter.get_info();
        let driver = [info.driver.trim(), info.driver_info.trim()].join(" ").trim().to_owned();
        Found { name: info.name, api: format!("{:?}", info.backend), kind: AdapterKind::of(info.device_type), driver }
    }

    /// In one line.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{}, {}, {}", self.name, self.api, self.kind.name())
    }

    /// What results and measurements hold for: device, driver and version of this program.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{} {} {}", env!("CARGO_PKG_VERSION"), self.describe(), self.driver)
    }

    /// A file's name for something that holds for this adapter.
    pub(crate) fn file_name(&self, what: &str) -> String {
        let words = format!("{} {what}", self.key());
        words.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
    }
}

/// A fault of the device, in its driver's words.
pub(crate) fn fault(message: impl Into<String>) -> OpError {
    OpError::Device { backend: NAME.to_owned(), message: message.into() }
}

/// The value of a future that needs nobody to go on: outside of browsers wgpu's are ready when they are made.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

const APIS: Backends = Backends::VULKAN.union(Backends::METAL).union(Backends::DX12);

fn instance() -> wgpu::Instance {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = APIS;
    // The driver's own checks are for those who write kernels; they ask for them with the loader's variables.
    descriptor.flags = wgpu::InstanceFlags::empty();
    wgpu::Instance::new(descriptor)
}

fn all() -> Vec<wgpu::Adapter> {
    let mut found = ready(instance().enumerate_adapters(APIS));
    found.sort_by_key(|adapter| AdapterKind::of(adapter.get_info().device_type).rank());
    found
}

/// Every adapter of this machine, the one that would be taken first.
#[must_use]
pub fn adapters() -> Vec<Found> {
    all().iter().map(Found::of).collect()
}

/// Whether a GPU can be there. On Linux each has a device node; without one no driver is loaded to look for it, which takes
/// time, and with Mesa's prints warnings about the display.
#[must_use]
pub fn gpu_is_possible() -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let named = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            ["nvidia", "dxg", "mali", "kgsl", "renderD"].iter().any(|known| name.starts_with(known))
        })
    };
    ["/dev", "/dev/dri"].iter().any(|folder| std::fs::read_dir(folder).is_ok_and(|mut all| all.any(named)))
}

/// What the kernels may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Most bytes of one binding.
    pub binding: u64,
    /// Most bytes of one chunk of a weight.
    pub chunk: u64,
    /// Bindings begin at multiples of so many bytes.
    pub align: u64,
    /// Threads of the largest workgroup that is used.
    pub threads: u32,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: usize,
    /// Slices of the columns in a workgroup of a product. Compilers of Metal give large workgroups few registers.
    pub slices: u32,
    /// Products of four bytes are an instruction.
    pub dot_products: bool,
    /// The device's own clock can be read, before and after each pass.
    pub timestamps: bool,
}

/// An open device.
pub(crate) struct Device {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub found: Found,
    pub abilities: Abilities,
    fault: Arc<Mutex<Option<String>>>,
    lost: Arc<AtomicBool>,
}

impl Device {
    /// Opens the first adapter, or the first whose name contains `wanted`.
    ///
    /// # Errors
    /// [`OpError::Device`] with one sentence.
    pub(crate) fn open(
        wanted: Option<&str>,
        chunk_bytes: Option<u64>,
        tuning: impl FnOnce(&Found) -> Tuning,
    ) -> Result<Device, OpError> {
        let adapters = all();
        let names: Vec<String> = adapters.iter().map(|a| a.get_info().name).collect();
        let fits = |name: &str| wanted.is_none_or(|w| name.to_lowercase().contains(&w.to_lowercase()));
        let adapter = adapters.into_iter().find(|a| fits(&a.get_info().name)).ok_or_else(|| match wanted {
            Some(wanted) if !names.is_empty() => {
                fault(format!("no adapter is called `{wanted}`; there are {}", names.join(", ")))
            }
            _ => fault("no driver of Vulkan, Metal or DX12 was found"),
        })?;
        let found = Found::of(&adapter);
        let has = adapter.limits();
        // What is needed at most is the default; only the sizes of buffers, and of workgroups and their memory, are as large as
        // they can be.
        let threads = has.max_compute_invocations_per_workgroup.min(has.max_compute_workgroup_size_x).min(512);
        let limits = Limits {
            max_buffer_size: has.max_buffer_size,
            max_storage_buffer_binding_size: has.max_storage_buffer_binding_size,
            max_compute_invocations_per_workgroup: threads,
            max_compute_workgroup_size_x: threads,
            max_compute_workgroup_storage_size: has.max_compute_workgroup_storage_size,
            min_storage_buffer_offset_alignment: has.min_storage_buffer_offset_alignment,
            min_uniform_buffer_offset_alignment: has.min_uniform_buffer_offset_alignment,
            ..Limits::downlevel_defaults()
        };
        let limits = Limits { max_storage_buffers_per_shader_stage: 8, ..limits };
        let request = wgpu::DeviceDescriptor {
            label: None,
            required_features: adapter.features() & (Features::TIMESTAMP_QUERY | Features::PIPELINE_CACHE),
            required_limits: limits,
            experimental_features: wgpu::ExperimentalFeatures::disabled(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            trace: wgpu::Trace::Off,
        };
        let (device, queue) =
            ready(adapter.request_device(&request)).map_err(|error| fault(format!("{}: {error}", found.name)))?;
        let kept = Arc::new(Mutex::new(None));
        let first = kept.clone();
        let lost = Arc::new(AtomicBool::new(false));
        let gone = lost.clone();
        device.set_device_lost_callback(move |_, message| {
            gone.store(true, Ordering::Relaxed);
            keep_first(&first, format!("the device was lost: {}", one_line(&message)));
        });
        let first = kept.clone();
        device
            .on_uncaptured_error(Arc::new(move |error: wgpu::Error| keep_first(&first, one_line(&error.to_string()))));
        let tuning = tuning(&found);
        let binding = largest_binding(has.max_storage_buffer_binding_size, has.max_buffer_size);
        let abilities = Abilities {
            binding,
            chunk: chunk_bytes.unwrap_or(binding).min(binding),
            align: u64::from(has.min_storage_buffer_offset_alignment.max(has.min_uniform_buffer_offset_alignment))
                .max(256),
            threads,
            workgroup_bytes: has.max_compute_workgroup_storage_size as usize,
            // Never more than there are threads for.
            slices: tuning.slices.unwrap_or(SLICES[usize::from(found.api != "Metal")]).min(threads / 32),
            dot_products: found.api != "Metal",
            timestamps: device.features().contains(Features::TIMESTAMP_QUERY),
        };
        Ok(Device { device, queue, found, abilities, fault: kept, lost })
    }

    /// Device and API in words.
    pub(crate) fn describe(&self) -> String {
        self.found.describe()
    }

    /// Runs what makes objects of the device, and turns what the device says of it into an error.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`] for memory; [`OpError::Device`] for anything else.
    pub(crate) fn guarded<T>(&self, what: &str, bytes: u64, make: impl FnOnce() -> T) -> Result<T, OpError> {
        self.check()?;
        let memory = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let validity = self.device.push_error_scope(ErrorFilter::Validation);
        let inner = self.device.push_error_scope(ErrorFilter::Internal);
        let made = make();
        let faults = [ready(inner.pop()), ready(validity.pop())];
        if ready(memory.pop()).is_some() {
            return Err(OpError::OutOfMemory {
                what: what.to_owned(),
                backend: NAME.to_owned(),
                wanted: bytes,
                available: 0,
            });
        }
        match faults.into_iter().flatten().next() {
            Some(error) => Err(fault(format!("{what}: {}", one_line(&error.to_string())))),
            None => Ok(made),
        }
    }

    /// # Errors
    /// What the device has said since it was opened.
    pub(crate) fn check(&self) -> Result<(), OpError> {
        let first = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        match &*first {
            Some(message) => Err(fault(message.clone())),
            None => Ok(()),
        }
    }

    /// Whether it is gone for good.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Looks once for work that has ended.
    ///
    /// # Errors
    /// A device that is gone.
    pub(crate) fn look(&self) -> Result<(), OpError> {
        let polled = self.device.poll(wgpu::PollType::Poll);
        self.check()?;
        polled.map(drop).map_err(|error| fault(error.to_string()))
    }

    /// Waits for everything that was submitted.
    ///
    /// # Errors
    /// A device that is gone.
    pub(crate) fn wait(&self) -> Result<(), OpError> {
        let polled = self.device.poll(wgpu::PollType::wait_indefinitely());
        self.check()?;
        polled.map(drop).map_err(|error| fault(error.to_string()))
    }
}

/// Most bytes of a binding, of what an adapter says of bindings and of buffers: not all of them say that the one fits the other.
/// Kernels count words in 32 bits, and wgpu bytes.
fn largest_binding(storage: u64, buffer: u64) -> u64 {
    storage.min(buffer).min(u64::from(u32::MAX)) / 256 * 256
}

/// The first fault explains those that follow.
fn keep_first(place: &Mutex<Option<String>>, message: String) {
    place.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(message);
}

/// wgpu explains over several lines.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_comes_before_the_processor() {
        let order = [AdapterKind::Discrete, AdapterKind::Integrated, AdapterKind::Other, AdapterKind::Software];
        assert!(order.windows(2).all(|pair| pair[0].rank() < pair[1].rank()));
    }

    #[test]
    fn a_binding_fits_buffers_words_and_alignments() {
        const MIB: u64 = 1 << 20;
        let gib = 1024 * MIB;
        for (storage, buffer, wanted) in [
            (128 * MIB, 256 * MIB, 128 * MIB),
            (256 * MIB, 256 * MIB, 256 * MIB),
            // A driver that lets more be bound than a buffer has, by a byte.
            (gib + 1, gib, gib),
            (2 * gib - 1, 2 * gib - 1, 2 * gib - 256),
            (64 * gib, 64 * gib, 4 * gib - 256),
        ] {
            assert_eq!(largest_binding(storage, buffer), wanted);
        }
    }

    #[test]
    fn a_fault_is_one_line_and_the_first_stays() {
        let place = Mutex::new(None);
        keep_first(&place, one_line("a\n  b"));
        keep_first(&place, "later".to_owned());
        assert_eq!(place.into_inner().unwrap().as_deref(), Some("a b"));
    }
}
