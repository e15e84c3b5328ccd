// What the heads of a row share in the delta rule of many rows, once: normalised keys and queries of the key heads, decay and
// beta of the value heads. A workgroup has eight vectors of a row; the first one has its gates too.

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> rate: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> arena: array<f32>;
@group(0) @binding(4) var<storage, read_write> made: array<f32>;

// Quads of a vector that a thread has.
const OF_LANE: u32 = (VECTOR + 31u) / 32u;

@compute @workgroup_size(256)
fn delta_make(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = wg.y;
    let lane = t % 32u;
    let vector = wg.x * 8u + t / 32u;
    let is_query = vector >= p.k.heads;
    let here = vector < 2u * p.k.heads;
    let from_ = select(vector_at(p.k, row, vector), vector_at(p.q, row, vector - p.k.heads), is_query);
    var x = array<vec4<f32>, OF_LANE>();
    var sums = vec2<f32>();
    for (var n = 0u; n < OF_LANE; n++) {
        let q = lane + 32u * n;
        if (here && q < VECTOR) {
            x[n] = arena_quad(from_, q);
        }
        sums = four_squared(sums, x[n]);
    }
    let factor = normaliser(sums, is_query, t);
    let to = p.made + row * made_row();
    for (var n = 0u; n < OF_LANE; n++) {
        let q = lane + 32u * n;
        if (here && q < VECTOR) {
            for (var i = 0u; i < 4u; i++) {
                made[to + vector * WIDTH + 4u * q + i] = x[n][i] * factor;
            }
        }
    }
    let gates = to + made_gates();
    for (var head = t; wg.x == 0u && head < p.v.heads; head += 256u) {
        made[gates + head] = exponential(row_decay(row, head));
        made[gates + p.v.heads + head] = row_beta(row, head);
    }
}
