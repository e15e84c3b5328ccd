// Causal depthwise convolution and SiLU, with the window of raw inputs in the state slot. A thread a channel; the second
// dimension counts tiles of 16 rows of one sequence. Only the first tile of a sequence looks at the window and at accepted
// guesses, each of its threads at its own channel: so the thread that has read them may write them.

struct Params {
    x: View,
    channels: u32,
    kernel: u32,
    out: u32,
    out_stride: u32,
    // Floats between slots and between areas.
    slot_stride: u32,
    area_stride: u32,
    reserved_a: u32,
    reserved_b: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> taps: array<f32>;
@group(0) @binding(3) var<storage, read_write> windows: array<f32>;
@group(0) @binding(4) var<storage, read_write> guesses: array<f32>;
@group(0) @binding(5) var<storage, read_write> arena: array<f32>;

// Where words of a segment begin.
fn input(segment: u32, i: u32, channel: u32) -> f32 {
    return arena[place(p.x, step[segment + SEGMENT_FIRST_ROW] + i, channel)];
}

// What came before the step, then accepted guesses, then the rows.
fn entry(segment: u32, index: u32, channel: u32) -> f32 {
    let kept = p.kernel - 1u;
    if (index < kept) {
        return windows[step[segment + SEGMENT_SLOT] * p.slot_stride + index * p.channels + channel];
    }
    let i = index - kept;
    let accepted = step[segment + SEGMENT_ACCEPTED];
    if (i < accepted) {
        return guesses[step[segment + SEGMENT_READ] * p.area_stride + i * p.channels + channel];
    }
    return input(segment, i - accepted, channel);
}

@compute @workgroup_size(128)
fn conv(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let channel = wg.x * 128u + t;
    if (channel >= p.channels) {
        return;
    }
    let tile = step[STEP_TILE] + 2u * wg.y;
    let segment = step[STEP_SEGMENT] + step[tile] * SEGMENT_WORDS;
    let first = step[tile + 1u];
    let rows = step[segment + SEGMENT_ROWS];
    let first_row = step[segment + SEGMENT_FIRST_ROW];
    let accepted = step[segment + SEGMENT_ACCEPTED];
    let speculative = step[segment + SEGMENT_SPECULATIVE] != 0u;
    if (p.kernel == 4u && rows == 1u && accepted == 0u && !speculative) {
        let window = step[segment + SEGMENT_SLOT] * p.slot_stride;
        let x = arena[place(p.x, first_row, channel)];
        arena[p.out + first_row * p.out_stride + channel] = convolved(window, p.channels, channel, x);
        return;
    }
    for (var i = first; i < min(first + TILE_ROWS, rows); i++) {
        var sum = 0.0;
        for (var j = 0u; j < p.kernel; j++) {
            sum = fma(taps[channel * p.kernel + j], entry(segment, accepted + i + j, channel), sum);
        }
        arena[p.out + (first_row + i) * p.out_stride + channel] = silu(sum);
        if (speculative) {
            guesses[step[segment + SEGMENT_WRITE] * p.area_stride + i * p.channels + channel] = input(segment, i, channel);
        }
    }
    if (first != 0u) {
        return;
    }
    // The window after this step: the last entries, shifted down in ascending order.
    let moved = accepted + select(rows, 0u, speculative);
    let window = step[segment + SEGMENT_SLOT] * p.slot_stride;
    for (var i = 0u; moved > 0u && i + 1u < p.kernel; i++) {
        windows[window + i * p.channels + channel] = entry(segment, moved + i, channel);
    }
}
