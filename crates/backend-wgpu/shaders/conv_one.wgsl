// One value of a channel through a convolution of four taps and SiLU, and into the window: the commonest step. Everything is read
// before anything is written, so that all reads are on their way together.
fn convolved(window: u32, channels: u32, channel: u32, x: f32) -> f32 {
    let at = window + channel;
    let a = windows[at];
    let b = windows[at + channels];
    let c = windows[at + 2u * channels];
    let tap = channel * 4u;
    var sum = fma(taps[tap], a, 0.0);
    sum = fma(taps[tap + 1u], b, sum);
    sum = fma(taps[tap + 2u], c, sum);
    sum = fma(taps[tap + 3u], x, sum);
    windows[at] = b;
    windows[at + channels] = c;
    windows[at + 2u * channels] = x;
    return silu(sum);
}
