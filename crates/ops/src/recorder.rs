//! Recording: the methods that a model calls.

use crate::backend::{Vector, Weight};
use crate::program::{Bucket, Conv2d, Epilogue, HeadMap, Norm, Op, Program, Rows, Seen, Tensor, TensorInfo, View};
use crate::{Activations, RopeTable};
use std::ops::Range;
use std::sync::Arc;

/// Appends ops and hands out views. Model code calls nothing else.
pub struct Recorder {
    pub(crate) bucket: Bucket,
    pub(crate) ops: Vec<Op>,
    pub(crate) tensors: Vec<TensorInfo>,
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

    pub(crate) fn tensor(&mut self, rows: Rows, cols: usize) -> Tensor {
        self.tensors.push(TensorInfo { rows, cols });
        Tensor(self.tensors.len() as u32 - 1)
    }

    pub(crate) fn whole(&self, tensor: Tensor) -> View {
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

    /// `silu(gate) * up`, both halves of `x W^T`.
    pub fn linear_swiglu(&mut self, x: View, weight: &Weight, activations: Activations) -> View {
        self.record_linear(x, None, weight, activations, Epilogue::SwiGlu)
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

    /// A temporary of `rows` rows that the caller fills in each step.
    pub fn input(&mut self, name: &str, rows: usize, cols: usize) -> View {
        let out = self.tensor(Rows::Fixed(rows), cols);
        self.push(out, Op::Input { name: name.into(), out })
    }

    /// Rows of a view that has the same number in every step.
    ///
    /// # Panics
    /// When it depends on the step: a fault of the model's code.
    fn fixed(&self, x: View) -> usize {
        match self.tensors[x.tensor.0 as usize].rows {
            Rows::Fixed(rows) => rows,
            other => panic!("{other:?} where a fixed number of rows is wanted"),
        }
    }

    /// Layer norm, scaled by `1 + scale` and shifted; both have one row.
    pub fn modulate(&mut self, x: View, scale: View, shift: View, eps: f32) -> View {
        assert!(x.is_contiguous() && scale.is_contiguous() && shift.is_contiguous(), "modulated rows");
        assert!(self.fixed(scale) == 1 && self.fixed(shift) == 1, "rows of a modulation");
        assert!(scale.cols() == x.cols() && shift.cols() == x.cols(), "width of a modulation");
        let out = self.like(x, x.cols());
        self.push(out, Op::Modulate { x, scale, shift, eps, out })
    }

    /// `x + gate * y`; the gate has one row.
    pub fn gated_add(&mut self, x: View, gate: View, y: View) -> View {
        assert!(x.is_contiguous() && gate.is_contiguous() && y.is_contiguous(), "gated rows");
        assert!(self.fixed(gate) == 1 && gate.cols() == x.cols() && y.cols() == x.cols(), "gate of a sum");
        let out = self.like(x, x.cols());
        self.push(out, Op::GatedAdd { x, gate, y, out })
    }

    /// Turns pairs of neighbours; blocks keep their shape. `angles` is `(rows, x.dim)`.
    pub fn rotate_pairs(&mut self, x: View, angles: View) -> View {
        assert!(angles.is_contiguous() && angles.cols() == x.dim && x.dim.is_multiple_of(2), "angles of a rotation");
        let out = self.like(x, x.cols());
        self.push(out, Op::RotatePairs { x, angles, out }).split(x.heads)
    }

    /// Attention between all rows: `(rows, q.heads * v.dim)`.
    pub fn full_attention(&mut self, q: View, k: View, v: View, scale: f32, seen: Seen) -> View {
        assert!(
            q.heads.is_multiple_of(k.heads) && k.heads == v.heads && q.dim == k.dim && k.dim == v.dim,
            "attention heads"
        );
        let out = self.like(q, q.cols());
        self.push(out, Op::FullAttention { q, k, v, scale, seen, out })
    }

    /// The rows of all parts.
    pub fn join_rows(&mut self, parts: &[View]) -> View {
        assert!(parts.iter().all(|p| p.cols() == parts[0].cols()), "columns of joined rows");
        let rows = parts.iter().map(|p| self.fixed(*p)).sum();
        let out = self.tensor(Rows::Fixed(rows), parts[0].cols());
        self.push(out, Op::JoinRows { parts: parts.to_vec(), out })
    }

    /// Some rows.
    pub fn take_rows(&mut self, x: View, rows: Range<usize>) -> View {
        assert!(rows.start <= rows.end && rows.end <= self.fixed(x), "rows {rows:?} of {}", self.fixed(x));
        let out = self.tensor(Rows::Fixed(rows.len()), x.cols());
        self.push(out, Op::TakeRows { x, start: rows.start, out })
    }

    /// The columns of all parts.
    pub fn join_columns(&mut self, parts: &[View]) -> View {
        let rows = |x: &View| self.tensors[x.tensor.0 as usize].rows;
        assert!(parts.iter().all(|p| rows(p) == rows(&parts[0])), "rows of joined columns");
        let out = self.like(parts[0], parts.iter().map(View::cols).sum());
        self.push(out, Op::JoinColumns { parts: parts.to_vec(), out })
    }

    /// Factor and offset of every column that normalise groups of columns over all rows.
    pub fn group_norm(&mut self, x: View, groups: usize, gain: &Vector, bias: &Vector, eps: f32) -> View {
        assert!(x.is_contiguous() && groups > 0 && x.cols().is_multiple_of(groups), "groups of a norm");
        assert!(gain.len() == x.cols() && bias.len() == x.cols(), "gain and bias of a group norm");
        let out = self.tensor(Rows::Fixed(1), 2 * x.cols());
        self.push(out, Op::GroupNorm { x, groups, gain: gain.clone(), bias: bias.clone(), eps, out })
    }

    /// Convolution of a picture: `(pixels, weight.rows())`, with four times the pixels after `upsample`.
    pub fn conv2d(&mut self, conv: Conv2d) -> View {
        let Conv2d { x, grid, norm, upsample, weight, bias, kernel, residual } = &conv;
        let pixels = grid.pixels() * if *upsample { 4 } else { 1 };
        assert!(x.is_contiguous() && self.fixed(*x) == grid.pixels(), "pixels of {}", weight.name());
        assert!(*kernel == 1 || *kernel == 3, "kernel of {}", weight.name());
        assert_eq!(weight.cols(), kernel * kernel * x.cols(), "channels of {}", weight.name());
        assert_eq!(bias.len(), weight.rows(), "bias of {}", weight.name());
        if let Some(norm) = norm {
            assert!(norm.affine.is_contiguous() && self.fixed(norm.affine) == 1, "rows of a norm");
            assert_eq!(norm.affine.cols(), 2 * x.cols(), "columns of a norm");
        }
        if let Some(residual) = residual {
            assert!(residual.is_contiguous() && self.fixed(*residual) == pixels, "residual of {}", weight.name());
            assert_eq!(residual.cols(), weight.rows(), "residual of {}", weight.name());
        }
        let out = self.tensor(Rows::Fixed(pixels), weight.rows());
        self.push(out, Op::Conv2d { conv, out })
    }

    /// Names a result of the program.
    pub fn output(&mut self, x: View, name: &str) {
        assert!(x.is_contiguous(), "output {name} must be contiguous");
        self.ops.push(Op::Output { x, name: name.into() });
    }
}
