//! A GPU is tried before `auto` takes it: products of packed weights must equal the processor's, and a GPU that shares the
//! processor's memory must be faster at them.
//!
//! The verdict is kept for each adapter, driver and version of this program.

use crate::kept;
use anyhow::{Context, Result, ensure};
use onebit_backend_wgpu::{AdapterKind, Found};
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, KvFormat, KvSpec, PlanOptions, Recorder, Segment, StepInputs, wait,
};
use onebit_quant::{Format, Matrix};
use std::fs;
use std::path::PathBuf;
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
    let place = place(adapter);
    if let Some(kept) = place.as_ref().and_then(|place| fs::read_to_string(place).ok()) {
        return Ok(Some(kept).filter(|verdict| !verdict.is_empty()));
    }
    let verdict = judge(gpu, adapter, cpu)?;
    // Without a place for it the trial is made again at the next start.
    if let Some(place) = place
        && place.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok())
    {
        let _ = fs::write(place, verdict.as_deref().unwrap_or_default());
    }
    Ok(verdict)
}

/// The file of an adapter's verdict.
fn place(adapter: &Found) -> Option<PathBuf> {
    let words = format!("{} {} {}", env!("CARGO_PKG_VERSION"), adapter.describe(), adapter.driver);
    let name: String = words.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    kept::caches().ok().map(|caches| caches.join("wgpu").join(name))
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
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let block = Format::Q1_0.block().context("Q1_0 has blocks")?;
    let mut packed = Vec::with_capacity(SIDE * SIDE / block.elements * block.bytes);
    for _ in 0..SIDE * SIDE / block.elements {
        // 2^-6 in binary16, and the codes.
        packed.extend(0x2400u16.to_le_bytes());
        packed.extend((0..block.elements / 32).flat_map(|_| random().to_le_bytes()));
    }
    let weight = Matrix::new(Format::Q1_0, SIDE, SIDE, &packed, &[], &[])?;
    let weight = backend.upload("trial", &[weight], onebit_ops::UploadOptions::default())?;
    let inputs: Vec<u8> =
        (0..ROWS * SIDE).flat_map(|_| (random() as f32 / 2f32.powi(30) - 1.0).to_le_bytes()).collect();
    let table = Matrix::new(Format::F32, ROWS, SIDE, &inputs, &[], &[])?;
    let table = backend.upload("trial inputs", &[table], onebit_ops::UploadOptions::default())?;
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
    let step = |rows: usize| StepInputs {
        tokens: (0..rows as u32).collect(),
        positions: (0..rows as u32).map(|t| [t; 3]).collect(),
        segments: vec![Segment { rows: 0..rows, slot: 0, pages: Vec::new(), past: 0, accepted: 0, speculative: false }],
        ..StepInputs::default()
    };
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
