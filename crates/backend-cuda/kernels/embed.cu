// Rows of a table: out[r] = table[token[r]].
#include "common.cuh"

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

extern "C" __global__ void __launch_bounds__(256) embed(const __grid_constant__ EmbedParams p) {
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.x;
    if (r >= p.step.header->rows) return;
    const u32 from = p.step.carried[r];
    const u32 token = from == NONE ? p.step.tokens[r] : p.sampled[from].token;
    float* out = p.out + u64(r) * p.cols;
    u32 i = 0;
    while (i < p.part_count && token - p.parts[i].first_row >= p.parts[i].rows) ++i;
    if (i == p.part_count) {
        // A token that was never sampled: its row says so.
        for (u32 c = threadIdx.x; c < p.cols; c += blockDim.x) out[c] = not_a_number();
        return;
    }
    const Part& part = p.parts[i];
    const u32 row = token - part.first_row;
    const Row source{part, row / BLOCK_ROWS, row % BLOCK_ROWS};
    for (u32 c = threadIdx.x; c < p.cols; c += blockDim.x) out[c] = source.value(c);
    if (part.residual_first == nullptr) return;
    __syncthreads();
    const u32 end = part.residual_first[source.block + 1];
    for (u32 e = part.residual_first[source.block]; e < end; ++e) {
        const Residual residual = part.residuals[e];
        if (residual.place % BLOCK_ROWS != source.lane) continue;
        const u32 c = residual.place / BLOCK_ROWS * part.group + threadIdx.x;
        if (threadIdx.x < part.group && c < p.cols) out[c] += residual.value;
    }
}
