// Products with packed weights and integers, many rows of activations: a tile of 64 rows and two blocks of the weight. The
// inputs of a record pass through workgroup memory; a thread has one row of each block and eight rows of activations.
//
// Slices of the columns are summed up one after the other, and added as the narrow kernel adds them: the bits are the same.

const TILE: u32 = 64u;
const EACH: u32 = 8u;
const GROUPS: u32 = GROUP_COLUMNS / GROUP;

var<workgroup> inputs: array<vec4<u32>, TILE * 8u>;
var<workgroup> totals: array<f32, TILE * GROUPS>;
var<workgroup> scales: array<f32, TILE>;

// Sixteen columns of both blocks times those of eight rows.
fn add_step(
    a: ptr<function, array<i32, EACH>>,
    b: ptr<function, array<i32, EACH>>,
    codes_a: vec4<u32>,
    codes_b: vec4<u32>,
    at: u32,
) {
    for (var m = 0u; m < EACH; m++) {
        let x = inputs[at + m * 8u];
        (*a)[m] += dot(codes_a, x);
        (*b)[m] += dot(codes_b, x);
    }
}

fn four(word: u32, shift: u32) -> vec4<u32> {
    return (vec4<u32>(word) >> (vec4<u32>(0u, 1u, 2u, 3u) + vec4<u32>(shift))) & vec4<u32>(0x01010101u);
}

// Adds the products of a group to the results of a slice, and clears them.
fn finish(
    result: ptr<function, array<f32, EACH>>,
    sums: ptr<function, array<i32, EACH>>,
    block: u32,
    lane: u32,
    team: u32,
    group: u32,
) {
    let number = (block * p.groups + group) * LANES + lane;
    let scale = scale_at(number, SCALE, 0u);
    var bias = 0.0;
    if (BIAS != 3u) {
        bias = scale_at(number, BIAS, p.biases);
    }
    for (var m = 0u; m < EACH; m++) {
        let row = team * EACH + m;
        let total = totals[row * GROUPS + group % GROUPS];
        (*result)[m] = with_group((*result)[m], f32((*sums)[m]), scale, bias, scales[row], total);
        (*sums)[m] = 0;
    }
}

fn finish_rows(result: ptr<function, array<f32, EACH>>, block: u32, lane: u32, first: u32) {
    let row = block * LANES + lane;
    let count = row_count(p.count);
    for (var m = 0u; m < EACH; m++) {
        if (first + m < count && row < p.rows) {
            store(with_residuals((*result)[m], first + m, block, lane), first + m, row);
        }
    }
}

@compute @workgroup_size(256)
fn linear(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let lane = t % LANES;
    let team = t / LANES;
    let blocks = (p.rows + LANES - 1u) / LANES;
    let block_a = wg.x * 2u;
    // Of an odd number the last one is multiplied twice, and stored once.
    let block_b = min(block_a + 1u, blocks - 1u);
    let first = wg.y * TILE;
    var slice = 0u;
    var end = record_of(1u);
    var whole_a = array<f32, EACH>();
    var whole_b = array<f32, EACH>();
    var result_a = array<f32, EACH>();
    var result_b = array<f32, EACH>();
    var a = array<i32, EACH>();
    var b = array<i32, EACH>();
    for (var record = 0u; record < p.records; record++) {
        workgroupBarrier();
        for (var i = t; i < TILE * 8u; i += 256u) {
            inputs[i] = prepared[input_at(first + i / 8u, record) + i % 8u];
        }
        if (t < TILE) {
            scales[t] = input_scale(first + t, record);
        }
        for (var i = t; i < TILE * GROUPS; i += 256u) {
            totals[i] = total_of(first + i / GROUPS, record * GROUPS + i % GROUPS);
        }
        workgroupBarrier();
        let at_a = (block_a * p.units + record * BITS) * LANES + lane;
        let at_b = (block_b * p.units + record * BITS) * LANES + lane;
        let row = team * EACH * 8u;
        if (BITS == 1u && GROUP >= 64u) {
            let unit_a = codes[at_a];
            let unit_b = codes[at_b];
            add_step(&a, &b, four(unit_a.x, 0u), four(unit_b.x, 0u), row);
            add_step(&a, &b, four(unit_a.x, 4u), four(unit_b.x, 4u), row + 1u);
            add_step(&a, &b, four(unit_a.y, 0u), four(unit_b.y, 0u), row + 2u);
            add_step(&a, &b, four(unit_a.y, 4u), four(unit_b.y, 4u), row + 3u);
            if (GROUP == 64u) {
                finish(&result_a, &a, block_a, lane, team, 2u * record);
                finish(&result_b, &b, block_b, lane, team, 2u * record);
            }
            add_step(&a, &b, four(unit_a.z, 0u), four(unit_b.z, 0u), row + 4u);
            add_step(&a, &b, four(unit_a.z, 4u), four(unit_b.z, 4u), row + 5u);
            add_step(&a, &b, four(unit_a.w, 0u), four(unit_b.w, 0u), row + 6u);
            add_step(&a, &b, four(unit_a.w, 4u), four(unit_b.w, 4u), row + 7u);
            let group = select(record, 2u * record + 1u, GROUP == 64u);
            finish(&result_a, &a, block_a, lane, team, group);
            finish(&result_b, &b, block_b, lane, team, group);
        } else {
            for (var q = 0u; q < 8u; q++) {
                add_step(&a, &b, codes_of(at_a, q), codes_of(at_b, q), row + q);
                if ((q + 1u) % (GROUP / 16u) == 0u) {
                    let group = record * GROUPS + q / (GROUP / 16u);
                    finish(&result_a, &a, block_a, lane, team, group);
                    finish(&result_b, &b, block_b, lane, team, group);
                }
            }
        }
        if (record + 1u == end) {
            slice++;
            end = record_of(slice + 1u);
            for (var m = 0u; m < EACH; m++) {
                whole_a[m] += result_a[m];
                whole_b[m] += result_b[m];
                result_a[m] = 0.0;
                result_b[m] = 0.0;
            }
        }
    }
    finish_rows(&whole_a, block_a, lane, first + team * EACH);
    if (block_a + 1u < blocks) {
        finish_rows(&whole_b, block_b, lane, first + team * EACH);
    }
}
