//! Attention over pages of 8-bit and 4-bit blocks in integers: four bytes at a time in each 32-bit lane.
//!
//! Queries are rounded once to 16 bits, and so are the weights of a page times the scales of a block of its values. With
//! the largest weight P that a query has in the page, and the largest scale S_b of a block among the tokens that it sees,
//!
//! ```text
//! score = unit sum_b (s_b sum code x + m_b sum x)    x = round(query / unit)        unit = max |query| / LIMIT
//! out  += sum_t code w unit_b + sum_t p_t m_b        w = round(p_t s_b / unit_b)    unit_b = P S_b / LIMIT
//! ```
//!
//! where s and m are scale and minimum of block b of a key, or of the value of token t. Sums over a block, or over a page,
//! are exact, and below 64 * 255 * LIMIT < 2^31.
//!
//! A page's bytes lie so that a lane is a key, or a dimension of the values, and no sum runs across lanes:
//!
//! ```text
//! head of a page   scales: f16 [block][64 tokens] | 4 bits: minima, the same | codes
//! keys, 8 bits     [16 tokens][4 dimensions][token][dimension], code + 128
//! keys, 4 bits     [16 tokens][block][4 quads][token][byte]: the bytes of a stored block, 4 at a time
//! values, 8 bits   [4 tokens][16 dimensions][dimension][token]
//! values, 4 bits   [4 tokens][block][byte of a stored block][token]
//! ```
//!
//! Head vectors have to be whole blocks for that. As every sum is exact or runs in one order over blocks and pages, a
//! query's bits do not depend on the queries beside it.

use super::attention::{GROUP, LINE, Page, Queries, most, prefetch, soften};
use super::kv::BLOCK;
use super::rows::dot;
use super::vector::{LANES, Vector};
use onebit_ops::{KvFormat, PAGE_ROWS};

/// Largest integer of queries and weights: both of its bytes are signed bytes.
const LIMIT: f32 = 32639.0;

/// Bytes of the scales, or of the minima, of one block of all tokens.
const SCALES: usize = 2 * PAGE_ROWS;

/// Tokens that lie side by side in the keys.
const KEYS: usize = LINE / 4;

/// Tokens that lie side by side in the values.
pub(crate) const QUAD: usize = 4;

/// Quads of a block.
const QUADS: usize = BLOCK / QUAD;

/// 32 integers of 16 bits for [`Quads::keys`] and [`Quads::values`]: of each quad two words that they read, and two
/// that nobody does.
pub(crate) type Words = [u32; BLOCK];

/// One number for each token of a page.
pub(crate) type Tokens = [f32; PAGE_ROWS];

/// A page whose largest weight is below this counts as none: another page has a weight of 1.
const NONE: f32 = 1e-30;

/// 32-bit lanes that add the products of four bytes each. Sums come in two halves, which [`Quads::floats`] joins.
///
/// Everything is `inline(always)`, as in [`Vector`].
pub(crate) trait Quads: Copy {
    /// Lanes: 8 or 16.
    const COUNT: usize;
    /// Bytes, ready to be multiplied.
    type Codes: Copy;
    /// As many floats.
    type Floats: Copy;

    fn splat(v: i32) -> Self;
    /// The products as nearest integers, which lie within [`LIMIT`]; those for [`Quads::keys`] may be negative. NaN becomes
    /// any number.
    fn round(a: &[f32; BLOCK], b: &[f32; BLOCK], signed: bool) -> Words;
    /// What the halves of the sum of these signed integers are, for codes of 1.
    fn totals(words: &Words) -> [i32; 2];
    /// The two halves of a sum as one.
    fn total(halves: [i32; 2]) -> i32;

    /// Unsigned bytes of vector `part` of a line.
    fn unsigned(line: &[u8; LINE], part: usize) -> Self::Codes;
    /// Signed bytes.
    fn signed(line: &[u8; LINE], part: usize) -> Self::Codes;
    /// The low or the high halves of the bytes, which are both signed and unsigned.
    fn nibbles(line: &[u8; LINE], part: usize, high: bool) -> Self::Codes;
    /// Adds products of unsigned codes with a quad of integers.
    fn keys(sums: &mut [Self; 2], codes: Self::Codes, quad: &[u32; QUAD]);
    /// Adds products of signed codes with a quad of integers that are not negative.
    fn values(sums: &mut [Self; 2], codes: Self::Codes, quad: &[u32; QUAD]);

