// Times the kernels of a step of one row on a device: `build.sh FOLDER` makes the program and the kernels' machine code.
//
// Each line is a captured graph of launches that overlap as in the backend, over weights larger than the second-level cache:
// median of several replays, divided by the launches or given for all of it.
#include "driver.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

// Vectors of the device, whose sizes alone matter here.
#include <vector_types.h>
#define static_assert(...) static_assert(true, "")
#include "params.cuh"
#undef static_assert

namespace {

using Bytes = unsigned long long;

std::string folder;
std::map<std::string, CUfunction> found;
std::vector<CUmodule> modules;
CUstream stream;

void load(const char* file) {
    CUmodule module;
    std::string path = folder + "/" + file;
    FILE* f = std::fopen(path.c_str(), "rb");
    if (f == nullptr) {
        std::printf("no %s\n", path.c_str());
        std::exit(1);
    }
    std::vector<char> code(64 << 20);
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
    // The same division of the memory for all kernels.
    if (std::getenv("CARVEOUT") != nullptr) CALL(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);
    return function;
}

Bytes allocate(size_t bytes) {
    CUdeviceptr at;
    CALL(cuMemAlloc, &at, bytes + 256);
    CALL(cuMemsetD32, at, 0, bytes / 4 + 1);
    return at;
}

template <typename T>
Bytes upload(const std::vector<T>& values) {
    Bytes at = allocate(values.size() * sizeof(T));
    CALL(cuMemcpyHtoD, at, values.data(), values.size() * sizeof(T));
    // What the host has copied may still be on its way to its place.
    check(symbol<decltype(cuCtxSynchronize)>("cuCtxSynchronize")(), "cuCtxSynchronize");
    return at;
}

template <typename T>
std::vector<T> download(Bytes at, size_t n) {
    std::vector<T> values(n);
    CALL(cuMemcpyDtoH, values.data(), at, n * sizeof(T));
    return values;
}

template <typename T>
T* pointer(Bytes at) { return reinterpret_cast<T*>(at); }

u64 seed = 1;
u32 random_word() {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return u32(seed >> 32);
}
float random_float() { return float(i32(random_word())) / 2147483648.0f; }
std::vector<float> floats(size_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = random_float();
    return v;
}
// Random words, the same million again and again.
Bytes random_bytes(size_t bytes) {
    static std::vector<u32> words;
    if (words.empty()) {
        words.resize(1 << 20);
        for (u32& w : words) w = random_word();
    }
    Bytes at = allocate(bytes);
    for (size_t done = 0; done < bytes; done += words.size() * 4) {
        CALL(cuMemcpyHtoD, at + done, words.data(), std::min(words.size() * 4, bytes - done));
    }
    return at;
}

struct Shape {
    std::string name;
    u32 grid[3];
    u32 threads, shared, cluster;
};

bool chained = true;

template <typename P>
void launch(const Shape& s, P params, bool first = false) {
    CUlaunchAttribute attributes[2] = {};
    unsigned n = 0;
    if (chained && !first) {
        attributes[n].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[n++].value.programmaticStreamSerializationAllowed = 1;
    }
    if (s.cluster > 1) {
        attributes[n].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[n].value.clusterDim.x = s.cluster;
        attributes[n].value.clusterDim.y = attributes[n].value.clusterDim.z = 1;
        ++n;
    }
    CUlaunchConfig c = {};
    c.gridDimX = s.grid[0], c.gridDimY = s.grid[1], c.gridDimZ = s.grid[2];
    c.blockDimX = s.threads, c.blockDimY = c.blockDimZ = 1;
    c.sharedMemBytes = s.shared;
    c.hStream = stream;
    c.attrs = attributes;
    c.numAttrs = n;
    void* list[] = {&params};
    CALL(cuLaunchKernelEx, &c, kernel(s.name), list, nullptr);
}

CUgraphExec captured(const std::function<void()>& record) {
    CUgraph graph;
    CUgraphExec exec;
    CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    record();
    CALL(cuStreamEndCapture, stream, &graph);
    CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
    CALL(cuGraphDestroy, graph);
    return exec;
}

// Microseconds of one replay.
double replay(const std::function<void()>& record, int times = 11) {
    const CUgraphExec exec = captured(record);
    std::vector<double> all;
    CUevent a, b;
    CALL(cuEventCreate, &a, 0);
    CALL(cuEventCreate, &b, 0);
    for (int i = 0; i < times + 2; ++i) {
        CALL(cuEventRecord, a, stream);
        CALL(cuGraphLaunch, exec, stream);
        CALL(cuEventRecord, b, stream);
        CALL(cuStreamSynchronize, stream);
        float ms;
        CALL(cuEventElapsedTime, &ms, a, b);
        if (i >= 2) all.push_back(ms * 1e3);
    }
    CALL(cuGraphExecDestroy, exec);
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

// What stands between two graphs.
enum Between { NOTHING, COPIES, PARAMETERS };

// Microseconds of a step by the clock where one is always ordered ahead, as the engine does, with inputs and tokens that are
// copied, or with inputs as parameters of a launch. What that takes is the difference to nothing between the graphs.
double in_a_row(const std::function<void()>& record, Between between, int steps = 200) {
    const CUgraphExec exec = captured(record);
    const size_t bytes = 4096;
    const Bytes inputs = allocate(bytes), tokens = allocate(64);
    void* host[2][2];
    CUevent done[2];
    for (int k = 0; k < 2; ++k) {
        CALL(cuMemHostAlloc, &host[k][0], bytes, 0);
        CALL(cuMemHostAlloc, &host[k][1], 64, 0);
        CALL(cuEventCreate, &done[k], CU_EVENT_DISABLE_TIMING);
    }
    const auto submit = [&](int k) {
        if (between == COPIES) CALL(cuMemcpyHtoDAsync, inputs, host[k][0], bytes, stream);
        if (between == PARAMETERS) {
            InputsParams p = {};
            p.to = pointer<uint4>(inputs);
            p.units = 24;
            launch(Shape{"inputs", {1, 1, 1}, 24, 0, 1}, p, true);
        }
        CALL(cuGraphLaunch, exec, stream);
        if (between == COPIES) CALL(cuMemcpyDtoHAsync, host[k][1], tokens, 8, stream);
        CALL(cuEventRecord, done[k], stream);
    };
    const auto query = symbol<decltype(cuEventQuery)>("cuEventQuery");
    auto begin = std::chrono::steady_clock::now();
    constexpr int WARM = 10;
    submit(0);
    for (int i = 1; i <= WARM + steps; ++i) {
        submit(i % 2);
        while (query(done[(i - 1) % 2]) == CUDA_ERROR_NOT_READY) {}
        if (i == WARM) begin = std::chrono::steady_clock::now();
    }
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / steps;
    CALL(cuStreamSynchronize, stream);
    CALL(cuGraphExecDestroy, exec);
    for (int k = 0; k < 2; ++k) {
        CALL(cuEventDestroy, done[k]);
        for (void* at : host[k]) CALL(cuMemFreeHost, at);
    }
    return us;
}

// ---- products ------------------------------------------------------------------------------------------------------

// A number of the environment.
u32 number(const char* name, u32 otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : u32(std::atoi(text));
}

// Tokens of context: those, or the one that is asked for.
std::vector<u32> pasts(std::vector<u32> usual) {
    const u32 one = number("PAST", 0);
    return one > 0 ? std::vector<u32>{one} : usual;
}

u32 slices(u32 cols) { return (cols + 127) / 128 >= 48 ? 16 : 8; }

struct Matrix {
    std::string name;
    // Of one part; `pair`: gate and up.
    u32 rows, cols;
    bool pair;
    std::vector<Bytes> codes, scales;
    u32 layers;

    Matrix(std::string name, u32 rows, u32 cols, bool pair, u32 layers)
        : name(name), rows(rows), cols(cols), pair(pair), layers(layers) {
        const u32 parts = pair ? 2 : 1;
        const size_t code_bytes = size_t(rows + 31) / 32 * 32 * cols / 8, scale_bytes = code_bytes / 8;
        const Bytes c = random_bytes(code_bytes * parts * layers);
        std::vector<u16> s(scale_bytes * parts / 2);
        // Halves between 2^-6 and 2^-5.
        for (u16& x : s) x = u16(9 << 10 | (random_word() & 1023));
        for (u32 i = 0; i < layers * parts; ++i) codes.push_back(c + i * code_bytes);
        for (u32 i = 0; i < layers; ++i) {
            const Bytes at = upload(s);
            for (u32 k = 0; k < parts; ++k) scales.push_back(at + k * scale_bytes);
        }
    }
    size_t bytes() const { return size_t(rows) * cols / 8 * 9 / 8 * (pair ? 2 : 1); }
    u32 blocks() const { return (rows + 31) / 32; }
};

struct Input {
    Prepared x;
    Bytes floats, gain;

    Input(u32 cols, u32 rows = 8) {
        std::memset(&x, 0, sizeof(x));
        x.floats = pointer<float>(allocate(size_t(rows) * cols * 4));
        x.float_sums = pointer<float>(allocate(rows * cols / 8));
        x.codes = pointer<i8>(allocate(rows * cols));
        x.planes = pointer<u32>(allocate(rows * cols));
        x.scales = pointer<float>(allocate(rows * cols / 32));
        x.sums = pointer<i32>(allocate(rows * cols / 8));
        x.squares = nullptr;
        x.cols = x.padded = cols;
        floats = upload(::floats(size_t(rows) * cols));
        gain = upload(::floats(cols));
    }
};

Bytes count_of_rows;

LinearParams product(const Matrix& w, u32 layer, const Prepared& x, Bytes out, u32 epilogue, Bytes residual) {
    LinearParams p;
    std::memset(&p, 0, sizeof(p));
    p.rows = pointer<u32>(count_of_rows);
    p.x = x;
    p.residual = {pointer<float>(residual), w.rows, 1, w.rows, w.rows};
    p.out = pointer<float>(out);
    p.out_stride = w.rows;
    p.epilogue = w.pair ? EPILOGUE_SWIGLU : epilogue;
    p.part_count = w.pair ? 2 : 1;
    p.slices = slices(w.cols);
    for (u32 k = 0; k < p.part_count; ++k) {
        Part& part = p.parts[k];
        part.codes = pointer<u8>(w.codes[layer * p.part_count + k]);
        part.scales = pointer<u8>(w.scales[layer * p.part_count + k]);
        part.rows = w.rows;
        part.first_row = k * w.rows;
        part.first_block = k * w.blocks();
        part.format = BITS1;
        part.group = 128;
        part.groups = part.units = w.cols / 128;
        part.scale_type = PARAM_F16;
        part.factor = 1.0f;
        part.center = 1;
    }
    return p;
}

// The older kernel, by another way.
Shape quads(const Matrix& w, u32 m) {
    const u32 warps = std::min(slices(w.cols) * (w.pair ? 2 : 1), 16u);
    return {"linear_bits1_i8_quads_m" + std::to_string(m), {w.blocks(), 1, 1}, 32 * warps, 0, 1};
}

Shape streamed(const Matrix& w, u32 m, bool rounds) {
    const u32 n = slices(w.cols), records = (w.cols / 128 + n - 1) / n * n;
    // As `Stream::lean` of the backend: five blocks of a multiprocessor where four have no room for all.
    if (w.pair && m == 1 && n == 8 && records == 40 && w.blocks() > 4 * 132) {
        return {"linear_bits1_lean_pair_5", {w.blocks(), 1, 1}, 16 * n, records * (2 * 512 + 8), rounds ? 4u : 1u};
    }
    const u32 shared = records * ((w.pair ? 2 : 1) * 576 + 8 * m + (m == 1 ? 128 : 0));
    return {std::string("linear_bits1_stream_") + (w.pair ? "pair_" : "") + "m" + std::to_string(m),
            {w.blocks(), 1, 1}, 32 * std::max(n / 2, m), shared, rounds ? 4u : 1u};
}

void multiply(const Matrix& w, u32 m, bool rounds, const LinearParams& p, bool first = false) {
    Shape shape = streamed(w, m, rounds);
    // Shared memory that it has no use for.
    shape.shared += 1024 * number(("PAD_" + w.name).c_str(), 0);
    launch(shape, p, first);
}

PrepareParams preparation(const Input& in, u32 cols, bool norm) {
    PrepareParams p;
    std::memset(&p, 0, sizeof(p));
    p.rows = pointer<u32>(count_of_rows);
    p.x = p.gate = {pointer<float>(in.floats), cols, 1, cols, cols};
    p.gain = norm ? pointer<float>(in.gain) : nullptr;
    p.out = in.x;
    p.eps = 1e-6f;
    p.wanted = PREPARE_INT8 | PREPARE_PLANES;
    p.input = norm ? INPUT_NORM : INPUT_PLAIN;
    return p;
}

Shape prepare(u32 cols) { return {"prepare", {1, (cols / 128 + 15) / 16, 1}, 512, 0, 1}; }

void set_rows(u32 rows) {
    CALL(cuMemcpyHtoD, count_of_rows, &rows, 4);
}

// Results of the streamed product against the older kernel, and its rounding against the host's.
void compare(const Matrix& w, u32 m) {
    set_rows(m);
    Input in(w.cols);
    const Bytes a = allocate(size_t(8) * w.rows * 4), b = allocate(size_t(8) * w.rows * 4), residual = upload(floats(8 * w.rows));
    launch(Shape{"prepare", {m, prepare(w.cols).grid[1], 1}, 512, 0, 1}, preparation(in, w.cols, true), true);
    launch(quads(w, m), product(w, 0, in.x, a, EPILOGUE_RESIDUAL, residual), true);
    LinearParams p = product(w, 0, in.x, b, EPILOGUE_RESIDUAL, residual);
    Input next(w.rows);
    const bool rounds = w.rows % 128 == 0;
    if (rounds) {
        p.next = next.x;
        p.next.squares = pointer<float>(allocate(w.rows));
        p.next_gain = pointer<float>(next.gain);
    }
    multiply(w, m, rounds, p, true);
    CALL(cuStreamSynchronize, stream);
    const auto x = download<u32>(a, m * w.rows), y = download<u32>(b, m * w.rows);
    size_t differ = 0, wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) differ += x[i] != y[i];
    if (rounds) {
        const auto values = download<float>(b, m * w.rows), gain = download<float>(next.gain, w.rows);
        const auto scales = download<float>(Bytes(next.x.scales), m * w.rows / 128);
        const auto sums = download<i32>(Bytes(next.x.sums), m * w.rows / 32);
        const auto planes = download<u32>(Bytes(next.x.planes), m * w.rows / 4);
        const auto squares = download<float>(Bytes(p.next.squares), m * w.rows / 32);
        for (u32 g = 0; g < m * w.rows / 128; ++g) {
            float largest = 0;
            float v[128];
            for (u32 i = 0; i < 128; ++i) {
                const size_t at = g * 128 + i;
                v[i] = values[at] * gain[at % w.rows];
                largest = std::max(largest, std::fabs(v[i]));
            }
            const float scale = largest / 127.0f, inverse = 1.0f / scale;
            wrong += scales[g] != scale;
            u32 want[32] = {};
            for (u32 s = 0; s < 4; ++s) {
                i32 sum = 0;
                double square = 0;
                for (u32 e = 0; e < 32; ++e) {
                    const i32 q = i32(std::min(std::max(std::nearbyint(v[32 * s + e] * inverse), -127.0f), 127.0f));
                    sum += q;
                    square += double(values[g * 128 + 32 * s + e]) * values[g * 128 + 32 * s + e];
                    for (u32 d = 0; d < 8; ++d) want[4 * d + s] |= u32(q >> d & 1) << (e / 4 + 8 * (e % 4));
                }
                wrong += sums[g * 4 + s] != sum;
                wrong += std::fabs(squares[g * 4 + s] - square) > 1e-5 * square;
            }
            for (u32 i = 0; i < 32; ++i) wrong += planes[g * 32 + i] != want[i];
        }
    }
    std::printf("check %s m%u: %zu of %zu differ, %zu rounded wrong\n", w.name.c_str(), m, differ, x.size(), wrong);
}

// Where the time of one launch in a chain goes, with a kernel that notes it: see `decode.md`.
void trace(Matrix& w, bool rounds) {
    set_rows(1);
    Input in(w.cols), next(w.rows);
    const Bytes out = allocate(w.rows * 4), residual = upload(floats(w.rows)), notes = allocate(w.blocks() * 64), squares = allocate(w.rows);
    replay([&] {
        for (u32 l = 0; l < w.layers; ++l) {
            LinearParams p = product(w, l, in.x, out, EPILOGUE_RESIDUAL, residual);
            if (rounds) {
                p.next = next.x;
                p.next.squares = pointer<float>(squares);
                p.next_gain = pointer<float>(next.gain);
            }
            if (l == w.layers / 2) p.conv.pending = pointer<float>(notes);
            multiply(w, 1, rounds, p, l == 0);
        }
    }, 3);
    const auto t = download<u64>(notes, w.blocks() * 8);
    u64 first = ~0ull;
    for (u32 b = 0; b < w.blocks(); ++b) first = std::min(first, t[b * 8]);
    std::printf("trace %s%s:", w.name.c_str(), rounds ? " rounds" : "");
    const char* names[] = {"starts", "ordered", "released", "there", "multiplied", "finished", "ends"};
    for (u32 k = 0; k < 7; ++k) {
        std::vector<u64> all;
        for (u32 b = 0; b < w.blocks(); ++b) all.push_back(t[b * 8 + k] - first);
        std::sort(all.begin(), all.end());
        std::printf(" %s %.2f %.2f %.2f,", names[k], all[0] / 1e3, all[all.size() / 2] / 1e3, all.back() / 1e3);
    }
    std::printf("\n");
}

struct Model {
    std::string name;
    u32 layers;
    // mixer's input, mixer's output, gate and up, down.
    std::vector<Matrix> weights;
    Matrix head;
};

void time_products(Model& model) {
    set_rows(1);
    std::printf("== %s, us a launch (GB/s)\n", model.name.c_str());
    std::vector<Input> inputs;
    for (Matrix& w : model.weights) inputs.emplace_back(w.cols);
    const Bytes out = allocate(size_t(300000) * 4), residual = allocate(size_t(300000) * 4);
    const u32 wide = 20000;
    Input next(wide);
    const Bytes squares = allocate(wide);
    const auto call = [&](size_t i, u32 layer, int variant, bool first) {
        Matrix& w = model.weights[i];
        LinearParams p = product(w, layer, inputs[i].x, out, i % 2 ? EPILOGUE_RESIDUAL : EPILOGUE_STORE, residual);
        const bool rounds = variant == 2 && i > 0;
        if (variant >= 2 && i != 3 && i != 1) {
            p.x.squares = pointer<float>(squares);
            p.x.raw = pointer<float>(residual);
            p.x.eps = 1e-6f;
        }
        if (rounds) {
            // What the next one reads.
            p.next = inputs[i == 3 ? 0 : i + 1].x;
            p.next.squares = i == 2 ? nullptr : pointer<float>(squares);
            p.next_gain = i == 2 ? nullptr : pointer<float>(next.gain);
            if (w.pair) p.out = nullptr;
        }
        multiply(w, 1, rounds, p, first);
    };
    for (size_t i = 0; i < model.weights.size(); ++i) {
        Matrix& w = model.weights[i];
        std::printf("%-8s %6ux%-6u", w.name.c_str(), w.rows * (w.pair ? 2 : 1), w.cols);
        for (int variant = 1; variant < 3; ++variant) {
            if (variant == 2 && i == 0) continue;
            const double us = replay([&] {
                for (u32 l = 0; l < model.layers; ++l) call(i, l, variant, l == 0);
            }) / model.layers;
            std::printf("  %s %.2f (%.0f)", variant == 1 ? "stream" : "+round", us, w.bytes() / us / 1e3);
        }
        std::printf("\n");
        std::fflush(stdout);
    }
    {
        Matrix& w = model.head;
        const double us = replay([&] {
            for (u32 l = 0; l < w.layers; ++l) {
                multiply(w, 1, false, product(w, l, inputs[0].x, out, EPILOGUE_STORE, residual), l == 0);
            }
        }) / w.layers;
        std::printf("head %.2f (%.0f)\n", us, w.bytes() / us / 1e3);
    }
    for (u32 m : {2u, 4u, 8u}) {
        set_rows(m);
        const double us = replay([&] {
            for (u32 l = 0; l < model.layers; ++l) {
                for (size_t i = 0; i < 4; ++i) {
                    Matrix& w = model.weights[i];
                    LinearParams p = product(w, l, inputs[i].x, out, i % 2 ? EPILOGUE_RESIDUAL : EPILOGUE_STORE, residual);
                    multiply(w, m, false, p, l + i == 0);
                }
            }
        });
        std::printf("%u rows, products alone: %.1f us\n", m, us);
        set_rows(1);
    }
    std::fflush(stdout);
}

}  // namespace

