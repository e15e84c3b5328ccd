// Rows of a table: out[r] = table[token[r]]; and, where a norm and a product follow, as the input of that.
#include "rounding.cuh"

namespace {

// Stored values of one row of a part.
struct Row {
    const Part& part;
    u32 block;
    u32 lane;

    __device__ const u8* unit(u32 index) const {
        return part.codes + ((u64(block) * part.units + index) * BLOCK_ROWS + lane) * 16;
    }

    __device__ float dense(u32 column) const {
        if (part.format == DENSE_F32) return reinterpret_cast<const float*>(unit(column / 4))[column % 4];
        const u16 bits = reinterpret_cast<const u16*>(unit(column / 8))[column % 8];
        return part.format == DENSE_F16 ? half_value(bits) : bf16_value(bits);
    }

    __device__ u32 code(u32 column) const {
        const u32 bits = 1u << part.format;
        const u32 in_word = 32 / bits, in_unit = 128 / bits;
        const u32 word = reinterpret_cast<const u32*>(unit(column / in_unit))[column % in_unit / in_word];
        const u32 e = column % in_word;
        const u32 code = word >> (bits * (e / 4) + 8 * (e % 4)) & ((1u << bits) - 1);
        return bits == 8 ? code ^ 0x80 : code;
    }

    __device__ float value(u32 column) const {
        if (part.format >= DENSE_F16) return dense(column);
        const u64 group = (u64(block) * part.groups + column / part.group) * BLOCK_ROWS + lane;
        const float scale = parameter(part.scales, part.scale_type, group);
        const u32 c = code(column);
        if (part.biases == nullptr) return part.factor * scale * float(i32(2 * c - part.center));
        return scale * float(c) + parameter(part.biases, part.bias_type, group);
    }
};

}  // namespace

// A group of columns a warp, four neighbours a lane.
extern "C" __global__ void __launch_bounds__(256) embed(const __grid_constant__ EmbedParams p) {
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.x, lane = threadIdx.x % WARP, group = blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (r >= p.step.header->rows || group * GROUP >= p.cols) return;
    const u32 from = p.step.carried[r], first = group * GROUP + 4 * lane;
    const u32 token = from == NONE ? p.step.tokens[r] : p.sampled[from].token;
    u32 i = 0;
    while (i < p.part_count && token - p.parts[i].first_row >= p.parts[i].rows) ++i;
    float x[4];
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
        // A token that was never sampled: its row says so.
        x[j] = not_a_number();
        if (i == p.part_count) continue;
        const u32 row = token - p.parts[i].first_row;
        x[j] = first + j < p.cols ? Row{p.parts[i], row / BLOCK_ROWS, row % BLOCK_ROWS}.value(first + j) : 0.0f;
    }
    if (i < p.part_count && p.parts[i].residual_first != nullptr) {
        const Part& part = p.parts[i];
        const u32 row = token - part.first_row, end = part.residual_first[row / BLOCK_ROWS + 1];
        for (u32 e = part.residual_first[row / BLOCK_ROWS]; e < end; ++e) {
            const Residual residual = part.residuals[e];
            if (residual.place % BLOCK_ROWS != row % BLOCK_ROWS) continue;
            const u32 start = residual.place / BLOCK_ROWS * part.group;
            for (u32 j = 0; j < 4; ++j) {
                if (first + j - start < part.group) x[j] += residual.value;
            }
        }
    }
    float* out = p.out + u64(r) * p.cols;
    for (u32 j = 0; j < 4; ++j) {
        if (first + j < p.cols) out[first + j] = x[j];
    }
    if (p.next.wanted == 0) return;
    // Its own sums of squares, as those that products leave.
    float s[4];
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
        s[j] = x[j] * x[j];
#pragma unroll
        for (u32 offset = 4; offset > 0; offset /= 2) s[j] += __shfl_xor_sync(ALL_LANES, s[j], offset);
    }
    const Prepared& to = p.next.out;
    if (lane % 8 == 0) to.squares[r * (to.padded / 32) + group * 4 + lane / 8] = (s[0] + s[2]) + (s[1] + s[3]);
    for (u32 j = 0; j < 4; ++j) x[j] *= p.next.gain[first + j];
    round_group(p.next, r, group, lane, x, 1.0f);
}
