// Products with tens of rows on a device: `linear_tens` in several divisions of its work beside the kernels that it takes the
// place of. `build.sh FOLDER` makes it; `FOLDER/tens FOLDER [short | check | 27b | 8b | layers]` runs it.
//
// Every result is compared with the plain kernel's bit for bit. Times are of captured graphs of launches that overlap as in the
// backend, over weights larger than the second-level cache: median of several replays, divided by the launches.
#include "driver.hpp"

#include <algorithm>
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

std::vector<CUmodule> modules;
std::map<std::string, CUfunction> found;
CUstream stream;
u32 multiprocessors;
constexpr u32 MOST_SHARED = 232448;

void load(const std::string& path) {
    CUmodule module;
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

int attribute(CUfunction function, CUfunction_attribute what) {
    int value = 0;
    CALL(cuFuncGetAttribute, &value, what, function);
    return value;
}

CUfunction kernel(const std::string& name) {
    auto& function = found[name];
    if (function != nullptr) return function;
    auto get = symbol<decltype(cuModuleGetFunction)>("cuModuleGetFunction");
    for (CUmodule module : modules) {
        if (get(&function, module, name.c_str()) == CUDA_SUCCESS) break;
    }
    if (function == nullptr) {
        std::printf("no kernel %s\n", name.c_str());
        std::exit(1);
    }
    const int most = MOST_SHARED - attribute(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    CALL(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most);
    return function;
}

Bytes allocate(size_t bytes) {
    CUdeviceptr at;
    CALL(cuMemAlloc, &at, bytes + 256);
    // No numbers, so that what is never written shows.
    CALL(cuMemsetD8, at, 0xff, bytes);
    return at;
}

template <typename T>
T* pointer(Bytes at) { return reinterpret_cast<T*>(at); }

u64 seed = 1;
u32 random_word() {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return u32(seed >> 32);
}

// `count` values, the same million again and again.
template <typename T>
Bytes repeated(size_t count, const std::function<T()>& next) {
    std::vector<T> some(std::min<size_t>(count, (1 << 20) - 3));
    for (T& v : some) v = next();
    const Bytes at = allocate(count * sizeof(T));
    for (size_t done = 0; done < count; done += some.size()) {
        CALL(cuMemcpyHtoD, at + done * sizeof(T), some.data(), std::min(some.size(), count - done) * sizeof(T));
    }
    check(symbol<decltype(cuCtxSynchronize)>("cuCtxSynchronize")(), "cuCtxSynchronize");
    return at;
}

struct Shape {
    std::string name;
    u32 grid[3];
    u32 threads, shared;
    // Blocks that run together.
    u32 cluster = 1;
};

template <typename P>
void launch(const Shape& s, P params, bool first) {
    CUlaunchAttribute attributes[2] = {};
    u32 count = 0;
    if (!first) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count++].value.programmaticStreamSerializationAllowed = 1;
    }
    if (s.cluster > 1) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[count++].value.clusterDim = {s.cluster, 1, 1};
    }
    CUlaunchConfig c = {};
    c.gridDimX = s.grid[0], c.gridDimY = s.grid[1], c.gridDimZ = s.grid[2];
    c.blockDimX = s.threads, c.blockDimY = c.blockDimZ = 1;
    c.sharedMemBytes = s.shared;
    c.hStream = stream;
    c.attrs = attributes;
    c.numAttrs = count;
    void* list[] = {&params};
    check(symbol<decltype(cuLaunchKernelEx)>("cuLaunchKernelEx")(&c, kernel(s.name), list, nullptr), s.name.c_str());
}

// Microseconds of one replay.
double replay(const std::function<void()>& record, int times = 11) {
    CUgraph graph;
    CUgraphExec exec;
    CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    record();
    CALL(cuStreamEndCapture, stream, &graph);
    CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
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
    CALL(cuEventDestroy, a);
    CALL(cuEventDestroy, b);
    CALL(cuGraphExecDestroy, exec);
    CALL(cuGraphDestroy, graph);
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }

// ---- one product -----------------------------------------------------------------------------------------------------

