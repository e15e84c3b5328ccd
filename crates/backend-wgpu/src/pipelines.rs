//! Pipelines, made when they are first needed.

use crate::adapter::Device;
use crate::shaders::{Access, Kernel};
use crate::translated::Translated;
use onebit_ops::OpError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A kernel that the driver has translated, and the layout of what it is bound to.
pub(crate) struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// All pipelines of a device.
#[derive(Default)]
pub(crate) struct Pipelines {
    made: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
    layouts: Mutex<HashMap<&'static [Access], wgpu::BindGroupLayout>>,
    translated: Option<Translated>,
    /// Whether there are pipelines that are not kept yet.
    has_new: AtomicBool,
}

impl Pipelines {
    /// None yet; what the driver makes of their kernels is kept where there is a place for it.
    pub(crate) fn new(translated: Option<Translated>) -> Pipelines {
        Pipelines { translated, ..Pipelines::default() }
    }

    /// Keeps what the driver has made since the last time.
    pub(crate) fn keep(&self) {
        if let Some(translated) = &self.translated
            && self.has_new.swap(false, Ordering::Relaxed)
        {
            translated.keep();
        }
    }

    /// The pipeline of a kernel.
    ///
    /// # Errors
    /// [`OpError::Device`] where the driver does not take it.
    pub(crate) fn get(&self, device: &Device, kernel: &Kernel) -> Result<Arc<Pipeline>, OpError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = made.get(kernel) {
            return Ok(pipeline.clone());
        }
        let layout = self.layout(device, kernel.source.bindings);
        let pipeline = Arc::new(translate(device, kernel, layout, self.translated.as_ref())?);
        made.insert(kernel.clone(), pipeline.clone());
        self.has_new.store(true, Ordering::Relaxed);
        Ok(pipeline)
    }

    fn layout(&self, device: &Device, bindings: &'static [Access]) -> wgpu::BindGroupLayout {
        let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let entry = |binding: usize, ty: wgpu::BufferBindingType| wgpu::BindGroupLayoutEntry {
                binding: binding as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
                count: None,
            };
            let storage = bindings.iter().enumerate().map(|(i, access)| {
                entry(i + 1, wgpu::BufferBindingType::Storage { read_only: *access == Access::Read })
            });
            let entries: Vec<_> = std::iter::once(entry(0, wgpu::BufferBindingType::Uniform)).chain(storage).collect();
            let descriptor = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
            device.device.create_bind_group_layout(&descriptor)
        };
        layouts.entry(bindings).or_insert_with(make).clone()
    }
}

fn translate(
    device: &Device,
    kernel: &Kernel,
    layout: wgpu::BindGroupLayout,
    translated: Option<&Translated>,
) -> Result<Pipeline, OpError> {
    let name = kernel.describe();
    device.guarded(&format!("translating the kernel {name}"), 0, || {
        let source = wgpu::ShaderSource::Wgsl(kernel.text().into());
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some(&name), source };
        // SAFETY: the kernels read and write inside the arrays that the host has laid out for them: sizes of views, slots,
        // pages and lists are checked before a step is submitted. Their loops end, and they divide by what is not zero.
        let module =
            unsafe { device.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) };
        let bound = wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            ..wgpu::PipelineLayoutDescriptor::default()
        };
        let bound = device.device.create_pipeline_layout(&bound);
        let raw = device.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&name),
            layout: Some(&bound),
            module: &module,
            entry_point: Some(kernel.source.name),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..wgpu::PipelineCompilationOptions::default()
            },
            cache: translated.map(Translated::cache),
        });
        Pipeline { raw, layout }
    })
}
