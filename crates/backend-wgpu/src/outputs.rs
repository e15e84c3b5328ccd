//! What a step gives back: rectangles of temporaries, which kernels pack into one buffer, and the chosen tokens.

use crate::memory::floats;
use onebit_ops::{Op, Program, Rows, Sampled, StepInputs, StepOutput, View};

const FLOAT: usize = size_of::<f32>();

/// The outputs of a plan and their places in the packed buffer.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    places: Vec<Place>,
    /// Floats of the buffer.
    pub floats: usize,
}

#[derive(Debug)]
struct Place {
    name: String,
    rows: Rows,
    cols: usize,
    first: usize,
}

/// A stretch of the packed buffer, and where it goes in the memory that the host reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    name: String,
    pub from: u64,
    pub to: u64,
    pub bytes: u64,
}

/// The results of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Results {
    pub stretches: Vec<Stretch>,
    pub sampled: usize,
    pub sampled_at: u64,
}

impl Outputs {
    /// Finds places for the outputs of a program.
    pub(crate) fn of(program: &Program) -> Outputs {
        let mut outputs = Outputs::default();
        for op in &program.ops {
            let Op::Output { x, name } = op else { continue };
            let rows = program.tensors[x.tensor.0 as usize].rows;
            outputs.places.push(Place { name: name.to_string(), rows, cols: x.cols(), first: outputs.floats });
            outputs.floats += (program.max_rows(x.tensor) * x.cols()).next_multiple_of(4);
        }
        outputs
    }

    /// First float of an output.
    pub(crate) fn first(&self, view: View, name: &str) -> usize {
        let place = self.places.iter().find(|p| p.name == name && p.cols == view.cols());
        place.map_or(0, |p| p.first)
    }

    /// What these inputs give.
    pub(crate) fn results(&self, inputs: &StepInputs) -> Results {
        let mut end = 0;
        let mut stretches = Vec::new();
        for place in &self.places {
            let rows = match place.rows {
                Rows::Step => inputs.tokens.len(),
                Rows::Logits => inputs.logit_rows.len(),
                Rows::Fixed(rows) => rows,
            };
            let bytes = (rows * place.cols * FLOAT) as u64;
            stretches.push(Stretch { name: place.name.clone(), from: (place.first * FLOAT) as u64, to: end, bytes });
            end += bytes;
        }
        Results { stretches, sampled: inputs.draws.len(), sampled_at: end }
    }
}

impl Results {
    /// Bytes of host memory that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.sampled_at + self.sampled as u64 * 8
    }

    /// Reads them once they are there.
    pub(crate) fn read(self, host: &[u8]) -> StepOutput {
        let mut output = StepOutput::default();
        for Stretch { name, to, bytes, .. } in self.stretches {
            output.values.insert(name, floats(&host[to as usize..(to + bytes) as usize]));
        }
        let sampled = host[self.sampled_at as usize..].as_chunks::<8>().0.iter().take(self.sampled);
        output.sampled = sampled
            .map(|pair| {
                let word = |at: usize| [pair[at], pair[at + 1], pair[at + 2], pair[at + 3]];
                Sampled { token: u32::from_le_bytes(word(0)), logprob: f32::from_le_bytes(word(4)) }
            })
            .collect();
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_where_they_were_put() {
        let place = |name: &str, rows, cols, first| Place { name: name.to_owned(), rows, cols, first };
        let outputs = Outputs {
            places: vec![place("a", Rows::Step, 1, 0), place("b", Rows::Logits, 5, 4), place("c", Rows::Step, 1, 12)],
            floats: 16,
        };
        let inputs = StepInputs {
            tokens: vec![1, 2],
            draws: vec![onebit_ops::Draw::greedy(), onebit_ops::Draw::greedy()],
            ..StepInputs::default()
        };
        let results = outputs.results(&inputs);
        assert_eq!(results.bytes(), 32);
        assert_eq!((results.stretches[2].from, results.stretches[2].to), (48, 8));
        let words = [
            1.0f32.to_bits(),
            2.0f32.to_bits(),
            3.0f32.to_bits(),
            4.0f32.to_bits(),
            7,
            (-0.5f32).to_bits(),
            u32::MAX,
            0,
        ];
        let host: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let output = results.read(&host);
        assert_eq!(output.values["a"], [1.0, 2.0]);
        assert!(output.values["b"].is_empty());
        assert_eq!(output.values["c"], [3.0, 4.0]);
        assert_eq!(output.sampled[0], Sampled { token: 7, logprob: -0.5 });
        assert_eq!(output.sampled[1].token, Sampled::NOT_FINITE);
    }
}
