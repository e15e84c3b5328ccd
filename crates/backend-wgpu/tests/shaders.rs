//! Every kernel for every layout and set of abilities becomes valid Metal, HLSL and SPIR-V, without a GPU.

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ValidationFlags, Validator};

fn check(text: &str) -> Result<(), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    // Nothing that the first devices of WebGPU lack.
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::SHADER_FLOAT16_IN_FLOAT32);
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(text))?;
    spv::write_vec(&module, &info, &spv::Options::default(), None).map_err(|error| error.to_string())?;
    let metal = msl::Options { lang_version: (2, 4), fake_missing_bindings: true, ..msl::Options::default() };
    msl::write_string(&module, &info, &metal, &msl::PipelineOptions::default()).map_err(|error| error.to_string())?;
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_4,
        fake_missing_bindings: true,
        ..hlsl::Options::default()
    };
    let mut out = String::new();
    hlsl::Writer::new(&mut out, &options, &hlsl::PipelineOptions::default())
        .write(&module, &info, None)
        .map_err(|error| error.to_string())?;
    Ok(())
}

#[test]
fn every_kernel_becomes_metal_hlsl_and_spirv() {
    let all = onebit_backend_wgpu::shaders::every();
    assert!(all.len() > 1000, "{} kernels", all.len());
    for (name, text) in all {
        if let Err(error) = check(&text) {
            panic!("{name}: {error}");
        }
    }
}
