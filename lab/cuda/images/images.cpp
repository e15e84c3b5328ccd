// Times the kernels of image models at the shapes of the 4B on a device, each beside a plain one whose results it must give:
// `build.sh FOLDER` makes the program and the kernels' machine code, `FOLDER/images FOLDER [attention | convolution | product | short]`
// runs them.
#include "../steps/driver.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#define static_assert(...) static_assert(true, "")
struct alignas(16) uint4 { unsigned x, y, z, w; };
#include "params.cuh"
#undef static_assert

namespace {

using Bytes = unsigned long long;

std::string folder;
std::vector<CUmodule> modules;
std::map<std::string, CUfunction> found;
CUstream stream;

void load(const char* file) {
    CUmodule module;
    const std::string path = folder + "/" + file + ".cubin";
    FILE* f = std::fopen(path.c_str(), "rb");
    if (f == nullptr) {
        std::printf("no %s\n", path.c_str());
        std::exit(1);
    }
    std::vector<char> code(16 << 20);
    code.resize(std::fread(code.data(), 1, code.size(), f));
    std::fclose(f);
    CALL(cuModuleLoadData, &module, code.data());
    modules.push_back(module);
}

CUfunction kernel(const std::string& name) {
    auto& function = found[name];
    if (function != nullptr) return function;
    auto get = reinterpret_cast<decltype(&cuModuleGetFunction)>(dlsym(driver(), "cuModuleGetFunction"));
    for (CUmodule module : modules) {
        if (get(&function, module, name.c_str()) == CUDA_SUCCESS) break;
    }
    if (function == nullptr) {
        std::printf("no kernel %s\n", name.c_str());
        std::exit(1);
    }
    int fixed = 0;
    CALL(cuFuncGetAttribute, &fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function);
    CALL(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448 - fixed);
    return function;
}

Bytes allocate(size_t bytes) {
    CUdeviceptr at;
    CALL(cuMemAlloc, &at, bytes + 256);
    // No numbers, so that what is never written shows.
    CALL(cuMemsetD32, at, 0x7fffffff, bytes / 4 + 1);
    return at;
}

// Every allocation since goes back.
struct Memory {
    std::vector<Bytes> all;
    ~Memory() {
        for (Bytes at : all) CALL(cuMemFree, at);
    }
    Bytes make(size_t bytes) {
        all.push_back(allocate(bytes));
        return all.back();
    }
    template <typename T>
    Bytes holding(const std::vector<T>& values) {
        const Bytes at = make(values.size() * sizeof(T));
        CALL(cuMemcpyHtoD, at, values.data(), values.size() * sizeof(T));
        return at;
    }
    // `n` values, the same million again and again.
    template <typename T>
    Bytes repeated(size_t n, const std::function<T()>& next) {
        std::vector<T> some(std::min<size_t>(n, (1 << 20) - 3));
        for (T& v : some) v = next();
        const Bytes at = make(n * sizeof(T));
        for (size_t done = 0; done < n; done += some.size()) {
            CALL(cuMemcpyHtoD, at + done * sizeof(T), some.data(), std::min(some.size(), n - done) * sizeof(T));
        }
        return at;
    }
};

template <typename T>
std::vector<T> download(Bytes at, size_t n) {
    std::vector<T> values(n);
    CALL(cuMemcpyDtoH, values.data(), at, n * sizeof(T));
    return values;
}

template <typename T>
T* pointer(Bytes at) { return reinterpret_cast<T*>(at); }

u64 seed = 1;
u32 word() {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return u32(seed >> 32);
}
// About normal.
float normal() { return float((double(word()) + word() + word() + word()) / 4294967296.0 - 2.0) * 1.7f; }
u16 bf16(float x) {
    u32 bits;
    std::memcpy(&bits, &x, 4);
    return u16(bits >> 16);
}

template <typename P>
void launch(const char* name, u32 x, u32 y, u32 z, u32 threads, u32 shared, P params) {
    void* list[] = {&params};
    CALL(cuLaunchKernel, kernel(name), x, y, z, threads, 1, 1, shared, stream, list, nullptr);
}

// Median of some runs, in microseconds.
double timed(const std::function<void()>& run, int times = 7) {
    std::vector<double> all;
    CUevent a, b;
    CALL(cuEventCreate, &a, 0);
    CALL(cuEventCreate, &b, 0);
    for (int i = 0; i < times + 2; ++i) {
        CALL(cuEventRecord, a, stream);
        run();
        CALL(cuEventRecord, b, stream);
        CALL(cuStreamSynchronize, stream);
        float ms;
        CALL(cuEventElapsedTime, &ms, a, b);
        if (i >= 2) all.push_back(ms * 1e3);
    }
    CALL(cuEventDestroy, a);
    CALL(cuEventDestroy, b);
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

// The largest difference by the largest number, and of how many values; NaN counts as infinite.
void compare(Bytes a, Bytes b, size_t n) {
    const auto x = download<float>(a, n), y = download<float>(b, n);
    double largest = 0, worst = 0, squares = 0, off = 0;
    size_t different = 0;
    for (size_t i = 0; i < n; ++i) {
        largest = std::max(largest, double(std::fabs(x[i])));
        const double d = std::fabs(double(x[i]) - y[i]);
        if (!(d == 0)) ++different;
        worst = d == d ? std::max(worst, d) : INFINITY;
        squares += double(x[i]) * x[i];
        off += d * d;
    }
    std::printf("   differ %zu of %zu, most %.3g of the largest %.3g, together %.3g\n", different, n, worst / largest, largest, std::sqrt(off / squares));
}

u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }

void attention(u32 rows, u32 heads, u32 dim) {
    Memory memory;
    const u32 width = heads * dim, chunk = std::min(dim, 128u), blocks = ceil_div(rows, 64);
    const Bytes x = memory.repeated<float>(size_t(rows) * 3 * width, normal);
    const Bytes count = memory.holding(std::vector<u32>{rows});
    const auto view = [&](u32 part) { return View{pointer<float>(x) + part * width, 3 * width, heads, dim, dim}; };
    const size_t results = size_t(rows) * width;
    FullAttentionParams plain = {pointer<u32>(count), view(0), view(1), view(2), pointer<float>(memory.make(results * 4)),
                                 width, 1.0f / std::sqrt(float(dim)), NONE, 0};
    HalvesParams halves = {};
    halves.rows = plain.rows;
    halves.q = plain.q, halves.k = plain.k, halves.v = plain.v;
    for (auto& at : halves.halves) at = pointer<uint4>(memory.make(size_t(blocks) * 64 * width * 4));
    halves.largest = pointer<u32>(memory.make(3 * heads * blocks * 4));
    halves.factors = pointer<float>(memory.make(3 * heads * 4));
    halves.out = pointer<float>(memory.make(results * 4));
    halves.out_stride = width, halves.scale = plain.scale, halves.dim = dim, halves.padded_rows = blocks * 64;
    const u32 queries = 4 * (dim > 128 ? 8 : 16);
    const auto old = [&] {
        launch(("full_attention_d" + std::to_string(dim)).c_str(), heads, ceil_div(rows, queries), ceil_div(dim, 256), 128,
               ((dim + 64) * (queries + 4) + 2 * 32 * 64) * 4, plain);
    };
    const auto split = [&] {
        launch("largest_halves", blocks, heads, 3, 256, 0, halves);
        launch("split_halves", blocks, heads, 3, 256, 0, halves);
    };
    const auto main = [&] {
        launch(("full_attention_halves_d" + std::to_string(dim)).c_str(), blocks, heads, dim / chunk, 128,
               (64 * dim + 4 * 32 * chunk) * 4, halves);
    };
    const double before = timed(old, 3), first = timed(split), then = timed(main);
    const double macs = 2.0 * rows * rows * width;
    std::printf("attention, %u rows, %u heads of %u: plain %.0f us; split %.0f, halves %.0f us, %.0f T multiply-adds a second as floats\n", rows,
                heads, dim, before, first, then, macs / then / 1e6);
    compare(Bytes(plain.out), Bytes(halves.out), results);
}

void convolution(u32 height, u32 width, u32 channels, u32 outputs, u32 kernel_size, u32 times, bool norm) {
    Memory memory;
    const u32 cols = kernel_size * kernel_size * channels, units = ceil_div(cols, 8), padded = ceil_div(outputs, 32) * 32;
    const size_t pixels = size_t(height) * width, inputs = pixels / (times * times) * channels;
    Conv2dParams p = {};
    p.x = View{pointer<float>(memory.repeated<float>(inputs, normal)), channels, 1, channels, channels};
    p.affine = norm ? pointer<float>(memory.repeated<float>(2 * channels, normal)) : nullptr;
    p.bias = pointer<float>(memory.repeated<float>(outputs, normal));
    const float size = 1.0f / std::sqrt(float(cols));
    p.part.codes = pointer<u8>(memory.repeated<u16>(size_t(padded) * units * 8, [&] { return bf16(normal() * size); }));
    p.part.rows = outputs, p.part.units = units, p.part.format = DENSE_BF16;
    p.height = height, p.width = width, p.kernel = kernel_size, p.times = times, p.channels = channels, p.silu = norm;
    p.out_stride = outputs;
    p.out = pointer<float>(memory.make(pixels * outputs * 4));
    Conv2dParams q = p;
    q.out = pointer<float>(memory.make(pixels * outputs * 4));
    const u32 together = kernel_size == 3 ? 16 : 32, seen = kernel_size == 3 ? 180 : 128;
    const auto old = [&] { launch("conv2d_bf16", ceil_div(u32(pixels), 128), ceil_div(outputs, 64), 1, 256, 0, p); };
    const auto pieces = [&] {
        launch(("conv2d_pieces_k" + std::to_string(kernel_size)).c_str(), ceil_div(height, 8) * ceil_div(width, 16), ceil_div(outputs, 128), 1,
               256, 2 * (seen * together * 4 + kernel_size * kernel_size * together * 128 * 2), q);
    };
    const double before = timed(old, 3), after = timed(pieces);
    std::printf("convolution %ux%u, %u to %u, kernel %u, times %u: plain %.0f us, pieces %.0f us, %.0f T as floats\n", width, height, channels,
                outputs, kernel_size, times, before, after, double(pixels) * cols * outputs / after / 1e6);
    compare(Bytes(p.out), Bytes(q.out), std::min<size_t>(pixels * outputs, 1 << 22));
}

u32 slices(u32 cols) { return ceil_div(cols, 128) >= 48 ? 16 : 8; }

Prepared prepared(Memory& memory, u32 rows, u32 cols) {
    Prepared x = {};
    const u32 all = ceil_div(rows, 8) * 8;
    std::vector<i8> codes(size_t(all) * cols);
    for (i8& c : codes) c = i8(word() % 255) - 127;
    std::vector<i32> sums(codes.size() / 32);
    for (size_t i = 0; i < codes.size(); ++i) sums[i / 32] += codes[i];
    x.codes = pointer<i8>(memory.holding(codes));
    x.sums = pointer<i32>(memory.holding(sums));
    x.scales = pointer<float>(memory.repeated<float>(codes.size() / 128, [] { return 0.01f + word() % 1000 * 1e-5f; }));
    x.cols = x.padded = cols;
    return x;
}

// Weights of so many bits; with `group` 64 they have biases.
void product(u32 rows, u32 cols, u32 outputs, u32 bits, u32 group, bool pair) {
    Memory memory;
    LinearParams p = {};
    p.rows = pointer<u32>(memory.holding(std::vector<u32>{rows}));
    p.x = prepared(memory, rows, cols);
    p.epilogue = pair ? EPILOGUE_SWIGLU : EPILOGUE_STORE;
    p.part_count = pair ? 2 : 1;
    p.slices = slices(cols);
    const u32 of = pair ? outputs / 2 : outputs, blocks = ceil_div(of, 32);
    for (u32 i = 0; i < p.part_count; ++i) {
        Part& part = p.parts[i];
        const auto number = [] { return bf16(0.01f + word() % 1000 * 1e-5f); };
        part.codes = pointer<u8>(memory.repeated<u32>(size_t(blocks) * cols * bits, word));
        part.scales = pointer<u8>(memory.repeated<u16>(size_t(blocks) * 32 * cols / group, number));
        if (group == 64) part.biases = pointer<u8>(memory.repeated<u16>(size_t(blocks) * 32 * cols / group, [&] { return bf16(-0.05f - word() % 1000 * 1e-4f); }));
        part.rows = of, part.first_row = i * of, part.first_block = i * blocks;
        part.format = bits == 1 ? BITS1 : bits == 2 ? BITS2 : BITS4;
        part.group = group, part.groups = cols / group, part.units = cols * bits / 128;
        part.scale_type = part.bias_type = PARAM_BF16;
        part.factor = 0.5f, part.center = bits == 4 ? 16 : bits;
    }
    p.out_stride = of;
    LinearParams q = p;
    p.out = pointer<float>(memory.make(size_t(rows) * of * 4));
    q.out = pointer<float>(memory.make(size_t(rows) * of * 4));
    // Kernel, activation rows and pairs of 16 weight rows of a block; and blocks that go on until nothing is left.
    struct Variant {
        std::string name;
        u32 rows, pairs, threads, shared;
        bool goes_on = false;
    };
    const std::string before = "linear_bits" + std::to_string(bits) + "_i8_";
    const std::vector<Variant> variants = group == 64
        ? std::vector<Variant>{{before + "grouped", 32, pair ? 16u : 8u, 256, 0}, {before + "affine", 32, 8, 256, 82944}}
        : std::vector<Variant>{{before + "wide", 32, 8, 256, 78848}, {before + "group", 96, 6, 512, 204800, true}};
    const u32 pairs = pair ? 2 * blocks : blocks;
    std::printf("product, %u rows, %u to %u, %u bits%s:", rows, cols, outputs, bits, pair ? " gated" : "");
    for (const Variant& v : variants) {
        LinearParams& to = &v == &variants[0] ? p : q;
        u32 across = ceil_div(pairs, v.pairs), down = ceil_div(rows, v.rows);
        if (v.goes_on) across = std::min(across * down, 132u), down = 1;
        const double us = timed([&] { launch(v.name.c_str(), across, down, 1, v.threads, v.shared, to); }, 5);
        std::printf(" %s %.0f us, %.0f T;", v.name.c_str(), us, double(rows) * cols * outputs / us / 1e6);
    }
    std::printf("\n");
    compare(Bytes(p.out), Bytes(q.out), size_t(rows) * of);
}

}  // namespace

