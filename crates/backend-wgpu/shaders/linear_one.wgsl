// Products of one row of integers with binary or ternary codes in groups of 128: what `linear` computes, with the same bits.
//
// A step of one row waits for memory, not for arithmetic, unless a thread's loads are on their way before it needs them. So a
// workgroup has several blocks of the weight, one after the other; codes and scales of what comes next are read before those at
// hand are multiplied, and the first ones while the input is being made. The input lies in workgroup memory, for all blocks.
//
// Bit k of the bytes of a word stands for 2^k: the eight planes of a record are summed up for themselves, without moving their
// bits, and the sums weighed at the end. The last plane's bit is the sign.
//
// Not for Metal, in whose text naga makes a product of four bytes four products of one byte: there `linear` sums floats.

// Records of 128 columns; most of a slice; how many of them are read together, and how often.
const RECORDS: u32 = COLS / GROUP_COLUMNS;
const SHARE: u32 = (RECORDS + SLICES - 1u) / SLICES;
const BATCHES: u32 = (SHARE + 3u) / 4u;
const BATCH: u32 = (SHARE + BATCHES - 1u) / BATCHES;
// Where a record's second unit lies; of binary codes there is none.
const SECOND: u32 = select(LANES, 0u, BITS == 1u);

// The row, sixteen integers a vector; scale and sum of each of its groups.
var<workgroup> inputs: array<vec4<u32>, COLS / 16u>;
var<workgroup> factors: array<vec2<f32>, RECORDS>;
// Two sets, in turn: while one is added up the next one is written.
var<workgroup> partial: array<f32, 2u * THREADS>;

fn input_scale(m: u32, record: u32) -> f32 {
    return factors[record].x;
}

fn total_of(m: u32, group: u32) -> f32 {
    return factors[group].y;
}

