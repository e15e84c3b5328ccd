//! Memory of the device, and host memory that it can copy from and to by itself.

use crate::driver::{Device, During, fault, out_of_memory, words};
use crate::params::Address;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUresult;
use onebit_ops::OpError;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// Device memory; it goes back when this does.
pub(crate) struct Buffer {
    device: Arc<Device>,
    address: Address,
    bytes: usize,
}

impl Buffer {
    /// Memory of unknown contents, aligned to 256 bytes. No bytes at all are address 0.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`] before anything is touched, with both numbers.
    pub(crate) fn new(device: &Arc<Device>, bytes: usize, what: &str) -> Result<Buffer, OpError> {
        let mut buffer = Buffer { device: device.clone(), address: 0, bytes };
        if bytes == 0 {
            return Ok(buffer);
        }
        let available = device.require(bytes as u64, what)?;
        // SAFETY: the context is current; the memory belongs to this buffer alone.
        buffer.address = unsafe { result::malloc_sync(bytes) }.map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => out_of_memory(bytes as u64, what, available),
            _ => fault(format!("allocating {what}: {}", words(error))),
        })?;
        Ok(buffer)
    }

    /// Zeroed memory.
    ///
    /// # Errors
    /// As [`Buffer::new`].
    pub(crate) fn zeroed(device: &Arc<Device>, bytes: usize, what: &str) -> Result<Buffer, OpError> {
        let buffer = Self::new(device, bytes, what)?;
        buffer.fill_zero(0, bytes)?;
        Ok(buffer)
    }

    /// Memory with these contents.
    ///
    /// # Errors
    /// As [`Buffer::new`].
    pub(crate) fn holding(device: &Arc<Device>, contents: &[u8], what: &str) -> Result<Buffer, OpError> {
        let buffer = Self::new(device, contents.len(), what)?;
        if !contents.is_empty() {
            device.bind()?;
            // SAFETY: the buffer was made as long as the contents. The copy has ended when the call returns.
            unsafe { result::memcpy_htod_sync(buffer.address, contents) }.during("copying to the device")?;
        }
        Ok(buffer)
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> Address {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_on(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// The address of byte `at`, of which `len` more are wanted.
    ///
    /// # Panics
    /// When they do not lie inside: a fault of this crate, which must not reach the device.
    pub(crate) fn at(&self, at: usize, len: usize) -> Address {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.bytes), "{len} bytes at {at} of {}", self.bytes);
        self.address + at as Address
    }

    /// Zeroes a stretch, in the order of the stream.
    pub(crate) fn fill_zero(&self, at: usize, len: usize) -> Result<(), OpError> {
        let address = self.at(at, len);
        if len == 0 {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the stretch lies inside.
        unsafe { result::memset_d8_async(address, 0, len, self.device.stream.cu_stream()) }.during("zeroing memory")
    }

    /// Copies a stretch to another place of this buffer, in the order of the stream.
    pub(crate) fn copy_within(&self, from: usize, to: usize, len: usize) -> Result<(), OpError> {
        let (from, to) = (self.at(from, len), self.at(to, len));
        if len == 0 || from == to {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: both stretches lie inside.
        unsafe { result::memcpy_dtod_async(to, from, len, self.device.stream.cu_stream()) }.during("copying memory")
    }

    /// Copies all of another buffer to the front of this one, in the order of the stream.
    pub(crate) fn copy_from(&self, other: &Buffer) -> Result<(), OpError> {
        let (to, len) = (self.at(0, other.bytes), other.bytes);
        if len == 0 {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: both are at least as long; a buffer that is freed waits for the copy.
        unsafe { result::memcpy_dtod_async(to, other.address, len, self.device.stream.cu_stream()) }
            .during("copying memory")
    }

    /// Copies host bytes to `at`, in the order of the stream; they must stay as they are until the copy has ended.
    pub(crate) fn write(&self, at: usize, from: &Pinned, range: Range<usize>) -> Result<(), OpError> {
        let address = self.at(at, range.len());
        if range.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: both stretches lie inside, and the caller keeps the host's until the stream is past the copy.
        unsafe { result::memcpy_htod_async(address, &from.bytes()[range], self.device.stream.cu_stream()) }
            .during("copying to the device")
    }

    /// Reads floats back, after everything that was submitted.
    pub(crate) fn read_floats(&self, at: usize, count: usize) -> Result<Vec<f32>, OpError> {
        let address = self.at(at, count * size_of::<f32>());
        let mut out = vec![0.0f32; count];
        self.device.synchronize()?;
        if count > 0 {
            self.device.bind()?;
            // SAFETY: the stretch lies inside; the copy has ended when the call returns.
            unsafe { result::memcpy_dtoh_sync(&mut out, address) }.during("copying from the device")?;
        }
        Ok(out)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.address != 0 && self.device.bind().is_ok() {
            // SAFETY: allocated by `new` and freed once. The driver waits for work that uses it.
            let freed: Result<(), DriverError> = unsafe { result::free_sync(self.address) };
            self.device.context.record_err(freed);
        }
    }
}

/// Host memory that does not move, so that copies need not wait for the host.
pub(crate) struct Pinned {
    device: Arc<Device>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory that is owned and reached only through `&self` and `&mut self`.
unsafe impl Send for Pinned {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeroed memory.
    ///
    /// # Errors
    /// [`OpError::Device`] with the driver's words.
    pub(crate) fn new(device: &Arc<Device>, bytes: usize) -> Result<Pinned, OpError> {
        device.bind()?;
        // SAFETY: the context is current. At least one byte, so that the address is never null.
        let start: *mut c_void =
            unsafe { result::malloc_host(bytes.max(1), 0) }.during("allocating memory that the device can copy")?;
        let start = start.cast::<u8>();
        // SAFETY: just allocated with that length.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { device: device.clone(), start, bytes })
    }

    /// Where it begins, for the host and for the device, which have one space of addresses.
    pub(crate) fn address(&self) -> Address {
        self.start as Address
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: allocated and zeroed with that length; the device writes only while the owner waits for it.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// Its bytes, to be changed.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the reference is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new` and freed once; owners wait for the device before they drop it.
            self.device.context.record_err(unsafe { result::free_host(self.start.cast()) });
        }
    }
}
