// What two cores reach in registers of 512 bits, without memory: sixteen chains of one instruction on each, best of ten.
//   gcc -O2 -mavx512f -mavx512bw -mavx512vnni lab/cpu/registers.c -o registers -pthread && ./registers
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static pthread_barrier_t start;
static double rate[2][4];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

#define ONE(op, n) op " %%zmm30, %%zmm31, %%zmm" #n "\n"
#define FOUR(op, a, b, c, d) ONE(op, a) ONE(op, b) ONE(op, c) ONE(op, d)
#define ALL(op) FOUR(op, 0, 1, 2, 3) FOUR(op, 4, 5, 6, 7) FOUR(op, 8, 9, 10, 11) FOUR(op, 12, 13, 14, 15)
#define RUN(op)                                                                                                            \
    for (long i = 0; i < count; i++)                                                                                       \
    __asm volatile(ALL(op)::: "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10",     \
                   "zmm11", "zmm12", "zmm13", "zmm14", "zmm15")

static void *work(void *p) {
    const long id = (long)p, count = 3000000;
    __asm volatile("vpxord %%zmm30, %%zmm30, %%zmm30\nvpxord %%zmm31, %%zmm31, %%zmm31" ::: "zmm30", "zmm31");
    for (int kind = 0; kind < 4; kind++) {
        pthread_barrier_wait(&start);
        for (int repeat = 0; repeat < 10; repeat++) {
            double begun = now();
            if (kind == 0) RUN("vfmadd231ps");
            if (kind == 1) RUN("vpdpwssd");
            if (kind == 2) RUN("vpdpbusd");
            if (kind == 3) RUN("vpermw");
            double one = 16.0 * count / (now() - begun) / 1e9;
            if (one > rate[id][kind]) rate[id][kind] = one;
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    pthread_barrier_init(&start, NULL, 2);
    for (long i = 0; i < 2; i++) pthread_create(threads + i, NULL, work, (void *)i);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    const char *names[] = {"vfmadd231ps", "vpdpwssd", "vpdpbusd", "vpermw"};
    for (int kind = 0; kind < 4; kind++) {
        double both = rate[0][kind] + rate[1][kind];
        printf("%-12s %.2f + %.2f G/s", names[kind], rate[0][kind], rate[1][kind]);
        if (kind < 3) printf(" = %.0f GMAC/s", both * (16 << kind));
        printf("\n");
    }
    return 0;
}