struct Matrix {
    const char* name;
    // Of one part; `pair`: gate and up.
    u32 rows, cols;
    bool pair;
    u32 bits;

    u32 parts() const { return pair ? 2 : 1; }
    u32 blocks() const { return ceil_div(rows, 32); }
    u32 records() const { return ceil_div(cols, 128); }
    u32 slices() const { return records() >= 48 ? 16 : 8; }
    size_t code_bytes() const { return size_t(blocks()) * 32 * records() * 16 * bits; }
    size_t scale_bytes() const { return size_t(blocks()) * 32 * records() * 2; }
    size_t bytes() const { return parts() * (code_bytes() + scale_bytes()); }
};

// Its weights once for each layer, and memory for its input and result.
struct Place {
    Matrix of;
    u32 layers;
    Bytes codes, scales, floats, gain, out, other, residual;
    Prepared x;
    u32 epilogue;
    // Products whose result is added to the residual stream take theirs as it comes.
    bool normed;
    std::vector<Bytes> all;

    Place(const Matrix& of, u32 layers, u32 most) : of(of), layers(layers), x() {
        const u32 padded = ceil_div(most, 64) * 64;
        const size_t width = size_t(of.records()) * 128;
        codes = keep(repeated<u32>(of.parts() * layers * of.code_bytes() / 4, random_word));
        // Halves between 2^-6 and 2^-5, of either sign.
        const auto scale = [] { return u16((random_word() & 0x83ff) | 9 << 10); };
        scales = keep(repeated<u16>(of.parts() * layers * of.scale_bytes() / 2, scale));
        const auto number = [] { return float(i32(random_word())) / 2147483648.0f; };
        floats = keep(repeated<float>(padded * width, number));
        gain = keep(repeated<float>(width, number));
        residual = keep(repeated<float>(size_t(padded) * of.rows, number));
        out = keep(allocate(size_t(padded) * of.rows * 4));
        other = keep(allocate(size_t(padded) * of.rows * 4));
        x.codes = pointer<i8>(keep(allocate(padded * width)));
        x.tiles = pointer<u8>(keep(allocate(padded * width)));
        x.beside = pointer<Beside>(keep(allocate(padded * width / 16)));
        x.scales = pointer<float>(keep(allocate(padded * width / 32)));
        x.sums = pointer<i32>(keep(allocate(padded * width / 8)));
        x.cols = x.padded = u32(width);
        const std::string name = of.name;
        normed = name != "out" && name != "o" && name != "down" && name != "long";
        epilogue = of.pair ? EPILOGUE_SWIGLU : normed ? EPILOGUE_STORE : EPILOGUE_RESIDUAL;
    }
    ~Place() {
        for (Bytes at : all) CALL(cuMemFree, at);
    }
    Place(const Place&) = delete;

    Bytes keep(Bytes at) {
        all.push_back(at);
        return at;
    }

    LinearParams product(u32 layer, Bytes rows, Bytes to) const {
        LinearParams p;
        std::memset(&p, 0, sizeof(p));
        p.rows = pointer<u32>(rows);
        p.x = x;
        p.residual = {pointer<float>(residual), of.rows, 1, of.rows, of.rows};
        p.out = pointer<float>(to);
        p.out_stride = of.rows;
        p.epilogue = epilogue;
        p.part_count = of.parts();
        p.slices = of.slices();
        for (u32 k = 0; k < of.parts(); ++k) {
            Part& part = p.parts[k];
            part.codes = pointer<u8>(codes + (layer * of.parts() + k) * of.code_bytes());
            part.scales = pointer<u8>(scales + (layer * of.parts() + k) * of.scale_bytes());
            part.rows = of.rows;
            part.first_row = k * of.rows;
            part.first_block = k * of.blocks();
            part.format = of.bits == 1 ? BITS1 : BITS2;
            part.group = 128;
            part.groups = of.records();
            part.units = of.records() * of.bits;
            part.scale_type = PARAM_F16;
            part.factor = of.bits == 1 ? 1.0f : 0.5f;
            part.center = of.bits;
        }
        return p;
    }

