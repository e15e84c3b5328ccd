// How keys and values lie in pages, and the rounding that keeping them means: `KvFormat::round` of the ops crate.
#pragma once

#include "common.cuh"

// Values that share a scale in a quantised block.
constexpr u32 KV_BLOCK = 32;

// Scale and inverse of a block, where quantised.
struct KvScale {
    float scale;
    float minimum;
    float inverse;
};

// The lane's value of a block; lanes at and above `count` hold none. A block with a value that is not finite gets NaN.
template <u32 FORMAT>
__device__ __forceinline__ KvScale kv_scale(float v, u32 lane, u32 count) {
    const bool mine = lane < count;
    const bool finite = __all_sync(ALL_LANES, !mine || is_finite(v));
    KvScale s = {not_a_number(), not_a_number(), 0.0f};
    if (FORMAT == KV_Q8) {
        const float amax = warp_max(mine ? fabsf(v) : 0.0f);
        if (finite) s.scale = half_value(half_bits(amax / 127.0f));
    } else {
        const float most = warp_max(mine ? v : -infinity());
        const float least = -warp_max(mine ? -v : -infinity());
        if (finite) {
            s.minimum = half_value(half_bits(least));
            s.scale = half_value(half_bits((most - s.minimum) / 15.0f));
        }
    }
    s.inverse = s.scale > 0.0f ? 1.0f / s.scale : 0.0f;
    return s;
}

// A value as its code, between `least` and `most`; what is no number becomes 0, and its scale says it.
__device__ __forceinline__ i32 kv_code(float v, float least, float most) {
    const float r = rintf(v);
    return r >= least ? i32(fminf(r, most)) : (r < least ? i32(least) : 0);
}

// The pages of one head of one KV layer, keys or values, of `dim` values a token.
template <u32 FORMAT>
struct KvHead {
    u8* base;
    u32 dim;

    __device__ u32 blocks() const { return (dim + KV_BLOCK - 1) / KV_BLOCK; }

    // Bytes of one token: `KvFormat::head_bytes`.
    __device__ u32 token_bytes() const {
        switch (FORMAT) {
            case KV_F32: return 4 * dim;
            case KV_F16: return 2 * dim;
            case KV_Q8: return 34 * blocks();
            default: return 20 * blocks();
        }
    }

    // The first byte behind the codes: scales.
    __device__ u16* scales() const {
        return reinterpret_cast<u16*>(base + PAGE_ROWS * blocks() * (FORMAT == KV_Q8 ? 32 : 16));
    }

    // ---- keys: units of 16 bytes, the tokens of a unit side by side ----

    static constexpr u32 PER_UNIT = FORMAT == KV_F32 ? 4 : FORMAT == KV_F16 ? 8 : FORMAT == KV_Q8 ? 16 : 32;

    __device__ u32 units() const {
        if (FORMAT == KV_Q8) return 2 * blocks();
        return (dim + PER_UNIT - 1) / PER_UNIT;
    }

    // A unit of a token's key as it lies there, with scale and minimum.
    struct Unit {
        uint4 codes;
        u32 pair;
    };

    __device__ Unit key_unit(u32 unit, u32 token) const {
        Unit u = {*(reinterpret_cast<const uint4*>(base) + unit * PAGE_ROWS + token), 0};
        if (FORMAT == KV_Q8) u.pair = scales()[unit / 2 * PAGE_ROWS + token];
        if (FORMAT == KV_Q4) u.pair = reinterpret_cast<const u32*>(scales())[unit * PAGE_ROWS + token];
        return u;
    }

    // Values `PER_UNIT * unit..` of a token's key; behind `dim` anything finite in quantised formats.
    __device__ void key(u32 unit, u32 token, float (&values)[PER_UNIT]) const { decode(key_unit(unit, token), values); }

    static __device__ void decode(const Unit& unit, float (&values)[PER_UNIT]) {
        const u32 words[4] = {unit.codes.x, unit.codes.y, unit.codes.z, unit.codes.w};
        const float scale = half_value(u16(unit.pair)), minimum = half_value(u16(unit.pair >> 16));
#pragma unroll
        for (u32 i = 0; i < PER_UNIT; ++i) {
            const u32 word = words[i / (PER_UNIT / 4)];
            switch (FORMAT) {
                case KV_F32: values[i] = __uint_as_float(word); break;
                case KV_F16: values[i] = half_value(u16(word >> 16 * (i % 2))); break;
                case KV_Q8: values[i] = signed_byte(word, i % 4, scale); break;
                default: values[i] = nibble(word, i % 8, scale, minimum);
            }
        }
    }

    // A byte of a word times a scale of 16 bits. Conversions of integers are slow: the byte, without its sign, becomes the middle of
    // a float above 2^15; what is too much is a multiple of the scale, and both products are exact.
    static __device__ float signed_byte(u32 word, u32 i, float scale) {
        return fmaf(byte_above(word ^ 0x80808080u, i), scale, -(BYTES_ABOVE + 128.0f) * scale);
    }

    // Four bits times a scale, which is exact, plus a minimum.
    static __device__ float nibble(u32 word, u32 i, float scale, float minimum) {
        return fmaf(byte_above(word >> 4 * (i % 2) & 0x0f0f0f0fu, i / 2) - BYTES_ABOVE, scale, minimum);
    }

    // ---- values: token by token ----

