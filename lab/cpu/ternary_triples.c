// Ternary weights in two planes of bits (2 bits a weight, as the product has them) against triples of five bits (27 of
// 32 codes; 14 words of 16 bits hold 42 triples, and their highest bits the last two weights of a group of 128), one
// activation row, from memory. Eight blocks of 32 rows side by side, the next records fetched ahead, groups finished
// with f16 scales. Both forms in turn, and the bandwidth of plain reads.
//   gcc -O3 -mavx512f -mavx512bw -mavx512vl -mf16c -mfma -pthread ternary_triples.c -o ternary_triples && ./ternary_triples 2
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
enum { COLS = 5120, GROUPS = COLS / 128, SETS = 544, BLOCKS = SETS * 8, PLANES = 16 * 64 + 64, TRIPLES = 14 * 64 + 64 };
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static uint8_t *planes, *triples; static int16_t x[COLS]; static float *out[2];
static int16_t plane_tables[COLS / 16][5 * 32], triple_tables[GROUPS][43][32];
static int weight(int block, int row, int col) { uint32_t h = (block * 32u + row) * 2654435761u + col * 40503u; h ^= h >> 15; h *= 2246822519u; return (int)((h >> 13) % 3) - 1; }

static void fill(void) {
  for (int c = 0; c < COLS; c++) x[c] = (rand() >> 5) % 511 - 255;
  for (int w = 0; w < COLS / 16; w++) for (int part = 0; part < 3; part++) { int start = 6 * part, n = part < 2 ? 6 : 4;
      for (int e = 0; e < (part < 2 ? 64 : 32); e++) { int s = 0; for (int i = 0; i < n; i++) s += (e >> i & 1 ? 1 : -1) * x[16 * w + start + i]; plane_tables[w][64 * part + e] = s; } }
  for (int g = 0; g < GROUPS; g++) for (int t = 0; t < 43; t++) for (int e = 0; e < 32; e++) { int s = 0, d = e;
        for (int i = 0; i < 3; i++, d /= 3) if (3 * t + i < 128) s += (d % 3 - 1) * x[128 * g + 3 * t + i]; triple_tables[g][t][e] = s; }
  int8_t w[128];
  for (int b = 0; b < BLOCKS; b++) for (int g = 0; g < GROUPS; g++) {
      uint8_t *p = planes + ((size_t)b * GROUPS + g) * PLANES, *q = triples + ((size_t)b * GROUPS + g) * TRIPLES;
      for (int r = 0; r < 32; r++) {
        uint16_t *pw = (uint16_t *)p + r, *qw = (uint16_t *)q + r;
        for (int c = 0; c < 128; c++) { w[c] = weight(b & 15, r, 128 * g + c); int code = w[c] + 1; // codes 0, 1, 2 are -1, 0, 1
          pw[c / 16 * 64] |= (code & 1) << c % 16; pw[c / 16 * 64 + 32] |= (code >> 1) << c % 16; }
        for (int t = 0; t < 42; t++) { int e = (w[3 * t] + 1) + 3 * (w[3 * t + 1] + 1) + 9 * (w[3 * t + 2] + 1); qw[t / 3 * 32] |= e << 5 * (t % 3); }
        int e = (w[126] + 1) + 3 * (w[127] + 1); for (int i = 0; i < 4; i++) qw[i * 32] |= (e >> i & 1) << 15;
        uint16_t scale = 0x2400 + (r & 15); memcpy(p + 1024 + 2 * r, &scale, 2); memcpy(q + 896 + 2 * r, &scale, 2);
      } }
}
#define FINISH(lo, hi, record, at) do { \
    __m512 s0 = _mm512_cvtph_ps(_mm256_loadu_si256((void *)(record))), s1 = _mm512_cvtph_ps(_mm256_loadu_si256((void *)((record) + 32))); \
    _mm512_storeu_ps(at, _mm512_fmadd_ps(lo, s0, _mm512_loadu_ps(at))); _mm512_storeu_ps(at + 16, _mm512_fmadd_ps(hi, s1, _mm512_loadu_ps(at + 16))); } while (0)
// Sums of even rows and of odd rows of 16-bit lanes.
#define EVEN(v) _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 16), 16))
#define ODD(v) _mm512_cvtepi32_ps(_mm512_srai_epi32(v, 16))

