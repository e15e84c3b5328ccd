// Ladder of the AVX2 lookup loop: products of 1-bit weights with integer activations, everything in the first-level
// cache. S streams of 32 rows against M activation rows, one 128-group at a time.
//   gcc -O3 -mavx2 -mfma -mf16c avx2_lut.c -o avx2_lut && ./avx2_lut
// Prints GMAC/s of each shape and checks the sums of one group against a scalar loop.
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static volatile int four = 4;
static double now(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void build(const int16_t *x, int n, uint8_t *t) {
  for (int q = 0; q < n / 4; q++) {
    int neg = 0; for (int i = 0; i < 4; i++) neg += x[4 * q + i] < 0 ? x[4 * q + i] : 0;
    for (int e = 0; e < 16; e++) { int s = -neg; for (int i = 0; i < 4; i++) if (e >> i & 1) s += x[4 * q + i];
      t[32 * q + e] = s & 31; t[32 * q + 16 + e] = s >> 5; }
  }
}
// One group: K columns. HIDE keeps the compiler from unrolling the byte loop.
#define LOOP(S, M, NAME) \
static __attribute__((noinline)) void NAME(int K, const uint8_t *const *w, const uint8_t *const *t, __m256i (*sums)[M][2], int hide) { \
  const __m256i nib = _mm256_set1_epi8(15), join = _mm256_set1_epi16(2 | 64 << 8); \
  const uint8_t *wp[S], *tp[M]; for (int s = 0; s < S; s++) wp[s] = w[s]; for (int m = 0; m < M; m++) tp[m] = t[m]; \
  for (int o = 0; o < K / 32; o++) { \
    __m256i lo[S][M], hi[S][M]; for (int s = 0; s < S; s++) for (int m = 0; m < M; m++) lo[s][m] = hi[s][m] = _mm256_setzero_si256(); \
    for (int j = 0; j < hide; j++) { \
      __m256i b[S]; for (int s = 0; s < S; s++) { b[s] = _mm256_loadu_si256((const void *)wp[s]); wp[s] += 32; } \
      _Pragma("GCC unroll 2") for (int q = 0; q < 2; q++) { __m256i p[S]; \
        for (int s = 0; s < S; s++) p[s] = _mm256_and_si256(q ? _mm256_srli_epi16(b[s], 4) : b[s], nib); \
        for (int m = 0; m < M; m++) { \
          __m256i l = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(tp[m] + q * 32))), h = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(tp[m] + q * 32 + 16))); \
          for (int s = 0; s < S; s++) { lo[s][m] = _mm256_add_epi8(lo[s][m], _mm256_shuffle_epi8(l, p[s])); hi[s][m] = _mm256_add_epi8(hi[s][m], _mm256_shuffle_epi8(h, p[s])); } } } \
      for (int m = 0; m < M; m++) tp[m] += 64; } \
    for (int s = 0; s < S; s++) for (int m = 0; m < M; m++) { \
      sums[s][m][0] = _mm256_add_epi16(sums[s][m][0], _mm256_maddubs_epi16(_mm256_unpacklo_epi8(lo[s][m], hi[s][m]), join)); \
      sums[s][m][1] = _mm256_add_epi16(sums[s][m][1], _mm256_maddubs_epi16(_mm256_unpackhi_epi8(lo[s][m], hi[s][m]), join)); } } } \
static void run_##NAME(const uint8_t *W, const uint8_t *T, const int16_t *X) { \
  __m256i sums[S][M][2]; const uint8_t *w[S], *t[M]; for (int s = 0; s < S; s++) w[s] = W + s * 512; for (int m = 0; m < M; m++) t[m] = T + m * 1024; \
  memset(sums, 0, sizeof sums); NAME(128, w, t, sums, four); \
  int16_t got[32]; memcpy(got, sums[S - 1][M - 1], 64); int bad = 0; \
  for (int r = 0; r < 32; r++) { int u = 0; for (int k = 0; k < 128; k++) { int x = X[(M - 1) * 128 + k]; u += (w[S - 1][k / 8 * 32 + r] >> k % 8 & 1) ? x : 0; u -= x < 0 ? x : 0; } \
    int a = r % 16 / 8, lane = r / 16 * 8 + r % 8; bad += got[a * 16 + lane] != (int16_t)(2 * u); } \
  double best = 1e9; for (int rep = 0; rep < 7; rep++) { double d = now(); for (int i = 0; i < 100000; i++) NAME(128, w, t, sums, four); d = now() - d; if (d < best) best = d; } \
  printf("S=%d M=%d: %6.1f GMAC/s %s\n", S, M, 100000.0 * S * M * 32 * 128 / best / 1e9, bad ? "WRONG" : ""); }
LOOP(1, 1, f11) LOOP(2, 1, f21) LOOP(3, 1, f31) LOOP(4, 1, f41) LOOP(1, 2, f12) LOOP(2, 2, f22) LOOP(1, 3, f13) LOOP(1, 4, f14) LOOP(3, 2, f32) LOOP(2, 3, f23)

int main(void) {
  uint8_t *W = aligned_alloc(64, 8192), *T = aligned_alloc(64, 8192); int16_t X[1024];
  for (int i = 0; i < 8192; i++) W[i] = rand() >> 7; for (int i = 0; i < 1024; i++) X[i] = (rand() >> 5) % 511 - 255;
  for (int m = 0; m < 4; m++) build(X + m * 128, 128, T + m * 1024);
  run_f11(W, T, X); run_f21(W, T, X); run_f31(W, T, X); run_f41(W, T, X); run_f12(W, T, X); run_f22(W, T, X); run_f13(W, T, X); run_f14(W, T, X); run_f32(W, T, X); run_f23(W, T, X);
}