    // Neighbours in one reading.
    template <u32 N>
    static __device__ void words(const u32* from, u32 (&to)[N]) {
        if (N == 4) {
            const uint4 v = *reinterpret_cast<const uint4*>(from);
            to[0] = v.x, to[1 % N] = v.y, to[2 % N] = v.z, to[3 % N] = v.w;
        } else if (N == 2) {
            const uint2 v = *reinterpret_cast<const uint2*>(from);
            to[0] = v.x, to[1 % N] = v.y;
        } else {
#pragma unroll
            for (u32 i = 0; i < N; ++i) to[i] = from[i];
        }
    }

    // Values `first..first + N` of a token; N divides `first`.
    template <u32 N>
    __device__ void value(u32 token, u32 first, float (&values)[N]) const {
        const u32 place = token * blocks() + first / KV_BLOCK;
        const u32 at = FORMAT == KV_F32 ? 4 * (token * dim + first)
            : FORMAT == KV_F16          ? 2 * (token * dim + first)
            : FORMAT == KV_Q8           ? token * blocks() * 32 + first
                                        : (token * blocks() * 32 + first) / 2;
        value_at<N>(base + at, FORMAT == KV_Q4 ? scales() + 2 * place : scales() + place, values);
    }

    // N values of a token that lie at `codes`, and the scale of their block.
    template <u32 N>
    static __device__ void value_at(const u8* codes, const u16* scale_at, float (&values)[N]) {
        if (FORMAT == KV_F32) {
            const float2* from = reinterpret_cast<const float2*>(codes);
#pragma unroll
            for (u32 i = 0; i < N / 2; ++i) {
                const float2 pair = from[i];
                values[2 * i] = pair.x;
                values[2 * i + 1] = pair.y;
            }
        } else if (FORMAT == KV_F16) {
            u32 pairs[N / 2];
            words<N / 2>(reinterpret_cast<const u32*>(codes), pairs);
#pragma unroll
            for (u32 i = 0; i < N / 2; ++i) {
                const u32 pair = pairs[i];
                values[2 * i] = half_value(u16(pair));
                values[2 * i + 1] = half_value(u16(pair >> 16));
            }
        } else if (FORMAT == KV_Q8) {
            const float scale = half_value(*scale_at);
            u32 fours[N >= 4 ? N / 4 : 1];
            if (N >= 4) words<N >= 4 ? N / 4 : 1>(reinterpret_cast<const u32*>(codes), fours);
            else fours[0] = *reinterpret_cast<const u16*>(codes);
#pragma unroll
            for (u32 i = 0; i < N; ++i) values[i] = signed_byte(fours[i / 4], i % 4, scale);
        } else {
            const u32 pair = *reinterpret_cast<const u32*>(scale_at);
            const float scale = half_value(u16(pair)), minimum = half_value(u16(pair >> 16));
#pragma unroll
            for (u32 i = 0; i < N; ++i) values[i] = nibble(codes[i / 2], i % 2, scale, minimum);
        }
    }

    // ---- writing: one warp a head ----

    // Stores values `32 block..` of a token, one a lane, as a key or as a value.
    __device__ void store(bool is_key, u32 token, u32 block, u32 lane, float v) const {
        const u32 d = block * KV_BLOCK + lane, count = min(dim - block * KV_BLOCK, KV_BLOCK);
        // Bytes of one value; of two with four bits.
        constexpr u32 SIZE = FORMAT == KV_F32 ? 4 : FORMAT == KV_F16 ? 2 : 1;
        const u32 row = FORMAT == KV_Q8 ? 32 * blocks() : FORMAT == KV_Q4 ? 16 * blocks() : SIZE * dim;
        const u32 byte = FORMAT == KV_Q4 ? d / 2 : d * SIZE;
        u8* to = base + (is_key ? (byte / 16 * PAGE_ROWS + token) * 16 + byte % 16 : token * row + byte);
        if (FORMAT == KV_F32) {
            if (lane < count) *reinterpret_cast<float*>(to) = v;
            return;
        }
        if (FORMAT == KV_F16) {
            if (lane < count) *reinterpret_cast<u16*>(to) = half_bits(v);
            return;
        }
        const KvScale s = kv_scale<FORMAT>(v, lane, count);
        const u32 place = is_key ? block * PAGE_ROWS + token : token * blocks() + block;
        if (FORMAT == KV_Q8) {
            *to = lane < count ? u8(kv_code(v * s.inverse, -127.0f, 127.0f)) : 0;
            if (lane == 0) scales()[place] = half_bits(s.scale);
        } else {
            const u32 code = lane < count ? u32(kv_code((v - s.minimum) * s.inverse, 0.0f, 15.0f)) : 0;
            const u32 other = __shfl_xor_sync(ALL_LANES, code, 1);
            if (lane % 2 == 0) *to = u8(code | other << 4);
            if (lane == 0) {
                scales()[2 * place] = half_bits(s.scale);
                scales()[2 * place + 1] = half_bits(s.minimum);
            }
        }
    }
};

// Bytes of one head's keys, or values, of a page.
template <u32 FORMAT>
__device__ __forceinline__ u32 head_bytes(const KvHead<FORMAT>& head) { return PAGE_ROWS * head.token_bytes(); }

// Head `head` of the page that holds position `position` of a segment: keys, or values.
template <u32 FORMAT>
__device__ __forceinline__ KvHead<FORMAT> kv_head(const AttentionParams& p, const Segment& s, u32 page, bool is_key, u32 head) {
    const u8* at = p.pages + u64(p.step.pages[s.first_page + page]) * p.page_stride;
    KvHead<FORMAT> kv{const_cast<u8*>(at), p.k.dim};
    kv.base += ((is_key ? 0 : p.k.heads) + head) * (PAGE_ROWS * kv.token_bytes());
    return kv;
}
