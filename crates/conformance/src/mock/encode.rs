//! From a program and a step's inputs to dispatches, one row or one head each.

use super::device::{BINDING_BYTES, Binding, Command, Dispatch};
use super::kernel::{Blocks, Kernel, Zip};
use super::link::{Buffer, Link};
use super::resident::{Block, CacheMemory};
use super::sample::{self, ADJUSTS, Goal, PIECE, Weights};
use super::{blocks_of, buffer_of};
use onebit_ops::{
    Draw, Epilogue, HeadMap, Op, OpError, PAGE_ROWS, Placement, Program, RopeTable, Rows, Segment, StepInputs, Tensor,
    View,
};
use std::collections::HashMap;
use std::sync::Arc;

/// What a plan keeps on the device.
pub(super) struct Fixed {
    /// All temporaries, where [`Program::place`] puts them.
    pub(super) arena: Buffer,
    pub(super) placements: Vec<Placement>,
    /// Tokens, then positions, of the step.
    pub(super) tokens: Buffer,
    pub(super) positions: Buffer,
    /// Room for one head's running attention, a matrix of guesses, a window of guesses, and results nobody reads.
    pub(super) scratch: [Buffer; 4],
    /// Frequencies and axes of each rotary op.
    ropes: HashMap<usize, Buffer>,
    /// The chosen tokens, which the next step may take.
    pub(super) sampled: Arc<Buffer>,
    /// Of the choice of a token: a row after its changes, the list of changes, the mask, the running state, and token and
    /// log-probability of each row.
    choice: [Buffer; 5],
}

impl Fixed {
    pub(super) fn new(link: &Arc<Link>, program: &Program, cache: &CacheMemory) -> Result<Self, OpError> {
        let (placements, len) = program.place();
        let state = cache.state().ok();
        let vocab = program.sampled_logits().map_or(0, |l| l.cols());
        let widest = program.tensors.iter().map(|t| t.cols).max().unwrap_or(0);
        let mut ropes = HashMap::new();
        for (at, op) in program.ops.iter().enumerate() {
            if let Op::Rope { table, .. } = op {
                ropes.insert(at, link.upload(&rope_bytes(table))?);
            }
        }
        Ok(Fixed {
            arena: link.buffer(4 * len)?,
            placements,
            tokens: link.buffer(4 * program.bucket.rows)?,
            positions: link.buffer(12 * program.bucket.rows)?,
            scratch: [
                link.buffer(4 * (widest + 2))?,
                link.buffer(4 * state.map_or(0, |s| s.key_dim * s.value_dim))?,
                link.buffer(4 * state.map_or(0, |s| s.window_len()))?,
                link.buffer(4 * widest)?,
            ],
            ropes,
            sampled: Arc::new(link.buffer(4 * program.bucket.logits)?),
            choice: [
                link.buffer(4 * vocab)?,
                link.buffer(16 * vocab)?,
                link.buffer(4 * vocab.div_ceil(32))?,
                link.buffer(4 * sample::STATE)?,
                link.buffer(8 * program.bucket.logits)?,
            ],
        })
    }
}

fn rope_bytes(table: &RopeTable) -> Vec<u8> {
    let frequencies = table.inv_freq.iter().map(|f| f.to_bits());
    frequencies.chain(table.axis.iter().map(|a| u32::from(*a))).flat_map(u32::to_le_bytes).collect()
}

/// The commands of one step so far.
pub(super) struct Encoder<'a> {
    pub(super) program: &'a Program,
    pub(super) fixed: &'a Fixed,
    cache: &'a CacheMemory,
    pub(super) inputs: &'a StepInputs,
    pub(super) commands: Vec<Command>,
    /// Name and ranges of each output: copied when its op runs, for the arena is used again.
    readback: &'a Buffer,
    read: usize,
    outputs: Vec<(String, usize)>,
}

/// What to submit, and which outputs lie in the readback buffer, in order, with their lengths in f32.
pub(super) struct Encoded {
    pub(super) commands: Vec<Command>,
    pub(super) outputs: Vec<(String, usize)>,
}

/// Values that the outputs of a step may have at most.
pub(super) fn readback_len(program: &Program) -> usize {
    let outputs = program.ops.iter().filter_map(|op| if let Op::Output { x, .. } = op { Some(x) } else { None });
    let sampled = program.sampled_logits().map_or(0, |_| 2 * program.bucket.logits);
    outputs.map(|x| program.max_rows(x.tensor) * x.cols()).sum::<usize>() + sampled
}

