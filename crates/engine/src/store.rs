//! Owner of the cache on the device: pages of keys and values, slots of recurrent state, and what earlier requests have
//! left in them.
//!
//! Every page is free, fresh (of one running sequence, without known tokens), or a node of the [`Tree`]; every slot is
//! free, of one running sequence, or that of a saved state in the tree. What no sequence holds is given up when room is
//! needed, so to a caller it is as good as free.
//!
//! A sequence is admitted with a promise: pages for its prompt and the beginning of its answer. Beyond it takes what is
//! there; when nothing is, another sequence has to give way and begin again later.

use crate::error::EngineError;
use crate::stats::Pool;
use crate::tree::{Found, Freed, NodeId, Place, Space, Tree};
use onebit_ops::{Backend, Cache, OpError, PAGE_ROWS};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What one running sequence holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    space: Space,
    /// KV pages in order; the first ones are those of `nodes`.
    pub(crate) pages: Vec<u32>,
    nodes: Vec<NodeId>,
    /// Tokens that the nodes stand for.
    recorded: usize,
    /// Pages that it may still take for certain.
    promised: usize,
    /// State slot, for models with recurrent state.
    slot: Option<usize>,
}

impl Holding {
    /// The slot that a step names; models without recurrent state do not look at it.
    pub(crate) fn slot(&self) -> usize {
        self.slot.unwrap_or(0)
    }
}

/// The beginning of a sequence: what it holds, and how much of its prompt is in it.
pub(crate) struct Claim {
    pub(crate) holding: Holding,
    pub(crate) tokens: usize,
    /// Tokens that an earlier prompt begins with too. A state there would have served.
    pub(crate) common: usize,
    pub(crate) diverged: Option<Divergence>,
}

/// How what is cached serves a prompt.
#[derive(Debug, Clone, Default)]
struct Reuse {
    tokens: usize,
    /// Nodes that are used as they are.
    shared: Vec<NodeId>,
    /// A node of whose page the first rows are used: of a copy, or of the page itself when it is `taken`.
    last: Option<NodeId>,
    taken: bool,
    state: Option<Place>,
}

/// Where a prompt parts from one that was much like it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Divergence {
    pub(crate) at: usize,
    pub(crate) cached: u32,
    pub(crate) prompt: u32,
}

/// Tokens of a prompt between states that are saved for nothing but the distance.
pub(crate) const STRIDE: usize = 2048;

/// A change in this many first tokens spoils nearly all of a prompt.
const EARLY: usize = 200;
/// Prompts that share fewer first tokens have nothing in common but their template.
const LEAST_COMMON: usize = 4;
/// Tokens that are compared to say whether prompts are much alike behind the place where they part.
const LOOK_AHEAD: usize = 64;

pub(crate) struct Store {
    backend: Arc<dyn Backend>,
    cache: Cache,
    tree: Tree,
    free_pages: BTreeSet<u32>,
    /// Empty from the start for models without recurrent state.
    free_slots: BTreeSet<usize>,
    /// Pages promised to running sequences and not yet taken.
    promised: usize,
}

fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_ROWS)
}

