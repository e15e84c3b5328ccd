// The driver, found at run time: no stub library is needed to build, and nothing but the driver to run.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

inline void* driver() {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) {
        std::printf("no driver: %s\n", dlerror());
        std::exit(1);
    }
    return library;
}

inline void check(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    std::printf("%s: error %d\n", what, int(result));
    std::fflush(stdout);
    std::exit(1);
}

#define STRING_OF(x) #x
#define NAME_OF(x) STRING_OF(x)
// Names that the header maps to newer ones are looked up as those.
template <typename F>
F* symbol(const char* name) {
    void* at = dlsym(driver(), name);
    if (at == nullptr) {
        std::printf("the driver has no %s\n", name);
        std::exit(1);
    }
    return reinterpret_cast<F*>(at);
}

#define CALL(function, ...)                                                                              \
    check(symbol<decltype(function)>(NAME_OF(function))(__VA_ARGS__), NAME_OF(function))