    PrepareParams preparation(Bytes rows) const {
        PrepareParams p;
        std::memset(&p, 0, sizeof(p));
        p.rows = pointer<u32>(rows);
        p.x = p.gate = {pointer<float>(floats), of.cols, 1, of.cols, of.cols};
        p.gain = normed ? pointer<float>(gain) : nullptr;
        p.out = x;
        p.eps = 1e-6f;
        p.wanted = PREPARE_INT8 | PREPARE_TILES;
        p.input = normed ? INPUT_NORM : INPUT_PLAIN;
        return p;
    }
};

Shape prepare(const Matrix& m, u32 rows, bool shared_rows) {
    return {"prepare", {rows, shared_rows ? ceil_div(m.records(), 16) : 1, 1}, 512, 0};
}

std::string before(const Matrix& m) { return "linear_bits" + std::to_string(m.bits) + "_i8"; }

Shape plain(const Matrix& m, u32 rows) { return {before(m) + "_m8", {m.blocks(), ceil_div(rows, 8), 1}, 256, 0}; }

// The kernels so far: activation rows and pairs of 16 weight rows of a block.
Shape earlier(const Matrix& m, const char* what, u32 rows, u32 tile, u32 pairs, u32 threads, u32 shared) {
    const u32 all = m.pair ? 2 * m.blocks() : m.blocks();
    return {before(m) + "_" + what, {ceil_div(all, pairs), ceil_div(rows, tile), 1}, threads, shared};
}

struct Variant {
    const char* name;
    u32 bits, columns, split, groups, records, stages;

    // Dynamic shared memory where so many blocks share the slices, as `Plan::shared` of `linear_tens.cuh`.
    u32 shared(const Matrix& m, u32 ranks) const {
        const u32 stage = records * (columns * 128 + 256 + 2 * groups * (bits * 512 + 64));
        const u32 size = ceil_div(m.records(), m.slices()), slices = ceil_div(m.records(), size);
        return stages * ceil_div(stage, 1024) * 1024 + (split ? ceil_div(slices * groups * columns * 256, ranks) : groups * columns * 256);
    }
    u32 sets(const Matrix& m) const { return ceil_div(m.pair ? m.blocks() : ceil_div(m.blocks(), 2), groups); }
    bool fits(const Matrix& m, u32 rows, u32 ranks) const {
        if (bits != m.bits || (columns < 32 && rows > columns)) return false;
        const u32 size = ceil_div(m.records(), m.slices());
        if (split ? ranks == 1 || ceil_div(m.records(), size) < ranks || sets(m) * ranks * ceil_div(rows, 32) > 2 * multiprocessors : ranks > 1) return false;
        return shared(m, ranks) + attribute(kernel(name), CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) <= MOST_SHARED;
    }
    Shape shape(const Matrix& m, u32 rows, u32 ranks) const {
        const u32 row_tiles = ceil_div(rows, 32);
        const u32 blocks = split ? sets(m) * ranks : std::min(sets(m), std::max(multiprocessors / row_tiles, 1u));
        return {name, {blocks, row_tiles, 1}, (groups + 1) * 128, shared(m, ranks), ranks};
    }
};

