//! What a sequence keeps between steps: paged keys and values, and the recurrent state of delta-rule layers.

use crate::{Op, OpError};
use std::any::Any;
use std::sync::Arc;

/// Tokens in one KV page.
pub const PAGE_ROWS: usize = 64;

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 32-bit floats, for parity checks.
    F32,
    /// Half precision.
    F16,
    /// 8-bit integers, one f16 scale for each 32 values of a head.
    Q8,
    /// 4-bit integers, f16 scale and f16 minimum for each 32 values of a head.
    Q4,
}

impl KvFormat {
    /// Bytes of one head vector of `dim` values.
    pub fn head_bytes(self, dim: usize) -> usize {
        let blocks = dim.div_ceil(32);
        match self {
            KvFormat::F32 => dim * 4,
            KvFormat::F16 => dim * 2,
            KvFormat::Q8 => blocks * 34,
            KvFormat::Q4 => blocks * 20,
        }
    }

    /// Rounds one head vector as if it were stored and read back: the oracle of every backend's KV codec.
    ///
    /// Blocks of 32 values. `Q8`: scale `f16(amax / 127)`, integers ties to even. `Q4`: minimum `f16(min)`, scale
    /// `f16((max - min) / 15)`, integers 0..=15 ties to even. A block with a value that is not finite becomes NaN.
    pub fn round(self, head: &mut [f32]) {
        let half = |v: f32| half::f16::from_f32(v).to_f32();
        let poisoned = |block: &mut [f32]| {
            let bad = block.iter().any(|v| !v.is_finite());
            if bad {
                block.fill(f32::NAN);
            }
            bad
        };
        match self {
            KvFormat::F32 => {}
            KvFormat::F16 => head.iter_mut().for_each(|v| *v = half(*v)),
            KvFormat::Q8 => {
                for block in head.chunks_mut(32) {
                    if poisoned(block) {
                        continue;
                    }
                    let scale = half(block.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0);
                    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                    block.iter_mut().for_each(|v| *v = (*v * inverse).round_ties_even().clamp(-127.0, 127.0) * scale);
                }
            }
            KvFormat::Q4 => {
                for block in head.chunks_mut(32) {
                    if poisoned(block) {
                        continue;
                    }
                    let min = half(block.iter().fold(f32::INFINITY, |m, v| m.min(*v)));
                    let max = block.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
                    let scale = half((max - min) / 15.0);
                    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                    block
                        .iter_mut()
                        .for_each(|v| *v = ((*v - min) * inverse).round_ties_even().clamp(0.0, 15.0) * scale + min);
                }
            }
        }
    }
}

impl std::fmt::Display for KvFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Q8 => "q8",
            KvFormat::Q4 => "q4",
        })
    }
}

/// Shape of the paged KV pool of all full-attention layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSpec {
    /// Full-attention layers.
    pub layers: usize,
    /// Key/value heads.
    pub heads: usize,
    /// Dimension of one head.
    pub dim: usize,
    /// Pages of [`PAGE_ROWS`] tokens; one page id covers all layers.
    pub pages: usize,
    /// Storage format.
    pub format: KvFormat,
}

impl KvSpec {
    /// Bytes of one token over all layers, keys and values.
    pub fn bytes_per_token(&self) -> u64 {
        (self.layers * self.heads * 2 * self.format.head_bytes(self.dim)) as u64
    }
    /// Bytes of the whole pool.
    pub fn bytes(&self) -> u64 {
        self.bytes_per_token() * (self.pages * PAGE_ROWS) as u64
    }
}

/// Shape of the state slots of all delta-rule layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpec {
    /// Delta-rule layers.
    pub layers: usize,
    /// Slots: one for each running sequence, and as many as wanted for saved checkpoints.
    pub slots: usize,
    /// Channels of the causal convolution.
    pub channels: usize,
    /// Convolution kernel size; the window keeps `kernel - 1` rows.
    pub kernel: usize,
    /// Value heads.
    pub heads: usize,
    /// Key dimension of a head.
    pub key_dim: usize,
    /// Value dimension of a head.
    pub value_dim: usize,
    /// Most rows of a speculative step.
    pub max_pending: usize,
}

impl StateSpec {
    /// Floats of one layer's delta matrix in one slot: `(heads, key_dim, value_dim)`.
    pub fn delta_len(&self) -> usize {
        self.heads * self.key_dim * self.value_dim
    }
    /// Floats of one layer's convolution window in one slot: `(kernel - 1, channels)`, oldest row first.
    pub fn window_len(&self) -> usize {
        (self.kernel - 1) * self.channels
    }
    /// Bytes of one slot over all layers, without pending rows.
    pub fn bytes_per_slot(&self) -> u64 {
        (self.layers * (self.delta_len() + self.window_len()) * 4) as u64
    }
}

