//! Safetensors files: headers that lie, downloads that broke, and what writers write.

use std::fs;

use onebit_checkpoint::safetensors::{Header, TensorSpec, Writer};
use onebit_checkpoint::{Parsed, Problem, StoredType, open};
use onebit_quant::ParamType;

use crate::support::{MAPPED, entry, folder, opened, refused_file, safetensors, tensors, watch};

const NAME: &str = "model.safetensors";

fn good() -> Vec<u8> {
    tensors(&[("a", "F32", 4, &[3, 5]), ("b", "F16", 2, &[7]), ("c", "U8", 1, &[0, 4])])
}

#[test]
fn a_plain_file_opens_and_reads() {
    let mut bytes = good();
    let len = bytes.len();
    bytes[len - 14..len - 12].copy_from_slice(&0x3c00u16.to_le_bytes());
    let dir = folder(&[(NAME, &bytes)]);
    let c = opened(&dir.path().join(NAME));
    assert_eq!(c.tensors().len(), 3);
    let (shape, values) = c.dense("b").unwrap().unwrap();
    assert_eq!((shape, values[0], values[1]), (vec![7], 1.0, 0.0));
    assert!(c.dense("nothing").unwrap().is_none());
    let m = c.matrix("a").unwrap().unwrap();
    assert_eq!((m.rows, m.cols, m.bytes()), (3, 5, 60));
    // Pages given back are read again.
    c.release("b");
    assert_eq!(c.dense("b").unwrap().unwrap().1[0], 1.0);
    let error = c.dense("c").unwrap_err().to_string();
    assert!(error.contains("`c` is U8 [0, 4], wanted F16"), "{error}");
}

#[test]
fn a_truncated_file_says_how_many_bytes_are_missing() {
    let bytes = tensors(&[("a", "F32", 4, &[3, 5]), ("b", "F32", 4, &[4096])]);
    for missing in [1, 4096, 8192] {
        match refused_file(NAME, &bytes[..bytes.len() - missing]) {
            Problem::Truncated { wanted, got } => assert_eq!((wanted - got) as usize, missing),
            other => panic!("{other}"),
        }
    }
    let cut = Problem::Truncated { wanted: 105, got: 100 }.to_string();
    assert!(cut.contains("5 are missing"), "{cut}");
    // Cut inside the header or the length field.
    for keep in [4, 7, 8, 9, 20, 100] {
        let problem = refused_file(NAME, &bytes[..keep]);
        assert!(matches!(problem, Problem::Truncated { .. } | Problem::HeaderLength { .. }), "{keep}: {problem}");
    }
}

#[test]
fn trailing_bytes_are_named() {
    let problem = refused_file(NAME, &[good(), vec![0; 16]].concat());
    assert!(problem.to_string().contains("16 bytes after its last tensor"), "{problem}");
}

#[test]
fn files_that_are_no_weights_are_named_as_what_they_are() {
    assert!(matches!(refused_file(NAME, b""), Problem::Empty));
    assert!(matches!(refused_file(NAME, b"<!DOCTYPE html><html>404</html>"), Problem::WebPage));
    assert!(matches!(refused_file(NAME, b"\n <html><body>login</body></html>"), Problem::WebPage));
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5128837600\n";
    assert!(matches!(refused_file(NAME, pointer), Problem::LfsPointer(_)));
    assert!(matches!(refused_file("m.gguf", pointer), Problem::LfsPointer(_)));
    assert!(matches!(refused_file("m.gguf", b"<!doctype html>........"), Problem::WebPage));
    assert!(matches!(refused_file("m.gguf", b""), Problem::Empty));
    assert!(matches!(refused_file("m.gguf", b"PK\x03\x04 a zip archive"), Problem::UnknownContainer(_)));
}

#[test]
fn lying_header_lengths_are_refused_by_the_length_of_the_file() {
    for says in [0, 1, 1 << 31, 1 << 63, u64::MAX, u64::MAX - 7] {
        let problem = refused_file(NAME, &safetensors("0123", Some(says), &[]));
        assert!(matches!(problem, Problem::HeaderLength { .. }), "{says}: {problem}");
    }
    // The length ends inside the JSON, or takes data for JSON.
    let header = format!("{{{}}}", entry("a", "U8", "[64]", 0, 64));
    for says in [8, header.len() as u64 - 1, header.len() as u64 + 8] {
        let problem = refused_file(NAME, &safetensors(&header, Some(says), &[1; 64]));
        assert!(matches!(problem, Problem::Json { .. }), "{says}: {problem}");
    }
}

#[test]
fn an_empty_header_describes_an_empty_model() {
    let dir = folder(&[(NAME, &safetensors("{}", None, &[]))]);
    assert_eq!(opened(dir.path()).tensors().len(), 0);
}

#[test]
fn two_hundred_thousand_tensors_are_no_problem() {
    let entries: Vec<String> = (0..200_000).map(|i| entry(&format!("t{i}"), "U8", "[1]", i, i + 1)).collect();
    let bytes = safetensors(&format!("{{{}}}", entries.join(",")), None, &vec![7; 200_000]);
    let dir = folder(&[(NAME, &bytes)]);
    assert_eq!(opened(dir.path()).tensors().len(), 200_000);
}

