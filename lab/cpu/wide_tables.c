// Tables of sums for 16 activation rows at once (AVX2, 1 bit): an entry is 16 sums of 16 bits, one for each row, so that
// one addition from memory is 16 products of as many columns as an index has bits. A word of 16 columns is three lookups
// (6, 5 and 5 bits; tables of 64 columns are 16 KB); index bytes are made with vectors and hold four times the index, as
// addresses scale by eight at most.
//   gcc -O3 -march=native -pthread wide_tables.c -o wide_tables && ./wide_tables
// Prints GMAC/s of whole products (tables, lookups, floats) of 1,024 weight rows, 5,120 columns and 16 activation rows,
// by one thread and by two, and checks results against a scalar loop.
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
enum { ROWS = 1024, COLS = 5120, GROUPS = COLS / 128, BLOCKS = ROWS / 32, RECORD = 576, M = 16 };
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

// Signed sums of n columns under every pattern.
static void table(int n, const int16_t *x, __m256i *t) {
  t[0] = _mm256_setzero_si256();
  for (int i = 0; i < n; i++) t[0] = _mm256_sub_epi16(t[0], _mm256_loadu_si256((const void *)(x + M * i)));
  for (int i = 0; i < n; i++) {
    __m256i twice = _mm256_loadu_si256((const void *)(x + M * i));
    twice = _mm256_add_epi16(twice, twice);
    for (int e = 0; e < 1 << i; e++) t[(1 << i) + e] = _mm256_add_epi16(t[e], twice);
  }
}
static void build(const int16_t *x, __m256i *t) {
  for (int w = 0; w < 4; w++, x += 16 * M, t += 128) { table(6, x, t); table(5, x + 6 * M, t + 64); table(5, x + 11 * M, t + 96); }
}
// Index bytes of 32 rows, times four, from the two bytes of 16 columns.
static inline void indices(const uint8_t *codes, uint8_t *out) {
  __m256i a = _mm256_loadu_si256((const void *)codes), b = _mm256_loadu_si256((const void *)(codes + 32));
  __m256i low = _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(0x0c));
  __m256i high = _mm256_and_si256(_mm256_slli_epi16(b, 4), _mm256_set1_epi8(0x70));
  _mm256_store_si256((void *)out, _mm256_and_si256(_mm256_slli_epi16(a, 2), _mm256_set1_epi8((char)0xfc)));
  _mm256_store_si256((void *)(out + 32), _mm256_or_si256(low, high));
  _mm256_store_si256((void *)(out + 64), _mm256_and_si256(_mm256_srli_epi16(b, 1), _mm256_set1_epi8(0x7c)));
}
#define AT(offset, index) (*(const __m256i *)((const char *)t + (offset) + 8 * (uint64_t)(index)))
#define WORD(k) a = _mm256_add_epi16(a, AT((k) * 4096, i[(k) * 96])); c = _mm256_add_epi16(c, AT((k) * 4096 + 2048, i[(k) * 96 + 32])); \
  a = _mm256_add_epi16(a, AT((k) * 4096 + 3072, i[(k) * 96 + 64]));
