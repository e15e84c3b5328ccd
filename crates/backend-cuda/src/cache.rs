//! Pages and slots on the device, and what the host knows of them.
//!
//! ```text
//! pages     [page][layer], one of these as `kernels/README.md` draws it
//! slots     [slot][layer]{ delta (heads, key_dim, value_dim) | window (kernel - 1, channels), oldest first }
//! areas     [area][layer]{ convolution inputs | keys, values and gates }, one row for each guess
//! sampled   token and log probability of each logit row of the step before
//! ```
//!
//! All layers of a page lie side by side, so that a short context is one short stretch of memory however many pages there are:
//! with the layers apart, a token of a model of 27 billion weights took 3% longer with room for 262,144 tokens than with
//! little room.
//!
//! Areas hold guesses; there are none until somebody speculates. Which slot has which is in the ledger.

use crate::driver::Device;
use crate::memory::Buffer;
use crate::params::{Address, Sampled};
use crate::{delta, launch};
use onebit_ops::{CacheSpec, Ledger, OpError, SlotState, StateSpec};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most logit rows whose tokens can be chosen on the device in one step.
pub(crate) const MOST_SAMPLED: usize = 16_384;

/// The memory behind a cache handle.
pub(crate) struct Memory {
    device: Arc<Device>,
    spec: CacheSpec,
    pages: Buffer,
    slots: Buffer,
    sampled: Buffer,
    held: Mutex<Held>,
}

/// What changes as steps are submitted.
pub(crate) struct Held {
    pub ledger: Ledger,
    areas: Buffer,
}

impl Held {
    /// First byte of all areas; 0 where there are none.
    pub(crate) fn areas(&self) -> Address {
        self.areas.address()
    }
}

/// Where the part of a layer lies in something that is repeated for slots or areas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strided {
    /// In slot or area 0; 0 where there are none yet.
    pub address: Address,
    /// Floats from one slot or area to the next.
    pub stride: u64,
}

/// Offsets inside slots and areas, in floats.
#[derive(Debug, Clone, Copy)]
struct Shape(StateSpec);

impl Shape {
    /// Records begin at multiples of 16 bytes.
    fn padded(floats: usize) -> usize {
        floats.next_multiple_of(4)
    }
    fn window_at(self) -> usize {
        Self::padded(self.0.delta_len())
    }
    /// One layer of a slot.
    fn record(self) -> usize {
        self.window_at() + Self::padded(self.0.window_len())
    }
    fn slot(self) -> usize {
        self.record() * self.0.layers
    }
    fn rows_at(self) -> usize {
        Self::padded(self.0.channels * self.0.max_pending)
    }
    fn pending_row(self) -> usize {
        delta::pending_row(self.0.heads, self.0.key_dim, self.0.value_dim)
    }
    /// One layer of an area.
    fn area_record(self) -> usize {
        self.rows_at() + Self::padded(self.pending_row() * self.0.max_pending)
    }
    fn area(self) -> usize {
        self.area_record() * self.0.layers
    }
}

const FLOAT: usize = size_of::<f32>();

impl Memory {
    /// Zeroed memory.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`] before anything is touched.
    pub(crate) fn new(device: &Arc<Device>, spec: CacheSpec) -> Result<Memory, OpError> {
        let kv = spec.kv;
        let pages = launch::page_bytes(kv.format, kv.heads, kv.dim) * kv.pages * kv.layers;
        let slots = spec.state.map_or(0, |s| Shape(s).slot() * s.slots * FLOAT);
        let sampled = MOST_SAMPLED * size_of::<Sampled>();
        device.require((pages + slots + sampled) as u64, "the cache")?;
        let (layers, count) = spec.state.map_or((0, 0), |s| (s.layers, s.slots));
        Ok(Memory {
            device: device.clone(),
            spec,
            pages: Buffer::zeroed(device, pages, "the key/value pages")?,
            slots: Buffer::zeroed(device, slots, "the state slots")?,
            sampled: Buffer::zeroed(device, sampled, "the sampled tokens")?,
            held: Mutex::new(Held {
                ledger: Ledger::new(count, layers),
                areas: Buffer::new(device, 0, "the pending rows")?,
            }),
        })
    }

