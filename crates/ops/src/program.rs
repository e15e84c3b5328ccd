//! Recording: ops over handles, placed in one arena.

use crate::backend::{Fusions, Segment, Vector, Weight};
use crate::{Activations, KvFormat, RopeTable};
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
            Op::SelectRows { .. } => "select_rows",
            Op::Sample { .. } => "sample",
            Op::Output { .. } => "output",
        }
    }

    /// Every view that the op reads.
    pub fn inputs(&self) -> Vec<View> {
        match self {
            Op::Embed { .. } => vec![],
            Op::RmsNorm { x, .. } | Op::Rope { x, .. } | Op::ConvSilu { x, .. } | Op::SelectRows { x, .. } => vec![*x],
            Op::Output { x, .. } | Op::Sample { logits: x } => vec![*x],
            Op::Linear { x, epilogue: Epilogue::Residual(residual), .. } => vec![*x, *residual],
            Op::Linear { x, .. } => vec![*x],
            Op::Add { a, b, .. } | Op::DeltaGates { a, b, .. } => vec![*a, *b],
            Op::SwiGlu { gate, up, .. } => vec![*gate, *up],
            Op::SigmoidMul { x, gate, .. } => vec![*x, *gate],
            Op::GatedNorm { x, z, .. } => vec![*x, *z],
            Op::Attention { q, k, v, .. } => vec![*q, *k, *v],
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
            | Op::SelectRows { out, .. } => vec![*out],
            Op::DeltaGates { log_decay, beta, .. } => vec![*log_decay, *beta],
            Op::Sample { .. } | Op::Output { .. } => vec![],
        }
    }

    /// Bytes that the op must move through memory and multiply-adds that it must do, for one step.
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

/// Appends ops and hands out views. Model code calls nothing else.
pub struct Recorder {
    bucket: Bucket,
    ops: Vec<Op>,
    tensors: Vec<TensorInfo>,
}

impl Recorder {
    /// An empty program for these sizes.
    pub fn new(bucket: Bucket) -> Self {
        Recorder { bucket, ops: Vec::new(), tensors: Vec::new() }
    }

    /// The sizes being recorded for.
    pub fn bucket(&self) -> Bucket {
        self.bucket
    }

    /// Ends the recording.
    pub fn finish(self) -> Program {
        Program { bucket: self.bucket, ops: self.ops, tensors: self.tensors }
    }

    fn tensor(&mut self, rows: Rows, cols: usize) -> Tensor {
        self.tensors.push(TensorInfo { rows, cols });
        Tensor(self.tensors.len() as u32 - 1)
    }

    fn whole(&self, tensor: Tensor) -> View {
        let cols = self.tensors[tensor.0 as usize].cols;
        View { tensor, offset: 0, heads: 1, dim: cols, stride: cols }
    }

    fn like(&mut self, x: View, cols: usize) -> Tensor {
        self.tensor(self.tensors[x.tensor.0 as usize].rows, cols)
    }

    fn push(&mut self, out: Tensor, op: Op) -> View {
        self.ops.push(op);
        self.whole(out)
    }

    /// Embedding rows of the step's tokens: `(rows, table.cols)`.
    pub fn embed(&mut self, table: &Weight) -> View {
        let out = self.tensor(Rows::Step, table.cols());
        self.push(out, Op::Embed { table: table.clone(), out })
    }

    /// RMS norm of every block of `x`; blocks keep their shape.
    pub fn rms_norm(&mut self, x: View, gain: &Vector, eps: f32) -> View {
        assert_eq!(gain.len(), x.dim, "gain of an RMS norm");
        let out = self.like(x, x.cols());
        self.push(out, Op::RmsNorm { x, norm: Norm { gain: gain.clone(), eps }, out }).split(x.heads)
    }

    /// `x W^T`.
    pub fn linear(&mut self, x: View, weight: &Weight, activations: Activations) -> View {
        self.record_linear(x, None, weight, activations, Epilogue::Store)
    }

    /// `rms_norm(x) W^T`.
    pub fn norm_linear(&mut self, x: View, norm: &Norm, weight: &Weight, activations: Activations) -> View {
        self.record_linear(x, Some(norm), weight, activations, Epilogue::Store)
    }

    /// `residual + x W^T`.
    pub fn linear_add(&mut self, x: View, weight: &Weight, activations: Activations, residual: View) -> View {
        self.record_linear(x, None, weight, activations, Epilogue::Residual(residual))
    }

    /// `silu(gate) * up`, both halves of `rms_norm(x) W^T`.
    pub fn norm_linear_swiglu(&mut self, x: View, norm: &Norm, weight: &Weight, activations: Activations) -> View {
        self.record_linear(x, Some(norm), weight, activations, Epilogue::SwiGlu)
    }