#[test]
fn entries_that_contradict_themselves_are_refused_by_name() {
    let one = |e: String| refused_file(NAME, &safetensors(&format!("{{{e}}}"), None, &[0; 16])).to_string();
    for (text, wanted) in [
        (entry("x", "F32", "[4]", 0, 15), "`x`: F32 [4] takes 16 bytes, but its offsets are 0 to 15"),
        (entry("x", "F32", "[4]", 16, 0), "its offsets are 16 to 0"),
        (entry("x", "Q5_K", "[4]", 0, 16), "unknown dtype `Q5_K`"),
        (entry("x", "F32", "[4294967296,4294967296]", 0, 16), "overflows"),
        (entry("x", "F32", "[9223372036854775807,2]", 0, 16), "overflows"),
        (entry("x", "U8", "[-1]", 0, 16), "invalid JSON"),
        (entry("x", "U8", "[8]", 8, 16), "leaves a gap after the start of the data"),
        (
            format!("{},{}", entry("x", "U8", "[12]", 0, 12), entry("y", "U8", "[8]", 8, 16)),
            "`y`: starts at offset 8 and overlaps `x`, which ends at 12",
        ),
        (
            format!("{},{}", entry("x", "U8", "[4]", 0, 4), entry("y", "U8", "[8]", 8, 16)),
            "`y`: starts at offset 8 and leaves a gap after `x`",
        ),
        (format!("{},{}", entry("x", "U8", "[8]", 0, 8), entry("x", "U8", "[8]", 8, 16)), "`x` appears twice"),
        (r#""x":{"dtype":"U8","shape":[16]}"#.into(), "data_offsets"),
        (r#""x":3"#.into(), "invalid JSON"),
        (r#""__metadata__":{"a":1}"#.into(), "invalid JSON"),
    ] {
        let error = one(text);
        assert!(error.contains(wanted), "{error}\nwanted: {wanted}");
    }
}

#[test]
fn deep_nesting_ends_in_an_error_not_in_the_stack() {
    let deep = format!(r#"{{"x":{}{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
    assert!(matches!(refused_file(NAME, &safetensors(&deep, None, &[])), Problem::Json { .. }));
}

#[test]
fn a_prefix_asks_for_exactly_the_header() {
    let bytes = good();
    let len = bytes.len() as u64;
    assert_eq!(Header::parse(&bytes[..5], len).unwrap(), Parsed::NeedBytes(8));
    let Parsed::NeedBytes(need) = Header::parse(&bytes[..8], len).unwrap() else { panic!() };
    let Parsed::Header(header) = Header::parse(&bytes[..need as usize], len).unwrap() else { panic!() };
    assert_eq!(header.data_start, need);
    assert_eq!(Header::parse(&bytes, len).unwrap(), Parsed::Header(header));
    // A huge but possible length asks, and allocates nothing yet.
    let lie = safetensors("{\"", Some(1 << 40), &[]);
    let (parsed, largest, _) = watch(|| Header::parse(&lie, 1 << 41).unwrap());
    assert_eq!(parsed, Parsed::NeedBytes(8 + (1 << 40)));
    assert!(largest < 4096);
}

#[test]
fn written_files_read_back() {
    let specs = vec![
        TensorSpec { name: "w".into(), stored: StoredType::U32, shape: vec![2, 4] },
        TensorSpec { name: "n".into(), stored: StoredType::Float(ParamType::BF16), shape: vec![3] },
    ];
    let data: Vec<u8> = (0..32).collect();
    let mut writer = Writer::new(Vec::new(), &[("format", "mlx")], specs.clone()).unwrap();
    writer.tensor("w", &data).unwrap();
    writer.tensor("n", &data[..6]).unwrap();
    let bytes = writer.finish().unwrap();
    let Parsed::Header(header) = Header::parse(&bytes, bytes.len() as u64).unwrap() else { panic!() };
    assert_eq!(header.metadata["format"], "mlx");
    assert_eq!(header.tensors.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["w", "n"]);
    let dir = folder(&[(NAME, &bytes)]);
    let c = opened(dir.path());
    assert_eq!(c.bytes("w").unwrap().unwrap(), data);
    assert_eq!(c.bytes("n").unwrap().unwrap(), &data[..6]);

    let mut wrong = Writer::new(Vec::new(), &[], specs.clone()).unwrap();
    assert!(wrong.tensor("n", &data[..6]).is_err());
    let mut short = Writer::new(Vec::new(), &[], specs.clone()).unwrap();
    assert!(short.tensor("w", &data[..31]).is_err());
    assert!(Writer::new(Vec::new(), &[], specs.clone()).unwrap().finish().is_err());
    assert!(Writer::new(Vec::new(), &[], [specs.clone(), specs].concat()).is_err());
}

#[test]
fn a_file_that_shrinks_while_mapped_is_an_error_before_it_is_touched() {
    let bytes = good();
    let dir = folder(&[(NAME, &bytes)]);
    let path = dir.path().join(NAME);
    let mapped = open(&path, &MAPPED).unwrap();
    let in_memory = open(&path, &crate::support::IN_MEMORY).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    let error = mapped.dense("a").unwrap_err();
    assert!(matches!(*error.problem, Problem::Changed { got: 100, .. }), "{error}");
    assert!(error.to_string().contains("--no-mmap"), "{error}");
    assert!(mapped.matrix("a").is_err());
    assert_eq!(in_memory.dense("a").unwrap().unwrap().1, [0.0; 15]);
}
