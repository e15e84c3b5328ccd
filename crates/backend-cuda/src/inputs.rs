//! What changes from step to step, as one stretch of bytes.
//!
//! The arrays of a plan have fixed places in one buffer, so that a captured graph finds them. Those of a known largest
//! length come first; lists of any length (pages, changes of logits, masks) follow with some capacity, and a step that
//! needs more makes the plan lay its buffer out anew.

use crate::params::{self, Address, NONE, StepHeader, TILE_ROWS};
use onebit_ops::{Areas, Bucket, Capacity, StepInputs};
use std::sync::Arc;

/// Each array begins at a multiple of so many bytes.
const ALIGN: usize = 16;

/// Byte offset of each array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    tokens: usize,
    carried: usize,
    positions: usize,
    row_segment: usize,
    logit_rows: usize,
    segments: usize,
    tiles: usize,
    draws: usize,
    pages: usize,
    adjust: usize,
    masks: usize,
    end: usize,
    pub capacity: Capacity,
}

impl Layout {
    /// For steps of a bucket.
    pub(crate) fn new(bucket: Bucket, capacity: Capacity) -> Layout {
        let mut end = 0;
        let mut take = |count: usize, size: usize| {
            let at = end;
            end = (end + count * size).next_multiple_of(ALIGN);
            at
        };
        let (rows, word) = (bucket.rows, size_of::<u32>());
        take(1, size_of::<StepHeader>());
        Layout {
            tokens: take(rows, word),
            carried: take(rows, word),
            positions: take(rows, 3 * word),
            row_segment: take(rows, word),
            logit_rows: take(bucket.logits, word),
            segments: take(rows, size_of::<params::Segment>()),
            tiles: take(rows, size_of::<params::Tile>()),
            draws: take(bucket.logits, size_of::<params::Draw>()),
            pages: take(capacity.pages, word),
            adjust: take(capacity.adjust, size_of::<params::Adjust>()),
            masks: take(capacity.masks, word),
            end: take(0, 1),
            capacity,
        }
    }

    /// Bytes of the buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.end
    }

    /// The arrays in a buffer at `base`.
    pub(crate) fn step(&self, base: Address) -> params::Step {
        let at = |offset: usize| base + offset as Address;
        params::Step {
            header: at(0),
            tokens: at(self.tokens),
            carried: at(self.carried),
            positions: at(self.positions),
            row_segment: at(self.row_segment),
            logit_rows: at(self.logit_rows),
            segments: at(self.segments),
            tiles: at(self.tiles),
            pages: at(self.pages),
            draws: at(self.draws),
            adjust: at(self.adjust),
            masks: at(self.masks),
        }
    }

    /// Writes a step's inputs, which have been checked and fit; `areas` are the pending areas of each segment, to read and
    /// to write, and `host` is where tokens are put for the host. Returns how many bytes from the front are in use.
    pub(crate) fn write(&self, inputs: &StepInputs, areas: &[Areas], host: Address, bytes: &mut [u8]) -> usize {
        let mut out = Writer { bytes, end: 0 };
        let tiles = inputs.segments.iter().map(|s| s.rows.len().div_ceil(TILE_ROWS)).sum::<usize>();
        let counts = [inputs.tokens.len(), inputs.logit_rows.len(), inputs.segments.len(), tiles];
        out.words(0, counts.map(|n| n as u32).into_iter().chain([host as u32, (host >> 32) as u32]));
        out.words(self.tokens, inputs.tokens.iter().copied());
        let mut carried = inputs.carried.iter().peekable();
        let from =
            (0..inputs.tokens.len()).map(|row| carried.next_if(|c| c.row == row).map_or(NONE, |c| c.from as u32));
        out.words(self.carried, from);
        out.words(self.positions, inputs.positions.iter().flatten().copied());
        let of_rows = inputs.segments.iter().enumerate().flat_map(|(i, s)| s.rows.clone().map(move |_| i as u32));
        out.words(self.row_segment, of_rows);
        out.words(self.logit_rows, inputs.logit_rows.iter().map(|row| *row as u32));
        let mut first_page = 0;
        let segments = inputs.segments.iter().zip(areas).flat_map(|(s, areas)| {
            let first = first_page;
            first_page += s.used_pages() as u32;
            [
                s.rows.start as u32,
                s.rows.len() as u32,
                s.past as u32,
                first,
                s.slot as u32,
                s.accepted as u32,
                u32::from(s.speculative),
                areas.read,
                areas.write,
            ]
        });
        out.words(self.segments, segments);
        let tiles =
            inputs.segments.iter().enumerate().flat_map(|(i, s)| {
                (0..s.rows.len()).step_by(TILE_ROWS).flat_map(move |first| [i as u32, first as u32])
            });
        out.words(self.tiles, tiles);
        out.words(self.pages, inputs.segments.iter().flat_map(|s| s.pages[..s.used_pages()].iter().copied()));
        self.write_draws(inputs, &mut out);
        out.end
    }
}

