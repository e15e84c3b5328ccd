//! What sequences hold on the device: pages of keys and values, state slots, and what ended sequences leave for later
//! prompts.
//!
//! Every page and slot has exactly one owner: the free list, a running sequence's [`Holding`], or a kept sequence.
//! A sequence is admitted only when the pages of its longest possible answer are free or can be freed, so that a running
//! sequence never has to give way.

use crate::error::EngineError;
use onebit_ops::{Backend, Cache, OpError, PAGE_ROWS};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What one sequence holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Tokens that the pages and the slot stood for when the sequence was admitted.
    pub(crate) tokens: usize,
    /// KV pages in order.
    pub(crate) pages: Vec<u32>,
    /// Pages that it may still take.
    reserved: usize,
    /// State slot; 0 for models without recurrent state.
    pub(crate) slot: usize,
    /// States saved on the way, ascending.
    checkpoints: Vec<Checkpoint>,
}

/// The recurrent state after `position` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Checkpoint {
    position: usize,
    slot: usize,
}

/// An ended sequence whose cache is still there.
struct Kept {
    /// The tokens in the cache.
    tokens: Vec<u32>,
    holding: Holding,
}

/// How a kept sequence serves a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reuse {
    kept: usize,
    tokens: usize,
    /// The saved state to go back to, unless the sequence goes on where it ended.
    from_slot: Option<usize>,
}

/// Owner of the cache.
pub(crate) struct Store {
    backend: Arc<dyn Backend>,
    cache: Cache,
    free_pages: BTreeSet<u32>,
    /// Empty from the start for models without recurrent state.
    free_slots: BTreeSet<usize>,
    /// Pages promised to running sequences and not yet taken.
    promised: usize,
    /// States that running sequences have saved, and the most that they may.
    saved: usize,
    max_saved: usize,
    /// Oldest first.
    kept: Vec<Kept>,
}

fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_ROWS)
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Store {
    pub(crate) fn new(backend: Arc<dyn Backend>, cache: Cache, max_saved: usize) -> Self {
        let spec = *cache.spec();
        Store {
            backend,
            cache,
            free_pages: (0..spec.kv.pages as u32).collect(),
            free_slots: (0..spec.state.map_or(0, |s| s.slots)).collect(),
            promised: 0,
            saved: 0,
            max_saved,
            kept: Vec::new(),
        }
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    fn is_recurrent(&self) -> bool {
        self.cache.spec().state.is_some()
    }

    /// A holding for a prompt that may grow to `longest` tokens, with as much of the prompt in it as a kept sequence
    /// offers; `None` while there is no room.
    pub(crate) fn claim(&mut self, prompt: &[u32], longest: usize) -> Result<Option<Holding>, OpError> {
        let available = self.free_pages.len() + self.kept.iter().map(|k| k.holding.pages.len()).sum::<usize>();
        if available < self.promised + pages_for(longest) {
            return Ok(None);
        }
        let mut holding = match self.best_reuse(prompt) {
            Some(reuse) => self.take_kept(reuse)?,
            None => self.fresh_holding()?,
        };
        holding.reserved = pages_for(longest) - holding.pages.len();
        self.promised += holding.reserved;
        self.saved += holding.checkpoints.len();
        while self.saved > self.max_saved && !holding.checkpoints.is_empty() {
            self.drop_oldest_checkpoint(&mut holding);
        }
        Ok(Some(holding))
    }

    /// The longest usable beginning of a prompt. At least one token is left to read, for its logits.
    fn best_reuse(&self, prompt: &[u32]) -> Option<Reuse> {
        let candidates = self.kept.iter().enumerate().filter_map(|(kept, entry)| {
            let common = common_prefix(&entry.tokens, prompt).min(prompt.len() - 1);
            if !self.is_recurrent() || common == entry.tokens.len() {
                return Some(Reuse { kept, tokens: common, from_slot: None });
            }
            // Recurrent state has no positions to cut at: only saved states count.
            let saved = entry.holding.checkpoints.iter().rev().find(|c| c.position <= common)?;
            Some(Reuse { kept, tokens: saved.position, from_slot: Some(saved.slot) })
        });
        candidates.filter(|r| r.tokens > 0).max_by_key(|r| r.tokens)
    }

    /// Hands a kept sequence over, cut to the tokens that are used.
    fn take_kept(&mut self, reuse: Reuse) -> Result<Holding, OpError> {
        let mut holding = self.kept.remove(reuse.kept).holding;
        let surplus = holding.pages.split_off(pages_for(reuse.tokens).min(holding.pages.len()));
        self.free_pages.extend(surplus);
        let later = holding.checkpoints.iter().position(|c| c.position > reuse.tokens);
        let later = holding.checkpoints.split_off(later.unwrap_or(holding.checkpoints.len()));
        self.free_slots.extend(later.iter().map(|c| c.slot));
        if let Some(from) = reuse.from_slot
            && let Err(error) = self.backend.copy_slot(&self.cache, from, holding.slot)
        {
            self.free(holding);
            return Err(error);
        }
        holding.tokens = reuse.tokens;
        Ok(holding)
    }

    /// No tokens, and a slot whose state is zero.
    fn fresh_holding(&mut self) -> Result<Holding, OpError> {
        let mut holding = Holding::default();
        if self.is_recurrent() {
            holding.slot = self.take_slot()?;
            if let Err(error) = self.backend.clear_slot(&self.cache, holding.slot) {
                self.free_slots.insert(holding.slot);
                return Err(error);
            }
        }
        Ok(holding)
    }

    /// Gives a running sequence the pages for `tokens` tokens, out of what it was promised.
    pub(crate) fn grow(&mut self, holding: &mut Holding, tokens: usize) -> Result<(), OpError> {
        while holding.pages.len() < pages_for(tokens) {
            let lost = || OpError::Inputs(format!("no page for token {tokens}, though one was promised"));
            holding.reserved = holding.reserved.checked_sub(1).ok_or_else(lost)?;
            self.promised -= 1;
            while self.free_pages.is_empty() && self.evict_oldest() {}
            holding.pages.push(self.free_pages.pop_first().ok_or_else(lost)?);
        }
        Ok(())
    }

    /// Saves the state of a running sequence after `position` tokens. When all saved states are taken, its own oldest
    /// goes; when it has none, nothing is saved and a later prompt reads more.
    pub(crate) fn checkpoint(&mut self, holding: &mut Holding, position: usize) -> Result<(), OpError> {
        if !self.is_recurrent() || self.max_saved == 0 {
            return Ok(());
        }
        if self.saved == self.max_saved {
            if holding.checkpoints.is_empty() {
                return Ok(());
            }
            self.drop_oldest_checkpoint(holding);
        }
        let slot = self.take_slot()?;
        if let Err(error) = self.backend.copy_slot(&self.cache, holding.slot, slot) {
            self.free_slots.insert(slot);
            return Err(error);
        }
        holding.checkpoints.push(Checkpoint { position, slot });
        self.saved += 1;
        Ok(())
    }

    fn drop_oldest_checkpoint(&mut self, holding: &mut Holding) {
        let oldest = holding.checkpoints.remove(0);
        self.free_slots.insert(oldest.slot);
        self.saved -= 1;
    }

    /// Ends a running sequence and forgets it.
    pub(crate) fn release(&mut self, holding: Holding) {
        self.settle(&holding);
        self.free(holding);
    }

    /// Ends a running sequence and keeps its cache, which holds exactly `tokens`.
    pub(crate) fn keep(&mut self, holding: Holding, tokens: Vec<u32>) {
        self.settle(&holding);
        let holding = Holding { reserved: 0, ..holding };
        self.kept.push(Kept { tokens, holding });
    }

    /// Forgets every kept sequence.
    pub(crate) fn forget(&mut self) {
        while self.evict_oldest() {}
    }

    fn settle(&mut self, holding: &Holding) {
        self.promised -= holding.reserved;
        self.saved -= holding.checkpoints.len();
    }

    fn free(&mut self, holding: Holding) {
        self.free_pages.extend(holding.pages);
        if self.is_recurrent() {
            self.free_slots.insert(holding.slot);
            self.free_slots.extend(holding.checkpoints.iter().map(|c| c.slot));
        }
    }

    fn evict_oldest(&mut self) -> bool {
        if self.kept.is_empty() {
            return false;
        }
        let oldest = self.kept.remove(0);
        self.free(oldest.holding);
        true
    }

    fn take_slot(&mut self) -> Result<usize, OpError> {
        while self.free_slots.is_empty() && self.evict_oldest() {}
        self.free_slots.pop_first().ok_or_else(|| OpError::Inputs("every state slot is taken".to_owned()))
    }

    /// Pages and slots that nobody uses, kept sequences counted as unused.
    pub(crate) fn unused(&self) -> (usize, usize) {
        let pages: usize = self.kept.iter().map(|k| k.holding.pages.len()).sum();
        let slots = self.kept.iter().map(|k| 1 + k.holding.checkpoints.len()).sum::<usize>();
        (self.free_pages.len() + pages, self.free_slots.len() + if self.is_recurrent() { slots } else { 0 })
    }

    /// With nothing running, every page and slot must be free or kept, each once.
    pub(crate) fn check_idle(&self) -> Result<(), EngineError> {
        let fault = |text: String| Err(EngineError::Integrity(text));
        if self.promised != 0 || self.saved != 0 {
            return fault(format!("{} pages promised and {} states saved while idle", self.promised, self.saved));
        }
        let spec = self.cache.spec();
        let kept = || self.kept.iter().map(|k| &k.holding);
        let pages: BTreeSet<u32> =
            self.free_pages.iter().copied().chain(kept().flat_map(|h| h.pages.clone())).collect();
        let (unused_pages, unused_slots) = self.unused();
        if pages.len() != spec.kv.pages || unused_pages != spec.kv.pages {
            return fault(format!("{} different pages of {unused_pages} found, {} made", pages.len(), spec.kv.pages));
        }
        if let Some(state) = &spec.state {
            let used = kept().flat_map(|h| h.checkpoints.iter().map(|c| c.slot).chain([h.slot]));
            let slots: BTreeSet<usize> = self.free_slots.iter().copied().chain(used).collect();
            if slots.len() != state.slots || unused_slots != state.slots {
                return fault(format!("{} different slots of {unused_slots} found, {} made", slots.len(), state.slots));
            }
        }
        Ok(())
    }
}
