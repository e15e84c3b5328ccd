// Products with weights that are numbers: f16, bf16 or f32, as TYPE says.

var<workgroup> partial: array<f32, THREADS * ROWS>;

@compute @workgroup_size(THREADS)
fn linear(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let lane = t % LANES;
    let slice = t / LANES;
    let block = wg.x;
    let first = wg.y * ROWS;
    let share = (p.units + SLICES - 1u) / SLICES;
    let from_unit = min(slice * share, p.units);
    let to_unit = min(from_unit + share, p.units);
    var sums = array<vec4<f32>, ROWS>();
    for (var unit = from_unit; unit < to_unit; unit++) {
        let w = codes[(block * p.units + unit) * LANES + lane];
        for (var m = 0u; m < ROWS; m++) {
            let row = p.values / 4u + (first + m) * (p.padded / 4u);
            if (TYPE == 2u) {
                sums[m] = fma(bitcast<vec4<f32>>(w), bitcast<vec4<f32>>(prepared[row + unit]), sums[m]);
            } else {
                var low = vec4<f32>();
                var high = vec4<f32>();
                if (TYPE == 0u) {
                    low = vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
                    high = vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w));
                } else {
                    let left = bitcast<vec4<f32>>(w << vec4<u32>(16u));
                    let right = bitcast<vec4<f32>>(w & vec4<u32>(0xffff0000u));
                    low = vec4<f32>(left.x, right.x, left.y, right.y);
                    high = vec4<f32>(left.z, right.z, left.w, right.w);
                }
                sums[m] = fma(low, bitcast<vec4<f32>>(prepared[row + 2u * unit]), sums[m]);
                sums[m] = fma(high, bitcast<vec4<f32>>(prepared[row + 2u * unit + 1u]), sums[m]);
            }
        }
    }
    for (var m = 0u; m < ROWS; m++) {
        partial[m * THREADS + t] = (sums[m].x + sums[m].y) + (sums[m].z + sums[m].w);
    }
    workgroupBarrier();
    let count = row_count(p.count);
    for (var i = t; i < ROWS * LANES; i += THREADS) {
        let m = i / LANES;
        let row_lane = i % LANES;
        let row = block * LANES + row_lane;
        if (first + m >= count || row >= p.rows) {
            continue;
        }
        var y = partial[m * THREADS + row_lane];
        for (var s = 1u; s < SLICES; s++) {
            y += partial[m * THREADS + s * LANES + row_lane];
        }
        store(y, first + m, row);
    }
}
