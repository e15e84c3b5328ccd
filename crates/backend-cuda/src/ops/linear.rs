//! Matrix products: the input is prepared once, then each run of parts in one format is a launch.

use super::simple::parts_list;
use super::{Call, Frame};
use crate::driver::Device;
use crate::launch;
use crate::params::{self, Address, LinearParams, PrepareParams, epilogue as kinds};
use crate::weight::{Resident, resident};
use onebit_ops::{Activations, Epilogue, Norm, OpError, Tensor, View, Weight};
use std::sync::Arc;

pub(super) struct Linear<'a> {
    pub x: View,
    pub norm: Option<&'a Norm>,
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
) -> (params::Prepared, usize) {
    let wanted = launch::prepared_kinds(weight.shapes.iter().map(|(codes, _)| *codes), kind);
    launch::prepared(base, rows, cols, wanted)
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
    let (_, bytes) = prepared(0, rows, resident, weight.cols(), activations);
    let wide = if is_composed(resident, epilogue) { rows * weight.rows() * size_of::<f32>() } else { 0 };
    Ok(bytes + wide)
}

pub(super) fn calls(frame: &Frame<'_>, op: &Linear<'_>) -> Result<Vec<Call>, OpError> {
    let Linear { x, norm, weight, activations, epilogue, out } = *op;
    let resident = resident(weight, frame.device)?;
    let (most, rows) = frame.rows(out);
    let (prepared, end) = prepared(frame.scratch, most, resident, weight.cols(), activations);
    let gain = norm.map(|norm| frame.vector(&norm.gain)).transpose()?;
    let prepare = PrepareParams {
        rows,
        x: frame.view(View { heads: 1, dim: x.cols(), stride: x.cols(), ..x }),
        gain: gain.unwrap_or(0),
        out: prepared,
        eps: norm.map_or(0.0, |norm| norm.eps),
        wanted: launch::prepared_kinds(resident.shapes.iter().map(|(codes, _)| *codes), activations),
    };
    let mut calls = vec![Call::new(launch::prepare(most), prepare)];

    let composed = is_composed(resident, epilogue);
    let (target, stride) = match composed {
        true => (frame.scratch + end as Address, weight.rows() as u32),
        false => (frame.place(out), frame.cols(out)),
    };
    // Without a residual the view is not looked at.
    let residual = if let Epilogue::Residual(residual) = epilogue { residual } else { x };
    let residual = View { heads: 1, dim: residual.cols(), stride: residual.cols(), ..residual };
    let kind = match epilogue {
        Epilogue::Store => kinds::STORE,
        Epilogue::Residual(_) => kinds::RESIDUAL,
        Epilogue::SwiGlu if composed => kinds::STORE,
        Epilogue::SwiGlu => kinds::SWIGLU,
    };
    for (range, launch) in launch::linear(most, &resident.shapes, activations, kind == kinds::SWIGLU) {
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
