// Attention of sequences with one row each, right behind a projection: what `heads` and `attention` do, in one kernel and with
// the same bits. Each workgroup norms and turns its own query; those with the last tokens make its key and value too, and the
// first query head of those that share them writes them into the pages, where nobody reads them in this step. With ROUND, for
// contexts of one split, the result goes through its gate and is rounded for the product behind it, as `prepare` does it.

struct Params {
    q: View,
    k: View,
    v: View,
    gate: View,
    pages: Pages,
    // Word of the step: for each row pairs of cosine and sine.
    angles: u32,
    pairs: u32,
    q_eps: f32,
    k_eps: f32,
    out: u32,
    out_stride: u32,
    scale: f32,
    // Splits that there is room for.
    splits: u32,
    // Word of the scratch memory.
    partials: u32,
    // What the preparation of a product has.
    padded: u32,
    values: u32,
    scales: u32,
    sums: u32,
    limit: f32,
    reserved_a: u32,
    reserved_b: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> q_gain: array<f32>;
@group(0) @binding(3) var<storage, read> k_gain: array<f32>;
@group(0) @binding(4) var<storage, read_write> keys: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> partials: array<f32>;
@group(0) @binding(6) var<storage, read_write> arena: array<f32>;

// Threads of a head.
const TEAM: u32 = 64u;
// Values of a unit.
const OF_UNIT: u32 = 4u * PER_WORD;

// Query, key and value.
var<workgroup> normed: array<f32, 3u * DIM>;

fn put(at: u32, word: u32) {
    partials[at] = bitcast<f32>(word);
}

fn cached(word: u32) -> u32 {
    return keys[word / 4u][word % 4u];
}

// Value `d` of the query or key that begins at `first` of `normed`, turned.
fn turned(first: u32, row: u32, d: u32) -> f32 {
    let y = normed[first + d];
    if (d >= 2u * p.pairs) {
        return y;
    }
    let is_first = d < p.pairs;
    let pair = select(d - p.pairs, d, is_first);
    let at = p.angles + 2u * (row * p.pairs + pair);
    let other = normed[first + select(d - p.pairs, d + p.pairs, is_first)];
    return fma(y, bitcast<f32>(step[at]), select(other, -other, is_first) * bitcast<f32>(step[at + 1u]));
}

fn value_of(first: u32, row: u32, d: u32, is_value: bool) -> f32 {
    if (is_value) {
        return normed[first + d];
    }
    return turned(first, row, d);
}

// Unit `u` of the key or value that begins at `first` of `normed`, as the pages have it.
fn unit_of(first: u32, row: u32, u: u32, is_value: bool) -> vec4<u32> {
    var words = vec4<u32>();
    for (var i = 0u; i < 4u; i++) {
        let d = u * OF_UNIT + i * PER_WORD;
        let low = value_of(first, row, d, is_value);
        if (FORMAT == 0u) {
            words[i] = bitcast<u32>(low);
        } else {
            words[i] = half_bits(low) | (half_bits(value_of(first, row, d + 1u, is_value)) << 16u);
        }
    }
    return words;
}

@compute @workgroup_size(256)
fn attention_one(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let head = wg.x;
    let row = wg.y;
    let group = p.q.heads / p.pages.heads;
    let kv_head = head / group;
    let segment = step[STEP_SEGMENT] + step[step[STEP_ROW_SEGMENT] + row] * SEGMENT_WORDS;
    let tokens = step[segment + SEGMENT_PAST] + 1u;
    let pages = step[STEP_PAGES] + step[segment + SEGMENT_FIRST_PAGE];
    let is_last = !SPLIT || (wg.z + 1u) * SPLIT_TOKENS >= tokens;
    // A team each has the query, the key and the value.
    let team = t / TEAM;
    let lane = t % TEAM;
    let makes = team == 0u || (is_last && team <= 2u);
    let first = team * DIM;
    var from_ = p.q.offset + row * p.q.row_stride + head * p.q.head_stride;
    if (team == 1u) {
        from_ = p.k.offset + row * p.k.row_stride + kv_head * p.k.head_stride;
    } else if (team == 2u) {
        from_ = p.v.offset + row * p.v.row_stride + kv_head * p.v.head_stride;
    }
    var squares = vec2<f32>();
    for (var i = lane; makes && i < DIM; i += TEAM) {
        let x = arena[from_ + i];
        normed[first + i] = x;
        squares = squared(squares, x);
    }
    sums[t] = squares;
    workgroupBarrier();
    for (var step_ = TEAM / 2u; step_ > 0u; step_ /= 2u) {
        if (lane < step_) {
            sums[t] += sums[t + step_];
        }
        workgroupBarrier();
    }
    let inverse = inverse_of(sums[t - lane], f32(DIM), select(p.k_eps, p.q_eps, team == 0u));
    for (var i = lane; makes && i < DIM; i += TEAM) {
        if (team == 0u) {
            normed[i] = normed[i] * inverse * q_gain[i];
        } else if (team == 1u) {
            normed[first + i] = normed[first + i] * inverse * k_gain[i];
        }
    }
    workgroupBarrier();
    if (team == 0u) {
        for (var i = lane; i < DIM / 4u; i += TEAM) {
            let d = 4u * i;
            query[i] = vec4<f32>(turned(0u, row, d), turned(0u, row, d + 1u), turned(0u, row, d + 2u), turned(0u, row, d + 3u));
        }
    } else if (makes) {
        let page = step[pages + (tokens - 1u) / PAGE_ROWS];
        let token = (tokens - 1u) % PAGE_ROWS;
        let is_value = team == 2u;
        let at = head_at(p.pages, page, is_value, kv_head) / 4u;
        for (var u = lane; u < UNITS; u += TEAM) {
            let words = unit_of(first, row, u, is_value);
            if (is_value) {
                own_value[u] = words;
            } else {
                own_key[u] = words;
            }
            if (head % group == 0u) {
                keys[at + select(u * PAGE_ROWS + token, token * UNITS + u, is_value)] = words;
            }
        }
    }
    let whole = attend(wg, t, tokens, pages);
    if (!ROUND) {
        leave(wg, t, tokens, whole);
        return;
    }
    if (t < PAIRS) {
        normed[2u * t] = whole.values.x / whole.sum;
        normed[2u * t + 1u] = whole.values.y / whole.sum;
    }
    workgroupBarrier();
    let has_values = t < DIM / 4u;
    var x = vec4<f32>();
    var gate = vec4<f32>();
    for (var i = 0u; has_values && i < 4u; i++) {
        x[i] = normed[4u * t + i];
        if (INPUT == INPUT_SIGMOID) {
            gate[i] = arena[place(p.gate, row, head * DIM + 4u * t + i)];
        }
    }
    if (INPUT == INPUT_SIGMOID) {
        x = gated(x, gate);
    }
    finish(x, row, head * DIM + 4u * t, has_values, t);
}
