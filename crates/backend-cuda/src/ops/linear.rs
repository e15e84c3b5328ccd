//! Matrix products: the input is prepared once, then each run of parts in one format is a launch.

use super::simple::parts_list;
use super::{Call, Frame};
use crate::driver::Device;
use crate::launch::{self, Launch, Product};
use crate::params::{self, Address, LinearParams, PrepareParams, epilogue as kinds, input as inputs};
use crate::weight::{Resident, resident};
use onebit_ops::{Activations, Epilogue, Norm, OpError, Tensor, View, Weight};
use std::sync::Arc;

/// What a product's input is made of, by its preparation.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    Plain(View),
    Norm {
        x: View,
        norm: &'a Norm,
    },
    /// Blocks of [`params::GROUP`] values, normed each for itself, times silu(gate).
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
}

impl Input<'_> {
    /// What is read for it.
    pub(super) fn views(&self) -> Vec<View> {
        match *self {
            Input::Plain(x) | Input::Norm { x, .. } => vec![x],
            Input::GatedNorm { x, gate, .. } | Input::Sigmoid { x, gate } => vec![x, gate],
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Linear<'a> {
    pub input: Input<'a>,
    pub weight: &'a Weight,
    pub activations: Activations,
    pub epilogue: Epilogue,
    pub out: Tensor,
}

/// What a product rounds its results for.
#[derive(Clone, Copy)]
pub(super) struct Next {
    /// The input of the next product.
    pub x: params::Prepared,
    /// Gains that the results meet before; 0: none.
    pub gain: Address,
    /// Whether the results are written as they are, too.
    pub kept: bool,
    /// Whether the next product is gate and up: their weights come only when this one has its input.
    pub large: bool,
}

/// How a product runs beside its neighbours.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    /// Which half of the scratch memory its own input lies in.
    pub half: usize,
    /// Its input, where the product in front has rounded it.
    pub given: Option<params::Prepared>,
    pub next: Option<Next>,
    /// Whether its blocks are to lie on as many multiprocessors as there are ([`launch::spread`]).
    pub spread: bool,
    /// A convolution of its first columns that runs with it.
    pub conv: Option<params::ConvParams>,
}

/// Gate and up as parts of their own run in one launch with their product; else a wide product lies between.
fn is_composed(weight: &Resident, epilogue: Epilogue) -> bool {
    epilogue == Epilogue::SwiGlu && !launch::fuses_swiglu(&weight.shapes)
}

/// A product as launches depend on it.
pub(super) fn product(
    rows: usize,
    weight: &Weight,
    resident: &Resident,
    activations: Activations,
    epilogue: Epilogue,
    device: &Device,
) -> Product {
    let swiglu = epilogue == Epilogue::SwiGlu && !is_composed(resident, epilogue);
    let Device { arch, shared_bytes: shared, multiprocessors, clusters, .. } = *device;
    Product { rows, cols: weight.cols(), activations, swiglu, arch, shared, multiprocessors, clusters }
}

/// The prepared input at `base`, and where its memory ends.
pub(super) fn prepared(base: Address, resident: &Resident, product: &Product) -> (params::Prepared, usize) {
    launch::prepared(base, product.rows, product.cols, launch::prepared_kinds(&resident.shapes, product))
}

/// A view whose values lie side by side, as one block: cheaper to find one's place in.
fn stretch(view: View) -> View {
    if view.is_contiguous() { View { heads: 1, dim: view.cols(), stride: view.cols(), ..view } } else { view }
}

/// Bytes that a product needs for itself: its prepared input, and behind it a wide product where there is one.
pub(super) fn scratch(
    rows: usize,
    weight: &Weight,
    activations: Activations,
    epilogue: Epilogue,
    device: &Arc<Device>,
) -> Result<usize, OpError> {
    let resident = resident(weight, device)?;
    let (_, bytes) = prepared(0, resident, &product(rows, weight, resident, activations, epilogue, device));
    let wide = if is_composed(resident, epilogue) { rows * weight.rows() * size_of::<f32>() } else { 0 };
    // Sums of squares lie behind the input.
    let squares =
        (rows.next_multiple_of(launch::MOST_ROWS) * weight.cols() / 32 * size_of::<f32>()).next_multiple_of(256);
    Ok(bytes + wide.max(squares))
}

