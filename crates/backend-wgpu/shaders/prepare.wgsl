// The input of a product, once for all parts of its weight: norm or gate, rounding to integers, sums of 32.
//
// INPUT says what the values are made of; with JOINED they are attention's, whose splits are joined here; with SELECTED they are
// of the rows that give logits alone. KIND says what comes out: floats, four integers a word, or integers as floats.
// A workgroup has eight groups of 128 columns of one row, four neighbouring values a thread. It finds the norm of the
// whole row for itself, which is cheaper than waiting for another kernel.

struct Params {
    x: View,
    gate: View,
    cols: u32,
    padded: u32,
    // Words of the scratch memory.
    values: u32,
    scales: u32,
    sums: u32,
    eps: f32,
    // Of rounded values; 127 or 255.
    limit: f32,
    // Splits of attention that there is room for.
    splits: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> arena: array<f32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;
@group(0) @binding(3) var<storage, read> step: array<u32>;
@group(0) @binding(4) var<storage, read_write> scratch: array<u32>;

var<workgroup> pairs: array<vec2<f32>, 256>;

fn values_of(v: View, r: u32, first: u32) -> vec4<f32> {
    if (v.heads == 1u && first + 4u <= p.cols) {
        let at = v.offset + r * v.row_stride + first;
        return vec4<f32>(arena[at], arena[at + 1u], arena[at + 2u], arena[at + 3u]);
    }
    var x = vec4<f32>();
    for (var j = 0u; j < 4u; j++) {
        if (first + j < p.cols) {
            x[j] = arena[place(v, r, first + j)];
        }
    }
    return x;
}

fn put(at: u32, word: u32) {
    scratch[at] = word;
}

// Values of columns `first` and on, normed; the gain of a gated norm is that of a group.
fn normed(x: vec4<f32>, inverse: f32, first: u32, cols: u32) -> vec4<f32> {
    var y = x;
    for (var j = 0u; j < 4u; j++) {
        if (first + j < cols) {
            y[j] = x[j] * inverse * gain[select((first + j) % GROUP_COLUMNS, first + j, INPUT == INPUT_NORM)];
        }
    }
    return y;
}

fn split(row: u32, head: u32, s: u32, d: u32) -> vec4<f32> {
    let at = ((row * (p.cols / DIM) + head) * p.splits + s) * (DIM + 2u) + 2u + d;
    return bitcast<vec4<f32>>(vec4<u32>(scratch[at], scratch[at + 1u], scratch[at + 2u], scratch[at + 3u]));
}

// Four values of a row of attention, whose splits at the front of the scratch memory are joined as `attention_combine` does.
fn joined(row: u32, first: u32) -> vec4<f32> {
    let segment = step[STEP_SEGMENT] + step[step[STEP_ROW_SEGMENT] + row] * SEGMENT_WORDS;
    let tokens = step[segment + SEGMENT_PAST] + row - step[segment + SEGMENT_FIRST_ROW] + 1u;
    let head = first / DIM;
    var left = nothing();
    var right = nothing();
    for (var s = 0u; s * 256u < tokens; s++) {
        let at = ((row * (p.cols / DIM) + head) * p.splits + s) * (DIM + 2u);
        let largest = bitcast<f32>(scratch[at]);
        let sum = bitcast<f32>(scratch[at + 1u]);
        let values = split(row, head, s, first % DIM);
        left = join(left, Partial(largest, sum, values.xy));
        right = join(right, Partial(largest, sum, values.zw));
    }
    return vec4<f32>(left.values / left.sum, right.values / right.sum);
}

@compute @workgroup_size(256)
fn prepare(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let r = wg.x;
    let lane = t % 32u;
    let group = wg.y * 8u + t / 32u;
    let first = group * GROUP_COLUMNS + 4u * lane;

    // Where its values come from.
    var source = r;
    if (SELECTED) {
        source = step[step[STEP_LOGIT_ROWS] + r];
    }
    var x = vec4<f32>();
    if (!JOINED) {
        x = values_of(p.x, source, first);
    } else if (first < p.cols) {
        x = joined(r, first);
    }
    if (INPUT == INPUT_NORM || INPUT == INPUT_GATED_NORM) {
        var sums = vec2<f32>();
        if (INPUT == INPUT_NORM) {
            // 512 chains, a thread two; four reads are on their way together.
            var odd = vec2<f32>();
            for (var c = 4u * t; c < p.cols; c += 2048u) {
                sums = four_squared(sums, values_of(p.x, source, c));
                odd = four_squared(odd, values_of(p.x, source, c + 1024u));
            }
            sums += odd;
        } else {
            sums = four_squared(sums, x);
        }
        pairs[t] = sums;
        workgroupBarrier();
        // Over the workgroup, or over the 32 threads of a group.
        for (var step_ = select(16u, 128u, INPUT == INPUT_NORM); step_ > 0u; step_ /= 2u) {
            let among = select(lane, t, INPUT == INPUT_NORM);
            if (among < step_) {
                pairs[t] += pairs[t + step_];
            }
            workgroupBarrier();
        }
        let all = pairs[select(t - lane, 0u, INPUT == INPUT_NORM)];
        x = normed(x, inverse_of(all, select(128.0, f32(p.cols), INPUT == INPUT_NORM), p.eps), first, p.cols);
    }
    if (INPUT >= INPUT_GATED_NORM) {
        x = gated(x, values_of(p.gate, r, first));
    }

    finish(x, r, first, first < p.padded, t);
}
