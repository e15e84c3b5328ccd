// Times the kernels for many rows at the true shapes, each beside a plain one whose results it must give bit for bit.
//
//   nvcc -O3 -std=c++17 --fmad=false -I../../crates/backend-cuda/kernels -gencode=arch=compute_90a,code=sm_90a prefill.cu
//
// `prefill products` for products, `prefill batch` for tens of rows, `prefill rest` for attention, delta rule, convolution.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "attention_f16.cu"
#include "attention_tile_f16.cu"
#include "conv.cu"
#include "delta.cu"
#include "delta_rows.cu"
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
extern "C" __global__ void __launch_bounds__(256, 2) wide_1(const __grid_constant__ LinearParams p) {
    wide::run<1, false, wide::Put>(p);
}
extern "C" __global__ void __launch_bounds__(256, 2) batch_1(const __grid_constant__ LinearParams p) { batch::run<1, false>(p); }
#ifdef TWO_BITS
extern "C" __global__ void __launch_bounds__(256, 1) grouped_2(const __grid_constant__ LinearParams p) {
    grouped::run<2, false>(p);
}
extern "C" __global__ void __launch_bounds__(256, 2) wide_2(const __grid_constant__ LinearParams p) {
    wide::run<2, false, wide::Put>(p);
}
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
            // Timed runs leave the first result alone.
            sets.back().out = outs[1];
        }
        u32* found = allocate<u32>(1);
        owned.push_back(found);
        for (u32 rows : row_counts) {
            CHECK(cudaMemcpy(row_count, &rows, 4, cudaMemcpyHostToDevice));
            std::printf("%-12s %6u x %-6u %5u rows", shape.name, shape.cols, shape.rows * matrices, rows);
            CHECK(cudaMemset(outs[0], 0xff, u64(most) * shape.rows * 4));
            LinearParams first = sets[0];
            first.out = outs[0];
            launch(plain, first, rows);
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

__global__ void random_floats(float* to, u64 count, u64 seed) {
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x) {
        to[i] = (mixed(i + seed) & 0xffff) / 32768.0f - 1.0f;
    }
}

