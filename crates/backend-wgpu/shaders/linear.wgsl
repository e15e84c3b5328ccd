// Products with packed weights: codes of BITS bits, a scale for every GROUP columns.
//
// Sums inside a group: of integers four at a time (INTEGERS), or of floats, which may be whole numbers and are then exact
// too. 16 columns are one step: their codes become four words of four bytes each.

fn scale_at(index: u32, kind: u32, first: u32) -> f32 {
    if (kind == 2u) {
        return bitcast<f32>(side[first + index]);
    }
    let word = side[first + index / 2u];
    if (kind == 0u) {
        return half_of(word, index % 2u);
    }
    return bf16_of(word, index % 2u);
}

// Codes of columns 16 q to 16 q + 15 of a record whose first unit of this lane is `at`.
fn codes_of(at: u32, q: u32) -> vec4<u32> {
    let unit = codes[at + (q * BITS / 8u) * LANES];
    if (BITS == 1u) {
        let shifts = vec4<u32>(0u, 1u, 2u, 3u) + vec4<u32>(4u * (q % 2u));
        return (vec4<u32>(unit[q / 2u]) >> shifts) & vec4<u32>(0x01010101u);
    }
    if (BITS == 2u) {
        return (vec4<u32>(unit[q % 4u]) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u);
    }
    if (BITS == 4u) {
        let words = select(unit.xy, unit.zw, q % 2u == 1u);
        return vec4<u32>(words.x, words.x >> 4u, words.y, words.y >> 4u) & vec4<u32>(0x0f0f0f0fu);
    }
    return unit;
}

// The bytes of a word times four values, added to four sums.
fn add_products(sums: vec4<f32>, word: u32, x: vec4<f32>) -> vec4<f32> {
    if (BITS == 1u) {
        let is_set = (vec4<u32>(word) & vec4<u32>(1u, 0x100u, 0x10000u, 0x1000000u)) != vec4<u32>(0u);
        return sums + select(vec4<f32>(0.0), x, is_set);
    }
    if (BITS == 8u) {
        return fma(vec4<f32>(unpack4xI8(word)), x, sums);
    }
    return fma(vec4<f32>(unpack4xU8(word)), x, sums);
}

// The sum of the inputs of a group: of four, two or one of a record's four pieces.
fn total_of(m: u32, group: u32) -> f32 {
    let at = p.sums + m * (p.padded / 32u) + group * (GROUP / 32u);
    let pieces = prepared[at / 4u];
    if (INTEGERS) {
        let whole = bitcast<vec4<i32>>(pieces);
        if (GROUP == 128u) {
            return f32(whole.x + whole.y + whole.z + whole.w);
        }
        if (GROUP == 64u) {
            return f32(select(whole.x + whole.y, whole.z + whole.w, at % 4u == 2u));
        }
        return f32(whole[at % 4u]);
    }
    let floats = bitcast<vec4<f32>>(pieces);
    if (GROUP == 128u) {
        return ((floats.x + floats.y) + floats.z) + floats.w;
    }
    if (GROUP == 64u) {
        return select(floats.x + floats.y, floats.z + floats.w, at % 4u == 2u);
    }
    return floats[at % 4u];
}

@compute @workgroup_size(256)
fn linear(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    const CENTER: f32 = select(select(select(256.0, 16.0, BITS == 4u), 2.0, BITS == 2u), 1.0, BITS == 1u);
    // Steps of a group, and input words of four columns in a vector.
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
        for (var q = 0u; q < 8u; q++) {
            let c = codes_of(at, q);
            for (var m = 0u; m < ROWS; m++) {
                if (INTEGERS) {
                    let x = prepared[p.values / 4u + ((first + m) * p.padded + record * GROUP_COLUMNS) / 16u + q];
                    whole[m] += (dot4I8Packed(c.x, x.x) + dot4I8Packed(c.y, x.y))
                        + (dot4I8Packed(c.z, x.z) + dot4I8Packed(c.w, x.w));
                } else {
                    let base = p.values / 4u + ((first + m) * p.padded + record * GROUP_COLUMNS) / 4u + 4u * q;
                    sums[m] = add_products(sums[m], c.x, bitcast<vec4<f32>>(prepared[base]));
                    sums[m] = add_products(sums[m], c.y, bitcast<vec4<f32>>(prepared[base + 1u]));
                    sums[m] = add_products(sums[m], c.z, bitcast<vec4<f32>>(prepared[base + 2u]));
                    sums[m] = add_products(sums[m], c.w, bitcast<vec4<f32>>(prepared[base + 3u]));
                }
            }
            if ((q + 1u) % STEPS != 0u) {
                continue;
            }
            let group = record * (GROUP_COLUMNS / GROUP) + q / STEPS;
            let number = (block * p.groups + group) * LANES + lane;
            let scale = scale_at(number, SCALE, 0u);
            var bias = 0.0;
            if (BIAS != 3u) {
                bias = scale_at(number, BIAS, p.biases);
            }
            for (var m = 0u; m < ROWS; m++) {
                var product = 0.0;
                if (INTEGERS) {
                    product = f32(whole[m]);
                    whole[m] = 0;
                } else {
                    product = (sums[m].x + sums[m].y) + (sums[m].z + sums[m].w);
                    sums[m] = vec4<f32>();
                }
                let input = input_scale(first + m, record);
                let total = total_of(first + m, group);
                if (BIAS == 3u) {
                    // Codes of eight bits are signed: twice the product is all.
                    var doubled = 2.0 * product;
                    if (BITS != 8u) {
                        doubled = fma(2.0, product, -(CENTER * total));
                    }
                    result[m] = fma(input * (p.factor * scale), doubled, result[m]);
                } else {
                    if (BITS == 8u) {
                        product = fma(128.0, total, product);
                    }
                    result[m] = fma(input, fma(scale, product, bias * total), result[m]);
                }
            }
        }
    }
    for (var m = 0u; m < ROWS; m++) {
        partial[m * 256u + t] = result[m];
    }
    workgroupBarrier();
    let count = step[p.count];
    for (var i = t; i < ROWS * LANES; i += 256u) {
        let m = i / LANES;
        let row_lane = i % LANES;
        let row = block * LANES + row_lane;
        if (first + m >= count || row >= p.rows) {
            continue;
        }
        var y = partial[m * 256u + row_lane];
        for (var s = 1u; s < SLICES; s++) {
            y += partial[m * 256u + s * LANES + row_lane];
        }
        if (RESIDUALS) {
            for (var e = side[p.residual_first + block]; e < side[p.residual_first + block + 1u]; e++) {
                let where_ = side[p.residuals + 2u * e];
                if (where_ % LANES == row_lane) {
                    let group = where_ / LANES;
                    let input = input_scale(first + m, group * GROUP / GROUP_COLUMNS);
                    let value = bitcast<f32>(side[p.residuals + 2u * e + 1u]);
                    y = fma(value * input, total_of(first + m, group), y);
                }
            }
        }
        store(y, first + m, row);
    }
}
