//! What is cached, by tokens: a tree whose nodes are pages of keys and values, and the recurrent states saved along it.
//!
//! A node holds up to [`PAGE_ROWS`] tokens and follows its parent's; only full nodes have children. A running sequence
//! writes into its last node, which grows with it. Others may use a full node as it is, and of any node a copy of its
//! first rows. So children of one node may begin alike; a node that says no more than a sibling is folded into it as soon
//! as nobody writes there.
//!
//! This is bookkeeping only: pages and slots are numbers here.

use onebit_ops::PAGE_ROWS;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) type NodeId = usize;

/// Trees of their own, for requests that share with nobody else. 0 is the common one.
pub(crate) type Space = u64;

struct Node {
    space: Space,
    parent: Option<NodeId>,
    children: Vec<NodeId>,
    tokens: Vec<u32>,
    page: u32,
    /// Sequences that hold the page.
    users: usize,
    last_used: u64,
    /// By the number of this node's tokens that they stand behind.
    states: BTreeMap<usize, State>,
}

/// A saved state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    slot: usize,
    last_used: u64,
    /// A prompt has begun with it. Of states that nobody came back to, a crowd of requests saves many.
    proven: bool,
    /// It was saved for nothing but the distance from the one before.
    periodic: bool,
}

/// A state's place in the order in which they are given up, and in the tree.
type Rank = (bool, u64, NodeId, usize);

impl State {
    fn rank(&self, node: NodeId, offset: usize) -> Rank {
        (self.proven, self.last_used, node, offset)
    }
}

/// What the tree has of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Found {
    /// Tokens that it begins with, at most.
    pub(crate) common: usize,
    /// Nodes whose tokens are all among them.
    pub(crate) path: Vec<NodeId>,
    /// The node where they end, and how many of its tokens are among them.
    pub(crate) tail: Option<(NodeId, usize)>,
    /// The last state on the way.
    pub(crate) state: Option<Place>,
}

/// Where a state lies in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Tokens from the beginning.
    pub(crate) position: usize,
    pub(crate) node: NodeId,
    pub(crate) slot: usize,
}

/// Pages and slots that nobody needs any more.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Freed {
    pub(crate) pages: Vec<u32>,
    pub(crate) slots: Vec<usize>,
}

