//! Running a program that keeps nothing from step to step.

use super::ImageError;
use onebit_models::image::ImagePart;
use onebit_ops::{
    Backend, CacheSpec, KvFormat, KvSpec, Op, OpError, Plan, PlanOptions, Program, Segment, StepInputs, Weight, wait,
};
use std::collections::BTreeMap;

/// A device that runs them.
pub(super) struct Runner<'a> {
    pub backend: &'a dyn Backend,
}

/// A program that was compiled, and the part that it belongs to.
pub(super) struct Compiled {
    part: ImagePart,
    plan: Plan,
}

impl Runner<'_> {
    pub(super) fn compile(&self, part: ImagePart, program: Program) -> Result<Compiled, ImageError> {
        let kv = KvSpec { layers: 0, heads: 0, dim: 0, pages: 0, format: KvFormat::F32 };
        let plan = (|| {
            let cache = self.backend.cache(CacheSpec { kv, state: None })?;
            self.backend.compile(program, &cache, PlanOptions::default())
        })();
        Ok(Compiled { part, plan: plan.map_err(|error| ImageError::Device { part, error })? })
    }

    /// Runs it on named inputs and takes one output.
    pub(super) fn run(
        &self,
        compiled: &Compiled,
        values: Vec<(&str, Vec<f32>)>,
        output: &str,
    ) -> Result<Vec<f32>, ImageError> {
        let values = values.into_iter().map(|(name, values)| (name.to_owned(), values)).collect();
        self.finish(compiled, StepInputs { values, ..StepInputs::default() }, output)
    }

    /// Runs it on tokens.
    pub(super) fn read(&self, compiled: &Compiled, tokens: Vec<u32>, output: &str) -> Result<Vec<f32>, ImageError> {
        let rows = 0..tokens.len();
        let segment =
            Segment { rows: rows.clone(), slot: 0, pages: Vec::new(), past: 0, accepted: 0, speculative: false };
        let positions = rows.map(|p| [p as u32; 3]).collect();
        let inputs = StepInputs { tokens, positions, segments: vec![segment], ..StepInputs::default() };
        self.finish(compiled, inputs, output)
    }

    /// Compiles, runs and forgets.
    pub(super) fn once(
        &self,
        part: ImagePart,
        program: Program,
        values: Vec<(&str, Vec<f32>)>,
        output: &str,
    ) -> Result<Vec<f32>, ImageError> {
        self.run(&self.compile(part, program)?, values, output)
    }

    fn finish(&self, compiled: &Compiled, inputs: StepInputs, output: &str) -> Result<Vec<f32>, ImageError> {
        let part = compiled.part;
        let device = |error| ImageError::Device { part, error };
        let ticket = self.backend.run(&compiled.plan, inputs).map_err(device)?;
        let mut values: BTreeMap<String, Vec<f32>> = wait(self.backend, ticket).map_err(device)?.values;
        values.remove(output).ok_or_else(|| device(OpError::Inputs(format!("the program has no output {output}"))))
    }
}

/// Bytes that a program's temporaries take, with what attention keeps beside.
pub(super) fn bytes(program: &Program) -> u64 {
    let beside = program.ops.iter().filter(|op| matches!(op, Op::FullAttention { .. }));
    let beside = beside.map(|op| op.cost(rows(program, op), &[], KvFormat::F32).bytes).max().unwrap_or(0);
    4 * program.place().1 as u64 + beside
}

/// Bytes of what goes into a program by name, and of what comes out of it.
pub(super) fn exchanged(program: &Program) -> [u64; 2] {
    let mut values = [0, 0];
    for op in &program.ops {
        match op {
            Op::Input { out, .. } => values[0] += program.max_rows(*out) * program.tensors[out.0 as usize].cols,
            Op::Output { x, .. } => values[1] += program.max_rows(x.tensor) * x.cols(),
            _ => {}
        }
    }
    values.map(|values| 4 * values as u64)
}

/// What programs compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Multiply-adds.
    pub operations: u64,
    /// The same by the time that they take beside each other: those of products with weights of four bits count as they are.
    pub weighed: u64,
}

impl Work {
    /// Of one run.
    pub(super) fn of(program: &Program) -> Work {
        program.ops.iter().fold(Work::default(), |work, op| work + Work::of_op(program, op))
    }

    fn of_op(program: &Program, op: &Op) -> Work {
        let operations = op.cost(rows(program, op), &[], KvFormat::F32).macs;
        let (times_as_fast, outputs) = match op {
            Op::Linear { weight, .. } => (speed(weight), weight.rows()),
            Op::Conv2d { conv, .. } => (FLOATS, conv.weight.rows()),
            _ => (FLOATS, OUTPUTS),
        };
        // What fills no block of outputs takes the time of a full one.
        let full = outputs.next_multiple_of(OUTPUTS) as f64 / outputs.max(1) as f64;
        Work { operations, weighed: OP + (operations as f64 * full / times_as_fast) as u64 }
    }
}

impl std::ops::Add for Work {
    type Output = Work;
    fn add(self, other: Work) -> Work {
        Work { operations: self.operations + other.operations, weighed: self.weighed + other.weighed }
    }
}

impl std::ops::Mul<Work> for u64 {
    type Output = Work;
    fn mul(self, work: Work) -> Work {
        Work { operations: self * work.operations, weighed: self * work.weighed }
    }
}

/// How much faster than with weights of four bits, or of eight, a device multiplies with weights of one or two bits: in the records
/// of `bench/record` 4.9 to 7.6 times, but 2.4 to 2.7 times on a Xeon and with AVX2, 3.5 times with two bits on a processor, and
/// 1.8 times where four bits are products of bytes. With this and the next one all records are equally far off at both ends.
const FEW_BITS: f64 = 3.5;
/// The same of attention, convolutions and products of floats: 0.4 to 0.9 times there.
const FLOATS: f64 = 0.5;
/// Outputs that are computed together.
const OUTPUTS: usize = 32;
/// Multiply-adds in the time that an operation takes before it has computed any.
const OP: u64 = 700_000;

fn speed(weight: &Weight) -> f64 {
    let bits = 8.0 * weight.resident_bytes() as f64 / (weight.rows() * weight.cols()).max(1) as f64;
    match bits {
        ..3.0 => FEW_BITS,
        ..12.0 => 1.0,
        _ => FLOATS,
    }
}

fn rows(program: &Program, op: &Op) -> usize {
    op.outputs().first().map_or(0, |out| program.max_rows(*out))
}
