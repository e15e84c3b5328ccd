// Convolution of pictures as a product: a workgroup has 64 pixels and 64 channels of the output, and goes over the columns of
// the weight (taps, and the channels of each) sixteen at a time. Inputs are normed on their way into workgroup memory.
// TYPE: the numbers of the weight, as in `linear_dense`.

struct Params {
    x: View,
    residual: View,
    // Of the output.
    height: u32,
    width: u32,
    kernel: u32,
    // How often each pixel of the input stands, in both directions.
    times: u32,
    channels: u32,
    // First float of the factors; NONE without a norm.
    affine: u32,
    silu: u32,
    has_residual: u32,
    // Units of a row of the weight, and its rows here.
    units: u32,
    rows: u32,
    first_row: u32,
    out: u32,
    out_stride: u32,
    reserved_a: u32,
    reserved_b: u32,
    reserved_c: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> arena: array<f32>;

const PIXELS: u32 = 64u;
const OUTPUTS: u32 = 64u;
const LANES: u32 = 32u;
// Vectors of four columns of a chunk; one more lies between rows, so that neighbours are in different banks.
const QUADS: u32 = 4u;
const STRIDE: u32 = QUADS + 1u;

var<workgroup> inputs: array<vec4<f32>, PIXELS * STRIDE>;
var<workgroup> weights: array<vec4<f32>, OUTPUTS * STRIDE>;

fn normed(x: f32, channel: u32) -> f32 {
    if (p.affine == NONE) {
        return x;
    }
    let y = fma(arena[p.affine + channel], x, arena[p.affine + p.channels + channel]);
    if (p.silu != 0u) {
        return silu(y);
    }
    return y;
}

// One value of a pixel's column of the product.
fn input_at(y: u32, x: u32, is_there: bool, column: u32) -> f32 {
    let tap = column / p.channels;
    let channel = column % p.channels;
    let reach = p.kernel / 2u;
    let dy = y + tap / p.kernel;
    let dx = x + tap % p.kernel;
    let inside = is_there && tap < p.kernel * p.kernel
        && dy >= reach && dx >= reach && dy - reach < p.height && dx - reach < p.width;
    if (!inside) {
        return 0.0;
    }
    let row = (dy - reach) / p.times * (p.width / p.times) + (dx - reach) / p.times;
    return normed(arena[p.x.offset + row * p.x.row_stride + channel], channel);
}

@compute @workgroup_size(256)
fn conv2d(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let quad = t % QUADS;
    let pixel = wg.x * PIXELS + t / QUADS;
    let is_there = pixel < p.height * p.width;
    let y = pixel / p.width;
    let x = pixel % p.width;
    // The row of the weight that this thread brings, and which units of it.
    const UNITS: u32 = select(2u, 4u, TYPE == 2u);
    let own_row = wg.y * OUTPUTS + t % OUTPUTS;
    let own_unit = t / OUTPUTS;
    let row_codes = (own_row / LANES * p.units) * LANES + own_row % LANES;
    let columns = p.kernel * p.kernel * p.channels;
    let first_pixel = (t / 16u) * 4u;
    let first_output = t % 16u;
    var sums = array<vec4<f32>, 4>();
    for (var first = 0u; first < columns; first += 4u * QUADS) {
        let column = first + 4u * quad;
        let input = vec4<f32>(
            input_at(y, x, is_there, column),
            input_at(y, x, is_there, column + 1u),
            input_at(y, x, is_there, column + 2u),
            input_at(y, x, is_there, column + 3u),
        );
        var unit = vec4<u32>();
        let unit_at = first / (16u / UNITS) + own_unit;
        if (own_unit < UNITS && own_row < p.rows && unit_at < p.units) {
            unit = codes[row_codes + unit_at * LANES];
        }
        workgroupBarrier();
        inputs[(t / QUADS) * STRIDE + quad] = input;
        if (TYPE == 2u) {
            weights[(t % OUTPUTS) * STRIDE + own_unit] = bitcast<vec4<f32>>(unit);
        } else if (own_unit < UNITS) {
            let at = (t % OUTPUTS) * STRIDE + 2u * own_unit;
            if (TYPE == 0u) {
                weights[at] = vec4<f32>(unpack2x16float(unit.x), unpack2x16float(unit.y));
                weights[at + 1u] = vec4<f32>(unpack2x16float(unit.z), unpack2x16float(unit.w));
            } else {
                let left = bitcast<vec4<f32>>(unit << vec4<u32>(16u));
                let right = bitcast<vec4<f32>>(unit & vec4<u32>(0xffff0000u));
                weights[at] = vec4<f32>(left.x, right.x, left.y, right.y);
                weights[at + 1u] = vec4<f32>(left.z, right.z, left.w, right.w);
            }
        }
        workgroupBarrier();
        for (var q = 0u; q < QUADS; q++) {
            // Four outputs of a column each, sixteen apart.
            let a = weights[first_output * STRIDE + q];
            let b = weights[(first_output + 16u) * STRIDE + q];
            let c = weights[(first_output + 32u) * STRIDE + q];
            let d = weights[(first_output + 48u) * STRIDE + q];
            let w0 = vec4<f32>(a.x, b.x, c.x, d.x);
            let w1 = vec4<f32>(a.y, b.y, c.y, d.y);
            let w2 = vec4<f32>(a.z, b.z, c.z, d.z);
            let w3 = vec4<f32>(a.w, b.w, c.w, d.w);
            for (var i = 0u; i < 4u; i++) {
                let v = inputs[(first_pixel + i) * STRIDE + q];
                var sum = fma(vec4<f32>(v.x), w0, sums[i]);
                sum = fma(vec4<f32>(v.y), w1, sum);
                sum = fma(vec4<f32>(v.z), w2, sum);
                sums[i] = fma(vec4<f32>(v.w), w3, sum);
            }
        }
    }
    for (var i = 0u; i < 4u; i++) {
        let to = wg.x * PIXELS + first_pixel + i;
        for (var j = 0u; j < 4u; j++) {
            let row = wg.y * OUTPUTS + first_output + 16u * j;
            if (to < p.height * p.width && row < p.rows) {
                let output = p.first_row + row;
                var value = sums[i][j] + bias[output];
                if (p.has_residual != 0u) {
                    value += arena[place(p.residual, to, output)];
                }
                arena[p.out + to * p.out_stride + output] = value;
            }
        }
    }
}
