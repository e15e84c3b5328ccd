// Products with packed weights and integers, many rows of activations: a tile of 64 rows and two blocks of the weight. The
// inputs of a record pass through workgroup memory, and those of the next one are on their way meanwhile; a thread has one row of
// the weight and sixteen of activations, so that codes that are taken apart once serve sixteen products.
//
// Slices of the columns are summed up one after the other, and added as the narrow kernel adds them: the bits are the same.

const TILE: u32 = 64u;
const EACH: u32 = 16u;
// Teams of 32 threads, a lane a row of a block, that share its rows of activations.
const TEAMS: u32 = TILE / EACH;
const GROUPS: u32 = GROUP_COLUMNS / GROUP;
const WIDE_THREADS: u32 = 256u;

var<workgroup> inputs: array<vec4<u32>, TILE * 8u>;
// Scale and sum of the inputs of each row and group.
var<workgroup> rows_of: array<vec2<f32>, TILE * GROUPS>;

// Sums begin at the bits of 3 * 2^22, among floats that lie one apart: with a group's sum, which is below 2^22, they are the bits
// of the sum of both, and a subtraction makes the float that a slower instruction would.
const START: i32 = 0x4b400000;
const START_FLOAT: f32 = 12582912.0;

// Sixteen columns times those of sixteen rows.
fn add_step(sums: ptr<function, array<i32, EACH>>, c: vec4<u32>, at: u32) {
    for (var m = 0u; m < EACH; m++) {
        (*sums)[m] += dot(c, inputs[at + m * 8u]);
    }
}

fn four(word: u32, shift: u32) -> vec4<u32> {
    return (vec4<u32>(word) >> (vec4<u32>(0u, 1u, 2u, 3u) + vec4<u32>(shift))) & vec4<u32>(0x01010101u);
}

// Adds the products of a group to the results of a slice, and begins anew.
fn finish(
    result: ptr<function, array<f32, EACH>>,
    sums: ptr<function, array<i32, EACH>>,
    block: u32,
    lane: u32,
    first: u32,
    group: u32,
) {
    let number = (block * p.groups + group) * LANES + lane;
    let scale = scale_at(number, SCALE, 0u);
    var bias = 0.0;
    if (BIAS != 3u) {
        bias = scale_at(number, BIAS, p.biases);
    }
    for (var m = 0u; m < EACH; m++) {
        let row = rows_of[(first + m) * GROUPS + group % GROUPS];
        let sum = bitcast<f32>((*sums)[m]) - START_FLOAT;
        (*result)[m] = with_group((*result)[m], sum, scale, bias, row.x, row.y);
        (*sums)[m] = START;
    }
}

fn input_of(first: u32, record: u32, i: u32) -> vec4<u32> {
    return prepared[input_at(first + i / 8u, record) + i % 8u];
}

fn row_of_tile(first: u32, record: u32, i: u32) -> vec2<f32> {
    let row = first + i / GROUPS;
    return vec2<f32>(input_scale(row, record), total_of(row, record * GROUPS + i % GROUPS));
}

@compute @workgroup_size(WIDE_THREADS)
fn linear(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let lane = t % LANES;
    let team = t / LANES;
    let blocks = (p.rows + LANES - 1u) / LANES;
    // Of an odd number the last one is multiplied twice, and stored once.
    let wanted = wg.x * 2u + team / TEAMS;
    let block = min(wanted, blocks - 1u);
    let first = wg.y * TILE;
    let own = team % TEAMS * EACH;
    let start = block * p.units * LANES + lane;
    let share = (p.records + SLICES - 1u) / SLICES;
    var left = share;
    var whole = array<f32, EACH>();
    var result = array<f32, EACH>();
    var sums = array<i32, EACH>();
    for (var m = 0u; m < EACH; m++) {
        sums[m] = START;
    }
    // What the next record needs.
    var input_a = input_of(first, 0u, t);
    var input_b = input_of(first, 0u, t + WIDE_THREADS);
    var row_next = vec2<f32>();
    if (t < TILE * GROUPS) {
        row_next = row_of_tile(first, 0u, t);
    }
    var unit_next = codes[start];
    for (var record = 0u; record < p.records; record++) {
        workgroupBarrier();
        inputs[t] = input_a;
        inputs[t + WIDE_THREADS] = input_b;
        if (t < TILE * GROUPS) {
            rows_of[t] = row_next;
        }
        let unit = unit_next;
        workgroupBarrier();
        // Behind the last one it is read again.
        let next = min(record + 1u, p.records - 1u);
        input_a = input_of(first, next, t);
        input_b = input_of(first, next, t + WIDE_THREADS);
        if (t < TILE * GROUPS) {
            row_next = row_of_tile(first, next, t);
        }
        unit_next = codes[start + next * BITS * LANES];
        let at = own * 8u;
        if (BITS == 1u && GROUP >= 64u) {
            add_step(&sums, four(unit.x, 0u), at);
            add_step(&sums, four(unit.x, 4u), at + 1u);
            add_step(&sums, four(unit.y, 0u), at + 2u);
            add_step(&sums, four(unit.y, 4u), at + 3u);
            if (GROUP == 64u) {
                finish(&result, &sums, block, lane, own, 2u * record);
            }
            add_step(&sums, four(unit.z, 0u), at + 4u);
            add_step(&sums, four(unit.z, 4u), at + 5u);
            add_step(&sums, four(unit.w, 0u), at + 6u);
            add_step(&sums, four(unit.w, 4u), at + 7u);
            finish(&result, &sums, block, lane, own, select(record, 2u * record + 1u, GROUP == 64u));
        } else {
            for (var q = 0u; q < 8u; q++) {
                add_step(&sums, codes_of(start + record * BITS * LANES, q), at + q);
                if ((q + 1u) % (GROUP / 16u) == 0u) {
                    finish(&result, &sums, block, lane, own, record * GROUPS + q / (GROUP / 16u));
                }
            }
        }
        left--;
        if (left == 0u) {
            left = share;
            for (var m = 0u; m < EACH; m++) {
                whole[m] += result[m];
                result[m] = 0.0;
            }
        }
    }
    let row = block * LANES + lane;
    let count = row_count(p.count);
    for (var m = 0u; m < EACH; m++) {
        let y = whole[m] + result[m];
        if (wanted < blocks && first + own + m < count && row < p.rows) {
            store(with_residuals(y, first + own + m, block, lane), first + own + m, row);
        }
    }
}
