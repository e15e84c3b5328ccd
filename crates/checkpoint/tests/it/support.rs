//! Writers that can lie about any field, and a watch on allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onebit_checkpoint::{Checkpoint, Error, OpenOptions, Problem, open};

pub(crate) const MAPPED: OpenOptions = OpenOptions { mmap: true, q2_0_group: None };
pub(crate) const IN_MEMORY: OpenOptions = OpenOptions { mmap: false, q2_0_group: None };

/// Largest single allocation of this thread since the last [`watch`].
struct Watch;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged; the counter allocates nothing.
unsafe impl GlobalAlloc for Watch {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|max| max.set(max.get().max(layout.size())));
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` in `alloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watch = Watch;

/// Runs `work` and returns its result with the largest allocation and the time that it took.
pub(crate) fn watch<T>(work: impl FnOnce() -> T) -> (T, usize, Duration) {
    LARGEST.set(0);
    let start = Instant::now();
    let result = work();
    (result, LARGEST.get(), start.elapsed())
}

/// Asserts that `work` takes less than `limit` at least once in five runs: other programs may hold the processor.
pub(crate) fn quick(limit: Duration, mut work: impl FnMut()) {
    let fastest = (0..5).map(|_| watch(&mut work).2).find(|&time| time < limit);
    assert!(fastest.is_some(), "slower than {limit:?} five times");
}

/// A safetensors file around any header text; `says` overrides the length field.
pub(crate) fn safetensors(header: &str, says: Option<u64>, data: &[u8]) -> Vec<u8> {
    let mut out = says.unwrap_or(header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
    out
}

/// `"name": {...}` of a header.
pub(crate) fn entry(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

/// Tensors with zero bytes, back to back; (name, dtype, bytes per element, shape).
pub(crate) fn tensors(list: &[(&str, &str, u64, &[u64])]) -> Vec<u8> {
    let mut at = 0;
    let mut entries = Vec::new();
    for (name, dtype, size, shape) in list {
        let bytes = size * shape.iter().product::<u64>();
        entries.push(entry(name, dtype, &format!("{shape:?}"), at, at + bytes));
        at += bytes;
    }
    safetensors(&format!("{{{}}}", entries.join(",")), None, &vec![0; at as usize])
}

/// An MLX triplet of F16 for [`tensors`].
pub(crate) fn triplet(base: &str, rows: u64, words: u64, groups: u64) -> Vec<(String, &'static str, u64, Vec<u64>)> {
    vec![
        (format!("{base}.weight"), "U32", 4, vec![rows, words]),
        (format!("{base}.scales"), "F16", 2, vec![rows, groups]),
        (format!("{base}.biases"), "F16", 2, vec![rows, groups]),
    ]
}

/// [`tensors`] of owned entries.
pub(crate) fn tensors_of(list: &[(String, &'static str, u64, Vec<u64>)]) -> Vec<u8> {
    let borrowed: Vec<_> = list.iter().map(|(n, d, s, shape)| (n.as_str(), *d, *s, shape.as_slice())).collect();
    tensors(&borrowed)
}

/// One entry of a GGUF tensor table, every field free.
#[derive(Clone)]
pub(crate) struct T {
    pub(crate) name: String,
    pub(crate) n_dims: u32,
    pub(crate) dims: Vec<u64>,
    pub(crate) id: u32,
    pub(crate) offset: u64,
}

pub(crate) fn t(name: &str, dims: &[u64], id: u32, offset: u64) -> T {
    T { name: name.into(), n_dims: dims.len() as u32, dims: dims.into(), id, offset }
}

/// A GGUF file, every field free.
pub(crate) struct Gguf {
    pub(crate) version: u32,
    pub(crate) key_values: Vec<Vec<u8>>,
    pub(crate) key_count: Option<u64>,
    pub(crate) tensors: Vec<T>,
    pub(crate) tensor_count: Option<u64>,
    pub(crate) data: usize,
    pub(crate) align: usize,
}

impl Gguf {
    pub(crate) fn new(tensors: &[T], data: usize) -> Self {
        Self {
            version: 3,
            key_values: vec![kv_str("general.architecture", "qwen3")],
            key_count: None,
            tensors: tensors.to_vec(),
            tensor_count: None,
            data,
            align: 32,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.key_values.len() as u64).to_le_bytes());
        out.extend(self.key_values.concat());
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend(tensor.n_dims.to_le_bytes());
            tensor.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(tensor.id.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(self.align) + self.data, 0);
        out
    }
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A key-value with a free type id and free value bytes.
pub(crate) fn kv(key: &str, id: u32, value: &[u8]) -> Vec<u8> {
    [string(key), id.to_le_bytes().to_vec(), value.to_vec()].concat()
}

pub(crate) fn kv_str(key: &str, value: &str) -> Vec<u8> {
    kv(key, 8, &string(value))
}

/// Writes files into a fresh folder.
pub(crate) fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// Opens both ways, checks that both fail with the same sentence, which names a path and is one line, quickly and
/// without a large allocation, and returns the error.
pub(crate) fn refused(path: &Path) -> Error {
    let ((mapped, largest, _), (in_memory, ..)) = (watch(|| open(path, &MAPPED)), watch(|| open(path, &IN_MEMORY)));
    let error = mapped.expect_err("the file must be refused");
    let text = error.to_string();
    assert_eq!(text, in_memory.expect_err("the file must be refused in memory too").to_string());
    assert!(text.contains(path.file_name().unwrap().to_str().unwrap()), "{text}");
    assert!(!text.contains('\n') && text.len() < 1200, "{text}");
    assert!(largest < 1 << 20, "{largest} bytes at once for: {text}");
    quick(Duration::from_millis(50), || drop(open(path, &MAPPED)));
    error
}

/// [`refused`] for the bytes of one file.
pub(crate) fn refused_file(name: &str, bytes: &[u8]) -> Problem {
    let dir = folder(&[(name, bytes)]);
    *refused(&dir.path().join(name)).problem
}

/// Opens both ways and returns the mapped one.
pub(crate) fn opened(path: &Path) -> Checkpoint {
    open(path, &IN_MEMORY).unwrap();
    open(path, &MAPPED).unwrap()
}

/// A case of the repository's test data.
pub(crate) fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(case)
}