impl Layout {
    fn write_draws(&self, inputs: &StepInputs, out: &mut Writer<'_>) {
        let masks = inputs.different_masks();
        let mut adjusted = 0;
        let draws = inputs.draws.iter().flat_map(|draw| {
            let uniform = draw.uniform.to_bits();
            let first = adjusted;
            adjusted += draw.adjust.len() as u32;
            let mask = draw.mask.as_ref().and_then(|mask| masks.iter().position(|known| Arc::ptr_eq(known, mask)));
            let before = |at: usize| masks[..at].iter().map(|mask| mask.len() as u32).sum();
            [
                uniform as u32,
                (uniform >> 32) as u32,
                draw.temperature.to_bits(),
                draw.top_p.to_bits(),
                draw.min_p.to_bits(),
                draw.top_k,
                first,
                draw.adjust.len() as u32,
                mask.map_or(NONE, before),
                0,
            ]
        });
        out.words(self.draws, draws);
        let adjust = inputs.draws.iter().flat_map(|draw| &draw.adjust);
        let words = adjust.flat_map(|a| [a.token, a.bias.to_bits(), a.divide.to_bits(), a.subtract.to_bits()]);
        out.words(self.adjust, words);
        out.words(self.masks, masks.iter().flat_map(|mask| mask.iter().copied()));
    }
}

/// Little-endian words at their places.
struct Writer<'a> {
    bytes: &'a mut [u8],
    end: usize,
}

