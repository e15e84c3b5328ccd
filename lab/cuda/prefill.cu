// Times the kernels for many rows at the true shapes, each beside a plain one whose results it must give bit for bit.
//
//   nvcc -O3 -std=c++17 --fmad=false -I../../crates/backend-cuda/kernels -gencode=arch=compute_90a,code=sm_90a prefill.cu
//
// `prefill products` for products, `prefill batch` for tens of rows.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "linear_batch.cuh"
#include "linear_grouped.cuh"
#include "linear_wide.cuh"

#define CHECK(call)                                                                                  \
    do {                                                                                             \
        const cudaError_t error = call;                                                              \
        if (error != cudaSuccess) {                                                                  \
            std::printf("%s, line %d: %s\n", #call, __LINE__, cudaGetErrorString(error));            \
            std::exit(1);                                                                            \
        }                                                                                            \
    } while (0)

extern "C" __global__ void __launch_bounds__(256, 1) grouped_1(const __grid_constant__ LinearParams p) {
    grouped::run<1, false>(p);
}
extern "C" __global__ void __launch_bounds__(256, 1) wide_1(const __grid_constant__ LinearParams p) { wide::run<1, false>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) batch_1_2(const __grid_constant__ LinearParams p) {
    batch::run<1, false, 2>(p);
}
extern "C" __global__ void __launch_bounds__(256, 2) batch_1_1(const __grid_constant__ LinearParams p) {
    batch::run<1, false, 1>(p);
}
#ifndef ONE_BIT_ONLY
extern "C" __global__ void __launch_bounds__(256, 1) grouped_2(const __grid_constant__ LinearParams p) {
    grouped::run<2, false>(p);
}
extern "C" __global__ void __launch_bounds__(256, 1) wide_2(const __grid_constant__ LinearParams p) { wide::run<2, false>(p); }
#endif

namespace {

using Kernel = void (*)(LinearParams);

struct Variant {
    const char* name;
    Kernel kernel;
    // Activation rows and pairs of tiles of a thread block; dynamic shared memory.
    u32 rows, pairs, shared;
    bool halves;
};

__device__ u32 mixed(u64 i) {
    i = (i ^ (i >> 31)) * 0x9e3779b97f4a7c15ull;
    i = (i ^ (i >> 29)) * 0xbf58476d1ce4e5b9ull;
    return u32(i >> 32);
}

__global__ void random_words(u32* to, u64 count, u64 seed) {
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x) to[i] = mixed(i + seed);
}
// Scales near 0.02.
__global__ void random_scales(u16* to, u64 count, u64 seed) {
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x) {
        to[i] = half_bits(0.01f + 0.02f * (mixed(i + seed) & 0xffff) / 65536.0f);
    }
}
__global__ void random_steps(float* to, u64 count, u64 seed) {
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x) {
        to[i] = 0.001f + 0.01f * (mixed(i + seed) & 0xffff) / 65536.0f;
    }
}
__global__ void sum_codes(const i8* codes, i32* sums, u64 count) {
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x) {
        i32 sum = 0;
        for (u32 j = 0; j < 32; ++j) sum += codes[32 * i + j];
        sums[i] = sum;
    }
}
__global__ void differences(const u32* a, const u32* b, u64 count, u32* found) {
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x) {
        if (a[i] != b[i]) atomicAdd(found, 1u);
    }
}

template <typename T>
T* allocate(u64 count) {
    T* at = nullptr;
    CHECK(cudaMalloc(&at, count * sizeof(T)));
    CHECK(cudaMemset(at, 0xff, count * sizeof(T)));
    return at;
}

struct Shape {
    const char* name;
    u32 cols, rows;
    bool gated;
};

u32* row_count;
cudaStream_t stream;

void launch(const Variant& v, const LinearParams& p, u32 rows) {
    const u32 blocks = (p.parts[0].rows + 31) / 32, pairs = p.epilogue == EPILOGUE_SWIGLU && v.halves ? 2 * blocks : blocks;
    const dim3 grid((pairs + v.pairs - 1) / v.pairs, (rows + v.rows - 1) / v.rows);
    v.kernel<<<grid, 256, v.shared, stream>>>(p);
}

