// The input of a product, once for all parts of its weight: norm or gate, rounding to integers, sums of 32.
//
// INPUT says what the values are made of. KIND says what comes out: floats, four integers a word, or integers as floats.
// A workgroup has eight groups of 128 columns of one row, four neighbouring values a thread. It finds the norm of the
// whole row for itself, which is cheaper than waiting for another kernel.

const KIND_FLOATS: u32 = 0u;
const KIND_PACKED: u32 = 1u;
const KIND_WHOLE: u32 = 2u;

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
    reserved: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> arena: array<f32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;
@group(0) @binding(3) var<storage, read_write> scratch: array<u32>;

var<workgroup> pairs: array<vec2<f32>, 256>;
var<workgroup> words: array<u32, 256>;
var<workgroup> floats: array<f32, 256>;

fn values_of(v: View, r: u32, first: u32) -> vec4<f32> {
    var x = vec4<f32>();
    for (var j = 0u; j < 4u; j++) {
        if (first + j < p.cols) {
            x[j] = arena[place(v, r, first + j)];
        }
    }
    return x;
}

@compute @workgroup_size(256)
fn prepare(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let r = wg.x;
    let lane = t % 32u;
    let group = wg.y * 8u + t / 32u;
    let first = group * GROUP_COLUMNS + 4u * lane;

    var x = values_of(p.x, r, first);
    if (INPUT == INPUT_NORM || INPUT == INPUT_GATED_NORM) {
        var sums = vec2<f32>();
        if (INPUT == INPUT_NORM) {
            // A thread has every 256th vector of the row; those with even and with odd numbers go on their way together.
            var odd = vec2<f32>();
            for (var c = 4u * t; c < p.cols; c += 2048u) {
                let even_x = values_of(p.x, r, c);
                let odd_x = values_of(p.x, r, c + 1024u);
                sums = four_squared(sums, even_x);
                odd = four_squared(odd, odd_x);
            }
            sums += odd;
        } else {
            sums = four_squared(sums, x);
        }
        pairs[t] = sums;
        workgroupBarrier();
        // Over the workgroup, or over the 32 threads of a group.
        for (var step = select(16u, 128u, INPUT == INPUT_NORM); step > 0u; step /= 2u) {
            let among = select(lane, t, INPUT == INPUT_NORM);
            if (among < step) {
                pairs[t] += pairs[t + step];
            }
            workgroupBarrier();
        }
        let all = pairs[select(t - lane, 0u, INPUT == INPUT_NORM)];
        x = normed(x, inverse_of(all, select(128.0, f32(p.cols), INPUT == INPUT_NORM), p.eps), first, p.cols);
    }
    if (INPUT >= INPUT_GATED_NORM) {
        x = gated(x, values_of(p.gate, r, first));
    }

    let inside = first < p.padded;
    if (KIND == KIND_FLOATS) {
        floats[t] = (x[0] + x[1]) + (x[2] + x[3]);
        workgroupBarrier();
        if (inside) {
            let at = p.values + r * p.padded + first;
            for (var j = 0u; j < 4u; j++) {
                scratch[at + j] = bitcast<u32>(x[j]);
            }
            if (lane % 8u == 0u) {
                var sum = floats[t];
                for (var i = 1u; i < 8u; i++) {
                    sum += floats[t + i];
                }
                scratch[p.sums + (r * p.padded + first) / 32u] = bitcast<u32>(sum);
            }
            if (lane == 0u) {
                scratch[p.scales + r * (p.padded / GROUP_COLUMNS) + group] = bitcast<u32>(1.0);
            }
        }
        return;
    }

    words[t] = size_of(x);
    workgroupBarrier();
    for (var step = 16u; step > 0u; step /= 2u) {
        if (lane < step) {
            words[t] = max(words[t], words[t + step]);
        }
        workgroupBarrier();
    }
    let most = words[t - lane];
    workgroupBarrier();
    let rule = rounding_of(most, p.limit);
    let codes = codes_by(x, rule, p.limit);
    words[t] = bitcast<u32>(codes.x + codes.y + codes.z + codes.w);
    workgroupBarrier();
    if (!inside) {
        return;
    }
    if (KIND == KIND_PACKED) {
        scratch[p.values + (r * p.padded + first) / 4u] = packed_bytes(codes);
    } else {
        let at = p.values + r * p.padded + first;
        for (var j = 0u; j < 4u; j++) {
            scratch[at + j] = bitcast<u32>(f32(codes[j]));
        }
    }
    if (lane % 8u == 0u) {
        var sum = 0;
        for (var i = 0u; i < 8u; i++) {
            sum += bitcast<i32>(words[t + i]);
        }
        let at = p.sums + (r * p.padded + first) / 32u;
        if (KIND == KIND_PACKED) {
            scratch[at] = bitcast<u32>(sum);
        } else {
            scratch[at] = bitcast<u32>(f32(sum));
        }
    }
    if (lane == 0u) {
        scratch[p.scales + r * (p.padded / GROUP_COLUMNS) + group] = bitcast<u32>(rule.scale);
    }
}
