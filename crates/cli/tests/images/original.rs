//! The same models under the names of Black Forest Labs, in their own folders, as a single file and as GGUF: the same latents and
//! pixels, bit for bit where the numbers are the same.

use crate::case::{Case, distance};
use onebit_backend_cpu::{CpuBackend, CpuOptions};
use onebit_checkpoint::gguf::{TensorSpec, Value, Writer};
use onebit_engine::image::Picture;
use onebit_ops::{Activations, Backend};
use onebit_quant::{Format, quantize};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// A tensor as stored.
struct Raw {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn read(file: &Path) -> Vec<Raw> {
    let bytes = std::fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let raw = |(name, view): (String, TensorView<'_>)| Raw {
        name,
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    tensors.tensors().into_iter().map(raw).collect()
}

fn write(tensors: &[Raw], file: &Path) {
    let views = tensors.iter().map(|t| (&t.name, TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap()));
    safetensors::serialize_to_file(views, None, file).unwrap();
}

/// The published names of a transformer's modules: theirs, and those whose rows they hold one after the other.
fn modules() -> Vec<(String, Vec<String>)> {
    let mut all: Vec<(String, Vec<String>)> = [
        ("img_in", "x_embedder"),
        ("txt_in", "context_embedder"),
        ("time_in.in_layer", "time_guidance_embed.timestep_embedder.linear_1"),
        ("time_in.out_layer", "time_guidance_embed.timestep_embedder.linear_2"),
        ("double_stream_modulation_img.lin", "double_stream_modulation_img.linear"),
        ("double_stream_modulation_txt.lin", "double_stream_modulation_txt.linear"),
        ("single_stream_modulation.lin", "single_stream_modulation.linear"),
        ("final_layer.adaLN_modulation.1", "norm_out.linear"),
        ("final_layer.linear", "proj_out"),
    ]
    .map(|(theirs, ours)| (theirs.to_owned(), vec![ours.to_owned()]))
    .into();
    for n in 0..2 {
        for (stream, qkv, added, out, ff) in [
            ("img", ["to_q", "to_k", "to_v"], "", "to_out.0", "ff"),
            ("txt", ["add_q_proj", "add_k_proj", "add_v_proj"], "added_", "to_add_out", "ff_context"),
        ] {
            let ours = |leaf: &str| format!("transformer_blocks.{n}.{leaf}");
            let mut add = |theirs: &str, ours| all.push((format!("double_blocks.{n}.{stream}_{theirs}"), ours));
            add("attn.qkv", qkv.map(|leaf| ours(&format!("attn.{leaf}"))).into());
            add("attn.norm.query_norm", vec![ours(&format!("attn.norm_{added}q"))]);
            add("attn.norm.key_norm", vec![ours(&format!("attn.norm_{added}k"))]);
            add("attn.proj", vec![ours(&format!("attn.{out}"))]);
            add("mlp.0", vec![ours(&format!("{ff}.linear_in"))]);
            add("mlp.2", vec![ours(&format!("{ff}.linear_out"))]);
        }
    }
    for n in 0..3 {
        for (theirs, ours) in [
            ("linear1", "to_qkv_mlp_proj"),
            ("linear2", "to_out"),
            ("norm.query_norm", "norm_q"),
            ("norm.key_norm", "norm_k"),
        ] {
            let ours = format!("single_transformer_blocks.{n}.attn.{ours}");
            all.push((format!("single_blocks.{n}.{theirs}"), vec![ours]));
        }
    }
    all
}

/// A transformer under their names, whatever its tensors are stored as.
fn transformer(ours: &[Raw], prefix: &str) -> Vec<Raw> {
    let mut all = Vec::new();
    let mut used = 0;
    for (theirs, members) in modules() {
        for leaf in ["weight", "scales", "biases"] {
            let find = |module: &String| ours.iter().find(|t| t.name == format!("{module}.{leaf}"));
            let parts: Vec<&Raw> = members.iter().filter_map(find).collect();
            let Some(first) = parts.first() else { continue };
            assert_eq!(parts.len(), members.len(), "{theirs}");
            used += parts.len();
            let mut bytes: Vec<u8> = parts.iter().flat_map(|t| t.bytes.iter().copied()).collect();
            let mut shape = first.shape.clone();
            shape[0] = parts.iter().map(|t| t.shape[0]).sum();
            if theirs == "final_layer.adaLN_modulation.1" {
                // The shift before the scale.
                let half = bytes.len() / 2;
                bytes.rotate_left(half);
            }
            let leaf = if theirs.contains(".norm.") { "scale" } else { leaf };
            all.push(Raw { name: format!("{prefix}{theirs}.{leaf}"), dtype: first.dtype, shape, bytes });
        }
    }
    assert_eq!(used, ours.len(), "every tensor has another name");
    all
}

/// A VAE under their names.
fn vae(ours: Vec<Raw>) -> Vec<Raw> {
    let renamed = |name: &str| -> String {
        let mut name = name.to_owned();
        for i in 0..4 {
            name = name.replace(&format!("decoder.up_blocks.{i}."), &format!("decoder.up.{}.", 3 - i));
        }
        for (ours, theirs) in [
            ("decoder.mid_block.resnets.0", "decoder.mid.block_1"),
            ("decoder.mid_block.resnets.1", "decoder.mid.block_2"),
            ("decoder.mid_block.attentions.0.group_norm", "decoder.mid.attn_1.norm"),
            ("decoder.mid_block.attentions.0.to_q", "decoder.mid.attn_1.q"),
            ("decoder.mid_block.attentions.0.to_k", "decoder.mid.attn_1.k"),
            ("decoder.mid_block.attentions.0.to_v", "decoder.mid.attn_1.v"),
            ("decoder.mid_block.attentions.0.to_out.0", "decoder.mid.attn_1.proj_out"),
            ("decoder.conv_norm_out", "decoder.norm_out"),
            (".upsamplers.0.conv", ".upsample.conv"),
            (".resnets.", ".block."),
            (".conv_shortcut", ".nin_shortcut"),
        ] {
            name = name.replace(ours, theirs);
        }
        if name.starts_with("post_quant_conv") { format!("decoder.{name}") } else { name }
    };
    let conv = |mut t: Raw| {
        // Their attention has convolutions.
        if t.name.contains("attentions.0.to_") && t.shape.len() == 2 {
            t.shape.extend([1, 1]);
        }
        Raw { name: renamed(&t.name), ..t }
    };
    ours.into_iter().map(conv).collect()
}

fn copy(from: &Path, to: &Path, names: &[&str]) {
    std::fs::create_dir_all(to).unwrap();
    for name in names {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

fn backend() -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(CpuOptions::default()).unwrap())
}

/// The small picture of a case.
fn picture(case: &Case, activations: Activations) -> Picture {
    let mut model = case.model(&backend(), activations);
    assert_eq!((model.facts().transformer.double_blocks, model.facts().transformer.single_blocks), (2, 3));
    let job = case.jobs().into_iter().find(|job| job.text_tokens == 64).unwrap();
    model.generate(&job.request(), &mut |_| ControlFlow::Continue(())).unwrap()
}

const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";

#[test]
fn packed_weights_under_other_names() {
    for (case, prefix) in Case::all().into_iter().zip(["", "model.diffusion_model."]) {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (&case.folder, folder.path());
        let (packed, text) = ("transformer-packed-mflux", "text_encoder-mlx-4bit");
        // No configuration but that of the packing.
        copy(&from.join(packed), &to.join(packed), &["quantization_config.json"]);
        write(&transformer(&read(&from.join(packed).join(WEIGHTS)), prefix), &to.join(packed).join(WEIGHTS));
        copy(&from.join(text), &to.join(text), &["config.json", "model.safetensors"]);
        copy(&from.join("tokenizer"), &to.join("tokenizer"), &["tokenizer.json"]);
        copy(&from.join("vae"), &to.join("vae"), &["config.json"]);
        let (before, after) = (from.join("vae").join(WEIGHTS), to.join("vae").join("ae.safetensors"));
        let renamed = vae(read(&before));
        assert!(renamed.iter().any(|t| t.name == "decoder.up.3.block.0.conv1.weight"), "{}", renamed[0].name);
        write(&renamed, &after);
        let other = case.moved(to);
        for activations in [Activations::F32, Activations::I9G128] {
            let (ours, theirs) = (picture(&case, activations), picture(&other, activations));
            assert_eq!(ours.latents, theirs.latents, "{} {activations}", case.name);
            assert_eq!(ours.rgb, theirs.rgb, "{} {activations}", case.name);
        }
    }
}

#[test]
fn one_file_beside_the_other_parts() {
    let case = Case::all().remove(0);
    let folder = tempfile::tempdir().unwrap();
    let plain = case.unpack(folder.path());
    let ours = read(&folder.path().join("transformer").join(WEIGHTS));
    let file = folder.path().join("flux-2-klein-4b.safetensors");
    write(&transformer(&ours, ""), &file);
    let (wanted, got) = (picture(&plain, Activations::F32), picture(&plain.moved(&file), Activations::F32));
    assert_eq!(wanted.latents, got.latents);
    assert_eq!(wanted.rgb, got.rgb);
}

/// Binary blocks and the rest in eight bits, as a GGUF file has them; the same numbers as floats are the measure.
#[test]
fn a_gguf_file_of_several_types() {
    let case = Case::all().remove(0);
    let folder = tempfile::tempdir().unwrap();
    let plain = case.unpack(folder.path());
    let tensors = transformer(&read(&folder.path().join("transformer").join(WEIGHTS)), "");
    let mut specs = Vec::new();
    let mut contents = Vec::new();
    let mut rounded = Vec::new();
    for tensor in tensors {
        let values: Vec<f32> = tensor.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let format = match tensor.name.as_str() {
            name if name.ends_with(".scale") => Format::F32,
            name if name.contains("_blocks.") => Format::Q1_0,
            _ => Format::Q8_0,
        };
        let (cols, rows) = (*tensor.shape.last().unwrap(), tensor.shape.iter().rev().skip(1).product());
        let packed = quantize(format, rows, cols, &values).unwrap();
        let mut row = vec![0.0; cols];
        let decoded = (0..rows).flat_map(|r| {
            packed.as_matrix().decode_row(r, &mut row);
            row.clone()
        });
        rounded.push(Raw {
            name: tensor.name.clone(),
            dtype: Dtype::F32,
            shape: tensor.shape.clone(),
            bytes: decoded.flat_map(f32::to_le_bytes).collect(),
        });
        specs.push(TensorSpec { name: tensor.name, shape: tensor.shape, format });
        contents.push(packed.codes);
    }
    let (floats, gguf) = (folder.path().join("rounded.safetensors"), folder.path().join("flux.gguf"));
    write(&rounded, &floats);
    let metadata = [("general.architecture".to_owned(), Value::Str("flux".to_owned()))];
    let mut writer = Writer::new(std::fs::File::create(&gguf).unwrap(), &metadata, specs.clone()).unwrap();
    for (spec, bytes) in specs.iter().zip(&contents) {
        writer.tensor(&spec.name, bytes).unwrap();
    }
    writer.finish().unwrap();
    let (wanted, got) =
        (picture(&plain.moved(&floats), Activations::F32), picture(&plain.moved(&gguf), Activations::F32));
    let off = distance(wanted.latents.last().unwrap(), got.latents.last().unwrap());
    // The same numbers in other kernels: no further apart than two runs of the reference pipeline.
    assert!(off <= crate::LATENTS, "{off} off");
    assert_ne!(wanted.latents, picture(&plain, Activations::F32).latents, "rounding shows");
}
