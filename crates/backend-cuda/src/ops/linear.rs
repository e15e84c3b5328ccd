//! Matrix products: the input is prepared once, then each run of parts in one format is a launch.

use super::simple::parts_list;
use super::{Call, Frame};
use crate::Arch;
use crate::driver::Device;
use crate::launch;
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

pub(super) struct Linear<'a> {
    pub input: Input<'a>,
    pub weight: &'a Weight,
    pub activations: Activations,
    pub epilogue: Epilogue,
    pub out: Tensor,
}

/// Gate and up as parts of their own run in one launch with their product; else a wide product lies between.
fn is_composed(weight: &Resident, epilogue: Epilogue) -> bool {
    epilogue == Epilogue::SwiGlu && !launch::fuses_swiglu(&weight.shapes)
}

/// The prepared input at `base`, and where its memory ends.
fn prepared(
    base: Address,
    rows: usize,
    weight: &Resident,
    cols: usize,
    kind: Activations,
    arch: Arch,
) -> (params::Prepared, usize) {
    let wanted = launch::prepared_kinds(&weight.shapes, rows, kind, arch);
    launch::prepared(base, rows, cols, wanted)
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
    let (_, bytes) = prepared(0, rows, resident, weight.cols(), activations, device.arch);
    let wide = if is_composed(resident, epilogue) { rows * weight.rows() * size_of::<f32>() } else { 0 };
    Ok(bytes + wide)
}

pub(super) fn calls(frame: &Frame<'_>, op: &Linear<'_>) -> Result<Vec<Call>, OpError> {
    let Linear { input, weight, activations, epilogue, out } = *op;
    let resident = resident(weight, frame.device)?;
    let (most, rows) = frame.rows(out);
    let arch = frame.device.arch;
    let (prepared, end) = prepared(frame.scratch, most, resident, weight.cols(), activations, arch);
    let (kind, x, gate, norm) = match input {
        Input::Plain(x) => (inputs::PLAIN, x, x, None),
        Input::Norm { x, norm } => (inputs::NORM, x, x, Some(norm)),
        Input::GatedNorm { x, gate, norm } => (inputs::GATED_NORM, x, gate, Some(norm)),
        Input::Sigmoid { x, gate } => (inputs::SIGMOID, x, gate, None),
    };
    let prepare = PrepareParams {
        rows,
        x: frame.view(stretch(x)),
        gate: frame.view(stretch(gate)),
        gain: norm.map_or(Ok(0), |norm| frame.vector(&norm.gain))?,
        out: prepared,
        eps: norm.map_or(0.0, |norm| norm.eps),
        wanted: launch::prepared_kinds(&resident.shapes, most, activations, arch),
        input: kind,
        reserved: 0,
    };
    let mut calls = vec![Call::new(launch::prepare(most, weight.cols()), prepare)];

    let composed = is_composed(resident, epilogue);
    let (target, stride) = match composed {
        true => (frame.scratch + end as Address, weight.rows() as u32),
        false => (frame.place(out), frame.cols(out)),
    };
    // Without a residual the view is not looked at.
    let residual = if let Epilogue::Residual(residual) = epilogue { residual } else { x };
    let residual = stretch(residual);
    let kind = match epilogue {
        Epilogue::Store => kinds::STORE,
        Epilogue::Residual(_) => kinds::RESIDUAL,
        Epilogue::SwiGlu if composed => kinds::STORE,
        Epilogue::SwiGlu => kinds::SWIGLU,
    };
    let slices = launch::slices(weight.cols());
    for (range, launch) in
        launch::linear(most, weight.cols(), &resident.shapes, activations, kind == kinds::SWIGLU, arch)
    {
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
