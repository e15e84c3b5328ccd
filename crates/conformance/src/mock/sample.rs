//! The choice of a token by a device that sees a row of logits in pieces: no kernel holds all of it.
//!
//! The k-th largest logit, and the last one of a nucleus, are found by their bits, eight at a time from the top: a
//! histogram over all pieces, then the bucket in which the goal lies. Counts are exact; weights are f32 sums in the order
//! of the pieces.

use super::kernel::{floats, put};
use onebit_ops::{Adjust, Sampled};

/// Values of a piece.
pub(super) const PIECE: usize = super::device::BINDING_BYTES / 4;
/// Adjustments of one dispatch, of four words each.
pub(super) const ADJUSTS: usize = PIECE / 4;
/// Words of the running state.
pub(super) const STATE: usize = HISTOGRAM + BUCKETS;
/// Rounds that narrow 64 bits down.
pub(super) const ROUNDS: u32 = 8;

const BUCKETS: usize = 256;

// Places in the state.
const UNUSABLE: usize = 0;
const RAW_TOP: usize = 1;
const RAW_SUM: usize = 2;
const BEST: usize = 3;
const GOAL: usize = 4;
const TOTAL: usize = 5;
const REACHED: usize = 6;
const TOKEN: usize = 7;
const RAW: usize = 8;
/// Two words each: the rank being narrowed, and the least rank that is still in.
const PREFIX: usize = 9;
const LEAST: usize = 11;
const HISTOGRAM: usize = 13;

/// What the selection counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    /// So many tokens.
    Count(u32),
    /// This share of the weight.
    Share(f32),
}

/// The numbers of a draw that the weights depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Weights {
    pub(super) temperature: f32,
    pub(super) min_p: f32,
}

/// A kernel of the choice. `first` is the token of the piece's first value. The state is always the last binding that is
/// written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kernel {
    /// raw logits -> logits, state: copies, and sums the softmax up.
    Load { first: usize },
    /// adjustments -> logits.
    Adjust { first: usize },
    /// mask words -> logits: what is out becomes −∞.
    Mask,
    /// logits -> state: the largest logit.
    Best { first: usize },
    /// logits -> state: one round's histogram of the ranks that agree with the prefix.
    Count { first: usize, round: u32, goal: Goal, weights: Weights },
    /// -> state: the bucket in which the goal lies.
    Narrow { round: u32, goal: Goal },
    /// logits -> state: the weight of all survivors.
    Total { first: usize, weights: Weights },
    /// logits -> state: walks on until the share `uniform` of the total is passed.
    Walk { first: usize, uniform: f64, weights: Weights },
    /// raw logits -> state: the raw logit of the token.
    Raw { first: usize },
    /// state -> token, token and log-probability.
    Emit,
}

impl Kernel {
    pub(super) fn run(self, reads: &[&[u8]], writes: &mut [Vec<u8>]) {
        match self {
            Kernel::Adjust { first } => return adjust(reads[0], first, &mut writes[0]),
            Kernel::Mask => return mask(reads[0], &mut writes[0]),
            Kernel::Emit => return emit(reads[0], writes),
            _ => {}
        }
        let Some((last, before)) = writes.split_last_mut() else { return };
        let mut state = State(last.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect());
        let values = reads.first().map(|bytes| floats(bytes)).unwrap_or_default();
        match self {
            Kernel::Load { first } => put(&state.load(first, &values), &mut before[0]),
            Kernel::Best { first } => state.find_best(first, &values),
            Kernel::Count { first, round, goal, weights } => state.count(first, round, goal, weights, &values),
            Kernel::Narrow { round, goal } => state.narrow(round, goal),
            Kernel::Total { first, weights } => {
                let mass = sum(state.survivors(first, weights, &values).map(|(_, w)| w));
                state.add(TOTAL, mass);
            }
            Kernel::Walk { first, uniform, weights } => state.walk(first, uniform, weights, &values),
            Kernel::Raw { first } => {
                let token = state.0[TOKEN] as usize;
                if (first..first + values.len()).contains(&token) {
                    state.set(RAW, values[token - first].max(f32::MIN));
                }
            }
            Kernel::Adjust { .. } | Kernel::Mask | Kernel::Emit => {}
        }
        last.as_chunks_mut().0.iter_mut().zip(state.0).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    }
}

fn adjust(list: &[u8], first: usize, logits: &mut [u8]) {
    let mut values = floats(logits);
    for entry in floats(list).chunks_exact(4) {
        let token = entry[0].to_bits() as usize;
        if (first..first + values.len()).contains(&token) {
            let [bias, divide, subtract] = [entry[1], entry[2], entry[3]];
            let adjust = Adjust { token: token as u32, bias, divide, subtract };
            values[token - first] = adjust.apply(values[token - first]);
        }
    }
    put(&values, logits);
}

fn mask(words: &[u8], logits: &mut [u8]) {
    let mut values = floats(logits);
    for (i, value) in values.iter_mut().enumerate() {
        if words[i / 8] >> (i % 8) & 1 == 0 {
            *value = f32::NEG_INFINITY;
        }
    }
    put(&values, logits);
}

fn emit(state: &[u8], writes: &mut [Vec<u8>]) {
    let state = floats(state);
    let mut result = [f32::from_bits(Sampled::NOT_FINITE), f32::NAN];
    if state[UNUSABLE].to_bits() == 0 {
        result = [state[TOKEN], state[RAW] - state[RAW_TOP] - state[RAW_SUM].ln()];
    }
    put(&result[..1], &mut writes[0]);
    put(&result, &mut writes[1]);
}

/// Orders tokens by logit, then by falling id.
fn rank(logit: f32, token: usize) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let order = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(order) << 32 | u64::from(!(token as u32))
}