    fn record_linear(
        &mut self,
        x: View,
        norm: Option<&Norm>,
        weight: &Weight,
        activations: Activations,
        epilogue: Epilogue,
    ) -> View {
        assert!(x.is_contiguous(), "input of {} must be contiguous", weight.name());
        assert_eq!(x.cols(), weight.cols(), "input width of {}", weight.name());
        let cols = match epilogue {
            Epilogue::Store => weight.rows(),
            Epilogue::Residual(r) => {
                assert_eq!(r.cols(), weight.rows(), "residual of {}", weight.name());
                weight.rows()
            }
            Epilogue::SwiGlu => weight.rows() / 2,
        };
        let out = self.like(x, cols);
        self.push(out, Op::Linear { x, norm: norm.cloned(), weight: weight.clone(), activations, epilogue, out })
    }

    /// `x * sigmoid(gate)`.
    pub fn sigmoid_mul(&mut self, x: View, gate: View) -> View {
        assert_eq!(x.cols(), gate.cols(), "gate width");
        let out = self.like(x, x.cols());
        self.push(out, Op::SigmoidMul { x, gate, out })
    }

    /// Rotary embedding; blocks keep their shape.
    pub fn rope(&mut self, x: View, table: &Arc<RopeTable>) -> View {
        assert!(table.rotary_dim() <= x.dim, "rotary dimensions {} of a head of {}", table.rotary_dim(), x.dim);
        let out = self.like(x, x.cols());
        self.push(out, Op::Rope { x, table: table.clone(), out }).split(x.heads)
    }

    /// Causal attention over the cache of KV layer `layer`: `(rows, q.heads * v.dim)`.
    pub fn attention(&mut self, q: View, k: View, v: View, layer: usize, scale: f32) -> View {
        assert!(
            q.heads.is_multiple_of(k.heads) && k.heads == v.heads && q.dim == k.dim && k.dim == v.dim,
            "attention heads"
        );
        let out = self.like(q, q.cols());
        self.push(out, Op::Attention { q, k, v, layer, scale, out })
    }

    /// Causal depthwise convolution and SiLU of state layer `layer`.
    pub fn conv_silu(&mut self, x: View, weight: &Vector, kernel: usize, layer: usize) -> View {
        assert_eq!(weight.len(), x.cols() * kernel, "convolution weight");
        let out = self.like(x, x.cols());
        self.push(out, Op::ConvSilu { x, weight: weight.clone(), kernel, layer, out })
    }

    /// `(log_decay, beta)`, each `(rows, heads)`.
    pub fn delta_gates(&mut self, a: View, b: View, decay_rate: &Vector, dt_bias: &Vector) -> (View, View) {
        assert!(a.cols() == b.cols() && a.cols() == decay_rate.len() && a.cols() == dt_bias.len(), "delta gates");
        let (log_decay, beta) = (self.like(a, a.cols()), self.like(b, b.cols()));
        self.ops.push(Op::DeltaGates {
            a,
            b,
            decay_rate: decay_rate.clone(),
            dt_bias: dt_bias.clone(),
            log_decay,
            beta,
        });
        (self.whole(log_decay), self.whole(beta))
    }

    /// Gated delta rule of state layer `layer`: `(rows, v.heads * v.dim)` as `v.heads` blocks.
    pub fn gated_delta(&mut self, qkv: [View; 3], gates: (View, View), map: HeadMap, eps: f32, layer: usize) -> View {
        let [q, k, v] = qkv;
        let (log_decay, beta) = gates;
        assert!(q.heads == k.heads && q.dim == k.dim && v.heads.is_multiple_of(k.heads), "delta rule heads");
        assert!(log_decay.cols() == v.heads && beta.cols() == v.heads, "delta rule gates");
        let out = self.like(v, v.cols());
        self.push(out, Op::GatedDelta { q, k, v, log_decay, beta, map, eps, layer, out }).split(v.heads)
    }

    /// `rms_norm(x) * gain * silu(z)`, block by block.
    pub fn gated_norm(&mut self, x: View, z: View, gain: &Vector, eps: f32) -> View {
        assert!(gain.len() == x.dim && z.cols() == x.cols(), "gated norm");
        let out = self.like(x, x.cols());
        self.push(out, Op::GatedNorm { x, z, norm: Norm { gain: gain.clone(), eps }, out })
    }

    /// The rows whose logits are wanted.
    pub fn select_rows(&mut self, x: View) -> View {
        assert!(x.is_contiguous(), "selected rows must be contiguous");
        let out = self.tensor(Rows::Logits, x.cols());
        self.push(out, Op::SelectRows { x, out })
    }

    /// Chooses a token for each logit row. Once in a program.
    pub fn sample(&mut self, logits: View) {
        let rows = self.tensors[logits.tensor.0 as usize].rows;
        assert!(logits.is_contiguous() && rows == Rows::Logits, "sampled logits must be contiguous logit rows");
        assert!(!self.ops.iter().any(|op| matches!(op, Op::Sample { .. })), "a program samples once");
        self.ops.push(Op::Sample { logits });
    }

    /// Names a result of the program.
    pub fn output(&mut self, x: View, name: &str) {
        assert!(x.is_contiguous(), "output {name} must be contiguous");
        self.ops.push(Op::Output { x, name: name.into() });
    }
}