// Codes of up to four records.
struct Codes {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

struct Batch {
    units: Codes,
    seconds: Codes,
    scales: vec4<f32>,
    biases: vec4<f32>,
}

fn units_of(at: vec4<u32>) -> Codes {
    var units: Codes;
    units.a = codes[at.x];
    if (BATCH > 1u) {
        units.b = codes[at.y];
    }
    if (BATCH > 2u) {
        units.c = codes[at.z];
    }
    if (BATCH > 3u) {
        units.d = codes[at.w];
    }
    return units;
}

fn scales_of(at: vec4<u32>, kind: u32, first: u32) -> vec4<f32> {
    var scales = vec4<f32>();
    scales.x = scale_at(at.x, kind, first);
    if (BATCH > 1u) {
        scales.y = scale_at(at.y, kind, first);
    }
    if (BATCH > 2u) {
        scales.z = scale_at(at.z, kind, first);
    }
    if (BATCH > 3u) {
        scales.w = scale_at(at.w, kind, first);
    }
    return scales;
}

// Of a row, from record `first` on, of which `last` is the last of the slice: behind it that one is read again.
fn fetch(row: u32, first: u32, last: u32) -> Batch {
    let block = row / LANES;
    let lane = row % LANES;
    let records = min(vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(last));
    let at = (vec4<u32>(block * p.units) + records * BITS) * LANES + lane;
    let number = (vec4<u32>(block * p.groups) + records) * LANES + lane;
    var batch: Batch;
    batch.units = units_of(at);
    if (BITS == 2u) {
        batch.seconds = units_of(at + SECOND);
    }
    batch.scales = scales_of(number, SCALE, 0u);
    if (BIAS != 3u) {
        batch.biases = scales_of(number, BIAS, p.biases);
    }
    return batch;
}

// Those bits of four words that are a plane, times the integers that they belong to.
fn plane(unit: vec4<u32>, mask: u32, x: vec4<u32>) -> i32 {
    let bits = unit & vec4<u32>(mask);
    // One after the other, as an instruction that adds takes them.
    return ((dot4I8Packed(bits.x, x.x) + dot4I8Packed(bits.y, x.y)) + dot4I8Packed(bits.z, x.z)) + dot4I8Packed(bits.w, x.w);
}

// 128 times the product of a record of binary codes.
fn binary(unit: vec4<u32>, at: u32) -> i32 {
    let a = inputs[at];
    let b = inputs[at + 2u];
    let c = inputs[at + 4u];
    let d = inputs[at + 6u];
    var sum = plane(unit, 0x01010101u, vec4<u32>(a.x, b.x, c.x, d.x));
    sum = 2 * sum + plane(unit, 0x02020202u, vec4<u32>(a.y, b.y, c.y, d.y));
    sum = 2 * sum + plane(unit, 0x04040404u, vec4<u32>(a.z, b.z, c.z, d.z));
    sum = 2 * sum + plane(unit, 0x08080808u, vec4<u32>(a.w, b.w, c.w, d.w));
    let e = inputs[at + 1u];
    let f = inputs[at + 3u];
    let g = inputs[at + 5u];
    let h = inputs[at + 7u];
    sum = 2 * sum + plane(unit, 0x10101010u, vec4<u32>(e.x, f.x, g.x, h.x));
    sum = 2 * sum + plane(unit, 0x20202020u, vec4<u32>(e.y, f.y, g.y, h.y));
    sum = 2 * sum + plane(unit, 0x40404040u, vec4<u32>(e.z, f.z, g.z, h.z));
    return 2 * sum - plane(unit, 0x80808080u, vec4<u32>(e.w, f.w, g.w, h.w));
}

// 16 times that of half a record of ternary codes. Two bits at the top are no sign, so they move down.
fn ternary(unit: vec4<u32>, at: u32) -> i32 {
    let a = inputs[at];
    let b = inputs[at + 1u];
    let c = inputs[at + 2u];
    let d = inputs[at + 3u];
    let low = plane(unit, 0x03030303u, vec4<u32>(a.x, b.x, c.x, d.x));
    let high = plane(unit >> vec4<u32>(6u), 0x03030303u, vec4<u32>(a.w, b.w, c.w, d.w));
    let second = plane(unit, 0x0c0c0c0cu, vec4<u32>(a.y, b.y, c.y, d.y));
    let third = plane(unit, 0x30303030u, vec4<u32>(a.z, b.z, c.z, d.z));
    return 16 * (low + high) + (4 * second + third);
}

fn with_record(result: f32, unit: vec4<u32>, second: vec4<u32>, scale: f32, bias: f32, record: u32) -> f32 {
    var product = 0.0;
    if (BITS == 1u) {
        product = f32(binary(unit, record * 8u)) * 0.0078125;
    } else {
        product = f32(ternary(unit, record * 8u) + ternary(second, record * 8u + 4u)) * 0.0625;
    }
    let factor = factors[record];
    return with_group(result, product, scale, bias, factor.x, factor.y);
}

// A result with a batch of which `count` records or all are the slice's.
fn with_batch(result: f32, batch: Batch, first: u32, count: u32) -> f32 {
    var sum = result;
    if (count > 0u) {
        sum = with_record(sum, batch.units.a, batch.seconds.a, batch.scales.x, batch.biases.x, first);
    }
    if (BATCH > 1u && count > 1u) {
        sum = with_record(sum, batch.units.b, batch.seconds.b, batch.scales.y, batch.biases.y, first + 1u);
    }
    if (BATCH > 2u && count > 2u) {
        sum = with_record(sum, batch.units.c, batch.seconds.c, batch.scales.z, batch.biases.z, first + 2u);
    }
    if (BATCH > 3u && count > 3u) {
        sum = with_record(sum, batch.units.d, batch.seconds.d, batch.scales.w, batch.biases.w, first + 3u);
    }
    return sum;
}

@compute @workgroup_size(THREADS)
fn linear(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let slice = t / LANES;
    let lane = t % LANES;
    let from_record = record_of(slice);
    let end = record_of(slice + 1u);
    // A slice without records reads one, and multiplies with none.
    let first = min(from_record, RECORDS - 1u);
    let last = max(end, first + 1u) - 1u;
    // Its blocks follow one another.
    let each = min(p.each, (p.rows + LANES - 1u) / LANES - wg.x * p.each);
    let first_row = wg.x * p.each * LANES + lane;
    // What is needed first is asked for first.
    let brought = ask(t);
    let known = look_ahead(first_row);
    var next = fetch(first_row, first, last);
    bring(brought, t);
    for (var n = 0u; n < each; n++) {
        var result = 0.0;
        let row = first_row + n * LANES;
        for (var b = 0u; b < BATCHES; b++) {
            let batch = next;
            let at = from_record + b * BATCH;
            if (b + 1u < BATCHES) {
                next = fetch(row, min(at + BATCH, last), last);
            } else if (n + 1u < each) {
                next = fetch(row + LANES, first, last);
            }
            result = with_batch(result, batch, at, max(end, at) - at);
        }
        let turn = (n % 2u) * THREADS;
        partial[turn + t] = result;
        workgroupBarrier();
        // Slices take turns at adding up, so that none falls behind.
        if (slice == n % SLICES && row < p.rows) {
            var y = partial[turn + lane];
            for (var s = 1u; s < SLICES; s++) {
                y += partial[turn + s * LANES + lane];
            }
            store_with(with_residuals(y, 0u, row / LANES, lane), row, n, known);
        }
    }
}
