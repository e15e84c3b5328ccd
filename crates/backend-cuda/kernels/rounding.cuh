// The input of a product, a group of 128 values at a time: norm or gate, rounding to integers, sums of 32. `prepare` does it for
// whole rows, kernels in front of a product for what they have at hand.
#pragma once

#include "common.cuh"

// A group of 128 values, four neighbours a lane. What all values of the row are still to be multiplied with, `inverse`, is taken
// into the scale: so products that round their results, group by group, need not know the row.
__device__ __forceinline__ void round_group(
    const PrepareParams& p, u64 row, u32 group, u32 lane, const float (&x)[4], float inverse_rms
) {
    const bool nine = p.wanted & PREPARE_INT9;
    const float limit = nine ? 255.0f : 127.0f;
    float amax = 0.0f;
    bool finite = true;
    for (u32 j = 0; j < 4; ++j) {
        amax = fmaxf(amax, fabsf(x[j]));
        finite = finite && is_finite(x[j]);
    }
    amax = warp_max(amax);
    const float scale = __all_sync(ALL_LANES, finite) ? amax / limit : not_a_number();
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    u32 word = 0, low = 0;
    i32 sum = 0;
    for (u32 j = 0; j < 4; ++j) {
        const i32 v = rounded(x[j], inverse, limit);
        sum += v;
        word |= u32(u8(nine ? v >> 1 : v)) << 8 * j;
        if (!nine) continue;
        // Eight lanes hold 32 values, value e = 4 lane + j: their lowest bits are one byte of this ballot.
        const u32 odd = __ballot_sync(ALL_LANES, v & 1);
        low |= (odd >> (lane & 24) & 0xff) << 8 * j;
    }
    for (u32 offset = 1; offset < 8; offset *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    const u64 padded = p.out.padded;
    reinterpret_cast<u32*>(p.out.codes + row * padded + group * GROUP)[lane] = word;
    if (lane % 8 == 0) {
        const u64 piece = row * (padded / 32) + group * 4 + lane / 8;
        p.out.sums[piece] = sum;
        if (nine) p.out.low[piece] = low;
    }
    if (p.wanted & PREPARE_PLANES) {
        // Eight lanes hold a word of each digit: a lane's bytes become rows of bits, digit by digit.
        u32 plane = word;
#pragma unroll
        for (u32 step = 4; step > 0; step /= 2) {
            const u32 lower = step == 4 ? 0x0f0f0f0fu : step == 2 ? 0x33333333u : 0x55555555u;
            const u32 other = __shfl_xor_sync(ALL_LANES, plane, step);
            plane = lane & step ? (plane & ~lower) | (other & ~lower) >> step : (plane & lower) | (other & lower) << step;
        }
        p.out.planes[row * (padded / 4) + group * WARP + 4 * (lane % 8) + lane / 8] = plane;
    }
    if (p.wanted & PREPARE_TILES) {
        for (u32 offset = 8; offset < WARP; offset *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
        const u32 in_tile = row % TENS_ROWS, unit = lane % 8 ^ in_tile % 8;
        const u64 record = row / TENS_ROWS * (padded / GROUP) + group;
        reinterpret_cast<u32*>(p.out.tiles)[((record * TENS_ROWS + in_tile) * 8 + unit) * 4 + lane / 8] = word;
        if (lane == 0) {
            p.out.beside[record].steps[in_tile] = scale * inverse_rms;
            p.out.beside[record].starts[in_tile] = 0x4b400000 + 64 * sum;
        }
    }
    if (lane == 0) p.out.scales[row * (padded / GROUP) + group] = scale * inverse_rms;
}

__device__ __forceinline__ void keep_floats(const PrepareParams& p, u64 row, u32 group, u32 lane, const float (&x)[4]) {
    const u64 padded = p.out.padded;
    reinterpret_cast<float4*>(p.out.floats + row * padded + group * GROUP)[lane] = make_float4(x[0], x[1], x[2], x[3]);
    float sum = (x[0] + x[1]) + (x[2] + x[3]);
    for (u32 offset = 1; offset < 8; offset *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    if (lane % 8 == 0) p.out.float_sums[row * (padded / 32) + group * 4 + lane / 8] = sum;
}

// What a lane has of a group: four neighbouring values, and what they are multiplied by.
struct Values {
    float x[4];
    float gain[4];
    // Where there is one.
    float gate[4];

    // Gains are there before the kernel in front has ended.
    __device__ void load_gain(const PrepareParams& p, u32 group, u32 lane) {
        for (u32 j = 0; j < 4; ++j) {
            const u32 c = group * GROUP + 4 * lane + j;
            gain[j] = 1.0f;
            if (p.gain != nullptr && c < p.out.cols) gain[j] = p.gain[p.input == INPUT_GATED_NORM ? c % GROUP : c];
        }
    }

    __device__ void load(const PrepareParams& p, u32 r, u32 group, u32 lane) {
        for (u32 j = 0; j < 4; ++j) {
            const u32 c = group * GROUP + 4 * lane + j;
            x[j] = c < p.out.cols ? *at(p.x, r, c) : 0.0f;
        }
    }

    __device__ void load_gate(const PrepareParams& p, u32 r, u32 group, u32 lane) {
        if (p.input != INPUT_GATED_NORM && p.input != INPUT_SIGMOID) return;
        for (u32 j = 0; j < 4; ++j) {
            const u32 c = group * GROUP + 4 * lane + j;
            gate[j] = c < p.out.cols ? *at(p.gate, r, c) : 0.0f;
        }
    }

    // `inverse`: of the row, or of the group.
    __device__ void apply(const PrepareParams& p, u32 group, u32 lane, float inverse) {
        const bool gated = p.input == INPUT_GATED_NORM;
        for (u32 j = 0; j < 4; ++j) {
            const u32 c = group * GROUP + 4 * lane + j;
            if (c >= p.out.cols) continue;
            if (p.input == INPUT_NORM || gated) x[j] = x[j] * inverse * gain[j];
            if (!gated && p.input != INPUT_SIGMOID) continue;
            // silu or sigmoid.
            x[j] *= (gated ? gate[j] : 1.0f) / (1.0f + expf(-gate[j]));
        }
    }

    // The group as the product's input: floats, then integers, by the same short code.
    __device__ void finish(const PrepareParams& p, u32 r, u32 group, u32 lane, float inverse) const {
        const bool normed = p.input == INPUT_NORM;
#pragma unroll 1
        for (u32 turn = 0; turn < 2; ++turn) {
            if ((p.wanted & (turn == 0 ? PREPARE_FLOATS : PREPARE_INT8 | PREPARE_INT9)) == 0) continue;
            Values v = *this;
            v.apply(p, group, lane, turn == 1 && normed ? 1.0f : inverse);
            if (turn == 0) keep_floats(p, r, group, lane, v.x);
            else round_group(p, r, group, lane, v.x, normed ? inverse : 1.0f);
        }
    }
};
