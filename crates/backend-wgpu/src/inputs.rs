//! What changes from step to step, as one stretch of words.
//!
//! The first words say how many rows, logit rows, segments and tiles there are and where each array begins. Arrays of a
//! known largest length come first; lists of any length (pages, changes of logits, masks) follow with some capacity, and a
//! step that needs more makes the plan lay its buffer out anew.

use onebit_ops::{Areas, Bucket, Capacity, RopeTable, StepInputs};
use std::sync::Arc;

/// No such index.
const NONE: u32 = u32::MAX;

/// Rows of a tile.
const TILE_ROWS: usize = 16;

/// Words before the first array.
const HEADER: usize = 16;

const SEGMENT: usize = 9;
const DRAW: usize = 8;
const ADJUST: usize = 4;

/// Words of the header that count rows and logit rows: what kernels are told to look at.
pub(crate) const COUNT_ROWS: u32 = 0;
pub(crate) const COUNT_LOGITS: u32 = 1;

/// How much of the plan's largest step a step uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub rows: usize,
    pub logits: usize,
    pub segments: usize,
    pub tiles: usize,
    /// Tokens of its longest sequence, this step's included.
    pub context: usize,
    /// Most rows of one segment.
    pub longest: usize,
    /// Whether rows are guesses, or guesses are taken in.
    pub guesses: bool,
}

impl Counts {
    pub(crate) fn of(inputs: &StepInputs) -> Counts {
        Counts {
            rows: inputs.tokens.len(),
            logits: inputs.logit_rows.len(),
            segments: inputs.segments.len(),
            tiles: inputs.segments.iter().map(|s| s.rows.len().div_ceil(TILE_ROWS)).sum(),
            context: inputs.segments.iter().map(|s| s.past + s.rows.len()).max().unwrap_or(0),
            longest: inputs.segments.iter().map(|s| s.rows.len()).max().unwrap_or(0),
            guesses: inputs.segments.iter().any(|s| s.speculative || s.accepted > 0),
        }
    }
}

/// Word at which each array begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    tokens: usize,
    carried: usize,
    row_segment: usize,
    logit_rows: usize,
    segments: usize,
    tiles: usize,
    draws: usize,
    /// For each rotary table of the plan: pairs of cosine and sine of each row.
    angles: Vec<usize>,
    pages: usize,
    adjust: usize,
    masks: usize,
    end: usize,
    pub capacity: Capacity,
}

impl Layout {
    /// For steps of a bucket with these rotary tables.
    pub(crate) fn new(bucket: Bucket, tables: &[Arc<RopeTable>], capacity: Capacity) -> Layout {
        let mut end = HEADER;
        let mut take = |words: usize| {
            let at = end;
            end = (end + words).next_multiple_of(4);
            at
        };
        let rows = bucket.rows;
        Layout {
            tokens: take(rows),
            carried: take(rows),
            row_segment: take(rows),
            logit_rows: take(bucket.logits),
            segments: take(rows * SEGMENT),
            tiles: take(rows * 2),
            draws: take(bucket.logits * DRAW),
            angles: tables.iter().map(|table| take(rows * 2 * table.inv_freq.len())).collect(),
            pages: take(capacity.pages),
            adjust: take(capacity.adjust * ADJUST),
            masks: take(capacity.masks),
            end: take(0),
            capacity,
        }
    }

    /// Bytes of the buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.end * size_of::<u32>()
    }

    /// Where the angles of a table begin.
    pub(crate) fn angles(&self, table: usize) -> u32 {
        self.angles[table] as u32
    }

    /// Writes a step whose inputs have been checked and fit; `areas` are the pending areas of each segment, to read and
    /// to write. Returns the words from the front that are in use.
    pub(crate) fn write(&self, inputs: &StepInputs, tables: &[Arc<RopeTable>], areas: &[Areas]) -> Vec<u32> {
        let mut out = Writer { words: vec![0; self.end], end: 0 };
        let counts = Counts::of(inputs);
        let places = [
            counts.rows,
            counts.logits,
            counts.segments,
            counts.tiles,
            self.tokens,
            self.carried,
            self.row_segment,
            self.logit_rows,
            self.segments,
            self.tiles,
            self.pages,
            self.draws,
            self.adjust,
            self.masks,
        ];
        out.put(0, places.map(|n| n as u32));
        out.put(self.tokens, inputs.tokens.iter().copied());
        let mut carried = inputs.carried.iter().peekable();
        let from =
            (0..inputs.tokens.len()).map(|row| carried.next_if(|c| c.row == row).map_or(NONE, |c| c.from as u32));
        out.put(self.carried, from);
        let of_rows = inputs.segments.iter().enumerate().flat_map(|(i, s)| s.rows.clone().map(move |_| i as u32));
        out.put(self.row_segment, of_rows);
        out.put(self.logit_rows, inputs.logit_rows.iter().map(|row| *row as u32));
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
        out.put(self.segments, segments);
        let tiles =
            inputs.segments.iter().enumerate().flat_map(|(i, s)| {
                (0..s.rows.len()).step_by(TILE_ROWS).flat_map(move |first| [i as u32, first as u32])
            });
        out.put(self.tiles, tiles);
        for (table, at) in tables.iter().zip(&self.angles) {
            write_angles(table, inputs, *at, &mut out);
        }
        out.put(self.pages, inputs.segments.iter().flat_map(|s| s.pages[..s.used_pages()].iter().copied()));
        self.write_draws(inputs, &mut out);
        out.words.truncate(out.end);
        out.words
    }

    fn write_draws(&self, inputs: &StepInputs, out: &mut Writer) {
        let masks = inputs.different_masks();
        let mut adjusted = 0;
        let draws = inputs.draws.iter().flat_map(|draw| {
            let first = adjusted;
            adjusted += draw.adjust.len() as u32;
            let mask = draw.mask.as_ref().and_then(|mask| masks.iter().position(|known| Arc::ptr_eq(known, mask)));
            let before = |at: usize| masks[..at].iter().map(|mask| mask.len() as u32).sum();
            [
                // Its first 32 binary digits.
                (draw.uniform * 4_294_967_296.0) as u32,
                draw.temperature.to_bits(),
                draw.top_p.to_bits(),
                draw.min_p.to_bits(),
                draw.top_k,
                first,
                draw.adjust.len() as u32,
                mask.map_or(NONE, before),
            ]
        });
        out.put(self.draws, draws);
        let adjust = inputs.draws.iter().flat_map(|draw| &draw.adjust);
        let words = adjust.flat_map(|a| [a.token, a.bias.to_bits(), a.divide.to_bits(), a.subtract.to_bits()]);
        out.put(self.adjust, words);
        out.put(self.masks, masks.iter().flat_map(|mask| mask.iter().copied()));
    }
}

