//! What stays on the device between steps: weights in row blocks that fit a binding, pages, state slots.

use super::codec::Kv;
use super::device::{BINDING_BYTES, Binding, Command};
use super::kernel::Slice;
use super::link::{Buffer, Link, NAME, lock};
use onebit_ops::{CacheSpec, OpError, PAGE_ROWS, StateSpec};
use onebit_quant::Matrix;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Some rows of a weight, each part in a buffer of its own.
pub(super) struct Block {
    /// Row of the whole weight that it begins with.
    pub(super) first: usize,
    pub(super) slice: Slice,
    parts: Vec<Buffer>,
}

impl Block {
    /// Codes, and for MLX scales and biases.
    pub(super) fn bindings(&self) -> Vec<Binding> {
        self.parts.iter().map(Buffer::whole).collect()
    }

    pub(super) fn is_on(&self, link: &Arc<Link>) -> bool {
        self.parts.iter().all(|p| p.is_on(link))
    }
}

/// Cuts a matrix into blocks whose parts all fit a binding.
pub(super) fn blocks(link: &Arc<Link>, first: usize, matrix: &Matrix<'_>) -> Result<Vec<Block>, OpError> {
    let widest = matrix.codes.len().max(matrix.scales.len()).max(matrix.biases.len()) / matrix.rows.max(1);
    let step = BINDING_BYTES / widest.max(1);
    if step == 0 {
        return Err(too_wide(format!("a weight row of {widest} bytes")));
    }
    let mut blocks = Vec::new();
    for start in (0..matrix.rows).step_by(step) {
        let rows = matrix.slice_rows(start..matrix.rows.min(start + step));
        let slice = Slice { format: rows.format, rows: rows.rows, cols: rows.cols };
        let parts = [rows.codes, rows.scales, rows.biases]
            .into_iter()
            .take(slice.bindings())
            .map(|bytes| link.upload(bytes))
            .collect::<Result<_, _>>()?;
        blocks.push(Block { first: first + start, slice, parts });
    }
    Ok(blocks)
}

pub(super) fn too_wide(what: String) -> OpError {
    OpError::Device { backend: NAME.to_owned(), message: format!("{what} exceeds a binding of {BINDING_BYTES} bytes") }
}

/// Pages and slots.
pub(super) struct CacheMemory {
    spec: CacheSpec,
    /// `[layer][page][head][token][head bytes]`.
    keys: Buffer,
    values: Buffer,
    /// `[slot][layer][head][key][value]`.
    delta: Buffer,
    /// `[slot][layer][channel][kernel - 1]`, oldest first.
    window: Buffer,
    /// `[slot][layer][head][row][k, v, log decay, beta]`.
    pending_delta: Buffer,
    /// `[slot][layer][row][channel]`.
    pending_window: Buffer,
    /// Rows that wait in each slot. The host knows: it submitted them.
    pending: Mutex<HashMap<usize, usize>>,
    /// Where the last step left its tokens, and how many.
    sampled: Mutex<Option<(Arc<Buffer>, usize)>>,
}

impl CacheMemory {
    pub(super) fn new(link: &Arc<Link>, spec: CacheSpec) -> Result<Self, OpError> {
        let region = PAGE_ROWS * spec.kv.format.head_bytes(spec.kv.dim);
        if region > BINDING_BYTES {
            return Err(too_wide(format!("a page of {region} bytes a head")));
        }
        let pool = region * spec.kv.heads * spec.kv.pages * spec.kv.layers;
        let slots = |floats: fn(&StateSpec) -> usize| {
            link.buffer(spec.state.map_or(0, |s| 4 * floats(&s) * s.layers * s.slots))
        };
        Ok(CacheMemory {
            spec,
            keys: link.buffer(pool)?,
            values: link.buffer(pool)?,
            delta: slots(StateSpec::delta_len)?,
            window: slots(StateSpec::window_len)?,
            pending_delta: slots(|s| s.heads * s.max_pending * (s.key_dim + s.value_dim + 2))?,
            pending_window: slots(|s| s.max_pending * s.channels)?,
            pending: Mutex::default(),
            sampled: Mutex::default(),
        })
    }

    pub(super) fn is_on(&self, link: &Arc<Link>) -> bool {
        self.keys.is_on(link)
    }

    /// How heads of keys and values are kept.
    pub(super) fn codec(&self) -> Kv {
        Kv { format: self.spec.kv.format, dim: self.spec.kv.dim }
    }

    /// Keys and values of one head in one page.
    pub(super) fn page(&self, layer: usize, page: u32, head: usize) -> [Binding; 2] {
        let kv = &self.spec.kv;
        let region = PAGE_ROWS * kv.format.head_bytes(kv.dim);
        let at = ((layer * kv.pages + page as usize) * kv.heads + head) * region;
        [&self.keys, &self.values].map(|pool| pool.range(at, region))
    }

    /// The state's shape.
    pub(super) fn state(&self) -> Result<StateSpec, OpError> {
        self.spec.state.ok_or_else(|| OpError::Inputs("the cache has no state slots".to_owned()))
    }

