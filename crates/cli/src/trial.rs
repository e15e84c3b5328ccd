//! A GPU is tried before `auto` takes it: products of packed weights must equal the processor's, and a GPU that shares the
//! processor's memory must be faster at them.
//!
//! Whoever names a GPU gets no such choice, but a model's largest matrices are tried on it all the same before the model is
//! loaded: compilers have gone wrong at the sizes of a model alone.
//!
//! Verdicts are kept for each adapter, driver and version of this program.

use crate::kept;
use anyhow::{Context, Result, bail, ensure};
use onebit_backend_wgpu::{AdapterKind, Found};
use onebit_models::Part;
use onebit_ops::reference::Reference;
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, KvFormat, KvSpec, PlanOptions, Recorder, Segment, StepInputs,
    UploadOptions, wait,
};
use onebit_quant::{Format, Matrix, Packed, pack};
use std::fs;
use std::time::Instant;

/// Columns and rows of the weight: those of a common layer.
const SIDE: usize = 4096;

/// Products of a step, so that its start and end count little.
const PRODUCTS: usize = 8;

/// Rows of the input: one for decoding, and more than one pass over a weight takes.
const ROWS: usize = 9;

/// Steps of which the fastest counts.
const STEPS: usize = 5;

/// Says why a GPU should not be used, if it should not.
///
/// # Errors
/// A trial that cannot be made.
pub fn objection(gpu: &dyn Backend, adapter: &Found, cpu: &dyn Backend) -> Result<Option<String>> {
    kept_or(&adapter.key(), || judge(gpu, adapter, cpu))
}

/// Seconds of a product of one row with a matrix of a common layer: what `doctor --tune` chooses by.
///
/// # Errors
/// A device that does not run it.
pub fn seconds(backend: &dyn Backend) -> Result<f64> {
    Ok(products(backend)?.1 / PRODUCTS as f64)
}

/// A verdict of an earlier run, or the one that is made now.
fn kept_or(words: &str, judge: impl FnOnce() -> Result<Option<String>>) -> Result<Option<String>> {
    let name: String = words.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let place = kept::caches().ok().map(|caches| caches.join("wgpu").join(name));
    if let Some(kept) = place.as_ref().and_then(|place| fs::read_to_string(place).ok()) {
        return Ok(Some(kept).filter(|verdict| !verdict.is_empty()));
    }
    let verdict = judge()?;
    // Without a place for it the trial is made again at the next start.
    if let Some(place) = place
        && place.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok())
    {
        let _ = fs::write(place, verdict.as_deref().unwrap_or_default());
    }
    Ok(verdict)
}

/// Fails where a device, whose results hang on somebody else's compiler, multiplies with the largest matrices of a model
/// otherwise than the processor does.
///
/// # Errors
/// Wrong products, and a trial that cannot be made.
pub fn require(backend: &dyn Backend, parts: &[Part]) -> Result<()> {
    let Some(key) = backend.trial_key() else { return Ok(()) };
    for (format, rows, cols) in largest(parts) {
        let wrong = kept_or(&format!("{key} {format} {rows} {cols}"), || try_shape(backend, format, rows, cols))?;
        if let Some(wrong) = wrong {
            bail!("{}: {wrong}; its driver is at fault, --backend cpu is not", backend.caps().device);
        }
    }
    Ok(())
}