impl Store {
    pub(crate) fn new(backend: Arc<dyn Backend>, cache: Cache) -> Self {
        let spec = *cache.spec();
        Store {
            backend,
            cache,
            tree: Tree::default(),
            free_pages: (0..spec.kv.pages as u32).collect(),
            free_slots: (0..spec.state.map_or(0, |s| s.slots)).collect(),
            promised: 0,
        }
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    pub(crate) fn is_recurrent(&self) -> bool {
        self.cache.spec().state.is_some()
    }

    /// Pages that could be handed out now.
    fn available(&self) -> usize {
        self.free_pages.len() + self.tree.idle()
    }

    /// A slot can be had to save a state in.
    pub(crate) fn can_save(&self) -> bool {
        self.is_recurrent() && (!self.free_slots.is_empty() || self.tree.saved() > 0)
    }

    /// Tokens of a prompt that [`claim`](Store::claim) would find read already. At least one is left to read, for its
    /// logits.
    pub(crate) fn known(&self, space: Space, prompt: &[u32]) -> usize {
        let found = self.tree.find(space, &prompt[..prompt.len() - 1]);
        if self.is_recurrent() { found.state.map_or(0, |s| s.position) } else { found.common }
    }

    /// A holding for a prompt that is promised room for `longest` tokens, with as much of the prompt in it as is cached;
    /// `None` while there is no room.
    pub(crate) fn claim(&mut self, space: Space, prompt: &[u32], longest: usize) -> Result<Option<Claim>, OpError> {
        let found = self.tree.find(space, &prompt[..prompt.len() - 1]);
        let (common, diverged) = (found.common, self.divergence(space, &found, prompt));
        let mut reuse = self.reuse(found);
        let is_alone = self.promised == 0 && self.pages().running == 0;
        if !self.fits(&reuse, longest) {
            if self.fits(&Reuse { taken: true, ..reuse.clone() }, longest) {
                reuse.taken = true;
            } else if is_alone {
                // Nobody will make room: less is used, and the rest can be given up.
                reuse = self.whole_pages(reuse);
            }
        }
        if !self.fits(&reuse, longest) {
            return Ok(None);
        }
        let Reuse { tokens, shared, last, taken, state } = reuse;
        let wanted = pages_for(longest).saturating_sub(shared.len());
        self.promised += wanted;
        // Nothing of this may be given up while room is made for the rest.
        self.tree.hold(&shared);
        let pages = shared.iter().map(|node| self.tree.page(*node)).collect();
        let recorded = shared.len() * PAGE_ROWS;
        let mut holding = Holding { space, pages, nodes: shared, recorded, promised: wanted, slot: None };
        match self.begin(&mut holding, &prompt[..tokens], last.map(|node| (node, taken)), state) {
            Ok(()) => Ok(Some(Claim { holding, tokens, common, diverged })),
            Err(error) => {
                self.release(holding, false);
                Err(error)
            }
        }
    }

    /// What of that which was found can serve.
    fn reuse(&self, found: Found) -> Reuse {
        let (tokens, state, mut shared, last) = match (self.is_recurrent(), found.state) {
            (false, _) => (found.common, None, found.path, found.tail.map(|(node, _)| node)),
            (true, None) => (0, None, Vec::new(), None),
            (true, Some(place)) => {
                let path = self.tree.ancestors(place.node);
                (place.position, Some(place), path, Some(place.node))
            }
        };
        let is_whole = tokens == (shared.len() + 1) * PAGE_ROWS;
        shared.extend(last.filter(|_| is_whole));
        Reuse { tokens, shared, last: last.filter(|_| !is_whole), taken: false, state }
    }

    /// The part of it that takes no page of its own.
    fn whole_pages(&self, reuse: Reuse) -> Reuse {
        match reuse.state {
            Some(_) if reuse.last.is_some() => Reuse::default(),
            _ => Reuse { tokens: reuse.shared.len() * PAGE_ROWS, last: None, ..reuse },
        }
    }

    /// There is room for the rest of `longest` tokens.
    fn fits(&self, reuse: &Reuse, longest: usize) -> bool {
        if reuse.taken && !reuse.last.is_some_and(|node| self.tree.is_idle_leaf(node)) {
            return false;
        }
        // What is held from now on, and was not before, cannot be given up any more.
        let held = reuse.shared.iter().chain(reuse.last.iter().filter(|_| !reuse.taken));
        let pinned = held.filter(|node| self.tree.is_idle(**node)).count();
        self.available() - pinned >= self.promised + pages_for(longest).saturating_sub(reuse.shared.len())
    }

    /// Takes over what cannot be shared: rows of a page, and the state.
    fn begin(
        &mut self,
        holding: &mut Holding,
        prompt: &[u32],
        last: Option<(NodeId, bool)>,
        state: Option<Place>,
    ) -> Result<(), OpError> {
        if self.is_recurrent() {
            state.iter().for_each(|place| self.tree.touch(place));
            // The state to begin with is now the last to be given up; when no other is left, its slot is taken as it is.
            let slot = self.take_slot().ok_or_else(|| OpError::Inputs("every state slot is taken".to_owned()))?;
            holding.slot = Some(slot);
            match state {
                Some(place) if place.slot == slot => {}
                Some(place) => self.backend.copy_slot(&self.cache, place.slot, slot)?,
                None => self.backend.clear_slot(&self.cache, slot)?,
            }
        }
        let Some((node, taken)) = last else { return Ok(()) };
        if taken {
            let mut freed = Freed::default();
            self.tree.prune(&[node], &mut freed);
            holding.pages.append(&mut freed.pages);
            holding.promised -= 1;
            self.promised -= 1;
            self.take_back(freed);
        } else {
            self.tree.hold(&[node]);
            let grown = self.grow(holding, prompt.len());
            self.tree.let_go(&[node]);
            grown?;
            let page = holding.pages[holding.pages.len() - 1];
            self.backend.copy_page(&self.cache, self.tree.page(node), page)?;
        }
        self.record(holding, prompt);
        Ok(())
    }

    /// Where a prompt parts early from one that goes on much like it.
    fn divergence(&self, space: Space, found: &Found, prompt: &[u32]) -> Option<Divergence> {
        let at = found.common;
        if !(LEAST_COMMON..EARLY).contains(&at) || at + LOOK_AHEAD > prompt.len() {
            return None;
        }
        let cached = self.tree.beyond(space, found, LOOK_AHEAD);
        let theirs: BTreeSet<u32> = cached.iter().copied().collect();
        let ours = &prompt[at..at + LOOK_AHEAD];
        let alike = ours.iter().filter(|t| theirs.contains(t)).count();
        let differs = cached.first().is_some_and(|t| *t != prompt[at]);
        (differs && 2 * alike >= LOOK_AHEAD).then(|| Divergence { at, cached: cached[0], prompt: prompt[at] })
    }

    /// Gives a running sequence the pages for `tokens` tokens. False when there is no room.
    pub(crate) fn grow(&mut self, holding: &mut Holding, tokens: usize) -> Result<bool, OpError> {
        while holding.pages.len() < pages_for(tokens) {
            let is_promised = holding.promised > 0;
            if !is_promised && self.available() <= self.promised {
                return Ok(false);
            }
            let mut freed = Freed::default();
            if self.free_pages.is_empty() && !self.tree.evict(&mut freed) {
                return Err(OpError::Inputs(format!("no page for token {tokens}, though one was promised")));
            }
            self.take_back(freed);
            let Some(page) = self.free_pages.pop_first() else { return Ok(false) };
            holding.pages.push(page);
            holding.promised -= usize::from(is_promised);
            self.promised -= usize::from(is_promised);
        }
        Ok(true)
    }

    /// Notes the tokens of a sequence that are in its pages, so that others may begin with them.
    pub(crate) fn record(&mut self, holding: &mut Holding, tokens: &[u32]) {
        let mut freed = Freed::default();
        while holding.recorded < tokens.len() {
            let at = holding.recorded;
            if at.is_multiple_of(PAGE_ROWS) {
                let page = holding.pages[holding.nodes.len()];
                holding.nodes.push(self.tree.add(holding.space, holding.nodes.last().copied(), page));
            }
            let last = holding.nodes.len() - 1;
            let end = tokens.len().min((last + 1) * PAGE_ROWS);
            self.tree.extend(holding.nodes[last], &tokens[at..end]);
            holding.recorded = end;
            if end.is_multiple_of(PAGE_ROWS) {
                holding.nodes[last] = self.tree.settle(holding.nodes[last], &mut freed);
                holding.pages[last] = self.tree.page(holding.nodes[last]);
            }
        }
        self.take_back(freed);
    }

    /// Copies the state of a sequence as it is after the steps started so far. `None` when there is no room for it.
    pub(crate) fn copy_state(&mut self, holding: &Holding) -> Result<Option<usize>, OpError> {
        let (Some(own), true) = (holding.slot, self.can_save()) else { return Ok(None) };
        let Some(slot) = self.take_slot() else { return Ok(None) };
        if let Err(error) = self.backend.copy_slot(&self.cache, own, slot) {
            self.free_slots.insert(slot);
            return Err(error);
        }
        Ok(Some(slot))
    }

    /// Puts a copied state where it belongs: behind `position` tokens, which have been recorded. States that are saved
    /// every [`STRIDE`] tokens are thinned out with their distance.
    pub(crate) fn save(&mut self, holding: &Holding, position: usize, slot: usize, periodic: bool) {
        let place = |position: usize| {
            let offset = (position - 1) % PAGE_ROWS + 1;
            holding.nodes.get((position - 1) / PAGE_ROWS).map(|node| (*node, offset))
        };
        let Some((node, offset)) = place(position).filter(|_| position <= holding.recorded) else {
            self.free_slots.insert(slot);
            return;
        };
        self.free_slots.extend(self.tree.save(node, offset, slot, periodic));
        let newest = position / STRIDE;
        for n in (1..newest).filter(|_| periodic).filter(|n| newest - n > 2 << n.trailing_zeros()) {
            let thinned = place(n * STRIDE).and_then(|(node, offset)| self.tree.thin(node, offset));
            self.free_slots.extend(thinned);
        }
    }

    /// A copied state is not wanted after all.
    pub(crate) fn drop_state(&mut self, slot: usize) {
        self.free_slots.insert(slot);
    }

    /// Ends a running sequence. What is recorded of it stays for later prompts; so does its state when `keep_state`,
    /// which is that behind the last token recorded.
    pub(crate) fn release(&mut self, mut holding: Holding, keep_state: bool) {
        self.promised -= holding.promised;
        self.free_pages.extend(holding.pages.drain(holding.nodes.len()..));
        let mut freed = Freed::default();
        let mut slot = holding.slot;
        if let (Some(own), Some(last), true) = (slot, holding.nodes.last(), keep_state) {
            slot = self.tree.save(*last, (holding.recorded - 1) % PAGE_ROWS + 1, own, false);
        }
        self.free_slots.extend(slot);
        self.tree.let_go(&holding.nodes);
        if let Some(last) = holding.nodes.last() {
            self.tree.settle(*last, &mut freed);
        }
        self.take_back(freed);
    }

    /// Ends a running sequence whose numbers are not to be trusted: nothing of it stays that nobody else uses.
    pub(crate) fn discard(&mut self, mut holding: Holding) {
        self.promised -= holding.promised;
        self.free_pages.extend(holding.pages.drain(holding.nodes.len()..));
        self.free_slots.extend(holding.slot);
        self.tree.let_go(&holding.nodes);
        let mut freed = Freed::default();
        self.tree.prune(&holding.nodes, &mut freed);
        self.take_back(freed);
    }

    /// Forgets a space that nobody uses any more.
    pub(crate) fn drop_space(&mut self, space: Space) {
        let mut freed = Freed::default();
        self.tree.drop_space(space, &mut freed);
        self.take_back(freed);
    }

    /// Forgets everything that no running sequence holds.
    pub(crate) fn forget(&mut self) {
        let mut freed = Freed::default();
        while self.tree.evict(&mut freed) {}
        freed.slots.extend(std::iter::from_fn(|| self.tree.evict_state()));
        self.take_back(freed);
    }

    fn take_back(&mut self, freed: Freed) {
        self.free_pages.extend(freed.pages);
        self.free_slots.extend(freed.slots);
    }

    fn take_slot(&mut self) -> Option<usize> {
        self.free_slots.pop_first().or_else(|| self.tree.evict_state())
    }

    /// Pages, by who has them.
    pub(crate) fn pages(&self) -> Pool {
        let (total, cached) = (self.cache.spec().kv.pages, self.tree.idle());
        Pool { total, running: total - self.free_pages.len() - cached, cached }
    }

    /// State slots, by who has them.
    pub(crate) fn slots(&self) -> Pool {
        let (total, cached) = (self.cache.spec().state.map_or(0, |s| s.slots), self.tree.saved());
        Pool { total, running: total - self.free_slots.len() - cached, cached }
    }

    /// With nothing running, every page and slot must be free or cached, each once.
    pub(crate) fn check_idle(&self) -> Result<(), EngineError> {
        let fault = |text: String| Err(EngineError::Integrity(text));
        let (pages, slots) = (self.pages(), self.slots());
        if self.promised != 0 || pages.running != 0 || slots.running != 0 {
            let (pages, slots) = (pages.running, slots.running);
            return fault(format!("{} pages promised, {pages} pages and {slots} slots held while idle", self.promised));
        }
        let (held, states) = self.tree.held();
        let different: BTreeSet<u32> = held.into_iter().chain(self.free_pages.iter().copied()).collect();
        if different.len() != pages.total {
            return fault(format!("{} different pages found, {} made", different.len(), pages.total));
        }
        let different: BTreeSet<usize> = states.into_iter().chain(self.free_slots.iter().copied()).collect();
        if different.len() != slots.total {
            return fault(format!("{} different slots found, {} made", different.len(), slots.total));
        }
        Ok(())
    }
}
