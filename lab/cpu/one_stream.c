// One-bit weights against one activation row, from memory: eight blocks of 32 rows looked up side by side, in three orders
// of their bytes, with hints of several kinds and distances. All forms in turn, beside plain reads.
//   gcc -O3 -march=native -pthread one_stream.c -o one_stream && ./one_stream
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
enum { COLS = 5120, GROUPS = COLS / 128, LINES = 9, SETS = 544 / 8 * 12, SET = 8 * GROUPS * LINES * 64, ROUNDS = 7 };
enum { STREAMS, RECORDS, TURNS };
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static uint8_t *weights; static int16_t tables[COLS / 16][160]; static float *out; static volatile long long sink;

// Where line l of group g of block b lies in its set.
static inline __attribute__((always_inline)) size_t place(int order, int b, int g, int l) {
  switch (order) {
    case STREAMS: return 64 * (((size_t)b * GROUPS + g) * LINES + l);
    case RECORDS: return 64 * (((size_t)g * 8 + b) * LINES + l);
    default: return 64 * (((size_t)g * LINES + l) * 8 + b);
  }
}
#define HINT(address, kind) do { if ((kind) == 0) _mm_prefetch((const char *)(address), _MM_HINT_T0); if ((kind) == 1) _mm_prefetch((const char *)(address), _MM_HINT_T1); } while (0)
static inline __attribute__((always_inline)) void look_up(int order, int ahead, int kind, int ahead2, int set) {
  const uint8_t *base = weights + (size_t)set * SET; float acc[8][32] = {{0}};
  for (int g = 0; g < GROUPS; g++) {
    __m512i sums[8]; for (int b = 0; b < 8; b++) sums[b] = _mm512_setzero_si512();
    for (int l = 0; l < 8; l++) {
      const int16_t *t = tables[g * 8 + l];
      __m512i A = _mm512_loadu_si512(t), B = _mm512_loadu_si512(t + 32), C = _mm512_loadu_si512(t + 64), D = _mm512_loadu_si512(t + 96), E = _mm512_loadu_si512(t + 128);
#pragma GCC unroll 8
      for (int b = 0; b < 8; b++) {
        const uint8_t *at = base + place(order, b, g, l); HINT(at + ahead, kind); if (ahead2) HINT(at + ahead2, 1);
        __m512i v = _mm512_loadu_si512(at), six = _mm512_permutex2var_epi16(A, v, B), twelve = _mm512_permutex2var_epi16(C, _mm512_srli_epi16(v, 6), D), rest = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), E);
        sums[b] = _mm512_add_epi16(sums[b], _mm512_add_epi16(_mm512_add_epi16(six, twelve), rest));
      }
    }
#pragma GCC unroll 8
    for (int b = 0; b < 8; b++) {
      const uint8_t *at = base + place(order, b, g, 8); HINT(at + ahead, kind); if (ahead2) HINT(at + ahead2, 1);
      __m512 low = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(sums[b], 16), 16)), high = _mm512_cvtepi32_ps(_mm512_srai_epi32(sums[b], 16));
      _mm512_storeu_ps(acc[b], _mm512_fmadd_ps(low, _mm512_cvtph_ps(_mm256_loadu_si256((void *)at)), _mm512_loadu_ps(acc[b])));
      _mm512_storeu_ps(acc[b] + 16, _mm512_fmadd_ps(high, _mm512_cvtph_ps(_mm256_loadu_si256((void *)(at + 32))), _mm512_loadu_ps(acc[b] + 16)));
    }
  }
  memcpy(out + set * 256, acc, sizeof acc);
}
#define FORM(name, order, ahead, kind, ahead2) static void name(int set) { look_up(order, ahead, kind, ahead2, set); }
FORM(streams_none, STREAMS, 0, 2, 0) FORM(streams_second, STREAMS, 2 * LINES * 64, 1, 0) FORM(streams_first, STREAMS, 2 * LINES * 64, 0, 0)
FORM(records_first, RECORDS, 8 * LINES * 64, 0, 0) FORM(turns_none, TURNS, 0, 2, 0) FORM(turns_second, TURNS, 8192, 1, 0)
FORM(turns_both, TURNS, 2048, 0, 16384) FORM(turns_first_2, TURNS, 2048, 0, 0) FORM(turns_first_6, TURNS, 6144, 0, 0) FORM(turns_first_16, TURNS, 16384, 0, 0)
static void plain_reads(int set) {
  const uint8_t *at = weights + (size_t)set * SET; __m512i a = _mm512_setzero_si512(), b = a;
  for (int i = 0; i < SET; i += 128) { a = _mm512_add_epi64(a, _mm512_loadu_si512(at + i)); b = _mm512_add_epi64(b, _mm512_loadu_si512(at + i + 64)); }
  sink = _mm512_reduce_add_epi64(_mm512_add_epi64(a, b));
}
static const struct { const char *name; void (*run)(int); int order; } forms[] = {
  {"reads", plain_reads, -1}, {"streams, no hint", streams_none, STREAMS}, {"streams, second level, 2 records", streams_second, STREAMS}, {"streams, first level, 2 records", streams_first, STREAMS},
  {"records in turn, first level, 4.6 KB", records_first, RECORDS}, {"lines in turn, no hint", turns_none, TURNS}, {"lines in turn, second level, 8 KB", turns_second, TURNS}, {"lines in turn, both levels", turns_both, TURNS},
  {"lines in turn, first level, 2 KB", turns_first_2, TURNS}, {"lines in turn, first level, 6 KB", turns_first_6, TURNS}, {"lines in turn, first level, 16 KB", turns_first_16, TURNS}};
