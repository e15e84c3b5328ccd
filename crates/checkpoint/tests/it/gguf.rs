//! GGUF files: tables that lie, type ids, splits, and what writers write.

use std::time::Duration;

use onebit_checkpoint::gguf::{Array, Header, TensorSpec, Value, Writer, header_bytes};
use onebit_checkpoint::{Container, Meta, OpenOptions, Parsed, Problem, open};
use onebit_quant::Format;

use crate::support::{Gguf, MAPPED, T, folder, kv, kv_str, opened, quick, refused, refused_file, string, t};

const NAME: &str = "model.gguf";

fn problem_of(gguf: &Gguf) -> String {
    refused_file(NAME, &gguf.bytes()).to_string()
}

/// Two matrices of 16 x 256 in id 42 and a norm, with the given bytes per matrix.
fn two_ternary(bytes: u64) -> Gguf {
    let at = bytes.next_multiple_of(32);
    let tensors = [t("a.weight", &[256, 16], 42, 0), t("b.weight", &[256, 16], 42, at), t("n.weight", &[8], 0, 2 * at)];
    Gguf::new(&tensors, 2 * at as usize + 32)
}

#[test]
fn id_42_is_resolved_by_the_offset_table() {
    // 16 rows of 256: 64 x 64-blocks of 18 bytes, or 32 x 128-blocks of 34.
    for (bytes, format) in [(64 * 18, Format::Q2_0G64), (32 * 34, Format::Q2_0G128)] {
        let dir = folder(&[(NAME, &two_ternary(bytes).bytes())]);
        let c = opened(&dir.path().join(NAME));
        assert_eq!(c.container(), Container::Gguf);
        for name in ["a", "b"] {
            let m = c.matrix(name).unwrap().unwrap();
            assert_eq!((m.format, m.rows, m.cols), (format, 16, 256));
        }
    }
}

#[test]
fn id_42_is_resolved_by_the_file_length_when_the_tensor_is_last() {
    for (bytes, format) in [(64 * 18, Format::Q2_0G64), (32 * 34, Format::Q2_0G128)] {
        let gguf = Gguf::new(&[t("n.weight", &[8], 0, 0), t("a.weight", &[256, 16], 42, 32)], 32 + bytes);
        let dir = folder(&[(NAME, &gguf.bytes())]);
        assert_eq!(opened(dir.path()).matrix("a").unwrap().unwrap().format, format);
    }
}

#[test]
fn a_single_tensor_of_id_42_is_refused_unless_the_user_says_the_group() {
    for (bytes, group, wrong, suggests) in [(64 * 18, 64, 128, "64"), (32 * 34, 128, 64, "128")] {
        let gguf = Gguf::new(&[t("a.weight", &[256, 16], 42, 0)], bytes).bytes();
        let name = if group == 64 { "Tiny-Q2_0_g64.gguf" } else { "Tiny-Q2_0.gguf" };
        let dir = folder(&[(name, &gguf)]);
        let path = dir.path().join(name);
        let error = refused(&path);
        assert!(matches!(*error.problem, Problem::AmbiguousQ2_0 { .. }), "{error}");
        assert!(error.to_string().contains(&format!("suggests {suggests}")), "{error}");
        let with = |group| open(&path, &OpenOptions { mmap: true, q2_0_group: Some(group) });
        let c = with(group).unwrap();
        assert_eq!(c.matrix("a").unwrap().unwrap().format.group(), usize::from(group));
        let error = with(wrong).unwrap_err();
        assert!(matches!(*error.problem, Problem::Truncated { .. } | Problem::TrailingBytes { .. }), "{error}");
        assert!(with(32).unwrap_err().to_string().contains("hold 64 or 128"));
    }
}

#[test]
fn tiny_tensors_that_fit_both_meanings_decide_nothing() {
    // One row of 128: 36 or 34 bytes, both padded to 64.
    let gguf = Gguf::new(&[t("a.weight", &[128], 42, 0), t("b.weight", &[128], 42, 64)], 128);
    assert!(matches!(refused_file(NAME, &gguf.bytes()), Problem::AmbiguousQ2_0 { .. }));
}

