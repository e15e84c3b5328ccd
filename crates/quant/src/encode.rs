//! Writing matrices: exact re-encoding between formats, packing from codes, and plain rounding quantisers.

use crate::error::QuantError;
use crate::float::{f16_to_f32, f32_to_f16};
use crate::format::{Format, ParamType};
use crate::formats::{Params, affine};
use crate::matrix::{Group, MAX_GROUP, Matrix};

/// An owned weight matrix; the parts are those of [`Matrix`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// How the bytes are to be read.
    pub format: Format,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// MLX code words, GGUF blocks, or dense values.
    pub codes: Vec<u8>,
    /// MLX scales; empty otherwise.
    pub scales: Vec<u8>,
    /// MLX biases; empty otherwise.
    pub biases: Vec<u8>,
}

impl Packed {
    /// The matrix, borrowed.
    #[must_use]
    pub fn as_matrix(&self) -> Matrix<'_> {
        Matrix {
            format: self.format,
            rows: self.rows,
            cols: self.cols,
            codes: &self.codes,
            scales: &self.scales,
            biases: &self.biases,
        }
    }

    fn zeroed(format: Format, rows: usize, cols: usize) -> Result<Self, QuantError> {
        format.matrix_bytes(rows, cols)?;
        let (scales, biases) = format.param_row_bytes(cols)?;
        Ok(Self {
            format,
            rows,
            cols,
            codes: vec![0; format.row_bytes(cols)? * rows],
            scales: Vec::with_capacity(scales * rows),
            biases: Vec::with_capacity(biases * rows),
        })
    }
}

/// How [`reencode`] treats a bias that the target cannot store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exactness {
    /// Every weight must stay equal (zeros of either sign count as equal).
    Exact,
    /// A bias may move to the derived one when the two differ by at most 2^-24, one step of a subnormal binary16:
    /// the deviation that packs carry where `-scale/2` was rounded. [`Reencoded::moved`] counts such groups.
    AllowSubnormalStep,
}

/// Result of [`reencode`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reencoded {
    /// The matrix in the new format.
    pub matrix: Packed,
    /// Groups whose bias moved; always 0 under [`Exactness::Exact`].
    pub moved: usize,
}

/// Rewrites a packed matrix in another format with the same code width, keeping every weight.
///
/// Covers MLX 1-bit and `Q1_0`; MLX 2-bit, both `Q2_0`, `PQ2_0` and `PTQ1_0`; MLX 4-bit, `Q4_0` and `Q4_1`; MLX
/// 8-bit and `Q8_0`; and MLX to MLX with other groups or parameter types. A coarser target needs neighbouring groups
/// with equal numbers, a finer one repeats them.
///
/// # Errors
/// [`QuantError::NotExact`] names the first row and group that the target cannot hold, [`QuantError::NoConversion`]
/// when the code widths differ or a side is dense, and the errors of [`Format::row_bytes`].
pub fn reencode(source: &Matrix<'_>, to: Format, exactness: Exactness) -> Result<Reencoded, QuantError> {
    let from = source.format;
    if !from.is_packed() || !to.is_packed() || from.bits() != to.bits() {
        return Err(QuantError::NoConversion { from: Some(from), to });
    }
    let mut out = Packed::zeroed(to, source.rows, source.cols)?;
    let (from_group, to_group) = (from.group(), to.group());
    // Codes and numbers of one row: at most one row of temporaries whatever the matrix holds.
    let mut codes = vec![0u8; source.cols];
    let mut params = vec![Group { scale: 0.0, bias: 0.0 }; source.groups_per_row()];
    let mut moved = 0;
    for row in 0..source.rows {
        for (g, (chunk, p)) in codes.chunks_exact_mut(from_group).zip(&mut params).enumerate() {
            *p = source.group(row, g, chunk);
        }
        for (g, chunk) in codes.chunks_exact(to_group).enumerate() {
            let first = g * to_group / from_group;
            let group = params[first];
            let members = &params[first..=((g + 1) * to_group - 1) / from_group];
            let refused = |why| QuantError::NotExact { to, row, group: g, why };
            if members.iter().any(|m| *m != group) {
                return Err(refused("the groups that it joins have different scales or biases"));
            }
            moved += usize::from(put_group(&mut out, row, g, chunk, group, exactness).map_err(refused)?);
        }
    }
    Ok(Reencoded { matrix: out, moved })
}

