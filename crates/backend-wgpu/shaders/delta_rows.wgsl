// The gated delta rule of many rows: what `delta` computes, in the same order, with what `delta_make` has made.
//
// A workgroup has 16 columns of one head of one sequence; four threads share a column, two parts each, and meet once a row, for
// what the column reads with its key. Rows come in batches, the next one on its way while one is computed; results are joined
// behind their batch. Only for sequences without guesses, to take in or to make.

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> made: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> gates: array<f32>;
@group(0) @binding(4) var<storage, read_write> states: array<f32>;
@group(0) @binding(5) var<storage, read_write> arena: array<f32>;

const COLUMNS: u32 = 16u;
const SHARES: u32 = 4u;
const THREADS: u32 = COLUMNS * SHARES;
const BATCH: u32 = 4u;
// Quads of a batch that a thread brings.
const BROUGHT: u32 = 2u * BATCH * VECTOR / THREADS;

// For each row of the batch its key, then its query.
var<workgroup> vectors: array<vec4<f32>, 2u * BATCH * VECTOR>;
var<workgroup> values: array<f32, THREADS>;
var<workgroup> decays: array<f32, BATCH>;
var<workgroup> betas: array<f32, BATCH>;
// For each thread the sums of its two parts: of reads two sets, in turn, and of results one for each row of the batch.
var<workgroup> reads: array<vec2<f32>, 2u * THREADS>;
var<workgroup> results: array<vec2<f32>, BATCH * THREADS>;

struct Rows {
    first: u32,
    count: u32,
    head: u32,
    key_head: u32,
    column: u32,
}

// A thread's share of a batch, on its way.
struct Share {
    quads: array<vec4<f32>, BROUGHT>,
    value: f32,
    decay: f32,
    beta: f32,
}

// Of the batch that begins at row `first`; rows behind the last are copies of it.
fn bring(rows: Rows, first: u32, t: u32) -> Share {
    var share: Share;
    for (var n = 0u; n < BROUGHT; n++) {
        let i = t + n * THREADS;
        let row = rows.first + min(first + i / (2u * VECTOR), rows.count - 1u);
        let vector = rows.key_head + select(0u, p.k.heads, i / VECTOR % 2u == 1u);
        share.quads[n] = made[(p.made + row * made_row()) / 4u + vector * VECTOR + i % VECTOR];
    }
    let row = rows.first + min(first + t / COLUMNS, rows.count - 1u);
    let column = rows.column + t % COLUMNS;
    if (column < p.v.dim) {
        share.value = arena[vector_at(p.v, row, rows.head) + column];
    }
    if (t < BATCH) {
        let gate = p.made + (rows.first + min(first + t, rows.count - 1u)) * made_row() + made_gates() + rows.head;
        share.decay = gates[gate];
        share.beta = gates[gate + p.v.heads];
    }
    return share;
}

// The sum over the parts of a column from `at` on, where its threads have left theirs.
fn column_read(at: u32) -> f32 {
    let sums = (reads[at] + reads[at + 1u]) + (reads[at + 2u] + reads[at + 3u]);
    return sums.x + sums.y;
}

fn column_result(at: u32) -> f32 {
    let sums = (results[at] + results[at + 1u]) + (results[at + 2u] + results[at + 3u]);
    return sums.x + sums.y;
}

@compute @workgroup_size(THREADS)
fn delta_rows(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let segment = step[STEP_SEGMENT] + wg.z * SEGMENT_WORDS;
    var rows: Rows;
    rows.first = step[segment + SEGMENT_FIRST_ROW];
    rows.count = step[segment + SEGMENT_ROWS];
    rows.head = wg.y;
    rows.key_head = key_head(rows.head);
    rows.column = wg.x * COLUMNS;
    let part = t % SHARES;
    let own = t / SHARES;
    let column = rows.column + own;
    let inside = column < p.v.dim;
    let state = step[segment + SEGMENT_SLOT] * p.slot_stride + rows.head * p.k.dim * p.v.dim + column;

    // Both parts' quads: those of the thread's number, and those of the part four further on.
    var low = array<vec4<f32>, QUADS>();
    var high = array<vec4<f32>, QUADS>();
    for (var j = 0u; j < QUADS; j++) {
        let key = 4u * (j * PARTS + part);
        for (var i = 0u; i < 4u; i++) {
            if (inside && key + i < p.k.dim) {
                low[j][i] = states[state + (key + i) * p.v.dim];
            }
            if (inside && key + 16u + i < p.k.dim) {
                high[j][i] = states[state + (key + 16u + i) * p.v.dim];
            }
        }
    }
    var share = bring(rows, 0u, t);
    for (var first = 0u; first < rows.count; first += BATCH) {
        // What stood here has been read: a batch ends behind a barrier.
        for (var n = 0u; n < BROUGHT; n++) {
            vectors[t + n * THREADS] = share.quads[n];
        }
        values[t] = share.value;
        if (t < BATCH) {
            decays[t] = share.decay;
            betas[t] = share.beta;
        }
        workgroupBarrier();
        share = bring(rows, first + BATCH, t);
        let count = min(rows.count - first, BATCH);
        for (var i = 0u; i < count; i++) {
            let key = 2u * i * VECTOR + part;
            let query = key + VECTOR;
            let decay = decays[i];
            var a = vec4<f32>(p.zero);
            var b = vec4<f32>(p.zero);
            for (var j = 0u; j < QUADS; j++) {
                low[j] *= decay;
                high[j] *= decay;
                a = fma(low[j], vectors[key + j * PARTS], a);
                b = fma(high[j], vectors[key + j * PARTS + SHARES], b);
            }
            let turn = (i % 2u) * THREADS;
            reads[turn + t] = vec2<f32>(joined(a), joined(b));
            workgroupBarrier();
            let read = column_read(turn + own * SHARES);
            let learned = vec4<f32>(betas[i] * (values[i * COLUMNS + own] - read));
            a = vec4<f32>(p.zero);
            b = vec4<f32>(p.zero);
            for (var j = 0u; j < QUADS; j++) {
                low[j] = fma(vectors[key + j * PARTS], learned, low[j]);
                high[j] = fma(vectors[key + j * PARTS + SHARES], learned, high[j]);
                a = fma(low[j], vectors[query + j * PARTS], a);
                b = fma(high[j], vectors[query + j * PARTS + SHARES], b);
            }
            results[i * THREADS + t] = vec2<f32>(joined(a), joined(b));
        }
        workgroupBarrier();
        // Of the batch's results a thread joins one: of row t / COLUMNS.
        let row = t / COLUMNS;
        let result = rows.column + t % COLUMNS;
        if (row < count && result < p.v.dim) {
            let sum = column_result(row * THREADS + (t % COLUMNS) * SHARES);
            arena[p.out + (rows.first + first + row) * p.out_stride + rows.head * p.v.dim + result] = sum;
        }
    }
    for (var j = 0u; j < QUADS; j++) {
        let key = 4u * (j * PARTS + part);
        for (var i = 0u; i < 4u; i++) {
            if (inside && key + i < p.k.dim) {
                states[state + (key + i) * p.v.dim] = low[j][i];
            }
            if (inside && key + 16u + i < p.k.dim) {
                states[state + (key + 16u + i) * p.v.dim] = high[j][i];
            }
        }
    }
}
