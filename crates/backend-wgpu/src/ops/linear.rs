//! Matrix products: the input is prepared once, then each chunk of the weight is a dispatch.

use super::{Bound, Call, Extent, Frame, Launch, Steps};
use crate::adapter::Device;
use crate::inputs::Counts;
use crate::layout::{Codes, GROUP};
use crate::shaders::{self, Around, Kernel, Packed, ROW_COUNTS, WIDE_FROM, WIDE_ROWS, inputs, kinds};
use crate::weight::{Chunk, Resident, resident};
use onebit_ops::{Activations, Epilogue, Norm, OpError, Rows, Tensor, Vector, View, Weight};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// What a product's input is made of, by its preparation.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    Plain(View),
    Norm {
        x: View,
        norm: &'a Norm,
        /// Of the rows that give logits alone.
        selected: bool,
    },
    /// Blocks of [`GROUP`] values, normed each for itself, times silu(gate).
    GatedNorm {
        x: View,
        gate: View,
        norm: &'a Norm,
    },
    /// Times sigmoid(gate).
    Sigmoid {
        x: View,
        gate: View,
    },
    /// Times silu(gate).
    SwiGlu {
        up: View,
        gate: View,
    },
}

impl<'a> Input<'a> {
    /// What the op itself says of it.
    pub(super) fn of(x: View, norm: Option<&'a Norm>) -> Input<'a> {
        norm.map_or(Input::Plain(x), |norm| Input::Norm { x, norm, selected: false })
    }
}

/// A convolution right behind a product, of some rows of its weight.
#[derive(Clone, Copy)]
pub(super) struct Behind<'a> {
    pub first_row: usize,
    pub channels: usize,
    pub taps: &'a Vector,
    pub layer: usize,
    pub out: Tensor,
}

impl Behind<'_> {
    /// Whether some rows of a chunk are channels.
    fn channels_of(&self, chunk: &Chunk) -> bool {
        chunk.first_row < self.first_row + self.channels && self.first_row < chunk.first_row + chunk.rows
    }
}

/// What a product does of its neighbours.
#[derive(Clone, Copy, Default)]
pub(super) struct Fused<'a> {
    pub joined: Option<Joined>,
    pub conv: Option<Behind<'a>>,
    /// The steps whose input nobody else has prepared, where that is not all of them.
    pub unprepared: Option<Steps>,
}

/// Steps of one row: whether its product makes its input itself.
fn is_one(counts: &Counts) -> bool {
    counts.rows == 1
}

/// Workgroups of a product of one row, about: enough to fill a large GPU twice.
const ONE_WORKGROUPS: usize = 264;

/// Most blocks of one of them.
const ONE_BLOCKS: usize = 8;

/// Where whoever makes the values of a product's input prepares it.
pub(super) struct Target {
    pub kind: u32,
    /// Values of a row; words of values, scales and sums; the limit of rounded values.
    pub words: [u32; 5],
}

/// The same for a product whose weight wants one kind of input, of whole groups, behind what is in front of the scratch memory.
pub(super) fn target(
    frame: &Frame<'_>,
    weight: &Weight,
    activations: Activations,
    front: usize,
    out: Tensor,
) -> Option<Target> {
    let resident = resident(weight, frame.device).ok()?;
    let cols = weight.cols();
    let (places, _) = prepared(front, frame.most_rows(out), cols, resident, activations, frame.device);
    let [place] = places[..] else { return None };
    let [padded, values, scales, sums] = [cols, place.values, place.scales, place.sums].map(|n| n as u32);
    let words = [padded, values, scales, sums, limit(activations)];
    cols.is_multiple_of(GROUP).then_some(Target { kind: place.kind, words })
}

/// Of rounded values, as bits of a float.
fn limit(activations: Activations) -> u32 {
    activations.limit().map_or(0.0, f32::from).to_bits()
}

/// Whether a product does the convolution behind it: for sequences with a row each, and up to so many that the kernels for few
/// rows run.
pub(super) fn convolves(counts: &Counts) -> bool {
    counts.longest == 1 && !counts.guesses && counts.rows < WIDE_FROM
}

