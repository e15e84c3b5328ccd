// Reads a stretch of memory once, 16 bytes a thread and step, neighbours side by side.

struct Params {
    // Vectors of four words.
    count: u32,
    step: u32,
    reserved_a: u32,
    reserved_b: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> memory: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> sums: array<u32>;

@compute @workgroup_size(256)
fn bandwidth(@builtin(global_invocation_id) id: vec3<u32>) {
    var sum = vec4<u32>();
    for (var i = id.x; i < p.count; i += p.step) {
        sum += memory[i];
    }
    sums[id.x] = sum.x + sum.y + sum.z + sum.w;
}
