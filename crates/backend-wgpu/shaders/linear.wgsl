// Products with packed weights, up to ROWS rows of activations in one pass over the weight.
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

// Adds a group's products to the results of the pass.
fn finish(
    result: ptr<function, array<f32, ROWS>>,
    products: array<f32, ROWS>,
    block: u32,
    lane: u32,
    first: u32,
    record: u32,
    group: u32,
) {
    let number = (block * p.groups + group) * LANES + lane;
    let scale = scale_at(number, SCALE, 0u);
    var bias = 0.0;
    if (BIAS != 3u) {
        bias = scale_at(number, BIAS, p.biases);
    }
    for (var m = 0u; m < ROWS; m++) {
        let input = input_scale(first + m, record);
        let total = total_of(first + m, group);
        (*result)[m] = with_group((*result)[m], products[m], scale, bias, input, total);
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

@compute @workgroup_size(THREADS)
fn linear(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    // Steps of a group.
    const STEPS: u32 = GROUP / 16u;
    let lane = t % LANES;
    let slice = t / LANES;
    let block = wg.x;
    let first = wg.y * ROWS;
    let share = (p.records + SLICES - 1u) / SLICES;
    let from_record = min(slice * share, p.records);
    let to_record = min(from_record + share, p.records);
    var result = array<f32, ROWS>();
    for (var record = from_record; record < to_record; record++) {
        let at = (block * p.units + record * BITS) * LANES + lane;
        var whole = array<i32, ROWS>();
        var sums = array<vec4<f32>, ROWS>();
        if (BITS <= 2u && GROUP >= 64u) {
            // Vectors of input of a word.
            const EACH: u32 = select(8u, 2u, INTEGERS) / BITS;
            let unit = codes[at];
            if (INTEGERS) {
                add_word(&whole, unit.x, first, record, 0u);
                add_word(&whole, unit.y, first, record, EACH);
            } else {
                add_word_floats(&sums, unit.x, first, record, 0u);
                add_word_floats(&sums, unit.y, first, record, EACH);
            }
            if (BITS == 2u) {
                if (INTEGERS) {
                    add_word(&whole, unit.z, first, record, 2u * EACH);
                    add_word(&whole, unit.w, first, record, 3u * EACH);
                } else {
                    add_word_floats(&sums, unit.z, first, record, 2u * EACH);
                    add_word_floats(&sums, unit.w, first, record, 3u * EACH);
                }
            }
            // Half of the record, and the other half.
            if (GROUP == 64u) {
                finish(&result, products_of(whole, sums), block, lane, first, record, 2u * record);
                whole = array<i32, ROWS>();
                sums = array<vec4<f32>, ROWS>();
            }
            var more = unit.zw;
            if (BITS == 2u) {
                let second = codes[at + LANES];
                more = second.zw;
                if (INTEGERS) {
                    add_word(&whole, second.x, first, record, 4u * EACH);
                    add_word(&whole, second.y, first, record, 5u * EACH);
                } else {
                    add_word_floats(&sums, second.x, first, record, 4u * EACH);
                    add_word_floats(&sums, second.y, first, record, 5u * EACH);
                }
            }
            const LAST: u32 = select(6u, 2u, BITS == 1u);
            if (INTEGERS) {
                add_word(&whole, more.x, first, record, LAST * EACH);
                add_word(&whole, more.y, first, record, (LAST + 1u) * EACH);
            } else {
                add_word_floats(&sums, more.x, first, record, LAST * EACH);
                add_word_floats(&sums, more.y, first, record, (LAST + 1u) * EACH);
            }
            let group = select(record, 2u * record + 1u, GROUP == 64u);
            finish(&result, products_of(whole, sums), block, lane, first, record, group);
            continue;
        }
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
                finish(&result, products_of(whole, sums), block, lane, first, record, group);
                whole = array<i32, ROWS>();
                sums = array<vec4<f32>, ROWS>();
            }
        }
    }
    for (var m = 0u; m < ROWS; m++) {
        partial[m * THREADS + t] = result[m];
    }
    workgroupBarrier();
    let count = step[p.count];
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
