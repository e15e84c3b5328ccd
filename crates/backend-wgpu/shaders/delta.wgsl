// The gated delta rule, token by token: every split of a sequence into steps gives the same bits.
//
// A column of a head's matrix has a recurrence of its own. A workgroup has 32 columns of one head of one sequence; eight
// threads share a column, each with KEPT of its values. Keys and queries are normalised four rows at a time. Accepted
// guesses of the step before are rows like others, but for the output. With MADE the gates are what `gates` would make of
// their inputs; the bits are the same.

struct Params {
    q: View,
    k: View,
    v: View,
    log_decay: View,
    beta: View,
    out: u32,
    out_stride: u32,
    slot_stride: u32,
    area_stride: u32,
    // Floats of a row of a pending area.
    guess_row: u32,
    // 0: key = value / (values / keys), 1: key = value mod keys.
    map: u32,
    eps: f32,
    query_factor: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> rate: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> states: array<f32>;
@group(0) @binding(5) var<storage, read_write> guesses: array<f32>;
@group(0) @binding(6) var<storage, read_write> arena: array<f32>;

const COLUMNS: u32 = 32u;
const PARTS: u32 = 8u;
const BATCH: u32 = 4u;
const WIDTH: u32 = KEPT * PARTS;

// Keys of the batch, then its queries; zeros behind the key dimension.
var<workgroup> vectors: array<f32, 2u * BATCH * WIDTH>;
var<workgroup> pairs: array<vec2<f32>, 256>;
var<workgroup> reads: array<f32, 256>;

struct Head {
    // Where words of the segment begin.
    segment: u32,
    head: u32,
    key_head: u32,
    column: u32,
}

fn guess(h: Head, area: u32, i: u32) -> u32 {
    return step[h.segment + area] * p.area_stride + i * p.guess_row;
}

fn values_at() -> u32 {
    return p.k.heads * p.k.dim;
}

fn gates_at() -> u32 {
    return values_at() + p.v.heads * p.v.dim;
}

// Of a row of the step.
fn row_decay(row: u32, head: u32) -> f32 {
    let x = arena[place(p.log_decay, row, head)];
    if (MADE) {
        return log_decay(x + bias[head], rate[head]);
    }
    return x;
}

fn row_beta(row: u32, head: u32) -> f32 {
    let x = arena[place(p.beta, row, head)];
    if (MADE) {
        return sigmoid(x);
    }
    return x;
}

// Brings `count` rows from `first` on into shared memory: normalised keys, and queries of rows of the step. Threads 32 v to
// 32 v + 31 have vector v.
fn load(h: Head, first: u32, count: u32, accepted: bool, t: u32) {
    workgroupBarrier();
    let vector = t / 32u;
    let lane = t % 32u;
    let i = vector % BATCH;
    let is_query = vector >= BATCH;
    let here = i < count && !(is_query && accepted);
    let row = step[h.segment + SEGMENT_FIRST_ROW] + first + i;
    var sums = vec2<f32>();
    for (var d = lane; d < WIDTH; d += 32u) {
        var x = 0.0;
        if (here && d < p.k.dim) {
            if (is_query) {
                x = arena[place(p.q, row, h.key_head * p.q.dim + d)];
            } else if (accepted) {
                x = guesses[guess(h, SEGMENT_READ, first + i) + h.key_head * p.k.dim + d];
            } else {
                x = arena[place(p.k, row, h.key_head * p.k.dim + d)];
            }
        }
        sums = squared(sums, x);
        vectors[vector * WIDTH + d] = x;
    }
    pairs[t] = sums;
    workgroupBarrier();
    for (var step_ = 16u; step_ > 0u; step_ /= 2u) {
        if (lane < step_) {
            pairs[t] += pairs[t + step_];
        }
        workgroupBarrier();
    }
    let factor = inverse_of(pairs[t - lane], 1.0, p.eps) * select(1.0, p.query_factor, is_query);
    for (var d = lane; d < WIDTH; d += 32u) {
        vectors[vector * WIDTH + d] *= factor;
    }
    workgroupBarrier();
}

// The sum over the threads of a column, in ascending order of their parts.
fn column_sum(x: f32, t: u32) -> f32 {
    workgroupBarrier();
    reads[t] = x;
    workgroupBarrier();
    let column = t % COLUMNS;
    var sum = reads[column];
    for (var part = 1u; part < PARTS; part++) {
        sum += reads[part * COLUMNS + column];
    }
    return sum;
}

@compute @workgroup_size(256)
fn delta(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    var h: Head;
    h.segment = step[STEP_SEGMENT] + wg.z * SEGMENT_WORDS;
    h.head = wg.y;
    h.key_head = select(h.head / (p.v.heads / p.k.heads), h.head % p.k.heads, p.map == 1u);
    h.column = wg.x * COLUMNS + t % COLUMNS;
    let part = t / COLUMNS;
    let inside = h.column < p.v.dim;
    let accepted = step[h.segment + SEGMENT_ACCEPTED];
    let rows = step[h.segment + SEGMENT_ROWS];
    let first_row = step[h.segment + SEGMENT_FIRST_ROW];
    let speculative = step[h.segment + SEGMENT_SPECULATIVE] != 0u;
    let state = step[h.segment + SEGMENT_SLOT] * p.slot_stride + h.head * p.k.dim * p.v.dim + h.column;
    let value = h.head * p.v.dim + h.column;

    var s = array<f32, KEPT>();
    for (var r = 0u; r < KEPT; r++) {
        let key = part * KEPT + r;
        if (inside && key < p.k.dim) {
            s[r] = states[state + key * p.v.dim];
        }
    }
    let all = accepted + rows;
    var first = 0u;
    while (first < all) {
        let is_guess = first < accepted;
        let count = min(BATCH, select(all, accepted, is_guess) - first);
        // Rows of guesses, or of the step.
        let from_ = select(first - accepted, first, is_guess);
        load(h, from_, count, is_guess, t);
        for (var i = 0u; i < count; i++) {
            let row = first_row + from_ + i;
            var decay = 0.0;
            var beta = 0.0;
            var v = 0.0;
            if (is_guess) {
                let at = guess(h, SEGMENT_READ, from_ + i);
                decay = guesses[at + gates_at() + h.head];
                beta = guesses[at + gates_at() + p.v.heads + h.head];
                if (inside) {
                    v = guesses[at + values_at() + value];
                }
            } else {
                decay = row_decay(row, h.head);
                beta = row_beta(row, h.head);
                if (inside) {
                    v = arena[place(p.v, row, value)];
                }
            }
            let factor = exponential(decay);
            let key = i * WIDTH + part * KEPT;
            var read = 0.0;
            for (var r = 0u; r < KEPT; r++) {
                s[r] *= factor;
                read = fma(s[r], vectors[key + r], read);
            }
            let learned = beta * (v - column_sum(read, t));
            let query = key + BATCH * WIDTH;
            var y = 0.0;
            for (var r = 0u; r < KEPT; r++) {
                s[r] = fma(vectors[key + r], learned, s[r]);
                y = fma(s[r], vectors[query + r], y);
            }
            if (!is_guess) {
                let sum = column_sum(y, t);
                if (part == 0u && inside) {
                    arena[p.out + row * p.out_stride + value] = sum;
                }
            }
        }
        first += count;
        // What was accepted is kept, whether or not the rows are.
        if ((first == accepted && speculative) || (first == all && !speculative)) {
            for (var r = 0u; r < KEPT; r++) {
                let key = part * KEPT + r;
                if (inside && key < p.k.dim) {
                    states[state + key * p.v.dim] = s[r];
                }
            }
        }
    }
    if (!speculative) {
        return;
    }
    // Rows of the step, as they came, into the pending area: each value by its own column, keys and gates by the first
    // workgroup of a head.
    let group = p.v.heads / p.k.heads;
    let owns_key = select(h.head % group == 0u, h.head < p.k.heads, p.map == 1u);
    for (var i = part; i < rows; i += PARTS) {
        let row = first_row + i;
        let to = guess(h, SEGMENT_WRITE, i);
        if (inside) {
            guesses[to + values_at() + value] = arena[place(p.v, row, value)];
        }
        if (wg.x != 0u) {
            continue;
        }
        for (var d = t % COLUMNS; owns_key && d < p.k.dim; d += COLUMNS) {
            guesses[to + h.key_head * p.k.dim + d] = arena[place(p.k, row, h.key_head * p.k.dim + d)];
        }
        if (t % COLUMNS == 0u) {
            guesses[to + gates_at() + h.head] = row_decay(row, h.head);
            guesses[to + gates_at() + p.v.heads + h.head] = row_beta(row, h.head);
        }
    }
}