enum { FORMS = sizeof forms / sizeof *forms };
typedef struct { int form, from, to; } Job;
static void *work(void *p) { Job *j = p; for (int s = j->from; s < j->to; s++) forms[j->form].run(s); return 0; }
static double once(int form, int threads) {
  pthread_t id[2]; Job jobs[2]; double d = now();
  for (int i = 0; i < threads; i++) { jobs[i] = (Job){form, SETS * i / threads, SETS * (i + 1) / threads}; pthread_create(&id[i], 0, work, &jobs[i]); }
  for (int i = 0; i < threads; i++) pthread_join(id[i], 0);
  return now() - d;
}
static int by_size(const void *a, const void *b) { double d = *(double *)a - *(double *)b; return d > 0 ? 1 : d < 0 ? -1 : 0; }
// The first rows of a set by plain loops, each order reading the same bytes in its own way.
static int wrong(int form) {
  forms[form].run(1);
  for (int b = 0; b < 8; b++) for (int r = 0; r < 32; r++) { float want = 0;
    for (int g = 0; g < GROUPS; g++) { int s = 0; const uint8_t *base = weights + SET;
      for (int l = 0; l < 8; l++) { uint16_t v; memcpy(&v, base + place(forms[form].order, b, g, l) + 2 * r, 2); s += tables[g * 8 + l][v & 63] + tables[g * 8 + l][64 + (v >> 6 & 63)] + tables[g * 8 + l][128 + (v >> 12)]; }
      uint16_t h; memcpy(&h, base + place(forms[form].order, b, g, 8) + 2 * (r % 2 * 16 + r / 2), 2); want += s * _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
    float got = out[256 + b * 32 + r % 2 * 16 + r / 2], e = got - want; if (e > .05f || e < -.05f) return 1; }
  return 0;
}
int main(void) {
  size_t size = (size_t)SETS * SET; weights = mmap(0, size + (4 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); madvise(weights, size, MADV_HUGEPAGE); out = calloc((size_t)SETS * 256, 4);
  uint64_t state = 1; for (size_t i = 0; i < size; i += 2) { state = state * 6364136223846793005u + 1; uint16_t v = 0x1400 | (state >> 40 & 0x3ff); memcpy(weights + i, &v, 2); } // words that are numbers too
  for (int w = 0; w < COLS / 16; w++) for (int e = 0; e < 160; e++) { state = state * 6364136223846793005u + 1; tables[w][e] = (int)(state >> 40 & 511) - 255; }
  for (int w = 0; w < COLS / 16; w++) memcpy(tables[w] + 144, tables[w] + 128, 32);
  for (int f = 1; f < FORMS; f++) if (wrong(f)) { printf("%s: wrong\n", forms[f].name); return 1; }
  for (int threads = 1; threads <= 2; threads++) { double t[FORMS][ROUNDS];
    for (int r = 0; r < ROUNDS; r++) for (int f = 0; f < FORMS; f++) t[f][r] = once(f, threads);
    for (int f = 0; f < FORMS; f++) { qsort(t[f], ROUNDS, sizeof(double), by_size); printf("%d threads  %-38s %5.1f GB/s\n", threads, forms[f].name, size / t[f][ROUNDS / 2] / 1e9); } }
}