    fn floats(sums: [Self; 2]) -> Self::Floats;
    fn zero() -> Self::Floats;
    fn splat_float(v: f32) -> Self::Floats;
    /// Vector `at` of the f16 numbers of a block.
    fn halves(scales: &[u8; SCALES], at: usize) -> Self::Floats;
    /// `a b + c`, rounded once.
    fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Vector `at` of some floats.
    fn load(from: &[f32], at: usize) -> Self::Floats;
    fn store(v: Self::Floats, to: &mut [f32], at: usize);
}

/// Whether pages of such head vectors lie as this module says.
pub(crate) fn fits(format: KvFormat, dim: usize) -> bool {
    matches!(format, KvFormat::Q8 | KvFormat::Q4) && dim.is_multiple_of(BLOCK)
}

/// Most bytes of a stored block.
pub(crate) const MOST_BYTES: usize = 34;

/// Bytes of a stored block, and those of them before the codes.
fn block_bytes(format: KvFormat) -> [usize; 2] {
    [format.head_bytes(BLOCK), if format == KvFormat::Q4 { 4 } else { 2 }]
}

/// Puts block `b` of a token's key or value, as `kv_store` makes it, into its page.
pub(crate) fn place(
    format: KvFormat,
    dim: usize,
    values: bool,
    block: &[u8],
    page: &mut [u8],
    (token, b): (usize, usize),
) {
    let blocks = dim / BLOCK;
    let [bytes, head] = block_bytes(format);
    let (numbers, codes) = block[..bytes].split_at(head);
    for (i, number) in numbers.as_chunks::<2>().0.iter().enumerate() {
        let at = (i * blocks + b) * SCALES + 2 * token;
        page[at..at + 2].copy_from_slice(number);
    }
    let page = &mut page[head / 2 * blocks * SCALES..];
    if values {
        let start = (token / QUAD * blocks + b) * codes.len() * QUAD + token % QUAD;
        for (to, code) in page[start..].iter_mut().step_by(QUAD).zip(codes) {
            *to = *code;
        }
    } else {
        let start = token / KEYS * blocks * codes.len() * KEYS + b * codes.len() * KEYS + token % KEYS * QUAD;
        // Codes of eight bits become unsigned.
        let flip = if format == KvFormat::Q8 { 0x80 } else { 0 };
        for (i, quad) in codes.as_chunks::<QUAD>().0.iter().enumerate() {
            page[start + i * LINE..][..QUAD].copy_from_slice(&quad.map(|code| code ^ flip));
        }
    }
}

/// Fills in the integers of the queries.
#[inline(always)]
pub(crate) fn round_queries<V: Vector, L: Quads>(q: &mut Queries<'_>) {
    let width = q.queries.len() / q.seen.len();
    let blocks = width / BLOCK;
    let words = q.words.chunks_exact_mut(blocks).zip(q.totals.chunks_exact_mut(blocks));
    for ((x, (words, totals)), unit) in q.queries.chunks_exact(width).zip(words).zip(&mut *q.units) {
        let (top, poison) = largest::<V>(x);
        // Where the inverse would overflow there is nothing to tell from zero.
        let inverse = if top > NONE { LIMIT / top } else { 0.0 };
        *unit = top / LIMIT + poison;
        for ((x, words), totals) in x.as_chunks().0.iter().zip(words).zip(totals) {
            *words = L::round(x, &[inverse; BLOCK], true);
            *totals = L::totals(words);
        }
    }
}

/// The largest magnitude, of which NaN is none; and zero, or NaN where a number is not finite.
#[inline(always)]
fn largest<V: Vector>(x: &[f32]) -> (f32, f32) {
    let (mut top, mut poison) = (V::zero(), V::zero());
    for x in x.as_chunks().0 {
        let x = V::load(x);
        top = x.abs().max(top);
        poison = x.mul_add(V::zero(), poison);
    }
    (top.top(), poison.sum())
}

/// The parts of one head's page.
#[derive(Clone, Copy)]
struct Parts<'a> {
    scales: &'a [[u8; SCALES]],
    /// Of codes of four bits.
    minima: &'a [[u8; SCALES]],
    codes: &'a [[u8; LINE]],
}