/// What prepares a product's input in a half of the scratch memory, and where that memory ends.
pub(super) fn preparation(
    frame: &Frame<'_>,
    op: &Linear<'_>,
    half: usize,
) -> Result<(PrepareParams, Address), OpError> {
    let Linear { input, weight, activations, epilogue, out } = *op;
    let resident = resident(weight, frame.device)?;
    let (most, rows) = frame.rows(out);
    let product = product(most, weight, resident, activations, epilogue, frame.device);
    let base = frame.half(half);
    let (prepared, end) = prepared(base, resident, &product);
    let (kind, x, gate, norm) = match input {
        Input::Plain(x) => (inputs::PLAIN, x, x, None),
        Input::Norm { x, norm } => (inputs::NORM, x, x, Some(norm)),
        Input::GatedNorm { x, gate, norm } => (inputs::GATED_NORM, x, gate, Some(norm)),
        Input::Sigmoid { x, gate } => (inputs::SIGMOID, x, gate, None),
    };
    let params = PrepareParams {
        rows,
        x: frame.view(stretch(x)),
        gate: frame.view(stretch(gate)),
        gain: norm.map_or(Ok(0), |norm| frame.vector(&norm.gain))?,
        out: prepared,
        eps: norm.map_or(0.0, |norm| norm.eps),
        wanted: launch::prepared_kinds(&resident.shapes, &product),
        input: kind,
        reserved: 0,
    };
    Ok((params, base + end as Address))
}

pub(super) fn calls(frame: &Frame<'_>, op: &Linear<'_>, place: Place) -> Result<Vec<Call>, OpError> {
    let Linear { input, weight, activations, epilogue, out } = *op;
    let resident = resident(weight, frame.device)?;
    let (most, rows) = frame.rows(out);
    let product = product(most, weight, resident, activations, epilogue, frame.device);
    let (prepare, end) = preparation(frame, op, place.half)?;
    let mut calls = match place.given {
        Some(_) => Vec::new(),
        None => vec![Call::new(launch::prepare(most, weight.cols()), prepare)],
    };
    let prepared = place.given.unwrap_or(prepare.out);

    let composed = is_composed(resident, epilogue);
    let (target, stride) = match composed {
        true => (end, weight.rows() as u32),
        false if place.next.is_some_and(|next| !next.kept) => (0, 0),
        false => (frame.place(out), frame.cols(out)),
    };
    // Without a residual the view is not looked at.
    let (Input::Plain(x) | Input::Norm { x, .. } | Input::GatedNorm { x, .. } | Input::Sigmoid { x, .. }) = input;
    let residual = if let Epilogue::Residual(residual) = epilogue { residual } else { x };
    let residual = stretch(residual);
    let kind = match epilogue {
        Epilogue::Store => kinds::STORE,
        Epilogue::Residual(_) => kinds::RESIDUAL,
        Epilogue::SwiGlu if composed => kinds::STORE,
        Epilogue::SwiGlu => kinds::SWIGLU,
    };
    let slices = launch::slices(weight.cols());
    for (range, launch) in launch::linear(&resident.shapes, &product) {
        let cluster = if place.next.is_some() { launch::ROUNDING_CLUSTER } else { launch.cluster };
        let launch = Launch { cluster, ..launch };
        let launch = if place.spread { launch::spread(launch, &resident.shapes, &product) } else { launch };
        let mut parts = resident.parts[range].to_vec();
        let mut blocks = 0;
        for part in &mut parts {
            part.first_block = blocks;
            blocks += part.rows.div_ceil(params::BLOCK_ROWS as u32);
        }
        let params = LinearParams {
            rows,
            x: prepared,
            residual: frame.view(residual),
            out: target,
            out_stride: stride,
            epilogue: kind,
            part_count: parts.len() as u32,
            slices: slices as u32,
            next: place.next.map_or_else(params::Prepared::default, |next| next.x),
            next_gain: place.next.map_or(0, |next| next.gain),
            conv: place.conv.unwrap_or_default(),
            alone: u32::from(place.next.is_some_and(|next| next.large)),
            reserved: 0,
            parts: parts_list(&parts),
        };
        calls.push(Call::new(launch, params));
    }
    if composed {
        let half = weight.rows() / 2;
        let part = |at: usize| params::View {
            data: target + (at * size_of::<f32>()) as Address,
            row_stride: stride,
            heads: 1,
            dim: half as u32,
            head_stride: half as u32,
        };
        let params = params::PointwiseParams {
            rows,
            a: part(0),
            b: part(half),
            out: frame.place(out),
            out_stride: frame.cols(out),
            reserved: 0,
        };
        calls.push(Call::new(launch::pointwise("swiglu", most, half), params));
    }
    Ok(calls)
}
