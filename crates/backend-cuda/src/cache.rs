//! Pages and slots on the device, and what the host knows of them.
//!
//! ```text
//! pages     [layer][page], a page as `kernels/README.md` draws it
//! slots     [slot][layer]{ delta (heads, key_dim, value_dim) | window (kernel - 1, channels), oldest first }
//! areas     [area][layer]{ convolution inputs | keys, values and gates }, one row for each guess
//! sampled   token and log probability of each logit row of the step before
//! ```
//!
//! An area holds the guesses of one slot. A step that accepts some reads the slot's area, and one that guesses anew fills
//! another; areas come from a pool that is empty until somebody speculates.

use crate::driver::Device;
use crate::launch;
use crate::memory::Buffer;
use crate::params::{Address, Sampled};
use onebit_ops::{CacheSpec, OpError, SlotState, StateSpec};
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
    ledger: Mutex<Ledger>,
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
        launch::pending_row(self.0.heads, self.0.key_dim, self.0.value_dim)
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
            ledger: Mutex::new(Ledger {
                sampled: 0,
                layers,
                waiting: vec![Waiting::default(); count * layers],
                area_of: vec![None; count],
                pool: Pool::default(),
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

    /// Page 0 of a layer, and the bytes of a page.
    pub(crate) fn pages(&self, layer: usize) -> (Address, u64) {
        let kv = self.spec.kv;
        let page = launch::page_bytes(kv.format, kv.heads, kv.dim);
        (self.pages.at(layer * kv.pages * page, kv.pages * page), page as u64)
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

    /// What the host knows. Whoever submits steps holds it meanwhile.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the pool of areas hold `count`; what is in them stays.
    pub(crate) fn grow_areas(&self, ledger: &mut Ledger, count: usize) -> Result<(), OpError> {
        if count <= ledger.pool.count {
            return Ok(());
        }
        let count = count.max(2 * ledger.pool.count);
        let bytes = Shape(self.state()?).area() * FLOAT;
        let grown = Buffer::zeroed(&self.device, count * bytes, "the pending rows")?;
        grown.copy_from(&ledger.areas)?;
        ledger.areas = grown;
        ledger.pool.grow(count);
        Ok(())
    }

    pub(crate) fn clear_slot(&self, slot: usize) -> Result<(), OpError> {
        let stretch = self.stretch(slot)?;
        self.slots.fill_zero(stretch.start, stretch.len())?;
        self.ledger().forget(slot);
        Ok(())
    }

    pub(crate) fn copy_slot(&self, from: usize, to: usize) -> Result<(), OpError> {
        let (source, target) = (self.stretch(from)?, self.stretch(to)?);
        self.slots.copy_within(source.start, target.start, source.len())?;
        self.ledger().forget(to);
        Ok(())
    }

    pub(crate) fn copy_page(&self, from: u32, to: u32) -> Result<(), OpError> {
        self.spec.check_page(from)?;
        self.spec.check_page(to)?;
        let kv = self.spec.kv;
        let page = launch::page_bytes(kv.format, kv.heads, kv.dim);
        for layer in 0..kv.layers {
            let at = |number: u32| (layer * kv.pages + number as usize) * page;
            self.pages.copy_within(at(from), at(to), page)?;
        }
        Ok(())
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

/// What the host knows of the cache after the steps that it submitted: speculative rows that wait for a verdict, and how
/// many tokens the last step chose.
pub(crate) struct Ledger {
    /// Logit rows that the last step chose tokens for.
    pub sampled: usize,
    layers: usize,
    /// For each `[slot][layer]`.
    waiting: Vec<Waiting>,
    /// For each slot, the area with its guesses.
    area_of: Vec<Option<u32>>,
    pool: Pool,
    areas: Buffer,
}

/// Rows of one slot and layer: of the convolution, and of the delta rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Waiting {
    pub conv: usize,
    pub delta: usize,
}

/// Areas by their numbers.
#[derive(Debug, Default)]
struct Pool {
    count: usize,
    free: Vec<u32>,
}

impl Pool {
    fn grow(&mut self, count: usize) {
        // The lowest number is taken first.
        self.free.splice(0..0, (self.count as u32..count as u32).rev());
        self.count = count;
    }
}

impl Ledger {
    /// Rows that wait in a slot and layer.
    pub(crate) fn waiting(&self, slot: usize, layer: usize) -> Waiting {
        self.waiting[slot * self.layers + layer]
    }

    /// Notes what waits in a slot and layer.
    pub(crate) fn waiting_mut(&mut self, slot: usize, layer: usize) -> &mut Waiting {
        &mut self.waiting[slot * self.layers + layer]
    }

    /// First byte of all areas.
    pub(crate) fn base(&self) -> Address {
        self.areas.address()
    }

    /// Areas that must be there for so many new ones to be filled.
    pub(crate) fn needed(&self, new: usize) -> usize {
        self.pool.count + new.saturating_sub(self.pool.free.len())
    }

    /// The area with a slot's guesses; any number where there are none.
    pub(crate) fn area(&self, slot: usize) -> u32 {
        self.area_of.get(slot).copied().flatten().unwrap_or(0)
    }

    /// Gives a slot another area for new guesses and returns it. The old one goes back to the pool; later steps may fill
    /// it, since by then this step has read it.
    pub(crate) fn next_area(&mut self, slot: usize) -> Option<u32> {
        let next = self.pool.free.pop()?;
        self.release(slot);
        *self.area_of.get_mut(slot)? = Some(next);
        Some(next)
    }

    /// Nothing waits in a slot any more.
    pub(crate) fn forget(&mut self, slot: usize) {
        self.drop_rows(slot);
        self.release(slot);
    }

    /// No rows wait in a slot any more, whatever its area is used for next.
    pub(crate) fn drop_rows(&mut self, slot: usize) {
        self.waiting[slot * self.layers..(slot + 1) * self.layers].fill(Waiting::default());
    }

    fn release(&mut self, slot: usize) {
        if let Some(area) = self.area_of.get_mut(slot).and_then(Option::take) {
            self.pool.free.insert(0, area);
        }
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

    #[test]
    fn areas_are_taken_in_order_and_come_back_last() {
        let mut pool = Pool::default();
        pool.grow(2);
        assert_eq!(pool.free, [1, 0]);
        pool.free.pop();
        pool.grow(4);
        assert_eq!((pool.count, pool.free.as_slice()), (4, &[3, 2, 1][..]));
    }
}