#define TENS(BITS, COLUMNS, SPLIT, GROUPS, RECORDS, STAGES) \
    {"tens_" #BITS "_" #COLUMNS "_" #SPLIT "_" #GROUPS "_" #RECORDS "_" #STAGES, BITS, COLUMNS, SPLIT, GROUPS, RECORDS, STAGES},
const std::vector<Variant> VARIANTS = {
#include "tens_variants.hpp"
};

// The fastest one so far: of a matrix's name, its bits and a number of rows.
std::map<std::string, std::pair<double, Shape>> fastest;
std::string key(const Matrix& m, u32 rows) {
    return m.name + std::to_string(m.rows) + "_" + std::to_string(m.cols) + "_" + std::to_string(m.bits) + "_" + std::to_string(rows);
}

Bytes row_count;
void set_rows(u32 rows) { CALL(cuMemcpyHtoD, row_count, &rows, 4); }

u32 wrong_in_all = 0;

// Whether both results are the same bits; then the second is spoilt again.
void compare(const Place& place, u32 rows, const char* what) {
    CALL(cuStreamSynchronize, stream);
    const size_t n = size_t(rows) * place.of.rows;
    std::vector<u32> a(n), b(n);
    CALL(cuMemcpyDtoH, a.data(), place.out, n * 4);
    CALL(cuMemcpyDtoH, b.data(), place.other, n * 4);
    CALL(cuMemsetD8, place.other, 0xff, n * 4);
    size_t differ = 0, first = n;
    for (size_t i = 0; i < n; ++i) {
        if (a[i] == b[i]) continue;
        if (differ++ == 0) first = i;
    }
    if (differ == 0) return;
    ++wrong_in_all;
    std::printf("\nWRONG %s: %zu of %zu, first in row %zu, column %zu: %08x, not %08x\n", what, differ, n, first / place.of.rows,
                first % place.of.rows, b[first], a[first]);
}

void each(const Matrix& m, const std::vector<u32>& row_counts, bool times) {
    const u32 layers = times ? std::max(2u, u32((150u << 20) / m.bytes()) + 1) : 1;
    Place place(m, layers, row_counts.back());
    for (u32 rows : row_counts) {
        set_rows(rows);
        std::printf("%-12s %6u x %-6u %u bits %3u rows:", m.name, m.rows * m.parts(), m.cols, m.bits, rows);
        launch(prepare(m, rows, true), place.preparation(row_count), true);
        launch(plain(m, rows), place.product(0, row_count, place.out), true);
        std::vector<std::pair<std::string, Shape>> all;
        if (rows <= 64) all.push_back({"batch", earlier(m, "batch", rows, 32, 1, 256, 98304)});
        all.push_back({"wide", earlier(m, "wide", rows, 32, 8, 256, 78848)});
        if (rows > 32) {
            Shape group = earlier(m, "group", rows, 96, 6, 512, 204800);
            group.grid[0] = std::min(group.grid[0] * group.grid[1], multiprocessors), group.grid[1] = 1;
            all.push_back({"group", group});
        }
        for (const Variant& v : VARIANTS) {
            for (u32 ranks : {1u, 2u, 4u, 8u}) {
                if (v.fits(m, rows, ranks)) all.push_back({v.name + ("/" + std::to_string(ranks)), v.shape(m, rows, ranks)});
            }
        }
        for (const auto& [name, shape] : all) {
            launch(shape, place.product(0, row_count, place.other), true);
            compare(place, rows, name.c_str());
            if (!times) continue;
            const double us = replay([&, s = &shape] {
                for (u32 i = 0; i < 2 * layers; ++i) launch(*s, place.product(i % layers, row_count, place.other), i == 0);
            }) / (2 * layers);
            std::printf(" | %s %.1f", name.c_str(), us);
            std::fflush(stdout);
            if (name.compare(0, 4, "tens") != 0) continue;
            const auto best = fastest.emplace(key(m, rows), std::pair{us, shape}).first;
            if (us < best->second.first) best->second = {us, shape};
        }
        if (times) {
            for (bool shared_rows : {false, true}) {
                const double us = replay([&] {
                    for (u32 i = 0; i < 40; ++i) launch(prepare(m, rows, shared_rows), place.preparation(row_count), i == 0);
                }) / 40;
                std::printf(" | prepare%s %.1f", shared_rows ? " by several blocks" : "", us);
            }
        }
        std::printf("\n");
        std::fflush(stdout);
    }
}

// Preparation and product by turns, as in a layer: microseconds of a layer.
void layer(const char* model, const std::vector<Matrix>& matrices, u32 rows, u32 layers) {
    std::vector<Place*> places;
    for (const Matrix& m : matrices) places.push_back(new Place(m, layers, rows));
    set_rows(rows);
    const auto all = [&](bool shared_rows, const std::function<Shape(const Matrix&)>& shape) {
        return replay([&] {
            bool first = true;
            for (u32 i = 0; i < layers; ++i) {
                for (const Place* place : places) {
                    launch(prepare(place->of, rows, shared_rows), place->preparation(row_count), first);
                    launch(shape(place->of), place->product(i, row_count, place->other), false);
                    first = false;
                }
            }
        }) / layers;
    };
    std::printf("%s, %u rows, us a layer of %zu preparations and products:", model, rows, places.size());
    if (rows <= 64) {
        std::printf(" batch %.1f,", all(false, [&](const Matrix& m) { return earlier(m, "batch", rows, 32, 1, 256, 98304); }));
    } else {
        std::printf(" wide %.1f,", all(false, [&](const Matrix& m) { return earlier(m, "wide", rows, 32, 8, 256, 78848); }));
    }
    // The fastest of those that were timed.
    const auto choose = [&](const Matrix& m) {
        const auto best = fastest.find(key(m, rows));
        return best != fastest.end() ? best->second.second : earlier(m, "batch", rows, 32, 1, 256, 98304);
    };
    std::printf(" tens %.1f, with preparation by several blocks %.1f\n", all(false, choose), all(true, choose));
    std::fflush(stdout);
    for (Place* place : places) delete place;
}

std::vector<Matrix> model(const std::string& name, u32 bits) {
    if (name == "27b") {
        return {{"in", 16480, 5120, false, bits}, {"out", 5120, 6144, false, bits}, {"gate_up", 17408, 5120, true, bits},
                {"down", 5120, 17408, false, bits}};
    }
    if (name == "8b") {
        return {{"qkv", 6144, 4096, false, bits}, {"o", 4096, 4096, false, bits}, {"gate_up", 12288, 4096, true, bits},
                {"down", 4096, 12288, false, bits}};
    }
    return {{"qkv", 4096, 2048, false, bits}, {"o", 2048, 2048, false, bits}, {"gate_up", 6144, 2048, true, bits},
            {"down", 2048, 6144, false, bits}};
}

}  // namespace

