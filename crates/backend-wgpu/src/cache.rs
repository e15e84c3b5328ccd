//! Pages and slots on the device, and what the host knows of them.
//!
//! ```text
//! pages      for each layer [page], a page as `shaders/README.md` draws it
//! deltas     for each layer [slot](heads, key_dim, value_dim)
//! windows    for each layer [slot](kernel - 1, channels), oldest first
//! guesses    for each layer [area]: rows of convolution inputs, and rows of keys, values and gates
//! sampled    token and log probability of each logit row of the step before
//! ```
//!
//! Areas hold guesses; there are none until somebody speculates. Which slot has which is in the ledger.

use crate::adapter::Device;
use crate::memory::Buffer;
use onebit_ops::{CacheSpec, KvSpec, Ledger, OpError, PAGE_ROWS, SlotState, StateSpec};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most logit rows whose tokens can be chosen on the device in one step.
pub(crate) const MOST_SAMPLED: usize = 16_384;

const FLOAT: u64 = size_of::<f32>() as u64;

/// The memory behind a cache handle.
pub(crate) struct Memory {
    device: Arc<Device>,
    spec: CacheSpec,
    pages: Vec<Buffer>,
    states: Vec<State>,
    sampled: Buffer,
    /// What a slot or page passes through when it is copied: a buffer may not be copied to itself.
    between: Mutex<Option<Buffer>>,
    held: Mutex<Held>,
}

/// One delta-rule layer.
struct State {
    deltas: Buffer,
    windows: Buffer,
}

/// What changes as steps are submitted.
pub(crate) struct Held {
    pub ledger: Ledger,
    pub areas: Areas,
}

/// Guesses of each layer. Plans that were made for other areas than these are made anew.
#[derive(Clone)]
pub(crate) struct Areas {
    /// How often they have moved.
    pub version: u64,
    /// Convolution inputs.
    pub inputs: Vec<Buffer>,
    /// Keys, values and gates.
    pub rows: Vec<Buffer>,
}

/// Words of one head's keys or values in a page. Two scales of eight-bit blocks share a word, so an odd number of blocks has half
/// a word to spare.
pub(crate) fn head_words(kv: &KvSpec) -> usize {
    PAGE_ROWS * kv.format.head_bytes(kv.dim).div_ceil(4)
}

/// Words of one page of one layer.
pub(crate) fn page_words(kv: &KvSpec) -> usize {
    2 * kv.heads * head_words(kv)
}

/// Floats of a row of guesses.
pub(crate) fn guess_row(state: &StateSpec) -> usize {
    state.heads * (state.key_dim + state.value_dim + 2)
}

impl Memory {
    /// Zeroed memory.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`].
    pub(crate) fn new(device: &Arc<Device>, spec: CacheSpec) -> Result<Memory, OpError> {
        let kv = spec.kv;
        let page_bytes = (page_words(&kv) * kv.pages) as u64 * 4;
        let pages = (0..kv.layers).map(|_| Buffer::new(device, page_bytes, "the key/value pages"));
        let pages = pages.collect::<Result<_, _>>()?;
        let mut states = Vec::new();
        for _ in 0..spec.state.map_or(0, |s| s.layers) {
            let of = |floats: fn(&StateSpec) -> usize| {
                let floats = spec.state.map_or(0, |s| floats(&s) * s.slots) as u64;
                Buffer::new(device, floats * FLOAT, "the state slots")
            };
            states.push(State { deltas: of(StateSpec::delta_len)?, windows: of(StateSpec::window_len)? });
        }
        let (layers, slots) = spec.state.map_or((0, 0), |s| (s.layers, s.slots));
        let none = Buffer::new(device, 16, "the pending rows")?;
        Ok(Memory {
            device: device.clone(),
            spec,
            pages,
            states,
            sampled: Buffer::new(device, (MOST_SAMPLED * 8) as u64, "the sampled tokens")?,
            between: Mutex::new(None),
            held: Mutex::new(Held {
                ledger: Ledger::new(slots, layers),
                areas: Areas { version: 0, inputs: vec![none.clone(); layers], rows: vec![none; layers] },
            }),
        })
    }