// Half a group of all rows: 64 columns. The second half turns sums into floats and adds them.
static __attribute__((noinline)) void half(const uint8_t *w, int g, int second, const __m256i *t, __m256i *sums, const float *scales, float *out) {
  const __m256i upper = _mm256_set1_epi32(0xffff0000);
  __m256 x0 = _mm256_loadu_ps(scales), x1 = _mm256_loadu_ps(scales + 8);
  for (int b = 0; b < BLOCKS; b++) {
    const uint8_t *record = w + (size_t)(b * GROUPS + g) * RECORD;
    uint8_t buffer[4 * 96] __attribute__((aligned(32)));
    float s[32] __attribute__((aligned(32)));
    for (int k = 0; k < 5; k++) _mm_prefetch((const char *)(record + 2 * GROUPS * RECORD + 256 * second + 64 * k), _MM_HINT_T0);
    for (int k = 0; k < 4; k++) indices(record + 256 * second + 64 * k, buffer + 96 * k);
    if (second) for (int k = 0; k < 4; k++) _mm256_store_ps(s + 8 * k, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(record + 512 + 16 * k))));
    __m256i *p = sums + b * 32;
    float *o = out + b * 32 * M;
    for (int r = 0; r < 32; r++, o += M) {
      const uint8_t *i = buffer + r;
      __m256i a = second ? p[r] : _mm256_setzero_si256(), c = _mm256_setzero_si256();
      WORD(0) WORD(1) WORD(2) WORD(3)
      a = _mm256_add_epi16(a, c);
      if (!second) { p[r] = a; continue; }
      // Lanes become floats as the upper half of 32 bits: even rows, then odd ones.
      __m256 scale = _mm256_set1_ps(s[r]), even = _mm256_cvtepi32_ps(_mm256_slli_epi32(a, 16)), odd = _mm256_cvtepi32_ps(_mm256_and_si256(a, upper));
      _mm256_store_ps(o, _mm256_fmadd_ps(even, _mm256_mul_ps(scale, x0), _mm256_load_ps(o)));
      _mm256_store_ps(o + 8, _mm256_fmadd_ps(odd, _mm256_mul_ps(scale, x1), _mm256_load_ps(o + 8)));
    }
  }
}
typedef struct { uint8_t *w; int16_t *x; float *scales, *out; __m256i *t, *sums; } Work;
static void product(Work *s) {
  memset(s->out, 0, ROWS * M * 4);
  for (int g = 0; g < GROUPS; g++) for (int second = 0; second < 2; second++) {
    build(s->x + (2 * g + second) * 64 * M, s->t);
    half(s->w, g, second, s->t, s->sums, s->scales + g * M, s->out);
  }
}
static pthread_barrier_t barrier;
static int both;
static void *work(void *argument) {
  int k = (long)argument, wrong = 0;
  cpu_set_t cpus; CPU_ZERO(&cpus); CPU_SET(k, &cpus); sched_setaffinity(0, sizeof cpus, &cpus);
  size_t bytes = (size_t)BLOCKS * GROUPS * RECORD;
  Work s = { aligned_alloc(64, bytes + 3 * GROUPS * RECORD / 64 * 64), aligned_alloc(64, COLS * M * 2), aligned_alloc(64, GROUPS * M * 4),
             aligned_alloc(64, ROWS * M * 4), aligned_alloc(4096, 16384), aligned_alloc(4096, ROWS * 32) };
  srand(1);
  for (size_t i = 0; i < bytes; i++) s.w[i] = rand() >> 7;
  for (int i = 0; i < BLOCKS * GROUPS; i++) for (int r = 0; r < 32; r++) ((uint16_t *)(s.w + i * RECORD + 512))[r] = 0x2400 + (rand() & 255);
  for (int i = 0; i < COLS * M; i++) s.x[i] = (rand() >> 5) % 511 - 255;
  for (int i = 0; i < GROUPS * M; i++) s.scales[i] = 1.0f / 65536;
  product(&s);
  for (int r = 0; r < ROWS; r += 37) for (int m = 0; m < M; m++) {
    double want = 0;
    for (int g = 0; g < GROUPS; g++) {
      const uint8_t *record = s.w + (size_t)(r / 32 * GROUPS + g) * RECORD;
      int sum = 0;
      for (int c = 0; c < 128; c++) sum += (2 * (record[c / 8 * 32 + r % 32] >> c % 8 & 1) - 1) * s.x[(g * 128 + c) * M + m];
      want += sum * (double)_cvtsh_ss(((const uint16_t *)(record + 512))[r % 32]);
    }
    double difference = s.out[r * M + m % 2 * 8 + m / 2] - want;
    wrong += difference > 1e-2 || difference < -1e-2;
  }
  double best = 1e9;
  for (int round = 0; round < 20; round++) {
    if (both) pthread_barrier_wait(&barrier);
    double d = now(); product(&s); d = now() - d;
    if (d < best) best = d;
  }
  printf("cpu %d %s: %.1f GMAC/s%s\n", k, both ? "beside the other" : "alone", (double)ROWS * COLS * M / best / 1e9, wrong ? " WRONG" : "");
  return 0;
}
int main(void) {
  pthread_barrier_init(&barrier, 0, 2);
  work(0);
  both = 1;
  pthread_t threads[2];
  for (long k = 0; k < 2; k++) pthread_create(threads + k, 0, work, (void *)k);
  for (int k = 0; k < 2; k++) pthread_join(threads[k], 0);
}
