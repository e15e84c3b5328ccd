//! Compiled kernels: what the program carries of them, made by `cargo xtask cuda-kernels`.
//!
//! For every generation of devices it carries machine code of the best path that they run, which starts at once. Other devices,
//! and paths that somebody forces, get PTX: the driver translates that when the modules are loaded, and keeps the result by
//! itself.
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

/// Machine code of every module of a code path, for devices of one generation: of this compute capability, and of later ones with the
/// same major number.
struct Machine {
    arch: Arch,
    capability: (i32, i32),
    archive: &'static [u8],
}

const MACHINE: [Machine; 6] = [
    Machine { arch: Arch::Sm75, capability: (7, 5), archive: include_bytes!("../compiled/machine-75.xz") },
    Machine { arch: Arch::Sm80, capability: (8, 0), archive: include_bytes!("../compiled/machine-80.xz") },
    Machine { arch: Arch::Sm89, capability: (8, 9), archive: include_bytes!("../compiled/machine-89.xz") },
    Machine { arch: Arch::Sm90a, capability: (9, 0), archive: include_bytes!("../compiled/machine-90a.xz") },
    // Blackwell, in data centers and elsewhere.
    Machine { arch: Arch::Sm89, capability: (10, 0), archive: include_bytes!("../compiled/machine-100.xz") },
    Machine { arch: Arch::Sm89, capability: (12, 0), archive: include_bytes!("../compiled/machine-120.xz") },
];

impl Machine {
    /// `75`, `90a`, `120`: as compilers name it.
    fn target(&self) -> String {
        let (major, minor) = self.capability;
        if self.capability == self.arch.capability() { self.arch.name().to_owned() } else { format!("{major}{minor}") }
    }

    /// That of a code path for a device of this compute capability.
    fn of(arch: Arch, capability: (i32, i32)) -> Option<&'static Machine> {
        let (major, minor) = capability;
        MACHINE.iter().find(|m| m.arch == arch && m.capability.0 == major && m.capability.1 <= minor)
    }
}

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
    for machine in &MACHINE {
        let arch = machine.arch;
        let compiled = compile_kernels(arch, &machine.target())?;
        for (name, Compiled { ptx, .. }) in &compiled {
            // A compiler without a header of its own takes an intrinsic for a function that somebody else has.
            if let Some(line) = ptx.lines().skip_while(|line| !line.starts_with(".extern .func")).nth(1) {
                return Err(fault(format!("{name} for {} calls what is not in it: {}", arch.name(), line.trim())));
            }
            if machine.target() == arch.name() {
                write_entry(&mut texts, &label(arch, name), ptx.as_bytes());
            }
        }
        let mut codes = Vec::new();
        compiled.iter().for_each(|(name, c)| write_entry(&mut codes, &label(arch, name), &c.machine));
        files.push((format!("machine-{}.xz", machine.target()), pack(&codes)?));
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
    let machine = Machine::of(arch, device.capability);
    if !archives_are_current() {
        if !is_there() {
            return Err(fault(
                "this build's kernels were changed after they were compiled; run `cargo xtask cuda-kernels` and build \
                 again, or install NVRTC (libnvrtc), which compiles them when the program starts",
            ));
        }
        let target = machine.map_or_else(|| arch.name().to_owned(), Machine::target);
        let code = |c: Compiled| if machine.is_some() { Code::Machine(c.machine) } else { Code::Ptx(c.ptx) };
        return Ok(compile_kernels(arch, &target)?.into_iter().map(|(_, compiled)| code(compiled)).collect());
    }
    let archive = unpack(machine.map_or(PTX, |machine| machine.archive))?;
    let entries = modules(&archive, arch)?.into_iter();
    match machine {
        Some(_) => Ok(entries.map(|bytes| Code::Machine(bytes.to_vec())).collect()),
        None => entries.map(|bytes| Ok(Code::Ptx(text(bytes)?.to_owned()))).collect(),
    }
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
        for Machine { arch, archive, .. } in &MACHINE {
            let arch = *arch;
            let machine = unpack(archive).unwrap();
            let compiled = MODULES.iter().zip(modules(&ptx, arch).unwrap()).zip(modules(&machine, arch).unwrap());
            for ((module, ptx), machine) in compiled {
                let (name, ptx) = (module.name, text(ptx).unwrap());
                assert!(ptx.contains(&format!(".target sm_{}\n", arch.name())), "{name} for {}", arch.name());
                assert!(machine.starts_with(b"\x7fELF"), "{name} for {}", arch.name());
                // Their instructions came with Ampere and with Hopper.
                let least = match name {
                    "conv2d_pieces.cu" | "full_attention_halves.cu" | "linear_stream.cu" => Arch::Sm80,
                    "attention_ring.cu" | "linear_group.cu" | "linear_tens.cu" => Arch::Sm90a,
                    _ => Arch::Sm75,
                };
                let has_kernels = arch >= least;
                assert_eq!(ptx.contains(".visible .entry"), has_kernels, "{name} for {}", arch.name());
            }
        }
    }

    #[test]
    fn machine_code_runs_within_its_generation() {
        let of = |arch, capability| Machine::of(arch, capability).map(Machine::target);
        let best = |capability| of(Arch::best(capability).unwrap(), capability).unwrap_or_default();
        let devices = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 1)];
        assert_eq!(devices.map(best), ["75", "80", "80", "89", "90a", "100", "100", "", "120"]);
        assert_eq!(of(Arch::Sm80, (8, 9)).as_deref(), Some("80"));
        // Forced: the driver translates the path's text.
        assert_eq!([of(Arch::Sm75, (9, 0)), of(Arch::Sm80, (12, 0))], [None, None]);
        assert!(Arch::ALL.iter().all(|arch| Machine::of(*arch, arch.capability()).is_some()));
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
