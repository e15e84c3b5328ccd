// Keys, queries and gates of the delta rule, as they come from the arena.

// For each thread of eight teams of 32, a vector each.
var<workgroup> pairs: array<vec2<f32>, 256>;

// Quad `q` of a key or query that begins at float `at` of the arena; zeros behind the key dimension.
fn arena_quad(at: u32, q: u32) -> vec4<f32> {
    var x = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if (4u * q + i < p.k.dim) {
            x[i] = arena[at + 4u * q + i];
        }
    }
    return x;
}

// Sums over the threads of a team; all threads of the workgroup come here.
fn team_sum(sums: vec2<f32>, t: u32) -> vec2<f32> {
    let lane = t % 32u;
    workgroupBarrier();
    pairs[t] = sums;
    workgroupBarrier();
    for (var step_ = 16u; step_ > 0u; step_ /= 2u) {
        if (lane < step_) {
            pairs[t] += pairs[t + step_];
        }
        workgroupBarrier();
    }
    return pairs[t - lane];
}

// What a vector is multiplied by: 1 / sqrt(sum of squares + eps), of a query times its factor. Each thread of a team has the
// sums of its own quads.
fn normaliser(sums: vec2<f32>, is_query: bool, t: u32) -> f32 {
    return inverse_of(team_sum(sums, t), 1.0, p.eps) * select(1.0, p.query_factor, is_query);
}

// Of a row of the step. With MADE the gates are what `gates` would make of their inputs; the bits are the same.
fn row_decay(row: u32, head: u32) -> f32 {
    let x = arena[place(p.log_decay, row, head)];
    if (MADE) {
        return log_decay(x + bias[head], rate[head]);
    }
    return x;
}

fn row_beta(row: u32, head: u32) -> f32 {
    let x = arena[place(p.beta, row, head)];
    if (MADE) {
        return sigmoid(x);
    }
    return x;
}