/// Whether all kernels of a weight can do the convolution behind them.
pub(super) fn can_convolve(frame: &Frame<'_>, weight: &Weight) -> bool {
    resident(weight, frame.device).is_ok_and(|resident| !resident.has_dense())
}

/// Words at which one kind of prepared input lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Prepared {
    kind: u32,
    values: usize,
    scales: usize,
    sums: usize,
}

/// The kinds of input that a weight's parts want, each at its place behind what is in front, and the words of all.
fn prepared(
    front: usize,
    rows: usize,
    cols: usize,
    weight: &Resident,
    activations: Activations,
    device: &Device,
) -> (Vec<Prepared>, usize) {
    let packed = shaders::kind_of(activations, device.abilities.dot_products);
    let mut wanted = Vec::new();
    if weight.has_packed() {
        wanted.push(packed);
    }
    if weight.has_dense() && !wanted.contains(&kinds::FLOATS) {
        wanted.push(kinds::FLOATS);
    }
    // Kernels read whole tiles of rows.
    let tile = if rows < WIDE_FROM { 8 } else { WIDE_ROWS as usize };
    let (rows, padded) = (rows.next_multiple_of(tile), cols.next_multiple_of(GROUP));
    let mut end = front;
    let mut take = |words: usize| {
        let at = end;
        end += words;
        at
    };
    let place = |kind: u32| Prepared {
        kind,
        values: take(rows * if kind == kinds::PACKED { padded / 4 } else { padded }),
        scales: take(rows * (padded / GROUP)),
        sums: take(rows * (padded / 32)),
    };
    let places = wanted.into_iter().map(place).collect();
    (places, end)
}

/// Words that a product needs for its prepared input.
pub(super) fn scratch(
    rows: usize,
    weight: &Weight,
    activations: Activations,
    device: &Arc<Device>,
) -> Result<usize, OpError> {
    Ok(prepared(0, rows, weight.cols(), resident(weight, device)?, activations, device).1)
}

/// For each number of rows of one pass: the steps that it is for. Many rows of integers have a kernel of their own.
fn passes(most: usize, wide: bool) -> Vec<(u32, RangeInclusive<usize>)> {
    let end = if wide { WIDE_FROM - 1 } else { usize::MAX };
    let mut first = 0;
    let mut all = Vec::new();
    for (i, rows) in ROW_COUNTS.into_iter().enumerate() {
        let last = if i + 1 == ROW_COUNTS.len() { end } else { rows as usize };
        all.push((rows, first..=last));
        first = last.saturating_add(1);
    }
    if wide {
        all.push((WIDE_ROWS, first..=usize::MAX));
    }
    all.retain(|(_, range)| *range.start() <= most);
    all
}

pub(super) fn calls(
    frame: &Frame<'_>,
    input: &Input<'_>,
    weight: &Weight,
    fused: Fused<'_>,
    activations: Activations,
    epilogue: Epilogue,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let resident = resident(weight, frame.device)?;
    let most = frame.most_rows(out);
    let front = fused.joined.map_or(0, |j| j.words);
    let (places, _) = prepared(front, most, weight.cols(), resident, activations, frame.device);
    let mut calls = Vec::new();
    let own = makes_input(frame, input, weight, activations, out);
    for place in &places {
        let fused = if own { Fused { unprepared: Some(|counts| !is_one(counts)), ..fused } } else { fused };
        calls.push(prepare(frame, input, fused, place, weight.cols(), activations, out)?);
    }
    let residual = if let Epilogue::Residual(residual) = epilogue { Some(residual) } else { None };
    for chunk in &resident.chunks {
        let wanted = match chunk.shape.codes {
            Codes::Dense(_) => kinds::FLOATS,
            Codes::Packed { .. } => shaders::kind_of(activations, frame.device.abilities.dot_products),
        };
        let place = places.iter().find(|p| p.kind == wanted).ok_or(OpError::ForeignHandle("a weight"))?;
        let made = own.then_some(Made { input, limit: limit(activations) });
        let call = Product { frame, chunk, place: *place, cols: weight.cols(), residual, made, out };
        if own {
            calls.extend(call.own(fused.conv.filter(|conv| conv.channels_of(chunk)))?);
        }
        match fused.conv.filter(|conv| conv.channels_of(chunk)) {
            Some(conv) => {
                calls.push(call.with_conv(conv)?);
                calls.push(call.alone(|counts| !convolves(counts)));
            }
            None => calls.push(call.alone(|_| true)),
        }
    }
    // In a plan for one row there may be none for more.
    calls.retain(|call| !call.launches.is_empty());
    Ok(calls)
}

