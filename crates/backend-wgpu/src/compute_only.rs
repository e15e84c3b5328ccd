//! Opening a Vulkan device that computes and copies, and draws nothing.
//!
//! wgpu opens the first queue family, which draws too, and its barriers between dispatches name the stages of drawing beside that
//! of computing. A driver that takes them at their word waits for both halves of the hardware at each of some hundreds of
//! barriers a token. Nothing is ever drawn here, so the device gets a queue without drawing where there is one, and barriers lose
//! the stages that no command of it has. Everything else is wgpu's: which resources a barrier is for, and when.

use ash::vk;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};
use wgpu::hal::api::Vulkan;

/// Stages of the commands that a device which draws nothing may have.
const STAGES: vk::PipelineStageFlags = vk::PipelineStageFlags::from_raw(
    vk::PipelineStageFlags::COMPUTE_SHADER.as_raw()
        | vk::PipelineStageFlags::TRANSFER.as_raw()
        | vk::PipelineStageFlags::HOST.as_raw()
        | vk::PipelineStageFlags::DRAW_INDIRECT.as_raw()
        | vk::PipelineStageFlags::ALL_COMMANDS.as_raw(),
);

/// The loader's `vkCmdPipelineBarrier`, which finds the driver by the command buffer: it is the same for all devices, and lives as
/// long as any of them keeps the loader. Opening a device sets it, as the loader may have been another before.
static BARRIER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Stages that are left of a barrier's, or `none` where none is.
fn left(stages: vk::PipelineStageFlags, none: vk::PipelineStageFlags) -> vk::PipelineStageFlags {
    let left = stages & STAGES;
    if left.is_empty() { none } else { left }
}

/// A barrier for those stages alone that commands of the device can have.
///
/// # Safety
/// As `vkCmdPipelineBarrier`, of a device that was opened here.
unsafe extern "system" fn barrier(
    commands: vk::CommandBuffer,
    from: vk::PipelineStageFlags,
    to: vk::PipelineStageFlags,
    flags: vk::DependencyFlags,
    memory_count: u32,
    memory: *const vk::MemoryBarrier<'_>,
    buffer_count: u32,
    buffers: *const vk::BufferMemoryBarrier<'_>,
    image_count: u32,
    images: *const vk::ImageMemoryBarrier<'_>,
) {
    // SAFETY: it was set before the device was made that this is a function of, to a function of this type.
    let whole =
        unsafe { std::mem::transmute::<*mut c_void, vk::PFN_vkCmdPipelineBarrier>(BARRIER.load(Ordering::Relaxed)) };
    let from = left(from, vk::PipelineStageFlags::TOP_OF_PIPE);
    let to = left(to, vk::PipelineStageFlags::BOTTOM_OF_PIPE);
    // SAFETY: the caller's arguments, less stages that no command has: what they order stays the same.
    unsafe {
        whole(commands, from, to, flags, memory_count, memory, buffer_count, buffers, image_count, images);
    }
}

/// The first queue family that computes and does not draw, or else the first.
fn family(instance: &ash::Instance, device: vk::PhysicalDevice) -> u32 {
    // SAFETY: the adapter's own handles.
    let families = unsafe { instance.get_physical_device_queue_family_properties(device) };
    let computes = |family: &vk::QueueFamilyProperties| {
        family.queue_flags.contains(vk::QueueFlags::COMPUTE)
            && !family.queue_flags.contains(vk::QueueFlags::GRAPHICS)
            && family.timestamp_valid_bits > 0
    };
    families.iter().position(computes).unwrap_or_default() as u32
}

/// Opens a Vulkan adapter so; nothing for an adapter of another API.
///
/// # Errors
/// What the driver says.
pub(crate) fn open(
    adapter: &wgpu::Adapter,
    request: &wgpu::DeviceDescriptor<'_>,
) -> Option<Result<(wgpu::Device, wgpu::Queue), String>> {
    // SAFETY: the adapter's handles are used as long as this borrow lives, and none is destroyed.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
    let shared = hal.shared_instance();
    let (instance, physical) = (shared.raw_instance(), hal.raw_physical_device());
    // SAFETY: the instance is alive. The name is that of a function of every instance.
    let whole = unsafe { shared.entry().get_instance_proc_addr(instance.handle(), c"vkCmdPipelineBarrier".as_ptr()) }?;
    BARRIER.store(whole as *mut c_void, Ordering::Relaxed);
    let features = request.required_features;
    let extensions = hal.required_device_extensions(features);
    let mut enabled = hal.physical_device_features(&extensions, features);
    let family = family(instance, physical);
    let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
    let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
    let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
    let info = enabled.add_to_device_create(info);
    let opened = || {
        // SAFETY: extensions and features are those that wgpu asks for itself, and the family is one of the device's.
        let raw = unsafe { instance.create_device(physical, &info, None) }.map_err(|error| error.to_string())?;
        let mut first = raw.fp_v1_0().clone();
        first.cmd_pipeline_barrier = barrier;
        let (second, third, fourth) = (raw.fp_v1_1().clone(), raw.fp_v1_2().clone(), raw.fp_v1_3().clone());
        let raw = ash::Device::from_parts_1_3(raw.handle(), first, second, third, fourth);
        let (limits, hints) = (&request.required_limits, &request.memory_hints);
        // SAFETY: the device was made from this adapter with this family, these extensions and features; wgpu owns it now.
        let opened = unsafe { hal.device_from_raw(raw, None, &extensions, features, limits, hints, family, 0) };
        let opened = opened.map_err(|error| error.to_string())?;
        // SAFETY: it comes from this adapter, with the features that are asked for.
        unsafe { adapter.create_device_from_hal(opened, request) }.map_err(|error| error.to_string())
    };
    Some(opened())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barriers_keep_what_a_device_without_drawing_does() {
        use vk::PipelineStageFlags as Stages;
        let drawing = Stages::VERTEX_SHADER | Stages::FRAGMENT_SHADER;
        assert_eq!(
            left(drawing | Stages::COMPUTE_SHADER | Stages::TOP_OF_PIPE, Stages::TOP_OF_PIPE),
            Stages::COMPUTE_SHADER
        );
        assert_eq!(left(Stages::TRANSFER | Stages::HOST, Stages::TOP_OF_PIPE), Stages::TRANSFER | Stages::HOST);
        assert_eq!(left(drawing, Stages::BOTTOM_OF_PIPE), Stages::BOTTOM_OF_PIPE);
    }
}
