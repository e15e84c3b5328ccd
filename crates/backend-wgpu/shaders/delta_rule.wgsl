// What the kernels of the gated delta rule share: the order of their sums, so that a row has the same bits in each.
//
// A column of a head's matrix has a recurrence of its own. Its values are cut into quads of four neighbouring keys, quad q
// belonging to part q mod 8. A part's products are summed up in four chains over its quads, joined in pairs; the eight parts
// are joined in pairs as well. KEPT is how many values of a column a part has.

struct Params {
    q: View,
    k: View,
    v: View,
    log_decay: View,
    beta: View,
    gate: View,
    out: u32,
    out_stride: u32,
    slot_stride: u32,
    area_stride: u32,
    // Floats of a row of a pending area.
    guess_row: u32,
    // 0: key = value / (values / keys), 1: key = value mod keys.
    map: u32,
    eps: f32,
    query_factor: f32,
    // Word of the scratch memory where rows made beforehand begin.
    made: u32,
    // What the preparation of the product behind it has.
    norm_eps: f32,
    padded: u32,
    values: u32,
    scales: u32,
    sums: u32,
    limit: f32,
    // Nothing, which no compiler knows: a chain that begins with it is no product, however short it is.
    zero: f32,
}

const PARTS: u32 = 8u;
const WIDTH: u32 = KEPT * PARTS;
// Quads of a part, and of a vector of keys.
const QUADS: u32 = KEPT / 4u;
const VECTOR: u32 = WIDTH / 4u;

fn joined(chains: vec4<f32>) -> f32 {
    return (chains.x + chains.y) + (chains.z + chains.w);
}

fn key_head(head: u32) -> u32 {
    return select(head / (p.v.heads / p.k.heads), head % p.k.heads, p.map == 1u);
}

// Where the key, query or value of a head begins in a row of the arena.
fn vector_at(v: View, row: u32, head: u32) -> u32 {
    return v.offset + row * v.row_stride + head * v.head_stride;
}

// A row made beforehand: keys of all key heads, their queries, decays of all value heads, their betas; rows begin at whole quads.
fn made_gates() -> u32 {
    return 2u * p.k.heads * WIDTH;
}

fn made_row() -> u32 {
    return made_gates() + (2u * p.v.heads + 3u) / 4u * 4u;
}
