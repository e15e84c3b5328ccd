//! What a backend says of itself is true, and what it does not run it refuses.

use crate::check::Suite;
use crate::prng::Rng;
use crate::session::{bucket, first, must, stateless};
use crate::weights::{self, Bias, affine};
use onebit_ops::{
    Activations, Backend, FormatSupport, KvFormat, OpError, Plan, PlanOptions, Program, Recorder, StepInputs,
    UploadOptions, Weight, WeightInfo, wait,
};
use onebit_quant::{Matrix, Packed};

pub(crate) fn run(suite: &mut Suite<'_>) {
    capabilities(suite);
    unsupported_formats(suite);
    unsupported_activations(suite);
    uploads(suite);
    steps(suite);
    profile(suite);
    foreign_handles(suite);
}

fn capabilities(suite: &mut Suite<'_>) {
    let caps = suite.backend.caps().clone();
    suite.require("caps", !caps.name.is_empty() && !caps.device.is_empty(), || "a name is empty".to_owned());
    suite.require("caps", caps.prefill_rows > 0, || "no prefill rows".to_owned());
    suite.require("caps", caps.activations.contains(&Activations::F32), || "f32 activations are missing".to_owned());
    suite.require("caps", caps.activations.contains(&caps.default_activations), || {
        format!("the default {} is not among its activations", caps.default_activations)
    });
    let kv = &caps.kv_formats;
    suite.require("caps", kv.contains(&KvFormat::F32) || kv.contains(&KvFormat::F16), || {
        "neither f32 nor f16 keys and values".to_owned()
    });
}

fn unsupported_formats(suite: &mut Suite<'_>) {
    for format in weights::all_formats() {
        let case = format!("format {format}");
        let words = match suite.backend.format_support(format) {
            FormatSupport::Kernel(name) => {
                suite.require(&case, !name.is_empty(), || "the kernel has no name".to_owned());
                continue;
            }
            FormatSupport::Unsupported(advice) => advice,
        };
        suite.require(&case, !words.is_empty(), || "refused without advice".to_owned());
        let w = weights::matrix(&mut suite.rng(&case), format, weights::biases(format)[0], 4, 128);
        let result = suite.backend.upload("refused", &[w.as_matrix()], UploadOptions::default());
        let refused = matches!(&result, Err(OpError::UnsupportedFormat { tensor, .. }) if tensor == "refused");
        suite.require(&case, refused, || "an upload is not refused by name".to_owned());
    }
}

fn unsupported_activations(suite: &mut Suite<'_>) {
    for kind in [Activations::F32, Activations::I8G128, Activations::I9G128] {
        if suite.activations().contains(&kind) {
            continue;
        }
        let plan = compile(suite.backend, upload, kind);
        suite.require(&format!("{kind}"), matches!(plan, Err(OpError::UnsupportedActivations { .. })), || {
            "a plan with activations that it does not run is not refused".to_owned()
        });
    }
}

