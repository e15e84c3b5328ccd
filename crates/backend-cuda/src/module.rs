//! Kernels on the device, found by their names.

use crate::archive::{Code, code};
use crate::driver::{Device, During, fault};
use cudarc::driver::sys::CUfunction_attribute;
use cudarc::driver::{CudaFunction, CudaModule};
use cudarc::nvrtc::Ptx;
use onebit_ops::OpError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Shared memory that a block has without asking.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

/// All kernels of one code path.
pub(crate) struct Kernels {
    device: Arc<Device>,
    modules: Vec<Arc<CudaModule>>,
    found: Mutex<HashMap<String, CudaFunction>>,
}

impl Kernels {
    /// Loads every module.
    ///
    /// # Errors
    /// Code that the driver does not accept.
    pub(crate) fn load(device: &Arc<Device>) -> Result<Kernels, OpError> {
        let load = |code| {
            let module = match code {
                Code::Machine(code) => Ptx::from_binary(code),
                Code::Ptx(text) => Ptx::from_src(text),
            };
            device.context.load_module(module).during("loading the kernels")
        };
        let codes = code(device)?;
        // What the driver has to translate is one core's work for each module.
        let modules = std::thread::scope(|scope| {
            let started: Vec<_> = codes.into_iter().map(|code| scope.spawn(|| load(code))).collect();
            let joined = started.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.collect::<Result<_, _>>()
        })?;
        Ok(Kernels { device: device.clone(), modules, found: Mutex::default() })
    }

    /// The kernel of this name, ready for `shared` bytes of shared memory a block.
    ///
    /// # Errors
    /// A name that no module has, and more shared memory than the device gives.
    pub(crate) fn get(&self, name: &str, shared: u32) -> Result<CudaFunction, OpError> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let kernel = match found.get(name) {
            Some(kernel) => kernel.clone(),
            None => {
                self.device.bind()?;
                let kernel = self.modules.iter().find_map(|module| module.load_function(name).ok());
                let kernel = kernel.ok_or_else(|| fault(format!("no module has a kernel `{name}`")))?;
                // Functions may be loaded at their first use only; a question makes it now.
                kernel.num_regs().during("loading a kernel")?;
                found.insert(name.to_owned(), kernel.clone());
                kernel
            }
        };
        if shared > self.device.shared_bytes {
            return Err(fault(format!(
                "kernel `{name}` wants {shared} bytes of shared memory a block, and the device gives {}",
                self.device.shared_bytes
            )));
        }
        // What the kernel declares counts, too.
        let own = kernel.shared_size_bytes().during("asking a kernel for its size")?;
        if shared > 0 && shared as i32 + own > SHARED_WITHOUT_ASKING as i32 {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // The largest wish of any launch stays: a graph keeps the function, not its attributes of the time.
            let most = self.device.shared_bytes as i32 - own;
            kernel.set_attribute(attribute, most).during("asking for shared memory")?;
        }
        Ok(kernel)
    }
}
