//! How fast the device reads its memory: what decoding is compared with.

use crate::adapter::{AdapterKind, Device};
use crate::memory::Buffer;
use crate::pipelines::Pipelines;
use crate::shaders::BANDWIDTH;
use onebit_ops::OpError;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that are read, beyond what caches hold.
const BYTES: u64 = 512 << 20;

/// Workgroups of 256 threads: enough to keep a large GPU busy.
const GROUPS: u32 = 4096;

/// Times that the memory is read in one submission, whose own start and end then count little; and submissions, of which the
/// fastest counts.
const READS: u32 = 16;
const TRIES: usize = 3;

/// GB/s, or `None` for a software adapter, which reads the processor's memory.
///
/// # Errors
/// [`OpError::OutOfMemory`], [`OpError::Device`].
pub(crate) fn read_bandwidth(device: &Arc<Device>, pipelines: &Pipelines) -> Result<Option<f64>, OpError> {
    if device.found.kind == AdapterKind::Software {
        return Ok(None);
    }
    let bytes = BYTES.min(device.abilities.binding);
    let memory = Buffer::new(device, bytes, "the memory that is read")?;
    let sums = Buffer::new(device, u64::from(GROUPS) * 256 * 4, "sums of what is read")?;
    let params = [(bytes / 16) as u32, GROUPS * 256, 0, 0];
    let constants: Vec<u8> = params.iter().flat_map(|word| word.to_le_bytes()).collect();
    let constants = Buffer::constants(device, &constants)?;
    let pipeline = pipelines.get(device, &BANDWIDTH.with(&[]))?;
    let buffers = [&constants, &memory, &sums];
    let entries: Vec<_> = buffers
        .iter()
        .enumerate()
        .map(|(i, buffer)| wgpu::BindGroupEntry { binding: i as u32, resource: buffer.raw().as_entire_binding() })
        .collect();
    let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &pipeline.layout, entries: &entries };
    let group = device.guarded("binding memory", 0, || device.device.create_bind_group(&descriptor))?;
    let mut best = f64::INFINITY;
    for _ in 0..=TRIES {
        let mut encoder = device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(&pipeline.raw);
            pass.set_bind_group(0, &group, &[]);
            (0..READS).for_each(|_| pass.dispatch_workgroups(GROUPS, 1, 1));
        }
        let commands = encoder.finish();
        device.wait()?;
        let start = Instant::now();
        device.queue.submit([commands]);
        device.wait()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(Some((bytes * u64::from(READS)) as f64 / best / 1e9))
}