fn uploads(suite: &mut Suite<'_>) {
    let mut rng = suite.rng("uploads");
    let narrow = weights::matrix(&mut rng, affine(1, 128), Bias::Symmetric, 4, 128);
    let wide = weights::matrix(&mut rng, affine(1, 128), Bias::Symmetric, 4, 256);
    let join = |parts: &[Matrix<'_>]| suite.backend.upload("w", parts, UploadOptions::default());
    let none = matches!(join(&[]), Err(OpError::Shape { .. }));
    let unequal = matches!(join(&[narrow.as_matrix(), wide.as_matrix()]), Err(OpError::Shape { .. }));
    let info = must("uploads", join(&[narrow.as_matrix(), narrow.as_matrix()])).info().clone();
    suite.require("upload of nothing", none, || "not refused".to_owned());
    suite.require("upload of unequal widths", unequal, || "not refused".to_owned());
    let right = info.name == "w" && info.rows == 8 && info.cols == 128 && info.parts == [0..4, 4..8];
    suite.require("weight info", right && info.resident_bytes > 0, || format!("{info:?}"));
}

fn steps(suite: &mut Suite<'_>) {
    let backend = suite.backend;
    let plan = must("steps", compile(backend, upload, Activations::F32));
    let good = first(&[0, 1]);
    let bad = [
        ("no rows", first(&[])),
        ("too many rows", first(&[0, 1, 2])),
        ("a token outside the table", first(&[0, 4])),
        ("a position too few", StepInputs { positions: vec![[0; 3]], ..good.clone() }),
        ("rows without a segment", StepInputs { segments: Vec::new(), ..good.clone() }),
        ("a logit row too far", StepInputs { logit_rows: vec![2], ..good.clone() }),
    ];
    for (case, inputs) in bad {
        let refused = matches!(backend.run(&plan, inputs), Err(OpError::Inputs(_)));
        suite.require(case, refused, || "the step is not refused".to_owned());
    }
    // Two steps under way; each ticket answers once, in any order.
    let tickets = [good.clone(), first(&[1])].map(|inputs| must("steps", backend.run(&plan, inputs)));
    let late = must("steps", wait(backend, tickets[1]));
    let early = must("steps", wait(backend, tickets[0]));
    suite.require("two tickets", late.values["y"] == early.values["y"][4..], || "the outputs are mixed up".to_owned());
    let again = matches!(backend.poll(tickets[0]), Err(OpError::Inputs(_)));
    suite.require("a ticket twice", again, || "the second poll is not refused".to_owned());
}

fn profile(suite: &mut Suite<'_>) {
    let backend = suite.backend;
    let program = must("profile", program(backend, upload, Activations::F32));
    let ops = program.clone().lower(backend.fusions()).ops.len();
    let cache = must("profile", backend.cache(stateless()));
    let plan = must("profile", backend.compile(program, &cache, PlanOptions { profile: true }));
    let output = must("profile", backend.run(&plan, first(&[0])).and_then(|t| wait(backend, t)));
    let seconds = output.op_seconds;
    let right = seconds.len() == ops && seconds.iter().all(|s| s.is_finite() && *s >= 0.0);
    suite.require("profile", right, || format!("{seconds:?} for {ops} ops"));
}

fn foreign_handles(suite: &mut Suite<'_>) {
    let stranger = |rows: usize, cols: usize| {
        let info = WeightInfo {
            name: "foreign".to_owned(),
            rows,
            cols,
            parts: std::iter::once(0..rows).collect(),
            kernel: "none".to_owned(),
            resident_bytes: 1,
            shed_bytes: 0,
        };
        Weight::new(info, Box::new(()))
    };
    let refused = match compile(suite.backend, |_, w| Ok(stranger(w.rows, w.cols)), Activations::F32) {
        Err(OpError::ForeignHandle(_)) => true,
        Err(_) => false,
        Ok(plan) => matches!(suite.backend.run(&plan, first(&[0])), Err(OpError::ForeignHandle(_))),
    };
    suite.require("a foreign weight", refused, || "neither compile nor run refuses it".to_owned());
}

fn upload(backend: &dyn Backend, w: &Packed) -> Result<Weight, OpError> {
    backend.upload("w", &[w.as_matrix()], UploadOptions::default())
}

/// A program for two rows: one product of four outputs.
fn program(
    backend: &dyn Backend,
    weight: impl Fn(&dyn Backend, &Packed) -> Result<Weight, OpError>,
    kind: Activations,
) -> Result<Program, OpError> {
    let mut rng = Rng::new("contract");
    let table = upload(backend, &weights::dense(&[rng.normals(128), rng.normals(128), rng.normals(128)]))?;
    let w = weight(backend, &weights::matrix(&mut rng, affine(1, 128), Bias::Symmetric, 4, 128))?;
    let mut rec = Recorder::new(bucket(2, 2));
    let x = rec.embed(&table);
    let y = rec.linear(x, &w, kind);
    rec.output(y, "y");
    Ok(rec.finish())
}

fn compile(
    backend: &dyn Backend,
    weight: impl Fn(&dyn Backend, &Packed) -> Result<Weight, OpError>,
    kind: Activations,
) -> Result<Plan, OpError> {
    backend.compile(program(backend, weight, kind)?, &backend.cache(stateless())?, PlanOptions::default())
}
