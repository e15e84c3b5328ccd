// Rows of a table, for the tokens that lie in this part of it. TYPE is that of dense values, or 3 for packed codes.

struct Params {
    first_row: u32,
    rows: u32,
    // Rows of the whole table: another token was never sampled, and its row says so.
    vocab: u32,
    cols: u32,
    out: u32,
    units: u32,
    groups: u32,
    biases: u32,
    residual_first: u32,
    residuals: u32,
    factor: f32,
    reserved: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read> side: array<u32>;
@group(0) @binding(3) var<storage, read> step: array<u32>;
@group(0) @binding(4) var<storage, read> sampled: array<u32>;
@group(0) @binding(5) var<storage, read_write> arena: array<f32>;

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

fn value(row: u32, c: u32) -> f32 {
    let block = row / 32u;
    let lane = row % 32u;
    if (TYPE != 3u) {
        let per_unit = select(8u, 4u, TYPE == 2u);
        let unit = ((block * p.units + c / per_unit) * 32u + lane) * 4u;
        let e = c % per_unit;
        if (TYPE == 2u) {
            return bitcast<f32>(codes[unit + e]);
        }
        if (TYPE == 0u) {
            return half_of(codes[unit + e / 2u], e % 2u);
        }
        return bf16_of(codes[unit + e / 2u], e % 2u);
    }
    const PER_WORD: u32 = 32u / BITS;
    const PER_UNIT: u32 = 4u * PER_WORD;
    let unit = ((block * p.units + c / PER_UNIT) * 32u + lane) * 4u;
    let e = c % PER_WORD;
    let shift = BITS * (e / 4u) + 8u * (e % 4u);
    var code = extractBits(codes[unit + c % PER_UNIT / PER_WORD], shift, BITS);
    if (BITS == 8u) {
        code ^= 0x80u;
    }
    let group = c / GROUP;
    let number = (block * p.groups + group) * 32u + lane;
    let scale = scale_at(number, SCALE, 0u);
    if (BIAS != 3u) {
        return fma(scale, f32(code), scale_at(number, BIAS, p.biases));
    }
    const CENTER: i32 = select(select(select(256, 16, BITS == 4u), 2, BITS == 2u), 1, BITS == 1u);
    var added = 0.0;
    if (RESIDUALS) {
        for (var e = side[p.residual_first + block]; e < side[p.residual_first + block + 1u]; e++) {
            if (side[p.residuals + 2u * e] == (lane | (group << 5u))) {
                added += bitcast<f32>(side[p.residuals + 2u * e + 1u]);
            }
        }
    }
    return fma(p.factor * scale, f32(2 * i32(code) - CENTER), added);
}

@compute @workgroup_size(256)
fn embed(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let r = wg.y;
    let c = wg.x * 256u + t;
    if (c >= p.cols) {
        return;
    }
    var token = step[step[STEP_TOKENS] + r];
    let carried = step[step[STEP_CARRIED] + r];
    if (carried != NONE) {
        token = sampled[2u * carried];
    }
    if (token >= p.vocab) {
        arena[p.out + r * p.cols + c] = not_a_number();
        return;
    }
    if (token >= p.first_row && token - p.first_row < p.rows) {
        arena[p.out + r * p.cols + c] = value(token - p.first_row, c);
    }
}
