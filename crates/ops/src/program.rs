//! Ops over handles, placed in one arena.

use crate::backend::{Fusions, Segment, Vector, Weight};
use crate::{Activations, KvFormat, Recorder, RopeTable};
use std::ops::Range;
use std::sync::Arc;

/// The sizes that a plan is made for. A step may use fewer rows, never more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Most rows (tokens) of one step.
    pub rows: usize,
    /// Most rows whose logits are wanted.
    pub logits: usize,
    /// Most tokens that a sequence may hold, this step's included.
    pub context: usize,
}

/// How many rows a tensor has in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// One for each token of the step.
    Step,
    /// One for each wanted logit row.
    Logits,
    /// So many in every step: latents, pixels.
    Fixed(usize),
}

/// A temporary of a program: f32, `(rows, cols)`, row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tensor(pub u32);

/// Shape of a temporary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorInfo {
    /// Rows, known at each step.
    pub rows: Rows,
    /// Values in a row.
    pub cols: usize,
}

/// Columns of a temporary, seen as `heads` blocks of `dim` values whose starts lie `stride` apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The temporary.
    pub tensor: Tensor,
    /// Column of the first value.
    pub offset: usize,
    /// Blocks in a row.
    pub heads: usize,
    /// Values in a block.
    pub dim: usize,
    /// Distance between block starts.
    pub stride: usize,
}

impl View {
    /// Values that the view covers in one row.
    pub fn cols(&self) -> usize {
        self.heads * self.dim
    }
    /// True when the covered values of a row lie side by side.
    pub fn is_contiguous(&self) -> bool {
        self.heads == 1 || self.stride == self.dim
    }
    /// Some columns of a contiguous view.
    ///
    /// # Panics
    /// When the view is not contiguous or the range leaves it: a fault of the model's code.
    #[must_use]
    pub fn columns(self, range: Range<usize>) -> View {
        assert!(
            self.is_contiguous() && range.start <= range.end && range.end <= self.cols(),
            "columns {range:?} of {self:?}"
        );
        let dim = range.end - range.start;
        View { tensor: self.tensor, offset: self.offset + range.start, heads: 1, dim, stride: dim }
    }
    /// A contiguous view cut into `heads` equal blocks.
    ///
    /// # Panics
    /// When the columns do not divide.
    #[must_use]
    pub fn split(self, heads: usize) -> View {
        assert!(self.is_contiguous() && self.cols().is_multiple_of(heads), "{} columns in {heads} heads", self.cols());
        let dim = self.cols() / heads;
        View { heads, dim, stride: dim, ..self }
    }
    /// Part of each block: `[query, gate]` pairs are `split(heads).within(0..d)` and `.within(d..2 * d)`.
    ///
    /// # Panics
    /// When the range leaves a block.
    #[must_use]
    pub fn within(self, range: Range<usize>) -> View {
        assert!(range.start <= range.end && range.end <= self.dim, "{range:?} within a block of {}", self.dim);
        View { offset: self.offset + range.start, dim: range.end - range.start, ..self }
    }
}

/// RMS norm before a matmul: `x * rsqrt(mean(x^2) + eps) * gain`.
#[derive(Clone)]
pub struct Norm {
    /// Gain, one for each column.
    pub gain: Vector,
    /// Added to the mean square.
    pub eps: f32,
}

/// What happens to a matmul's result before it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Epilogue {
    /// Nothing.
    Store,
    /// `y + residual`.
    Residual(View),
    /// The weight is gate and up projection row-concatenated: `silu(y[..n/2]) * y[n/2..]`.
    SwiGlu,
}

/// Which key head serves a value head, when there are more value heads than key heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadMap {
    /// `key = value / (values / keys)`: Hugging Face and MLX.
    Grouped,
    /// `key = value mod keys`: GGUF.
    Tiled,
}

/// Which keys a row of [`Op::FullAttention`] sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// All of them.
    All,
    /// Row i sees key j if `j <= i` and `j < keys`: a text whose rows from `keys` on are padding.
    Causal {
        /// Keys that are no padding, 1 or more.
        keys: usize,
    },
}

/// Rows of a temporary as a picture: row `y * width + x` is a pixel, columns are channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Rows of pixels.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
}

impl Grid {
    /// Pixels.
    pub fn pixels(self) -> usize {
        self.height * self.width
    }
}

