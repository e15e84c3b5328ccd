//! From a file's format to a resident layout, block by block, in parallel.

mod bits;
mod ternary;
pub(crate) mod triples;

use crate::generic::Kernels;
use crate::layout::{BLOCK, Codes, GROUP, LINE, Lanes, Layout, PLAIN_ORDER, Segment};
use crate::memory::{Arena, Bytes, Disjoint};
use crate::threads::Pool;
use bits::{WORD, Words};
use onebit_ops::OpError;
use onebit_quant::float::f32_to_f16;
use onebit_quant::{Format, MAX_GROUP, Matrix, ParamType, Residual, Symmetry};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes that one thread writes at a time.
const TASK: usize = 512 << 10;

/// How the codes of a format are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Row by row, number by number.
    Rows,
    /// Packed least significant bit first, as the bit layouts want them: bytes of a group, and where codes begin in it.
    Bits { stride: usize, start: usize },
    /// As `ternary` says.
    Ternary,
}

/// What a matrix becomes.
pub(crate) struct Target {
    pub layout: Layout,
    pub reading: Reading,
    pub sparse: Vec<Residual>,
    /// Bytes of biases that are derived from now on.
    pub shed_bytes: u64,
}

/// The layout of a matrix, by the symmetry rule: a bias that follows from its scale is dropped, a few rounded ones
/// become a sparse list, anything else is kept. Triples are for what [`may_be_triples`].
pub(crate) fn target(matrix: &Matrix<'_>, kernels: &Kernels, symmetry: Symmetry, as_triples: bool) -> Target {
    let format = matrix.format;
    let mut layout = Layout {
        codes: Codes::Bits1,
        group: format.group(),
        cols: matrix.cols,
        scale: ParamType::F16,
        bias: None,
        factor: 1.0,
        center: 0.0,
        order: &PLAIN_ORDER,
        together: 1,
    };
    if let Some(kind) = format.dense() {
        layout.codes = Codes::Dense(kind);
        layout.group = GROUP;
        return Target { layout, reading: Reading::Rows, sparse: Vec::new(), shed_bytes: 0 };
    }
    let as_triples = kernels.triples.as_ref().filter(|_| as_triples);
    (layout.codes, layout.center) = match format.bits() {
        1 => (Codes::Bits1, 0.5),
        2 if as_triples.is_some() => (Codes::Triples, 1.0),
        2 => (Codes::Bits2, 1.0),
        4 => (Codes::Block4, 8.0),
        _ => (Codes::Block8, 128.0),
    };
    layout.order = match layout.codes {
        Codes::Triples => as_triples.map_or(&PLAIN_ORDER, |t| t.order),
        Codes::Bits1 => kernels.bits1_order,
        Codes::Bits2 => kernels.bits2_order,
        _ => &PLAIN_ORDER,
    };
    let (mut sparse, mut shed_bytes) = (Vec::new(), 0);
    match format {
        Format::Affine { bits, scale, bias, .. } => {
            layout.scale = scale;
            // Values are 2 code - 1 for one bit, so their scale is half of the code's.
            layout.factor = if bits == 1 { 0.5 } else { 1.0 };
            match symmetry {
                Symmetry::Affine => layout.bias = Some(bias),
                Symmetry::Exact => shed_bytes = matrix.biases.len() as u64,
                Symmetry::Rounding(list) => {
                    shed_bytes = (matrix.biases.len() - list.len() * bias.bytes()) as u64;
                    sparse = list;
                }
            }
        }
        Format::Q4_1 => layout.bias = Some(ParamType::F16),
        _ => {}
    }
    let whole_lines = layout.scale.bytes() == 2 && layout.bias.is_none_or(|kind| kind.bytes() == 2);
    let bits = matches!(layout.codes, Codes::Bits1 | Codes::Bits2 | Codes::Triples);
    if bits && whole_lines {
        layout.together = kernels.together;
    }
    let codes = format.group() * format.bits() / 8;
    let reading = match format {
        Format::Ptq1_0 => Reading::Ternary,
        Format::Affine { .. } if bits => Reading::Bits { stride: codes, start: 0 },
        // The other formats of one and two bits begin with their binary16 scale.
        _ if bits => Reading::Bits { stride: codes + 2, start: 2 },
        _ => Reading::Rows,
    };
    Target { layout, reading, sparse, shed_bytes }
}