#include "others.hpp"
#include "whole.hpp"

int main(int argc, char** argv) {
    folder = argc > 1 ? argv[1] : ".";
    chained = std::getenv("NOCHAIN") == nullptr;
    CALL(cuInit, 0);
    CUdevice device;
    CUcontext context;
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    // What follows the folder: `products` or `step` for these alone.
    for (const char* file : {"linear_quads.cubin", "linear_stream.cubin", "prepare.cubin", "conv.cubin", "delta.cubin",
                             "attention_f16.cubin", "attention_q8.cubin", "attention_ring.cubin", "attention_combine.cubin", "sample.cubin", "embed.cubin", "pointwise.cubin", "inputs.cubin"}) {
        load(file);
    }
    count_of_rows = allocate(64);
    set_rows(1);
    if (number("CHECKS", 1) == 1) {
        for (u32 m : {1u, 2u, 4u}) {
            compare(Matrix("qkv", 4096 + 96, 2048, false, 1), m);
            compare(Matrix("down", 1280, 17408, false, 1), m);
            compare(Matrix("gate_up", 1280, 5120, true, 1), m);
            compare(Matrix("gate_up", 17408, 5120, true, 1), m);
        }
    }
    for (bool q8 : {false, true}) {
        if (number("CHECKS", 1) == 0) break;
        for (u32 past : {0u, 63u, 64u, 255u, 600u, 3000u}) {
            for (u32 planned : {1u, 12u}) {
                check_attention(24, 4, 256, past, planned, q8);
                check_attention(32, 8, 128, past, planned, q8);
            }
        }
        for (u32 past : {70u, 1023u, 1024u, 5000u, 12345u, 40000u}) {
            for (u32 planned : {1u, 160u}) {
                check_ring(24, 4, 256, past, planned, q8);
                check_ring(32, 8, 128, past, planned, q8);
            }
        }
    }
    // What follows names a model: that one alone.
    const std::string part = argc > 2 ? argv[2] : "all";
    const auto wanted = [&](const char* name) { return argc <= 3 || std::string(argv[3]) == name; };
    if (part == "trace") {
        Matrix all[] = {{"in", 16480, 5120, false, 24}, {"out", 5120, 6144, false, 24}, {"gate_up", 17408, 5120, true, 24},
                        {"down", 5120, 17408, false, 24}, {"o 1.7b", 2048, 2048, false, 24}, {"o 8b", 4096, 4096, false, 24}};
        for (Matrix& w : all) {
            trace(w, false);
            if (w.rows % 128 == 0) trace(w, true);
        }
        return 0;
    }
    if (part == "all" || part == "others") time_others();
    if (part == "others") return 0;
    if (wanted("27b")) {
        Model m{"27b", 64, {}, Matrix("head", 248320, 5120, false, 3)};
        m.weights.emplace_back("in", 16480, 5120, false, 64);
        m.weights.emplace_back("out", 5120, 6144, false, 64);
        m.weights.emplace_back("gate_up", 17408, 5120, true, 64);
        m.weights.emplace_back("down", 5120, 17408, false, 64);
        for (u32 past : pasts({70, 600, 2000, 32700})) time_step(m, {5120, 24, 4, 256, past, 4, true});
        if (part != "step") time_products(m);
    }
    if (wanted("8b")) {
        Model m{"8b", 36, {}, Matrix("head", 151936, 4096, false, 3)};
        m.weights.emplace_back("qkv", 6144, 4096, false, 36);
        m.weights.emplace_back("o", 4096, 4096, false, 36);
        m.weights.emplace_back("gate_up", 12288, 4096, true, 36);
        m.weights.emplace_back("down", 4096, 12288, false, 36);
        for (u32 past : pasts({70, 600})) time_step(m, {4096, 32, 8, 128, past, 1, false});
        if (part != "step") time_products(m);
    }
    if (wanted("1.7b")) {
        Model m{"1.7b", 28, {}, Matrix("head", 151936, 2048, false, 3)};
        m.weights.emplace_back("qkv", 4096, 2048, false, 28);
        m.weights.emplace_back("o", 2048, 2048, false, 28);
        m.weights.emplace_back("gate_up", 6144, 2048, true, 28);
        m.weights.emplace_back("down", 2048, 6144, false, 28);
        for (u32 past : pasts({70, 600})) time_step(m, {2048, 16, 8, 128, past, 1, false});
        if (part != "step") time_products(m);
    }
    return 0;
}
