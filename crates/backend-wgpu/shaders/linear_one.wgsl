// Products of one row of activations with packed weights and integers, the preparation included: each workgroup makes the
// integers of the whole row in its own memory, which costs less than a kernel in front of it. The bits are those of
// `prepare` and `linear` one after the other. PADDED: columns of the weight, filled up to whole records.
//
// With JOINED the values are what `attention_combine` would make of the splits of heads of DIM values.
//
// A workgroup takes every so many-th block of 32 rows. Codes and scales of its first one are on their way while it prepares.

struct Params {
    x: View,
    gate: View,
    residual: View,
    cols: u32,
    eps: f32,
    limit: f32,
    blocks: u32,
    // As those of `linear_head`.
    records: u32,
    units: u32,
    groups: u32,
    rows: u32,
    out: u32,
    first_row: u32,
    biases: u32,
    residual_first: u32,
    residuals: u32,
    factor: f32,
    // Words of the splits of attention, and how many there is room for.
    partials: u32,
    splits: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> side: array<u32>;
// With JOINED the splits.
@group(0) @binding(3) var<storage, read> gain: array<f32>;
@group(0) @binding(4) var<storage, read> step: array<u32>;
@group(0) @binding(5) var<storage, read_write> arena: array<f32>;

const LANES: u32 = 32u;
const THREADS: u32 = LANES * SLICES;
const QUADS: u32 = PADDED / 4u;
// Vectors of four values of a thread.
const EACH: u32 = (QUADS + THREADS - 1u) / THREADS;
const NORMS: bool = INPUT == INPUT_NORM || INPUT == INPUT_GATED_NORM;
const WORDS: u32 = select(THREADS, 2u * THREADS, NORMS);

// Sixteen integers a vector.
var<workgroup> integers: array<vec4<u32>, PADDED / 16u>;
var<workgroup> scales: array<f32, PADDED / GROUP_COLUMNS>;
var<workgroup> largest: array<atomic<u32>, PADDED / GROUP_COLUMNS>;
var<workgroup> sums: array<atomic<i32>, PADDED / 32u>;
// Sums of squares of the threads, and later the results of the slices.
var<workgroup> words: array<u32, WORDS>;

fn input_scale(m: u32, record: u32) -> f32 {
    return scales[record];
}

fn total_of(m: u32, group: u32) -> f32 {
    const PIECES: u32 = GROUP / 32u;
    var total = 0;
    for (var i = 0u; i < PIECES; i++) {
        total += atomicLoad(&sums[group * PIECES + i]);
    }
    return f32(total);
}

fn sums_at(i: u32) -> vec2<f32> {
    return vec2<f32>(bitcast<f32>(words[2u * i]), bitcast<f32>(words[2u * i + 1u]));
}

fn put_sums(i: u32, x: vec2<f32>) {
    words[2u * i] = bitcast<u32>(x.x);
    words[2u * i + 1u] = bitcast<u32>(x.y);
}

// Sums over the row, in the order of `prepare`: for each of 256 lanes two chains, over its even and its odd vectors.
fn row_sums(x: array<vec4<f32>, EACH>, t: u32) -> vec2<f32> {
    var even = vec2<f32>();
    var odd = vec2<f32>();
    for (var i = 0u; i < EACH; i++) {
        if (THREADS == 256u && i % 2u == 1u) {
            odd = four_squared(odd, x[i]);
        } else {
            even = four_squared(even, x[i]);
        }
    }
    put_sums(t, even + odd);
    workgroupBarrier();
    if (THREADS == 512u) {
        if (t < 256u) {
            put_sums(t, sums_at(t) + sums_at(t + 256u));
        }
        workgroupBarrier();
    }
    for (var step_ = 128u; step_ > 0u; step_ /= 2u) {
        if (t < step_) {
            put_sums(t, sums_at(t) + sums_at(t + step_));
        }
        workgroupBarrier();
    }
    return sums_at(0u);
}

// Sums over the 32 threads of a group.
fn group_sums(x: vec4<f32>, t: u32) -> vec2<f32> {
    let lane = t % 32u;
    put_sums(t, four_squared(vec2<f32>(), x));
    workgroupBarrier();
    for (var step_ = 16u; step_ > 0u; step_ /= 2u) {
        if (lane < step_) {
            put_sums(t, sums_at(t) + sums_at(t + step_));
        }
        workgroupBarrier();
    }
    let all = sums_at(t - lane);
    workgroupBarrier();
    return all;
}

fn values_of(v: View, first: u32) -> vec4<f32> {
    var x = vec4<f32>();
    for (var j = 0u; j < 4u; j++) {
        if (first + j < p.cols) {
            x[j] = arena[place(v, 0u, first + j)];
        }
    }
    return x;
}

// Four values of a head, whose splits are joined in order.
fn joined(first: u32) -> vec4<f32> {
    let segment = step[STEP_SEGMENT] + step[step[STEP_ROW_SEGMENT]] * SEGMENT_WORDS;
    let tokens = step[segment + SEGMENT_PAST] + 1u;
    let head = first / DIM;
    var left = nothing();
    var right = nothing();
    for (var s = 0u; s * 256u < tokens; s++) {
        let at = p.partials + (head * p.splits + s) * (DIM + 2u);
        let values = at + 2u + first % DIM;
        let pairs = vec4<f32>(gain[values], gain[values + 1u], gain[values + 2u], gain[values + 3u]);
        left = join(left, Partial(gain[at], gain[at + 1u], pairs.xy));
        right = join(right, Partial(gain[at], gain[at + 1u], pairs.zw));
    }
    return vec4<f32>(
        left.values.x / left.sum,
        left.values.y / left.sum,
        right.values.x / right.sum,
        right.values.y / right.sum,
    );
}

// The integers of the row, with scales and sums.
fn prepare_row(t: u32) {
    for (var i = t; i < PADDED / 32u; i += THREADS) {
        atomicStore(&sums[i], 0);
    }
    for (var i = t; i < PADDED / GROUP_COLUMNS; i += THREADS) {
        atomicStore(&largest[i], 0u);
    }
    var x = array<vec4<f32>, EACH>();
    for (var i = 0u; i < EACH; i++) {
        let first = 4u * (t + i * THREADS);
        if (!JOINED) {
            x[i] = values_of(p.x, first);
        } else if (first < p.cols) {
            x[i] = joined(first);
        }
    }
    if (INPUT == INPUT_NORM) {
        let inverse = inverse_of(row_sums(x, t), f32(p.cols), p.eps);
        for (var i = 0u; i < EACH; i++) {
            x[i] = normed(x[i], inverse, 4u * (t + i * THREADS), p.cols);
        }
    } else if (INPUT == INPUT_GATED_NORM) {
        for (var i = 0u; i < EACH; i++) {
            let first = 4u * (t + i * THREADS);
            x[i] = normed(x[i], inverse_of(group_sums(x[i], t), 128.0, p.eps), first, p.cols);
        }
    } else {
        workgroupBarrier();
    }
    for (var i = 0u; i < EACH; i++) {
        let quad = t + i * THREADS;
        if (INPUT >= INPUT_GATED_NORM) {
            x[i] = gated(x[i], values_of(p.gate, 4u * quad));
        }
        if (quad < QUADS) {
            atomicMax(&largest[quad / 32u], size_of(x[i]));
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < EACH; i++) {
        let quad = t + i * THREADS;
        if (quad < QUADS) {
            let rule = rounding_of(atomicLoad(&largest[quad / 32u]), p.limit);
            let rounded = codes_by(x[i], rule, p.limit);
            let word = packed_bytes(rounded);
            // Not by a number that varies: some compilers then write the whole vector.
            switch quad % 4u {
                case 0u: {
                    integers[quad / 4u].x = word;
                }
                case 1u: {
                    integers[quad / 4u].y = word;
                }
                case 2u: {
                    integers[quad / 4u].z = word;
                }
                default: {
                    integers[quad / 4u].w = word;
                }
            }
            atomicAdd(&sums[quad / 8u], rounded.x + rounded.y + rounded.z + rounded.w);
            if (quad % 32u == 0u) {
                scales[quad / 32u] = rule.scale;
            }
        }
    }
    workgroupBarrier();
}

// Codes and scale of a record; its second unit where codes have two bits.
struct Record {
    unit: vec4<u32>,
    more: vec4<u32>,
    scale: vec2<f32>,
}

// Four of them, by name, so that no compiler has to find out that they can be registers.
struct Fetched {
    a: Record,
    b: Record,
    c: Record,
    d: Record,
}

fn scale_of(block: u32, lane: u32, group: u32) -> vec2<f32> {
    let number = (block * p.groups + group) * LANES + lane;
    let scale = scale_at(number, SCALE, 0u);
    if (BIAS == 3u) {
        return vec2<f32>(scale, 0.0);
    }
    return vec2<f32>(scale, scale_at(number, BIAS, p.biases));
}

fn record_at(block: u32, lane: u32, record: u32) -> Record {
    const SECOND: u32 = select(LANES, 0u, BITS == 1u);
    let at = (block * p.units + record * BITS) * LANES + lane;
    return Record(codes[at], codes[at + SECOND], scale_of(block, lane, record));
}

// Records from `first` on; behind the last one it is read again.
fn fetch(block: u32, lane: u32, first: u32, last: u32) -> Fetched {
    return Fetched(
        record_at(block, lane, first),
        record_at(block, lane, min(first + 1u, last)),
        record_at(block, lane, min(first + 2u, last)),
        record_at(block, lane, min(first + 3u, last)),
    );
}

fn sixteen(word: u32, mask: u32, x: vec4<u32>) -> i32 {
    let pair = dot4I8Packed(word & mask, x.x) + dot4I8Packed((word >> BITS) & mask, x.y);
    return pair + (dot4I8Packed((word >> (2u * BITS)) & mask, x.z) + dot4I8Packed((word >> (3u * BITS)) & mask, x.w));
}

// The products of a word of codes with the vectors of integers from `at` on.
fn of_word(word: u32, at: u32) -> i32 {
    if (BITS == 1u) {
        return sixteen(word, 0x01010101u, integers[at]) + sixteen(word >> 4u, 0x01010101u, integers[at + 1u]);
    }
    return sixteen(word, 0x03030303u, integers[at]);
}

fn of_unit(unit: vec4<u32>, at: u32) -> i32 {
    const EACH_WORD: u32 = select(1u, 2u, BITS == 1u);
    return (of_word(unit.x, at) + of_word(unit.y, at + EACH_WORD))
        + (of_word(unit.z, at + 2u * EACH_WORD) + of_word(unit.w, at + 3u * EACH_WORD));
}

// A result with the products of a record.
fn with_record(result: f32, r: Record, record: u32) -> f32 {
    var whole = of_unit(r.unit, record * 8u);
    if (BITS == 2u) {
        whole += of_unit(r.more, record * 8u + 4u);
    }
    return with_group(result, f32(whole), r.scale.x, r.scale.y, scales[record], total_of(0u, record));
}

@compute @workgroup_size(THREADS)
fn linear_one(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) all: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    const WHOLE_RECORDS: bool = BITS <= 2u && GROUP == GROUP_COLUMNS;
    let lane = t % LANES;
    let slice = t / LANES;
    let share = (p.records + SLICES - 1u) / SLICES;
    let from_record = min(slice * share, p.records);
    let to_record = min(from_record + share, p.records);
    let last = max(to_record, 1u) - 1u;
    var fetched: Fetched;
    if (WHOLE_RECORDS) {
        fetched = fetch(wg.x, lane, min(from_record, last), last);
    }
    prepare_row(t);
    for (var block = wg.x; block < p.blocks; block += all.x) {
        var result = 0.0;
        if (WHOLE_RECORDS) {
            for (var record = from_record; record < to_record; record += 4u) {
                let now = fetched;
                if (record + 4u < to_record) {
                    fetched = fetch(block, lane, record + 4u, last);
                } else if (block + all.x < p.blocks) {
                    fetched = fetch(block + all.x, lane, min(from_record, last), last);
                }
                result = with_record(result, now.a, record);
                if (record + 1u < to_record) {
                    result = with_record(result, now.b, record + 1u);
                }
                if (record + 2u < to_record) {
                    result = with_record(result, now.c, record + 2u);
                }
                if (record + 3u < to_record) {
                    result = with_record(result, now.d, record + 3u);
                }
            }
        } else {
            const STEPS: u32 = GROUP / 16u;
            for (var record = from_record; record < to_record; record++) {
                let at = (block * p.units + record * BITS) * LANES + lane;
                var whole = 0;
                for (var q = 0u; q < 8u; q++) {
                    whole += dot(codes_of(at, q), integers[record * 8u + q]);
                    if ((q + 1u) % STEPS == 0u) {
                        let group = record * (GROUP_COLUMNS / GROUP) + q / STEPS;
                        let scale = scale_of(block, lane, group);
                        let total = total_of(0u, group);
                        result = with_group(result, f32(whole), scale.x, scale.y, scales[record], total);
                        whole = 0;
                    }
                }
            }
        }
        words[t] = bitcast<u32>(result);
        workgroupBarrier();
        let row = block * LANES + lane;
        if (t < LANES && row < p.rows) {
            var y = bitcast<f32>(words[lane]);
            for (var s = 1u; s < SLICES; s++) {
                y += bitcast<f32>(words[s * LANES + lane]);
            }
            y = with_residuals(y, 0u, block, lane);
            if (EPILOGUE == 1u) {
                y += arena[place(p.residual, 0u, p.first_row + row)];
            }
            arena[p.out + row] = y;
        }
        workgroupBarrier();
    }
}