impl<'a> Parts<'a> {
    fn of(page: &'a [u8], format: KvFormat, dim: usize) -> Self {
        let numbers = block_bytes(format)[1] / 2 * (dim / BLOCK) * SCALES;
        let (head, codes) = page.split_at(numbers);
        let (scales, minima) = head.as_chunks().0.split_at(dim / BLOCK);
        Parts { scales, minima, codes: codes.as_chunks().0 }
    }
}

/// Bytes of a page up to the last ones that so many tokens take part in.
fn used(page: &[u8], format: KvFormat, dim: usize, tokens: usize) -> &[u8] {
    let [bytes, head] = block_bytes(format).map(|bytes| bytes * (dim / BLOCK));
    &page[..head * PAGE_ROWS + (bytes - head) * tokens.next_multiple_of(KEYS)]
}

/// As [`attend_page`](super::attention::attend_page), over pages that lie as this module says. `P` vectors and up to six
/// queries share the registers.
#[inline(always)]
pub(crate) fn attend<V: Vector, L: Quads, const P: usize>(page: &Page<'_>, q: &mut Queries<'_>) {
    match page.format {
        KvFormat::Q4 => attend_in::<V, L, P, true>(page, q),
        _ => attend_in::<V, L, P, false>(page, q),
    }
}

#[inline(always)]
fn attend_in<V: Vector, L: Quads, const P: usize, const NIBBLES: bool>(page: &Page<'_>, q: &mut Queries<'_>) {
    let end = most(q.seen);
    let of = |bytes| used(bytes, page.format, page.dim, end);
    if page.cold {
        prefetch::<V>(of(page.keys), 0, 1);
    }
    let keys = Parts::of(page.keys, page.format, page.dim);
    let mut at = 0;
    let ahead = of(page.values);
    score_groups::<V, L, GROUP, P, NIBBLES>(q, &mut at, keys, ahead);
    score_groups::<V, L, 4, P, NIBBLES>(q, &mut at, keys, ahead);
    score_groups::<V, L, 2, P, NIBBLES>(q, &mut at, keys, ahead);
    score_groups::<V, L, 1, P, NIBBLES>(q, &mut at, keys, ahead);
    soften::<V>(q);
    let values = Parts::of(page.values, page.format, page.dim);
    let (mut at, mut ahead) = (0, page.next);
    while at < q.seen.len() {
        // Queries that see the same tokens share the ratios of their scales.
        let seen = q.seen[at];
        let alike = q.seen[at..].iter().take_while(|other| **other == seen).count();
        if seen > 0 {
            survey::<V, NIBBLES>(values, seen, q);
            let mut left = alike;
            while left > 0 {
                let first = at + alike - left;
                left -= match left {
                    GROUP.. => add::<V, L, GROUP, P, NIBBLES>(q, first, values, ahead),
                    4.. => add::<V, L, 4, P, NIBBLES>(q, first, values, ahead),
                    2.. => add::<V, L, 2, P, NIBBLES>(q, first, values, ahead),
                    _ => add::<V, L, 1, P, NIBBLES>(q, first, values, ahead),
                };
                ahead = &[];
            }
        }
        at += alike;
    }
}

/// The scores of `Q` queries at a time from `at` on.
#[inline(always)]
fn score_groups<V: Vector, L: Quads, const Q: usize, const P: usize, const NIBBLES: bool>(
    q: &mut Queries<'_>,
    at: &mut usize,
    keys: Parts<'_>,
    ahead: &[u8],
) {
    let blocks = keys.scales.len();
    while q.seen.len() - *at >= Q {
        let first = *at;
        *at += Q;
        let end = most(&q.seen[first..first + Q]);
        let tokens = P * L::COUNT;
        for token in (0..end).step_by(tokens) {
            let ahead = if first == 0 { piece(ahead, token / tokens, end.div_ceil(tokens)) } else { &[] };
            let words = &q.words[first * blocks..(first + Q) * blocks];
            let totals = &q.totals[first * blocks..(first + Q) * blocks];
            let scores = &mut q.scores[first * PAGE_ROWS..(first + Q) * PAGE_ROWS];
            let vectors = (token / L::COUNT, ahead);
            score::<V, L, Q, P, NIBBLES>((words, totals, &q.units[first..first + Q]), keys, vectors, scores);
        }
    }
}

