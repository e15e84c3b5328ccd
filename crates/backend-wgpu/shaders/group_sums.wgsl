// For a group norm: mean of each group over the rows of a chunk, and the squares of what differs from it. A workgroup a group and
// chunk. Means first: a variance of plain squares would lose its digits.

struct Params {
    x: View,
    groups: u32,
    // Rows of a chunk.
    chunk: u32,
    // Word of the scratch memory.
    partials: u32,
    count: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> arena: array<f32>;
@group(0) @binding(3) var<storage, read_write> partials: array<f32>;

@compute @workgroup_size(256)
fn group_sums(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let size = p.x.heads * p.x.dim / p.groups;
    let first = wg.y * p.chunk;
    let count = (min(first + p.chunk, row_count(p.count)) - first) * size;
    var sum = 0.0;
    for (var i = t; i < count; i += 256u) {
        sum += arena[place(p.x, first + i / size, wg.x * size + i % size)];
    }
    let mean = quotient(sum_of_all(sum, t), f32(count));
    var squares = 0.0;
    for (var i = t; i < count; i += 256u) {
        let d = arena[place(p.x, first + i / size, wg.x * size + i % size)] - mean;
        squares = fma(d, d, squares);
    }
    squares = sum_of_all(squares, t);
    if (t == 0u) {
        let at = p.partials + 2u * (wg.y * p.groups + wg.x);
        partials[at] = mean;
        partials[at + 1u] = squares;
    }
}
