// Causal depthwise convolution and SiLU, with the window of raw inputs in the state slot: one channel.
#pragma once

#include "common.cuh"

// One channel of a sequence: what came before the step, then the step's rows.
struct Channel {
    const ConvParams& p;
    const Segment& segment;
    u32 channel;
    u32 channels;
    // The input of row 0 where the thread has it at hand; else it is read.
    bool given = false;
    float first_input = 0.0f;

    __device__ float* window() const { return p.windows + segment.slot * p.slot_stride + channel; }

    __device__ float input(u32 i) const {
        return given && i == 0 ? first_input : *at(p.x, segment.first_row + i, channel);
    }

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

    // Whether one row stands behind a window of three and nothing else.
    __device__ bool is_one_of_four() const {
        return p.kernel == 4 && segment.rows == 1 && segment.accepted == 0 && segment.speculative == 0;
    }

    // Then: the same as `convolve` and `move_window`. What is read for it may be on its way before the input is known.
    struct OneOfFour {
        float entries[3], weights[4];

        __device__ void load(const Channel& c) {
#pragma unroll
            for (u32 j = 0; j < 3; ++j) entries[j] = c.window()[u64(j) * c.channels];
#pragma unroll
            for (u32 j = 0; j < 4; ++j) weights[j] = c.p.weight[c.channel * 4 + j];
        }

        __device__ void finish(const Channel& c, float input) const {
            float sum = 0.0f;
#pragma unroll
            for (u32 j = 0; j < 3; ++j) sum = fmaf(weights[j], entries[j], sum);
            sum = fmaf(weights[3], input, sum);
            c.p.out[u64(c.segment.first_row) * c.p.out_stride + c.channel] = silu(sum);
#pragma unroll
            for (u32 j = 0; j < 3; ++j) c.window()[u64(j) * c.channels] = j < 2 ? entries[(j + 1) % 3] : input;
        }
    };

    // The segment's only row, whose input the thread has at hand.
    __device__ void only_row() const {
        convolve(0);
        if (segment.speculative) keep_guess(0);
        move_window();
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