#[test]
fn a_wrong_size_of_id_42_names_the_tensor_that_is_wrong() {
    let text = problem_of(&two_ternary(64 * 18 + 32));
    assert!(text.contains("`a.weight`") && text.contains("blocks of 64 need 1152"), "{text}");
    // Both meanings in one file.
    let mixed =
        [t("a.weight", &[256, 16], 42, 0), t("b.weight", &[256, 16], 42, 1152), t("n.weight", &[8], 0, 1152 + 1088)];
    let text = problem_of(&Gguf::new(&mixed, 1152 + 1088 + 32));
    assert!(text.contains("`b.weight`"), "{text}");
}

#[test]
fn private_ids_have_their_exact_sizes() {
    for (id, format, bytes) in [
        (41, Format::Q1_0, 18),
        (142, Format::Pq2_0, 34),
        (143, Format::Ptq1_0, 28),
        (2, Format::Q4_0, 4 * 18),
        (3, Format::Q4_1, 4 * 20),
        (8, Format::Q8_0, 4 * 34),
    ] {
        let size = 3 * 2 * bytes;
        let gguf = Gguf::new(&[t("a.weight", &[256, 3], id, 0)], size);
        let dir = folder(&[(NAME, &gguf.bytes())]);
        let c = opened(dir.path());
        let m = c.matrix("a").unwrap().unwrap();
        assert_eq!((m.format, m.rows, m.cols, m.codes.len()), (format, 3, 256, size));
        assert!(c.dense("a.weight").is_err());
    }
}

#[test]
fn an_unknown_type_names_id_tensor_and_what_is_supported() {
    for id in [9999, 12, 34, 40, 144] {
        let text = problem_of(&Gguf::new(&[t("blk.0.ffn_up.weight", &[256, 4], id, 0)], 4096));
        assert!(text.contains("`blk.0.ffn_up.weight`") && text.contains(&format!("id {id},")), "{text}");
        assert!(text.contains("41 (Q1_0)") && text.contains("143 (PTQ1_0)"), "{text}");
    }
}

#[test]
fn dimensions_that_are_zero_overflow_or_too_many_are_typed_errors() {
    let dims = |dims: &[u64]| problem_of(&Gguf::new(&[t("w", dims, 0, 0)], 64));
    assert!(dims(&[4, 0]).contains("`w`: has a zero dimension in [4, 0]"));
    assert!(dims(&[(1 << 63) - 1, 2]).contains("overflows"));
    assert!(dims(&[1 << 32, 1 << 32]).contains("overflows"));
    assert!(dims(&[1 << 62]).contains("overflows"));
    assert!(dims(&[1, 1, 1, 1, 1]).contains("has 5 dimensions"));
    for n_dims in [0, 5, u32::MAX] {
        let tensor = T { n_dims, ..t("w", &[4], 0, 0) };
        assert!(problem_of(&Gguf::new(&[tensor], 64)).contains(&format!("has {n_dims} dimensions")));
    }
    // Within all limits, but a terabyte: the file is simply too short.
    assert!(matches!(
        refused_file(NAME, &Gguf::new(&[t("w", &[1 << 38], 0, 0)], 64).bytes()),
        Problem::Truncated { .. }
    ));
    assert!(problem_of(&Gguf::new(&[t("w", &[100, 4], 41, 0)], 4096)).contains("not whole blocks of 128"));
}

#[test]
fn alignment_must_be_a_power_of_two_in_the_right_type() {
    let with = |id, value: &[u8]| {
        let mut gguf = Gguf::new(&[t("w", &[4], 0, 0)], 64);
        gguf.key_values = vec![kv("general.alignment", id, value)];
        gguf
    };
    assert!(problem_of(&with(5, &32i32.to_le_bytes())).contains("has type I32, not U32"));
    assert!(problem_of(&with(8, &string("32"))).contains("has type Str"));
    for bad in [0u32, 3, 48, u32::MAX] {
        assert!(problem_of(&with(4, &bad.to_le_bytes())).contains("no power of two"), "{bad}");
    }
    for good in [1usize, 8, 64, 4096] {
        let mut gguf = with(4, &(good as u32).to_le_bytes());
        gguf.align = good;
        gguf.data = 16;
        let dir = folder(&[(NAME, &gguf.bytes())]);
        assert_eq!(opened(dir.path()).tensors().len(), 1);
    }
}