    fn at(&self, slot: usize, layer: usize) -> Result<(StateSpec, usize), OpError> {
        let state = self.state()?;
        if slot >= state.slots || layer >= state.layers {
            return Err(OpError::Inputs(format!(
                "state slot {slot} of {}, layer {layer} of {}",
                state.slots, state.layers
            )));
        }
        Ok((state, slot * state.layers + layer))
    }

    /// The matrices of all heads.
    pub(super) fn delta(&self, slot: usize, layer: usize) -> Result<Binding, OpError> {
        let (state, at) = self.at(slot, layer)?;
        Ok(self.delta.floats(at * state.delta_len(), state.delta_len()))
    }

    /// The matrix of one head.
    pub(super) fn delta_head(&self, slot: usize, layer: usize, head: usize) -> Result<Binding, OpError> {
        let (state, at) = self.at(slot, layer)?;
        let len = state.key_dim * state.value_dim;
        Ok(self.delta.floats((at * state.heads + head) * len, len))
    }

    /// `k`, `v`, `log decay` and `beta` of a pending row of one head.
    pub(super) fn pending_delta(
        &self,
        slot: usize,
        layer: usize,
        head: usize,
        row: usize,
    ) -> Result<[Binding; 4], OpError> {
        let (state, at) = self.at(slot, layer)?;
        let (k, v) = (state.key_dim, state.value_dim);
        let start = ((at * state.heads + head) * state.max_pending + row) * (k + v + 2);
        let part = |offset, len| self.pending_delta.floats(start + offset, len);
        Ok([part(0, k), part(k, v), part(k + v, 1), part(k + v + 1, 1)])
    }

    /// The window of all channels.
    pub(super) fn window(&self, slot: usize, layer: usize) -> Result<Binding, OpError> {
        let (state, at) = self.at(slot, layer)?;
        Ok(self.window.floats(at * state.window_len(), state.window_len()))
    }

    /// The window of some channels.
    pub(super) fn window_part(&self, slot: usize, layer: usize, start: usize, len: usize) -> Result<Binding, OpError> {
        let (state, at) = self.at(slot, layer)?;
        let rows = state.kernel - 1;
        Ok(self.window.floats(at * state.window_len() + start * rows, len * rows))
    }

    /// Some channels of a pending row.
    pub(super) fn pending_window(
        &self,
        slot: usize,
        layer: usize,
        row: usize,
        start: usize,
        len: usize,
    ) -> Result<Binding, OpError> {
        let (state, at) = self.at(slot, layer)?;
        Ok(self.pending_window.floats((at * state.max_pending + row) * state.channels + start, len))
    }

    /// Rows that wait in a slot.
    pub(super) fn pending(&self, slot: usize) -> usize {
        lock(&self.pending).get(&slot).copied().unwrap_or(0)
    }

    /// Notes how many rows wait in a slot from now on.
    pub(super) fn set_pending(&self, slot: usize, rows: usize) {
        lock(&self.pending).insert(slot, rows);
    }

    /// Tokens that the last step sampled.
    pub(super) fn sampled(&self) -> usize {
        lock(&self.sampled).as_ref().map_or(0, |(_, rows)| *rows)
    }

    /// The token that the last step sampled in a logit row.
    pub(super) fn sampled_token(&self, row: usize) -> Option<Binding> {
        lock(&self.sampled).as_ref().map(|(buffer, _)| buffer.floats(row, 1))
    }

    /// Notes where a step leaves its tokens.
    pub(super) fn set_sampled(&self, buffer: &Arc<Buffer>, rows: usize) {
        *lock(&self.sampled) = Some((buffer.clone(), rows));
    }

    /// Everything of a slot but its pending rows: matrices and windows of all layers.
    fn slot(&self, slot: usize) -> Result<[Binding; 2], OpError> {
        let (state, at) = self.at(slot, 0)?;
        let of = |buffer: &Buffer, len: usize| buffer.floats(at * len, state.layers * len);
        Ok([of(&self.delta, state.delta_len()), of(&self.window, state.window_len())])
    }

    /// Commands that copy a page.
    pub(super) fn copy_page(&self, from: u32, to: u32) -> Result<Vec<Command>, OpError> {
        self.spec.check_page(from)?;
        self.spec.check_page(to)?;
        let kv = &self.spec.kv;
        let heads = (0..kv.layers).flat_map(|layer| (0..kv.heads).map(move |head| (layer, head)));
        let copies = heads.flat_map(|(layer, head)| {
            let [from, to] = [from, to].map(|page| self.page(layer, page, head));
            from.into_iter().zip(to).map(|(from, to)| Command::Copy { from, to })
        });
        Ok(copies.filter(|_| from != to).collect())
    }

    /// Commands that zero a slot.
    pub(super) fn clear(&self, slot: usize) -> Result<Vec<Command>, OpError> {
        let ranges = self.slot(slot)?;
        self.set_pending(slot, 0);
        Ok(ranges.into_iter().map(|range| Command::Fill { range, byte: 0 }).collect())
    }

    /// Commands that copy a slot.
    pub(super) fn copy(&self, from: usize, to: usize) -> Result<Vec<Command>, OpError> {
        let pairs = self.slot(from)?.into_iter().zip(self.slot(to)?);
        self.set_pending(to, 0);
        Ok(pairs.filter(|_| from != to).map(|(from, to)| Command::Copy { from, to }).collect())
    }
}
