// Products with packed weights, up to ROWS rows of activations in one pass over the weight.
//
// Read by eye in naga's Metal text, for one row of binary weights with floats: codes and inputs are loads of `device uint4`, 16
// bytes each; no function of SIMD groups and no bounds check is left; arrays of one row and constant conditions vanish, so
// that a thread holds four units, four scales, a sum of four and little else, some forty registers. What is left to win there:
// a record of 128 columns takes one load of codes and 32 of inputs, which all lanes read alike, and three operations a weight.
//
// Sums inside a group: of integers four at a time (INTEGERS), or of floats, which may be whole numbers and are then exact
// too. 16 columns are one step: their codes become four words of four bytes each.

var<workgroup> partial: array<f32, THREADS * ROWS>;

// ---- binary and ternary codes in wide groups: the loops over a word are written out, so that no compiler has to ----

// Bytes of the codes under a mask times sixteen integers.
fn sixteen(word: u32, mask: u32, x: vec4<u32>) -> i32 {
    let pair = dot4I8Packed(word & mask, x.x) + dot4I8Packed((word >> BITS) & mask, x.y);
    return pair + (dot4I8Packed((word >> (2u * BITS)) & mask, x.z) + dot4I8Packed((word >> (3u * BITS)) & mask, x.w));
}

// A word of 32 binary or 16 ternary codes, whose input is `skip` vectors behind that of the record.
fn add_word(sums: ptr<function, array<i32, ROWS>>, word: u32, first: u32, record: u32, skip: u32) {
    for (var m = 0u; m < ROWS; m++) {
        let at = input_at(first + m, record) + skip;
        if (BITS == 1u) {
            (*sums)[m] += sixteen(word, 0x01010101u, prepared[at]) + sixteen(word >> 4u, 0x01010101u, prepared[at + 1u]);
        } else {
            (*sums)[m] += sixteen(word, 0x03030303u, prepared[at]);
        }
    }
}

// The same for inputs that are floats, four a vector.
fn add_word_floats(
    sums: ptr<function, array<vec4<f32>, ROWS>>,
    word: u32,
    first: u32,
    record: u32,
    skip: u32,
) {
    for (var m = 0u; m < ROWS; m++) {
        let at = input_at(first + m, record) + skip;
        var sum = (*sums)[m];
        sum = add_products(sum, code_bytes(word), bitcast<vec4<f32>>(prepared[at]));
        sum = add_products(sum, code_bytes(word >> BITS), bitcast<vec4<f32>>(prepared[at + 1u]));
        sum = add_products(sum, code_bytes(word >> (2u * BITS)), bitcast<vec4<f32>>(prepared[at + 2u]));
        sum = add_products(sum, code_bytes(word >> (3u * BITS)), bitcast<vec4<f32>>(prepared[at + 3u]));
        if (BITS == 1u) {
            sum = add_products(sum, code_bytes(word >> 4u), bitcast<vec4<f32>>(prepared[at + 4u]));
            sum = add_products(sum, code_bytes(word >> 5u), bitcast<vec4<f32>>(prepared[at + 5u]));
            sum = add_products(sum, code_bytes(word >> 6u), bitcast<vec4<f32>>(prepared[at + 6u]));
            sum = add_products(sum, code_bytes(word >> 7u), bitcast<vec4<f32>>(prepared[at + 7u]));
        }
        (*sums)[m] = sum;
    }
}

fn code_bytes(word: u32) -> u32 {
    return word & select(0x03030303u, 0x01010101u, BITS == 1u);
}

// ---- the end of a group ----

// Scale and bias of a group.
fn scale_of(block: u32, lane: u32, group: u32) -> vec2<f32> {
    let number = (block * p.groups + group) * LANES + lane;
    let scale = scale_at(number, SCALE, 0u);
    if (BIAS == 3u) {
        return vec2<f32>(scale, 0.0);
    }
    return vec2<f32>(scale, scale_at(number, BIAS, p.biases));
}

// Adds a group's products to the results of the pass.
fn finish(
    result: ptr<function, array<f32, ROWS>>,
    products: array<f32, ROWS>,
    scale: vec2<f32>,
    first: u32,
    record: u32,
    group: u32,
) {
    for (var m = 0u; m < ROWS; m++) {
        let input = input_scale(first + m, record);
        let total = total_of(first + m, group);
        (*result)[m] = with_group((*result)[m], products[m], scale.x, scale.y, input, total);
    }
}

fn products_of(whole: array<i32, ROWS>, sums: array<vec4<f32>, ROWS>) -> array<f32, ROWS> {
    var products = array<f32, ROWS>();
    for (var m = 0u; m < ROWS; m++) {
        if (INTEGERS) {
            products[m] = f32(whole[m]);
        } else {
            products[m] = (sums[m].x + sums[m].y) + (sums[m].z + sums[m].w);
        }
    }
    return products;
}

