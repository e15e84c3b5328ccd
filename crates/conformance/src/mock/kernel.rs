//! What the device computes: plain f32 loops over the bytes of a dispatch's bindings, one row or one head at a time.

use super::{codec, image, sample};
use onebit_ops::{Activations, Sampled, View, quantize_row};
use onebit_quant::{Format, Matrix};

/// Blocks of a row as a binding holds them: from the first block's start to the last block's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocks {
    heads: usize,
    pub(super) dim: usize,
    stride: usize,
}

impl From<View> for Blocks {
    fn from(view: View) -> Self {
        (view.heads, view.dim, view.stride).into()
    }
}

impl From<(usize, usize, usize)> for Blocks {
    fn from((heads, dim, stride): (usize, usize, usize)) -> Self {
        Blocks { heads, dim, stride }
    }
}

impl Blocks {
    /// f32 values from the first to the last.
    pub(super) fn span(self) -> usize {
        (self.heads - 1) * self.stride + self.dim
    }

    pub(super) fn gather(self, bytes: &[u8]) -> Vec<f32> {
        let all = floats(bytes);
        (0..self.heads).flat_map(|h| all[h * self.stride..][..self.dim].iter().copied()).collect()
    }
}

/// Combining two rows value by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Zip {
    Add,
    SwiGlu,
    SigmoidMul,
}

/// Rows of a weight that one set of bindings holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) format: Format,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Slice {
    /// Bindings of codes, scales and biases.
    pub(super) fn bindings(self) -> usize {
        if matches!(self.format, Format::Affine { .. }) { 3 } else { 1 }
    }

    pub(super) fn matrix<'a>(self, reads: &[&'a [u8]]) -> Result<Matrix<'a>, String> {
        let (scales, biases) = if self.bindings() == 3 { (reads[1], reads[2]) } else { (&[][..], &[][..]) };
        Matrix::new(self.format, self.rows, self.cols, reads[0], scales, biases).map_err(|e| e.to_string())
    }
}

/// A kernel and its constants. Bindings: first those that are read, then those that are written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kernel {
    /// tokens, weight slice -> row. Writes only when the token of this row of the step lies in the slice.
    Embed { row: usize, first: usize, slice: Slice },
    /// x, gain -> row.
    RmsNorm { x: Blocks, eps: f32 },
    /// x, z, gain -> row.
    GatedNorm { x: Blocks, z: Blocks, eps: f32 },
    /// x, [gain], weight slice, [residual] -> the slice's outputs.
    Linear { slice: Slice, norm: Option<f32>, residual: bool, activations: Activations },
    /// a, b -> row.
    Zip { op: Zip, a: Blocks, b: Blocks },
    /// x, positions, table of frequencies and axes -> row.
    Rope { row: usize, x: Blocks, pairs: usize, factor: f32 },
    /// head -> page.
    Store { at: usize, codec: codec::Kv },
    /// q, keys page, values page -> running maximum, sum and weighted values.
    Attend { rows: usize, first: bool, scale: f32, codec: codec::Kv },
    /// running state -> head.
    AttendEnd,
    /// x, taps -> window, y. Moves the window on by one row.
    Conv { kernel: usize },
    /// a, b, decay rate, dt bias -> log decay, beta.
    DeltaGates { a: Blocks, b: Blocks },
    /// q, k, v, log decay, beta -> state, y. Moves the state on by one row.
    Delta { eps: f32 },
    /// A part of the choice of a token.
    Sample(sample::Kernel),
    /// A part of an operation of image models.
    Image(image::Kernel),
}

