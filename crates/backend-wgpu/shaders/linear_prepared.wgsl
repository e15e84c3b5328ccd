// Where products find their input, once `prepare` has written it.

// Where a row's input of a record begins, in vectors of 16 integers or of four floats.
fn input_at(m: u32, record: u32) -> u32 {
    return (p.values + (m * p.padded + record * GROUP_COLUMNS) / select(1u, 4u, INTEGERS)) / 4u;
}

fn input_scale(m: u32, record: u32) -> f32 {
    return bitcast<f32>(prepared_words[p.scales + m * (p.padded / GROUP_COLUMNS) + record]);
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
