//! Running a program that keeps nothing from step to step.

use super::ImageError;
use onebit_models::image::ImagePart;
use onebit_ops::{
    Backend, CacheSpec, KvFormat, KvSpec, Op, OpError, Plan, PlanOptions, Program, Segment, StepInputs, wait,
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

/// Multiply-adds of one run.
pub(super) fn operations(program: &Program) -> u64 {
    program.ops.iter().map(|op| op.cost(rows(program, op), &[], KvFormat::F32).macs).sum()
}

fn rows(program: &Program, op: &Op) -> usize {
    op.outputs().first().map_or(0, |out| program.max_rows(*out))
}
