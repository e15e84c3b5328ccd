// What a product of one row prepares for the product behind it, instead of a dispatch between them: the norm of all its results
// (INPUT_NORM), or the gated halves of each group of 128 (INPUT_SWIGLU), rounded to integers. `prepare` does the same, with the
// same bits.
//
// Whichever workgroup stores the last of these results does it.

@group(0) @binding(6) @coherent var<storage, read_write> arena: array<f32>;
@group(0) @binding(7) var<storage, read_write> ahead: array<atomic<u32>>;
@group(0) @binding(8) var<storage, read> gain: array<f32>;

// Threads over which `prepare` sums squares up.
const NORM_THREADS: u32 = 256u;
// Values of a thread that are on their way together.
const BATCH: u32 = 16u;
// Groups that a workgroup may have to prepare, and quads of columns of a thread.
const MOST_GROUPS: u32 = select(1u, 64u, INPUT == INPUT_NORM);
const QUADS: u32 = select(1u, MOST_GROUPS * 32u / THREADS, INPUT == INPUT_NORM);

var<workgroup> squares: array<vec2<f32>, NORM_THREADS>;
var<workgroup> sizes: array<atomic<u32>, MOST_GROUPS>;
var<workgroup> totals: array<atomic<i32>, MOST_GROUPS * 4u>;
// Scale and inverse of each group.
var<workgroup> rules: array<vec2<f32>, MOST_GROUPS>;

fn results(column: u32) -> vec4<f32> {
    let at = p.out - p.first_row + column;
    return vec4<f32>(arena[at], arena[at + 1u], arena[at + 2u], arena[at + 3u]);
}

fn put(at: u32, word: u32) {
    atomicStore(&ahead[at], word);
}

// Of all results; every thread of the workgroup comes here.
fn inverse_norm(t: u32) -> f32 {
    let at = p.out - p.first_row;
    var sums = vec2<f32>();
    for (var base = t; t < NORM_THREADS && base < p.ahead_cols; base += BATCH * NORM_THREADS) {
        var read = array<f32, BATCH>();
        for (var i = 0u; i < BATCH; i++) {
            let c = base + i * NORM_THREADS;
            if (c < p.ahead_cols) {
                read[i] = arena[at + c];
            }
        }
        for (var i = 0u; i < BATCH; i++) {
            sums = squared(sums, read[i]);
        }
    }
    if (t < NORM_THREADS) {
        squares[t] = sums;
    }
    workgroupBarrier();
    for (var step_ = NORM_THREADS / 2u; step_ > 0u; step_ /= 2u) {
        if (t < step_) {
            squares[t] += squares[t + step_];
        }
        workgroupBarrier();
    }
    return inverse_of(squares[0], f32(p.ahead_cols), p.ahead_eps);
}

fn after(block: u32, t: u32) {
    let row = p.first_row + block * LANES;
    var group = 0u;
    var quads = p.ahead_cols / 4u;
    if (INPUT == INPUT_SWIGLU) {
        // Rows in front of the second half wrap around.
        let is_up = row - p.up < p.ahead_cols;
        group = (row - select(p.gate, p.up, is_up)) / GROUP_COLUMNS;
        quads = GROUP_COLUMNS / 4u;
    }
    if (!comes_last(p.counters + group, p.waits, t)) {
        return;
    }
    let first = group * GROUP_COLUMNS;
    var x = array<vec4<f32>, QUADS>();
    for (var n = 0u; n < QUADS; n++) {
        let q = t + n * THREADS;
        if (q < quads) {
            let c = first + 4u * q;
            if (INPUT == INPUT_NORM) {
                x[n] = results(c);
            } else {
                x[n] = gated(results(p.up + c), results(p.gate + c));
            }
        }
    }
    for (var i = t; i < MOST_GROUPS; i += THREADS) {
        atomicStore(&sizes[i], 0u);
    }
    for (var i = t; i < MOST_GROUPS * 4u; i += THREADS) {
        atomicStore(&totals[i], 0);
    }
    if (INPUT == INPUT_NORM) {
        let inverse = inverse_norm(t);
        for (var n = 0u; n < QUADS; n++) {
            let q = t + n * THREADS;
            if (q < quads) {
                let weights = vec4<f32>(gain[4u * q], gain[4u * q + 1u], gain[4u * q + 2u], gain[4u * q + 3u]);
                x[n] = x[n] * inverse * weights;
            }
        }
    } else {
        workgroupBarrier();
    }
    for (var n = 0u; n < QUADS; n++) {
        let q = t + n * THREADS;
        if (q < quads) {
            atomicMax(&sizes[q / 32u], size_of(x[n]));
        }
    }
    workgroupBarrier();
    for (var i = t; i < quads / 32u; i += THREADS) {
        let rule = rounding_of(atomicLoad(&sizes[i]), p.ahead_limit);
        rules[i] = vec2<f32>(rule.scale, rule.inverse);
        put(p.ahead_scales + group + i, bitcast<u32>(rule.scale));
    }
    workgroupBarrier();
    for (var n = 0u; n < QUADS; n++) {
        let q = t + n * THREADS;
        if (q < quads) {
            let rule = rules[q / 32u];
            let codes = codes_by(x[n], Rounding(rule.x, rule.y), p.ahead_limit);
            put(p.ahead_values + first / 4u + q, packed_bytes(codes));
            atomicAdd(&totals[q / 8u], codes.x + codes.y + codes.z + codes.w);
        }
    }
    workgroupBarrier();
    for (var i = t; i < quads / 8u; i += THREADS) {
        put(p.ahead_sums + first / 32u + i, bitcast<u32>(atomicLoad(&totals[i])));
    }
}
