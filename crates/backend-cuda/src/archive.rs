//! Compiled kernels: what the program carries of them, made by `cargo xtask cuda-kernels`.
//!
//! For the devices that a code path was made for it carries machine code, which starts at once. Another device, a newer one
//! mostly, gets the path's PTX: the driver translates that when the modules are loaded, and keeps the result by itself.
//!
//! The driver has a linker, too, whose machine code could be kept here. It translates everything as a part of something
//! larger: registers cannot go from some warps to others, matrix units wait for each product before the next one, and
//! memory shared by a block is no longer aligned as a kernel asks. Steps took 8 to 11% longer with it.

use crate::Arch;
use crate::compile::{Compiled, compile_kernels, is_there};
use crate::driver::{Device, fault};
use crate::sources::{MODULES, fingerprint};
use lzma_rust2::{XzOptions, XzReader, XzWriter};
use onebit_ops::OpError;
use std::io::{Read, Write};

/// Machine code of every module, a file a code path.
const MACHINE: [(Arch, &[u8]); 4] = [
    (Arch::Sm75, include_bytes!("../compiled/machine-75.xz")),
    (Arch::Sm80, include_bytes!("../compiled/machine-80.xz")),
    (Arch::Sm89, include_bytes!("../compiled/machine-89.xz")),
    (Arch::Sm90a, include_bytes!("../compiled/machine-90a.xz")),
];

/// PTX of every module and code path.
const PTX: &[u8] = include_bytes!("../compiled/ptx.xz");

/// The fingerprint of the sources that both were made from.
const MADE_FROM: &str = include_str!("../compiled/sources.sha256");

/// A file for the folder `compiled`: its name and what is in it.
pub type File = (String, Vec<u8>);

/// Compiles all kernels for every code path into the files that the program carries.
///
/// # Errors
/// No NVRTC, and the compiler's own messages.
pub fn build_archives() -> Result<Vec<File>, OpError> {
    let mut files = Vec::new();
    let mut texts = Vec::new();
    for arch in Arch::ALL {
        let compiled = compile_kernels(arch)?;
        for (name, Compiled { ptx, .. }) in &compiled {
            // A compiler without a header of its own takes an intrinsic for a function that somebody else has.
            if let Some(line) = ptx.lines().skip_while(|line| !line.starts_with(".extern .func")).nth(1) {
                return Err(fault(format!("{name} for {} calls what is not in it: {}", arch.name(), line.trim())));
            }
            write_entry(&mut texts, &label(arch, name), ptx.as_bytes());
        }
        let mut machine = Vec::new();
        compiled.iter().for_each(|(name, c)| write_entry(&mut machine, &label(arch, name), &c.machine));
        files.push((format!("machine-{}.xz", arch.name()), pack(&machine)?));
    }
    files.push(("ptx.xz".to_owned(), pack(&texts)?));
    files.push(("sources.sha256".to_owned(), format!("{}\n", fingerprint()).into_bytes()));
    Ok(files)
}

/// Whether the archives were made from the sources beside them.
#[must_use]
pub fn archives_are_current() -> bool {
    MADE_FROM.trim() == fingerprint()
}

/// A module as the driver takes it.
pub(crate) enum Code {
    Machine(Vec<u8>),
    Ptx(String),
}

/// Code of every module for this device, in the order of [`MODULES`].
///
/// # Errors
/// Archives of other sources, where no compiler is at hand either; its messages.
pub(crate) fn code(device: &Device) -> Result<Vec<Code>, OpError> {
    let arch = device.arch;
    let is_native = arch.is_native_to(device.capability);
    if !archives_are_current() {
        if !is_there() {
            return Err(fault(
                "this build's kernels were changed after they were compiled; run `cargo xtask cuda-kernels` and build \
                 again, or install NVRTC (libnvrtc), which compiles them when the program starts",
            ));
        }
        let code = |c: Compiled| if is_native { Code::Machine(c.machine) } else { Code::Ptx(c.ptx) };
        return Ok(compile_kernels(arch)?.into_iter().map(|(_, compiled)| code(compiled)).collect());
    }
    let archive = unpack(if is_native { machine(arch) } else { PTX })?;
    let entries = modules(&archive, arch)?.into_iter();
    match is_native {
        true => Ok(entries.map(|bytes| Code::Machine(bytes.to_vec())).collect()),
        false => entries.map(|bytes| Ok(Code::Ptx(text(bytes)?.to_owned()))).collect(),
    }
}

