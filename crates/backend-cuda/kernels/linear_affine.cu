// Products with many rows of 8-bit integers for weights of 4 bits with scales and biases of 64 columns, as text encoders of image
// models have them: `linear_wide.cuh` for two groups a record, and the same results as in `linear.cuh`, bit for bit.
//
// A matrix instruction adds columns of one group only: lane t of four has the columns 16 t.. of either group of a record. The sum
// of a group becomes a float by its bits, is scaled, and the bias times the sum of the inputs is added: four instructions.
#include "linear_wide.cuh"

namespace {

using tiles::MAGIC;
using tiles::MAGIC_BITS;
using wide::COLUMNS;
using wide::THREADS;
using wide::TILES;

constexpr u32 SIZE = 64;
constexpr u32 GROUPS = GROUP / SIZE;
constexpr u32 UNITS = 4;
constexpr u32 STAGES = 2;

// One record of the activation rows.
struct Record {
    uint4 codes[COLUMNS][8];
    // Sums of each group as floats; what products are multiplied with.
    float totals[GROUPS][COLUMNS];
    float step[COLUMNS];

    // Units of a row are exchanged, so that four of two rows, and of the next two, lie in different banks.
    __device__ static u32 place(u32 row, u32 unit) { return unit ^ (row % 2 * 4 + row / 2 % 4); }
};

// One record of a warp's pair of tiles. Units are padded, so that two of four rows lie in different banks.
struct Weights {
    uint4 codes[UNITS][BLOCK_ROWS + 4];
    u16 scales[GROUPS][BLOCK_ROWS];
    u16 biases[GROUPS][BLOCK_ROWS];
};

struct Stage {
    Record record;
    Weights weights[THREADS / WARP];
};

// A warp's copies of weights, record by record.
struct WeightCopies {
    const u8* codes;
    const u8* numbers;

    __device__ explicit WeightCopies(const tiles::Tile (&tiles)[2]) {
        const u32 lane = threadIdx.x % WARP;
        const tiles::Tile& tile = tiles[lane / 16];
        codes = tile.part->codes + (u64(tile.block) * tile.part->units * BLOCK_ROWS + tile.first + lane % 16) * 16;
        // Eight lanes have eight scales each, eight as many biases: two of either group of either tile.
        const tiles::Tile& other = tiles[lane / 2 % 2];
        const u64 group = u64(other.block) * other.part->groups + lane / 4 % 2;
        numbers = (lane < 8 ? other.part->scales : other.part->biases) + (group * BLOCK_ROWS + other.first + lane % 2 * 8) * 2;
    }

    __device__ void bring(Weights& to) {
        const u32 lane = threadIdx.x % WARP, row = lane / 2 % 2 * 16 + lane % 2 * 8;
#pragma unroll
        for (u32 u = 0; u < UNITS; ++u) copy_16(&to.codes[u][lane], codes + u * 16 * BLOCK_ROWS);
        if (lane < 16) copy_16((lane < 8 ? to.scales : to.biases)[lane / 4 % 2] + row, numbers);
        codes += 16 * BLOCK_ROWS * UNITS;
        numbers += 2 * BLOCK_ROWS * GROUPS;
    }
};

// The thread's share of the rows, record by record: a unit of codes; of some threads also what goes with a row.
struct RowCopies {
    const i8* codes;
    const int4* sums_at;
    const float* step_at;
    u32 row;
    u32 place;
    bool is_there;
    int4 sums;
    float step;

    __device__ RowCopies(const Prepared& x, u32 count)
        : row(threadIdx.x / 8), place(Record::place(row, threadIdx.x % 8)), is_there(row < count) {
        codes = x.codes + u64(row) * x.padded + 16 * (threadIdx.x % 8);
        const u32 own = min(threadIdx.x, count - 1);
        sums_at = reinterpret_cast<const int4*>(x.sums + u64(own) * (x.padded / 32));
        step_at = x.scales + u64(own) * (x.padded / GROUP);
    }

    __device__ void bring(Record& to) {
        if (is_there) copy_16(&to.codes[row][place], codes);
        codes += GROUP;
    }

    __device__ void load() {
        sums = *sums_at++;
        step = *step_at++;
    }