    pub(crate) fn is_on(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    pub(crate) fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    /// Page 0 of a layer, and the bytes from a page to the next one.
    pub(crate) fn pages(&self, layer: usize) -> (Address, u64) {
        let kv = self.spec.kv;
        let page = launch::page_bytes(kv.format, kv.heads, kv.dim);
        let stride = kv.layers * page;
        // There may be none at all.
        let first = if kv.pages > 0 { layer * page } else { 0 };
        (self.pages.at(first, kv.pages * stride - first), stride as u64)
    }

    /// Tokens that the step before chose.
    pub(crate) fn sampled(&self) -> &Buffer {
        &self.sampled
    }

    /// Matrices of a layer.
    pub(crate) fn deltas(&self, layer: usize) -> Result<Strided, OpError> {
        self.in_slots(layer, |_| 0)
    }

    /// Windows of a layer.
    pub(crate) fn windows(&self, layer: usize) -> Result<Strided, OpError> {
        self.in_slots(layer, Shape::window_at)
    }

    fn in_slots(&self, layer: usize, offset: fn(Shape) -> usize) -> Result<Strided, OpError> {
        let shape = Shape(self.state()?);
        let at = (shape.record() * layer + offset(shape)) * FLOAT;
        Ok(Strided { address: self.slots.address() + at as Address, stride: shape.slot() as u64 })
    }

    /// Ledger' convolution inputs of a layer, in areas from `base` on.
    pub(crate) fn pending_inputs(&self, base: Address, layer: usize) -> Result<Strided, OpError> {
        self.in_areas(base, layer, |_| 0)
    }

    /// Ledger' keys, values and gates of a layer, in areas from `base` on.
    pub(crate) fn pending_rows(&self, base: Address, layer: usize) -> Result<Strided, OpError> {
        self.in_areas(base, layer, Shape::rows_at)
    }

    fn in_areas(&self, base: Address, layer: usize, offset: fn(Shape) -> usize) -> Result<Strided, OpError> {
        let shape = Shape(self.state()?);
        let at = (shape.area_record() * layer + offset(shape)) * FLOAT;
        let address = if base == 0 { 0 } else { base + at as Address };
        Ok(Strided { address, stride: shape.area() as u64 })
    }

    /// The shape of the slots.
    pub(crate) fn state(&self) -> Result<StateSpec, OpError> {
        self.spec.state.ok_or_else(|| OpError::Inputs("the cache has no recurrent state".to_owned()))
    }

    fn check_slot(&self, slot: usize) -> Result<StateSpec, OpError> {
        let state = self.state()?;
        if slot >= state.slots {
            return Err(OpError::Inputs(format!("state slot {slot} of {}", state.slots)));
        }
        Ok(state)
    }

    /// A slot's bytes.
    fn stretch(&self, slot: usize) -> Result<Range<usize>, OpError> {
        let len = Shape(self.check_slot(slot)?).slot() * FLOAT;
        Ok(slot * len..(slot + 1) * len)
    }

    /// What changes as steps are submitted. Whoever submits one holds it meanwhile.
    pub(crate) fn hold(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for so many areas; what is in those that there are stays.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`].
    pub(crate) fn grow_areas(&self, held: &mut Held, count: usize) -> Result<(), OpError> {
        if count <= held.ledger.areas() {
            return Ok(());
        }
        let count = count.max(2 * held.ledger.areas());
        let bytes = Shape(self.state()?).area() * FLOAT;
        let grown = Buffer::zeroed(&self.device, count * bytes, "the pending rows")?;
        grown.copy_from(&held.areas)?;
        held.areas = grown;
        held.ledger.grow(count);
        Ok(())
    }

    pub(crate) fn clear_slot(&self, slot: usize) -> Result<(), OpError> {
        let stretch = self.stretch(slot)?;
        self.slots.fill_zero(stretch.start, stretch.len())?;
        self.hold().ledger.forget(slot);
        Ok(())
    }

    pub(crate) fn copy_slot(&self, from: usize, to: usize) -> Result<(), OpError> {
        let (source, target) = (self.stretch(from)?, self.stretch(to)?);
        self.slots.copy_within(source.start, target.start, source.len())?;
        self.hold().ledger.forget(to);
        Ok(())
    }

    pub(crate) fn copy_page(&self, from: u32, to: u32) -> Result<(), OpError> {
        self.spec.check_page(from)?;
        self.spec.check_page(to)?;
        let kv = self.spec.kv;
        let bytes = kv.layers * launch::page_bytes(kv.format, kv.heads, kv.dim);
        self.pages.copy_within(from as usize * bytes, to as usize * bytes, bytes)
    }

    pub(crate) fn read_slot(&self, slot: usize, layer: usize) -> Result<SlotState, OpError> {
        let state = self.check_slot(slot)?;
        if layer >= state.layers {
            return Err(OpError::Inputs(format!("state layer {layer} of {}", state.layers)));
        }
        let shape = Shape(state);
        let record = shape.slot() * slot + shape.record() * layer;
        Ok(SlotState {
            delta: self.slots.read_floats(record * FLOAT, state.delta_len())?,
            window: self.slots.read_floats((record + shape.window_at()) * FLOAT, state.window_len())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: StateSpec =
        StateSpec { layers: 3, slots: 2, channels: 5, kernel: 4, heads: 1, key_dim: 3, value_dim: 3, max_pending: 2 };

    #[test]
    fn records_are_aligned_and_hold_their_parts() {
        let shape = Shape(STATE);
        assert_eq!((shape.window_at(), shape.record(), shape.slot()), (12, 12 + 16, 84));
        assert_eq!((shape.rows_at(), shape.area_record()), (12, 12 + 16));
    }
}
