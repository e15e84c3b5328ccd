// Runs the blocks of a launch: fibers, barriers, and the order of threads.
#include "fibers.hpp"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace emulator {

Thread* current = nullptr;
uint3 block_index, block_size, grid_size;

namespace {

constexpr size_t STACK = 64 << 10;

enum class State { Ready, Looking, AtBlock, AtWarp, Ended };

struct Fiber : Thread {
    void* stack_pointer;
    State state;
    unsigned mask;
    unsigned phase;
};

struct Warp {
    // Two sets, so that a fast lane cannot overwrite what a slow one has yet to read.
    uint64_t values[2][32];
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
char* stacks = nullptr;
size_t stack_count = 0;
void* scheduler = nullptr;
Kernel entry;
const void* argument;
const char* kernel_name;
bool any_said, any_heard;
unsigned launches = 0;
// Turns in which nobody did anything but look at a place in memory again.
unsigned idle_turns = 0;

[[noreturn]] void fault(const char* what) {
    std::fprintf(stderr, "emulator: kernel %s, block %u %u %u: %s\n", kernel_name, block_index.x, block_index.y,
                 block_index.z, what);
    std::abort();
}

// Saves what a called function must keep, and goes on on another stack.
extern "C" void emulator_switch(void** save, void* load);
asm(R"(
.text
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

// Every kernel takes one structure by value, in memory: a larger one in its place lies where the kernel looks.
struct Largest {
    char bytes[4096];
};

void body() {
    reinterpret_cast<void (*)(Largest)>(entry)(*static_cast<const Largest*>(argument));
    Fiber* self = static_cast<Fiber*>(current);
    self->state = State::Ended;
    emulator_switch(&self->stack_pointer, scheduler);
    std::abort();
}

void prepare(Fiber& fiber, unsigned i) {
    fiber.index = {i, 0, 0};
    fiber.state = State::Ready;
    fiber.phase = 0;
    void** top = reinterpret_cast<void**>(stacks + (i + 1) * STACK);
    // The address that `ret` takes, and one more: at a function's start the stack is 8 off a multiple of 16.
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(body);
    top -= 6;
    fiber.stack_pointer = top;
}

void pause() {
    Fiber* self = static_cast<Fiber*>(current);
    emulator_switch(&self->stack_pointer, scheduler);
    current = self;
}

// Lets go whoever has all its companions. True if anyone may run.
bool release() {
    bool ready = false, all_at_block = true;
    for (size_t w = 0; w < warps.size(); ++w) {
        Fiber* lanes = &fibers[w * 32];
        for (unsigned i = 0; i < 32; ++i) {
            if (lanes[i].state != State::AtWarp) continue;
            all_at_block = false;
            const unsigned mask = lanes[i].mask;
            bool complete = true;
            for (unsigned j = 0; j < 32; ++j) {
                if (!(mask >> j & 1)) continue;
                if (lanes[j].state == State::Ended) fault("a lane has ended that others wait for");
                complete = complete && lanes[j].state == State::AtWarp && lanes[j].mask == mask;
            }
            if (!complete) continue;
            for (unsigned j = 0; j < 32; ++j) {
                if (mask >> j & 1) lanes[j].state = State::Ready;
            }
            ready = true;
        }
    }
    bool looking = false;
    for (Fiber& f : fibers) {
        if (f.state != State::Looking) continue;
        f.state = State::Ready;
        looking = true;
    }
    idle_turns = looking && !ready ? idle_turns + 1 : 0;
    if (idle_turns > 1000) fault("threads wait for what never comes");
    if (ready || looking) return true;
    bool waiting = false;
    for (const Fiber& f : fibers) {
        all_at_block = all_at_block && (f.state == State::AtBlock || f.state == State::Ended);
        waiting = waiting || f.state == State::AtBlock;
    }
    if (!waiting && all_at_block) return false;
    if (!all_at_block) fault("threads wait for each other at different places");
    for (Fiber& f : fibers) {
        if (f.state == State::AtBlock) f.state = State::Ready;
    }
    any_heard = any_said;
    any_said = false;
    return true;
}

void run_block(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i) prepare(fibers[i], i);
    any_said = false;
    // Each launch takes the threads in another order; 37 divides no number of threads.
    const unsigned turn = launches % 3;
    do {
        for (unsigned i = 0; i < threads; ++i) {
            const unsigned at = turn == 0 ? i : turn == 1 ? threads - 1 - i : (i * 37 + launches) % threads;
            Fiber& f = fibers[at];
            if (f.state != State::Ready) continue;
            current = &f;
            emulator_switch(&scheduler, f.stack_pointer);
        }
    } while (release());
}

}  // namespace

bool wait_block(bool any) {
    any_said = any_said || any;
    static_cast<Fiber*>(current)->state = State::AtBlock;
    pause();
    return any_heard;
}

void wait_a_turn() {
    static_cast<Fiber*>(current)->state = State::Looking;
    pause();
}

const uint64_t* exchange(unsigned mask, uint64_t value) {
    Fiber* self = static_cast<Fiber*>(current);
    if (!(mask >> lane() & 1)) fault("a lane is not in its own mask");
    Warp& warp = warps[self->index.x / 32];
    uint64_t* values = warp.values[self->phase++ % 2];
    values[lane()] = value;
    self->mask = mask;
    self->state = State::AtWarp;
    pause();
    return values;
}

void launch(const char* name, Kernel kernel, uint3 grid, unsigned threads, const void* params) {
    if (threads % 32 != 0) {
        kernel_name = name;
        fault("a block is not made of whole warps");
    }
    if (stack_count < threads) {
        if (stacks) munmap(stacks, stack_count * STACK);
        stacks = static_cast<char*>(
            mmap(nullptr, threads * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        stack_count = threads;
    }
    fibers.resize(threads);
    warps.resize(threads / 32);
    kernel_name = name;
    entry = kernel;
    argument = params;
    grid_size = grid;
    block_size = {threads, 1, 1};
    ++launches;
    for (unsigned z = 0; z < grid.z; ++z) {
        for (unsigned y = 0; y < grid.y; ++y) {
            for (unsigned x = 0; x < grid.x; ++x) {
                block_index = {x, y, z};
                run_block(threads);
            }
        }
    }
}

}  // namespace emulator
