//! Where there is no Vulkan, no device is opened for it.

use onebit_ops::OpError;

/// Nothing: no adapter is one of Vulkan.
pub(crate) fn open(
    _adapter: &wgpu::Adapter,
    _request: &wgpu::DeviceDescriptor<'_>,
) -> Option<Result<(wgpu::Device, wgpu::Queue), OpError>> {
    None
}