impl Kernel {
    /// Runs it on its bindings.
    pub(super) fn run(self, reads: &[&[u8]], writes: &mut [Vec<u8>]) -> Result<(), String> {
        match self {
            Kernel::Embed { row, first, slice } => {
                let token = word(reads[0], row);
                if token == Sampled::NOT_FINITE {
                    put(&vec![f32::NAN; slice.cols], &mut writes[0]);
                }
                let token = token as usize;
                if (first..first + slice.rows).contains(&token) {
                    let mut out = vec![0.0; slice.cols];
                    slice.matrix(&reads[1..])?.decode_row(token - first, &mut out);
                    put(&out, &mut writes[0]);
                }
            }
            Kernel::RmsNorm { x, eps } => {
                put(&rms_norm(x.gather(reads[0]), x.dim, &floats(reads[1]), eps), &mut writes[0]);
            }
            Kernel::GatedNorm { x, z, eps } => {
                let mut y = rms_norm(x.gather(reads[0]), x.dim, &floats(reads[2]), eps);
                y.iter_mut().zip(z.gather(reads[1])).for_each(|(y, z)| *y *= silu(z));
                put(&y, &mut writes[0]);
            }
            Kernel::Linear { slice, norm, residual, activations } => {
                let mut x = floats(reads[0]);
                let mut next = 1;
                if let Some(eps) = norm {
                    let cols = x.len();
                    x = rms_norm(x, cols, &floats(reads[1]), eps);
                    next = 2;
                }
                let mut y = linear(&x, &slice.matrix(&reads[next..])?, activations);
                if residual {
                    let added = floats(reads[next + slice.bindings()]);
                    y.iter_mut().zip(added).for_each(|(y, r)| *y += r);
                }
                put(&y, &mut writes[0]);
            }
            Kernel::Zip { op, a, b } => {
                let combine = |(a, b): (f32, f32)| match op {
                    Zip::Add => a + b,
                    Zip::SwiGlu => silu(a) * b,
                    Zip::SigmoidMul => a * sigmoid(b),
                };
                let y: Vec<f32> = a.gather(reads[0]).into_iter().zip(b.gather(reads[1])).map(combine).collect();
                put(&y, &mut writes[0]);
            }
            Kernel::Rope { row, x, pairs, factor } => {
                let mut y = x.gather(reads[0]);
                for head in y.chunks_exact_mut(x.dim) {
                    for i in 0..pairs {
                        let axis = word(reads[2], pairs + i) as usize;
                        let position = word(reads[1], 3 * row + axis) as f32;
                        let angle = f64::from(position * float(reads[2], i));
                        let (cos, sin) = (angle.cos() as f32 * factor, angle.sin() as f32 * factor);
                        let (a, b) = (head[i], head[i + pairs]);
                        head[i] = a * cos - b * sin;
                        head[i + pairs] = b * cos + a * sin;
                    }
                }
                put(&y, &mut writes[0]);
            }
            Kernel::Store { at, codec } => codec.store(&floats(reads[0]), at, &mut writes[0]),
            Kernel::Attend { rows, first, scale, codec } => {
                let query = floats(reads[0]);
                let mut running = floats(&writes[0]);
                if first {
                    running.fill(0.0);
                    running[0] = f32::NEG_INFINITY;
                }
                for at in 0..rows {
                    let score = scale * dot(&query, &codec.load(at, reads[1]));
                    let top = running[0].max(score);
                    let (old, new) = ((running[0] - top).exp(), (score - top).exp());
                    running[0] = top;
                    running[1] = running[1] * old + new;
                    let value = codec.load(at, reads[2]);
                    running[2..].iter_mut().zip(value).for_each(|(sum, v)| *sum = *sum * old + new * v);
                }
                put(&running, &mut writes[0]);
            }
            Kernel::AttendEnd => {
                let running = floats(reads[0]);
                let y: Vec<f32> = running[2..].iter().map(|v| v / running[1]).collect();
                put(&y, &mut writes[0]);
            }
            Kernel::Conv { kernel } => {
                let (x, taps, mut window) = (floats(reads[0]), floats(reads[1]), floats(&writes[0]));
                let mut y = Vec::with_capacity(x.len());
                for (c, x) in x.iter().enumerate() {
                    let held = &mut window[c * (kernel - 1)..(c + 1) * (kernel - 1)];
                    let taps = &taps[c * kernel..(c + 1) * kernel];
                    y.push(silu(dot(held, taps) + taps[kernel - 1] * x));
                    if let Some(last) = kernel.checked_sub(2) {
                        held.rotate_left(1);
                        held[last] = *x;
                    }
                }
                put(&window, &mut writes[0]);
                put(&y, &mut writes[1]);
            }
            Kernel::DeltaGates { a, b } => {
                let (rate, bias) = (floats(reads[2]), floats(reads[3]));
                let mut decay = a.gather(reads[0]);
                for (h, v) in decay.iter_mut().enumerate() {
                    let x = *v + bias[h];
                    *v = rate[h] * if x > 20.0 { x } else { x.exp().ln_1p() };
                }
                let beta: Vec<f32> = b.gather(reads[1]).into_iter().map(sigmoid).collect();
                put(&decay, &mut writes[0]);
                put(&beta, &mut writes[1]);
            }
            Kernel::Delta { eps } => delta(reads, writes, eps),
            Kernel::Sample(kernel) => kernel.run(reads, writes),
            Kernel::Image(kernel) => kernel.run(reads, writes)?,
        }
        Ok(())
    }
}

