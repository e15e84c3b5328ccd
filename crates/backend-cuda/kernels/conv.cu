// Causal depthwise convolution and SiLU: see `conv.cuh`.
#include "conv.cuh"

// A thread a channel. Only the first tile of a segment looks at the window and at accepted guesses, each of its threads
// at its own channel: so the thread that has read them may write them.
extern "C" __global__ void __launch_bounds__(128) conv_silu(const __grid_constant__ ConvParams p) {
    let_next_start();
    wait_for_previous();
    const u32 channel = blockIdx.x * blockDim.x + threadIdx.x, channels = p.x.heads * p.x.dim;
    if (channel >= channels) return;
    for (u32 t = blockIdx.y; t < p.step.header->tiles; t += gridDim.y) {
        const Tile tile = p.step.tiles[t];
        const Channel c{p, p.step.segments[tile.segment], channel, channels};
        if (c.is_one_of_four()) {
            Channel::OneOfFour one;
            one.load(c);
            one.finish(c, c.input(0));
            continue;
        }
        const u32 end = min(tile.first + TILE_ROWS, c.segment.rows);
        if (p.kernel == 4 && end - tile.first == TILE_ROWS && c.segment.accepted == 0 && c.segment.speculative == 0) {
            c.tile_of_four(tile.first);
            if (tile.first == 0) c.move_window();
            continue;
        }
        for (u32 i = tile.first; i < end; ++i) {
            c.convolve(i);
            if (c.segment.speculative) c.keep_guess(i);
        }
        if (tile.first == 0) c.move_window();
    }
}