/// What [`Op::Conv2d`] does to its input first: channel c becomes `factor[c] x + offset[c]`, then SiLU where wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelNorm {
    /// One row: all factors, then all offsets, as [`Op::GroupNorm`] writes them.
    pub affine: View,
    /// Whether SiLU follows.
    pub silu: bool,
}

/// What [`Op::Conv2d`] multiplies.
#[derive(Clone)]
pub struct Conv2d {
    /// A row for each pixel of `grid`, a column for each channel.
    pub x: View,
    /// Pixels of the input.
    pub grid: Grid,
    /// What is done to the input first.
    pub norm: Option<ChannelNorm>,
    /// Whether every pixel of the input is doubled in both directions.
    pub upsample: bool,
    /// `(channels out, kernel * kernel * channels in)`, columns ordered `[dy][dx][channel]`.
    pub weight: Weight,
    /// A value for each channel of the result.
    pub bias: Vector,
    /// Pixels of a side of the window: 1 or 3.
    pub kernel: usize,
    /// What is added to the result.
    pub residual: Option<View>,
}

/// One operation. All temporaries are f32; sums are f32 or wider.
#[expect(missing_docs, reason = "each variant's formula names its fields")]
#[derive(Clone)]
pub enum Op {
    /// `out[r] = table[token[r]]`.
    Embed { table: Weight, out: Tensor },
    /// Each block of each row: `x * rsqrt(mean(x^2) + eps) * gain`, gain of `x.dim` values.
    RmsNorm { x: View, norm: Norm, out: Tensor },
    /// `out = epilogue(norm(x) W^T)`, W of `(rows, cols)`; inputs of packed weights rounded as `activations` says.
    Linear { x: View, norm: Option<Norm>, weight: Weight, activations: Activations, epilogue: Epilogue, out: Tensor },
    /// `out = a + b`.
    Add { a: View, b: View, out: Tensor },
    /// `out = silu(gate) * up`.
    SwiGlu { gate: View, up: View, out: Tensor },
    /// `out = x * sigmoid(gate)`.
    SigmoidMul { x: View, gate: View, out: Tensor },
    /// Rotary embedding of every block at the row's position.
    Rope { x: View, table: Arc<RopeTable>, out: Tensor },
    /// Appends `k` and `v` to the sequence's pages of this KV layer, then causal softmax attention of `q` over them:
    /// `out = softmax(scale q k^T) v`. Query head h reads key head `h / (q.heads / k.heads)`. Over pages of integers a
    /// device may round queries, and weights times scales, to 16 bits of the largest: half a step is `2^-16` of it.
    Attention { q: View, k: View, v: View, layer: usize, scale: f32, out: Tensor },
    /// Depthwise causal convolution over the sequence, then SiLU: `y[t] = silu(sum_j w[c][j] x[t - kernel + 1 + j])`.
    /// `weight` is `(channels, kernel)`. The window of raw inputs lives in the state slot.
    ConvSilu { x: View, weight: Vector, kernel: usize, layer: usize, out: Tensor },
    /// `log_decay = decay_rate * softplus(a + dt_bias)` (decay_rate is `-exp(A_log)`), `beta = sigmoid(b)`; per head.
    DeltaGates { a: View, b: View, decay_rate: Vector, dt_bias: Vector, log_decay: Tensor, beta: Tensor },
    /// Gated delta rule, one matrix S `(key_dim, value_dim)` for each value head, f32:
    /// q, k L2-normalised (`x * rsqrt(sum(x^2) + eps)`), q scaled by `key_dim^-0.5`; `S *= exp(log_decay)`;
    /// `d = beta * (v - S^T k)`; `S += k d^T`; `out = S^T q`.
    GatedDelta {
        q: View,
        k: View,
        v: View,
        log_decay: View,
        beta: View,
        map: HeadMap,
        eps: f32,
        layer: usize,
        out: Tensor,
    },
    /// Each block: `rms_norm(x) * gain * silu(z)`.
    GatedNorm { x: View, z: View, norm: Norm, out: Tensor },
    /// Values that the caller gives with each step under this name, `(rows, cols)` row-major.
    Input { name: Arc<str>, out: Tensor },
    /// `out = (1 + scale) (x - mean) rsqrt(var + eps) + shift`, mean and variance of each row; scale and shift have one row.
    Modulate { x: View, scale: View, shift: View, eps: f32, out: Tensor },
    /// `out = x + gate * y`; the gate has one row.
    GatedAdd { x: View, gate: View, y: View, out: Tensor },
    /// Pairs `(2i, 2i + 1)` of every block turned by the row's angles, which are `dim / 2` cosines, then as many sines:
    /// `(a cos - b sin, b cos + a sin)`.
    RotatePairs { x: View, angles: View, out: Tensor },
    /// Softmax attention between the rows of the step, without a cache and whatever its segments:
    /// `out = softmax(scale q k^T) v` over the keys that are seen. Query head h reads key head
    /// `h / (q.heads / k.heads)`.
    FullAttention { q: View, k: View, v: View, scale: f32, seen: Seen, out: Tensor },
    /// The rows of all parts, one part after the other.
    JoinRows { parts: Vec<View>, out: Tensor },
    /// As many rows of `x` as `out` has, from `start` on.
    TakeRows { x: View, start: usize, out: Tensor },
    /// The columns of all parts side by side.
    JoinColumns { parts: Vec<View>, out: Tensor },
    /// Statistics of a group norm over all rows: with mean and variance of each group of `cols / groups` columns, factors
    /// `gain rsqrt(var + eps)` and offsets `bias - mean factor` of every column, in one row.
    GroupNorm { x: View, groups: usize, gain: Vector, bias: Vector, eps: f32, out: Tensor },
    /// Convolution over the pixels of `grid` with zeros around it: `out[p] = bias + sum_(dy, dx) W[dy, dx] x'[p + (dy, dx)]`
    /// plus the residual, with the operands of `conv`; `x'` is the input after norm and doubling. Over weights of bf16 a device
    /// may take each `x'` as the sum of two numbers of bf16, which is off by `2^-18` of it at most.
    Conv2d { conv: Conv2d, out: Tensor },
    /// Keeps the rows whose logits are wanted.
    SelectRows { x: View, out: Tensor },
    /// One token for each logit row, as the step's [`Draw`](crate::Draw) says. The tokens go to the caller, and stay with
    /// the cache for the next step's [`Carried`](crate::Carried) rows.
    Sample { logits: View },
    /// Hands a result to the caller.
    Output { x: View, name: Arc<str> },
}

