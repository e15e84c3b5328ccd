//! Compiled kernels: those that the program carries, and the machine code that is kept between runs.
//!
//! The program carries PTX for every code path in one compressed archive, made by `cargo xtask cuda-ptx`. The driver
//! translates it for the device at hand; since that takes seconds, the result (a cubin) is kept in a folder under a name
//! that changes with the kernels, the code path, the device's generation and the driver.
//!
//! What the driver's linker translates may be a part of something larger. There registers cannot go from some warps to
//! others, matrix units wait for each product before the next one, and memory shared by a block is no longer aligned as a
//! kernel asks. Modules that need any of this ([`WHOLE`]) are given to the driver as text: it translates them as a whole, and
//! keeps the result by itself.

use crate::Arch;
use crate::compile::{compile_kernels, is_there};
use crate::driver::{Device, During, fault};
use crate::sources::{MODULES, fingerprint};
use cudarc::driver::sys;
use lzma_rust2::{XzOptions, XzReader, XzWriter};
use onebit_ops::OpError;
use std::ffi::{CString, c_void};
use std::io::{Read, Write};
use std::path::Path;

/// Modules whose kernels are translated as a whole.
const WHOLE: [&str; 2] = ["linear_group.cu", "linear_tens.cu"];

/// What a module's text begins with in the archive; code path and name follow.
const MARK: &str = "//@ module ";

/// The archive, and the fingerprint of the sources that it was made from.
const ARCHIVE: &[u8] = include_bytes!("../ptx/kernels.xz");
const MADE_FROM: &str = include_str!("../ptx/sources.sha256");

/// Compiles all kernels for every code path into the archive that the program carries.
///
/// # Errors
/// No NVRTC, and the compiler's own messages.
pub fn build_archive() -> Result<Vec<u8>, OpError> {
    let mut text = String::new();
    for arch in Arch::ALL {
        for (name, ptx) in compile_kernels(arch)? {
            // A compiler without a header of its own takes an intrinsic for a function that somebody else has.
            if let Some(line) = ptx.lines().skip_while(|line| !line.starts_with(".extern .func")).nth(1) {
                return Err(fault(format!("{name} for {} calls what is not in it: {}", arch.name(), line.trim())));
            }
            text.push_str(&format!("{MARK}{} {name}\n{ptx}\n", arch.name()));
        }
    }
    // The window of this preset holds all of it.
    let written = XzWriter::new(Vec::new(), XzOptions::with_preset(9))
        .and_then(|mut out| out.write_all(text.as_bytes()).map(|()| out))
        .and_then(XzWriter::finish);
    written.map_err(|error| fault(format!("compressing the kernels: {error}")))
}

/// The fingerprint that belongs beside the archive.
#[must_use]
pub fn sources_fingerprint() -> &'static str {
    fingerprint()
}

/// Whether the archive was made from the sources beside it.
#[must_use]
pub fn archive_is_current() -> bool {
    MADE_FROM.trim() == fingerprint()
}

/// The PTX of every module, in the order of [`MODULES`].
fn ptx(arch: Arch) -> Result<Vec<(&'static str, String)>, OpError> {
    if !archive_is_current() {
        if is_there() {
            return compile_kernels(arch);
        }
        return Err(fault(
            "this build's kernels were changed after they were compiled; run `cargo xtask cuda-ptx` and build again, or \
             install NVRTC (libnvrtc), which compiles them when the program starts",
        ));
    }
    split(&archive()?, arch)
}

fn archive() -> Result<String, OpError> {
    let mut text = String::new();
    let read = XzReader::new(ARCHIVE, false).read_to_string(&mut text);
    read.map_err(|error| fault(format!("the kernels in the program are damaged: {error}")))?;
    Ok(text)
}