/// Part `i` of `n` of these bytes, in whole lines.
#[inline(always)]
fn piece(bytes: &[u8], i: usize, n: usize) -> &[u8] {
    let lines = bytes.len() / LINE;
    &bytes[lines * i / n * LINE..lines * (i + 1) / n * LINE]
}

/// Asks for part `i` of `n` of these bytes, or for a little more. Many at once would hold up the loads behind them.
#[inline(always)]
fn trickle<V: Vector>(bytes: &[u8], i: usize, n: usize) {
    let each = (bytes.len() / LINE).div_ceil(n);
    for line in i * each..(i + 1) * each {
        V::prefetch(bytes.as_ptr().wrapping_add(line * LINE));
    }
}

/// The scores of `Q` queries over the keys of `P` vectors from vector `first` on, while the bytes `ahead` are fetched.
#[inline(always)]
fn score<V: Vector, L: Quads, const Q: usize, const P: usize, const NIBBLES: bool>(
    (words, totals, units): (&[Words], &[[i32; 2]], &[f32]),
    keys: Parts<'_>,
    (first, ahead): (usize, &[u8]),
    scores: &mut [f32],
) {
    let blocks = keys.scales.len();
    // Lines of one block and sixteen tokens, and vectors of a line.
    let (lines, parts) = (if NIBBLES { QUADS / 2 } else { QUADS }, KEYS / L::COUNT);
    let mut dots = [[L::zero(); P]; Q];
    for b in 0..blocks {
        let ahead = piece(ahead, b, blocks);
        let mut sums = [[[L::splat(0); 2]; P]; Q];
        if !NIBBLES {
            for i in 0..Q {
                let [first, second] = totals[i * blocks + b];
                sums[i] = [[L::splat(-128 * first), L::splat(-128 * second)]; P];
            }
        }
        for quad in 0..QUADS {
            trickle::<V>(ahead, quad, QUADS);
            let mut codes = [L::unsigned(&[0; LINE], 0); P];
            for (p, codes) in codes.iter_mut().enumerate() {
                let vector = first + p;
                let line = &keys.codes[(vector / parts * blocks + b) * lines + quad % lines];
                *codes = if NIBBLES {
                    L::nibbles(line, vector % parts, quad >= lines)
                } else {
                    L::unsigned(line, vector % parts)
                };
            }
            for i in 0..Q {
                let words = &words[i * blocks + b].as_chunks().0[quad];
                for p in 0..P {
                    L::keys(&mut sums[i][p], codes[p], words);
                }
            }
        }
        for p in 0..P {
            let scale = L::halves(&keys.scales[b], first + p);
            for i in 0..Q {
                dots[i][p] = L::mul_add(L::floats(sums[i][p]), scale, dots[i][p]);
            }
            if NIBBLES {
                let minimum = L::halves(&keys.minima[b], first + p);
                for i in 0..Q {
                    let total = L::splat_float(L::total(totals[i * blocks + b]) as f32);
                    dots[i][p] = L::mul_add(minimum, total, dots[i][p]);
                }
            }
        }
    }
    for (i, dots) in dots.into_iter().enumerate() {
        for (p, dot) in dots.into_iter().enumerate() {
            let score = L::mul(dot, L::splat_float(units[i]));
            L::store(score, &mut scores[i * PAGE_ROWS..(i + 1) * PAGE_ROWS], first + p);
        }
    }
}

/// Numbers of the values of the tokens that a query sees: scales over the largest one of their block, that one, and
/// minima. Zeros for other tokens.
#[inline(always)]
fn survey<V: Vector, const NIBBLES: bool>(values: Parts<'_>, seen: usize, q: &mut Queries<'_>) {
    for ((scales, ratios), top) in values.scales.iter().zip(&mut *q.ratios).zip(&mut *q.tops) {
        widen::<V>(scales, seen, ratios);
        let (largest, poison) = largest::<V>(ratios);
        let inverse = V::splat(if largest > 0.0 { 1.0 / largest } else { 0.0 });
        for ratio in ratios.as_chunks_mut().0 {
            V::load(ratio).mul(inverse).store(ratio);
        }
        *top = largest / LIMIT + poison;
    }
    if NIBBLES {
        for (minima, lows) in values.minima.iter().zip(&mut *q.minima) {
            widen::<V>(minima, seen, lows);
        }
    }
}

