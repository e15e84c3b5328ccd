// As much of the CUDA driver and of NVRTC as `backend-cuda` calls, over kernels that run on fibers.
//
// Everything happens at once and in the order of the calls. Memory is filled with 0xff (not a number) when it is allocated,
// and ends at a page that cannot be touched. What a kernel has read as never written no kernel can write any more. A captured stream notes its launches, and a graph repeats them.

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "fibers.hpp"

namespace {

using Code = int;
constexpr Code FINE = 0, INVALID = 1, NO_MEMORY = 2, NOT_FOUND = 500;
constexpr size_t PAGE = 4096;
constexpr size_t MEMORY = size_t(16) << 30;

std::mutex lock;
// Start and mapped bytes of each piece of memory.
std::map<uintptr_t, std::pair<void*, size_t>> pieces;
size_t used = 0;

// Start and end of the piece that was frozen last.
uintptr_t frozen[2] = {};

// The host may write everywhere: the piece of memory at this address is whole again.
void thaw(const void* at) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(at);
    auto found = pieces.upper_bound(address);
    if (found == pieces.begin()) return;
    const auto [start, mapped] = (--found)->second;
    frozen[0] = frozen[1] = 0;
    if (address < reinterpret_cast<uintptr_t>(start) + mapped - PAGE) mprotect(start, mapped - PAGE, PROT_READ | PROT_WRITE);
}

struct Function {
    std::string name;
    emulator::Kernel kernel;
};

struct Launch {
    const Function* function;
    uint3 grid;
    unsigned threads;
    alignas(16) char params[4096];

    void run() const { emulator::launch(function->name.c_str(), function->kernel, grid, threads, params); }
};

struct Stream {
    bool capturing = false;
    std::vector<Launch> launches;
};

struct Graph {
    std::vector<Launch> launches;
};

std::map<std::string, Function> functions;

// A structure whose size only the kernel knows: as many bytes as can be read.
void copy_params(char (&to)[4096], const void* from) {
    const iovec local = {to, sizeof(to)};
    size_t left = sizeof(to);
    const uintptr_t at = reinterpret_cast<uintptr_t>(from);
    // One piece a page, so that one that is missing ends the copy without failing it.
    const size_t first = PAGE - at % PAGE;
    iovec remote[2] = {{const_cast<void*>(from), std::min(first, left)}, {reinterpret_cast<void*>(at + first), 0}};
    left -= remote[0].iov_len;
    remote[1].iov_len = left;
    process_vm_readv(getpid(), &local, 1, remote, left > 0 ? 2 : 1, 0);
}

template <typename T>
Code put(T* to, T value) {
    *to = value;
    return FINE;
}

int number(const char* variable, int otherwise) {
    const char* text = std::getenv(variable);
    return text ? std::atoi(text) : otherwise;
}

struct Copy2D {
    size_t source_x, source_y;
    int source_type;
    const char* source_host;
    uintptr_t source_device;
    void* source_array;
    size_t source_pitch;
    size_t target_x, target_y;
    int target_type;
    char* target_host;
    uintptr_t target_device;
    void* target_array;
    size_t target_pitch;
    size_t width, height;
};

}  // namespace

// Called by kernels, which run while their launch holds the lock.
void emulator::freeze(const void* at) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(at);
    if (address >= frozen[0] && address < frozen[1]) return;
    auto found = pieces.upper_bound(address);
    if (found == pieces.begin()) return;
    const auto [start, mapped] = (--found)->second;
    frozen[0] = found->first;
    frozen[1] = reinterpret_cast<uintptr_t>(start) + mapped - PAGE;
    mprotect(start, mapped - PAGE, PROT_READ);
}

