// A sum over the 256 threads of a workgroup, in one order.

var<workgroup> tree: array<f32, 256>;

fn sum_of_all(x: f32, t: u32) -> f32 {
    workgroupBarrier();
    tree[t] = x;
    workgroupBarrier();
    for (var i = 128u; i > 0u; i /= 2u) {
        if (t < i) {
            tree[t] += tree[t + i];
        }
        workgroupBarrier();
    }
    return tree[0];
}