/// The numbers of the first tokens, and zeros.
#[inline(always)]
fn widen<V: Vector>(from: &[u8; SCALES], seen: usize, to: &mut Tokens) {
    for (to, from) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(from.as_chunks().0) {
        V::load_f16(from).store(to);
    }
    to[seen..].fill(0.0);
}

/// Adds the weighted values to the outputs of `Q` queries from `first` on, which see the same tokens; returns Q.
#[inline(always)]
fn add<V: Vector, L: Quads, const Q: usize, const P: usize, const NIBBLES: bool>(
    q: &mut Queries<'_>,
    first: usize,
    values: Parts<'_>,
    ahead: &[u8],
) -> usize {
    let (blocks, seen) = (values.scales.len(), q.seen[first]);
    let mut units = [0.0; Q];
    let mut weights = [[0.0; PAGE_ROWS]; Q];
    for i in 0..Q {
        // What was scored beyond may be anything.
        let p = &mut q.scores[(first + i) * PAGE_ROWS..][..PAGE_ROWS];
        p[seen..].fill(0.0);
        let (top, _) = largest::<V>(p);
        let inverse = V::splat(if top > NONE { LIMIT / top } else { 0.0 });
        for (p, to) in p.as_chunks().0.iter().zip(weights[i].as_chunks_mut().0) {
            V::load(p).mul(inverse).store(to);
        }
        units[i] = top;
    }
    let out = &mut q.out[first * blocks * BLOCK..(first + Q) * blocks * BLOCK];
    for b in 0..blocks {
        let ahead = piece(ahead, b, blocks);
        let mut words = [[[0; BLOCK]; 2]; Q];
        let (mut block_units, mut lows) = ([0.0; Q], [0.0; Q]);
        for i in 0..Q {
            for half in 0..2 {
                let (ratios, weights) = (q.ratios[b].as_chunks().0, weights[i].as_chunks().0);
                words[i][half] = L::round(&weights[half], &ratios[half], false);
            }
            block_units[i] = units[i] * q.tops[b];
            if NIBBLES {
                lows[i] = dot::<V>(&q.scores[(first + i) * PAGE_ROWS..][..PAGE_ROWS], &q.minima[b]);
            }
        }
        let quads = seen.div_ceil(QUAD);
        for vector in (0..BLOCK / L::COUNT).step_by(P) {
            let ahead = piece(ahead, vector / P, BLOCK / L::COUNT / P);
            let block = (b, vector, quads, ahead);
            weighted::<V, L, Q, P, NIBBLES>(out, (&words, &block_units, &lows), values, block);
        }
    }
    Q
}

/// Adds the products of all tokens for `P` vectors of block `b` from vector `first` on.
#[inline(always)]
fn weighted<V: Vector, L: Quads, const Q: usize, const P: usize, const NIBBLES: bool>(
    out: &mut [f32],
    (words, units, lows): (&[[Words; 2]; Q], &[f32; Q], &[f32; Q]),
    values: Parts<'_>,
    (b, first, quads, ahead): (usize, usize, usize, &[u8]),
) {
    let blocks = values.scales.len();
    let (lines, parts) = (if NIBBLES { 1 } else { 2 }, KEYS / L::COUNT);
    let mut sums = [[[L::splat(0); 2]; P]; Q];
    for quad in 0..quads {
        trickle::<V>(ahead, quad, quads);
        let mut codes = [L::signed(&[0; LINE], 0); P];
        for (p, codes) in codes.iter_mut().enumerate() {
            let vector = first + p;
            let line = (quad * blocks + b) * lines;
            *codes = if NIBBLES {
                L::nibbles(&values.codes[line], vector % parts, vector >= parts)
            } else {
                L::signed(&values.codes[line + vector / parts], vector % parts)
            };
        }
        for i in 0..Q {
            let words = &words[i][quad / QUADS].as_chunks().0[quad % QUADS];
            for p in 0..P {
                L::values(&mut sums[i][p], codes[p], words);
            }
        }
    }
    let width = blocks * BLOCK;
    for i in 0..Q {
        let out = &mut out[i * width + b * BLOCK..][..BLOCK];
        for (p, sums) in sums[i].into_iter().enumerate() {
            let before = L::load(out, first + p);
            let mut sum = L::mul_add(L::floats(sums), L::splat_float(units[i]), before);
            if NIBBLES {
                sum = L::add(sum, L::splat_float(lows[i]));
            }
            L::store(sum, out, first + p);
        }
    }
}