fn write_angles(table: &RopeTable, inputs: &StepInputs, at: usize, out: &mut Writer) {
    let pairs = table.inv_freq.len();
    let (mut cos, mut sin) = (vec![0.0; pairs], vec![0.0; pairs]);
    for (row, position) in inputs.positions.iter().enumerate() {
        table.cos_sin(*position, &mut cos, &mut sin);
        let both = cos.iter().zip(&sin).flat_map(|(c, s)| [c.to_bits(), s.to_bits()]);
        out.put(at + row * 2 * pairs, both);
    }
}

/// Words at their places.
struct Writer {
    words: Vec<u32>,
    end: usize,
}

impl Writer {
    fn put(&mut self, at: usize, words: impl IntoIterator<Item = u32>) {
        let mut next = at;
        for word in words {
            self.words[next] = word;
            next += 1;
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

    #[test]
    fn every_array_is_where_the_header_says() {
        let table = Arc::new(RopeTable::plain(1e4, 4));
        let tables = [table];
        let layout = Layout::new(BUCKET, &tables, Capacity::first(BUCKET));
        let words = layout.write(&inputs(), &tables, &AREAS);
        let read = |place: usize, count: usize| words[words[place] as usize..][..count].to_vec();
        assert_eq!(words[..4], [18, 2, 2, 3]);
        assert_eq!(read(4, 18), (100..118).collect::<Vec<_>>());
        assert_eq!(read(5, 18), [[NONE; 17].as_slice(), &[1]].concat());
        assert_eq!(read(6, 18), [[0; 17].as_slice(), &[1]].concat());
        assert_eq!(read(7, 2), [16, 17]);
        assert_eq!(read(8, 18), [0, 17, 0, 0, 3, 1, 1, 4, 5, 17, 1, 64, 1, 3, 1, 1, 6, 7]);
        assert_eq!(read(9, 6), [0, 0, 0, 16, 1, 0]);
        assert_eq!(read(10, 3), [7, 9, 8]);
        let angle = &words[layout.angles(0) as usize + 4..][..4];
        assert_eq!(f32::from_bits(angle[0]), 1f64.cos() as f32);
        assert_eq!(f32::from_bits(angle[3]), f64::from(0.01f32).sin() as f32);
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
            uniform: 0.5,
            adjust: vec![adjust(7), adjust(9)],
            mask: Some(mask.clone()),
        };
        let second = Draw { adjust: vec![adjust(3)], ..draw.clone() };
        let inputs = StepInputs { draws: vec![draw, second], ..inputs() };
        let needed = Capacity::of(&inputs);
        assert_eq!((needed.adjust, needed.masks), (3, 3));
        let layout = Layout::new(BUCKET, &[], Capacity::first(BUCKET).grown(needed));
        let words = layout.write(&inputs, &[], &AREAS);
        let read = |place: usize, skip: usize, count: usize| words[words[place] as usize + skip..][..count].to_vec();
        let bits = f32::to_bits;
        let numbers = [1 << 31, bits(0.75), bits(0.5), bits(0.25), 40];
        assert_eq!(read(11, 0, 8), [numbers.as_slice(), &[0, 2, 0]].concat());
        assert_eq!(read(11, 8, 8), [numbers.as_slice(), &[2, 1, 0]].concat());
        assert_eq!(read(12, 8, 4), [3, bits(0.5), bits(2.0), bits(-1.0)]);
        assert_eq!(read(13, 0, 3), [1, 2, 3]);
    }
}
