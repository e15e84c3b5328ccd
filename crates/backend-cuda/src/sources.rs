//! The kernels' sources, carried in the program: for compiling them anew, and for knowing whether the compiled kernels
//! beside them are theirs.

use sha2::{Digest, Sha256};
use std::sync::OnceLock;

/// A file of `kernels/`.
pub(crate) struct File {
    pub name: &'static str,
    pub text: &'static str,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(File { name: $name, text: include_str!(concat!("../kernels/", $name)) }),*]
    };
}

/// Files that others include.
pub(crate) static HEADERS: &[File] = &files![
    "attention.cuh",
    "attention_ring.cuh",
    "attention_tile.cuh",
    "common.cuh",
    "conv.cuh",
    "delta.cuh",
    "intrinsics.cuh",
    "kv.cuh",
    "linear.cuh",
    "linear_batch.cuh",
    "linear_group.cuh",
    "linear_grouped.cuh",
    "linear_lean.cuh",
    "linear_quads.cuh",
    "linear_stream.cuh",
    "linear_tens.cuh",
    "linear_tiles.cuh",
    "linear_wide.cuh",
    "params.cuh",
    "rounding.cuh",
];

/// Files that become a module each.
pub(crate) static MODULES: &[File] = &files![
    "attention_combine.cu",
    "attention_f16.cu",
    "attention_f32.cu",
    "attention_q4.cu",
    "attention_q8.cu",
    "attention_ring.cu",
    "attention_tile_f16.cu",
    "attention_tile_f32.cu",
    "attention_tile_q4.cu",
    "attention_tile_q8.cu",
    "bandwidth.cu",
    "conv.cu",
    "conv2d.cu",
    "conv2d_pieces.cu",
    "delta.cu",
    "delta_rows.cu",
    "embed.cu",
    "full_attention.cu",
    "full_attention_halves.cu",
    "image.cu",
    "inputs.cu",
    "linear_affine.cu",
    "linear_batch.cu",
    "linear_bits1.cu",
    "linear_bits2.cu",
    "linear_bits4.cu",
    "linear_bits8.cu",
    "linear_dense.cu",
    "linear_group.cu",
    "linear_grouped.cu",
    "linear_quads.cu",
    "linear_stream.cu",
    "linear_tens.cu",
    "linear_wide.cu",
    "norm.cu",
    "pointwise.cu",
    "prepare.cu",
    "rope.cu",
    "sample.cu",
];

/// A fingerprint of all sources and of how they are compiled.
pub(crate) fn fingerprint() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| {
        let mut hash = Sha256::new();
        for File { name, text } in HEADERS.iter().chain(MODULES) {
            hash.update(format!("{name} {}\n", text.len()));
            hash.update(text);
        }
        for option in OPTIONS {
            hash.update(option);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    })
}

/// Options of the compiler. Fused multiply-adds are written out where they are wanted, since rows must round equally
/// wherever they are computed; constant functions are the device's; and no file of the system is included.
pub(crate) const OPTIONS: [&str; 4] =
    ["--std=c++17", "--fmad=false", "--device-as-default-execution-space", "--no-source-include"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Kernels begin before those in front of them have ended, and the cache behind this intrinsic does not notice what those write:
    /// `unchanging` says what it is for, and the emulator holds it to that.
    #[test]
    fn only_weights_are_read_through_the_cache_that_is_not_kept_coherent() {
        let all = HEADERS.iter().chain(MODULES);
        let places: Vec<_> = all.map(|file| (file.name, file.text.matches("__ldg").count())).collect();
        let found: Vec<_> = places.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(found, [("intrinsics.cuh", 1)]);
    }

    #[test]
    fn every_file_of_the_folder_is_listed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let sources: BTreeSet<String> = names.filter(|name| name.ends_with(".cu") || name.ends_with(".cuh")).collect();
        let listed: BTreeSet<String> = HEADERS.iter().chain(MODULES).map(|file| file.name.to_owned()).collect();
        assert_eq!(sources, listed);
    }
}
