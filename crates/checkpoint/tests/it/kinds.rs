//! Telling models apart: what runs, what is recognised to be refused, and what is unknown.

use std::fs;

use onebit_checkpoint::Kind;

use crate::support::{Gguf, folder, golden, kv, kv_str, opened, t, tensors_of, triplet};

fn gguf_kind(arch: &str, more: &[Vec<u8>]) -> Kind {
    let mut gguf = Gguf::new(&[t("a.weight", &[128, 2], 143, 0)], 56);
    gguf.key_values = [vec![kv_str("general.architecture", arch)], more.to_vec()].concat();
    let dir = folder(&[("model.gguf", &gguf.bytes())]);
    opened(dir.path()).kind().clone()
}

fn mlx_kind(config: &str, signs: bool, side: bool) -> Kind {
    let mut entries = triplet("language_model.model.embed_tokens", 4, 16, 2);
    if signs {
        entries.push(("language_model.model.embed_tokens.signs".into(), "F32", 4, vec![256]));
    }
    let dir = folder(&[("config.json", config.as_bytes()), ("model.safetensors", &tensors_of(&entries))]);
    if side {
        fs::write(dir.path().join("hadamard.json"), "{}").unwrap();
    }
    opened(dir.path()).kind().clone()
}

const TERNARY: &str = r#""quantization":{"bits":2,"group_size":128}"#;

#[test]
fn text_models_of_the_known_families() {
    for arch in ["qwen3", "qwen35"] {
        assert_eq!(gguf_kind(arch, &[]), Kind::Text);
    }
    for model_type in ["qwen3", "qwen3_5", "qwen3_5_text"] {
        assert_eq!(mlx_kind(&format!(r#"{{"model_type":"{model_type}",{TERNARY}}}"#), false, false), Kind::Text);
    }
    assert_eq!(*opened(&golden("qwen35_1bit_untied")).kind(), Kind::Text);
}

#[test]
fn rotated_weights_are_recognised_by_every_sign() {
    let rotated = |kind: Kind, sign: &str| match kind {
        Kind::Rotated { bits: 2, group: 128, how } => assert!(how.contains(sign), "{how}"),
        other => panic!("{other:?} instead of rotated by {sign}"),
    };
    rotated(gguf_kind("qwen35", &[kv("prism.hadamard.version", 4, &1u32.to_le_bytes())]), "prism.hadamard.version");
    rotated(
        mlx_kind(&format!(r#"{{"model_type":"prism_hadamard_qwen35",{TERNARY}}}"#), false, false),
        "prism_hadamard_qwen35",
    );
    rotated(mlx_kind(&format!(r#"{{"model_type":"qwen3_5",{TERNARY}}}"#), true, false), "embed_tokens.signs");
    rotated(mlx_kind(&format!(r#"{{"model_type":"qwen3_5",{TERNARY}}}"#), false, true), "hadamard.json");
    let field = format!(r#"{{"model_type":"qwen3_5","gdn_activation_layout":"grouped",{TERNARY}}}"#);
    rotated(mlx_kind(&field, false, false), "gdn_activation_layout");
    let text = gguf_kind("qwen35", &[kv_str("prism.hadamard.sign_widths", "")]).to_string();
    assert_eq!(
        text,
        "a text model with Hadamard-rotated weights (2-bit, groups of 128), recognised by the key `prism.hadamard.sign_widths`"
    );
}

#[test]
fn halves_of_models_are_recognised() {
    assert_eq!(gguf_kind("clip", &[]), Kind::VisionProjector);
    assert_eq!(gguf_kind("dspark", &[]), Kind::Drafter);
}

#[test]
fn unknown_architectures_keep_their_name() {
    assert_eq!(gguf_kind("llama", &[]), Kind::Unknown("llama".into()));
    let kind = mlx_kind(&format!(r#"{{"architectures":["GemmaForCausalLM"],{TERNARY}}}"#), false, false);
    assert_eq!(kind.to_string(), "a model of the unknown architecture `GemmaForCausalLM`");
    // Even when its layers could not be read: the name is the better reason.
    let other = r#"{"model_type":"gemma","quantization":{"bits":6,"group_size":64}}"#;
    assert_eq!(mlx_kind(other, false, false), Kind::Unknown("gemma".into()));
    assert_eq!(mlx_kind(&format!("{{{TERNARY}}}"), false, false).to_string(), "a model that names no architecture");
}

#[test]
fn image_packs_are_recognised_with_bits_and_group() {
    for bits in [1u64, 2] {
        let dir = folder(&[]);
        let transformer = dir.path().join("transformer-packed-mflux");
        fs::create_dir(&transformer).unwrap();
        let weights = tensors_of(&triplet("transformer_blocks.0.attn.to_q", 4, 256 * bits / 32, 2));
        fs::write(transformer.join("diffusion_pytorch_model.safetensors"), weights).unwrap();
        fs::write(transformer.join("config.json"), r#"{"_class_name":"Flux2Transformer2DModel"}"#).unwrap();
        let side = format!(r#"{{"bits":{bits},"group_size":128,"mode":"affine","skip_patterns":["proj_out"]}}"#);
        fs::write(transformer.join("quantization_config.json"), side).unwrap();
        let want = Kind::Image { bits: bits as u32, group: 128 };
        assert_eq!(*opened(dir.path()).kind(), want);
        assert_eq!(*opened(&transformer).kind(), want);
        assert_eq!(want.to_string(), format!("an image model ({bits}-bit, groups of 128)"));
    }
}

#[test]
fn image_packs_for_other_runtimes_are_recognised_without_their_weights() {
    for (name, bits) in [("transformer-gemlite-int1", 1), ("transformer-gemlite-int2", 2), ("transformer", 16)] {
        let dir = folder(&[]);
        fs::create_dir(dir.path().join(name)).unwrap();
        assert_eq!(*opened(dir.path()).kind(), Kind::Image { bits, group: 0 });
    }
}
