//! Buffers of the device.

use crate::adapter::{Device, fault};
use onebit_ops::OpError;
use std::sync::Arc;
use wgpu::BufferUsages;

/// Memory of the device. It knows its device, so that a handle of another one is refused.
#[derive(Clone)]
pub(crate) struct Buffer {
    device: Arc<Device>,
    raw: wgpu::Buffer,
}

impl Buffer {
    /// Zeroed memory of at least four bytes, for kernels and copies.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`], and [`OpError::Device`] for more than the adapter binds.
    pub(crate) fn new(device: &Arc<Device>, bytes: u64, what: &str) -> Result<Buffer, OpError> {
        let size = bytes.next_multiple_of(16).max(16);
        let most = device.abilities.binding;
        if size > most {
            return Err(fault(format!("{what} needs {bytes} bytes in one piece, the adapter binds {most}")));
        }
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        Buffer::with_usage(device, size, usage, what)
    }

    /// Memory that kernels read as constants.
    ///
    /// # Errors
    /// As [`Buffer::new`].
    pub(crate) fn constants(device: &Arc<Device>, contents: &[u8]) -> Result<Buffer, OpError> {
        let size = (contents.len() as u64).next_multiple_of(16).max(16);
        let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
        let buffer = Buffer::with_usage(device, size, usage, "the constants of a plan")?;
        buffer.write(0, contents);
        Ok(buffer)
    }

    /// Memory that the host reads.
    ///
    /// # Errors
    /// As [`Buffer::new`].
    pub(crate) fn for_reading(device: &Arc<Device>, bytes: u64) -> Result<Buffer, OpError> {
        let size = bytes.next_multiple_of(16).max(16);
        Buffer::with_usage(device, size, BufferUsages::MAP_READ | BufferUsages::COPY_DST, "the results of a step")
    }

    fn with_usage(device: &Arc<Device>, size: u64, usage: BufferUsages, what: &str) -> Result<Buffer, OpError> {
        let descriptor = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let raw = device.guarded(what, size, || device.device.create_buffer(&descriptor))?;
        Ok(Buffer { device: device.clone(), raw })
    }

    /// Memory with these contents.
    ///
    /// # Errors
    /// As [`Buffer::new`].
    pub(crate) fn holding(device: &Arc<Device>, contents: &[u8], what: &str) -> Result<Buffer, OpError> {
        let buffer = Buffer::new(device, contents.len() as u64, what)?;
        buffer.write(0, contents);
        Ok(buffer)
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.raw.size()
    }

    pub(crate) fn is_on(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Copies host bytes to `at`, before whatever is submitted next. Lengths that are no multiple of four are padded.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        let whole = bytes.len() / 4 * 4;
        if whole > 0 {
            self.device.queue.write_buffer(&self.raw, at, &bytes[..whole]);
        }
        if whole < bytes.len() {
            let mut last = [0; 4];
            last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
            self.device.queue.write_buffer(&self.raw, at + whole as u64, &last);
        }
    }

    /// Reads floats back, after everything that was submitted.
    ///
    /// # Errors
    /// A device that is gone.
    pub(crate) fn read_floats(&self, at: u64, count: usize) -> Result<Vec<f32>, OpError> {
        let bytes = (count * size_of::<f32>()) as u64;
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let target = Buffer::for_reading(&self.device, bytes)?;
        let mut encoder = self.device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&self.raw, at, &target.raw, 0, bytes);
        self.device.queue.submit([encoder.finish()]);
        target.raw.slice(..bytes).map_async(wgpu::MapMode::Read, |_| ());
        self.device.wait()?;
        let view = target.raw.slice(..bytes).get_mapped_range().map_err(|error| fault(error.to_string()))?;
        Ok(floats(&view))
    }
}

/// Bytes as floats.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}
