// Small pieces that the kernels share. Functions whose accuracy a device may choose (exp, log, division, square root) are
// made here of additions and multiplications, so that every device gives the same accuracy, and where it fuses as it is
// told to, the same bits. A multiply-add is fused where the text says `fma` and nowhere else: compilers may fuse a product with
// the sum that it goes into, and do so in one kernel and not in another, so no kernel adds products (`tests/contraction.rs`).

// Columns of a temporary: `heads` blocks of `dim` values whose starts lie `head_stride` apart; `offset` counts floats.
struct View {
    offset: u32,
    row_stride: u32,
    heads: u32,
    dim: u32,
    head_stride: u32,
    reserved_a: u32,
    reserved_b: u32,
    reserved_c: u32,
}

const GROUP_COLUMNS: u32 = 128u;
const PAGE_ROWS: u32 = 64u;
const TILE_ROWS: u32 = 16u;
const NONE: u32 = 0xffffffffu;
const INFINITE: u32 = 0x7f800000u;
const LARGEST: f32 = 3.40282347e38;

// Words of the step's inputs: counts, then where each array begins.
const STEP_ROWS: u32 = 0u;
const STEP_LOGITS: u32 = 1u;
const STEP_SEGMENTS: u32 = 2u;
const STEP_TILES: u32 = 3u;
const STEP_TOKENS: u32 = 4u;
const STEP_CARRIED: u32 = 5u;
const STEP_ROW_SEGMENT: u32 = 6u;
const STEP_LOGIT_ROWS: u32 = 7u;
const STEP_SEGMENT: u32 = 8u;
const STEP_TILE: u32 = 9u;
const STEP_PAGES: u32 = 10u;
const STEP_DRAWS: u32 = 11u;
const STEP_ADJUST: u32 = 12u;
const STEP_MASKS: u32 = 13u;

// Words of one segment.
const SEGMENT_WORDS: u32 = 9u;
const SEGMENT_FIRST_ROW: u32 = 0u;
const SEGMENT_ROWS: u32 = 1u;
const SEGMENT_PAST: u32 = 2u;
const SEGMENT_FIRST_PAGE: u32 = 3u;
const SEGMENT_SLOT: u32 = 4u;
const SEGMENT_ACCEPTED: u32 = 5u;
const SEGMENT_SPECULATIVE: u32 = 6u;
const SEGMENT_READ: u32 = 7u;
const SEGMENT_WRITE: u32 = 8u;

// Float of column `c` of a view in row `r`.
fn place(v: View, r: u32, c: u32) -> u32 {
    let row = v.offset + r * v.row_stride;
    if (v.heads == 1u) {
        return row + c;
    }
    let head = c / v.dim;
    return row + head * v.head_stride + (c - head * v.dim);
}

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & INFINITE) != INFINITE;
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > INFINITE;
}

// A variable, because a constant of these bits is refused when the shader is read.
fn not_a_number() -> f32 {
    var bits = 0x7fc00000u;
    return bitcast<f32>(bits);
}

// The float nearest a / b, whatever a device's own division lacks, for results that are normal numbers. A correction may enter a
// range with other last places, where a second one looks again.
fn quotient(a: f32, b: f32) -> f32 {
    let first = a / b;
    let q = nearest(first, a, b);
    if (bitcast<u32>(q) == bitcast<u32>(first)) {
        return q;
    }
    return nearest(q, a, b);
}

// `q`, up to three last places off a / b, moved to the nearest float. What a - q b is, counted in last places of its factors,
// fits 32 bits, so products that wrap around give it exactly; a half never occurs.
fn nearest(q: f32, a: f32, b: f32) -> f32 {
    let bits = vec3<u32>(bitcast<u32>(a), bitcast<u32>(q), bitcast<u32>(b));
    let exponents = (bits >> vec3<u32>(23u)) & vec3<u32>(0xffu);
    let digits = (bits & vec3<u32>(0x7fffffu)) | vec3<u32>(0x800000u);
    let shift = i32(exponents.x) - i32(exponents.y) - i32(exponents.z) + 150;
    let is_normal = all(exponents > vec3<u32>(0u)) && all(exponents < vec3<u32>(0xffu));
    if (!is_normal || shift < 0 || shift > 31) {
        return bitcast<f32>(bits.y);
    }
    let twice = 2 * bitcast<i32>((digits.x << u32(shift)) - digits.y * digits.z);
    let halves = vec3<i32>(1, 3, 5) * i32(digits.z);
    let up = select(vec3<i32>(0), vec3<i32>(1), vec3<i32>(twice) > halves);
    let down = select(vec3<i32>(0), vec3<i32>(1), vec3<i32>(twice) < -halves);
    let moved = up - down;
    return bitcast<f32>(bits.y + bitcast<u32>(moved.x + moved.y + moved.z));
}

