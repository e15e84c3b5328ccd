//! What a phase costs: fork and join of empty tasks, beside rayon.
//!
//! ```sh
//! cargo run --release -p onebit-backend-cpu --example pool -- [THREADS]
//! ```

use onebit_backend_cpu::{default_threads, measure_phase_cost};
use std::time::Instant;

const PHASES: usize = 20_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map_or(Ok(default_threads()), |n| n.parse())?;
    let rayon = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    for _ in 0..3 {
        let ours = measure_phase_cost(threads);
        let mut times: Vec<f64> = rayon.install(|| {
            let one = || {
                let start = Instant::now();
                rayon::scope(|scope| {
                    for task in 0..threads {
                        scope.spawn(move |_| {
                            std::hint::black_box(task);
                        });
                    }
                });
                start.elapsed().as_secs_f64()
            };
            (0..PHASES).map(|_| one()).collect()
        });
        times.sort_by(f64::total_cmp);
        println!("{threads} threads: {:.2} us a phase, rayon {:.2} us", ours * 1e6, times[PHASES / 2] * 1e6);
    }
    Ok(())
}