/// Of each packed format the matrix with most weights and the one with most columns.
fn largest(parts: &[Part]) -> Vec<(Format, usize, usize)> {
    let mut shapes = Vec::new();
    for part in parts.iter().filter(|part| part.format.is_packed()) {
        let same = || parts.iter().filter(|other| other.format == part.format);
        let most = same().max_by_key(|p| p.rows * p.cols).into_iter().chain(same().max_by_key(|p| (p.cols, p.rows)));
        for shape in most.map(|p| (p.format, p.rows, p.cols)) {
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
    }
    shapes
}

/// Rows of a matrix that are different; they stand below each other as often as it takes.
const DIFFERENT: usize = 32;

/// What is wrong with the products of one, a few and many rows with a matrix of this shape.
fn try_shape(backend: &dyn Backend, format: Format, rows: usize, cols: usize) -> Result<Option<String>> {
    let mut random = random();
    let few = matrix(format, cols, &mut random)?;
    let inputs: Vec<f32> = (0..MANY * cols).map(|_| random() as f32 / 2f32.powi(30) - 1.0).collect();
    let times = rows.div_ceil(DIFFERENT);
    let many = |bytes: &[u8]| bytes.repeat(times)[..bytes.len() / DIFFERENT * rows].to_vec();
    let (codes, scales, biases) = (many(&few.codes), many(&few.scales), many(&few.biases));
    let whole = Matrix::new(format, rows, cols, &codes, &scales, &biases)?;
    for count in [1, ROWS, MANY] {
        let got = product(backend, &whole, &inputs[..count * cols])?;
        let want = product(&Reference::new(), &few.as_matrix(), &inputs[..count * cols])?;
        let most = want.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        // Integers inside groups are exact; what is left is the rounding of the groups' sums.
        let bound = most * 2.0 * f32::EPSILON * (cols / 32).max(32) as f32;
        let off = |at: usize| (got[at] - want[at / rows * DIFFERENT + at % rows % DIFFERENT]).abs();
        // A number that is none is not within any bound.
        if let Some(at) = (0..count * rows).find(|at| off(*at) > bound || off(*at).is_nan()) {
            return Ok(Some(format!(
                "the product of {count} rows with {rows} x {cols} weights of {format} is off by {:e} of {most:e}",
                off(at)
            )));
        }
    }
    Ok(None)
}

/// Some rows with every code of a format, and the scales and offsets of published packs: symmetric ones.
fn matrix(format: Format, cols: usize, random: &mut impl FnMut() -> u32) -> Result<Packed> {
    const SCALE: f32 = 1.0 / 64.0;
    let block = format.block();
    let most = block.map_or((1u32 << format.bits()) - 1, |block| u32::from(block.max_code));
    let middle = if most == 3 { 1.0 } else { most as f32 / 2.0 };
    let (scale, bias) = match block {
        Some(block) => (SCALE * block.scale_of_d, block.bias_of_d.map_or(-middle * SCALE, |factor| factor * SCALE)),
        None => (SCALE, -middle * SCALE),
    };
    let codes: Vec<u8> = (0..DIFFERENT * cols).map(|_| (random() % (most + 1)) as u8).collect();
    let groups = DIFFERENT * cols / format.group();
    Ok(pack(format, DIFFERENT, cols, &codes, &vec![scale; groups], &vec![bias; groups])?)
}

/// Rows of the trial that tiles of many rows take.
const MANY: usize = 70;

/// Rows of inputs times a matrix.
fn product(backend: &dyn Backend, matrix: &Matrix<'_>, inputs: &[f32]) -> Result<Vec<f32>> {
    let count = inputs.len() / matrix.cols;
    let bytes: Vec<u8> = inputs.iter().flat_map(|v| v.to_le_bytes()).collect();
    let table = Matrix::new(Format::F32, count, matrix.cols, &bytes, &[], &[])?;
    let table = backend.upload("trial inputs", &[table], UploadOptions::default())?;
    let weight = backend.upload("trial", std::slice::from_ref(matrix), UploadOptions::default())?;
    let mut rec = Recorder::new(Bucket { rows: count, logits: 1, context: count });
    let x = rec.embed(&table);
    let y = rec.linear(x, &weight, Activations::I8G128);
    rec.output(y, "y");
    let kv = KvSpec { layers: 0, heads: 0, dim: 0, pages: 0, format: KvFormat::F32 };
    let cache = backend.cache(CacheSpec { kv, state: None })?;
    let plan = backend.compile(rec.finish(), &cache, PlanOptions::default())?;
    Ok(wait(backend, backend.run(&plan, step(count))?)?.values.remove("y").unwrap_or_default())
}

/// The rows of a table, in order.
fn step(rows: usize) -> StepInputs {
    StepInputs {
        tokens: (0..rows as u32).collect(),
        positions: (0..rows as u32).map(|t| [t; 3]).collect(),
        segments: vec![Segment { rows: 0..rows, slot: 0, pages: Vec::new(), past: 0, accepted: 0, speculative: false }],
        ..StepInputs::default()
    }
}

/// Numbers of 31 bits that look random.
fn random() -> impl FnMut() -> u32 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    }
}