/// The modules of one code path.
fn split(archive: &str, arch: Arch) -> Result<Vec<(&'static str, String)>, OpError> {
    let pieces: Vec<(&str, &str)> = archive.split(MARK).skip(1).filter_map(|piece| piece.split_once('\n')).collect();
    let module = |name: &'static str| {
        let label = format!("{} {name}", arch.name());
        let found = pieces.iter().find(|(known, _)| *known == label);
        let (_, ptx) =
            found.ok_or_else(|| fault(format!("the program carries no code for {name} on {}", arch.name())))?;
        Ok((name, (*ptx).to_owned()))
    };
    MODULES.iter().map(|m| module(m.name)).collect()
}

/// A module as the driver takes it.
pub(crate) enum Code {
    Machine(Vec<u8>),
    Ptx(String),
}

impl Code {
    fn bytes(&self) -> &[u8] {
        match self {
            Code::Machine(code) => code,
            Code::Ptx(text) => text.as_bytes(),
        }
    }

    /// What was kept of a module.
    fn kept(name: &str, bytes: Vec<u8>) -> Option<Code> {
        if WHOLE.contains(&name) {
            return String::from_utf8(bytes).ok().filter(|text| text.contains(".version")).map(Code::Ptx);
        }
        bytes.starts_with(b"\x7fELF").then_some(Code::Machine(bytes))
    }
}