#[derive(Default)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    unused: Vec<NodeId>,
    roots: BTreeMap<Space, Vec<NodeId>>,
    clock: u64,
    /// Nodes that no sequence holds.
    idle: usize,
    /// Those of them without children, by their last use.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Every state: unproven ones first, each kind by its last use. At most half of them count as proven, so that new ones
    /// have their chance.
    states: BTreeSet<Rank>,
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Tree {
    /// Pages that no sequence holds.
    pub(crate) fn idle(&self) -> usize {
        self.idle
    }

    /// All pages, and all slots of saved states.
    pub(crate) fn held(&self) -> (Vec<u32>, Vec<usize>) {
        let nodes = || self.nodes.iter().filter(|n| !n.tokens.is_empty());
        (nodes().map(|n| n.page).collect(), nodes().flat_map(|n| n.states.values().map(|s| s.slot)).collect())
    }

    /// States that are saved.
    pub(crate) fn saved(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn page(&self, node: NodeId) -> u32 {
        self.nodes[node].page
    }

    /// No sequence holds it.
    pub(crate) fn is_idle(&self, node: NodeId) -> bool {
        self.nodes[node].users == 0
    }

    /// No sequence holds it, and nothing goes on from it.
    pub(crate) fn is_idle_leaf(&self, node: NodeId) -> bool {
        self.is_idle(node) && self.nodes[node].children.is_empty()
    }

    fn siblings(&self, space: Space, parent: Option<NodeId>) -> &[NodeId] {
        match parent {
            Some(parent) => &self.nodes[parent].children,
            None => self.roots.get(&space).map_or(&[], Vec::as_slice),
        }
    }

    fn siblings_mut(&mut self, space: Space, parent: Option<NodeId>) -> &mut Vec<NodeId> {
        match parent {
            Some(parent) => &mut self.nodes[parent].children,
            None => self.roots.entry(space).or_default(),
        }
    }

    /// Changes a node and keeps the books of idle ones.
    fn update(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        let node = &mut self.nodes[id];
        self.leaves.remove(&(node.last_used, id));
        let was = usize::from(node.users == 0);
        change(node);
        let is = usize::from(node.users == 0);
        self.idle = self.idle + is - was;
        if is == 1 && node.children.is_empty() {
            self.leaves.insert((node.last_used, id));
        }
    }

    /// What is there of `tokens`.
    pub(crate) fn find(&self, space: Space, tokens: &[u32]) -> Found {
        let mut found = Found::default();
        loop {
            let rest = &tokens[found.common..];
            let mut best: Option<(usize, NodeId)> = None;
            for id in self.siblings(space, found.path.last().copied()) {
                let node = &self.nodes[*id];
                let shared = common_prefix(&node.tokens, rest);
                if shared > best.map_or(0, |(shared, _)| shared) {
                    best = Some((shared, *id));
                }
                if let Some((offset, state)) = node.states.range(..=shared).next_back() {
                    let position = found.common + offset;
                    if found.state.is_none_or(|s| s.position < position) {
                        found.state = Some(Place { position, node: *id, slot: state.slot });
                    }
                }
            }
            let Some((shared, id)) = best else { return found };
            found.common += shared;
            if shared < PAGE_ROWS {
                found.tail = Some((id, shared));
                return found;
            }
            found.path.push(id);
        }
    }

    /// The nodes before this one, from the first.
    pub(crate) fn ancestors(&self, node: NodeId) -> Vec<NodeId> {
        let mut path: Vec<NodeId> = std::iter::successors(self.nodes[node].parent, |p| self.nodes[*p].parent).collect();
        path.reverse();
        path
    }

    /// Cached tokens that go on from where `found` ends, by the path used last; at most `count`.
    pub(crate) fn beyond(&self, space: Space, found: &Found, count: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        let (mut next, mut parent) = match found.tail {
            Some((node, shared)) => (Some((node, shared)), None),
            None => (None, found.path.last().copied()),
        };
        while tokens.len() < count {
            let newest = || self.siblings(space, parent).iter().copied().max_by_key(|id| self.nodes[*id].last_used);
            let Some((node, from)) = next.take().or_else(|| newest().map(|id| (id, 0))) else { break };
            tokens.extend(&self.nodes[node].tokens[from..]);
            parent = Some(node);
        }
        tokens.truncate(count);
        tokens
    }

    /// A sequence holds these pages.
    pub(crate) fn hold(&mut self, nodes: &[NodeId]) {
        self.clock += 1;
        let clock = self.clock;
        for id in nodes {
            self.update(*id, |n| (n.users, n.last_used) = (n.users + 1, clock));
        }
    }

    /// A sequence no longer holds these pages.
    pub(crate) fn let_go(&mut self, nodes: &[NodeId]) {
        self.clock += 1;
        let clock = self.clock;
        for id in nodes {
            self.update(*id, |n| (n.users, n.last_used) = (n.users - 1, clock));
        }
    }

    /// A page behind another, held by the sequence that writes it.
    pub(crate) fn add(&mut self, space: Space, parent: Option<NodeId>, page: u32) -> NodeId {
        self.clock += 1;
        let (tokens, children, states) = (Vec::with_capacity(PAGE_ROWS), Vec::new(), BTreeMap::new());
        let node = Node { space, parent, children, tokens, page, users: 1, last_used: self.clock, states };
        let id = self.unused.pop().unwrap_or(self.nodes.len());
        if id == self.nodes.len() {
            self.nodes.push(node)
        } else {
            self.nodes[id] = node
        }
        if let Some(parent) = parent {
            self.update(parent, |n| n.children.push(id));
        } else {
            self.siblings_mut(space, None).push(id);
        }
        id
    }

    /// The next tokens of a node.
    pub(crate) fn extend(&mut self, node: NodeId, tokens: &[u32]) {
        self.nodes[node].tokens.extend(tokens);
        assert!(self.nodes[node].tokens.len() <= PAGE_ROWS, "a node is a page");
    }

    /// Folds a node that nobody writes any more together with siblings that say the same: into one that says as much or
    /// more, or else those that say less into it. Returns the node that stands for it now. A user of the node becomes a
    /// user of that one.
    pub(crate) fn settle(&mut self, id: NodeId, freed: &mut Freed) -> NodeId {
        let (space, parent) = (self.nodes[id].space, self.nodes[id].parent);
        let others: Vec<NodeId> = self.siblings(space, parent).iter().copied().filter(|o| *o != id).collect();
        let covers = |a: &Node, b: &Node| a.tokens.starts_with(&b.tokens);
        let (is_full, users) = (self.nodes[id].tokens.len() == PAGE_ROWS, self.nodes[id].users);
        // A page with users is exchanged only for one that will not change.
        let fits = |o: &&NodeId| {
            let other = &self.nodes[**o];
            covers(other, &self.nodes[id]) && (users == 0 || other.tokens.len() == PAGE_ROWS && is_full)
        };
        if self.nodes[id].children.is_empty()
            && let Some(other) = others.iter().find(fits).copied()
        {
            self.update(other, |n| n.users += users);
            self.fold(id, other, freed);
            return other;
        }
        for other in others {
            let node = &self.nodes[other];
            if node.users == 0 && node.children.is_empty() && covers(&self.nodes[id], node) {
                self.fold(other, id, freed);
            }
        }
        id
    }

    /// Moves the states of `from` to `to` and removes it.
    fn fold(&mut self, from: NodeId, to: NodeId, freed: &mut Freed) {
        for (offset, state) in std::mem::take(&mut self.nodes[from].states) {
            self.states.remove(&state.rank(from, offset));
            match self.nodes[to].states.entry(offset) {
                Entry::Occupied(_) => freed.slots.push(state.slot),
                Entry::Vacant(place) => {
                    place.insert(state);
                    self.states.insert(state.rank(to, offset));
                }
            }
        }
        self.remove(from, freed);
    }

    /// Removes a node without children.
    fn remove(&mut self, id: NodeId, freed: &mut Freed) {
        let (space, parent) = (self.nodes[id].space, self.nodes[id].parent);
        if let Some(parent) = parent {
            self.update(parent, |n| n.children.retain(|c| *c != id));
        } else {
            self.siblings_mut(space, None).retain(|c| *c != id);
        }
        let node = &mut self.nodes[id];
        self.leaves.remove(&(node.last_used, id));
        self.idle -= usize::from(node.users == 0);
        freed.pages.push(node.page);
        node.tokens.clear();
        for (offset, state) in std::mem::take(&mut node.states) {
            self.states.remove(&state.rank(id, offset));
            freed.slots.push(state.slot);
        }
        self.unused.push(id);
    }

    /// Saves a state behind the first `offset` tokens of a node. Hands the slot back when there is one already.
    pub(crate) fn save(&mut self, node: NodeId, offset: usize, slot: usize, periodic: bool) -> Option<usize> {
        debug_assert!((1..=self.nodes[node].tokens.len()).contains(&offset), "a state stands behind a token");
        if let Some(state) = self.nodes[node].states.get_mut(&offset) {
            state.periodic &= periodic;
            return Some(slot);
        }
        self.clock += 1;
        let state = State { slot, last_used: self.clock, proven: false, periodic };
        self.nodes[node].states.insert(offset, state);
        self.states.insert(state.rank(node, offset));
        None
    }

    /// A state was of use. It is no longer one of many on the way.
    pub(crate) fn touch(&mut self, place: &Place) {
        self.move_state(place.node, (place.position - 1) % PAGE_ROWS + 1, true);
        let proven = self.states.iter().rev().take_while(|rank| rank.0).count();
        if proven > 1 && proven > self.states.len().div_ceil(2) {
            let (_, _, node, offset) = self.states.iter().find(|rank| rank.0).copied().unwrap_or_default();
            self.move_state(node, offset, false);
        }
    }

    /// Puts a state at the end of its kind.
    fn move_state(&mut self, node: NodeId, offset: usize, proven: bool) {
        self.clock += 1;
        if let Some(state) = self.nodes[node].states.get_mut(&offset) {
            self.states.remove(&state.rank(node, offset));
            *state = State { last_used: self.clock, proven, periodic: false, ..*state };
            self.states.insert(state.rank(node, offset));
        }
    }

    /// Forgets a state that was saved only for its distance; returns its slot.
    pub(crate) fn thin(&mut self, node: NodeId, offset: usize) -> Option<usize> {
        let state = self.nodes[node].states.get(&offset).copied().filter(|s| s.periodic)?;
        self.nodes[node].states.remove(&offset);
        self.states.remove(&state.rank(node, offset));
        Some(state.slot)
    }

    /// Forgets the page used longest ago, if nobody holds it, and the states that stand behind its tokens.
    pub(crate) fn evict(&mut self, freed: &mut Freed) -> bool {
        let Some((_, id)) = self.leaves.first().copied() else { return false };
        self.remove(id, freed);
        true
    }

    /// Forgets the state that is least likely to be of use; returns its slot.
    pub(crate) fn evict_state(&mut self) -> Option<usize> {
        let (_, _, node, offset) = self.states.pop_first()?;
        self.nodes[node].states.remove(&offset).map(|state| state.slot)
    }

    /// Forgets pages from the end of a path up to the first that somebody holds or goes on from.
    pub(crate) fn prune(&mut self, path: &[NodeId], freed: &mut Freed) {
        for id in path.iter().rev() {
            if self.nodes[*id].users > 0 || !self.nodes[*id].children.is_empty() {
                break;
            }
            self.remove(*id, freed);
        }
    }

    /// Forgets all that a space holds; nobody uses it any more.
    pub(crate) fn drop_space(&mut self, space: Space, freed: &mut Freed) {
        while let Some(mut id) = self.siblings(space, None).last().copied() {
            while let Some(child) = self.nodes[id].children.last().copied() {
                id = child;
            }
            self.remove(id, freed);
        }
        self.roots.remove(&space);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(len: u32, from: u32) -> Vec<u32> {
        (from..from + len).collect()
    }

    /// Puts a sequence into the tree and lets go of it; returns its nodes.
    fn put(tree: &mut Tree, tokens: &[u32], page: u32, freed: &mut Freed) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = Vec::new();
        for (i, chunk) in tokens.chunks(PAGE_ROWS).enumerate() {
            let id = tree.add(0, nodes.last().copied(), page + i as u32);
            tree.extend(id, chunk);
            nodes.push(if chunk.len() == PAGE_ROWS { tree.settle(id, freed) } else { id });
        }
        tree.let_go(&nodes);
        if let Some(last) = nodes.pop() {
            nodes.push(tree.settle(last, freed));
        }
        nodes
    }

    #[test]
    fn the_longest_beginning_is_found_to_the_token() {
        let (mut tree, mut freed) = (Tree::default(), Freed::default());
        let nodes = put(&mut tree, &text(150, 0), 10, &mut freed);
        assert_eq!((tree.idle(), freed.pages.len()), (3, 0));
        let found = tree.find(0, &text(140, 0));
        assert_eq!((found.common, found.path, found.tail), (140, nodes[..2].to_vec(), Some((nodes[2], 12))));
        let mut other = text(100, 0);
        other[70] = 999;
        let found = tree.find(0, &other);
        assert_eq!((found.common, found.path.len(), found.tail), (70, 1, Some((nodes[1], 6))));
        assert_eq!(tree.beyond(0, &found, 3), [70, 71, 72]);
        assert_eq!(tree.beyond(0, &tree.find(0, &text(64, 0)), 2), [64, 65]);
        assert_eq!(tree.find(0, &text(9, 500)), Found::default());
        assert_eq!(tree.find(7, &text(9, 0)), Found::default(), "another space");
    }

    #[test]
    fn what_is_said_twice_is_kept_once() {
        let (mut tree, mut freed) = (Tree::default(), Freed::default());
        put(&mut tree, &text(70, 0), 0, &mut freed);
        // Equal, shorter, longer.
        put(&mut tree, &text(70, 0), 10, &mut freed);
        assert_eq!((tree.idle(), std::mem::take(&mut freed.pages)), (2, vec![10, 11]));
        put(&mut tree, &text(66, 0), 20, &mut freed);
        assert_eq!((tree.idle(), std::mem::take(&mut freed.pages)), (2, vec![20, 21]));
        put(&mut tree, &text(90, 0), 30, &mut freed);
        assert_eq!((tree.idle(), std::mem::take(&mut freed.pages)), (2, vec![30, 1]));
        assert_eq!(tree.find(0, &text(200, 0)).common, 90);
        // Two that part are both kept.
        let mut other = text(90, 0);
        other[80] = 999;
        put(&mut tree, &other, 40, &mut freed);
        assert_eq!((tree.idle(), std::mem::take(&mut freed.pages)), (3, vec![40]));
    }

    #[test]
    fn states_move_with_their_tokens() {
        let (mut tree, mut freed) = (Tree::default(), Freed::default());
        let short = put(&mut tree, &text(30, 0), 0, &mut freed)[0];
        assert_eq!(tree.save(short, 20, 5, false), None);
        assert_eq!(tree.save(short, 20, 6, false), Some(6), "there is one already");
        let long = put(&mut tree, &text(64, 0), 1, &mut freed)[0];
        assert_eq!((freed.pages.as_slice(), freed.slots.len()), ([0].as_slice(), 0));
        let found = tree.find(0, &text(50, 0));
        assert_eq!(found.state, Some(Place { position: 20, node: long, slot: 5 }));
        assert_eq!(tree.find(0, &text(19, 0)).state, None);
        tree.save(long, 64, 7, true);
        let Some(place) = tree.find(0, &text(20, 0)).state else { panic!("a state") };
        tree.touch(&place);
        assert_eq!((tree.thin(long, 20), tree.evict_state(), tree.saved()), (None, Some(7), 1), "20 has proven itself");
        assert!(tree.evict(&mut freed));
        assert_eq!((freed.slots.as_slice(), tree.saved(), tree.idle()), ([5].as_slice(), 0, 0));
    }

    #[test]
    fn states_that_served_outlive_those_that_did_not_but_not_for_ever() {
        let (mut tree, mut freed) = (Tree::default(), Freed::default());
        let node = put(&mut tree, &text(64, 0), 0, &mut freed)[0];
        let touch = |tree: &mut Tree, n: usize| {
            let place = tree.find(0, &text(n as u32, 0)).state.filter(|p| p.position == n).expect("a state there");
            tree.touch(&place);
        };
        (1..=4).for_each(|n| assert_eq!(tree.save(node, n, n, false), None));
        touch(&mut tree, 2);
        assert_eq!(tree.evict_state(), Some(1));
        (5..=6).for_each(|n| assert_eq!(tree.save(node, n, n, false), None));
        // Of five, three may be proven: the fourth to prove itself puts the one used longest ago back in line.
        [3, 4, 5].into_iter().for_each(|n| touch(&mut tree, n));
        let order: Vec<usize> = std::iter::from_fn(|| tree.evict_state()).collect();
        assert_eq!(order, [6, 2, 3, 4, 5]);
    }

    #[test]
    fn what_is_used_longest_ago_goes_first_and_what_is_held_stays() {
        let (mut tree, mut freed) = (Tree::default(), Freed::default());
        let a = put(&mut tree, &text(128, 0), 0, &mut freed);
        let b = put(&mut tree, &text(128, 1000), 10, &mut freed);
        tree.hold(&a[..1]);
        assert_eq!(tree.idle(), 3);
        let mut order = Vec::new();
        while tree.evict(&mut freed) {
            order.append(&mut freed.pages);
        }
        assert_eq!(order, [1, 11, 10]);
        tree.let_go(&a[..1]);
        assert!(tree.evict(&mut freed) && freed.pages == [0] && !b.is_empty());
        put(&mut tree, &text(128, 0), 0, &mut freed);
        tree.drop_space(0, &mut freed);
        assert_eq!((tree.idle(), tree.held()), (0, (vec![], vec![])));
    }
}