/// Encodes one step.
pub(super) fn encode(
    program: &Program,
    fixed: &Fixed,
    cache: &CacheMemory,
    inputs: &StepInputs,
    readback: &Buffer,
) -> Result<Encoded, OpError> {
    let mut encoder =
        Encoder { program, fixed, cache, inputs, commands: Vec::new(), readback, read: 0, outputs: Vec::new() };
    let words = |words: Vec<u32>| words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    for (buffer, bytes) in
        [(&fixed.tokens, words(inputs.tokens.clone())), (&fixed.positions, words(inputs.positions.concat()))]
    {
        encoder.commands.push(Command::Write { buffer: buffer.whole().buffer, start: 0, bytes });
    }
    for carried in &inputs.carried {
        if let Some(from) = cache.sampled_token(carried.from) {
            encoder.copy(from, fixed.tokens.floats(carried.row, 1));
        }
    }
    // Poison: 0xffffffff is a NaN. Whatever an op reads must have been written in this step.
    for range in [&fixed.arena, &fixed.scratch[0], &fixed.scratch[3]].map(Buffer::whole) {
        encoder.commands.push(Command::Fill { range, byte: 0xff });
    }
    for (at, op) in program.ops.iter().enumerate() {
        encoder.op(at, op)?;
    }
    let tokens = 2 * inputs.draws.len();
    encoder.copy(fixed.choice[4].floats(0, tokens), readback.floats(encoder.read, tokens));
    Ok(Encoded { commands: encoder.commands, outputs: encoder.outputs })
}