// One record in one group, whose one or two units and scale have been read.
fn add_record(
    result: ptr<function, array<f32, ROWS>>,
    unit: vec4<u32>,
    second: vec4<u32>,
    scale: vec2<f32>,
    first: u32,
    record: u32,
) {
    // Vectors of input of a word.
    const EACH: u32 = select(8u, 2u, INTEGERS) / BITS;
    var whole = array<i32, ROWS>();
    var sums = array<vec4<f32>, ROWS>();
    if (INTEGERS) {
        add_word(&whole, unit.x, first, record, 0u);
        add_word(&whole, unit.y, first, record, EACH);
        add_word(&whole, unit.z, first, record, 2u * EACH);
        add_word(&whole, unit.w, first, record, 3u * EACH);
    } else {
        add_word_floats(&sums, unit.x, first, record, 0u);
        add_word_floats(&sums, unit.y, first, record, EACH);
        add_word_floats(&sums, unit.z, first, record, 2u * EACH);
        add_word_floats(&sums, unit.w, first, record, 3u * EACH);
    }
    if (BITS == 2u && INTEGERS) {
        add_word(&whole, second.x, first, record, 4u * EACH);
        add_word(&whole, second.y, first, record, 5u * EACH);
        add_word(&whole, second.z, first, record, 6u * EACH);
        add_word(&whole, second.w, first, record, 7u * EACH);
    } else if (BITS == 2u) {
        add_word_floats(&sums, second.x, first, record, 4u * EACH);
        add_word_floats(&sums, second.y, first, record, 5u * EACH);
        add_word_floats(&sums, second.z, first, record, 6u * EACH);
        add_word_floats(&sums, second.w, first, record, 7u * EACH);
    }
    finish(result, products_of(whole, sums), scale, first, record, record);
}

@compute @workgroup_size(THREADS)
fn linear(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    // Steps of a group.
    const STEPS: u32 = GROUP / 16u;
    let lane = t % LANES;
    let slice = t / LANES;
    let block = wg.x;
    let first = wg.y * ROWS;
    let from_record = record_of(slice);
    let to_record = record_of(slice + 1u);
    var result = array<f32, ROWS>();
    if (BITS <= 2u && GROUP == 128u && ROWS > 1u) {
        const SECOND: u32 = select(LANES, 0u, BITS == 1u);
        let start = block * p.units * LANES + lane;
        for (var record = from_record; record < to_record; record++) {
            let at = start + record * BITS * LANES;
            add_record(&result, codes[at], codes[at + SECOND], scale_of(block, lane, record), first, record);
        }
    } else if (BITS <= 2u && GROUP == 128u) {
        // Codes and scales of four records are on their way together; behind the last one it is read again.
        const SECOND: u32 = select(LANES, 0u, BITS == 1u);
        const STEP: u32 = BITS * LANES;
        let start = block * p.units * LANES + lane;
        let last = max(to_record, 1u) - 1u;
        for (var record = from_record; record < to_record; record += 4u) {
            let record_b = min(record + 1u, last);
            let record_c = min(record + 2u, last);
            let record_d = min(record + 3u, last);
            let unit_a = codes[start + record * STEP];
            let unit_b = codes[start + record_b * STEP];
            let unit_c = codes[start + record_c * STEP];
            let unit_d = codes[start + record_d * STEP];
            let more_a = codes[start + record * STEP + SECOND];
            let more_b = codes[start + record_b * STEP + SECOND];
            let more_c = codes[start + record_c * STEP + SECOND];
            let more_d = codes[start + record_d * STEP + SECOND];
            let scale_a = scale_of(block, lane, record);
            let scale_b = scale_of(block, lane, record_b);
            let scale_c = scale_of(block, lane, record_c);
            let scale_d = scale_of(block, lane, record_d);
            add_record(&result, unit_a, more_a, scale_a, first, record);
            if (record + 1u < to_record) {
                add_record(&result, unit_b, more_b, scale_b, first, record + 1u);
            }
            if (record + 2u < to_record) {
                add_record(&result, unit_c, more_c, scale_c, first, record + 2u);
            }
            if (record + 3u < to_record) {
                add_record(&result, unit_d, more_d, scale_d, first, record + 3u);
            }
        }
    } else {
        for (var record = from_record; record < to_record; record++) {
            let at = (block * p.units + record * BITS) * LANES + lane;
            var whole = array<i32, ROWS>();
            var sums = array<vec4<f32>, ROWS>();
            for (var q = 0u; q < 8u; q++) {
                let c = codes_of(at, q);
                for (var m = 0u; m < ROWS; m++) {
                    if (INTEGERS) {
                        whole[m] += dot(c, prepared[input_at(first + m, record) + q]);
                    } else {
                        let base = input_at(first + m, record) + 4u * q;
                        sums[m] = add_products(sums[m], c.x, bitcast<vec4<f32>>(prepared[base]));
                        sums[m] = add_products(sums[m], c.y, bitcast<vec4<f32>>(prepared[base + 1u]));
                        sums[m] = add_products(sums[m], c.z, bitcast<vec4<f32>>(prepared[base + 2u]));
                        sums[m] = add_products(sums[m], c.w, bitcast<vec4<f32>>(prepared[base + 3u]));
                    }
                }
                if ((q + 1u) % STEPS == 0u) {
                    let group = record * (GROUP_COLUMNS / GROUP) + q / STEPS;
                    finish(&result, products_of(whole, sums), scale_of(block, lane, group), first, record, group);
                    whole = array<i32, ROWS>();
                    sums = array<vec4<f32>, ROWS>();
                }
            }
        }
    }
    for (var m = 0u; m < ROWS; m++) {
        partial[m * THREADS + t] = result[m];
    }
    workgroupBarrier();
    let count = row_count(p.count);
    for (var i = t; i < ROWS * LANES; i += THREADS) {
        let m = i / LANES;
        let row_lane = i % LANES;
        let row = block * LANES + row_lane;
        if (first + m >= count || row >= p.rows) {
            continue;
        }
        var y = partial[m * THREADS + row_lane];
        for (var s = 1u; s < SLICES; s++) {
            y += partial[m * THREADS + s * LANES + row_lane];
        }
        y = with_residuals(y, first + m, block, row_lane);
        store(y, first + m, row);
    }
}