#[test]
fn counts_and_lengths_beyond_the_file_are_refused_before_anything_is_allocated() {
    let base = || Gguf::new(&[t("w", &[4], 0, 0)], 64);
    for count in [1 << 60, u64::MAX, 1000] {
        assert!(problem_of(&Gguf { tensor_count: Some(count), ..base() }).contains("the number of tensors"));
        assert!(problem_of(&Gguf { key_count: Some(count), ..base() }).contains("the number of key-values"));
    }
    let with = |pair: Vec<u8>| problem_of(&Gguf { key_values: vec![pair], ..base() });
    let long = |n: u64| n.to_le_bytes();
    assert!(with([&long(1 << 63)[..], b"abc", &[0; 16]].concat()).contains("the length of a key"));
    assert!(with(kv("k", 8, &long(u64::MAX))).contains("the length of a string value"));
    assert!(with(kv("k", 9, &[&4u32.to_le_bytes()[..], &long(1 << 61)].concat())).contains("the length of `k`"));
    assert!(with(kv("k", 9, &[&8u32.to_le_bytes()[..], &long(1 << 40)].concat())).contains("the length of `k`"));
    assert!(with(kv("", 4, &[0; 4])).contains("a key is empty"));
    assert!(with(kv("k", 13, &[0; 8])).contains("unknown value type 13"));
    assert!(with(kv("k", 7, &[2])).contains("must be 0 or 1"));
    assert!(with(kv("k", 8, &[&long(2)[..], &[0xff, 0xfe]].concat())).contains("not UTF-8"));
    let nested = |depth| [9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes()].concat().repeat(depth);
    assert!(with(kv("k", 9, &nested(40))).contains("nests lists"));
    let twice = Gguf { key_values: vec![kv_str("a", "x"), kv_str("a", "y")], ..base() };
    assert!(problem_of(&twice).contains("`a` appears twice"));
    let twice = Gguf::new(&[t("w", &[8], 0, 0), t("w", &[8], 0, 32)], 64);
    assert!(problem_of(&twice).contains("tensor `w` appears twice"));
    assert!(problem_of(&Gguf::new(&[t("", &[8], 0, 0)], 64)).contains("tensor name is empty"));
}

#[test]
fn sizes_must_agree_with_offsets_and_file_length() {
    let two = |second| Gguf::new(&[t("a", &[16], 0, 0), t("b", &[8], 0, second)], 96);
    assert!(
        problem_of(&two(32))
            .contains("`a`: F32 [16] takes 64 bytes (64 padded), but the next tensor starts 32 bytes after it")
    );
    assert!(problem_of(&two(96)).contains("starts 96 bytes after it"));
    assert!(problem_of(&two(0)).contains("starts 0 bytes after it"));
    assert!(problem_of(&two(65)).contains("not a multiple of the alignment"));
    assert!(problem_of(&two(u64::MAX - 31)).contains("after it"));
    assert!(problem_of(&Gguf::new(&[t("a", &[8], 0, 32)], 64)).contains("nothing lies before it"));
    let good = two(64);
    for (change, text) in [(-1i64, "1 are missing"), (16, "16 bytes after"), (-32, "32 are missing")] {
        let gguf = Gguf { data: (96 + change) as usize, ..Gguf::new(&good.tensors, 0) };
        assert!(problem_of(&gguf).contains(text), "{}", problem_of(&gguf));
    }
    // The padding of the last tensor may be there or not.
    for data in [12, 13, 32] {
        let dir = folder(&[(NAME, &Gguf::new(&[t("a", &[3], 0, 0)], data).bytes())]);
        assert_eq!(opened(dir.path()).dense("a").unwrap().unwrap().1, [0.0; 3]);
    }
}