/// Code of every module, in the order of [`MODULES`]: kept from an earlier run, or translated now and kept.
///
/// # Errors
/// Code that the driver does not accept. A folder that cannot be written is no error: the next start takes longer.
pub(crate) fn code(device: &Device, folder: Option<&Path>) -> Result<Vec<Code>, OpError> {
    let (major, minor) = device.capability;
    let key = format!("{}-{}-{major}{minor}-{}", &fingerprint()[..16], device.arch.name(), device.driver);
    let file = |name: &str| {
        let kind = if WHOLE.contains(&name) { "ptx" } else { "cubin" };
        folder.map(|folder| folder.join(format!("{}.{key}.{kind}", name.trim_end_matches(".cu"))))
    };
    let kept = |name: &str| Code::kept(name, file(name).and_then(|path| std::fs::read(path).ok())?);
    let all: Vec<Option<Code>> = MODULES.iter().map(|m| kept(m.name)).collect();
    if all.iter().all(Option::is_some) {
        return Ok(all.into_iter().flatten().collect());
    }
    // Translation is one core's work for each module.
    let sources = ptx(device.arch)?;
    let translated: Vec<Result<Code, OpError>> = std::thread::scope(|scope| {
        let started: Vec<_> = sources
            .into_iter()
            .map(|(name, ptx)| {
                scope.spawn(move || match WHOLE.contains(&name) {
                    true => Ok(Code::Ptx(ptx)),
                    false => translate(device, name, &ptx).map(Code::Machine),
                })
            })
            .collect();
        started.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let codes = translated.into_iter().collect::<Result<Vec<_>, _>>()?;
    for (module, code) in MODULES.iter().zip(&codes) {
        if let Some(path) = file(module.name) {
            keep(&path, code.bytes());
        }
    }
    Ok(codes)
}

/// Writes under another name first, so that a reader never sees half a file.
fn keep(path: &Path, code: &[u8]) {
    let write = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let unfinished = path.with_extension(format!("{}.part", std::process::id()));
        std::fs::write(&unfinished, code)?;
        std::fs::rename(&unfinished, path)
    };
    // Nothing depends on it but the time of the next start.
    let _ = write();
}

/// `CU_TARGET_COMPUTE_90A` of `cuda.h`, which has no name in the oldest version that is used here.
const HOPPER_ALONE: usize = 0x1_0000 + 90;

/// The driver's linker on one module; it ends with this.
struct Linker {
    state: sys::CUlinkState,
    /// Where the linker writes its complaints while it lives.
    log: Box<[u8; 8192]>,
}

impl Drop for Linker {
    fn drop(&mut self) {
        // SAFETY: created once and destroyed once.
        let _ = unsafe { sys::cuLinkDestroy(self.state) };
    }
}

/// PTX to machine code for this device.
fn translate(device: &Device, name: &str, ptx: &str) -> Result<Vec<u8>, OpError> {
    device.bind()?;
    let mut linker = Linker { state: std::ptr::null_mut(), log: Box::new([0; 8192]) };
    // What only Hopper understands is not translated for its generation in general.
    let target = match device.arch {
        Arch::Sm90a => (sys::CUjit_option::CU_JIT_TARGET, HOPPER_ALONE),
        _ => (sys::CUjit_option::CU_JIT_TARGET_FROM_CUCONTEXT, 0),
    };
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, target.0];
    // The driver takes numbers in place of pointers here.
    let number = std::ptr::without_provenance_mut::<c_void>;
    let mut values = [linker.log.as_mut_ptr().cast(), number(linker.log.len()), number(target.1)];
    // SAFETY: as many values as options; the log lives as long as the linker.
    unsafe { sys::cuLinkCreate_v2(3, options.as_mut_ptr(), values.as_mut_ptr(), &raw mut linker.state) }
        .result()
        .during("starting the driver's compiler")?;
    let (text, label) = (c_string(ptx), c_string(name));
    let failed = |linker: &Linker, error| {
        let end = linker.log.iter().position(|b| *b == 0).unwrap_or(linker.log.len());
        let log = String::from_utf8_lossy(&linker.log[..end]).trim().to_owned();
        fault(format!("the driver cannot translate {name}: {}; {log}", crate::driver::words(error)))
    };
    // SAFETY: the text ends in a zero byte, which the length counts, and lives until the call returns.
    unsafe {
        sys::cuLinkAddData_v2(
            linker.state,
            sys::CUjitInputType::CU_JIT_INPUT_PTX,
            text.as_ptr().cast_mut().cast(),
            text.as_bytes_with_nul().len(),
            label.as_ptr(),
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    }
    .result()
    .map_err(|error| failed(&linker, error))?;
    let (mut code, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: both pointers are to live variables.
    unsafe { sys::cuLinkComplete(linker.state, &raw mut code, &raw mut bytes) }
        .result()
        .map_err(|error| failed(&linker, error))?;
    // SAFETY: the linker owns so many bytes there until it is destroyed, after the copy.
    Ok(unsafe { std::slice::from_raw_parts(code.cast::<u8>(), bytes) }.to_vec())
}

fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_else(|_| unreachable!("texts of the program hold no zero bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiled_kernels_are_those_of_the_sources() {
        assert!(archive_is_current(), "kernels/ was changed: run `cargo xtask cuda-ptx`");
    }

    #[test]
    fn the_archive_holds_every_module_for_every_target() {
        let archive = archive().unwrap();
        for arch in Arch::ALL {
            for (name, ptx) in split(&archive, arch).unwrap() {
                assert!(ptx.contains(&format!(".target sm_{}\n", arch.name())), "{name} for {}", arch.name());
                // Their instructions came with Ampere and with Hopper.
                let least = match name {
                    "conv2d_pieces.cu" | "full_attention_halves.cu" | "linear_stream.cu" => Arch::Sm80,
                    "linear_group.cu" | "linear_tens.cu" => Arch::Sm90a,
                    _ => Arch::Sm75,
                };
                let has_kernels = arch >= least;
                assert_eq!(ptx.contains(".visible .entry"), has_kernels, "{name} for {}", arch.name());
            }
        }
    }

    #[test]
    fn modules_that_are_translated_as_a_whole_are_among_the_modules() {
        assert!(WHOLE.iter().all(|name| MODULES.iter().any(|m| m.name == *name)));
        assert!(
            Code::kept(WHOLE[0], b"\x7fELF".to_vec()).is_none()
                && Code::kept("embed.cu", b".version 8.1".to_vec()).is_none()
        );
    }

    #[test]
    fn a_missing_module_is_named() {
        let error = split("//@ module 75 nothing.cu\n.version 8.0\n", Arch::Sm75).unwrap_err().to_string();
        assert!(error.contains(MODULES[0].name), "{error}");
    }
}