static void run_planes(int set, float *out) {
  float acc[8][32] = {{0}}; const uint8_t *base = planes + (size_t)set * 8 * GROUPS * PLANES;
  for (int g = 0; g < GROUPS; g++) {
    __m512i low[8], high[8]; for (int b = 0; b < 8; b++) low[b] = high[b] = _mm512_setzero_si512();
    int total = 0; for (int i = 0; i < 128; i++) total += x[128 * g + i];
    for (int w = 0; w < 8; w++) {
      const int16_t *t = plane_tables[g * 8 + w];
      __m512i A = _mm512_loadu_si512(t), B = _mm512_loadu_si512(t + 32), C = _mm512_loadu_si512(t + 64), D = _mm512_loadu_si512(t + 96), E = _mm512_loadu_si512(t + 128);
#pragma GCC unroll 8
      for (int b = 0; b < 8; b++) {
        const uint8_t *at = base + ((size_t)b * GROUPS + g) * PLANES + w * 128;
#pragma GCC unroll 2
        for (int p = 0; p < 2; p++) {
          _mm_prefetch((const char *)at + 64 * p + 2 * PLANES, _MM_HINT_T1);
          __m512i v = _mm512_loadu_si512(at + 64 * p);
          __m512i six = _mm512_permutex2var_epi16(A, v, B), twelve = _mm512_permutex2var_epi16(C, _mm512_srli_epi16(v, 6), D), rest = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), E);
          __m512i sum = _mm512_add_epi16(_mm512_add_epi16(six, twelve), rest);
          if (p) high[b] = _mm512_add_epi16(high[b], sum); else low[b] = _mm512_add_epi16(low[b], sum);
        } } }
    // sum (low + 2 high - 1) x = (L + 2 H + T) / 2
    const __m512i join = _mm512_set1_epi32(2 << 16 | 1), T = _mm512_set1_epi32(total);
#pragma GCC unroll 8
    for (int b = 0; b < 8; b++) { const uint8_t *record = base + ((size_t)b * GROUPS + g) * PLANES;
      __m512i first = _mm512_unpacklo_epi16(low[b], high[b]), second = _mm512_unpackhi_epi16(low[b], high[b]);
      __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_madd_epi16(first, join), T)), _mm512_set1_ps(.5f));
      __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_madd_epi16(second, join), T)), _mm512_set1_ps(.5f));
      FINISH(f, s, record + 1024, acc[b]); }
  }
  memcpy(out + set * 256, acc, sizeof acc);
}
static void run_triples(int set, float *out) {
  float acc[8][32] = {{0}}; const uint8_t *base = triples + (size_t)set * 8 * GROUPS * TRIPLES;
  const __m512i one = _mm512_set1_epi16(1), two = _mm512_set1_epi16(2), four = _mm512_set1_epi16(4);
  for (int g = 0; g < GROUPS; g++) {
    __m512i sums[8]; __m512i last = _mm512_loadu_si512(triple_tables[g][42]);
#pragma GCC unroll 8
    for (int b = 0; b < 8; b++) { // the last two weights, a bit from each of four words
      const uint8_t *at = base + ((size_t)b * GROUPS + g) * TRIPLES;
      __m512i e = _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(at), 15), one);
      e = _mm512_ternarylogic_epi32(e, _mm512_srli_epi16(_mm512_loadu_si512(at + 64), 14), two, 0xf8);
      e = _mm512_ternarylogic_epi32(e, _mm512_srli_epi16(_mm512_loadu_si512(at + 128), 13), four, 0xf8);
      e = _mm512_ternarylogic_epi32(e, _mm512_srli_epi16(_mm512_loadu_si512(at + 192), 12), _mm512_set1_epi16(8), 0xf8);
      sums[b] = _mm512_permutexvar_epi16(e, last);
    }
    for (int w = 0; w < 14; w++) {
      const int16_t *t = triple_tables[g][3 * w];
      __m512i A = _mm512_loadu_si512(t), B = _mm512_loadu_si512(t + 32), C = _mm512_loadu_si512(t + 64);
#pragma GCC unroll 8
      for (int b = 0; b < 8; b++) {
        const uint8_t *at = base + ((size_t)b * GROUPS + g) * TRIPLES + w * 64;
        _mm_prefetch((const char *)at + 2 * TRIPLES, _MM_HINT_T1);
        __m512i v = _mm512_loadu_si512(at);
        __m512i first = _mm512_permutexvar_epi16(v, A), second = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 5), B), third = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 10), C);
        sums[b] = _mm512_add_epi16(sums[b], _mm512_add_epi16(_mm512_add_epi16(first, second), third));
      } }