// Microseconds of a launch: median of some rounds over weights that lie apart.
float timed(const Variant& v, const std::vector<LinearParams>& sets, u32 rows, u32 rounds, u32 each) {
    cudaEvent_t start, stop;
    cudaEventCreate(&start);
    cudaEventCreate(&stop);
    std::vector<float> times;
    u32 next = 0;
    for (u32 i = 0; i <= rounds; ++i) {
        cudaEventRecord(start, stream);
        for (u32 j = 0; j < each; ++j) launch(v, sets[next++ % sets.size()], rows);
        cudaEventRecord(stop, stream);
        CHECK(cudaEventSynchronize(stop));
        float ms = 0.0f;
        cudaEventElapsedTime(&ms, start, stop);
        if (i > 0) times.push_back(1000.0f * ms / each);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

void products(const std::vector<Shape>& shapes, u32 bits, const std::vector<u32>& row_counts, const Variant& plain,
              const std::vector<Variant>& variants, bool far) {
    for (const Shape& shape : shapes) {
        const u32 most = *std::max_element(row_counts.begin(), row_counts.end()), padded_rows = (most + 63) / 64 * 64;
        const u32 records = shape.cols / 128, blocks = (shape.rows + 31) / 32, matrices = shape.gated ? 2 : 1;
        const u64 code_bytes = u64(blocks) * 32 * shape.cols * bits / 8, scale_count = u64(blocks) * 32 * records;
        const u32 copies = far ? u32(std::max<u64>(2, (200ull << 20) / (matrices * code_bytes))) : 2;
        LinearParams p = {};
        p.rows = row_count;
        p.x.codes = allocate<i8>(u64(padded_rows) * shape.cols);
        p.x.sums = allocate<i32>(u64(padded_rows) * shape.cols / 32);
        p.x.scales = allocate<float>(u64(padded_rows) * records);
        p.x.cols = p.x.padded = shape.cols;
        random_words<<<512, 256>>>(reinterpret_cast<u32*>(p.x.codes), u64(padded_rows) * shape.cols / 4, 1);
        random_steps<<<512, 256>>>(p.x.scales, u64(padded_rows) * records, 2);
        sum_codes<<<512, 256>>>(p.x.codes, p.x.sums, u64(padded_rows) * shape.cols / 32);
        float* outs[2] = {allocate<float>(u64(most) * shape.rows), allocate<float>(u64(most) * shape.rows)};
        p.out = outs[0];
        p.out_stride = shape.rows;
        p.epilogue = shape.gated ? EPILOGUE_SWIGLU : EPILOGUE_STORE;
        p.part_count = matrices;
        p.slices = records >= 48 ? 16 : 8;
        std::vector<void*> owned = {p.x.codes, p.x.sums, p.x.scales, outs[0], outs[1]};
        std::vector<LinearParams> sets;
        for (u32 c = 0; c < copies; ++c) {
            for (u32 m = 0; m < matrices; ++m) {
                u8* codes = allocate<u8>(code_bytes);
                u16* scales = allocate<u16>(scale_count);
                random_words<<<512, 256>>>(reinterpret_cast<u32*>(codes), code_bytes / 4, 17 + 5 * c + m);
                random_scales<<<512, 256>>>(scales, scale_count, 7 + c + m);
                owned.insert(owned.end(), {codes, scales});
                Part& part = p.parts[m];
                part = Part{};
                part.codes = codes;
                part.scales = reinterpret_cast<u8*>(scales);
                part.rows = shape.rows;
                part.format = bits == 1 ? BITS1 : BITS2;
                part.group = 128;
                part.groups = records;
                part.units = records * bits;
                part.factor = 1.0f;
                part.center = bits == 1 ? 1 : 2;
            }
            sets.push_back(p);
        }
        u32* found = allocate<u32>(1);
        owned.push_back(found);
        for (u32 rows : row_counts) {
            CHECK(cudaMemcpy(row_count, &rows, 4, cudaMemcpyHostToDevice));
            std::printf("%-12s %6u x %-6u %5u rows", shape.name, shape.cols, shape.rows * matrices, rows);
            CHECK(cudaMemset(outs[0], 0xff, u64(most) * shape.rows * 4));
            launch(plain, sets[0], rows);
            for (const Variant& v : variants) {
                LinearParams other = sets[0];
                other.out = outs[1];
                CHECK(cudaMemset(outs[1], 0xee, u64(most) * shape.rows * 4));
                CHECK(cudaMemset(found, 0, 4));
                launch(v, other, rows);
                differences<<<512, 256, 0, stream>>>(reinterpret_cast<u32*>(outs[0]), reinterpret_cast<u32*>(outs[1]),
                                                     u64(rows) * shape.rows, found);
                u32 wrong = 0;
                CHECK(cudaMemcpyAsync(&wrong, found, 4, cudaMemcpyDeviceToHost, stream));
                CHECK(cudaStreamSynchronize(stream));
                const float us = timed(v, sets, rows, far ? 9 : 3, far ? 10 : 2);
                const double macs = double(rows) * shape.cols * shape.rows * matrices;
                std::printf(" | %s %.1f us %.0f T%s", v.name, us, macs / us / 1e6, wrong ? " WRONG" : "");
                if (wrong) std::printf(" %u", wrong);
            }
            std::printf("\n");
            std::fflush(stdout);
        }
        for (void* at : owned) CHECK(cudaFree(at));
    }
}

const std::vector<Shape> SHAPES = {
    {"27b gate_up", 5120, 17408, true},  {"27b down", 17408, 5120, false}, {"27b in", 5120, 16480, false},
    {"27b out", 6144, 5120, false},      {"8b gate_up", 4096, 12288, true}, {"8b down", 12288, 4096, false},
    {"8b qkv", 4096, 6144, false},       {"8b o", 4096, 4096, false},
};

}  // namespace

int main(int count, char** words) {
    const std::string what = count > 1 ? words[1] : "products";
    CHECK(cudaStreamCreate(&stream));
    row_count = allocate<u32>(1);
    constexpr u32 ONE = batch::WARPS * batch::STAGES * sizeof(batch::Record);
    const Variant old{"grouped", grouped_1, 32, 8, 0, false}, wide_{"wide", wide_1, 64, 8, 0, true},
        two{"batch2", batch_1_2, 32, 2, ONE, true}, one{"batch1", batch_1_1, 32, 1, ONE, true};
    for (Kernel kernel : {batch_1_1, batch_1_2}) {
        CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, ONE));
    }
    if (what == "products") {
        products(SHAPES, 1, {2048, 512, 100}, old, {wide_}, false);
#ifndef ONE_BIT_ONLY
        products({SHAPES[0], SHAPES[3]}, 2, {2048}, {"grouped2", grouped_2, 32, 8, 0, false}, {{"wide2", wide_2, 64, 8, 0, true}},
                 false);
#endif
    }
    if (what == "batch") products(SHAPES, 1, {32, 9, 64}, old, {old, two, one, wide_}, true);
}