impl Writer<'_> {
    fn words(&mut self, at: usize, words: impl IntoIterator<Item = u32>) {
        let mut next = at;
        for word in words {
            self.bytes[next..next + size_of::<u32>()].copy_from_slice(&word.to_le_bytes());
            next += size_of::<u32>();
            self.end = self.end.max(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_ops::{Adjust, Carried, Draw, Segment};

    const AREAS: [Areas; 2] = [Areas { read: 4, write: 5 }, Areas { read: 6, write: 7 }];
    const BUCKET: Bucket = Bucket { rows: 20, logits: 2, context: 200 };

    fn inputs() -> StepInputs {
        let segment = |rows: std::ops::Range<usize>, past, pages: &[u32]| Segment {
            rows,
            slot: 3,
            pages: pages.to_vec(),
            past,
            accepted: 1,
            speculative: true,
        };
        StepInputs {
            tokens: (100..118).collect(),
            positions: (0..18).map(|i| [i, 50 + i, 90 + i]).collect(),
            // The last page of the second is not reached yet.
            segments: vec![segment(0..17, 0, &[7]), segment(17..18, 64, &[9, 8, 2])],
            logit_rows: vec![16, 17],
            draws: Vec::new(),
            carried: vec![Carried { row: 17, from: 1 }],
            ..StepInputs::default()
        }
    }

    fn read(bytes: &[u8], at: Address, count: usize) -> Vec<u32> {
        let words = bytes[at as usize..].chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap()));
        words.take(count).collect()
    }

    #[test]
    fn every_array_is_where_the_kernels_look() {
        let layout = Layout::new(BUCKET, Capacity::first(BUCKET));
        let mut bytes = vec![0xee; layout.bytes()];
        let used = layout.write(&inputs(), &AREAS, 7 << 32 | 5, &mut bytes);
        let step = layout.step(0);
        assert_eq!(read(&bytes, step.header, 6), [18, 2, 2, 3, 5, 7]);
        assert_eq!(read(&bytes, step.tokens, 18), (100..118).collect::<Vec<_>>());
        assert_eq!(read(&bytes, step.carried, 18), [[NONE; 17].as_slice(), &[1]].concat());
        assert_eq!(read(&bytes, step.positions, 6), [0, 50, 90, 1, 51, 91]);
        assert_eq!(read(&bytes, step.row_segment, 18), [[0; 17].as_slice(), &[1]].concat());
        assert_eq!(read(&bytes, step.logit_rows, 2), [16, 17]);
        assert_eq!(read(&bytes, step.segments, 18), [0, 17, 0, 0, 3, 1, 1, 4, 5, 17, 1, 64, 1, 3, 1, 1, 6, 7]);
        assert_eq!(read(&bytes, step.tiles, 6), [0, 0, 0, 16, 1, 0]);
        assert_eq!(read(&bytes, step.pages, 3), [7, 9, 8]);
        assert_eq!(used, step.pages as usize + 12);
    }

    #[test]
    fn draws_name_their_adjustments_and_share_masks() {
        let mask: Arc<[u32]> = Arc::from([1u32, 2, 3].as_slice());
        let adjust = |token| Adjust { token, bias: 0.5, divide: 2.0, subtract: -1.0 };
        let draw = Draw {
            temperature: 0.75,
            top_k: 40,
            top_p: 0.5,
            min_p: 0.25,
            uniform: 0.1,
            adjust: vec![adjust(7), adjust(9)],
            mask: Some(mask.clone()),
        };
        let second = Draw { adjust: vec![adjust(3)], ..draw.clone() };
        let inputs = StepInputs { draws: vec![draw, second], ..inputs() };
        let needed = Capacity::of(&inputs);
        assert_eq!((needed.adjust, needed.masks), (3, 3));
        let layout = Layout::new(BUCKET, Capacity::first(BUCKET).grown(needed));
        let mut bytes = vec![0xee; layout.bytes()];
        let used = layout.write(&inputs, &AREAS, 0, &mut bytes);
        let step = layout.step(0);
        let bits = f32::to_bits;
        let uniform = 0.1f64.to_bits();
        let (low, high) = (uniform as u32, (uniform >> 32) as u32);
        let numbers = [low, high, bits(0.75), bits(0.5), bits(0.25), 40];
        assert_eq!(read(&bytes, step.draws, 10), [numbers.as_slice(), &[0, 2, 0, 0]].concat());
        assert_eq!(read(&bytes, step.draws + 40, 10), [numbers.as_slice(), &[2, 1, 0, 0]].concat());
        assert_eq!(read(&bytes, step.adjust + 32, 4), [3, bits(0.5), bits(2.0), bits(-1.0)]);
        assert_eq!(read(&bytes, step.masks, 3), [1, 2, 3]);
        assert_eq!(used, step.masks as usize + 12);
    }

    #[test]
    fn arrays_are_aligned_and_apart() {
        let layout = Layout::new(BUCKET, Capacity { pages: 5, adjust: 3, masks: 7 });
        let s = layout.step(4096);
        let starts = [
            s.header,
            s.tokens,
            s.carried,
            s.positions,
            s.row_segment,
            s.logit_rows,
            s.segments,
            s.tiles,
            s.draws,
            s.pages,
            s.adjust,
            s.masks,
        ];
        assert!(starts.iter().all(|at| at.is_multiple_of(ALIGN as u64)));
        assert!(starts.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(s.row_segment - s.positions, 240);
        assert!(layout.bytes() >= (s.masks - 4096) as usize + 28 && s.adjust - s.pages >= 20);
    }
}
