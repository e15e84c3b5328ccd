// Causal depthwise convolution and SiLU, with the window of raw inputs in the state slot.
#include "common.cuh"

namespace {

// One channel of a sequence: what came before the step, then the step's rows.
struct Channel {
    const ConvParams& p;
    const Segment& segment;
    u32 channel;
    u32 channels;

    __device__ float* window() const { return p.windows + segment.slot * p.slot_stride + channel; }

    __device__ float input(u32 i) const { return *at(p.x, segment.first_row + i, channel); }

    // Entry of the window, then of the accepted guesses, then of the rows.
    __device__ float entry(u32 i) const {
        const u32 kept = p.kernel - 1;
        if (i < kept) return window()[u64(i) * channels];
        i -= kept;
        if (i < segment.accepted) return p.pending[segment.pending_read * p.pending_stride + u64(i) * channels + channel];
        return input(i - segment.accepted);
    }

    __device__ void convolve(u32 i) const {
        const u32 first = segment.accepted + i;
        float sum = 0.0f;
        for (u32 j = 0; j < p.kernel; ++j) sum = fmaf(p.weight[channel * p.kernel + j], entry(first + j), sum);
        p.out[u64(segment.first_row + i) * p.out_stride + channel] = silu(sum);
    }

    // One row behind a window of three: the same as `convolve` and `move_window`, with all reads on their way together.
    __device__ void one_of_four() const {
        float entries[4], weights[4];
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            entries[j] = j < 3 ? window()[u64(j) * channels] : input(0);
            weights[j] = p.weight[channel * 4 + j];
        }
        float sum = 0.0f;
#pragma unroll
        for (u32 j = 0; j < 4; ++j) sum = fmaf(weights[j], entries[j], sum);
        p.out[u64(segment.first_row) * p.out_stride + channel] = silu(sum);
#pragma unroll
        for (u32 j = 0; j < 3; ++j) window()[u64(j) * channels] = entries[j + 1];
    }

    // A whole tile with a window of three and no guesses, the same as `convolve`: each input is read once, all on their way together.
    __device__ void tile_of_four(u32 first) const {
        const float* x = at(p.x, segment.first_row + first, channel);
        float weights[4], entries[TILE_ROWS + 3];
#pragma unroll
        for (u32 j = 0; j < 4; ++j) weights[j] = p.weight[channel * 4 + j];
#pragma unroll
        for (u32 j = 0; j < 3; ++j) {
            entries[j] = first == 0 ? window()[u64(j) * channels] : *(x - u64(3 - j) * p.x.row_stride);
        }
#pragma unroll
        for (u32 j = 0; j < TILE_ROWS; ++j) entries[j + 3] = x[u64(j) * p.x.row_stride];
        float* out = p.out + u64(segment.first_row + first) * p.out_stride + channel;
#pragma unroll
        for (u32 i = 0; i < TILE_ROWS; ++i) {
            float sum = 0.0f;
#pragma unroll
            for (u32 j = 0; j < 4; ++j) sum = fmaf(weights[j], entries[i + j], sum);
            out[u64(i) * p.out_stride] = silu(sum);
        }
    }

    __device__ void keep_guess(u32 i) const {
        p.pending[segment.pending_write * p.pending_stride + u64(i) * channels + channel] = input(i);
    }

    // The window after this step: the last entries, shifted down in ascending order.
    __device__ void move_window() const {
        const u32 moved = segment.accepted + (segment.speculative ? 0 : segment.rows);
        if (moved == 0) return;
        for (u32 i = 0; i + 1 < p.kernel; ++i) window()[u64(i) * channels] = entry(moved + i);
    }
};

}  // namespace

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
        if (p.kernel == 4 && c.segment.rows == 1 && c.segment.accepted == 0 && c.segment.speculative == 0) {
            c.one_of_four();
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
