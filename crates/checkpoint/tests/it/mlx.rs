//! MLX packs: bits and groups from shapes, overrides in every spelling, and what does not fit together.

use onebit_checkpoint::{Checkpoint, Error, Problem, open};
use onebit_quant::{Format, ParamType};

use crate::support::{MAPPED, folder, opened, tensors_of, triplet, watch};

type Entries = Vec<(String, &'static str, u64, Vec<u64>)>;

fn pack(config: &str, entries: &Entries) -> Result<Checkpoint, Error> {
    let dir = folder(&[("config.json", config.as_bytes()), ("model.safetensors", &tensors_of(entries))]);
    open(dir.path(), &MAPPED)
}

fn config(quantization: &str) -> String {
    format!(r#"{{"model_type":"qwen3","quantization":{quantization}}}"#)
}

fn affine(bits: u32, group: u32) -> Format {
    Format::affine(bits, group, ParamType::F16, ParamType::F16).unwrap()
}

#[test]
fn one_bit_packs_are_plain_packs() {
    for (bits, group) in [(1, 32), (1, 64), (1, 128), (2, 128), (4, 64), (8, 32), (8, 128)] {
        let c = config(&format!(r#"{{"bits":{bits},"group_size":{group}}}"#));
        let open = pack(&c, &triplet("model.layers.0.mlp.up_proj", 4, 256 * bits / 32, 256 / group)).unwrap();
        let m = open.matrix("model.layers.0.mlp.up_proj").unwrap().unwrap();
        assert_eq!((m.format, m.rows, m.cols), (affine(bits as u32, group as u32), 4, 256));
        assert!(open.matrix("model.layers.1.mlp.up_proj").unwrap().is_none());
    }
}

#[test]
fn overrides_match_in_every_spelling_of_module_and_key() {
    let spellings = [
        "layers.0.mlp.up_proj",
        "model.layers.0.mlp.up_proj",
        "language_model.model.layers.0.mlp.up_proj",
        "model.language_model.layers.0.mlp.up_proj",
    ];
    for key in spellings {
        for module in spellings {
            let c = config(&format!(r#"{{"bits":2,"group_size":128,"{key}":{{"bits":8,"group_size":64}}}}"#));
            let mut entries = triplet(module, 4, 64, 4);
            entries.extend(triplet("lm_head", 4, 16, 2));
            let open = pack(&c, &entries).unwrap_or_else(|e| panic!("{key} for {module}: {e}"));
            assert_eq!(open.matrix(module).unwrap().unwrap().format, affine(8, 64));
            assert_eq!(open.matrix("lm_head").unwrap().unwrap().format, affine(2, 128));
        }
    }
}

#[test]
fn an_override_inherits_what_it_does_not_say() {
    let c = config(r#"{"bits":2,"group_size":128,"model.embed_tokens":{"bits":8}}"#);
    let open = pack(&c, &triplet("model.embed_tokens", 4, 64, 2)).unwrap();
    assert_eq!(open.matrix("model.embed_tokens").unwrap().unwrap().format, affine(8, 128));
}

#[test]
fn a_module_set_to_false_is_dense() {
    let c = config(r#"{"bits":1,"group_size":128,"lm_head":false}"#);
    let dense = vec![("lm_head.weight".to_owned(), "F16", 2, vec![4, 256])];
    assert_eq!(pack(&c, &dense).unwrap().matrix("lm_head").unwrap().unwrap().format, Format::F16);
    let error = pack(&c, &triplet("lm_head", 4, 8, 2)).unwrap_err().to_string();
    assert!(error.contains("layer `lm_head`: config.json says it is not quantized"), "{error}");
    let c = config(r#"{"bits":1,"group_size":128,"lm_head":{"bits":4}}"#);
    let error = pack(&c, &dense).unwrap().matrix("lm_head").unwrap_err().to_string();
    assert!(error.contains("F16 [4, 256] without scales"), "{error}");
}

#[test]
fn the_layer_that_disagrees_is_named_at_open() {
    let c = config(r#"{"bits":2,"group_size":128}"#);
    let mut entries = triplet("model.layers.0.mlp.up_proj", 4, 16, 2);
    entries.extend(triplet("model.layers.7.mlp.down_proj", 4, 64, 4));
    let error = pack(&c, &entries).unwrap_err().to_string();
    assert!(
        error.contains(
            "layer `model.layers.7.mlp.down_proj`: config.json says 2-bit g128, but the tensor shapes say 4-bit g128 or 8-bit g64"
        ),
        "{error}"
    );
    // 3 bits fit no reading.
    let c = config(r#"{"bits":3,"group_size":64}"#);
    let error = pack(&c, &triplet("lm_head", 4, 24, 4)).unwrap_err().to_string();
    assert!(
        error.contains("layer `lm_head`") && error.contains("3-bit g64") && error.contains("no supported width"),
        "{error}"
    );
}

#[test]
fn without_a_configuration_the_columns_decide() {
    let entries = triplet("lm_head", 4, 8, 2);
    let open = |c: &str| pack(c, &entries);
    let error = open(r#"{"model_type":"qwen3"}"#).unwrap_err();
    assert!(matches!(*error.problem, Problem::UnknownBits { .. }), "{error}");
    assert!(error.to_string().contains("1-bit g128 or 2-bit g64 or 4-bit g32"), "{error}");
    // A reading that no other shares needs nothing.
    let alone = pack(r#"{"model_type":"qwen3"}"#, &triplet("lm_head", 4, 8, 8)).unwrap();
    assert_eq!(alone.matrix("lm_head").unwrap().unwrap().format, affine(1, 32));
    let c = open(&config(r#"{"bits":1,"group_size":128}"#)).unwrap();
    assert_eq!(c.matrix_at("lm_head", 256).unwrap().unwrap().cols, 256);
    let error = c.matrix_at("lm_head", 128).unwrap_err().to_string();
    assert!(error.contains("layer `lm_head`") && error.contains("at 128 columns"), "{error}");
}

#[test]
fn other_modes_are_refused_by_name() {
    for c in [
        config(r#"{"bits":4,"group_size":32,"mode":"mxfp4"}"#),
        config(r#"{"bits":1,"group_size":128,"lm_head":{"bits":4,"group_size":32,"mode":"mxfp4"}}"#),
    ] {
        let error = pack(&c, &triplet("lm_head", 4, 32, 8)).unwrap_err().to_string();
        assert!(error.contains("`lm_head` is stored in quantization mode `mxfp4`"), "{error}");
    }
    let awq = r#"{"model_type":"qwen3","quantization_config":{"quant_method":"awq","bits":4,"group_size":128}}"#;
    let entries = vec![("lm_head.qweight".to_owned(), "I32", 4, vec![4, 32])];
    let error = pack(awq, &entries).unwrap().matrix("lm_head").unwrap_err().to_string();
    assert!(error.contains("mode `awq`"), "{error}");
}

#[test]
fn both_names_of_the_section_are_read_and_the_mlx_one_wins() {
    let entries = triplet("lm_head", 4, 8, 2);
    let both = r#"{"quantization":{"bits":1,"group_size":128},"quantization_config":{"bits":2,"group_size":64}}"#;
    assert_eq!(pack(both, &entries).unwrap().matrix("lm_head").unwrap().unwrap().format, affine(1, 128));
    let other = r#"{"quantization_config":{"bits":2,"group_size":64}}"#;
    assert_eq!(pack(other, &entries).unwrap().matrix("lm_head").unwrap().unwrap().format, affine(2, 64));
}

#[test]
fn values_of_the_wrong_type_and_contradictions_are_named() {
    let entries = triplet("lm_head", 4, 8, 2);
    for (section, wanted) in [
        (r#"{"bits":"one","group_size":128}"#, "`quantization.bits` is not a whole number"),
        (r#"{"bits":1,"group_size":-4}"#, "`quantization.group_size`"),
        (r#"{"bits":1,"group_size":128,"mode":7}"#, "`quantization.mode` is not a string"),
        ("[1,128]", "`quantization` is not an object"),
        (
            r#"{"bits":1,"group_size":128,"lm_head":{"bits":4},"language_model.lm_head":{"bits":8}}"#,
            "contradicts the same module under another spelling",
        ),
        (r#"{"bits":18446744073709551615,"group_size":18446744073709551615}"#, "layer `lm_head`"),
    ] {
        let error = pack(&config(section), &entries).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    assert!(pack("{", &entries).unwrap_err().to_string().contains("config.json: has invalid JSON"));
    assert!(pack("[]", &entries).unwrap_err().to_string().contains("is not an object"));
}

#[test]
fn broken_triplets_are_named() {
    let c = config(r#"{"bits":1,"group_size":128}"#);
    let good = triplet("lm_head", 4, 8, 2);
    let without: Entries = good[..2].to_vec();
    assert!(pack(&c, &without).unwrap_err().to_string().contains("`lm_head.biases`: is missing"));
    for (part, shape) in [(1, vec![3, 2]), (2, vec![4, 1]), (1, vec![8]), (0, vec![5, 8])] {
        let mut bad = good.clone();
        bad[part].3 = shape;
        let error = pack(&c, &bad).unwrap_err().to_string();
        assert!(error.contains("lm_head.weight"), "{error}");
    }
    for (part, dtype, size) in [(0, "I32", 4), (1, "U32", 4), (2, "I8", 1)] {
        let mut bad = good.clone();
        (bad[part].1, bad[part].2) = (dtype, size);
        let error = pack(&c, &bad).unwrap_err();
        assert!(matches!(*error.problem, Problem::WrongKind { .. }), "{error}");
    }
    // Zero columns and zero rows.
    let mut none = good.clone();
    (none[0].3, none[1].3, none[2].3) = (vec![4, 0], vec![4, 0], vec![4, 0]);
    assert!(pack(&c, &none).is_err());
    let norm = vec![("n.weight".to_owned(), "F16", 2, vec![4])];
    let error = pack(&c, &norm).unwrap().matrix("n").unwrap_err().to_string();
    assert!(error.contains("wanted a matrix of two dimensions"), "{error}");
}

#[test]
fn scales_and_biases_may_differ_in_type() {
    let mut entries = triplet("lm_head", 4, 8, 2);
    (entries[1].1, entries[1].2) = ("BF16", 2);
    (entries[2].1, entries[2].2) = ("F32", 4);
    let open = pack(&config(r#"{"bits":1,"group_size":128}"#), &entries).unwrap();
    let want = Format::affine(1, 128, ParamType::BF16, ParamType::F32).unwrap();
    assert_eq!(open.matrix("lm_head").unwrap().unwrap().format, want);
}

#[test]
fn a_vision_tower_in_any_state_does_not_stop_the_text_model() {
    let c = r#"{"model_type":"qwen3_5","vision_config":{"depth":2},"quantization":{"bits":1,"group_size":128}}"#;
    let text = triplet("language_model.lm_head", 4, 8, 2);
    assert!(pack(c, &text).unwrap().matrix("language_model.lm_head").unwrap().is_some());
    let mut with_tower = text;
    with_tower.extend(triplet("vision_tower.blocks.0.attn.qkv", 4, 48, 4));
    let open = pack(c, &with_tower).unwrap();
    assert!(open.matrix("language_model.lm_head").unwrap().is_some());
    assert!(open.matrix("vision_tower.blocks.0.attn.qkv").is_err());
    assert_eq!(open.packed().count(), 1);
}

#[test]
fn configuration_values_come_from_the_file() {
    let c = r#"{"model_type":"qwen3","num_hidden_layers":5,"rope_theta":1e6,"tie_word_embeddings":true,
        "rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":16384},
        "text_config":{"rope_parameters":{"mrope_section":[11,11,10]}},"eos_token_id":[1,2],"nothing":null}"#;
    let dir = folder(&[("config.json", c.as_bytes()), ("model.safetensors", &tensors_of(&triplet("a", 1, 1, 1)))]);
    let c = opened(dir.path());
    let number = |key: &str| c.meta(key).and_then(|m| m.as_f64());
    assert_eq!(number("num_hidden_layers"), Some(5.0));
    assert_eq!(c.meta("rope_theta").and_then(|m| m.as_u64()), Some(1_000_000));
    assert_eq!(number("rope_scaling.factor"), Some(4.0));
    assert_eq!(number("rope_scaling.original_max_position_embeddings"), Some(16384.0));
    assert_eq!(c.meta("rope_scaling.rope_type").and_then(|m| m.as_str()), Some("yarn"));
    assert_eq!(c.meta("tie_word_embeddings").and_then(|m| m.as_bool()), Some(true));
    let list = |key: &str| c.meta(key).and_then(|m| m.as_array()).and_then(|a| a.to_usizes());
    assert_eq!(list("text_config.rope_parameters.mrope_section"), Some(vec![11, 11, 10]));
    assert_eq!(list("eos_token_id"), Some(vec![1, 2]));
    assert!(c.meta("rope_scaling.missing").is_none() && c.meta("rope_theta.deeper").is_none());
}

#[test]
fn a_nested_or_oversized_configuration_is_an_error() {
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let (result, _, time) = watch(|| pack(&deep, &triplet("a", 1, 1, 1)));
    assert!(result.unwrap_err().to_string().contains("invalid JSON"));
    assert!(time.as_secs() < 1);
    let huge = format!(r#"{{"a":"{}"}}"#, "x".repeat(17 << 20));
    assert!(matches!(*pack(&huge, &triplet("a", 1, 1, 1)).unwrap_err().problem, Problem::TooLarge { .. }));
}
