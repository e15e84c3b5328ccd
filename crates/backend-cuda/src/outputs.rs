//! What a step gives back, on its way to the host.

use crate::driver::{Device, During};
use crate::memory::{Buffer, Pinned};
use crate::params::{self, Address};
use cudarc::driver::sys;
use onebit_ops::{Op, OpError, Placement, Program, Rows, Sampled, StepInputs, StepOutput};

const FLOAT: usize = size_of::<f32>();

/// The results of one step: rectangles of temporaries, and behind them the tokens that were chosen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Results {
    rectangles: Vec<Rectangle>,
    /// Tokens, and where they begin in the host's memory.
    sampled: usize,
    sampled_at: usize,
}

/// One output.
#[derive(Debug, PartialEq, Eq)]
struct Rectangle {
    name: String,
    /// First float in the arena, and floats from row to row.
    first: usize,
    stride: usize,
    rows: usize,
    cols: usize,
    /// First byte in the host's memory.
    at: usize,
}

impl Results {
    /// What a program gives for these inputs.
    pub(crate) fn of(program: &Program, placements: &[Placement], inputs: &StepInputs) -> Results {
        let mut end = 0;
        let mut rectangles = Vec::new();
        for op in &program.ops {
            let Op::Output { x, name } = op else { continue };
            let info = program.tensors[x.tensor.0 as usize];
            let rows = match info.rows {
                Rows::Step => inputs.tokens.len(),
                Rows::Logits => inputs.logit_rows.len(),
                Rows::Fixed(rows) => rows,
            };
            rectangles.push(Rectangle {
                name: name.to_string(),
                first: placements[x.tensor.0 as usize].offset + x.offset,
                stride: info.cols,
                rows,
                cols: x.cols(),
                at: end,
            });
            end += rows * x.cols() * FLOAT;
        }
        Results { rectangles, sampled: inputs.draws.len(), sampled_at: end }
    }

    /// Bytes of host memory that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.sampled_at + self.sampled * size_of::<params::Sampled>()
    }

    /// Where the step itself puts the tokens that it chooses; 0 where it chooses none.
    pub(crate) fn tokens_at(&self, host: &Pinned) -> Address {
        if self.sampled == 0 { 0 } else { host.address() + self.sampled_at as Address }
    }

    /// Copies the rectangles from the temporaries, in the order of the stream. The host's memory must stay until the device is
    /// past the copies.
    ///
    /// # Errors
    /// [`OpError::Device`].
    pub(crate) fn copy(&self, device: &Device, arena: &Buffer, host: &mut Pinned) -> Result<(), OpError> {
        let what = "copying a step's results";
        for rectangle in self.rectangles.iter().filter(|r| r.rows > 0 && r.cols > 0) {
            let copy = rectangle.descriptor(arena, host.bytes_mut());
            // SAFETY: source and target were cut to the copied rectangle.
            unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, device.stream.cu_stream()) }.result().during(what)?;
        }
        Ok(())
    }

    /// Reads them once they are there.
    pub(crate) fn read(self, host: &[u8]) -> StepOutput {
        let word = |at: usize| -> [u8; 4] { std::array::from_fn(|i| host[at + i]) };
        let mut output = StepOutput::default();
        for Rectangle { name, rows, cols, at, .. } in self.rectangles {
            let values = host[at..at + rows * cols * FLOAT].as_chunks::<FLOAT>().0;
            output.values.insert(name, values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect());
        }
        let sampled = (0..self.sampled).map(|i| self.sampled_at + i * size_of::<params::Sampled>());
        output.sampled = sampled
            .map(|at| Sampled { token: u32::from_le_bytes(word(at)), logprob: f32::from_le_bytes(word(at + FLOAT)) })
            .collect();
        output
    }
}

impl Rectangle {
    fn descriptor(&self, arena: &Buffer, host: &mut [u8]) -> sys::CUDA_MEMCPY2D_st {
        let floats = (self.rows - 1) * self.stride + self.cols;
        let width = self.cols * FLOAT;
        sys::CUDA_MEMCPY2D_st {
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcDevice: arena.at(self.first * FLOAT, floats * FLOAT),
            srcPitch: self.stride * FLOAT,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: host[self.at..self.at + self.rows * width].as_mut_ptr().cast(),
            dstPitch: width,
            WidthInBytes: width,
            Height: self.rows,
            srcXInBytes: 0,
            srcY: 0,
            srcHost: std::ptr::null(),
            srcArray: std::ptr::null_mut(),
            dstXInBytes: 0,
            dstY: 0,
            dstDevice: 0,
            dstArray: std::ptr::null_mut(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_where_they_were_put() {
        let rectangle =
            |name: &str, rows, cols, at| Rectangle { name: name.to_owned(), first: 0, stride: 9, rows, cols, at };
        let results =
            Results { rectangles: vec![rectangle("a", 2, 1, 0), rectangle("b", 0, 5, 8)], sampled: 2, sampled_at: 8 };
        assert_eq!(results.bytes(), 24);
        let host: Vec<u8> = [1.0f32.to_bits(), 2.0f32.to_bits(), 7, (-0.5f32).to_bits(), u32::MAX, 0]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let output = results.read(&host);
        assert_eq!(output.values["a"], [1.0, 2.0]);
        assert!(output.values["b"].is_empty());
        assert_eq!(output.sampled[0], Sampled { token: 7, logprob: -0.5 });
        assert_eq!(output.sampled[1].token, Sampled::NOT_FINITE);
    }
}