/// Everything that a model's sequences keep on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSpec {
    /// Paged keys and values.
    pub kv: KvSpec,
    /// Recurrent state, for hybrids.
    pub state: Option<StateSpec>,
}

impl CacheSpec {
    /// Whether a page is there.
    ///
    /// # Errors
    /// [`OpError::Inputs`] when it is not.
    pub fn check_page(&self, page: u32) -> Result<(), OpError> {
        if (page as usize) < self.kv.pages {
            return Ok(());
        }
        Err(OpError::Inputs(format!("page {page} of {}", self.kv.pages)))
    }

    /// Refuses an op whose layer the cache does not have, or whose shapes are not the cache's own.
    ///
    /// # Errors
    /// [`OpError::Shape`] with both numbers.
    pub fn check(&self, op: &Op) -> Result<(), OpError> {
        let name = op.name();
        match op {
            Op::Attention { k, layer, .. } => {
                let kv = &self.kv;
                below(name, "KV layer", kv.layers, *layer)?;
                equal(name, "key heads", kv.heads, k.heads)?;
                equal(name, "head dimension", kv.dim, k.dim)
            }
            Op::ConvSilu { x, kernel, layer, .. } => {
                let (layers, channels, window) = self.state.map_or((0, 0, 0), |s| (s.layers, s.channels, s.kernel));
                below(name, "state layer", layers, *layer)?;
                equal(name, "channels", channels, x.cols())?;
                equal(name, "kernel", window, *kernel)
            }
            Op::GatedDelta { k, v, layer, .. } => {
                let (layers, shape) = self.state.map_or((0, [0; 3]), |s| (s.layers, [s.heads, s.key_dim, s.value_dim]));
                below(name, "state layer", layers, *layer)?;
                let parts = ["value heads", "key dimension", "value dimension"];
                parts
                    .iter()
                    .zip(shape)
                    .zip([v.heads, k.dim, v.dim])
                    .try_for_each(|((what, wanted), got)| equal(name, what, wanted, got))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of pages and slots together.
    pub fn bytes(&self) -> u64 {
        self.kv.bytes() + self.state.map_or(0, |s| s.bytes_per_slot() * s.slots as u64)
    }
}

/// The state of one slot in one delta-rule layer, read back for tests and goldens.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotState {
    /// `(heads, key_dim, value_dim)`.
    pub delta: Vec<f32>,
    /// `(kernel - 1, channels)`, oldest row first.
    pub window: Vec<f32>,
}

/// A cache on a device. Cheap to clone; the memory goes when the last handle does.
#[derive(Clone)]
pub struct Cache {
    spec: CacheSpec,
    payload: Arc<dyn Any + Send + Sync>,
}

impl Cache {
    /// Wraps a backend's own cache object.
    pub fn new(spec: CacheSpec, payload: Arc<dyn Any + Send + Sync>) -> Self {
        Cache { spec, payload }
    }
    /// The shape it was made with.
    pub fn spec(&self) -> &CacheSpec {
        &self.spec
    }
    /// The backend's own object, if it is of this type.
    pub fn payload<T: Any>(&self) -> Option<&T> {
        self.payload.downcast_ref::<T>()
    }
}

fn below(op: &'static str, what: &str, count: usize, got: usize) -> Result<(), OpError> {
    if got < count { Ok(()) } else { Err(wrong(op, what, format!("below {count}"), got)) }
}

fn equal(op: &'static str, what: &str, wanted: usize, got: usize) -> Result<(), OpError> {
    if got == wanted { Ok(()) } else { Err(wrong(op, what, wanted.to_string(), got)) }
}

fn wrong(op: &'static str, what: &str, wanted: String, got: usize) -> OpError {
    OpError::Shape { op, what: what.to_owned(), wanted, got: got.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tensor, View};

    #[test]
    fn a_head_that_the_pages_were_not_made_for_is_refused() {
        let kv = KvSpec { layers: 1, heads: 2, dim: 64, pages: 1, format: KvFormat::F16 };
        let cache = CacheSpec { kv, state: None };
        let view = |heads| View { tensor: Tensor(0), offset: 0, heads, dim: 64, stride: 64 };
        let op = |layer, heads| Op::Attention {
            q: view(4),
            k: view(heads),
            v: view(heads),
            layer,
            scale: 1.0,
            out: Tensor(1),
        };
        assert_eq!(cache.check(&op(0, 2)), Ok(()));
        let text = |op: Op| cache.check(&op).unwrap_err().to_string();
        assert_eq!(text(op(1, 2)), "attention: KV layer: wanted below 1, got 1");
        assert_eq!(text(op(0, 4)), "attention: key heads: wanted 2, got 4");
    }
}
