// A result of a product of one row where it goes, and through the causal convolution behind it, as `linear_conv` does it. Where the
// sequence's window lies is read before the product.

@group(0) @binding(6) var<storage, read> taps: array<f32>;
@group(0) @binding(7) var<storage, read_write> windows: array<f32>;

fn look_ahead(row: u32) -> u32 {
    let segment = step[STEP_SEGMENT] + step[step[STEP_ROW_SEGMENT]] * SEGMENT_WORDS;
    return step[segment + SEGMENT_SLOT] * p.slot_stride;
}

fn store_with(y: f32, row: u32, n: u32, window: u32) {
    arena[p.out + row] = y;
    // Rows in front of the first channel wrap around.
    let channel = p.first_row + row - p.conv_row;
    if (channel < p.channels) {
        arena[p.conv_out + channel] = convolved(window, p.channels, channel, y);
    }
}