/// Whether parts of a weight can become triples: the ones of two bits in groups of 128, without biases of their own. All
/// of a weight or none, since all parts read the same tables.
pub(crate) fn may_be_triples(kernels: &Kernels, parts: &[Matrix<'_>], symmetry: &[Symmetry]) -> bool {
    let fits = |(part, symmetry): (&Matrix<'_>, &Symmetry)| {
        part.format.dense().is_none()
            && (part.format.bits(), part.format.group()) == (2, GROUP)
            && *symmetry != Symmetry::Affine
    };
    kernels.triples.is_some() && parts.iter().zip(symmetry).all(fits)
}

/// Whether a matrix of two bits in groups of 128 is ternary, found by all threads.
pub(crate) fn is_ternary(pool: &Pool, matrix: &Matrix<'_>) -> bool {
    // Codes of a group, and where they begin in its bytes.
    let (stride, start) = match matrix.format {
        Format::Ptq1_0 => return true,
        Format::Affine { .. } => (GROUP / 4, 0),
        _ => (GROUP / 4 + 2, 2),
    };
    let found = AtomicBool::new(true);
    let share = TASK / stride * stride;
    pool.run(matrix.codes.len().div_ceil(share), &|task, _| {
        let end = ((task + 1) * share).min(matrix.codes.len());
        let mut groups = matrix.codes[task * share..end].chunks(stride);
        if found.load(Ordering::Relaxed) && !groups.all(|group| triples::are_ternary(&group[start..])) {
            found.store(false, Ordering::Relaxed);
        }
    });
    found.into_inner()
}

/// [`Matrix::symmetry`], found by all threads.
pub(crate) fn symmetry(pool: &Pool, matrix: &Matrix<'_>) -> Symmetry {
    const ROWS: usize = 512;
    let tasks = matrix.rows.div_ceil(ROWS);
    let found = Mutex::new(vec![Symmetry::Exact; tasks]);
    pool.run(tasks, &|task, _| {
        let rows = task * ROWS..((task + 1) * ROWS).min(matrix.rows);
        let part = matrix.slice_rows(rows).symmetry();
        found.lock().unwrap_or_else(PoisonError::into_inner)[task] = part;
    });
    let mut all = Vec::new();
    for (task, part) in found.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().enumerate() {
        match part {
            Symmetry::Exact => {}
            Symmetry::Rounding(list) => {
                all.extend(list.into_iter().map(|r| Residual { row: r.row + task * ROWS, ..r }))
            }
            // The rule counts over the whole matrix, where a few bad rows may be few enough.
            Symmetry::Affine => return matrix.symmetry(),
        }
    }
    if all.is_empty() { Symmetry::Exact } else { Symmetry::Rounding(all) }
}

/// Repacks matrices of one layout and one [`Reading`], whose rows follow one another.
pub(crate) fn repack(
    pool: &Pool,
    arena: &mut Arena,
    name: &str,
    parts: &[&Matrix<'_>],
    target: Target,
    first_row: usize,
) -> Result<Segment, OpError> {
    let Target { layout, reading, sparse, .. } = target;
    let rows: usize = parts.iter().map(|p| p.rows).sum();
    let (blocks, bytes) = (rows.div_ceil(BLOCK), layout.block_bytes());
    let mut data = arena.take(segment_bytes(&layout, rows), &format!("weight `{name}`"))?;
    let out = Disjoint::new(data.bytes_mut());
    let share = (TASK / bytes.max(1)).max(1).next_multiple_of(layout.together);
    pool.run(blocks.div_ceil(share), &|task, _| {
        let mut apart = vec![0; if layout.together > 1 { bytes } else { 0 }];
        let end = ((task + 1) * share).min(blocks);
        for first in (task * share..end).step_by(layout.together) {
            let set = first..(first + layout.together).min(end);
            // SAFETY: each set of blocks belongs to one task.
            let to = unsafe { out.piece(set.start * bytes..set.end * bytes) };
            for b in set.clone() {
                let block = if layout.together == 1 { &mut *to } else { apart.as_mut_slice() };
                let rows = Rows::new(parts, b * BLOCK);
                if rows.count < BLOCK {
                    // The places of the missing rows are not written.
                    block.fill(0);
                }
                rows.fetch();
                match reading {
                    Reading::Rows => rows.write_numbers(&layout, block),
                    Reading::Bits { stride, start } => rows.write_bits(&layout, stride, start, block),
                    Reading::Ternary => rows.write_ternary(&layout, block),
                }
                if layout.together > 1 {
                    let places = to.as_chunks_mut::<LINE>().0[b - set.start..].iter_mut().step_by(set.len());
                    places.zip(apart.as_chunks().0).for_each(|(to, line)| *to = *line);
                }
            }
        }
    });
    Ok(Segment { rows: first_row..first_row + rows, layout, data: Bytes::Own(data), sparse })
}

/// Bytes of a segment.
pub(crate) fn segment_bytes(layout: &Layout, rows: usize) -> usize {
    rows.div_ceil(BLOCK).saturating_mul(layout.block_bytes())
}

/// The rows of one block in their files; the last block of a weight may have fewer than 32.
struct Rows<'a> {
    count: usize,
    /// Matrix and row.
    places: Lanes<Option<(&'a Matrix<'a>, usize)>>,
    codes: Lanes<&'a [u8]>,
    scales: Lanes<&'a [u8]>,
    biases: Lanes<&'a [u8]>,
}

impl<'a> Rows<'a> {
    fn new(parts: &[&'a Matrix<'a>], first: usize) -> Self {
        let empty: Lanes<&[u8]> = [&[]; BLOCK];
        let mut rows = Rows { count: 0, places: [None; BLOCK], codes: empty, scales: empty, biases: empty };
        let mut start = 0;
        for m in parts {
            let cut = |bytes: &'a [u8], row: usize| {
                let size = bytes.len() / m.rows;
                &bytes[row * size..(row + 1) * size]
            };
            while rows.count < BLOCK && first + rows.count < start + m.rows {
                let (r, row) = (rows.count, first + rows.count - start);
                rows.places[r] = Some((m, row));
                (rows.codes[r], rows.scales[r], rows.biases[r]) =
                    (cut(m.codes, row), cut(m.scales, row), cut(m.biases, row));
                rows.count += 1;
            }
            start += m.rows;
        }
        rows
    }

    /// Brings the codes into the caches in one pass along the rows, which the processor fetches ahead by itself; across
    /// the rows it would wait for every line.
    fn fetch(&self) {
        const LINE: usize = 64;
        let mut sum = 0u8;
        for row in &self.codes[..self.count] {
            sum = row.iter().step_by(LINE).fold(sum, |sum, byte| sum ^ byte);
        }
        std::hint::black_box(sum);
    }

    /// Codes that are packed as the layout wants them, in groups of `stride` bytes.
    fn write_bits(&self, layout: &Layout, stride: usize, start: usize, block: &mut [u8]) {
        if layout.codes == Codes::Triples {
            return self.write_triples(layout, stride, start, block);
        }
        // The words of a row in a group are spelled out: loops of known lengths stay in registers.
        match layout.code_bytes() / BLOCK {
            32 => self.write_words::<4>(layout, stride, start, block),
            16 => self.write_words::<2>(layout, stride, start, block),
            8 => self.write_words::<1>(layout, stride, start, block),
            _ => self.write_half_words(layout, stride, start, block),
        }
    }

    fn write_words<const N: usize>(&self, layout: &Layout, stride: usize, start: usize, block: &mut [u8]) {
        let places = bits::places(layout.order);
        let rows = &self.codes[..self.count];
        for (g, record) in block.chunks_exact_mut(layout.record_bytes()).enumerate() {
            let mut words = [[0; BLOCK]; N];
            let from = g * stride + start;
            for (row, place) in rows.iter().zip(&places) {
                let bytes = row[from..from + N * WORD].as_chunks().0;
                for (words, bytes) in words.iter_mut().zip(bytes) {
                    words[usize::from(*place) % BLOCK] = u64::from_le_bytes(*bytes);
                }
            }
            self.write_record(layout, g, stride, start, &mut words, record);
        }
    }

    /// Ternary codes of two bits.
    fn write_triples(&self, layout: &Layout, stride: usize, start: usize, block: &mut [u8]) {
        for (g, record) in block.chunks_exact_mut(layout.record_bytes()).enumerate() {
            let (codes, params) = record.split_at_mut(layout.code_bytes());
            for (row, place) in self.codes[..self.count].iter().zip(&layout.order.position) {
                let mut words = [0; GROUP / 4 / WORD];
                for (word, bytes) in words.iter_mut().zip(row[g * stride + start..].as_chunks().0) {
                    *word = u64::from_le_bytes(*bytes);
                }
                put_words(&triples::pack(&words), *place, codes);
            }
            if start > 0 {
                copy::<2>(&self.codes[..self.count], g * stride, params);
            } else {
                self.write_params(layout, g, params);
            }
        }
    }

    /// Groups of 32 single bits.
    fn write_half_words(&self, layout: &Layout, stride: usize, start: usize, block: &mut [u8]) {
        let places = bits::places(layout.order);
        for (g, record) in block.chunks_exact_mut(layout.record_bytes()).enumerate() {
            let mut words = [0; BLOCK];
            let from = g * stride + start;
            for (row, place) in self.codes[..self.count].iter().zip(&places) {
                let half = row[from..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                words[usize::from(*place) % BLOCK] = u64::from(half);
            }
            self.write_record(layout, g, stride, start, &mut [words], record);
        }
    }

    #[inline(always)]
    fn write_record(
        &self,
        layout: &Layout,
        g: usize,
        stride: usize,
        start: usize,
        words: &mut [Words],
        record: &mut [u8],
    ) {
        let (codes, params) = record.split_at_mut(layout.code_bytes());
        for (words, to) in words.iter_mut().zip(codes.chunks_mut(WORD * BLOCK)) {
            if layout.codes == Codes::Bits2 {
                bits::separate(layout.order.unit, words);
            }
            bits::transpose(layout.order.unit, words);
            store(words, to);
        }
        if start > 0 {
            copy::<2>(&self.codes[..self.count], g * stride, params);
        } else {
            self.write_params(layout, g, params);
        }
    }

    fn write_ternary(&self, layout: &Layout, block: &mut [u8]) {
        if layout.codes == Codes::Triples {
            return self.write_ternary_triples(layout, block);
        }
        let (unit, places) = (layout.order.unit, bits::places(layout.order));
        for (g, record) in block.chunks_exact_mut(layout.record_bytes()).enumerate() {
            let mut words = [[0; BLOCK]; 2 * GROUP / 8 / WORD];
            for (row, place) in self.codes[..self.count].iter().zip(&places) {
                let Some(bytes) = row[g * ternary::BLOCK_BYTES..].first_chunk() else { continue };
                let [low, high] = ternary::planes(bytes);
                for (c, words) in words.iter_mut().enumerate() {
                    let half = |plane: [u64; 2]| plane[c / 2] >> (32 * (c % 2)) & 0xffff_ffff;
                    words[usize::from(*place) % BLOCK] = half(low) | half(high) << 32;
                }
            }
            let (codes, params) = record.split_at_mut(layout.code_bytes());
            for (words, to) in words.iter_mut().zip(codes.chunks_exact_mut(WORD * BLOCK)) {
                bits::interleave(unit, words);
                bits::transpose(unit, words);
                store(words, to);
            }
            copy::<2>(&self.codes[..self.count], g * ternary::BLOCK_BYTES + ternary::SCALE, params);
        }
    }

    fn write_ternary_triples(&self, layout: &Layout, block: &mut [u8]) {
        for (g, record) in block.chunks_exact_mut(layout.record_bytes()).enumerate() {
            let (codes, params) = record.split_at_mut(layout.code_bytes());
            for (row, place) in self.codes[..self.count].iter().zip(&layout.order.position) {
                let Some(bytes) = row[g * ternary::BLOCK_BYTES..].first_chunk() else { continue };
                let [low, high] = ternary::planes(bytes);
                let half = |plane: [u64; 2], c: usize| plane[c / 2] >> (32 * (c % 2)) & 0xffff_ffff;
                let mut words = [0; GROUP / 4 / WORD];
                for (c, word) in words.iter_mut().enumerate() {
                    *word = bits::join(half(low, c), half(high, c));
                }
                put_words(&triples::pack(&words), *place, codes);
            }
            copy::<2>(&self.codes[..self.count], g * ternary::BLOCK_BYTES + ternary::SCALE, params);
        }
    }

    /// Scales and biases of group `g` that stand beside the codes.
    fn write_params(&self, layout: &Layout, g: usize, params: &mut [u8]) {
        let (scales, biases) = params.split_at_mut(layout.scale.bytes() * BLOCK);
        let kept = layout.bias.map(|kind| (kind, &self.biases, biases));
        for (kind, from, to) in [(layout.scale, &self.scales, scales)].into_iter().chain(kept) {
            let from = &from[..self.count];
            // The sizes are spelled out: of an unknown number of bytes each copy would be a call.
            match kind {
                ParamType::F16 | ParamType::BF16 => copy::<2>(from, 2 * g, to),
                ParamType::F32 => copy::<4>(from, 4 * g, to),
            }
        }
    }

    /// Dense values, and codes of four and eight bits.
    fn write_numbers(&self, layout: &Layout, block: &mut [u8]) {
        for (r, (place, data)) in self.places.iter().zip(&self.codes).enumerate() {
            let Some((m, row)) = place else { continue };
            if let Codes::Dense(kind) = layout.codes {
                let size = kind.bytes();
                for (value, column) in data.chunks_exact(size).zip(block.chunks_exact_mut(BLOCK * size)) {
                    column[r * size..(r + 1) * size].copy_from_slice(value);
                }
                continue;
            }
            let mut codes = [0u8; MAX_GROUP];
            let codes = &mut codes[..layout.group];
            for (g, record) in block.chunks_exact_mut(layout.record_bytes()).enumerate() {
                let group = m.group(*row, g, codes);
                if layout.codes == Codes::Block4 {
                    write_block4(codes, r, record)
                } else {
                    write_block8(codes, r, record)
                }
                if let Some(form) = m.format.block() {
                    let params = &mut record[layout.code_bytes()..];
                    params.as_chunks_mut().0[r] = f32_to_f16(group.scale / form.scale_of_d).to_le_bytes();
                    if layout.bias.is_some() {
                        params.as_chunks_mut().0[BLOCK + r] = f32_to_f16(group.bias).to_le_bytes();
                    }
                }
            }
        }
        if let (true, Some((Matrix { format: Format::Affine { .. }, .. }, _))) = (layout.is_packed(), self.places[0]) {
            for (g, record) in block.chunks_exact_mut(layout.record_bytes()).enumerate() {
                self.write_params(layout, g, &mut record[layout.code_bytes()..]);
            }
        }
    }
}

/// A row's words at its place, a line for each.
#[inline(always)]
fn put_words(words: &[u16; triples::WORDS], place: u8, lines: &mut [u8]) {
    for (word, line) in words.iter().zip(lines.as_chunks_mut::<LINE>().0) {
        line.as_chunks_mut().0[usize::from(place)] = word.to_le_bytes();
    }
}

/// Transposed words as the layout's bytes.
#[inline(always)]
fn store(words: &Words, to: &mut [u8]) {
    for (to, word) in to.as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
}

/// The `N` bytes at `from` of every row, side by side.
#[inline(always)]
fn copy<const N: usize>(rows: &[&[u8]], from: usize, to: &mut [u8]) {
    for (row, to) in rows.iter().zip(to.as_chunks_mut::<N>().0) {
        to.copy_from_slice(&row[from..from + N]);
    }
}

fn write_block4(codes: &[u8], r: usize, record: &mut [u8]) {
    for (quad, to) in codes.chunks_exact(4).zip(record.chunks_exact_mut(2 * BLOCK)) {
        to[2 * r] = quad[0] | (quad[2] << 4);
        to[2 * r + 1] = quad[1] | (quad[3] << 4);
    }
}

fn write_block8(codes: &[u8], r: usize, record: &mut [u8]) {
    for (pair, to) in codes.chunks_exact(2).zip(record.chunks_exact_mut(2 * BLOCK)) {
        to[2 * r] = pair[0] ^ 0x80;
        to[2 * r + 1] = pair[1] ^ 0x80;
    }
}