    __device__ void store(Record& to) const {
        to.totals[0][threadIdx.x] = float(sums.x + sums.y);
        to.totals[1][threadIdx.x] = float(sums.z + sums.w);
        to.step[threadIdx.x] = step;
    }
};

// Adds one record of a pair of tiles.
__device__ __forceinline__ void add(
    const Record& record, const Weights& weights, const bool (&half_scales)[2], const bool (&half_biases)[2],
    float (&sum)[TILES][2][4]
) {
    const u32 g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const i32 start[4] = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS};
#pragma unroll
    for (u32 group = 0; group < GROUPS; ++group) {
        u32 a[2][2][4];
        float scale[4], bias[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const uint2 words = reinterpret_cast<const uint2*>(&weights.codes[2 * group + t / 2][g + 8 * i])[t % 2];
#pragma unroll
            for (u32 k = 0; k < 4; ++k) a[i / 2][k / 2][i % 2 + 2 * (k % 2)] = (k < 2 ? words.x : words.y) >> 4 * (k % 2) & 0x0f0f0f0fu;
            const u16 s = weights.scales[group][g + 8 * i], b = weights.biases[group][g + 8 * i];
            scale[i] = half_scales[i / 2] ? half_value(s) : bf16_value(s);
            bias[i] = half_biases[i / 2] ? half_value(b) : bf16_value(b);
        }
        // Sums side by side, so that the matrix units need not wait for one that is under way.
        constexpr u32 TOGETHER = 2;
#pragma unroll
        for (u32 n = 0; n < TILES; n += TOGETHER) {
            i32 d[TOGETHER][2][4];
            uint4 b[TOGETHER];
#pragma unroll
            for (u32 j = 0; j < TOGETHER; ++j) {
                const u32 row = 8 * (n + j) + g;
                b[j] = record.codes[row][record.place(row, 4 * group + t)];
            }
#pragma unroll
            for (u32 m = 0; m < 2 * TOGETHER; ++m) multiply_pieces(d[m % TOGETHER][m / TOGETHER], a[m / TOGETHER][0], b[m % TOGETHER].x, b[m % TOGETHER].y, start);
#pragma unroll
            for (u32 m = 0; m < 2 * TOGETHER; ++m) multiply_pieces(d[m % TOGETHER][m / TOGETHER], a[m / TOGETHER][1], b[m % TOGETHER].z, b[m % TOGETHER].w);
#pragma unroll
            for (u32 j = 0; j < TOGETHER; ++j) {
                const u32 column = 8 * (n + j) + 2 * t;
                const float2 step = *reinterpret_cast<const float2*>(record.step + column);
                const float2 total = *reinterpret_cast<const float2*>(record.totals[group] + column);
#pragma unroll
                for (u32 i = 0; i < 8; ++i) {
                    const u32 m = i / 4, e = i % 4, row = 2 * m + e / 2;
                    const float dot = __int_as_float(d[j][m][e]) - MAGIC;
                    const float term = fmaf(scale[row], dot, bias[row] * (e % 2 == 0 ? total.x : total.y));
                    sum[n + j][m][e] = fmaf(e % 2 == 0 ? step.x : step.y, term, sum[n + j][m][e]);
                }
            }
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256, 2) linear_bits4_i8_affine(const __grid_constant__ LinearParams p) {
    DYNAMIC_SHARED(memory);
    Stage* const stages = reinterpret_cast<Stage*>(memory);
    static_assert(STAGES * sizeof(Stage) <= 50176, "launch.rs");
    let_next_start();
    const u32 first = blockIdx.y * COLUMNS, warp = threadIdx.x / WARP;
    tiles::Tile tiles[2];
    const bool is_own = tiles::find(p, blockIdx.x * (THREADS / WARP) + warp, tiles);
    const bool half_scales[2] = {tiles[0].part->scale_type == PARAM_F16, tiles[1].part->scale_type == PARAM_F16};
    const bool half_biases[2] = {tiles[0].part->bias_type == PARAM_F16, tiles[1].part->bias_type == PARAM_F16};
    WeightCopies weights(tiles);
    wait_for_previous();
    if (first >= *p.rows) return;
    const u32 count = min(*p.rows - first, COLUMNS);
    const Prepared x = linear::from_row(p.x, first);
    const u32 end = x.padded / GROUP, slice = (end + p.slices - 1) / p.slices;
    float sum[TILES][2][4] = {};
    wide::Put total(memory + STAGES * sizeof(Stage));
    // Codes of a record are on their way while the one before is computed, what goes with its rows in registers.
    RowCopies rows(x, count);
    rows.bring(stages[0].record);
    weights.bring(stages[0].weights[warp]);
    close_copies();
    if (threadIdx.x < count) {
        rows.load();
        rows.store(stages[0].record);
        if (end > 1) rows.load();
    }
    u32 left = slice;
    for (u32 r = 0; r < end; ++r) {
        wait_for_copies<0>();
        __syncthreads();
        Stage& next = stages[(r + 1) % STAGES];
        if (r + 1 < end) {
            rows.bring(next.record);
            weights.bring(next.weights[warp]);
            close_copies();
            if (threadIdx.x < count) {
                rows.store(next.record);
                if (r + 2 < end) rows.load();
            }
        }
        add(stages[r % STAGES].record, stages[r % STAGES].weights[warp], half_scales, half_biases, sum);
        if (--left > 0 && r + 1 < end) continue;
        left = slice;
        total.add(sum);
#pragma unroll
        for (u32 i = 0; i < 8 * TILES; ++i) sum[i / 8][i / 4 % 2][i % 4] = 0.0f;
    }
    // Out through shared memory: a lane then has a weight row.
    using Sums = tiles::Finished<COLUMNS>;
    static_assert(STAGES * sizeof(Stage) >= THREADS / WARP * sizeof(Sums), "room for finished sums");
    Sums& sums = reinterpret_cast<Sums*>(memory)[warp];
    __syncthreads();
    if (!is_own) return;
    total.spread(sums);
    __syncwarp();
    tiles::finish<4, false>(p, x, first, 0, count, tiles, sums);
}
