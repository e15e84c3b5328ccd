//! Compiling the kernels with NVRTC, which is loaded at run time like the driver: for development, and to make the
//! compiled kernels that the program carries. Needs no device.

use crate::Arch;
use crate::driver::fault;
use crate::sources::{File, HEADERS, MODULES, OPTIONS};
use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;
use onebit_ops::OpError;
use std::ffi::{CStr, CString, c_char};

/// Whether the compiler can be loaded.
pub(crate) fn is_there() -> bool {
    // SAFETY: loading the library runs its initialisers, which every program that uses it does.
    unsafe { sys::is_culib_present() }
}

/// A module for one code path.
pub(crate) struct Compiled {
    pub ptx: String,
    pub machine: Vec<u8>,
}

/// Every module for one code path on a target such as `90a`, with its name, in a fixed order.
///
/// # Errors
/// No NVRTC, and the compiler's own messages.
pub(crate) fn compile_kernels(arch: Arch, target: &str) -> Result<Vec<(&'static str, Compiled)>, OpError> {
    if !is_there() {
        return Err(fault(
            "the library libnvrtc was not found; it comes with the CUDA toolkit and with the Python package \
             nvidia-cuda-nvrtc-cu12 (its folder must be in LD_LIBRARY_PATH)",
        ));
    }
    let compiled: Vec<Result<Compiled, OpError>> = std::thread::scope(|scope| {
        let started: Vec<_> = MODULES.iter().map(|module| scope.spawn(|| compile(module, arch, target))).collect();
        started.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    MODULES.iter().zip(compiled).map(|(module, compiled)| Ok((module.name, compiled?))).collect()
}

/// A program under compilation; the texts that it may point to live as long.
struct Program {
    handle: sys::nvrtcProgram,
    _texts: Vec<CString>,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `nvrtcCreateProgram` and destroyed once. Nothing can be done about a failure.
        let _ = unsafe { result::destroy_program(self.handle) };
    }
}

fn compile(module: &File, arch: Arch, target: &str) -> Result<Compiled, OpError> {
    let failed = |what: &str, error: NvrtcError| fault(format!("compiling {}: {what}: {error}", module.name));
    let program = create(module).map_err(|e| failed("creating the program", e))?;
    let (major, minor) = arch.capability();
    let target = format!("--gpu-architecture=sm_{target}");
    let path = format!("--define-macro=CODE_PATH={}", 100 * major + 10 * minor);
    let options: Vec<&str> = OPTIONS.into_iter().chain([target.as_str(), path.as_str()]).collect();
    // SAFETY: the program was just made.
    if let Err(error) = unsafe { result::compile_program(program.handle, &options) } {
        // SAFETY: as above.
        let log = unsafe { result::get_program_log(program.handle) }.map(|log| text(&log)).unwrap_or_default();
        return Err(failed(log.trim(), error));
    }
    // SAFETY: the program has been compiled.
    let ptx = unsafe { result::get_ptx(program.handle) }.map_err(|e| failed("taking the PTX", e))?;
    let machine = machine(&program).map_err(|e| failed("taking the machine code", e))?;
    Ok(Compiled { ptx: text(&ptx), machine })
}

fn machine(program: &Program) -> Result<Vec<u8>, NvrtcError> {
    let mut bytes = 0;
    // SAFETY: the program has been compiled, and the pointer is to a live variable.
    unsafe { sys::nvrtcGetCUBINSize(program.handle, &raw mut bytes) }.result()?;
    let mut code = vec![0_u8; bytes];
    // SAFETY: so many bytes have room there.
    unsafe { sys::nvrtcGetCUBIN(program.handle, code.as_mut_ptr().cast()) }.result()?;
    Ok(code)
}

fn create(module: &File) -> Result<Program, NvrtcError> {
    let c_string = |text: &str| CString::new(text).unwrap_or_else(|_| unreachable!("source files hold no zero bytes"));
    let mut texts: Vec<CString> = HEADERS.iter().flat_map(|h| [c_string(h.text), c_string(h.name)]).collect();
    texts.extend([c_string(module.text), c_string(module.name)]);
    let pointers: Vec<*const c_char> = texts.iter().map(|t| t.as_ptr()).collect();
    let headers: Vec<_> = pointers[..2 * HEADERS.len()].iter().step_by(2).copied().collect();
    let names: Vec<_> = pointers[..2 * HEADERS.len()].iter().skip(1).step_by(2).copied().collect();
    let (source, name) = (pointers[pointers.len() - 2], pointers[pointers.len() - 1]);
    let mut handle: sys::nvrtcProgram = std::ptr::null_mut();
    // SAFETY: all texts end in a zero byte and live as long as the program, and both lists have as many entries as said.
    unsafe {
        sys::nvrtcCreateProgram(&raw mut handle, source, name, HEADERS.len() as i32, headers.as_ptr(), names.as_ptr())
    }
    .result()?;
    Ok(Program { handle, _texts: texts })
}

/// What the compiler wrote, without the zero byte at the end.
fn text(written: &[c_char]) -> String {
    let bytes: Vec<u8> = written.iter().map(|c| *c as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}
