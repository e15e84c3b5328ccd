// The input of a product of one row, made of the values themselves: norm and rounding as `prepare` does them, with the same
// bits. Each workgroup does it for itself, which costs it less than a dispatch of its own would cost the step.

// Quads of columns of a thread.
const QUADS: u32 = (COLS / 4u + THREADS - 1u) / THREADS;

var<workgroup> tops: array<vec2<f32>, 32>;

// What chains l, l + 32, ... have summed up, in the order of `prepare`'s tree.
fn chain(lane: u32, k: u32) -> vec2<f32> {
    return vec2<f32>(partial[lane + 32u * k], partial[THREADS + lane + 32u * k]);
}

fn of_256(lane: u32, k: u32) -> vec2<f32> {
    if (THREADS == 512u) {
        return chain(lane, k) + chain(lane, k + 8u);
    }
    return chain(lane, k);
}

fn of_128(lane: u32, k: u32) -> vec2<f32> {
    return of_256(lane, k) + of_256(lane, k + 4u);
}

fn of_64(lane: u32, k: u32) -> vec2<f32> {
    return of_128(lane, k) + of_128(lane, k + 2u);
}

fn of_16(l: u32) -> vec2<f32> {
    return tops[l] + tops[l + 16u];
}

fn of_8(l: u32) -> vec2<f32> {
    return of_16(l) + of_16(l + 8u);
}

fn of_4(l: u32) -> vec2<f32> {
    return of_8(l) + of_8(l + 4u);
}

fn of_2(l: u32) -> vec2<f32> {
    return of_4(l) + of_4(l + 2u);
}

// The row's values that a thread has, and their gains, on their way.
struct Brought {
    x: array<vec4<f32>, QUADS>,
    gains: array<vec4<f32>, QUADS>,
}

fn ask(t: u32) -> Brought {
    var brought: Brought;
    for (var i = 0u; i < QUADS; i++) {
        // Behind the end the last ones are read again.
        let c = min(4u * (t + i * THREADS), COLS - 4u);
        let at = p.x.offset + c;
        brought.x[i] = vec4<f32>(arena[at], arena[at + 1u], arena[at + 2u], arena[at + 3u]);
    }
    for (var i = 0u; i < QUADS; i++) {
        let c = min(4u * (t + i * THREADS), COLS - 4u);
        brought.gains[i] = vec4<f32>(gain[c], gain[c + 1u], gain[c + 2u], gain[c + 3u]);
    }
    return brought;
}

fn bring(brought: Brought, t: u32) {
    let lane = t % LANES;
    var x = array<vec4<f32>, QUADS>();
    var even = vec2<f32>();
    var odd = vec2<f32>();
    for (var i = 0u; i < QUADS; i++) {
        if (4u * (t + i * THREADS) < COLS) {
            if (THREADS == 512u || i % 2u == 0u) {
                even = four_squared(even, brought.x[i]);
            } else {
                odd = four_squared(odd, brought.x[i]);
            }
        }
    }
    let own = even + odd;
    partial[t] = own.x;
    partial[THREADS + t] = own.y;
    workgroupBarrier();
    if (t < LANES) {
        tops[t] = of_64(lane, 0u) + of_64(lane, 1u);
    }
    workgroupBarrier();
    let inverse = inverse_of(of_2(0u) + of_2(1u), f32(COLS), p.eps);
    for (var i = 0u; i < QUADS; i++) {
        let q = t + i * THREADS;
        if (4u * q < COLS) {
            x[i] = brought.x[i] * inverse * brought.gains[i];
            inputs[q / 4u][q % 4u] = size_of(x[i]);
        }
    }
    workgroupBarrier();
    // A thread a group.
    if (t < RECORDS) {
        var most = inputs[t * 8u];
        for (var v = 1u; v < 8u; v++) {
            most = max(most, inputs[t * 8u + v]);
        }
        let rule = rounding_of(max(max(most.x, most.y), max(most.z, most.w)), p.limit);
        factors[t] = vec2<f32>(rule.scale, rule.inverse);
    }
    workgroupBarrier();
    for (var i = 0u; i < QUADS; i++) {
        let q = t + i * THREADS;
        if (4u * q < COLS) {
            let rule = factors[q / LANES];
            inputs[q / 4u][q % 4u] = packed_bytes(codes_by(x[i], Rounding(rule.x, rule.y), p.limit));
        }
    }
    workgroupBarrier();
    if (t < RECORDS) {
        var sum = 0;
        for (var v = 0u; v < 8u; v++) {
            let four = inputs[t * 8u + v];
            sum += dot4I8Packed(four.x, 0x01010101u) + dot4I8Packed(four.y, 0x01010101u);
            sum += dot4I8Packed(four.z, 0x01010101u) + dot4I8Packed(four.w, 0x01010101u);
        }
        factors[t].y = f32(sum);
    }
    workgroupBarrier();
}