int main(int count, char** arguments) {
    folder = count > 1 ? arguments[1] : ".";
    const std::string what = count > 2 ? arguments[2] : "";
    CUdevice device;
    CUcontext context;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreate, &stream, 0);
    for (const char* file : {"full_attention", "full_attention_halves", "conv2d", "conv2d_pieces", "linear_grouped", "linear_affine", "linear_wide", "linear_group"}) load(file);
    if (what.empty() || what == "attention") {
        attention(1536, 24, 128);
        attention(4608, 24, 128);
        attention(4096, 1, 512);
        attention(16384, 1, 512);
    }
    if (what.empty() || what == "convolution") {
        convolution(64, 64, 512, 512, 3, 1, true);
        convolution(64, 64, 512, 512, 1, 1, true);
        convolution(128, 128, 512, 512, 3, 1, true);
        convolution(256, 256, 512, 512, 3, 2, false);
        convolution(256, 256, 512, 256, 3, 1, true);
        convolution(256, 256, 512, 256, 1, 1, false);
        convolution(512, 512, 256, 256, 3, 2, false);
        convolution(512, 512, 128, 128, 3, 1, true);
        convolution(512, 512, 128, 3, 3, 1, true);
    }
    if (what.empty() || what == "product") {
        product(512, 2560, 6144, 4, 64, false);
        product(512, 4096, 2560, 4, 64, false);
        product(512, 2560, 19456, 4, 64, true);
        product(512, 9728, 2560, 4, 64, false);
        for (u32 bits : {1, 2}) {
            for (u32 rows : {65, 100, 512, 1536, 4608}) {
                product(rows, 3072, 9216, bits, 128, false);
                product(rows, 3072, 18432, bits, 128, true);
                product(rows, 12288, 3072, bits, 128, false);
            }
            product(2048, 5120, 34816, bits, 128, true);
            product(2048, 17408, 5120, bits, 128, false);
        }
    }
    // Of everything a little, for tools that watch each access.
    if (what == "short") {
        attention(100, 2, 128);
        attention(100, 1, 512);
        convolution(20, 20, 32, 40, 3, 1, true);
        convolution(20, 20, 64, 40, 1, 1, true);
        product(70, 512, 128, 4, 64, true);
        product(130, 1024, 160, 1, 128, true);
        product(130, 1024, 160, 2, 128, false);
    }
    return 0;
}
