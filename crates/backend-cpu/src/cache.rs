//! Paged keys and values, and the recurrent state of delta-rule layers.

use crate::memory::Buffer;
use onebit_ops::{CacheSpec, KvSpec, OpError, PAGE_ROWS, SlotState, StateSpec};
use std::ops::Range;

/// The memory behind a cache handle. Pages and slots cost memory from their first use on.
pub(crate) struct Memory {
    pub spec: CacheSpec,
    /// `[layer][keys, values][page][head][row]` stored head vectors.
    pub kv: Buffer,
    /// `[slot][layer]` records of [`SlotShape`].
    pub slots: Buffer,
    /// Speculative rows of each `[slot][layer]`: (convolution, delta rule).
    pub pending: Vec<(usize, usize)>,
    /// Tokens of the last step, one for each logit row.
    pub sampled: Vec<u32>,
}

/// Places inside the record of one slot and layer, in floats.
#[derive(Clone, Copy)]
pub(crate) struct SlotShape(StateSpec);

impl SlotShape {
    pub(crate) fn delta(self) -> Range<usize> {
        0..self.0.delta_len()
    }
    pub(crate) fn window(self) -> Range<usize> {
        let start = self.0.delta_len();
        start..start + self.0.window_len()
    }
    /// Raw convolution inputs of speculative row `i`.
    pub(crate) fn pending_window(self, i: usize) -> Range<usize> {
        let start = self.window().end + i * self.0.channels;
        start..start + self.0.channels
    }
    /// Keys (normalised, one for each key head), values, decays and betas of speculative row `i`.
    pub(crate) fn pending_delta(self, i: usize) -> [Range<usize>; 4] {
        let s = self.0;
        let row = s.heads * (s.key_dim + s.value_dim + 2);
        let mut at = self.pending_window(s.max_pending).start + i * row;
        [s.heads * s.key_dim, s.heads * s.value_dim, s.heads, s.heads].map(|len| {
            at += len;
            at - len..at
        })
    }
    fn len(self) -> usize {
        self.pending_delta(self.0.max_pending)[0].start.next_multiple_of(16)
    }
}

/// Bytes of one head's rows in one page.
pub(crate) fn page_head_bytes(kv: &KvSpec) -> usize {
    PAGE_ROWS * kv.format.head_bytes(kv.dim)
}

/// First byte of a page's head; `which` is 0 for keys and 1 for values.
pub(crate) fn page_head(kv: &KvSpec, layer: usize, which: usize, page: usize, head: usize) -> usize {
    (((layer * 2 + which) * kv.pages + page) * kv.heads + head) * page_head_bytes(kv)
}

impl Memory {
    pub(crate) fn new(spec: CacheSpec) -> Result<Self, OpError> {
        let kv_bytes = 2 * spec.kv.layers * spec.kv.pages * spec.kv.heads * page_head_bytes(&spec.kv);
        let records = spec.state.map_or(0, |s| s.slots * s.layers);
        let slot_bytes = spec.state.map_or(0, |s| records * SlotShape(s).len() * size_of::<f32>());
        let mut slots = Buffer::zeroed(slot_bytes, "the state slots")?;
        // A slot is used as a whole, so nothing is touched too early by that.
        slots.prefer_large_pages();
        let mut kv = Buffer::zeroed(kv_bytes, "the key/value pages")?;
        kv.prefer_large_pages();
        Ok(Memory { spec, kv, slots, pending: vec![(0, 0); records], sampled: Vec::new() })
    }

    fn state(&self) -> Result<StateSpec, OpError> {
        self.spec.state.ok_or_else(|| OpError::Inputs("the cache has no recurrent state".to_owned()))
    }

    /// The record of a slot and layer: its shape, its index and its floats' range.
    pub(crate) fn record(&self, slot: usize, layer: usize) -> Result<(SlotShape, usize, Range<usize>), OpError> {
        let state = self.state()?;
        if slot >= state.slots {
            return Err(OpError::Inputs(format!("state slot {slot} of {}", state.slots)));
        }
        if layer >= state.layers {
            return Err(OpError::Inputs(format!("state layer {layer} of {}", state.layers)));
        }
        let shape = SlotShape(state);
        let index = slot * state.layers + layer;
        Ok((shape, index, index * shape.len()..(index + 1) * shape.len()))
    }

    /// Speculative rows that a slot and layer hold: (convolution, delta rule).
    pub(crate) fn pending(&self, slot: usize, layer: usize) -> Result<(usize, usize), OpError> {
        Ok(self.pending[self.record(slot, layer)?.1])
    }

    pub(crate) fn clear_slot(&mut self, slot: usize) -> Result<(), OpError> {
        for layer in 0..self.state()?.layers {
            let (shape, index, range) = self.record(slot, layer)?;
            self.slots.floats_mut()[range][..shape.window().end].fill(0.0);
            self.pending[index] = (0, 0);
        }
        Ok(())
    }

    pub(crate) fn copy_slot(&mut self, from: usize, to: usize) -> Result<(), OpError> {
        for layer in 0..self.state()?.layers {
            let (shape, _, source) = self.record(from, layer)?;
            let (_, index, target) = self.record(to, layer)?;
            let source = source.start..source.start + shape.window().end;
            self.slots.floats_mut().copy_within(source, target.start);
            self.pending[index] = (0, 0);
        }
        Ok(())
    }

    pub(crate) fn copy_page(&mut self, from: u32, to: u32) -> Result<(), OpError> {
        self.spec.check_page(from)?;
        self.spec.check_page(to)?;
        let kv = self.spec.kv;
        let bytes = kv.heads * page_head_bytes(&kv);
        for layer in 0..kv.layers {
            for which in 0..2 {
                let [from, to] = [from, to].map(|page| page_head(&kv, layer, which, page as usize, 0));
                self.kv.bytes_mut().copy_within(from..from + bytes, to);
            }
        }
        Ok(())
    }

    pub(crate) fn read_slot(&self, slot: usize, layer: usize) -> Result<SlotState, OpError> {
        let (shape, _, range) = self.record(slot, layer)?;
        let record = &self.slots.floats()[range];
        Ok(SlotState { delta: record[shape.delta()].to_vec(), window: record[shape.window()].to_vec() })
    }
}