/// Whether the kernels for one row make the input of a product: of a norm over the whole row, for parts that all have such kernels.
fn makes_input(frame: &Frame<'_>, input: &Input<'_>, weight: &Weight, activations: Activations, out: Tensor) -> bool {
    let Input::Norm { x, selected: false, .. } = input else { return false };
    let integers = shaders::kind_of(activations, frame.device.abilities.dot_products) == kinds::PACKED;
    let apart = super::are_apart(frame, *x, out) && x.is_contiguous() && frame.rows(out) == Rows::Step;
    let all = |resident: &Resident| resident.chunks.iter().all(|c| has_one(frame, c, weight.cols(), integers));
    apart && resident(weight, frame.device).is_ok_and(all)
}

/// Whether there is a kernel of one row for a chunk.
fn has_one(frame: &Frame<'_>, chunk: &Chunk, cols: usize, integers: bool) -> bool {
    let abilities = frame.device.abilities;
    let Codes::Packed { bits, group } = chunk.shape.codes else { return false };
    let fits = shaders::one_bytes(cols, abilities.slices) <= abilities.workgroup_bytes;
    fits && cols.is_multiple_of(GROUP) && shaders::has_one(bits, group, integers, abilities.slices)
}

/// Kernel, views and norm of an input.
fn parts<'a>(input: &Input<'a>) -> (u32, View, View, Option<&'a Norm>) {
    match *input {
        Input::Plain(x) => (inputs::PLAIN, x, x, None),
        Input::Norm { x, norm, .. } => (inputs::NORM, x, x, Some(norm)),
        Input::GatedNorm { x, gate, norm } => (inputs::GATED_NORM, x, gate, Some(norm)),
        Input::Sigmoid { x, gate } => (inputs::SIGMOID, x, gate, None),
        Input::SwiGlu { up, gate } => (inputs::SWIGLU, up, gate, None),
    }
}

/// The splits of attention right before a product, which its preparation joins.
#[derive(Clone, Copy)]
pub(super) struct Joined {
    pub dim: usize,
    /// That there is room for.
    pub splits: usize,
    /// Words of all of them, at the front of the scratch memory.
    pub words: usize,
}

fn prepare(
    frame: &Frame<'_>,
    input: &Input<'_>,
    fused: Fused<'_>,
    place: &Prepared,
    cols: usize,
    activations: Activations,
    out: Tensor,
) -> Result<Call, OpError> {
    let (kind, x, gate, norm) = parts(input);
    let padded = cols.next_multiple_of(GROUP);
    let joined = fused.joined;
    let mut params = frame.view(x).to_vec();
    params.extend(frame.view(gate));
    params.extend([cols, padded, place.values, place.scales, place.sums].map(|n| n as u32));
    params.extend([norm.map_or(0.0, |n| n.eps).to_bits(), limit(activations), joined.map_or(0, |j| j.splits as u32)]);
    // Without a norm the gain is not looked at; the step's arrays are always there.
    let gain = norm.map_or(Ok(frame.bound_step()), |n| frame.vector(&n.gain))?;
    let groups = padded / GROUP;
    let grid = [Extent::Rows(frame.rows(out), 1), Extent::Fixed(groups.div_ceil(8)), Extent::Fixed(1)];
    let selected = matches!(input, Input::Norm { selected: true, .. });
    let kernel = shaders::prepare(place.kind, kind, joined.map(|j| j.dim as u32), selected);
    let bound = vec![frame.bound_arena(), gain, frame.bound_step(), frame.bound_scratch()];
    Ok(Call::new(Launch::when(fused.unprepared.unwrap_or(|_| true), kernel, grid), params, bound))
}

