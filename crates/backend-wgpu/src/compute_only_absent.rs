//! Where there is no Vulkan, no device is opened for it.

/// Nothing: no adapter is one of Vulkan.
pub(crate) fn open(
    _adapter: &wgpu::Adapter,
    _request: &wgpu::DeviceDescriptor<'_>,
) -> Option<Result<(wgpu::Device, wgpu::Queue), String>> {
    None
}