int main(int count, char** arguments) {
    const std::string folder = count > 1 ? arguments[1] : ".", what = count > 2 ? arguments[2] : "";
    CUdevice device;
    CUcontext context;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreate, &stream, 0);
    int value = 0;
    CALL(cuDeviceGetAttribute, &value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    multiprocessors = u32(value);
    for (const char* file : {"linear_bits1", "linear_bits2", "linear_batch", "linear_wide", "linear_group", "prepare", "tens"}) {
        load(folder + "/" + file + ".cubin");
    }
    row_count = allocate(4);
    // Odd shapes: rows that are no whole tile, few records, slices without records.
    if (what.empty() || what == "check" || what == "short") {
        for (u32 bits : {1u, 2u}) {
            each({"odd", 100, 1024, false, bits}, {9, 32, 33, 96}, false);
            each({"odd pair", 72, 1152, true, bits}, {10, 31, 70}, false);
            each({"long", 96, 17408, false, bits}, {17, 64}, false);
            each({"many", 1000, 640, false, bits}, {32, 40}, false);
        }
    }
    if (what == "short") return wrong_in_all != 0;
    const std::vector<u32> row_counts = {9, 16, 32, 64, 96};
    for (const char* name : {"27b", "8b"}) {
        if (what.empty() || what == "check" || what == name) {
            for (const Matrix& m : model(name, 1)) each(m, row_counts, what != "check");
        }
    }
    if (what.empty() || what == "check") {
        for (const Matrix& m : model("27b", 2)) each(m, {16, 32}, what != "check");
        each({"head", 248320, 5120, false, 1}, {32}, what != "check");
    }
    if (what.empty() || what == "layers") {
        for (const char* name : {"27b", "8b", "1.7b"}) {
            for (u32 rows : {9u, 32u, 64u}) layer(name, model(name, 1), rows, 16);
        }
        layer("27b of 2 bits", model("27b", 2), 32, 16);
    }
    std::printf("%u results were wrong\n", wrong_in_all);
    return wrong_in_all != 0;
}
