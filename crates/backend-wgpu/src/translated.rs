//! What the driver has made of the kernels, kept in a file between runs: a first start waits for its compiler, later ones do not.
//!
//! The file is eight bytes of a checksum, then the driver's bytes. It belongs to one adapter, driver and version of this program; a
//! driver refuses what another version of it has made.

use crate::adapter::Device;
use std::fs;
use std::path::{Path, PathBuf};

/// No driver's file is as large.
const MOST_BYTES: u64 = 256 << 20;

/// Hands the driver what it made before, and keeps what it makes now.
pub(crate) struct Translated {
    path: PathBuf,
    cache: wgpu::PipelineCache,
}

/// FNV-1a of 64 bits: against files that were cut off or that something else wrote.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The driver's bytes of a file, if they are whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let size = fs::metadata(path).ok()?.len();
    let mut bytes = if size <= MOST_BYTES { fs::read(path).ok()? } else { return None };
    let kept = u64::from_le_bytes(*bytes.first_chunk()?);
    let bytes = bytes.split_off(size_of::<u64>());
    (checksum(&bytes) == kept).then_some(bytes)
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // Under another name first, so that nobody ever reads half a file.
    let unfinished = path.with_extension(format!("unfinished-{}", std::process::id()));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&unfinished, [&checksum(bytes).to_le_bytes(), bytes].concat())?;
    fs::rename(&unfinished, path)
}

impl Translated {
    /// Opens an adapter's file in a folder, or begins it; `None` where the driver's translations cannot be taken out of it.
    pub(crate) fn open(device: &Device, folder: &Path) -> Option<Translated> {
        if !device.device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let path = folder.join(device.found.file_name("kernels"));
        let data = read(&path);
        let descriptor = wgpu::PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
        // SAFETY: the bytes are what `get_data` gave for this adapter and driver, as their checksum and the file's name say;
        // the driver looks at its own header in them, and begins anew where it is another's.
        let cache = device.guarded("opening the cache of translated kernels", 0, || unsafe {
            device.device.create_pipeline_cache(&descriptor)
        });
        Some(Translated { path, cache: cache.ok()? })
    }

    pub(crate) fn cache(&self) -> &wgpu::PipelineCache {
        &self.cache
    }

    /// Writes what there is. Without a place for it the driver translates again at the next start.
    pub(crate) fn keep(&self) {
        if let Some(bytes) = self.cache.get_data() {
            let _ = write(&self.path, &bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_whole_is_not_read() {
        let folder = std::env::temp_dir().join(format!("onebit-translated-{}", std::process::id()));
        let path = folder.join("kernels");
        assert_eq!(read(&path), None);
        write(&path, b"what a driver wrote").unwrap();
        assert_eq!(read(&path).as_deref(), Some(b"what a driver wrote".as_slice()));
        let whole = fs::read(&path).unwrap();
        for cut in [0, 7, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(read(&path), None, "{cut} bytes");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
