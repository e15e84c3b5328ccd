//! Headers with the shapes of the published 27B: counts and bytes must be those of the real files. No weights.

use std::path::Path;
use std::time::Duration;

use onebit_checkpoint::{Inventory, Kind, Parsed, StoredType, gguf, safetensors};
use onebit_quant::{Format, ParamType};

use crate::support::quick;

const F16: StoredType = StoredType::Float(ParamType::F16);

/// (module, rows, cols) of the packed matrices of one block.
fn packed_of(full_attention: bool) -> Vec<(&'static str, usize, usize)> {
    let mut list = vec![("mlp.gate_proj", 17408, 5120), ("mlp.up_proj", 17408, 5120), ("mlp.down_proj", 5120, 17408)];
    list.extend(if full_attention {
        vec![
            ("self_attn.q_proj", 12288, 5120),
            ("self_attn.k_proj", 1024, 5120),
            ("self_attn.v_proj", 1024, 5120),
            ("self_attn.o_proj", 5120, 6144),
        ]
    } else {
        vec![
            ("linear_attn.in_proj_qkv", 10240, 5120),
            ("linear_attn.in_proj_z", 6144, 5120),
            ("linear_attn.in_proj_a", 48, 5120),
            ("linear_attn.in_proj_b", 48, 5120),
            ("linear_attn.out_proj", 5120, 6144),
        ]
    });
    list
}

fn dense_of(full_attention: bool) -> Vec<(&'static str, Vec<usize>)> {
    let mut list = vec![("input_layernorm.weight", vec![5120]), ("post_attention_layernorm.weight", vec![5120])];
    list.extend(if full_attention {
        vec![("self_attn.q_norm.weight", vec![256]), ("self_attn.k_norm.weight", vec![256])]
    } else {
        vec![
            ("linear_attn.conv1d.weight", vec![10240, 4, 1]),
            ("linear_attn.A_log", vec![48]),
            ("linear_attn.dt_bias", vec![48]),
            ("linear_attn.norm.weight", vec![128]),
        ]
    });
    list
}

fn mlx_27b(bits: usize) -> Vec<safetensors::TensorSpec> {
    let mut specs = Vec::new();
    let mut put = |name: String, stored, shape: &[usize]| {
        specs.push(safetensors::TensorSpec { name, stored, shape: shape.to_vec() });
    };
    let mut triplet = |base: &str, rows: usize, cols: usize| {
        put(format!("{base}.weight"), StoredType::U32, &[rows, cols * bits / 32]);
        put(format!("{base}.scales"), F16, &[rows, cols / 128]);
        put(format!("{base}.biases"), F16, &[rows, cols / 128]);
    };
    for n in 0..64 {
        for (module, rows, cols) in packed_of(n % 4 == 3) {
            triplet(&format!("language_model.model.layers.{n}.{module}"), rows, cols);
        }
    }
    triplet("language_model.model.embed_tokens", 248_320, 5120);
    triplet("language_model.lm_head", 248_320, 5120);
    for n in 0..64 {
        for (name, shape) in dense_of(n % 4 == 3) {
            put(format!("language_model.model.layers.{n}.{name}"), F16, &shape);
        }
    }
    put("language_model.model.norm.weight".into(), F16, &[5120]);
    let mut linear = |base: &str, rows: usize, shape: &[usize]| {
        put(format!("{base}.weight"), F16, shape);
        put(format!("{base}.bias"), F16, &[rows]);
    };
    linear("vision_tower.patch_embed.proj", 1152, &[1152, 2, 16, 16, 3]);
    for k in 0..27 {
        for (name, rows, shape) in [
            ("norm1", 1152, vec![1152]),
            ("norm2", 1152, vec![1152]),
            ("attn.qkv", 3456, vec![3456, 1152]),
            ("attn.proj", 1152, vec![1152, 1152]),
            ("mlp.linear_fc1", 4304, vec![4304, 1152]),
            ("mlp.linear_fc2", 1152, vec![1152, 4304]),
        ] {
            linear(&format!("vision_tower.blocks.{k}.{name}"), rows, &shape);
        }
    }
    linear("vision_tower.merger.norm", 1152, &[1152]);
    linear("vision_tower.merger.linear_fc1", 4608, &[4608, 4608]);
    linear("vision_tower.merger.linear_fc2", 5120, &[5120, 4608]);
    put("vision_tower.pos_embed.weight".into(), F16, &[2304, 1152]);
    specs
}