extern "C" {

// ---- device and context ----

Code cuInit(unsigned) { return FINE; }
Code cuDriverGetVersion(int* version) { return put(version, 12040); }
Code cuDeviceGet(int* device, int) { return put(device, 0); }
Code cuDeviceGetCount(int* count) { return put(count, 1); }
Code cuDeviceGetName(char* name, int length, int) {
    std::snprintf(name, length, "emulated device");
    return FINE;
}
Code cuDeviceTotalMem_v2(size_t* bytes, int) { return put(bytes, MEMORY); }
Code cuDeviceGetAttribute(int* value, int attribute, int) {
    const int capability = number("EMULATOR_CAPABILITY", 90);
    switch (attribute) {
        case 75: return put(value, capability / 10);
        case 76: return put(value, capability % 10);
        case 16: return put(value, 4);       // multiprocessors
        case 97: return put(value, int(emulator::SHARED_BYTES));   // shared memory that a block may ask for
        default: return put(value, 0);
    }
}
Code cuDevicePrimaryCtxRetain(void** context, int) { return put(context, reinterpret_cast<void*>(1)); }
Code cuDevicePrimaryCtxRelease_v2(int) { return FINE; }
Code cuCtxSetCurrent(void*) { return FINE; }
Code cuCtxGetCurrent(void** context) { return put(context, reinterpret_cast<void*>(1)); }
Code cuCtxSynchronize() { return FINE; }
Code cuGetErrorName(Code, const char** name) { return put(name, static_cast<const char*>("CUDA_ERROR_EMULATED")); }
Code cuGetErrorString(Code, const char** text) { return put(text, static_cast<const char*>("the emulator refuses")); }

// ---- memory ----

Code cuMemGetInfo_v2(size_t* free, size_t* total) {
    const std::lock_guard guard(lock);
    *free = MEMORY - used;
    return put(total, MEMORY);
}

Code cuMemAlloc_v2(uintptr_t* address, size_t bytes) {
    const std::lock_guard guard(lock);
    if (bytes == 0) return INVALID;
    const size_t held = (bytes + 255) / 256 * 256, mapped = (held + PAGE - 1) / PAGE * PAGE;
    if (used + held > MEMORY) return NO_MEMORY;
    char* start = static_cast<char*>(
        mmap(nullptr, mapped + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (start == MAP_FAILED) return NO_MEMORY;
    mprotect(start + mapped, PAGE, PROT_NONE);
    std::memset(start, 0xff, mapped);
    *address = reinterpret_cast<uintptr_t>(start + mapped - held);
    pieces[*address] = {start, mapped + PAGE};
    used += held;
    return FINE;
}

Code cuMemFree_v2(uintptr_t address) {
    const std::lock_guard guard(lock);
    const auto found = pieces.find(address);
    if (found == pieces.end()) return INVALID;
    const auto [start, mapped] = found->second;
    used -= reinterpret_cast<uintptr_t>(start) + mapped - PAGE - address;
    munmap(start, mapped);
    pieces.erase(found);
    frozen[0] = frozen[1] = 0;
    return FINE;
}

Code cuMemHostAlloc(void** address, size_t bytes, unsigned) { return put(address, std::aligned_alloc(256, (bytes + 255) / 256 * 256)); }
Code cuMemFreeHost(void* address) {
    std::free(address);
    return FINE;
}

static Code copy(void* to, const void* from, size_t bytes) {
    const std::lock_guard guard(lock);
    thaw(to);
    std::memmove(to, from, bytes);
    return FINE;
}
Code cuMemcpyHtoD_v2(uintptr_t to, const void* from, size_t bytes) { return copy(reinterpret_cast<void*>(to), from, bytes); }
Code cuMemcpyHtoDAsync_v2(uintptr_t to, const void* from, size_t bytes, Stream*) { return cuMemcpyHtoD_v2(to, from, bytes); }
Code cuMemcpyDtoH_v2(void* to, uintptr_t from, size_t bytes) { return copy(to, reinterpret_cast<void*>(from), bytes); }
Code cuMemcpyDtoHAsync_v2(void* to, uintptr_t from, size_t bytes, Stream*) { return cuMemcpyDtoH_v2(to, from, bytes); }
Code cuMemcpyDtoD_v2(uintptr_t to, uintptr_t from, size_t bytes) {
    return copy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
}
Code cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, Stream*) { return cuMemcpyDtoD_v2(to, from, bytes); }
Code cuMemcpy2DAsync_v2(const Copy2D* c, Stream*) {
    const std::lock_guard guard(lock);
    const char* from = c->source_type == 1 ? c->source_host : reinterpret_cast<const char*>(c->source_device);
    char* to = c->target_type == 1 ? c->target_host : reinterpret_cast<char*>(c->target_device);
    thaw(to);
    for (size_t y = 0; y < c->height; ++y) {
        std::memcpy(to + (c->target_y + y) * c->target_pitch + c->target_x,
                    from + (c->source_y + y) * c->source_pitch + c->source_x, c->width);
    }
    return FINE;
}
Code cuMemcpy2DUnaligned_v2(const Copy2D* c) { return cuMemcpy2DAsync_v2(c, nullptr); }
Code cuMemsetD8Async(uintptr_t at, unsigned char value, size_t bytes, Stream*) {
    const std::lock_guard guard(lock);
    thaw(reinterpret_cast<void*>(at));
    std::memset(reinterpret_cast<void*>(at), value, bytes);
    return FINE;
}
Code cuMemsetD32_v2(uintptr_t at, unsigned value, size_t count) {
    std::fill_n(reinterpret_cast<unsigned*>(at), count, value);
    return FINE;
}
Code cuMemsetD8_v2(uintptr_t at, unsigned char value, size_t bytes) { return cuMemsetD8Async(at, value, bytes, nullptr); }

// ---- streams and events ----

Code cuStreamCreate(Stream** stream, unsigned) { return put(stream, new Stream); }
Code cuStreamCreateWithPriority(Stream** stream, unsigned, int) { return put(stream, new Stream); }
Code cuStreamDestroy_v2(Stream* stream) {
    delete stream;
    return FINE;
}
Code cuStreamSynchronize(Stream*) { return FINE; }
Code cuStreamWaitEvent(Stream*, void*, unsigned) { return FINE; }
Code cuStreamIsCapturing(Stream* stream, int* status) { return put(status, stream && stream->capturing ? 1 : 0); }
Code cuEventCreate(void** event, unsigned) { return put(event, std::malloc(1)); }
Code cuEventDestroy_v2(void* event) {
    std::free(event);
    return FINE;
}
Code cuEventRecord(void*, Stream*) { return FINE; }
Code cuEventQuery(void*) { return FINE; }
Code cuEventSynchronize(void*) { return FINE; }
Code cuEventElapsedTime(float* milliseconds, void*, void*) { return put(milliseconds, 0.0f); }
Code cuEventElapsedTime_v2(float* milliseconds, void*, void*) { return put(milliseconds, 0.0f); }

// ---- modules and launches ----

Code cuModuleLoadData(void** module, const void*) { return put(module, reinterpret_cast<void*>(1)); }
Code cuModuleUnload(void*) { return FINE; }
Code cuModuleGetFunction(const Function** function, void*, const char* name) {
    const std::lock_guard guard(lock);
    const auto kernel = reinterpret_cast<emulator::Kernel>(dlsym(RTLD_DEFAULT, name));
    Dl_info own, other;
    // Only this library's functions are kernels.
    if (!kernel || !dladdr(reinterpret_cast<void*>(kernel), &other) || !dladdr(reinterpret_cast<void*>(cuInit), &own) ||
        own.dli_fbase != other.dli_fbase) {
        return NOT_FOUND;
    }
    return put(function, static_cast<const Function*>(&functions.try_emplace(name, Function{name, kernel}).first->second));
}
Code cuFuncGetAttribute(int* value, int, const Function*) { return put(value, 0); }
Code cuFuncSetAttribute(const Function*, int, int) { return FINE; }

Code cuLaunchKernel(const Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                    unsigned threads_z, unsigned shared, Stream* stream, void** params, void**) {
    const std::lock_guard guard(lock);
    if (threads == 0 || threads > 1024 || threads_y != 1 || threads_z != 1 || shared > emulator::SHARED_BYTES) return INVALID;
    if (x == 0 || y == 0 || z == 0 || y > 65535 || z > 65535) return INVALID;
    Launch launch{function, {x, y, z}, threads, {}};
    copy_params(launch.params, params[0]);
    if (stream && stream->capturing) stream->launches.push_back(launch);
    else launch.run();
    return FINE;
}

struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    Stream* stream;
    const void* attributes;
    unsigned attribute_count;
};

Code cuLaunchKernelEx(const LaunchConfig* c, const Function* function, void** params, void** extra) {
    return cuLaunchKernel(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared,
                          c->stream, params, extra);
}

Code cuStreamBeginCapture_v2(Stream* stream, int) {
    stream->capturing = true;
    return FINE;
}
Code cuStreamEndCapture(Stream* stream, Graph** graph) {
    stream->capturing = false;
    *graph = new Graph{std::move(stream->launches)};
    stream->launches.clear();
    return FINE;
}
Code cuGraphInstantiateWithFlags(Graph** made, Graph* graph, unsigned long long) { return put(made, new Graph(*graph)); }
Code cuGraphLaunch(Graph* graph, Stream*) {
    const std::lock_guard guard(lock);
    for (const Launch& launch : graph->launches) launch.run();
    return FINE;
}
Code cuGraphUpload(Graph*, Stream*) { return FINE; }
// Nodes are the places of launches in their line, and 1.
Code cuGraphGetRootNodes(Graph* graph, uintptr_t* nodes, size_t* count) {
    *count = graph->launches.empty() ? 0 : 1;
    if (nodes && *count == 1) *nodes = 1;
    return FINE;
}
struct NodeParams {
    const Function* function;
    unsigned grid[3], block[3], shared;
    void** params;
};
Code cuGraphExecKernelNodeSetParams_v2(Graph* graph, uintptr_t node, const NodeParams* params) {
    const std::lock_guard guard(lock);
    if (node == 0 || node > graph->launches.size()) return INVALID;
    Launch& launch = graph->launches[node - 1];
    if (launch.function != params->function || launch.threads != params->block[0]) return INVALID;
    copy_params(launch.params, params->params[0]);
    return FINE;
}
Code cuGraphDestroy(Graph* graph) {
    delete graph;
    return FINE;
}
Code cuGraphExecDestroy(Graph* graph) { return cuGraphDestroy(graph); }

// ---- translation: there is nothing to translate ----

Code nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
    return put(program, reinterpret_cast<void*>(1));
}
Code nvrtcCompileProgram(void*, int, const char* const*) { return FINE; }
Code nvrtcDestroyProgram(void** program) { return put(program, static_cast<void*>(nullptr)); }
Code nvrtcGetPTXSize(void*, size_t* bytes) { return put(bytes, size_t(1)); }
Code nvrtcGetPTX(void*, char* text) { return put(text, '\0'); }
Code nvrtcGetCUBINSize(void*, size_t* bytes) { return put(bytes, size_t(1)); }
Code nvrtcGetCUBIN(void*, char* code) { return put(code, '\0'); }
Code nvrtcGetProgramLogSize(void*, size_t* bytes) { return put(bytes, size_t(1)); }
Code nvrtcGetProgramLog(void*, char* text) { return put(text, '\0'); }

}  // extern "C"
