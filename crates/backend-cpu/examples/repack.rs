//! Times the way of weights from their file's format into the resident layout.
//!
//! ```sh
//! cargo run --release -p onebit-backend-cpu --example repack -- [--threads 1,2] [--tier avx2] [--format Q1_0] [--rows 17408] [--cols 5120]
//! ```
//!
//! Bytes are random. Each format is uploaded as several weights from one buffer larger than the caches; fresh memory
//! is taken every time, as at a start.

use onebit_backend_cpu::{CpuBackend, CpuOptions, Tier, default_threads};
use onebit_ops::{Backend, UploadOptions};
use onebit_quant::{Format, Matrix, ParamType};
use std::time::Instant;

/// Bytes of a weight file that are repacked in one pass.
const BYTES: usize = 512 << 20;

const PASSES: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let option = |name: &str, default: &str| -> String {
        let at = args.iter().position(|a| a == &format!("--{name}"));
        at.and_then(|i| args.get(i + 1)).map_or(default.to_owned(), String::clone)
    };
    let tier = match option("tier", "") {
        name if name.is_empty() => None,
        name => Some(Tier::named(&name)?),
    };
    let (rows, cols): (usize, usize) = (option("rows", "17408").parse()?, option("cols", "5120").parse()?);
    let affine = |bits| Format::Affine { bits, group: 128, scale: ParamType::F16, bias: ParamType::F16 };
    let mut bytes = vec![0u8; BYTES];
    let mut state = 1u64;
    for word in bytes.as_chunks_mut().0 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *word = (state ^ (state >> 29)).to_le_bytes();
    }
    for threads in option("threads", &format!("1,{}", default_threads())).split(',') {
        let backend = CpuBackend::new(CpuOptions { threads: Some(threads.parse()?), tier })?;
        println!("{}", backend.caps().device);
        for format in [Format::Q1_0, affine(1), Format::Pq2_0, affine(2), Format::Ptq1_0] {
            if !format.to_string().starts_with(&option("format", "")) {
                continue;
            }
            let codes = format.row_bytes(cols)? * rows;
            // Scales of 2^-7 and the offsets that follow from them.
            let scale_bytes = if let Format::Affine { .. } = format { rows * cols / 128 * 2 } else { 0 };
            let offset: u16 = if format == affine(1) { 0xa000 - 0x0400 } else { 0xa000 };
            let scales = 0x2000u16.to_le_bytes().repeat(scale_bytes / 2);
            let biases = offset.to_le_bytes().repeat(scale_bytes / 2);
            let mut speeds = Vec::new();
            for _ in 0..PASSES {
                let start = Instant::now();
                let mut weights = Vec::new();
                for codes in bytes.chunks_exact(codes) {
                    let matrix = Matrix::new(format, rows, cols, codes, &scales, &biases)?;
                    weights.push(backend.upload("weight", &[matrix], UploadOptions::default())?);
                }
                let read = weights.len() * (codes + 2 * scale_bytes);
                speeds.push(read as f64 / start.elapsed().as_secs_f64() / 1e9);
            }
            speeds.sort_by(f64::total_cmp);
            let (median, best) = (speeds[PASSES / 2], speeds[PASSES - 1]);
            println!("{:<24} {median:5.2} GB/s of the file (best {best:.2})", format.to_string());
        }
    }
    Ok(())
}
