// The gated delta rule of few rows, token by token: every split of a sequence into steps gives the same bits.
//
// A workgroup has 32 columns of one head of one sequence; eight threads share a column, a part each. Keys and queries are
// normalised four rows at a time. Accepted guesses of the step before are rows like others, but for the output.

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> rate: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> states: array<f32>;
@group(0) @binding(5) var<storage, read_write> guesses: array<f32>;
@group(0) @binding(6) var<storage, read_write> arena: array<f32>;

const COLUMNS: u32 = 32u;
const BATCH: u32 = 4u;

// Keys of the batch, then its queries.
var<workgroup> vectors: array<vec4<f32>, 2u * BATCH * VECTOR>;
// Two sets, in turn: while one is read the next one is written.
var<workgroup> reads: array<f32, 512>;

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
    for (var q = lane; q < VECTOR; q += 32u) {
        var x = vec4<f32>();
        if (here && accepted) {
            let at = guess(h, SEGMENT_READ, first + i) + h.key_head * p.k.dim;
            for (var d = 0u; d < 4u; d++) {
                if (4u * q + d < p.k.dim) {
                    x[d] = guesses[at + 4u * q + d];
                }
            }
        } else if (here && is_query) {
            x = arena_quad(vector_at(p.q, row, h.key_head), q);
        } else if (here) {
            x = arena_quad(vector_at(p.k, row, h.key_head), q);
        }
        sums = four_squared(sums, x);
        vectors[vector * VECTOR + q] = x;
    }
    let factor = normaliser(sums, is_query, t);
    for (var q = lane; q < VECTOR; q += 32u) {
        vectors[vector * VECTOR + q] *= factor;
    }
    workgroupBarrier();
}

// The sum over the parts of a column; `turn` says in which set, another one than the last time.
fn column_sum(x: f32, turn: u32, t: u32) -> f32 {
    reads[turn * 256u + t] = x;
    workgroupBarrier();
    let at = turn * 256u + t % COLUMNS;
    let first = (reads[at] + reads[at + COLUMNS]) + (reads[at + 2u * COLUMNS] + reads[at + 3u * COLUMNS]);
    let second =
        (reads[at + 4u * COLUMNS] + reads[at + 5u * COLUMNS]) + (reads[at + 6u * COLUMNS] + reads[at + 7u * COLUMNS]);
    return first + second;
}

@compute @workgroup_size(256)
fn delta(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    var h: Head;
    h.segment = step[STEP_SEGMENT] + wg.z * SEGMENT_WORDS;
    h.head = wg.y;
    h.key_head = key_head(h.head);
    h.column = wg.x * COLUMNS + t % COLUMNS;
    let part = t / COLUMNS;
    let inside = h.column < p.v.dim;
    let accepted = step[h.segment + SEGMENT_ACCEPTED];
    let rows = step[h.segment + SEGMENT_ROWS];
    let first_row = step[h.segment + SEGMENT_FIRST_ROW];
    let speculative = step[h.segment + SEGMENT_SPECULATIVE] != 0u;
    let state = step[h.segment + SEGMENT_SLOT] * p.slot_stride + h.head * p.k.dim * p.v.dim + h.column;
    let value = h.head * p.v.dim + h.column;

    var s = array<vec4<f32>, QUADS>();
    for (var j = 0u; j < QUADS; j++) {
        let key = 4u * (j * PARTS + part);
        for (var i = 0u; i < 4u; i++) {
            if (inside && key + i < p.k.dim) {
                s[j][i] = states[state + (key + i) * p.v.dim];
            }
        }
    }
    var turn = 0u;
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
            let key = i * VECTOR + part;
            var read = vec4<f32>(p.zero);
            for (var j = 0u; j < QUADS; j++) {
                s[j] *= factor;
                read = fma(s[j], vectors[key + j * PARTS], read);
            }
            let learned = beta * (v - column_sum(joined(read), turn, t));
            turn = 1u - turn;
            let query = key + BATCH * VECTOR;
            var y = vec4<f32>(p.zero);
            for (var j = 0u; j < QUADS; j++) {
                s[j] = fma(vectors[key + j * PARTS], vec4<f32>(learned), s[j]);
                y = fma(s[j], vectors[query + j * PARTS], y);
            }
            if (!is_guess) {
                let sum = column_sum(joined(y), turn, t);
                turn = 1u - turn;
                if (part == 0u && inside) {
                    arena[p.out + row * p.out_stride + value] = sum;
                }
            }
        }
        first += count;
        // What was accepted is kept, whether or not the rows are.
        if ((first == accepted && speculative) || (first == all && !speculative)) {
            for (var j = 0u; j < QUADS; j++) {
                let key = 4u * (j * PARTS + part);
                for (var i = 0u; i < 4u; i++) {
                    if (inside && key + i < p.k.dim) {
                        states[state + (key + i) * p.v.dim] = s[j][i];
                    }
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
