// A result of a product where it goes, and through the causal convolution behind it: what `conv` does for sequences with one row
// each, with the same bits. A row of the weight is a channel, so whoever has the result may move the channel's window.

@group(0) @binding(7) var<storage, read> taps: array<f32>;
@group(0) @binding(8) var<storage, read_write> windows: array<f32>;

fn store(y: f32, m: u32, row: u32) {
    arena[p.out + m * p.out_stride + row] = y;
    // Rows in front of the first channel wrap around.
    let channel = p.first_row + row - p.conv_row;
    if (channel >= p.channels) {
        return;
    }
    let segment = step[STEP_SEGMENT] + step[step[STEP_ROW_SEGMENT] + m] * SEGMENT_WORDS;
    arena[p.conv_out + m * p.conv_stride + channel] =
        convolved(step[segment + SEGMENT_SLOT] * p.slot_stride, p.channels, channel, y);
}