/// Packs codes and numbers: `codes` is `[rows, cols]`, `scales` and `biases` are `[rows, cols / group]`, all
/// row-major, in the convention `w = scale * code + bias` of every format.
///
/// # Errors
/// [`QuantError::NotExact`] when a code is too large, a number is not representable in the format's storage type
/// (see [`ParamType::round`]) or a bias is not the derived one; [`QuantError::Length`] for wrong input lengths;
/// [`QuantError::NoConversion`] for a dense target.
pub fn pack(
    to: Format,
    rows: usize,
    cols: usize,
    codes: &[u8],
    scales: &[f32],
    biases: &[f32],
) -> Result<Packed, QuantError> {
    if !to.is_packed() {
        return Err(QuantError::NoConversion { from: None, to });
    }
    let mut out = Packed::zeroed(to, rows, cols)?;
    let groups = rows * cols / to.group();
    for (part, wanted, got) in
        [("codes", rows * cols, codes.len()), ("scales", groups, scales.len()), ("biases", groups, biases.len())]
    {
        if wanted != got {
            return Err(QuantError::Length { format: to, part, wanted, got });
        }
    }
    let per_row = cols / to.group();
    for (i, chunk) in codes.chunks_exact(to.group()).enumerate() {
        let (row, g) = (i / per_row, i % per_row);
        let group = Group { scale: scales[i], bias: biases[i] };
        put_group(&mut out, row, g, chunk, group, Exactness::Exact).map_err(|why| QuantError::NotExact {
            to,
            row,
            group: g,
            why,
        })?;
    }
    Ok(out)
}

/// Writes group `g` of `row`, which must follow the one written before. Returns whether the bias moved.
fn put_group(
    out: &mut Packed,
    row: usize,
    g: usize,
    codes: &[u8],
    group: Group,
    exactness: Exactness,
) -> Result<bool, &'static str> {
    let row_bytes = out.codes.len() / out.rows;
    let data = &mut out.codes[row * row_bytes..(row + 1) * row_bytes];
    if let Format::Affine { bits, scale, bias, .. } = out.format {
        if codes.iter().any(|&c| u32::from(c) >= 1 << bits) {
            return Err("a code is too large for its bits");
        }
        if !holds(scale, group.scale) || !holds(bias, group.bias) {
            return Err("its scale or bias is not representable in the target's type");
        }
        affine::write_codes(bits, codes, &mut data[g * codes.len() * usize::from(bits) / 8..]);
        scale.write(group.scale, &mut out.scales);
        bias.write(group.bias, &mut out.biases);
        return Ok(false);
    }
    let Some(block) = out.format.block() else { return Err("the target is dense") };
    if codes.iter().any(|&c| c > block.max_code) {
        return Err("a code is larger than the format's largest");
    }
    let Some(factor) = block.bias_of_d else {
        if !holds(ParamType::F16, group.scale) || !holds(ParamType::F16, group.bias) {
            return Err("its scale or bias is not representable in binary16");
        }
        let params = Params { d: f32_to_f16(group.scale), m: f32_to_f16(group.bias) };
        (block.write)(codes, params, &mut data[g * block.bytes..(g + 1) * block.bytes]);
        return Ok(false);
    };
    let d = group.scale / block.scale_of_d;
    let residual = group.bias - factor * d;
    let mut moved = false;
    let d = if residual == 0.0 {
        d
    } else if exactness == Exactness::AllowSubnormalStep && residual.abs() <= f16_to_f32(1) {
        moved = true;
        // The stored bias is the better witness: it is a binary16 value, half a subnormal scale may not be one.
        group.bias / factor
    } else {
        return Err("its bias does not follow from its scale");
    };
    if !holds(ParamType::F16, d) {
        return Err("its scale is not representable in binary16");
    }
    (block.write)(codes, Params { d: f32_to_f16(d), m: 0 }, &mut data[g * block.bytes..(g + 1) * block.bytes]);
    Ok(moved)
}