#[test]
fn other_versions_and_byte_orders_are_named() {
    for (version, text) in [(1, "version 1"), (4, "version 4"), (0, "version 0"), (3u32.swap_bytes(), "big-endian")] {
        assert!(problem_of(&Gguf { version, ..Gguf::new(&[], 0) }).contains(text));
    }
    let dir = folder(&[(NAME, &Gguf { version: 2, ..Gguf::new(&[t("a", &[8], 0, 0)], 32) }.bytes())]);
    assert_eq!(opened(dir.path()).tensors().len(), 1);
}

#[test]
fn every_value_type_is_read_and_written_as_it_was() {
    let pairs: Vec<(String, Value)> = [
        Value::U8(255),
        Value::I8(-128),
        Value::U16(65535),
        Value::I16(-1),
        Value::U32(7),
        Value::I32(-7),
        Value::F32(1e-6),
        Value::Bool(true),
        Value::Str("模型 é".into()),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F64(0.1),
        Value::Array(Array::Str(vec!["a".into(), String::new()])),
        Value::Array(Array::F32(vec![0.5, -0.5])),
        Value::Array(Array::I32(vec![11, 11, 10, 0])),
        Value::Array(Array::Array(vec![Array::U8(vec![1]), Array::Bool(vec![false])])),
    ]
    .into_iter()
    .enumerate()
    .map(|(i, value)| (format!("k{i}"), value))
    .collect();
    let bytes = header_bytes(&pairs, &[]).unwrap();
    let Parsed::Header(header) = Header::parse(&bytes, bytes.len() as u64).unwrap() else { panic!() };
    assert_eq!(header.metadata.into_iter().collect::<std::collections::BTreeMap<_, _>>(), pairs.into_iter().collect());
}

#[test]
fn metadata_has_typed_views() {
    let mut gguf = Gguf::new(&[], 0);
    gguf.key_values = vec![
        kv_str("general.architecture", "qwen35"),
        kv("n", 4, &64u32.to_le_bytes()),
        kv("eps", 6, &1e-6f32.to_le_bytes()),
        kv("neg", 5, &(-3i32).to_le_bytes()),
        kv("yes", 7, &[1]),
        kv(
            "s",
            9,
            &[
                5u32.to_le_bytes().to_vec(),
                2u64.to_le_bytes().to_vec(),
                11i32.to_le_bytes().to_vec(),
                10i32.to_le_bytes().to_vec(),
            ]
            .concat(),
        ),
    ];
    let dir = folder(&[(NAME, &gguf.bytes())]);
    let c = opened(dir.path());
    assert_eq!(c.meta("n").and_then(Meta::as_usize), Some(64));
    assert_eq!(c.meta("eps").and_then(Meta::as_f64).map(|v| v as f32), Some(1e-6));
    assert_eq!((c.meta("neg").and_then(Meta::as_u64), c.meta("neg").and_then(Meta::as_f64)), (None, Some(-3.0)));
    assert_eq!(c.meta("yes").and_then(Meta::as_bool), Some(true));
    assert_eq!(c.meta("general.architecture").and_then(Meta::as_str), Some("qwen35"));
    assert_eq!(c.meta("s").and_then(Meta::as_array).and_then(|a| a.to_usizes()), Some(vec![11, 10]));
    assert!(c.meta("absent").is_none());
    assert!(c.config().is_null());
}

#[test]
fn a_prefix_asks_for_more_until_the_header_is_complete() {
    let bytes = two_ternary(1152).bytes();
    let len = bytes.len() as u64;
    let mut have = 0u64;
    let header = loop {
        match Header::parse(&bytes[..have as usize], len).unwrap() {
            Parsed::Header(header) => break header,
            Parsed::NeedBytes(need) => {
                assert!(need > have && need <= len);
                have = need;
            }
        }
    };
    assert!(have < header.data_start + 1);
    assert_eq!(Header::parse(&bytes, len).unwrap(), Parsed::Header(header));
}