impl Encoder<'_> {
    pub(super) fn rows(&self, tensor: Tensor) -> usize {
        match self.program.tensors[tensor.0 as usize].rows {
            Rows::Step => self.inputs.tokens.len(),
            Rows::Logits => self.inputs.logit_rows.len(),
            Rows::Fixed(rows) => rows,
        }
    }

    /// Columns of one row of a temporary.
    pub(super) fn columns(&self, tensor: Tensor, row: usize, start: usize, len: usize) -> Binding {
        let id = tensor.0 as usize;
        let at = self.fixed.placements[id].offset + row * self.program.tensors[id].cols;
        self.fixed.arena.floats(at + start, len)
    }

    /// A whole row of a temporary.
    pub(super) fn row(&self, tensor: Tensor, row: usize) -> Binding {
        self.columns(tensor, row, 0, self.program.tensors[tensor.0 as usize].cols)
    }

    /// One row of a view, from its first to its last value.
    pub(super) fn span(&self, view: View, row: usize) -> Binding {
        self.columns(view.tensor, row, view.offset, Blocks::from(view).span())
    }

    /// One block of one row of a view.
    pub(super) fn head(&self, view: View, row: usize, head: usize) -> Binding {
        self.columns(view.tensor, row, view.offset + head * view.stride, view.dim)
    }

    pub(super) fn dispatch(&mut self, kernel: Kernel, reads: Vec<Binding>, writes: Vec<Binding>) {
        self.commands.push(Command::Dispatch(Dispatch { kernel, reads, writes }));
    }

    pub(super) fn copy(&mut self, from: Binding, to: Binding) {
        self.commands.push(Command::Copy { from, to });
    }

    /// Two views to one row, for every row.
    fn zip(&mut self, op: Zip, a: View, b: View, out: Tensor) {
        for row in 0..self.rows(out) {
            let kernel = Kernel::Zip { op, a: a.into(), b: b.into() };
            self.dispatch(kernel, vec![self.span(a, row), self.span(b, row)], vec![self.row(out, row)]);
        }
    }

    fn op(&mut self, at: usize, op: &Op) -> Result<(), OpError> {
        match op {
            Op::Embed { table, out } => self.embed(blocks_of(table)?, *out),
            Op::RmsNorm { x, norm, out } => {
                let gain = buffer_of(&norm.gain)?.whole();
                for row in 0..self.rows(*out) {
                    let kernel = Kernel::RmsNorm { x: (*x).into(), eps: norm.eps };
                    self.dispatch(kernel, vec![self.span(*x, row), gain], vec![self.row(*out, row)]);
                }
            }
            Op::GatedNorm { x, z, norm, out } => {
                let gain = buffer_of(&norm.gain)?.whole();
                for row in 0..self.rows(*out) {
                    let kernel = Kernel::GatedNorm { x: (*x).into(), z: (*z).into(), eps: norm.eps };
                    let reads = vec![self.span(*x, row), self.span(*z, row), gain];
                    self.dispatch(kernel, reads, vec![self.row(*out, row)]);
                }
            }
            Op::Linear { x, norm, weight, activations, epilogue, out } => {
                let gain = norm.as_ref().map(|n| Ok::<_, OpError>(buffer_of(&n.gain)?.whole())).transpose()?;
                for block in blocks_of(weight)? {
                    let Block { first, slice, .. } = *block;
                    for row in 0..self.rows(*out) {
                        let mut reads = vec![self.span(*x, row)];
                        reads.extend(gain);
                        reads.extend(block.bindings());
                        if let Epilogue::Residual(r) = epilogue {
                            reads.push(self.columns(r.tensor, row, r.offset + first, slice.rows));
                        }
                        let kernel = Kernel::Linear {
                            slice,
                            norm: norm.as_ref().map(|n| n.eps),
                            residual: matches!(epilogue, Epilogue::Residual(_)),
                            activations: *activations,
                        };
                        self.dispatch(kernel, reads, vec![self.columns(*out, row, first, slice.rows)]);
                    }
                }
            }
            Op::Add { a, b, out } => self.zip(Zip::Add, *a, *b, *out),
            Op::SwiGlu { gate, up, out } => self.zip(Zip::SwiGlu, *gate, *up, *out),
            Op::SigmoidMul { x, gate, out } => self.zip(Zip::SigmoidMul, *x, *gate, *out),
            Op::Rope { x, table, out } => {
                let frequencies = self.fixed.ropes[&at].whole();
                let (pairs, factor) = (table.inv_freq.len(), table.attention_factor);
                for row in 0..self.rows(*out) {
                    let kernel = Kernel::Rope { row, x: (*x).into(), pairs, factor };
                    let reads = vec![self.span(*x, row), self.fixed.positions.whole(), frequencies];
                    self.dispatch(kernel, reads, vec![self.row(*out, row)]);
                }
            }
            Op::Attention { q, k, v, layer, scale, out } => {
                for segment in &self.inputs.segments {
                    self.attention(segment, [*q, *k, *v], *layer, *scale, *out);
                }
            }
            Op::ConvSilu { x, weight, kernel, layer, out } => {
                let taps = buffer_of(weight)?;
                for segment in &self.inputs.segments {
                    self.conv(segment, *x, taps, *kernel, *layer, *out)?;
                }
            }
            Op::DeltaGates { a, b, decay_rate, dt_bias, log_decay, beta } => {
                let (rate, bias) = (buffer_of(decay_rate)?.whole(), buffer_of(dt_bias)?.whole());
                for row in 0..self.rows(*beta) {
                    let kernel = Kernel::DeltaGates { a: (*a).into(), b: (*b).into() };
                    let reads = vec![self.span(*a, row), self.span(*b, row), rate, bias];
                    self.dispatch(kernel, reads, vec![self.row(*log_decay, row), self.row(*beta, row)]);
                }
            }
            Op::GatedDelta { q, k, v, log_decay, beta, map, eps, layer, out } => {
                let views = [*q, *k, *v, *log_decay, *beta];
                for segment in &self.inputs.segments {
                    self.delta(segment, views, *map, *eps, *layer, *out)?;
                }
            }
            Op::Input { name, out } => self.input(name, *out),
            Op::Modulate { x, scale, shift, eps, out } => self.modulate([*x, *scale, *shift], *eps, *out),
            Op::GatedAdd { x, gate, y, out } => self.gated_add([*x, *gate, *y], *out),
            Op::RotatePairs { x, angles, out } => self.rotate_pairs(*x, *angles, *out),
            Op::FullAttention { q, k, v, scale, seen, out } => {
                self.full_attention([*q, *k, *v], *scale, *seen, *out);
            }
            Op::JoinRows { parts, out } => self.join_rows(parts, *out),
            Op::TakeRows { x, start, out } => {
                for row in 0..self.rows(*out) {
                    self.copy_row(*x, start + row, *out, row, 0);
                }
            }
            Op::JoinColumns { parts, out } => self.join_columns(parts, *out),
            Op::GroupNorm { x, groups, gain, bias, eps, out } => {
                self.group_norm(*x, *groups, [buffer_of(gain)?, buffer_of(bias)?], *eps, *out);
            }
            Op::Conv2d { conv, out } => self.conv2d(conv, *out, blocks_of(&conv.weight)?, buffer_of(&conv.bias)?),
            Op::SelectRows { x, out } => {
                for (to, from) in self.inputs.logit_rows.iter().enumerate() {
                    self.copy(self.span(*x, *from), self.row(*out, to));
                }
            }
            Op::Sample { logits } => {
                for row in 0..self.rows(logits.tensor) {
                    self.sample(row, *logits, &self.inputs.draws[row]);
                }
            }
            Op::Output { x, name } => {
                let start = self.read;
                for row in 0..self.rows(x.tensor) {
                    self.copy(self.span(*x, row), self.readback.floats(self.read, x.cols()));
                    self.read += x.cols();
                }
                self.outputs.push((name.to_string(), self.read - start));
            }
        }
        Ok(())
    }

    /// Every block of the table is asked for every row: which one holds the token, only the device sees.
    fn embed(&mut self, table: &[Block], out: Tensor) {
        for row in 0..self.rows(out) {
            for block in table {
                let kernel = Kernel::Embed { row, first: block.first, slice: block.slice };
                let mut reads = vec![self.fixed.tokens.whole()];
                reads.extend(block.bindings());
                self.dispatch(kernel, reads, vec![self.row(out, row)]);
            }
        }
    }

    /// One row piece by piece, through as many dispatches as the draw needs.
    fn sample(&mut self, row: usize, logits: View, draw: &Draw) {
        let fixed = self.fixed;
        let [changed, list, mask, state, results] = &fixed.choice;
        let state = state.whole();
        let words = |words: Vec<u32>| words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
        let write = |buffer: &Buffer, bytes| Command::Write { buffer: buffer.whole().buffer, start: 0, bytes };
        let entry = |a: &onebit_ops::Adjust| [a.token, a.bias.to_bits(), a.divide.to_bits(), a.subtract.to_bits()];
        self.commands.push(write(list, words(draw.adjust.iter().flat_map(entry).collect())));
        if let Some(bits) = &draw.mask {
            self.commands.push(write(mask, words(bits.to_vec())));
        }
        let pieces: Vec<(usize, usize)> =
            (0..logits.cols()).step_by(PIECE).map(|first| (first, PIECE.min(logits.cols() - first))).collect();
        let raw = |this: &Self, first, len| this.columns(logits.tensor, row, logits.offset + first, len);
        for &(first, len) in &pieces {
            let piece = changed.floats(first, len);
            self.choose(sample::Kernel::Load { first }, vec![raw(self, first, len)], vec![piece, state]);
            for start in (0..draw.adjust.len()).step_by(ADJUSTS) {
                let some = list.floats(4 * start, 4 * ADJUSTS.min(draw.adjust.len() - start));
                self.choose(sample::Kernel::Adjust { first }, vec![some], vec![piece]);
            }
            if draw.mask.is_some() {
                let some = mask.floats(first / 32, len.div_ceil(32));
                self.choose(sample::Kernel::Mask, vec![some], vec![piece]);
            }
        }
        let each = |this: &mut Self, kernel: &dyn Fn(usize) -> sample::Kernel| {
            for &(first, len) in &pieces {
                this.choose(kernel(first), vec![changed.floats(first, len)], vec![state]);
            }
        };
        each(self, &|first| sample::Kernel::Best { first });
        if draw.temperature > 0.0 {
            let weights = Weights { temperature: draw.temperature, min_p: draw.min_p };
            let count = (draw.top_k > 0).then_some(Goal::Count(draw.top_k));
            let share = (draw.top_p < 1.0).then_some(Goal::Share(draw.top_p));
            for goal in count.into_iter().chain(share) {
                for round in 0..sample::ROUNDS {
                    each(self, &|first| sample::Kernel::Count { first, round, goal, weights });
                    self.choose(sample::Kernel::Narrow { round, goal }, vec![], vec![state]);
                }
            }
            each(self, &|first| sample::Kernel::Total { first, weights });
            each(self, &|first| sample::Kernel::Walk { first, uniform: draw.uniform, weights });
        }
        for &(first, len) in &pieces {
            self.choose(sample::Kernel::Raw { first }, vec![raw(self, first, len)], vec![state]);
        }
        let to = vec![fixed.sampled.floats(row, 1), results.floats(2 * row, 2)];
        self.choose(sample::Kernel::Emit, vec![state], to);
    }

    fn choose(&mut self, kernel: sample::Kernel, reads: Vec<Binding>, writes: Vec<Binding>) {
        self.dispatch(Kernel::Sample(kernel), reads, writes);
    }

    fn attention(&mut self, segment: &Segment, [q, k, v]: [View; 3], layer: usize, scale: f32, out: Tensor) {
        let codec = self.cache.codec();
        for (i, row) in segment.rows.clone().enumerate() {
            let at = segment.past + i;
            for head in 0..k.heads {
                let page = self.cache.page(layer, segment.pages[at / PAGE_ROWS], head);
                for (view, page) in [k, v].into_iter().zip(page) {
                    let kernel = Kernel::Store { at: at % PAGE_ROWS, codec };
                    self.dispatch(kernel, vec![self.head(view, row, head)], vec![page]);
                }
            }
        }
        let running = self.fixed.scratch[0].floats(0, v.dim + 2);
        for (i, row) in segment.rows.clone().enumerate() {
            let tokens = segment.past + i + 1;
            for head in 0..q.heads {
                for (n, page) in segment.pages[..tokens.div_ceil(PAGE_ROWS)].iter().enumerate() {
                    let rows = PAGE_ROWS.min(tokens - n * PAGE_ROWS);
                    let kernel = Kernel::Attend { rows, first: n == 0, scale, codec };
                    let [keys, values] = self.cache.page(layer, *page, head / (q.heads / k.heads));
                    self.dispatch(kernel, vec![self.head(q, row, head), keys, values], vec![running]);
                }
                let y = self.columns(out, row, head * v.dim, v.dim);
                self.dispatch(Kernel::AttendEnd, vec![running], vec![y]);
            }
        }
    }

    /// Channel block by channel block: accepted rows, then the segment's. Guesses move a copy of the window and wait.
    fn conv(
        &mut self,
        segment: &Segment,
        x: View,
        taps: &Buffer,
        kernel: usize,
        layer: usize,
        out: Tensor,
    ) -> Result<(), OpError> {
        let step = BINDING_BYTES / 4 / kernel;
        let channels = x.cols();
        for start in (0..channels).step_by(step) {
            let len = step.min(channels - start);
            let taps = taps.floats(start * kernel, len * kernel);
            let mut window = self.cache.window_part(segment.slot, layer, start, len)?;
            let unread = self.fixed.scratch[3].floats(0, len);
            for row in 0..segment.accepted {
                let x = self.cache.pending_window(segment.slot, layer, row, start, len)?;
                self.dispatch(Kernel::Conv { kernel }, vec![x, taps], vec![window, unread]);
            }
            if segment.speculative {
                let guess = self.fixed.scratch[2].floats(0, len * (kernel - 1));
                self.copy(window, guess);
                window = guess;
            }
            for (i, row) in segment.rows.clone().enumerate() {
                let x = self.columns(x.tensor, row, x.offset + start, len);
                let y = self.columns(out, row, start, len);
                self.dispatch(Kernel::Conv { kernel }, vec![x, taps], vec![window, y]);
                if segment.speculative {
                    let kept = self.cache.pending_window(segment.slot, layer, i, start, len)?;
                    self.copy(x, kept);
                }
            }
        }
        Ok(())
    }

    /// Head by head, as [`Self::conv`].
    fn delta(
        &mut self,
        segment: &Segment,
        [q, k, v, log_decay, beta]: [View; 5],
        map: HeadMap,
        eps: f32,
        layer: usize,
        out: Tensor,
    ) -> Result<(), OpError> {
        let kernel = Kernel::Delta { eps };
        for head in 0..v.heads {
            let key_head = match map {
                HeadMap::Grouped => head / (v.heads / k.heads),
                HeadMap::Tiled => head % k.heads,
            };
            let mut state = self.cache.delta_head(segment.slot, layer, head)?;
            let unread = self.fixed.scratch[3].floats(0, v.dim);
            for row in 0..segment.accepted {
                let kept = self.cache.pending_delta(segment.slot, layer, head, row)?;
                // Its output was given when it was guessed: any query will do.
                let reads = [&kept[..1], &kept[..]].concat();
                self.dispatch(kernel, reads, vec![state, unread]);
            }
            if segment.speculative {
                let guess = self.fixed.scratch[1].whole();
                self.copy(state, guess);
                state = guess;
            }
            for (i, row) in segment.rows.clone().enumerate() {
                let gate = |view: View| self.columns(view.tensor, row, gate_column(view, head), 1);
                let update = [self.head(k, row, key_head), self.head(v, row, head), gate(log_decay), gate(beta)];
                let reads = [&[self.head(q, row, key_head)], &update[..]].concat();
                let y = self.columns(out, row, head * v.dim, v.dim);
                self.dispatch(kernel, reads, vec![state, y]);
                if segment.speculative {
                    let kept = self.cache.pending_delta(segment.slot, layer, head, i)?;
                    update.into_iter().zip(kept).for_each(|(from, to)| self.copy(from, to));
                }
            }
        }
        Ok(())
    }
}

/// Column of value `i` of a view, counted over its blocks.
fn gate_column(view: View, i: usize) -> usize {
    view.offset + i / view.dim * view.stride + i % view.dim
}