// 2^k for k from -126 to 127.
fn power_of_two(k: i32) -> f32 {
    return bitcast<f32>(u32(k + 127) << 23u);
}

// e^x: x = k ln 2 + r, and a polynomial of r. Above 88.7 the largest power, below -104 zero.
fn exponential(x: f32) -> f32 {
    if (is_nan(x)) {
        return not_a_number();
    }
    let bounded = clamp(x, -104.0, 88.7);
    let k = round(bounded * 1.44269504);
    var r = fma(k, -0.693359375, bounded);
    r = fma(k, 2.12194440e-4, r);
    var y = 1.98412698e-4;
    y = fma(y, r, 1.38888889e-3);
    y = fma(y, r, 8.33333333e-3);
    y = fma(y, r, 4.16666667e-2);
    y = fma(y, r, 1.66666667e-1);
    y = fma(y, r, 0.5);
    y = fma(y, r, 1.0);
    y = fma(y, r, 1.0);
    // In two steps, for results below the smallest normal number. None is larger than the bound, without which it were a product.
    let half = i32(k) >> 1u;
    return min(y * power_of_two(half) * power_of_two(i32(k) - half), LARGEST);
}

// ln x for finite x of 2^-126 or more: x = 2^k m with m around 1, and the series of artanh.
fn logarithm(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    // So that m lies between sqrt(1/2) and sqrt(2).
    let k = i32(bits - 0x3f3504f3u) >> 23u;
    let m = bitcast<f32>(bits - (u32(k) << 23u));
    let s = (m - 1.0) / (m + 1.0);
    let t = s * s;
    var y = 0.0909090909;
    y = fma(y, t, 0.111111111);
    y = fma(y, t, 0.142857143);
    y = fma(y, t, 0.2);
    y = fma(y, t, 0.333333333);
    y = y * t;
    y = fma(y, 2.0 * s, 2.0 * s);
    y = fma(f32(k), -2.12194440e-4, y);
    return fma(f32(k), 0.693359375, y);
}

// 1 / (1 + e^-x), without a number that leaves the range.
fn sigmoid(x: f32) -> f32 {
    let e = exponential(-abs(x));
    return select(1.0, e, x < 0.0) / (1.0 + e);
}

fn silu(x: f32) -> f32 {
    return x * sigmoid(x);
}

// Logarithm of the decay that the delta rule's gate `x` means: rate * ln(1 + e^x), as in the reference implementation. A number
// that is none stays none.
fn log_decay(x: f32, rate: f32) -> f32 {
    var softplus = x;
    if (x <= 20.0) {
        softplus = logarithm(1.0 + exponential(x));
    }
    return rate * softplus;
}

// 1 / sqrt(x), with one step of Newton behind the device's own.
fn inverse_root(x: f32) -> f32 {
    let y = inverseSqrt(x);
    let rest = fma(-x * y, y, 1.0);
    return fma(0.5 * y, rest, y);
}

// Squares of numbers above 2^63 leave the range: their sum is then taken of values scaled down by this.
const DOWN: f32 = 8.27180613e-25;

// `1 / sqrt(sum / count + eps)` of the sums of squares of values, and of values times DOWN.
fn inverse_of(sums: vec2<f32>, count: f32, eps: f32) -> f32 {
    let each = 1.0 / count;
    if (is_finite(sums.x)) {
        return inverse_root(fma(sums.x, each, eps));
    }
    return DOWN * inverse_root(fma(sums.y, each, eps * DOWN * DOWN));
}

// Adds a value's square to both sums.
fn squared(sums: vec2<f32>, x: f32) -> vec2<f32> {
    let small = x * DOWN;
    return fma(vec2<f32>(x, small), vec2<f32>(x, small), sums);
}

fn four_squared(sums: vec2<f32>, x: vec4<f32>) -> vec2<f32> {
    return squared(squared(squared(squared(sums, x.x), x.y), x.z), x.w);
}

// Half `which` of a word of two f16 values, or of two bf16 values.
fn half_of(word: u32, which: u32) -> f32 {
    return unpack2x16float(word >> (16u * which)).x;
}

fn bf16_of(word: u32, which: u32) -> f32 {
    return bitcast<f32>((word >> (16u * which)) << 16u);
}