/// Whether the type stores exactly this finite value.
fn holds(kind: ParamType, value: f32) -> bool {
    value.is_finite() && kind.round(value) == value
}

/// Rounds plain f32 values `[rows, cols]` into a format that has a fixed recipe: `Q4_0`, `Q4_1`, `Q8_0`, `Q1_0`
/// (signs and the mean absolute value of each group) and the dense types. The recipes are those of `ggml-quants.c`.
///
/// Lossy by nature: never use it on weights that are packed already, [`reencode`] those.
///
/// # Errors
/// [`QuantError::NoConversion`] for other formats, [`QuantError::Length`], and the errors of [`Format::row_bytes`].
pub fn quantize(to: Format, rows: usize, cols: usize, values: &[f32]) -> Result<Packed, QuantError> {
    let mut out = Packed::zeroed(to, rows, cols)?;
    if values.len() != rows * cols {
        return Err(QuantError::Length { format: to, part: "values", wanted: rows * cols, got: values.len() });
    }
    if let Some(dense) = to.dense() {
        out.codes.clear();
        values.iter().for_each(|&v| dense.write(v, &mut out.codes));
        return Ok(out);
    }
    let recipe: fn(&[f32], &mut [u8]) -> Params = match to {
        Format::Q1_0 => to_q1_0,
        Format::Q4_0 => to_q4_0,
        Format::Q4_1 => to_q4_1,
        Format::Q8_0 => to_q8_0,
        _ => return Err(QuantError::NoConversion { from: None, to }),
    };
    let Some(block) = to.block() else { return Err(QuantError::NoConversion { from: None, to }) };
    let mut codes = [0u8; MAX_GROUP];
    for (x, bytes) in values.chunks_exact(block.elements).zip(out.codes.chunks_exact_mut(block.bytes)) {
        let codes = &mut codes[..block.elements];
        let params = recipe(x, codes);
        (block.write)(codes, params, bytes);
    }
    Ok(out)
}

/// `1/d`, or 0 for a group of zeros.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

fn to_q1_0(x: &[f32], codes: &mut [u8]) -> Params {
    let mean = x.iter().map(|v| v.abs()).sum::<f32>() / x.len() as f32;
    for (code, &v) in codes.iter_mut().zip(x) {
        *code = u8::from(v >= 0.0);
    }
    Params { d: f32_to_f16(mean), m: 0 }
}

fn to_q4_0(x: &[f32], codes: &mut [u8]) -> Params {
    // The value of largest magnitude, with its sign, becomes code 0 = -8 d exactly.
    let extreme = x.iter().copied().fold(0.0f32, |a, v| if v.abs() > a.abs() { v } else { a });
    let d = extreme / -8.0;
    let id = inverse(d);
    for (code, &v) in codes.iter_mut().zip(x) {
        *code = ((v * id + 8.5) as u8).min(15);
    }
    Params { d: f32_to_f16(d), m: 0 }
}

fn to_q4_1(x: &[f32], codes: &mut [u8]) -> Params {
    let min = x.iter().copied().fold(f32::INFINITY, f32::min);
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / 15.0;
    let id = inverse(d);
    for (code, &v) in codes.iter_mut().zip(x) {
        *code = (((v - min) * id + 0.5) as u8).min(15);
    }
    Params { d: f32_to_f16(d), m: f32_to_f16(min) }
}

fn to_q8_0(x: &[f32], codes: &mut [u8]) -> Params {
    let amax = x.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    let d = amax / 127.0;
    let id = inverse(d);
    for (code, &v) in codes.iter_mut().zip(x) {
        // Rust's casts saturate, so values that are not finite still give a code.
        *code = ((v * id).round() as i8 as u8) ^ 0x80;
    }
    Params { d: f32_to_f16(d), m: 0 }
}