impl Op {
    /// The op's name in reports and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Linear { .. } => "linear",
            Op::Add { .. } => "add",
            Op::SwiGlu { .. } => "swiglu",
            Op::SigmoidMul { .. } => "sigmoid_mul",
            Op::Rope { .. } => "rope",
            Op::Attention { .. } => "attention",
            Op::ConvSilu { .. } => "conv_silu",
            Op::DeltaGates { .. } => "delta_gates",
            Op::GatedDelta { .. } => "gated_delta",
            Op::GatedNorm { .. } => "gated_norm",
            Op::Input { .. } => "input",
            Op::Modulate { .. } => "modulate",
            Op::GatedAdd { .. } => "gated_add",
            Op::RotatePairs { .. } => "rotate_pairs",
            Op::FullAttention { .. } => "full_attention",
            Op::JoinRows { .. } => "join_rows",
            Op::TakeRows { .. } => "take_rows",
            Op::JoinColumns { .. } => "join_columns",
            Op::GroupNorm { .. } => "group_norm",
            Op::Conv2d { .. } => "conv2d",
            Op::SelectRows { .. } => "select_rows",
            Op::Sample { .. } => "sample",
            Op::Output { .. } => "output",
        }
    }

    /// Every view that the op reads.
    pub fn inputs(&self) -> Vec<View> {
        match self {
            Op::Embed { .. } | Op::Input { .. } => vec![],
            Op::RmsNorm { x, .. } | Op::Rope { x, .. } | Op::ConvSilu { x, .. } | Op::SelectRows { x, .. } => vec![*x],
            Op::TakeRows { x, .. } | Op::GroupNorm { x, .. } => vec![*x],
            Op::Modulate { x, scale, shift, .. } => vec![*x, *scale, *shift],
            Op::GatedAdd { x, gate, y, .. } => vec![*x, *gate, *y],
            Op::RotatePairs { x, angles, .. } => vec![*x, *angles],
            Op::JoinRows { parts, .. } | Op::JoinColumns { parts, .. } => parts.clone(),
            Op::Conv2d { conv, .. } => {
                std::iter::once(conv.x).chain(conv.norm.map(|n| n.affine)).chain(conv.residual).collect()
            }
            Op::Output { x, .. } | Op::Sample { logits: x } => vec![*x],
            Op::Linear { x, epilogue: Epilogue::Residual(residual), .. } => vec![*x, *residual],
            Op::Linear { x, .. } => vec![*x],
            Op::Add { a, b, .. } | Op::DeltaGates { a, b, .. } => vec![*a, *b],
            Op::SwiGlu { gate, up, .. } => vec![*gate, *up],
            Op::SigmoidMul { x, gate, .. } => vec![*x, *gate],
            Op::GatedNorm { x, z, .. } => vec![*x, *z],
            Op::Attention { q, k, v, .. } | Op::FullAttention { q, k, v, .. } => vec![*q, *k, *v],
            Op::GatedDelta { q, k, v, log_decay, beta, .. } => vec![*q, *k, *v, *log_decay, *beta],
        }
    }

    /// Every temporary that the op writes.
    pub fn outputs(&self) -> Vec<Tensor> {
        match self {
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Add { out, .. }
            | Op::SwiGlu { out, .. }
            | Op::SigmoidMul { out, .. }
            | Op::Rope { out, .. }
            | Op::Attention { out, .. }
            | Op::ConvSilu { out, .. }
            | Op::GatedDelta { out, .. }
            | Op::GatedNorm { out, .. }
            | Op::Input { out, .. }
            | Op::Modulate { out, .. }
            | Op::GatedAdd { out, .. }
            | Op::RotatePairs { out, .. }
            | Op::FullAttention { out, .. }
            | Op::JoinRows { out, .. }
            | Op::TakeRows { out, .. }
            | Op::JoinColumns { out, .. }
            | Op::GroupNorm { out, .. }
            | Op::Conv2d { out, .. }
            | Op::SelectRows { out, .. } => vec![*out],
            Op::DeltaGates { log_decay, beta, .. } => vec![*log_decay, *beta],
            Op::Sample { .. } | Op::Output { .. } => vec![],
        }
    }

    /// Bytes that the op must move through memory and multiply-adds that it must do, for one step; `rows` are those of
    /// its result.
    ///
    /// Weights count once, cached keys and values once for each query row block, state read and written once;
    /// temporaries are taken to stay in a cache.
    pub fn cost(&self, rows: usize, segments: &[Segment], kv: KvFormat) -> StageCost {
        let mut cost = StageCost { label: self.name().to_owned(), bytes: 0, macs: 0 };
        match self {
            Op::Embed { table, .. } => {
                cost.bytes = table.resident_bytes() / table.rows().max(1) as u64 * rows as u64;
            }
            Op::Linear { weight, .. } => {
                cost.bytes = weight.resident_bytes();
                cost.macs = (weight.rows() * weight.cols() * rows) as u64;
                cost.label = weight.name().to_owned();
            }
            Op::Attention { q, k, .. } => {
                for s in segments {
                    let n = s.rows.len() as u64;
                    let context = s.past as u64 + n;
                    cost.bytes += context * 2 * (k.heads * kv.head_bytes(k.dim)) as u64;
                    // Row i sees past + i + 1 tokens.
                    let pairs = n * s.past as u64 + n * (n + 1) / 2;
                    cost.macs += pairs * 2 * q.cols() as u64;
                }
            }
            Op::FullAttention { q, k, seen, .. } => {
                let keys = |row| match *seen {
                    Seen::All => rows,
                    Seen::Causal { keys } => keys.min(row + 1),
                };
                let pairs: usize = (0..rows).map(keys).sum();
                cost.bytes = 8 * (rows * k.cols()) as u64;
                cost.macs = (pairs * 2 * q.cols()) as u64;
            }
            Op::Conv2d { conv: Conv2d { weight, .. }, .. } => {
                cost.bytes = weight.resident_bytes();
                cost.macs = (weight.rows() * weight.cols() * rows) as u64;
                cost.label = weight.name().to_owned();
            }
            Op::GatedDelta { q, v, .. } => {
                let state = (v.heads * q.dim * v.dim) as u64;
                cost.bytes = state * 8 * segments.len() as u64;
                cost.macs = state * 3 * rows as u64;
            }
            _ => {}
        }
        cost
    }
}

