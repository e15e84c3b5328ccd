//! Times what image models need beside packed products, in seconds of processor time, so that a busy machine does not matter:
//! `cargo run --release -p onebit-backend-cpu --example image -- [TOKENS] [SIDE] [CHANNELS]`.

use onebit_backend_cpu::{CpuBackend, CpuOptions};
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, Conv2d, Grid, KvFormat, KvSpec, PlanOptions, Recorder, Seen, StepInputs,
    UploadOptions, View, Weight, wait,
};
use onebit_quant::{Format, Matrix, ParamType};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, default: &'static str| args.get(i).map_or(default, String::as_str).parse::<usize>();
    let (tokens, side, channels) = (arg(0, "1536")?, arg(1, "128")?, arg(2, "256")?);
    let backend = CpuBackend::new(CpuOptions::default())?;
    let number = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let values = |len: usize| (0..len).map(number).collect::<Vec<f32>>();

    let (heads, dim) = (24, 128);
    let width = heads * dim;
    let attention = |rec: &mut Recorder| -> View {
        let all = rec.input("x", tokens, 3 * width);
        let [q, k, v] = [0, 1, 2].map(|i| all.columns(i * width..(i + 1) * width).split(heads));
        rec.full_attention(q, k, v, (dim as f32).powf(-0.5), Seen::All)
    };
    time(&backend, "full attention", values(tokens * 3 * width), attention)?;

    let codes: Vec<u8> =
        values(9 * channels * channels).iter().flat_map(|v| v.to_bits().to_le_bytes()[2..].to_vec()).collect();
    let matrix = Matrix::new(Format::BF16, channels, 9 * channels, &codes, &[], &[])?;
    let weight = backend.upload("convolution", &[matrix], UploadOptions::default())?;
    let bias = backend.upload_vector(&vec![0.0; channels])?;
    let grid = Grid { height: side, width: side };
    let convolution = |rec: &mut Recorder| -> View {
        let x = rec.input("x", grid.pixels(), channels);
        rec.conv2d(Conv2d {
            x,
            grid,
            norm: None,
            upsample: false,
            weight: weight.clone(),
            bias: bias.clone(),
            kernel: 3,
            residual: None,
        })
    };
    time(&backend, "convolution", values(grid.pixels() * channels), convolution)?;

    for (bits, group, rows, cols) in [(1, 128, 9216, 3072), (2, 128, 9216, 3072), (4, 64, 9728, 2560)] {
        let weight = packed(&backend, bits, group, rows, cols)?;
        let product = |rec: &mut Recorder| -> View {
            let x = rec.input("x", 512, cols);
            rec.linear(x, &weight, Activations::I9G128)
        };
        time(&backend, &format!("{bits} bits"), values(512 * cols), product)?;
    }
    Ok(())
}

fn packed(
    backend: &CpuBackend,
    bits: u8,
    group: u16,
    rows: usize,
    cols: usize,
) -> Result<Weight, Box<dyn std::error::Error>> {
    let format = Format::Affine { bits, group, scale: ParamType::BF16, bias: ParamType::BF16 };
    let len = rows * cols * usize::from(bits) / 8;
    let mut codes: Vec<u8> = (0..len).map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    if bits == 2 {
        codes.iter_mut().for_each(|b| *b &= !((*b & 0x55) << 1));
    }
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for _ in 0..rows * cols / usize::from(group) {
        ParamType::BF16.write(0.0625, &mut scales);
        ParamType::BF16.write(-0.0625 * [0.0, 0.5, 1.0, 0.0, 8.0][usize::from(bits)], &mut biases);
    }
    let matrix = Matrix::new(format, rows, cols, &codes, &scales, &biases)?;
    Ok(backend.upload("weight", &[matrix], UploadOptions::default())?)
}

/// Processor seconds of the second of two runs.
fn time(
    backend: &CpuBackend,
    name: &str,
    x: Vec<f32>,
    record: impl Fn(&mut Recorder) -> View,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut rec = Recorder::new(Bucket { rows: 0, logits: 0, context: 0 });
    record(&mut rec);
    let program = rec.finish();
    let macs: u64 = program
        .ops
        .iter()
        .map(|op| op.cost(op.outputs().first().map_or(0, |out| program.max_rows(*out)), &[], KvFormat::F32).macs)
        .sum();
    let kv = KvSpec { layers: 0, heads: 0, dim: 0, pages: 0, format: KvFormat::F32 };
    let cache = backend.cache(CacheSpec { kv, state: None })?;
    let plan = backend.compile(program, &cache, PlanOptions::default())?;
    let inputs = StepInputs { values: [("x".to_owned(), x)].into(), ..StepInputs::default() };
    wait(backend, backend.run(&plan, inputs.clone())?)?;
    let start = cpu_seconds();
    wait(backend, backend.run(&plan, inputs)?)?;
    let seconds = cpu_seconds() - start;
    println!(
        "{name}: {:.1} GMAC in {seconds:.3} s, {:.1} GMAC/s a core",
        macs as f64 / 1e9,
        macs as f64 / seconds / 1e9
    );
    Ok(())
}

/// Seconds of all threads of this process. A thread that waits for another spins, and counts.
fn cpu_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every system that this example is run on; the result is checked.
    let ok = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut t) } == 0;
    if ok { t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9 } else { f64::NAN }
}
