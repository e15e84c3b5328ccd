// The gated delta rule of one row, and what stands between it and the product behind it: a norm over each head, its gate, rounding.
// What `delta` and `prepare` do, in one kernel and with the same bits. A workgroup has all 128 columns of a head: a thread four
// neighbouring columns of one part, so that its reads of the matrix are of 16 bytes, and all on their way together.

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> rate: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> gain: array<f32>;
@group(0) @binding(5) var<storage, read> arena: array<f32>;
@group(0) @binding(6) var<storage, read_write> states: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> scratch: array<u32>;

// Threads that share a row of the matrix, four columns each; there is one team of them for each part.
const TEAM: u32 = GROUP_COLUMNS / 4u;

// Quads of the key or query that a thread has.
const OF_LANE: u32 = (VECTOR + TEAM - 1u) / TEAM;

// The key, then the query.
var<workgroup> vectors: array<vec4<f32>, 2u * VECTOR>;
// For each thread what its part of its columns has read, then what results.
var<workgroup> sums: array<vec4<f32>, PARTS * TEAM>;

fn put(at: u32, word: u32) {
    scratch[at] = word;
}

// The sum over the parts of four columns.
fn column_sums(lane: u32) -> vec4<f32> {
    let first = (sums[lane] + sums[TEAM + lane]) + (sums[2u * TEAM + lane] + sums[3u * TEAM + lane]);
    return first + ((sums[4u * TEAM + lane] + sums[5u * TEAM + lane]) + (sums[6u * TEAM + lane] + sums[7u * TEAM + lane]));
}

@compute @workgroup_size(256)
fn delta_one(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let head = wg.x;
    let row = wg.y;
    let lane = t % TEAM;
    let part = t / TEAM;
    let segment = step[STEP_SEGMENT] + step[step[STEP_ROW_SEGMENT] + row] * SEGMENT_WORDS;
    let slot = step[segment + SEGMENT_SLOT] * p.slot_stride;
    let state = (slot + head * p.k.dim * p.v.dim) / 4u + lane;
    // What is needed first is asked for first. The first team has the key, the second one the query.
    let from_ = select(vector_at(p.q, row, key_head(head)), vector_at(p.k, row, key_head(head)), part == 0u);
    var quads = array<vec4<f32>, OF_LANE>();
    for (var n = 0u; n < OF_LANE; n++) {
        let q = lane + n * TEAM;
        if (part < 2u && q < VECTOR) {
            quads[n] = arena_quad(from_, q);
        }
    }
    let decay_x = arena[place(p.log_decay, row, head)];
    let beta_x = arena[place(p.beta, row, head)];
    let rule = rule_of(head);
    let at = vector_at(p.v, row, head) + 4u * lane;
    let v = vec4<f32>(arena[at], arena[at + 1u], arena[at + 2u], arena[at + 3u]);
    // The first team has the head's result.
    let has_values = part == 0u;
    var gate = vec4<f32>();
    var gains = vec4<f32>();
    for (var i = 0u; has_values && i < 4u; i++) {
        gate[i] = arena[place(p.gate, row, head * GROUP_COLUMNS + 4u * lane + i)];
        gains[i] = gain[4u * lane + i];
    }
    // Four rows of the matrix for each quad of the part: those of its keys.
    var a = array<vec4<f32>, QUADS>();
    var b = array<vec4<f32>, QUADS>();
    var c = array<vec4<f32>, QUADS>();
    var d = array<vec4<f32>, QUADS>();
    for (var j = 0u; j < QUADS; j++) {
        let key = 4u * (j * PARTS + part);
        if (WHOLE || key < p.k.dim) {
            let at = state + key * TEAM;
            a[j] = states[at];
            b[j] = states[at + TEAM];
            c[j] = states[at + 2u * TEAM];
            d[j] = states[at + 3u * TEAM];
        }
    }
    var squares = vec2<f32>();
    for (var n = 0u; n < OF_LANE; n++) {
        squares = four_squared(squares, quads[n]);
    }
    let decay = exponential(made_decay(decay_x, rule));
    let beta = made_beta(beta_x);
    let factor = normaliser(squares, part == 1u, t);
    for (var n = 0u; n < OF_LANE; n++) {
        let q = lane + n * TEAM;
        if (part < 2u && q < VECTOR) {
            vectors[part * VECTOR + q] = quads[n] * factor;
        }
    }
    workgroupBarrier();
    // Four chains for each column, joined in pairs.
    var w = vec4<f32>(p.zero);
    var x = vec4<f32>(p.zero);
    var y = vec4<f32>(p.zero);
    var z = vec4<f32>(p.zero);
    for (var j = 0u; j < QUADS; j++) {
        let key = vectors[j * PARTS + part];
        a[j] *= decay;
        b[j] *= decay;
        c[j] *= decay;
        d[j] *= decay;
        w = fma(a[j], vec4<f32>(key.x), w);
        x = fma(b[j], vec4<f32>(key.y), x);
        y = fma(c[j], vec4<f32>(key.z), y);
        z = fma(d[j], vec4<f32>(key.w), z);
    }
    sums[t] = (w + x) + (y + z);
    workgroupBarrier();
    let learned = beta * (v - column_sums(lane));
    workgroupBarrier();
    w = vec4<f32>(p.zero);
    x = vec4<f32>(p.zero);
    y = vec4<f32>(p.zero);
    z = vec4<f32>(p.zero);
    for (var j = 0u; j < QUADS; j++) {
        let key = vectors[j * PARTS + part];
        let query = vectors[VECTOR + j * PARTS + part];
        a[j] = fma(vec4<f32>(key.x), learned, a[j]);
        b[j] = fma(vec4<f32>(key.y), learned, b[j]);
        c[j] = fma(vec4<f32>(key.z), learned, c[j]);
        d[j] = fma(vec4<f32>(key.w), learned, d[j]);
        w = fma(a[j], vec4<f32>(query.x), w);
        x = fma(b[j], vec4<f32>(query.y), x);
        y = fma(c[j], vec4<f32>(query.z), y);
        z = fma(d[j], vec4<f32>(query.w), z);
    }
    sums[t] = (w + x) + (y + z);
    for (var j = 0u; j < QUADS; j++) {
        let key = 4u * (j * PARTS + part);
        if (WHOLE || key < p.k.dim) {
            let to = state + key * TEAM;
            states[to] = a[j];
            states[to + TEAM] = b[j];
            states[to + 2u * TEAM] = c[j];
            states[to + 3u * TEAM] = d[j];
        }
    }
    workgroupBarrier();
    var value = vec4<f32>();
    if (has_values) {
        value = column_sums(lane);
    }
    let inverse = inverse_of(team_sum(four_squared(vec2<f32>(), value), t), f32(GROUP_COLUMNS), p.norm_eps);
    if (has_values) {
        value = gated(value * inverse * gains, gate);
    }
    finish(value, row, head * GROUP_COLUMNS + 4u * lane, has_values, t);
}