/// What one op moves and computes in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageCost {
    /// Weight name, or op name.
    pub label: String,
    /// Bytes through memory.
    pub bytes: u64,
    /// Multiply-adds.
    pub macs: u64,
}

/// Where a temporary lies in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Index of its first f32.
    pub offset: usize,
    /// Most f32 values that it can hold (bucket rows times columns).
    pub len: usize,
}

/// A recorded forward pass.
#[derive(Clone)]
pub struct Program {
    /// The sizes it was recorded for.
    pub bucket: Bucket,
    /// In execution order.
    pub ops: Vec<Op>,
    /// Shape of each temporary, indexed by [`Tensor`].
    pub tensors: Vec<TensorInfo>,
}

impl Program {
    /// Rewrites the fused forms that a backend does not run itself into the small ops that they equal.
    #[must_use]
    pub fn lower(self, fusions: Fusions) -> Program {
        let Program { bucket, ops, tensors } = self;
        let mut rec = Recorder { bucket, ops: Vec::with_capacity(ops.len()), tensors };
        for op in ops {
            let Op::Linear { mut x, mut norm, weight, activations, mut epilogue, out } = op else {
                rec.ops.push(op);
                continue;
            };
            if !fusions.norm
                && let Some(norm) = norm.take()
            {
                x = rec.rms_norm(x, &norm.gain, norm.eps);
            }
            let fused = match epilogue {
                Epilogue::Store => true,
                Epilogue::Residual(_) => fusions.residual,
                Epilogue::SwiGlu => fusions.swiglu,
            };
            if fused {
                rec.ops.push(Op::Linear { x, norm, weight, activations, epilogue, out });
                continue;
            }
            let wide = rec.tensor(rec.tensors[out.0 as usize].rows, weight.rows());
            let y = rec.whole(wide);
            let finish = std::mem::replace(&mut epilogue, Epilogue::Store);
            rec.ops.push(Op::Linear { x, norm, weight, activations, epilogue, out: wide });
            match finish {
                Epilogue::Residual(residual) => rec.ops.push(Op::Add { a: y, b: residual, out }),
                Epilogue::SwiGlu => {
                    let half = y.cols() / 2;
                    rec.ops.push(Op::SwiGlu { gate: y.columns(0..half), up: y.columns(half..2 * half), out });
                }
                Epilogue::Store => {}
            }
        }
        rec.finish()
    }

