//! The device's own clock, before and after passes.

use crate::adapter::{Device, fault};
use crate::memory::Buffer;
use onebit_ops::OpError;
use std::sync::Arc;

/// Most passes of one clock: half the queries of a set.
pub(crate) const MOST_PASSES: usize = wgpu::QUERY_SET_MAX_QUERIES as usize / 2;

/// Two readings for each of some passes.
pub(crate) struct Clock {
    queries: wgpu::QuerySet,
    passes: usize,
    resolved: wgpu::Buffer,
    host: Buffer,
}

impl Clock {
    /// # Errors
    /// [`OpError::OutOfMemory`], [`OpError::Device`].
    pub(crate) fn new(device: &Arc<Device>, passes: usize) -> Result<Clock, OpError> {
        let bytes = (passes * 16) as u64;
        let host = Buffer::for_reading(device, bytes)?;
        let (queries, resolved) = device.guarded("a clock", bytes, || {
            let queries = device.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: 2 * passes as u32,
            });
            let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
            let descriptor = wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
            (queries, device.device.create_buffer(&descriptor))
        })?;
        Ok(Clock { queries, passes, resolved, host })
    }

    /// The readings around a pass.
    pub(crate) fn around(&self, pass: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(2 * pass as u32),
            end_of_pass_write_index: Some(2 * pass as u32 + 1),
        }
    }

    /// Brings the readings to where the host finds them.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        encoder.resolve_query_set(&self.queries, 0..2 * self.passes as u32, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, self.host.raw(), 0, (self.passes * 16) as u64);
    }

    /// Waits, and gives the seconds of each pass.
    ///
    /// # Errors
    /// A device that is gone.
    pub(crate) fn read(self, device: &Device) -> Result<Vec<f64>, OpError> {
        let slice = self.host.raw().slice(..(self.passes * 16) as u64);
        slice.map_async(wgpu::MapMode::Read, |_| ());
        device.wait()?;
        let view = slice.get_mapped_range().map_err(|error| fault(error.to_string()))?;
        let period = f64::from(device.queue.get_timestamp_period()) * 1e-9;
        let readings = |pair: &[u8; 16]| {
            let reading = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| pair[at + i]));
            reading(8).saturating_sub(reading(0)) as f64 * period
        };
        Ok(view.as_chunks::<16>().0.iter().map(readings).collect())
    }
}
