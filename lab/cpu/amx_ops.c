// What AMX instructions cost, alone and beside others: time of a sequence in nanoseconds, best of seven.
//   gcc -O2 -march=sapphirerapids lab/cpu/amx_ops.c -o amx_ops && ./amx_ops
#define _GNU_SOURCE
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static uint8_t buf[1 << 16] __attribute__((aligned(64)));
#define RUN(name, body) do { double best = 1e9; \
  for (int r = 0; r < 7; r++) { double t = now(); for (long i = 0; i < 200000; i++) { body; } t = (now() - t) / 200000; if (t < best) best = t; } \
  printf("%-60s %6.1f\n", name, best * 1e9); } while (0)
// Four products, four loads of activations and weights, four stores of sums, four ways to begin sums.
#define P _tile_dpbssd(0, 4, 6); _tile_dpbssd(1, 4, 7); _tile_dpbssd(2, 5, 6); _tile_dpbssd(3, 5, 7);
#define L _tile_loadd(4, buf, 128); _tile_loadd(5, buf + 4096, 128); _tile_loadd(6, buf + 8192, 64); _tile_loadd(7, buf + 9216, 64);
#define S _tile_stored(0, buf + 32768, 64); _tile_stored(1, buf + 33792, 64); _tile_stored(2, buf + 34816, 64); _tile_stored(3, buf + 35840, 64);
#define Z _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
#define B _tile_loadd(0, buf + 40960, 0); _tile_loadd(1, buf + 40960, 0); _tile_loadd(2, buf + 40960, 0); _tile_loadd(3, buf + 40960, 0);
#define VECTORS(n, x) __asm__ volatile(".rept " #n "\n" x "\n.endr" ::"r"(buf + 16384) : "memory", "xmm2", "xmm3");
// Two vectors of bits to bytes, stored.
#define E(n) VECTORS(n, "vpmultishiftqb %%zmm0,%%zmm1,%%zmm2\n vgf2p8affineqb $255,%%zmm0,%%zmm2,%%zmm2\n vmovdqa64 %%zmm2,(%0)\n" \
  "vpmultishiftqb %%zmm0,%%zmm1,%%zmm3\n vgf2p8affineqb $255,%%zmm0,%%zmm3,%%zmm3\n vmovdqa64 %%zmm3,64(%0)")
#define A(n) VECTORS(n, "vpaddd %%zmm0,%%zmm1,%%zmm2\n vpaddd %%zmm0,%%zmm1,%%zmm3")
int main(void) {
  if (syscall(SYS_arch_prctl, 0x1023, 18)) { puts("no permission to use tiles"); return 1; }
  struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape;
  for (int m = 4; m <= 16; m *= 2) {
    memset(&shape, 0, sizeof shape);
    shape.palette = 1;
    for (int i = 0; i < 8; i++) { shape.rows[i] = i < 6 ? m : 16; shape.bytes[i] = 64; }
    _tile_loadconfig(&shape);
    printf("%d activation rows\n", m);
    RUN("4 products", P); RUN("4 loads", L); RUN("4 stores", S); RUN("4 loads, 4 products", L P);
    RUN("configuration", _tile_loadconfig(&shape));
  }
  RUN("64 vector additions", A(32)); RUN("  beside 4 products", P A(32));
  RUN("32 vectors of bits to bytes", E(16)); RUN("  beside 4 loads and products", L P E(16));
  RUN("a step: zero, 4 x (4 loads, 4 products)", Z L P L P L P L P);
  RUN("the same, sums begun by loads of one row", B L P L P L P L P);
  RUN("a step with 4 stores", Z L P L P L P L P S);
  RUN("a step with 4 stores and 64 vectors of bits to bytes", Z L P E(8) L P E(8) L P E(8) L P E(8) S);
  _tile_release();
}