#[test]
fn the_27b_pack_has_its_published_matrices_and_bytes() {
    for (bits, language) in [(1, 4_207_377_408), (2, 7_569_046_528)] {
        let specs = mlx_27b(bits);
        let header = safetensors::header_bytes(&[("format", "mlx")], &specs).unwrap();
        let data: u64 = specs.iter().map(|s| s.bytes().unwrap()).sum();
        let len = header.len() as u64 + data;
        let config = serde_json::json!({
            "model_type": "qwen3_5", "quantization": { "group_size": 128, "bits": bits }, "vision_config": {},
        });
        let read = || {
            let Parsed::Header(parsed) = safetensors::Header::parse(&header, len).unwrap() else { panic!() };
            let shards = [("model.safetensors".to_owned(), parsed)];
            Inventory::from_safetensors(Path::new("o/27b"), config.clone(), &shards).unwrap()
        };
        quick(Duration::from_millis(100), || drop(read()));
        let inventory = read();
        assert_eq!(*inventory.kind(), Kind::Text);
        assert_eq!(inventory.packed().count(), 498);
        let format = Format::affine(bits as u32, 128, ParamType::F16, ParamType::F16).unwrap();
        assert!(inventory.packed().all(|(_, m)| m.format == format));
        let params: usize = inventory.packed().map(|(_, m)| m.rows * m.cols).sum();
        assert_eq!(params, 26_893_352_960);
        let bytes = |vision: bool| {
            let part = inventory.tensors().filter(move |t| t.name.starts_with("vision_tower.") == vision);
            part.fold((0, 0), |(n, sum), t| (n + 1, sum + t.bytes))
        };
        assert_eq!(bytes(true), (333, 921_460_192));
        assert_eq!(bytes(false).1, language);
    }
}

fn gguf_27b(packed: Format) -> Vec<gguf::TensorSpec> {
    let mut specs = Vec::new();
    let mut put = |name: String, format, shape: &[usize]| {
        specs.push(gguf::TensorSpec { name, shape: shape.to_vec(), format });
    };
    put("token_embd.weight".into(), packed, &[248_320, 5120]);
    put("output_norm.weight".into(), Format::F32, &[5120]);
    put("output.weight".into(), packed, &[248_320, 5120]);
    for n in 0..64 {
        let matrices: &[(&str, usize, usize)] = if n % 4 == 3 {
            &[("attn_q", 12288, 5120), ("attn_k", 1024, 5120), ("attn_v", 1024, 5120), ("attn_output", 5120, 6144)]
        } else {
            &[
                ("attn_qkv", 10240, 5120),
                ("attn_gate", 6144, 5120),
                ("ssm_alpha", 48, 5120),
                ("ssm_beta", 48, 5120),
                ("ssm_out", 5120, 6144),
            ]
        };
        let mlp = [("ffn_gate", 17408, 5120), ("ffn_up", 17408, 5120), ("ffn_down", 5120, 17408)];
        for (name, rows, cols) in matrices.iter().chain(&mlp) {
            put(format!("blk.{n}.{name}.weight"), packed, &[*rows, *cols]);
        }
        let dense: &[(&str, &[usize])] = if n % 4 == 3 {
            &[("attn_q_norm.weight", &[256]), ("attn_k_norm.weight", &[256])]
        } else {
            &[("ssm_conv1d.weight", &[10240, 4]), ("ssm_a", &[48]), ("ssm_dt.bias", &[48]), ("ssm_norm.weight", &[128])]
        };
        let norms: [(&str, &[usize]); 2] = [("attn_norm.weight", &[5120]), ("post_attention_norm.weight", &[5120])];
        for (name, shape) in dense.iter().chain(&norms) {
            put(format!("blk.{n}.{name}"), Format::F32, shape);
        }
    }
    specs
}

#[test]
fn the_27b_gguf_has_its_published_tensors_and_bytes() {
    let arch = [("general.architecture".to_owned(), gguf::Value::Str("qwen35".into()))];
    for (format, bytes) in
        [(Format::Q1_0, 3_792_459_776), (Format::Q2_0G128, 7_154_128_896), (Format::Q2_0G64, 7_574_337_536)]
    {
        let specs = gguf_27b(format);
        let header = gguf::header_bytes(&arch, &specs).unwrap();
        let data: u64 = specs.iter().map(|s| s.bytes().unwrap().next_multiple_of(32)).sum();
        let parsed = gguf::Header::parse(&header, header.len() as u64 + data).unwrap();
        let Parsed::Header(parsed) = parsed else { panic!() };
        let inventory = Inventory::from_gguf(Path::new("27b.gguf"), vec![("27b.gguf".into(), parsed)], None).unwrap();
        assert_eq!(*inventory.kind(), Kind::Text);
        assert_eq!(inventory.tensors().len(), 851);
        let f32s = inventory.tensors().filter(|t| t.stored == StoredType::Float(ParamType::F32));
        assert_eq!(f32s.count(), 353);
        assert_eq!(inventory.packed().filter(|(_, m)| m.format == format).count(), 498);
        assert_eq!(inventory.tensors().map(|t| t.bytes).sum::<u64>(), bytes);
    }
}
