//! The device: a thread with memory of its own, that knows byte buffers, ranges of them and kernels.
//!
//! What reaches it comes as a command, what leaves it as a reply. It holds every dispatch to the limits of a small GPU
//! and keeps them as errors of the step, as a driver does.

use super::kernel::Kernel;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender};

/// Most bytes of one storage binding.
pub const BINDING_BYTES: usize = 128 * 1024;
/// Most storage bindings of one dispatch.
pub const BINDINGS: usize = 8;

/// A range of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) buffer: u64,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Binding {
    fn overlaps(&self, other: &Binding) -> bool {
        self.buffer == other.buffer && self.start < other.start + other.len && other.start < self.start + self.len
    }
}

/// One kernel over the ranges that it may touch.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) kernel: Kernel,
    pub(super) reads: Vec<Binding>,
    pub(super) writes: Vec<Binding>,
}

/// What the host can ask for.
#[derive(Debug)]
pub(super) enum Command {
    /// A zeroed buffer.
    Create { buffer: u64, bytes: usize },
    /// A buffer is no longer wanted.
    Free { buffer: u64 },
    /// Host bytes into a buffer.
    Write { buffer: u64, start: usize, bytes: Vec<u8> },
    /// The same byte everywhere in a range.
    Fill { range: Binding, byte: u8 },
    /// One range to another of equal length.
    Copy { from: Binding, to: Binding },
    /// Runs a kernel.
    Dispatch(Dispatch),
    /// Sends a range back, or the first error since the last one sent.
    Read { tag: u64, range: Binding },
}

/// What the device sends back for a [`Command::Read`].
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) tag: u64,
    pub(super) result: Result<Vec<u8>, String>,
}

/// Serves commands in order until the host is gone.
pub(super) fn serve(commands: &Receiver<Command>, replies: &Sender<Reply>) {
    let mut memory: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut failed: Option<String> = None;
    for command in commands {
        let result = match command {
            Command::Create { buffer, bytes } => {
                memory.insert(buffer, vec![0; bytes]);
                Ok(())
            }
            Command::Free { buffer } => {
                memory.remove(&buffer);
                Ok(())
            }
            Command::Write { buffer, start, bytes } => {
                let range = Binding { buffer, start, len: bytes.len() };
                bytes_mut(&mut memory, range).map(|to| to.copy_from_slice(&bytes))
            }
            Command::Fill { range, byte } => bytes_mut(&mut memory, range).map(|to| to.fill(byte)),
            Command::Copy { from, to } => copy(&mut memory, from, to),
            Command::Dispatch(dispatch) => {
                run(&mut memory, &dispatch).map_err(|e| format!("{e} in {:?}", dispatch.kernel))
            }
            Command::Read { tag, range } => {
                let result = match failed.take() {
                    Some(error) => Err(error),
                    None => bytes(&memory, range).map(<[u8]>::to_vec),
                };
                // The host may be gone already.
                let _ = replies.send(Reply { tag, result });
                Ok(())
            }
        };
        if let Err(error) = result {
            failed.get_or_insert(error);
        }
    }
}

fn bytes(memory: &HashMap<u64, Vec<u8>>, range: Binding) -> Result<&[u8], String> {
    let buffer = memory.get(&range.buffer).ok_or_else(|| format!("buffer {} does not exist", range.buffer))?;
    buffer.get(range.start..range.start + range.len).ok_or_else(|| format!("{range:?} of {} bytes", buffer.len()))
}

fn bytes_mut(memory: &mut HashMap<u64, Vec<u8>>, range: Binding) -> Result<&mut [u8], String> {
    let buffer = memory.get_mut(&range.buffer).ok_or_else(|| format!("buffer {} does not exist", range.buffer))?;
    let len = buffer.len();
    buffer.get_mut(range.start..range.start + range.len).ok_or_else(|| format!("{range:?} of {len} bytes"))
}

fn copy(memory: &mut HashMap<u64, Vec<u8>>, from: Binding, to: Binding) -> Result<(), String> {
    if from.len != to.len || from.overlaps(&to) {
        return Err(format!("copy of {from:?} to {to:?}"));
    }
    let source = bytes(memory, from)?.to_vec();
    bytes_mut(memory, to)?.copy_from_slice(&source);
    Ok(())
}

/// Checks the limits, then hands the kernel its ranges and nothing else.
fn run(memory: &mut HashMap<u64, Vec<u8>>, dispatch: &Dispatch) -> Result<(), String> {
    let Dispatch { kernel, reads, writes } = dispatch;
    if reads.len() + writes.len() > BINDINGS {
        return Err(format!("{} bindings, the limit is {BINDINGS}", reads.len() + writes.len()));
    }
    for (i, binding) in reads.iter().chain(writes).enumerate() {
        if binding.len > BINDING_BYTES {
            return Err(format!("binding {i} of {} bytes, the limit is {BINDING_BYTES}", binding.len));
        }
        if !binding.start.is_multiple_of(4) {
            return Err(format!("binding {i} starts at byte {}", binding.start));
        }
    }
    for (i, write) in writes.iter().enumerate() {
        if let Some(other) = reads.iter().chain(&writes[..i]).find(|b| b.overlaps(write)) {
            return Err(format!("{write:?} is written and overlaps {other:?}"));
        }
    }
    let mut written = Vec::with_capacity(writes.len());
    for write in writes {
        written.push(bytes(memory, *write)?.to_vec());
    }
    let inputs = reads.iter().map(|r| bytes(memory, *r)).collect::<Result<Vec<_>, _>>()?;
    kernel.run(&inputs, &mut written)?;
    for (write, bytes) in writes.iter().zip(written) {
        bytes_mut(memory, *write)?.copy_from_slice(&bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(reads: Vec<Binding>, writes: Vec<Binding>) -> Result<(), String> {
        let mut memory = HashMap::from([(1, vec![0; 2 * BINDING_BYTES]), (2, vec![0; 64])]);
        let kernel = Kernel::Zip { op: super::super::kernel::Zip::Add, a: (1, 16, 16).into(), b: (1, 16, 16).into() };
        run(&mut memory, &Dispatch { kernel, reads, writes })
    }

    fn range(buffer: u64, start: usize, len: usize) -> Binding {
        Binding { buffer, start, len }
    }

    #[test]
    fn limits_are_held() {
        assert_eq!(all(vec![range(1, 0, 64), range(1, 64, 64)], vec![range(1, 128, 64)]), Ok(()));
        let cases = [
            (vec![range(1, 0, 64); 8], vec![range(2, 0, 64)], "9 bindings"),
            (vec![range(1, 0, BINDING_BYTES + 4), range(1, 0, 64)], vec![range(2, 0, 64)], "131076 bytes"),
            (vec![range(1, 2, 64), range(1, 0, 64)], vec![range(2, 0, 64)], "starts at byte 2"),
            (vec![range(1, 0, 64), range(1, 64, 64)], vec![range(1, 32, 64)], "overlaps"),
            (vec![range(1, 0, 64), range(3, 0, 64)], vec![range(2, 0, 64)], "does not exist"),
            (vec![range(1, 0, 64), range(2, 32, 64)], vec![range(1, 128, 64)], "of 64 bytes"),
        ];
        for (reads, writes, words) in cases {
            let error = all(reads, writes).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
