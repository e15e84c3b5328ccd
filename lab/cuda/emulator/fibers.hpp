// Launching a kernel on fibers; not for several threads at once.
#pragma once

#include "device.hpp"

namespace emulator {

using Kernel = void (*)();

// `params` leads to the kernel's structure, with 4096 readable bytes.
void launch(const char* name, Kernel kernel, uint3 grid, unsigned threads, const void* params);

}  // namespace emulator