/// Sums of 64 summed: one long chain of equal roundings would drift away.
fn sum(values: impl Iterator<Item = f32>) -> f32 {
    let values: Vec<f32> = values.collect();
    let parts: Vec<f32> = values.chunks(64).map(|part| part.iter().sum()).collect();
    parts.chunks(64).map(|part| part.iter().sum::<f32>()).sum()
}

struct State(Vec<u32>);

impl State {
    fn get(&self, at: usize) -> f32 {
        f32::from_bits(self.0[at])
    }

    fn set(&mut self, at: usize, value: f32) {
        self.0[at] = value.to_bits();
    }

    fn add(&mut self, at: usize, value: f32) {
        self.set(at, self.get(at) + value);
    }

    fn wide(&self, at: usize) -> u64 {
        u64::from(self.0[at]) << 32 | u64::from(self.0[at + 1])
    }

    fn set_wide(&mut self, at: usize, value: u64) {
        (self.0[at], self.0[at + 1]) = ((value >> 32) as u32, value as u32);
    }

    fn load(&mut self, first: usize, raw: &[f32]) -> Vec<f32> {
        if first == 0 {
            self.0.fill(0);
            self.set(RAW_TOP, f32::MIN);
        }
        self.0[UNUSABLE] |= u32::from(raw.iter().any(|l| l.is_nan() || *l == f32::INFINITY));
        let logits: Vec<f32> = raw.iter().map(|l| l.max(f32::MIN)).collect();
        let top = logits.iter().copied().fold(self.get(RAW_TOP), f32::max);
        let sum = sum(logits.iter().map(|l| (l - top).exp()));
        self.set(RAW_SUM, self.get(RAW_SUM) * (self.get(RAW_TOP) - top).exp() + sum);
        self.set(RAW_TOP, top);
        logits
    }

    fn find_best(&mut self, first: usize, logits: &[f32]) {
        if first == 0 {
            self.set(BEST, f32::NEG_INFINITY);
        }
        for (i, logit) in logits.iter().enumerate() {
            if *logit > self.get(BEST) {
                self.set(BEST, *logit);
                self.0[TOKEN] = (first + i) as u32;
            }
        }
    }

    fn weight(&self, logit: f32, weights: Weights) -> f32 {
        ((logit - self.get(BEST)) / weights.temperature).exp()
    }

    fn count(&mut self, first: usize, round: u32, goal: Goal, weights: Weights, logits: &[f32]) {
        if first == 0 {
            self.0[HISTOGRAM..].fill(0);
        }
        let (prefix, least, shift) = (self.wide(PREFIX), self.wide(LEAST), 64 - 8 * (round + 1));
        for (i, logit) in logits.iter().enumerate().filter(|(_, l)| **l > f32::NEG_INFINITY) {
            let rank = rank(*logit, first + i);
            let agrees = round == 0 || rank >> (shift + 8) == prefix >> (shift + 8);
            if agrees && rank >= least {
                let bucket = HISTOGRAM + (rank >> shift & 255) as usize;
                match goal {
                    Goal::Count(_) => self.0[bucket] += 1,
                    Goal::Share(_) => self.add(bucket, self.weight(*logit, weights)),
                }
            }
        }
    }

    fn narrow(&mut self, round: u32, goal: Goal) {
        // Counts stay below 2^24 and are exact as f32.
        let held: Vec<f32> = match goal {
            Goal::Count(_) => self.0[HISTOGRAM..].iter().map(|n| *n as f32).collect(),
            Goal::Share(_) => self.0[HISTOGRAM..].iter().map(|w| f32::from_bits(*w)).collect(),
        };
        if round == 0 {
            self.set_wide(PREFIX, 0);
            self.set(
                GOAL,
                match goal {
                    Goal::Count(count) => count as f32,
                    Goal::Share(share) => share * held.iter().rev().sum::<f32>(),
                },
            );
        }
        // A goal that rounding puts out of reach, or a count beyond the row, ends with the last bucket that holds any.
        let (mut chosen, mut rest) = (0, self.get(GOAL));
        self.set(GOAL, f32::INFINITY);
        for (bucket, held) in held.iter().enumerate().rev().filter(|(_, held)| **held > 0.0) {
            chosen = bucket as u64;
            if *held >= rest {
                self.set(GOAL, rest);
                break;
            }
            rest -= held;
        }
        let prefix = self.wide(PREFIX) | chosen << (64 - 8 * (round + 1));
        self.set_wide(PREFIX, prefix);
        if round + 1 == ROUNDS {
            self.set_wide(LEAST, prefix);
        }
    }

    fn survivors(&self, first: usize, weights: Weights, logits: &[f32]) -> impl Iterator<Item = (usize, f32)> {
        let least = self.wide(LEAST);
        let of = move |(i, logit): (usize, &f32)| {
            let weight = self.weight(*logit, weights);
            let is_in = *logit > f32::NEG_INFINITY && rank(*logit, first + i) >= least && weight >= weights.min_p;
            is_in.then_some((first + i, weight))
        };
        logits.iter().enumerate().filter_map(of)
    }

    fn walk(&mut self, first: usize, uniform: f64, weights: Weights, logits: &[f32]) {
        let goal = (uniform * f64::from(self.get(TOTAL))) as f32;
        let survivors: Vec<(usize, f32)> = self.survivors(first, weights, logits).collect();
        for (token, weight) in survivors {
            // Beyond the goal the walk has ended, unless rounding hides the last step; then the last survivor stands.
            if self.get(REACHED) > goal {
                return;
            }
            self.0[TOKEN] = token as u32;
            self.add(REACHED, weight);
        }
    }
}