fn judge(gpu: &dyn Backend, adapter: &Found, cpu: &dyn Backend) -> Result<Option<String>> {
    let (got, gpu_seconds) = products(gpu)?;
    let (want, cpu_seconds) = products(cpu)?;
    ensure!(got.len() == want.len(), "the products of the trial have different sizes");
    // Integers inside groups are exact; what is left is the rounding of 32 groups' sum.
    let most = want.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let off = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0f32, |m, d| if d <= m { m } else { d });
    let right = off <= most * 64.0 * f32::EPSILON;
    if !right {
        return Ok(Some(format!("its products differ from the processor's by {off:e} of {most:e}")));
    }
    if adapter.kind != AdapterKind::Discrete && gpu_seconds > cpu_seconds {
        let each = |seconds: f64| seconds * 1e3 / PRODUCTS as f64;
        return Ok(Some(format!(
            "a product takes it {:.2} ms, and the processor {:.2} ms",
            each(gpu_seconds),
            each(cpu_seconds)
        )));
    }
    Ok(None)
}

/// The results of several rows, and the seconds of a step of one row.
fn products(backend: &dyn Backend) -> Result<(Vec<f32>, f64)> {
    let mut random = random();
    let block = Format::Q1_0.block().context("Q1_0 has blocks")?;
    let mut packed = Vec::with_capacity(SIDE * SIDE / block.elements * block.bytes);
    for _ in 0..SIDE * SIDE / block.elements {
        // 2^-6 in binary16, and the codes.
        packed.extend(0x2400u16.to_le_bytes());
        packed.extend((0..block.elements / 32).flat_map(|_| random().to_le_bytes()));
    }
    let weight = Matrix::new(Format::Q1_0, SIDE, SIDE, &packed, &[], &[])?;
    let weight = backend.upload("trial", &[weight], UploadOptions::default())?;
    let inputs: Vec<u8> =
        (0..ROWS * SIDE).flat_map(|_| (random() as f32 / 2f32.powi(30) - 1.0).to_le_bytes()).collect();
    let table = Matrix::new(Format::F32, ROWS, SIDE, &inputs, &[], &[])?;
    let table = backend.upload("trial inputs", &[table], UploadOptions::default())?;
    let mut rec = Recorder::new(Bucket { rows: ROWS, logits: 1, context: ROWS });
    let x = rec.embed(&table);
    let y = rec.linear(x, &weight, Activations::I8G128);
    rec.output(y, "y");
    let mut last = y;
    for _ in 1..PRODUCTS {
        last = rec.linear(last, &weight, Activations::I8G128);
    }
    rec.output(last, "last");
    let kv = KvSpec { layers: 0, heads: 0, dim: 0, pages: 0, format: KvFormat::F32 };
    let cache = backend.cache(CacheSpec { kv, state: None })?;
    let plan = backend.compile(rec.finish(), &cache, PlanOptions::default())?;
    let run = |rows: usize| wait(backend, backend.run(&plan, step(rows))?);
    let mut all = run(ROWS)?.values.remove("y").unwrap_or_default();
    let mut best = f64::INFINITY;
    for _ in 0..=STEPS {
        let start = Instant::now();
        let one = run(1)?;
        best = best.min(start.elapsed().as_secs_f64());
        all.truncate(ROWS * SIDE);
        all.extend(&one.values["y"]);
    }
    Ok((all, best))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_quant::ParamType;

    #[test]
    fn a_sound_device_multiplies_with_every_shape_as_the_reference_does() {
        let cpu = onebit_backend_cpu::CpuBackend::new(onebit_backend_cpu::CpuOptions::default()).unwrap();
        let mlx = |bits| Format::Affine { bits, group: 128, scale: ParamType::F16, bias: ParamType::F16 };
        let packed = [Format::Q1_0, Format::Q2_0G128, Format::Q2_0G64, Format::Pq2_0, Format::Ptq1_0];
        let plain = [Format::Q4_0, Format::Q4_1, Format::Q8_0, mlx(1), mlx(2), mlx(4), mlx(8)];
        for format in packed.into_iter().chain(plain) {
            assert_eq!(try_shape(&cpu, format, 100, 512).unwrap(), None, "{format}");
        }
    }
    use onebit_backend_cpu::{CpuBackend, CpuOptions};

    #[test]
    fn the_processor_has_no_objection_to_itself() {
        let cpu = CpuBackend::new(CpuOptions { threads: Some(1), tier: None }).unwrap();
        let adapter = Found {
            name: "none".to_owned(),
            api: "none".to_owned(),
            kind: AdapterKind::Discrete,
            driver: String::new(),
        };
        assert_eq!(judge(&cpu, &adapter, &cpu).unwrap(), None);
    }
}