#[test]
fn large_vocabularies_parse_quickly() {
    let tokens: Vec<u8> = (0..250_000).flat_map(|i| string(&format!("token{i}"))).collect();
    let list = [8u32.to_le_bytes().to_vec(), 250_000u64.to_le_bytes().to_vec(), tokens].concat();
    let mut gguf = Gguf::new(&[t("a", &[8], 0, 0)], 32);
    gguf.key_values.push(kv("tokenizer.ggml.tokens", 9, &list));
    let dir = folder(&[(NAME, &gguf.bytes())]);
    quick(Duration::from_millis(200), || drop(open(dir.path(), &MAPPED)));
    let c = opened(dir.path());
    let tokens = c.meta("tokenizer.ggml.tokens").and_then(Meta::as_array).unwrap().to_strs().unwrap();
    assert_eq!((tokens.len(), tokens[7]), (250_000, "token7"));
}

fn split(no: u16, count: u16, tensors: &[T], data: usize) -> Vec<u8> {
    let mut gguf = Gguf::new(tensors, data);
    gguf.key_values.push(kv("split.no", 2, &no.to_le_bytes()));
    gguf.key_values.push(kv("split.count", 2, &count.to_le_bytes()));
    gguf.key_values.push(kv("split.tensors.count", 5, &2i32.to_le_bytes()));
    gguf.bytes()
}

#[test]
fn splits_open_as_one_model_from_any_of_them_or_their_folder() {
    let (a, b) = (split(0, 2, &[t("a", &[8], 0, 0)], 32), split(1, 2, &[t("b", &[8], 0, 0)], 32));
    let names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
    let dir = folder(&[(names[0], &a), (names[1], &b)]);
    for path in [dir.path().to_owned(), dir.path().join(names[0]), dir.path().join(names[1])] {
        let c = opened(&path);
        assert_eq!(c.files(), names);
        assert_eq!((c.tensor("a").unwrap().file, c.tensor("b").unwrap().file), (0, 1));
        assert!(c.dense("b").unwrap().is_some());
    }
    let alone = folder(&[(names[0], &a)]);
    let error = refused(&alone.path().join(names[0]));
    assert!(error.to_string().contains("shard `m-00002-of-00002.gguf` is missing"), "{error}");
    let swapped = folder(&[(names[0], &b), (names[1], &a)]);
    assert!(refused(&swapped.path().join(names[0])).to_string().contains("split 1 holds the content of split 2"));
    let same = folder(&[(names[0], &a), (names[1], &split(1, 2, &[t("a", &[8], 0, 0)], 32))]);
    assert!(refused(&same.path().join(names[0])).to_string().contains("`a` appears twice"));
    let short = folder(&[(names[0], &a), (names[1], &b[..b.len() - 8])]);
    for path in [short.path().to_owned(), short.path().join(names[1])] {
        let error = refused(&path);
        assert_eq!(error.path, short.path().join(names[1]), "{error}");
        assert!(error.to_string().contains("00002.gguf: is cut off"), "{error}");
    }
}

#[test]
fn written_files_read_back() {
    let specs = vec![
        TensorSpec { name: "q.weight".into(), shape: vec![3, 128], format: Format::Q1_0 },
        TensorSpec { name: "n.weight".into(), shape: vec![5], format: Format::F32 },
    ];
    let data: Vec<u8> = (0..54).collect();
    let keys = [("general.architecture".to_owned(), Value::Str("qwen3".into()))];
    let mut writer = Writer::new(Vec::new(), &keys, specs.clone()).unwrap();
    writer.tensor("q.weight", &data).unwrap();
    writer.tensor("n.weight", &data[..20]).unwrap();
    let dir = folder(&[(NAME, &writer.finish().unwrap())]);
    let c = opened(dir.path());
    assert_eq!(c.tensor("q.weight").unwrap().shape, [3, 128]);
    assert_eq!(c.bytes("q.weight").unwrap().unwrap(), data);
    assert_eq!(c.bytes("n.weight").unwrap().unwrap(), &data[..20]);
    assert!(Writer::new(Vec::new(), &keys, specs.clone()).unwrap().finish().is_err());
    assert!(Writer::new(Vec::new(), &keys, specs).unwrap().tensor("n.weight", &data[..20]).is_err());
    let odd = TensorSpec { name: "x".into(), shape: vec![3, 100], format: Format::Q1_0 };
    assert!(header_bytes(&[], &[odd]).is_err());
    assert!(header_bytes(&[("general.alignment".into(), Value::U32(64))], &[]).is_err());
}