    pub(crate) fn is_on(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    pub(crate) fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    /// Pages of a layer.
    pub(crate) fn pages(&self, layer: usize) -> &Buffer {
        &self.pages[layer]
    }

    /// Matrices of a layer.
    pub(crate) fn deltas(&self, layer: usize) -> &Buffer {
        &self.states[layer].deltas
    }

    /// Windows of a layer.
    pub(crate) fn windows(&self, layer: usize) -> &Buffer {
        &self.states[layer].windows
    }

    /// Tokens that the step before chose.
    pub(crate) fn sampled(&self) -> &Buffer {
        &self.sampled
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
        let (before, count) = (held.ledger.areas() as u64, count.max(2 * held.ledger.areas()));
        let state = self.state()?;
        let mut encoder = self.encoder();
        let mut grown = |old: &Buffer, floats: usize| -> Result<Buffer, OpError> {
            let area = floats as u64 * FLOAT;
            let new = Buffer::new(&self.device, area * count as u64, "the pending rows")?;
            if before > 0 {
                encoder.copy_buffer_to_buffer(old.raw(), 0, new.raw(), 0, area * before);
            }
            Ok(new)
        };
        let inputs = held.areas.inputs.iter().map(|old| grown(old, state.channels * state.max_pending));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let rows = held.areas.rows.iter().map(|old| grown(old, guess_row(&state) * state.max_pending));
        let rows = rows.collect::<Result<_, _>>()?;
        self.device.queue.submit([encoder.finish()]);
        held.areas = Areas { version: held.areas.version + 1, inputs, rows };
        held.ledger.grow(count);
        Ok(())
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    pub(crate) fn clear_slot(&self, slot: usize) -> Result<(), OpError> {
        let state = self.check_slot(slot)?;
        let mut held = self.hold();
        let mut encoder = self.encoder();
        for layer in &self.states {
            for (buffer, floats) in [(&layer.deltas, state.delta_len()), (&layer.windows, state.window_len())] {
                let bytes = floats as u64 * FLOAT;
                if bytes > 0 {
                    encoder.clear_buffer(buffer.raw(), slot as u64 * bytes, Some(bytes));
                }
            }
        }
        self.device.queue.submit([encoder.finish()]);
        held.ledger.forget(slot);
        self.device.check()
    }

    /// Copies a stretch of each buffer to another place of it.
    fn copy_within(&self, stretches: &[(&Buffer, u64, u64, u64)]) -> Result<(), OpError> {
        let stretches = || stretches.iter().filter(|(_, from, to, bytes)| from != to && *bytes > 0);
        let most = stretches().map(|s| s.3).max().unwrap_or(0);
        let mut between = self.between.lock().unwrap_or_else(PoisonError::into_inner);
        let between = match &*between {
            Some(buffer) if buffer.size() >= most => buffer.clone(),
            _ => between.insert(Buffer::new(&self.device, most, "copying memory")?).clone(),
        };
        let mut encoder = self.encoder();
        for (buffer, from, to, bytes) in stretches() {
            encoder.copy_buffer_to_buffer(buffer.raw(), *from, between.raw(), 0, *bytes);
            encoder.copy_buffer_to_buffer(between.raw(), 0, buffer.raw(), *to, *bytes);
        }
        self.device.queue.submit([encoder.finish()]);
        self.device.check()
    }

    pub(crate) fn copy_slot(&self, from: usize, to: usize) -> Result<(), OpError> {
        let state = self.check_slot(from)?;
        self.check_slot(to)?;
        let mut held = self.hold();
        let mut stretches = Vec::new();
        for layer in &self.states {
            for (buffer, floats) in [(&layer.deltas, state.delta_len()), (&layer.windows, state.window_len())] {
                let bytes = floats as u64 * FLOAT;
                stretches.push((buffer, from as u64 * bytes, to as u64 * bytes, bytes));
            }
        }
        self.copy_within(&stretches)?;
        held.ledger.forget(to);
        Ok(())
    }

    pub(crate) fn copy_page(&self, from: u32, to: u32) -> Result<(), OpError> {
        self.spec.check_page(from)?;
        self.spec.check_page(to)?;
        let bytes = page_words(&self.spec.kv) as u64 * 4;
        let stretch = |buffer| (buffer, u64::from(from) * bytes, u64::from(to) * bytes, bytes);
        let _held = self.hold();
        self.copy_within(&self.pages.iter().map(stretch).collect::<Vec<_>>())
    }

    pub(crate) fn read_slot(&self, slot: usize, layer: usize) -> Result<SlotState, OpError> {
        let state = self.check_slot(slot)?;
        if layer >= state.layers {
            return Err(OpError::Inputs(format!("state layer {layer} of {}", state.layers)));
        }
        let read = |buffer: &Buffer, floats: usize| buffer.read_floats((slot * floats) as u64 * FLOAT, floats);
        let of = &self.states[layer];
        Ok(SlotState { delta: read(&of.deltas, state.delta_len())?, window: read(&of.windows, state.window_len())? })
    }
}