fn machine(arch: Arch) -> &'static [u8] {
    MACHINE.iter().find(|(path, _)| *path == arch).map_or(&[], |(_, bytes)| bytes)
}

/// What is in an archive of one path's modules.
fn modules(archive: &[u8], arch: Arch) -> Result<Vec<&[u8]>, OpError> {
    let entries = entries(archive)?;
    let module = |name: &str| {
        let wanted = label(arch, name);
        let found = entries.iter().find(|(known, _)| *known == wanted);
        found
            .map(|(_, bytes)| *bytes)
            .ok_or_else(|| fault(format!("the program carries no code for {name} on {}", arch.name())))
    };
    MODULES.iter().map(|m| module(m.name)).collect()
}

fn label(arch: Arch, name: &str) -> String {
    format!("{} {name}", arch.name())
}

/// An entry is a line of its label and its length, and then so many bytes.
fn write_entry(to: &mut Vec<u8>, label: &str, bytes: &[u8]) {
    to.extend_from_slice(format!("{label} {}\n", bytes.len()).as_bytes());
    to.extend_from_slice(bytes);
}

fn entries(mut archive: &[u8]) -> Result<Vec<(&str, &[u8])>, OpError> {
    let damaged = || fault("the kernels in the program are damaged: an entry without a label or a length");
    let mut found = Vec::new();
    while !archive.is_empty() {
        let end = archive.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
        let (label, length) = text(&archive[..end])?.rsplit_once(' ').ok_or_else(damaged)?;
        let length: usize = length.parse().map_err(|_| damaged())?;
        let (bytes, rest) = archive[end + 1..].split_at_checked(length).ok_or_else(damaged)?;
        found.push((label, bytes));
        archive = rest;
    }
    Ok(found)
}

fn text(bytes: &[u8]) -> Result<&str, OpError> {
    std::str::from_utf8(bytes).map_err(|error| fault(format!("the kernels in the program are damaged: {error}")))
}

fn pack(bytes: &[u8]) -> Result<Vec<u8>, OpError> {
    // The window of this preset holds all of it.
    let written = XzWriter::new(Vec::new(), XzOptions::with_preset(9))
        .and_then(|mut out| out.write_all(bytes).map(|()| out))
        .and_then(XzWriter::finish);
    written.map_err(|error| fault(format!("compressing the kernels: {error}")))
}

fn unpack(archive: &[u8]) -> Result<Vec<u8>, OpError> {
    let mut bytes = Vec::new();
    let read = XzReader::new(archive, false).read_to_end(&mut bytes);
    read.map_err(|error| fault(format!("the kernels in the program are damaged: {error}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiled_kernels_are_those_of_the_sources() {
        assert!(archives_are_current(), "kernels/ was changed: run `cargo xtask cuda-kernels`");
    }

    #[test]
    fn the_archives_hold_every_module_for_every_target() {
        let ptx = unpack(PTX).unwrap();
        for arch in Arch::ALL {
            let machine = unpack(machine(arch)).unwrap();
            let compiled = MODULES.iter().zip(modules(&ptx, arch).unwrap()).zip(modules(&machine, arch).unwrap());
            for ((module, ptx), machine) in compiled {
                let (name, ptx) = (module.name, text(ptx).unwrap());
                assert!(ptx.contains(&format!(".target sm_{}\n", arch.name())), "{name} for {}", arch.name());
                assert!(machine.starts_with(b"\x7fELF"), "{name} for {}", arch.name());
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
    fn a_missing_module_and_a_damaged_entry_are_named() {
        let mut archive = Vec::new();
        write_entry(&mut archive, "75 nothing.cu", b".version 8.0\n");
        let error = modules(&archive, Arch::Sm75).unwrap_err().to_string();
        assert!(error.contains(MODULES[0].name), "{error}");
        archive.pop();
        let error = modules(&archive, Arch::Sm75).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }
}