#pragma GCC unroll 8
    for (int b = 0; b < 8; b++) FINISH(EVEN(sums[b]), ODD(sums[b]), base + ((size_t)b * GROUPS + g) * TRIPLES + 896, acc[b]);
  }
  memcpy(out + set * 256, acc, sizeof acc);
}
static void run_read(int set, float *out) {
  const uint8_t *at = planes + (size_t)set * 8 * GROUPS * PLANES; __m512i s = _mm512_setzero_si512();
  for (size_t i = 0; i < (size_t)8 * GROUPS * PLANES; i += 64) { _mm_prefetch((const char *)at + i + 2048, _MM_HINT_T1); s = _mm512_xor_si512(s, _mm512_loadu_si512(at + i)); }
  out[set] = (float)_mm512_reduce_add_epi32(s);
}
typedef struct { int kind, from, to; } Job; static void (*const kinds[])(int, float *) = {run_planes, run_triples, run_read}; static float scratch[BLOCKS * 32];
static void *work(void *p) { Job *j = p; for (int s = j->from; s < j->to; s++) kinds[j->kind](s, j->kind == 2 ? scratch : out[j->kind]); return 0; }
static double once(int kind, int threads) {
  pthread_t id[64]; Job jobs[64]; double d = now();
  for (int i = 0; i < threads; i++) { jobs[i] = (Job){kind, SETS * i / threads, SETS * (i + 1) / threads}; pthread_create(&id[i], 0, work, &jobs[i]); }
  for (int i = 0; i < threads; i++) pthread_join(id[i], 0);
  return now() - d;
}
static int by_size(const void *a, const void *b) { double d = *(double *)a - *(double *)b; return d > 0 ? 1 : d < 0 ? -1 : 0; }
static uint8_t *pages(size_t n) { uint8_t *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); madvise(p, n, MADV_HUGEPAGE); return p; }
int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 2; size_t sizes[2] = {(size_t)BLOCKS * GROUPS * PLANES, (size_t)BLOCKS * GROUPS * TRIPLES};
  planes = pages(sizes[0] + 65536); triples = pages(sizes[1] + 65536); for (int k = 0; k < 2; k++) out[k] = calloc(BLOCKS * 32, 4);
  fill(); double times[3][15];
  for (int i = 0; i < 15; i++) for (int k = 0; k < 3; k++) times[k][i] = once(k, threads);
  // Codes of both are exact; rows of the planes come out unpacked within quarters, of the triples even, then odd.
  double bad = 0;
  for (int b = 0; b < 16; b++) for (int r = 0; r < 32; r++) { double want = 0;
      for (int g = 0; g < GROUPS; g++) { int s = 0; for (int c = 0; c < 128; c++) s += weight(b & 15, r, 128 * g + c) * x[128 * g + c]; want += s; }
      int p = r % 8 / 4 * 16 + r / 8 * 4 + r % 4, q = r % 2 * 16 + r / 2; float scale[2]; for (int k = 0; k < 2; k++) { int at = k ? q : p; uint16_t h = 0x2400 + (at & 15); scale[k] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
      double e0 = out[0][b * 32 + p] - want * scale[0], e1 = out[1][b * 32 + q] - want * scale[1]; e0 = e0 < 0 ? -e0 : e0; e1 = e1 < 0 ? -e1 : e1; if (e0 > bad) bad = e0; if (e1 > bad) bad = e1; }
  const char *names[] = {"two planes", "triples", "reads"}; double macs = (double)BLOCKS * 32 * COLS;
  for (int k = 0; k < 3; k++) { qsort(times[k], 15, sizeof(double), by_size); double t = times[k][7];
    printf("%-10s %7.2f ms %6.1f GMAC/s %5.1f GB/s\n", names[k], t * 1e3, k < 2 ? macs / t / 1e9 : 0, sizes[k == 1] / t / 1e9); }
  printf("largest error %g\n", bad); return bad > .05;
}