    /// The logits that the program samples, if it does.
    pub fn sampled_logits(&self) -> Option<View> {
        self.ops.iter().find_map(|op| if let Op::Sample { logits } = op { Some(*logits) } else { None })
    }

    /// Rows that a temporary can have.
    pub fn max_rows(&self, tensor: Tensor) -> usize {
        match self.tensors[tensor.0 as usize].rows {
            Rows::Step => self.bucket.rows,
            Rows::Logits => self.bucket.logits,
            Rows::Fixed(rows) => rows,
        }
    }

    /// Places every temporary in one arena, so that two whose lives overlap never share memory. Returns the
    /// placements and the arena's length in f32 values.
    pub fn place(&self) -> (Vec<Placement>, usize) {
        let mut last_use = vec![0usize; self.tensors.len()];
        for (at, op) in self.ops.iter().enumerate() {
            for t in op.inputs().iter().map(|v| v.tensor).chain(op.outputs()) {
                last_use[t.0 as usize] = at;
            }
        }
        let mut placements = vec![Placement { offset: 0, len: 0 }; self.tensors.len()];
        let mut live: Vec<(Placement, usize)> = Vec::new();
        let mut total = 0;
        for (at, op) in self.ops.iter().enumerate() {
            live.retain(|(_, last)| *last >= at);
            for t in op.outputs() {
                let id = t.0 as usize;
                // Starts stay 64-byte aligned.
                let len = (self.max_rows(t) * self.tensors[id].cols).next_multiple_of(16);
                let mut offset = 0;
                live.sort_by_key(|(p, _)| p.offset);
                for (p, _) in &live {
                    if offset + len <= p.offset {
                        break;
                    }
                    offset = offset.max(p.offset + p.len);
                }
                placements[id] = Placement { offset, len };
                live.push((placements[id], last_use[id]));
                total = total.max(offset + len);
            }
        }
        (placements, total)
    }
}