template <typename T>
T* copied(const std::vector<T>& from) {
    T* to = allocate<T>(from.size());
    CHECK(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}

// A step of one prompt behind `past` tokens.
Step prompt(u32 rows, u32 past) {
    std::vector<Tile> tiles;
    for (u32 first = 0; first < rows; first += TILE_ROWS) tiles.push_back({0, first});
    std::vector<u32> pages;
    for (u32 i = 0; i < (past + rows + 63) / 64; ++i) pages.push_back(i);
    Segment segment = {};
    segment.rows = rows;
    segment.past = past;
    Step step = {};
    step.header = copied<StepHeader>({{rows, 1, 1, u32(tiles.size())}});
    step.row_segment = copied(std::vector<u32>(rows, 0));
    step.segments = copied<Segment>({segment});
    step.tiles = copied(tiles);
    step.pages = copied(pages);
    return step;
}

template <typename F>
float timed_once(F&& run) {
    cudaEvent_t start, stop;
    cudaEventCreate(&start);
    cudaEventCreate(&stop);
    std::vector<float> times;
    for (u32 i = 0; i < 4; ++i) {
        cudaEventRecord(start, stream);
        run();
        cudaEventRecord(stop, stream);
        CHECK(cudaEventSynchronize(stop));
        float ms = 0.0f;
        cudaEventElapsedTime(&ms, start, stop);
        if (i > 0) times.push_back(1000.0f * ms);
    }
    std::sort(times.begin(), times.end());
    return times[1];
}

u32 count_differences(const float* a, const float* b, u64 count) {
    u32 *found = allocate<u32>(1), wrong = 0;
    CHECK(cudaMemset(found, 0, 4));
    differences<<<512, 256, 0, stream>>>(reinterpret_cast<const u32*>(a), reinterpret_cast<const u32*>(b), count, found);
    CHECK(cudaMemcpyAsync(&wrong, found, 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFree(found));
    return wrong;
}

template <u32 DIM>
void attention_of(const char* name, u32 heads, u32 kv_heads, u32 rows, u32 past, void (*plain)(AttentionParams),
                  void (*tile)(AttentionParams), u32 together) {
    const u32 tokens = rows + past, stride = heads * DIM;
    AttentionParams p = {};
    p.step = prompt(rows, past);
    p.q = {allocate<float>(u64(rows) * stride), stride, heads, DIM, DIM};
    p.k = p.v = {nullptr, kv_heads * DIM, kv_heads, DIM, DIM};
    p.page_stride = 2ull * kv_heads * PAGE_ROWS * DIM * 2;
    const u64 halves = (tokens + 63) / 64 * p.page_stride / 2;
    u16* pages = allocate<u16>(halves);
    random_floats<<<512, 256>>>(p.q.data, u64(rows) * stride, 3);
    random_scales<<<512, 256>>>(pages, halves, 5);
    p.pages = reinterpret_cast<u8*>(pages);
    p.out_stride = stride;
    p.format = KV_F16;
    p.scale = 1.0f;
    float* outs[2] = {allocate<float>(u64(rows) * stride), allocate<float>(u64(rows) * stride)};
    p.out = outs[0];
    p.splits = 8;
    const u32 group = heads / kv_heads, passes = kv_heads * ((group + together - 1) / together);
    const float old = timed_once([&] { plain<<<dim3((rows + 3) / 4, passes), 128, 0, stream>>>(p); });
    p.out = outs[1];
    p.splits = 0;
    const u32 shared = sizeof(attention_tile::Shared<DIM>);
    CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(tile), cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    const float us = timed_once([&] { tile<<<dim3(heads, (rows + 15) / 16), 128, shared, stream>>>(p); });
    CHECK(cudaGetLastError());
    const double macs = 2.0 * heads * DIM * (double(rows) * past + 0.5 * rows * rows);
    const u32 wrong = count_differences(outs[0], outs[1], u64(rows) * stride);
    std::printf("attention %s, %u rows behind %u: rows %.0f us %.1f T, tile %.0f us %.1f T, %u differ\n", name, rows, past, old,
                macs / old / 1e6, us, macs / us / 1e6, wrong);
    std::fflush(stdout);
}

void delta_of(u32 rows) {
    constexpr u32 KEYS = 16, HEADS = 48, DIM = 128;
    DeltaParams p = {};
    p.step = prompt(rows, 0);
    const u32 stride = 2 * KEYS * DIM + HEADS * DIM;
    float* qkv = allocate<float>(u64(rows) * stride);
    float* gates = allocate<float>(u64(rows) * 2 * HEADS);
    random_floats<<<512, 256>>>(qkv, u64(rows) * stride, 1);
    random_floats<<<512, 256>>>(gates, u64(rows) * 2 * HEADS, 2);
    p.q = {qkv, stride, KEYS, DIM, DIM};
    p.k = {qkv + KEYS * DIM, stride, KEYS, DIM, DIM};
    p.v = {qkv + 2 * KEYS * DIM, stride, HEADS, DIM, DIM};
    p.log_decay = {gates, 2 * HEADS, 1, HEADS, HEADS};
    p.beta = {gates + HEADS, 2 * HEADS, 1, HEADS, HEADS};
    p.decay_rate = copied(std::vector<float>(HEADS, -0.1f));
    p.dt_bias = copied(std::vector<float>(HEADS, 0.5f));
    p.out_stride = HEADS * DIM;
    p.map = MAP_GROUPED;
    p.eps = 1e-6f;
    p.made = allocate<float>(u64(rows) * (2 * KEYS * DIM + 2 * HEADS));
    const u64 state = u64(HEADS) * DIM * DIM;
    float *outs[2], *states[2], us[2];
    for (u32 i = 0; i < 2; ++i) {
        p.out = outs[i] = allocate<float>(u64(rows) * p.out_stride);
        p.states = states[i] = allocate<float>(state);
        CHECK(cudaMemset(p.states, 0, state * 4));
        us[i] = timed_once([&] {
            if (i == 0) {
                gated_delta_k128<<<dim3(4, HEADS, 1), 128, 0, stream>>>(p);
            } else {
                delta_make_k128<<<rows, 256, 0, stream>>>(p);
                delta_rows_k128<<<dim3(4, HEADS, 1), 128, 0, stream>>>(p);
            }
        });
        CHECK(cudaGetLastError());
    }
    const float make = timed_once([&] { delta_make_k128<<<rows, 256, 0, stream>>>(p); });
    std::printf("delta rule, %u rows: token by token %.0f us, made beforehand %.0f us (making %.0f us), %u and %u differ\n", rows, us[0],
                us[1], make, count_differences(outs[0], outs[1], u64(rows) * p.out_stride),
                count_differences(states[0], states[1], state));
}

void conv_of(u32 rows) {
    constexpr u32 CHANNELS = 10240;
    ConvParams p = {};
    p.step = prompt(rows, 0);
    p.x = {allocate<float>(u64(rows) * CHANNELS), CHANNELS, 1, CHANNELS, CHANNELS};
    float* weight = allocate<float>(4 * CHANNELS);
    random_floats<<<512, 256>>>(p.x.data, u64(rows) * CHANNELS, 1);
    random_floats<<<512, 256>>>(weight, 4 * CHANNELS, 2);
    p.weight = weight;
    p.windows = allocate<float>(3 * CHANNELS);
    p.out = allocate<float>(u64(rows) * CHANNELS);
    p.kernel = 4;
    p.out_stride = CHANNELS;
    const float us = timed_once([&] { conv_silu<<<dim3(CHANNELS / 128, (rows + 15) / 16 + 15), 128, 0, stream>>>(p); });
    std::printf("conv, %u rows: %.0f us, %.0f GB/s\n", rows, us, 8e-3 * rows * CHANNELS / us);
}

}  // namespace

int main(int count, char** words) {
    const std::string what = count > 1 ? words[1] : "products";
    CHECK(cudaStreamCreate(&stream));
    row_count = allocate<u32>(1);
    constexpr u32 PUT = wide::COLUMNS * 1024, WIDE = wide::STAGES<1> * sizeof(wide::Stage<1, false>) + PUT,
                  BATCH = batch::WARPS * batch::STAGES * sizeof(batch::Stage<1, false>);
    const Variant old{"grouped", grouped_1, 32, 8, 0, false}, wide_{"wide", wide_1, wide::COLUMNS, 8, WIDE, true},
        batch_{"batch", batch_1, 32, 1, BATCH, true};
    for (const Variant& v : {wide_, batch_}) {
        CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(v.kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, v.shared));
    }
    if (what == "products") {
        products(SHAPES, 1, {2048, 512, 100}, old, {wide_}, false);
#ifdef TWO_BITS
        constexpr u32 WIDE2 = wide::STAGES<2> * sizeof(wide::Stage<2, false>) + PUT;
        CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(wide_2), cudaFuncAttributeMaxDynamicSharedMemorySize, WIDE2));
        products({SHAPES[0], SHAPES[3]}, 2, {2048}, {"grouped2", grouped_2, 32, 8, 0, false},
                 {{"wide2", wide_2, wide::COLUMNS, 8, WIDE2, true}}, false);
#endif
    }
    if (what == "batch") products(SHAPES, 1, {32, 9, 64}, old, {batch_, wide_}, true);
    if (what == "rest") {
        attention_of<128>("8b", 32, 8, 2048, 0, attention_rows_f16_d128_h4, attention_tile_f16_d128, 4);
        attention_of<128>("8b", 32, 8, 512, 1536, attention_rows_f16_d128_h4, attention_tile_f16_d128, 4);
        attention_of<128>("8b", 32, 8, 500, 77, attention_rows_f16_d128_h4, attention_tile_f16_d128, 4);
        attention_of<256>("27b", 24, 4, 2048, 0, attention_rows_f16_d256_h4, attention_tile_f16_d256, 4);
        delta_of(2048);
        delta_of(501);
        conv_of(2048);
    }
}