/// What a product of one row makes itself.
#[derive(Clone, Copy)]
struct Made<'a> {
    input: &'a Input<'a>,
    limit: u32,
}

/// The product with one chunk of a weight.
struct Product<'a> {
    frame: &'a Frame<'a>,
    chunk: &'a Chunk,
    place: Prepared,
    cols: usize,
    residual: Option<View>,
    /// Where the kernels for one row make their input.
    made: Option<Made<'a>>,
    out: Tensor,
}

impl Product<'_> {
    /// For these steps.
    fn alone(&self, steps: Steps) -> Call {
        let params = self.params([0; 5]);
        Call { params, bound: self.bound().to_vec(), launches: self.launches(steps, false) }
    }

    /// With the convolution behind it, for the steps that allow it.
    fn with_conv(&self, conv: Behind<'_>) -> Result<Call, OpError> {
        let bound = [&self.bound()[..], &self.conv_bound(conv)?].concat();
        Ok(Call { params: self.params(self.conv_params(conv)?), bound, launches: self.launches(convolves, true) })
    }

    fn conv_params(&self, conv: Behind<'_>) -> Result<[u32; 5], OpError> {
        let state = self.frame.memory.state()?;
        let [first_row, channels, slot] = [conv.first_row, conv.channels, state.window_len()].map(|n| n as u32);
        Ok([first_row, channels, self.frame.place(conv.out), self.frame.cols(conv.out), slot])
    }

    fn conv_bound(&self, conv: Behind<'_>) -> Result<[Bound; 2], OpError> {
        Ok([self.frame.vector(conv.taps)?, Bound::whole(self.frame.memory.windows(conv.layer))])
    }

    /// For steps of one row, from its input on; with the convolution behind it, where the step allows that.
    fn own(&self, conv: Option<Behind<'_>>) -> Result<Vec<Call>, OpError> {
        let (Some(Made { input: Input::Norm { norm, .. }, .. }), Codes::Packed { bits, group }) =
            (self.made, self.chunk.shape.codes)
        else {
            return Ok(Vec::new());
        };
        let [codes, side, .., step, arena] = self.bound();
        let bound = [codes, side, self.frame.vector(&norm.gain)?, step, arena];
        let call = |around: Around, steps: Steps, more: &[Bound], params: Vec<u32>| {
            let launch = Launch::when(steps, self.one(bits, group, around), self.one_grid());
            Call::new(launch, params, [&bound[..], more].concat())
        };
        let plain = self.params([0; 5]);
        let Some(conv) = conv else { return Ok(vec![call(Around::Norm, is_one, &[], plain)]) };
        let convolved = self.params(self.conv_params(conv)?);
        let both: Steps = |counts| is_one(counts) && convolves(counts);
        Ok(vec![
            call(Around::NormConv, both, &self.conv_bound(conv)?, convolved),
            call(Around::Norm, |counts| is_one(counts) && !convolves(counts), &[], plain),
        ])
    }

    /// Blocks of a workgroup of a kernel for one row.
    fn each(&self) -> usize {
        self.chunk.blocks().div_ceil(ONE_WORKGROUPS).min(ONE_BLOCKS)
    }

    fn one_grid(&self) -> [Extent; 3] {
        [Extent::Fixed(self.chunk.blocks().div_ceil(self.each())), Extent::Fixed(1), Extent::Fixed(1)]
    }

    fn params(&self, conv: [u32; 5]) -> Vec<u32> {
        let Product { frame, chunk, place, cols, residual, made, out } = *self;
        let shape = chunk.shape;
        let mut params = residual.map_or([0; 8], |view| frame.view(view)).to_vec();
        params.extend([cols.div_ceil(GROUP), shape.units(cols), shape.groups(cols)].map(|n| n as u32));
        params.extend([place.values, place.scales, place.sums, cols.next_multiple_of(GROUP)].map(|n| n as u32));
        params.extend([chunk.rows as u32, frame.place(out) + chunk.first_row as u32, frame.cols(out)]);
        params.extend([chunk.first_row as u32, chunk.biases, chunk.residual_first, chunk.residuals]);
        params.extend([shape.factor().to_bits(), frame.count(out)]);
        params.extend(conv);
        params.push(self.each() as u32);
        let (eps, x) = match made.map(|made| made.input) {
            Some(Input::Norm { x, norm, .. }) => (norm.eps, frame.view(*x)),
            _ => (0.0, [0; 8]),
        };
        params.extend([eps.to_bits(), made.map_or(0, |made| made.limit)]);
        params.extend(x);
        params
    }

    fn bound(&self) -> [Bound; 6] {
        let Product { frame, chunk, .. } = self;
        let size = chunk.buffer.size();
        [
            Bound { buffer: chunk.buffer.clone(), offset: 0, size: chunk.code_bytes },
            Bound { buffer: chunk.buffer.clone(), offset: chunk.side_at, size: size - chunk.side_at },
            frame.bound_scratch(),
            frame.bound_scratch(),
            frame.bound_step(),
            frame.bound_arena(),
        ]
    }

    /// A kernel for one row.
    fn one(&self, bits: u32, group: u32, around: Around) -> Kernel {
        let adds = self.residual.is_some();
        shaders::one(&self.packed(bits, group, true, adds, false, 1), around, self.cols)
    }

    fn packed(&self, bits: u32, group: u32, integers: bool, adds: bool, convolves: bool, rows: u32) -> Packed {
        let shape = self.chunk.shape;
        let slices = self.frame.device.abilities.slices;
        let residuals = self.chunk.has_residuals;
        Packed { bits, group, scale: shape.scale, bias: shape.bias, residuals, integers, adds, convolves, rows, slices }
    }

    /// A kernel for each number of rows of a pass.
    fn launches(&self, steps: Steps, convolves: bool) -> Vec<Launch> {
        let Product { frame, chunk, place, residual, out, .. } = self;
        let (shape, rows) = (chunk.shape, frame.rows(*out));
        let adds = residual.is_some();
        let integers = place.kind == kinds::PACKED;
        let slices = frame.device.abilities.slices;
        let has_one = !convolves && has_one(frame, chunk, self.cols, integers);
        let passes = passes(frame.most_rows(*out), integers).into_iter();
        // One row is somebody else's where its input is made with it.
        let passes = passes.filter(|(pass, _)| !(convolves && *pass == WIDE_ROWS || self.made.is_some() && *pass == 1));
        let launch = |(pass, range)| {
            let kernel = match shape.codes {
                Codes::Packed { bits, group } if pass == 1 && has_one => {
                    let kernel = self.one(bits, group, Around::Prepared);
                    return Launch { kernel, rows: (rows, range), steps, grid: self.one_grid() };
                }
                Codes::Dense(kind) => shaders::dense(kind, adds, pass, slices),
                Codes::Packed { bits, group } => self.packed(bits, group, integers, adds, convolves, pass).kernel(),
            };
            let blocks = if pass == WIDE_ROWS { chunk.blocks().div_ceil(2) } else { chunk.blocks() };
            let grid = [Extent::Fixed(blocks), Extent::Rows(rows, pass as usize), Extent::Fixed(1)];
            Launch { kernel, rows: (rows, range), steps, grid }
        };
        passes.map(launch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_rows_has_one_pass() {
        for wide in [false, true] {
            for rows in 1..140 {
                let fitting = passes(140, wide).iter().filter(|(_, range)| range.contains(&rows)).count();
                assert_eq!(fitting, 1, "{rows} rows");
            }
        }
        assert_eq!(passes(1, true).len(), 1);
        assert_eq!(passes(3, true).len(), 3);
        assert_eq!(passes(512, true).len(), 5);
    }
}
