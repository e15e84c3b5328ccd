// The gated delta rule of one row, and what stands between it and the product behind it: a norm over each head, its gate, rounding.
// What `delta` and `prepare` do, in one kernel and with the same bits. A workgroup has all 128 columns of a head; two threads
// share a column, four parts each.

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> rate: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> gain: array<f32>;
@group(0) @binding(5) var<storage, read> arena: array<f32>;
@group(0) @binding(6) var<storage, read_write> states: array<f32>;
@group(0) @binding(7) var<storage, read_write> scratch: array<u32>;

const COLUMNS: u32 = GROUP_COLUMNS;
// Parts of a thread.
const OWN: u32 = 4u;

// The key, then the query.
var<workgroup> vectors: array<vec4<f32>, 2u * VECTOR>;
var<workgroup> reads: array<f32, 256>;
var<workgroup> results: array<f32, 256>;

fn put(at: u32, word: u32) {
    scratch[at] = word;
}

fn halved(sums: vec4<f32>) -> f32 {
    return (sums.x + sums.y) + (sums.z + sums.w);
}

@compute @workgroup_size(256)
fn delta_one(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let head = wg.x;
    let row = wg.y;
    let column = t % COLUMNS;
    let first_part = t / COLUMNS * OWN;
    let segment = step[STEP_SEGMENT] + step[step[STEP_ROW_SEGMENT] + row] * SEGMENT_WORDS;
    let state = step[segment + SEGMENT_SLOT] * p.slot_stride + head * p.k.dim * p.v.dim + column;
    // Quads of each part, one part after the other.
    var s = array<vec4<f32>, OWN * QUADS>();
    for (var n = 0u; n < OWN * QUADS; n++) {
        let key = 4u * (n % QUADS * PARTS + first_part + n / QUADS);
        for (var i = 0u; i < 4u; i++) {
            if (key + i < p.k.dim) {
                s[n][i] = states[state + (key + i) * p.v.dim];
            }
        }
    }
    // The first team has the key, the second one the query.
    let team = t / 32u;
    let lane = t % 32u;
    let from_ = select(vector_at(p.q, row, key_head(head)), vector_at(p.k, row, key_head(head)), team == 0u);
    var squares = vec2<f32>();
    for (var q = lane; team < 2u && q < VECTOR; q += 32u) {
        let x = arena_quad(from_, q);
        squares = four_squared(squares, x);
        vectors[team * VECTOR + q] = x;
    }
    let factor = normaliser(squares, team == 1u, t);
    for (var q = lane; team < 2u && q < VECTOR; q += 32u) {
        vectors[team * VECTOR + q] *= factor;
    }
    workgroupBarrier();
    let decay = exponential(row_decay(row, head));
    let beta = row_beta(row, head);
    let v = arena[vector_at(p.v, row, head) + column];
    var sums = vec4<f32>();
    for (var part = 0u; part < OWN; part++) {
        var read = vec4<f32>();
        for (var j = 0u; j < QUADS; j++) {
            let n = part * QUADS + j;
            s[n] *= decay;
            read = fma(s[n], vectors[j * PARTS + first_part + part], read);
        }
        sums[part] = joined(read);
    }
    reads[t] = halved(sums);
    workgroupBarrier();
    let learned = vec4<f32>(beta * (v - (reads[column] + reads[COLUMNS + column])));
    for (var part = 0u; part < OWN; part++) {
        var y = vec4<f32>();
        for (var j = 0u; j < QUADS; j++) {
            let n = part * QUADS + j;
            let quad = j * PARTS + first_part + part;
            s[n] = fma(vectors[quad], learned, s[n]);
            y = fma(s[n], vectors[VECTOR + quad], y);
        }
        sums[part] = joined(y);
    }
    results[t] = halved(sums);
    for (var n = 0u; n < OWN * QUADS; n++) {
        let key = 4u * (n % QUADS * PARTS + first_part + n / QUADS);
        for (var i = 0u; i < 4u; i++) {
            if (key + i < p.k.dim) {
                states[state + (key + i) * p.v.dim] = s[n][i];
            }
        }
    }
    workgroupBarrier();
    // The first team has the head's result.
    let has_values = team == 0u;
    var x = vec4<f32>();
    var gate = vec4<f32>();
    for (var i = 0u; has_values && i < 4u; i++) {
        let c = 4u * lane + i;
        x[i] = results[c] + results[COLUMNS + c];
        gate[i] = arena[place(p.gate, row, head * COLUMNS + c)];
    }
    let inverse = inverse_of(team_sum(four_squared(vec2<f32>(), x), t), f32(COLUMNS), p.norm_eps);
    for (var i = 0u; i < 4u; i++) {
        x[i] = x[i] * inverse * gain[4u * lane + i];
    }
    finish(gated(x, gate), row, head * COLUMNS + 4u * lane, has_values, t);
}