fn float(bytes: &[u8], i: usize) -> f32 {
    f32::from_bits(word(bytes, i))
}

fn word(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

pub(super) fn put(values: &[f32], bytes: &mut [u8]) {
    assert_eq!(values.len() * 4, bytes.len(), "a kernel's result has the size of its binding");
    bytes.chunks_exact_mut(4).zip(values).for_each(|(b, v)| b.copy_from_slice(&v.to_le_bytes()));
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn rms_norm(mut x: Vec<f32>, dim: usize, gain: &[f32], eps: f32) -> Vec<f32> {
    for block in x.chunks_exact_mut(dim) {
        let inverse = 1.0 / (dot(block, block) / dim as f32 + eps).sqrt();
        block.iter_mut().zip(gain).for_each(|(v, g)| *v = *v * inverse * g);
    }
    x
}

/// Group by group in ascending order: `scale * sum(code x) + bias * sum(x)`, the sums exact integers where the
/// activations are.
pub(super) fn linear(x: &[f32], w: &Matrix<'_>, activations: Activations) -> Vec<f32> {
    let mut row = vec![0.0; w.cols];
    if !w.format.is_packed() {
        return (0..w.rows)
            .map(|r| {
                w.decode_row(r, &mut row);
                dot(&row, x)
            })
            .collect();
    }
    let quantized = activations.limit().map(|limit| quantize_row(x, limit));
    let size = w.format.group();
    let mut codes = vec![0u8; size];
    (0..w.rows)
        .map(|r| {
            let mut sum = 0.0;
            for g in 0..w.groups_per_row() {
                let group = w.group(r, g, &mut codes);
                let columns = g * size..(g + 1) * size;
                sum += match &quantized {
                    Some(q) => {
                        let values = &q.values[columns];
                        let dot: i32 = values.iter().zip(&codes).map(|(v, c)| i32::from(*v) * i32::from(*c)).sum();
                        let total: i32 = values.iter().map(|v| i32::from(*v)).sum();
                        q.scales[g * size / 128] * (group.scale * dot as f32 + group.bias * total as f32)
                    }
                    None => {
                        let values = &x[columns];
                        let dot: f32 = values.iter().zip(&codes).map(|(v, c)| v * f32::from(*c)).sum();
                        group.scale * dot + group.bias * values.iter().sum::<f32>()
                    }
                };
            }
            sum
        })
        .collect()
}

/// `S *= exp(g)`; `d = beta (v - S^T k)`; `S += k d^T`; `y = S^T q`; q and k L2-normalised, q scaled.
fn delta(reads: &[&[u8]], writes: &mut [Vec<u8>], eps: f32) {
    let normalised = |bytes: &[u8]| {
        let mut x = floats(bytes);
        let inverse = 1.0 / (dot(&x, &x) + eps).sqrt();
        x.iter_mut().for_each(|v| *v *= inverse);
        x
    };
    let (q, k, v) = (normalised(reads[0]), normalised(reads[1]), floats(reads[2]));
    let (decay, beta) = (float(reads[3], 0).exp(), float(reads[4], 0));
    let mut state = floats(&writes[0]);
    let columns = v.len();
    let read = |state: &[f32], by: &[f32]| {
        let mut sums = vec![0.0f32; columns];
        for (row, x) in state.chunks_exact(columns).zip(by) {
            sums.iter_mut().zip(row).for_each(|(sum, s)| *sum += x * s);
        }
        sums
    };
    state.iter_mut().for_each(|s| *s *= decay);
    let seen = read(&state, &k);
    let change: Vec<f32> = v.iter().zip(seen).map(|(v, seen)| beta * (v - seen)).collect();
    for (row, k) in state.chunks_exact_mut(columns).zip(&k) {
        row.iter_mut().zip(&change).for_each(|(s, d)| *s += k * d);
    }
    let scale = 1.0 / (q.len() as f32).sqrt();
    let y: Vec<f32> = read(&state, &q).into_iter().map(|y| y * scale).collect();
    put(&state, &mut writes[0]);
    put(&y, &mut writes[1]);
}
