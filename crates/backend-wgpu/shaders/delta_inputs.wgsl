// Keys, queries and gates of the delta rule, as they come from the arena.

// For each thread of eight teams of 32, a vector each.
var<workgroup> pairs: array<vec2<f32>, 256>;

// Quad `q` of a key or query that begins at float `at` of the arena; zeros behind the key dimension.
fn arena_quad(at: u32, q: u32) -> vec4<f32> {
    if (4u * q + 4u <= p.k.dim) {
        let first = at + 4u * q;
        return vec4<f32>(arena[first], arena[first + 1u], arena[first + 2u], arena[first + 3u]);
    }
    var x = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if (4u * q + i < p.k.dim) {
            x[i] = arena[at + 4u * q + i];
        }
    }
    return x;
}

// Sums of `pairs` from `at` on: as a tree over 32 threads makes them, whose barriers would take longer.
fn of_16(at: u32) -> vec2<f32> {
    return pairs[at] + pairs[at + 16u];
}

fn of_8(at: u32) -> vec2<f32> {
    return of_16(at) + of_16(at + 8u);
}

fn of_4(at: u32) -> vec2<f32> {
    return of_8(at) + of_8(at + 4u);
}

fn of_2(at: u32) -> vec2<f32> {
    return of_4(at) + of_4(at + 2u);
}

// Sums over the threads of a team; all threads of the workgroup come here.
fn team_sum(sums: vec2<f32>, t: u32) -> vec2<f32> {
    workgroupBarrier();
    pairs[t] = sums;
    workgroupBarrier();
    let first = t - t % 32u;
    return of_2(first) + of_2(first + 1u);
}

// What a vector is multiplied by: 1 / sqrt(sum of squares + eps), of a query times its factor. Each thread of a team has the
// sums of its own quads.
fn normaliser(sums: vec2<f32>, is_query: bool, t: u32) -> f32 {
    return inverse_of(team_sum(sums, t), 1.0, p.eps) * select(1.0, p.query_factor, is_query);
}

// Of a row of the step. With MADE the gates are what `gates` would make of their inputs; the bits are the same.
fn made_decay(x: f32, rule: vec2<f32>) -> f32 {
    if (MADE) {
        return log_decay(x + rule.y, rule.x);
    }
    return x;
}

// Rate and bias of a head's decay.
fn rule_of(head: u32) -> vec2<f32> {
    if (MADE) {
        return vec2<f32>(rate[head], bias[head]);
    }
    return vec2<f32>();
}

fn made_beta(x: f32) -> f32 {
    if (MADE) {
        return sigmoid(x);
    }
    return x;
}

fn row_decay(row: u32, head: u32) -> f32 {
    return made_decay(arena[place(p.log_decay, row, head)], rule_of(head));
}

fn row_beta(row: u32, head: u32) -> f32 {
    return made_beta(arena[place(p.beta, row, head)]);
}
