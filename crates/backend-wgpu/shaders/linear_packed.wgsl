// What products with packed weights share: codes, scales, sums of inputs, and what a group adds to a result.

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

// Sixteen codes of four words times sixteen integers.
fn dot(c: vec4<u32>, x: vec4<u32>) -> i32 {
    return (dot4I8Packed(c.x, x.x) + dot4I8Packed(c.y, x.y)) + (dot4I8Packed(c.z, x.z) + dot4I8Packed(c.w, x.w));
}

// A result with what a group adds to it: of its product, its scale and bias, and scale and sum of its inputs.
fn with_group(result: f32, sum: f32, scale: f32, bias: f32, input: f32, total: f32) -> f32 {
    const CENTER: f32 = select(select(select(256.0, 16.0, BITS == 4u), 2.0, BITS == 2u), 1.0, BITS == 1u);
    if (BIAS == 3u) {
        // Codes of eight bits are signed: twice the product is all.
        var doubled = 2.0 * sum;
        if (BITS != 8u) {
            doubled = fma(2.0, sum, -(CENTER * total));
        }
        return fma(input * (p.factor * scale), doubled, result);
    }
    var product = sum;
    if (BITS == 8u) {
        product = fma(128.0, total, sum);
    }
    return fma(input, fma(scale, product, bias * total), result);
}

// A result with what the rounded biases of its row lack.
fn with_residuals(result: f32, m: u32, block: u32, lane: u32) -> f32 {
    var y = result;
    if (RESIDUALS) {
        for (var e = side[p.residual_first + block]; e < side[p.residual_first + block + 1u]; e++) {
            let where_ = side[p.residuals + 2u * e];
            if (where_ % LANES == lane) {
                let group = where_ / LANES;
                let input = input_scale(m, group * GROUP / GROUP_COLUMNS);
                y = fma(bitcast<f32>(side[p.residuals + 2u * e + 1u]) * input, total_of(m, group), y);
            }
        }
    }
    return y;
}
