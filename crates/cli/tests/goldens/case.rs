//! One folder of `testdata/` with its expected outputs: its own, or for a GGUF twin those of its original.

use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};

/// A golden case.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    expected: Vec<u8>,
    pub(crate) facts: serde_json::Value,
}

impl Case {
    /// Every case.
    pub(crate) fn all() -> Vec<Case> {
        // As the test runner says now: a built test may have been carried to another machine.
        let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&here).join("../../testdata/golden");
        let mut folders: Vec<PathBuf> = std::fs::read_dir(root)
            .expect("testdata is there")
            .map(|entry| entry.expect("testdata can be listed").path())
            .filter(|path| path.is_dir())
            .collect();
        folders.sort();
        folders.into_iter().map(Case::open).collect()
    }

    fn open(folder: PathBuf) -> Case {
        let twin = std::fs::read(folder.join("gguf.json"))
            .ok()
            .map(|text| -> serde_json::Value { serde_json::from_slice(&text).expect("gguf.json is JSON") });
        let original = match &twin {
            Some(twin) => folder.with_file_name(twin["twin_of"].as_str().expect("a twin names its original")),
            None => folder.clone(),
        };
        let read =
            |name: &str| std::fs::read(original.join(name)).unwrap_or_else(|e| panic!("{}: {e}", original.display()));
        Case {
            name: folder.file_name().expect("a folder name").to_string_lossy().into_owned(),
            expected: read("expected.safetensors"),
            facts: serde_json::from_slice(&read("expected.json")).expect("expected.json is JSON"),
            folder,
        }
    }

    /// The file or folder to load.
    pub(crate) fn model(&self) -> PathBuf {
        let gguf = self.folder.join("model.gguf");
        if gguf.exists() { gguf } else { self.folder.clone() }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.expected).expect("expected.safetensors is valid")
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors().tensor(name).is_ok()
    }

    pub(crate) fn shape(&self, name: &str) -> Vec<usize> {
        self.tensors().tensor(name).unwrap_or_else(|e| panic!("{}: {name}: {e}", self.name)).shape().to_vec()
    }

    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        let tensors = self.tensors();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{}: {name}: {e}", self.name));
        assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
        tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        let tensors = self.tensors();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{}: {name}: {e}", self.name));
        assert_eq!(tensor.dtype(), Dtype::I32, "{name}");
        tensor.data().chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    }

    /// Of all rows of `logits.N` those that the case keeps: all, or the ones that `logit_rows.N` lists.
    pub(crate) fn kept_rows(&self, name: &str, all: &[f32]) -> Vec<f32> {
        let list = name.strip_prefix("logits.").map(|n| format!("logit_rows.{n}"));
        let Some(list) = list.filter(|list| self.has(list)) else { return all.to_vec() };
        let cols = *self.shape(name).last().expect("logits have columns");
        self.ids(&list).iter().flat_map(|row| &all[*row as usize * cols..][..cols]).copied().collect()
    }

    /// Lengths of the prompts whose logits are there.
    pub(crate) fn prompt_lengths(&self) -> Vec<usize> {
        [1, 7, 64, 65, 130, 200].into_iter().filter(|n| self.has(&format!("ids.{n}"))).collect()
    }
}
