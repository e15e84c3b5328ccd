//! How fast the device reads its memory: the limit that decoding is measured against.

use crate::driver::{Device, During};
use crate::launch::Launch;
use crate::memory::Buffer;
use crate::module::Kernels;
use crate::params::Address;
use cudarc::driver::result;
use cudarc::driver::sys::CUevent_flags;
use onebit_ops::OpError;
use std::ffi::c_void;
use std::sync::Arc;

/// Larger than the caches of any device.
const BYTES: usize = 1 << 30;

/// Passes; the best counts.
const PASSES: usize = 8;

/// Blocks for each multiprocessor, of so many threads.
const BLOCKS: u32 = 8;
const THREADS: u32 = 256;

/// What `read_memory` is handed; mirrored in `kernels/bandwidth.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ReadParams {
    data: Address,
    /// 16-byte units.
    units: u64,
    /// One word, written only by an improbable sum, so that the reads are not optimised away.
    sink: Address,
}

/// GB/s (10^9 bytes) of the best of some passes over a buffer.
///
/// # Errors
/// [`OpError::OutOfMemory`] for the probe, [`OpError::Device`].
pub(crate) fn read_bandwidth(device: &Arc<Device>, kernels: &Kernels) -> Result<f64, OpError> {
    let data = Buffer::zeroed(device, BYTES, "the bandwidth probe")?;
    let sink = Buffer::zeroed(device, 16, "the bandwidth probe")?;
    let params = ReadParams { data: data.address(), units: (BYTES / 16) as u64, sink: sink.address() };
    let launch = Launch {
        kernel: "read_memory".to_owned(),
        grid: [device.multiprocessors * BLOCKS, 1, 1],
        threads: THREADS,
        shared: 0,
        cluster: 1,
    };
    let function = kernels.get(&launch.kernel, launch.shared)?;
    let stamp = || device.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).during("recording an event");
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let start = stamp()?;
        let mut arguments: [*mut c_void; 1] = [std::ptr::from_ref(&params).cast_mut().cast()];
        // SAFETY: the kernel takes this structure, and both buffers live until the device has been waited for below.
        unsafe {
            result::launch_kernel(
                function.cu_function(),
                launch.grid.into(),
                (launch.threads, 1, 1),
                launch.shared,
                device.stream.cu_stream(),
                &mut arguments,
            )
        }
        .during("launching read_memory")?;
        let end = stamp()?;
        let ms = start.elapsed_ms(&end).during("measuring the memory")?;
        best = best.min(f64::from(ms) / 1e3);
    }
    Ok(BYTES as f64 / best / 1e9)
}
