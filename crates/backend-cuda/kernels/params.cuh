// What the host hands to the kernels: one plain structure a kernel, passed by value. `src/params.rs` mirrors every one
// of them field by field; `kernels/README.md` draws the memory that the pointers lead to.
#pragma once

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;

// No such index.
constexpr u32 NONE = 0xffffffffu;

// Tokens of a KV page, rows of a weight block, columns of an activation group, rows of a step tile.
constexpr u32 PAGE_ROWS = 64;
constexpr u32 BLOCK_ROWS = 32;
constexpr u32 GROUP = 128;
constexpr u32 TILE_ROWS = 16;

// Most parts of one launch of a product or of a table.
constexpr u32 MAX_PARTS = 8;

// ---- the step ------------------------------------------------------------------------------------------------------

struct Sampled;

// How much of the plan's largest step this one uses.
struct StepHeader {
    u32 rows;
    u32 logits;
    u32 segments;
    u32 tiles;
    // Memory of the host where the tokens that the step chooses are put as well; or null.
    Sampled* host;
};

// The rows of one sequence.
struct Segment {
    u32 first_row;
    u32 rows;
    u32 past;
    // Index of its first page in `Step::pages`.
    u32 first_page;
    u32 slot;
    // Rows of the pending area `pending_read` that enter the state before this step.
    u32 accepted;
    u32 speculative;
    // Pending areas: the one that holds the guesses of the step before, and another one that a speculative step fills.
    u32 pending_read;
    u32 pending_write;
};

// Up to TILE_ROWS consecutive rows of one segment; every row of the step is in exactly one tile.
struct Tile {
    u32 segment;
    // Index in the segment of its first row.
    u32 first;
};

// How one logit row becomes a token.
struct Draw {
    double uniform;
    float temperature;
    float top_p;
    float min_p;
    u32 top_k;
    // Changes to single logits: a range of `Step::adjust`.
    u32 adjust_first;
    u32 adjust_count;
    // First word of its mask in `Step::masks`, or NONE.
    u32 mask_first;
    u32 reserved;
};

struct Adjust {
    u32 token;
    float bias;
    float divide;
    float subtract;
};

// What sampling gives for a logit row; `token` is NONE where the logits were not finite.
struct Sampled {
    u32 token;
    float logprob;
};

// The arrays of the step-input buffer.
struct Step {
    const StepHeader* header;
    // One a row.
    const u32* tokens;
    // One a row: the logit row of the step before whose sampled token this row takes, or NONE.
    const u32* carried;
    // Three a row: time, height, width.
    const u32* positions;
    // One a row: its segment.
    const u32* row_segment;
    // One a logit row: its row.
    const u32* logit_rows;
    const Segment* segments;
    const Tile* tiles;
    const u32* pages;
    // One a logit row.
    const Draw* draws;
    const Adjust* adjust;
    const u32* masks;
};

// ---- temporaries ---------------------------------------------------------------------------------------------------

// Columns of a temporary: `heads` blocks of `dim` values whose starts lie `head_stride` apart; `data` is the first value
// of row 0.
struct View {
    float* data;
    u32 row_stride;
    u32 heads;
    u32 dim;
    u32 head_stride;
};

// ---- weights -------------------------------------------------------------------------------------------------------

// How codes are stored.
enum Codes : u32 { BITS1 = 0, BITS2 = 1, BITS4 = 2, BITS8 = 3, DENSE_F16 = 4, DENSE_BF16 = 5, DENSE_F32 = 6 };

// Stored type of scales and biases.
enum ParamType : u32 { PARAM_F16 = 0, PARAM_BF16 = 1, PARAM_F32 = 2 };

// The residual of one group of one row of a block: what its rounded bias lacks.
struct Residual {
    // Row in the block (5 bits) and group above.
    u32 place;
    float value;
};

// One part of a weight, in one layout.
//
// Packed: `weight = factor * scale * (2 * code - center)` without biases, `scale * code + bias` with them.
struct Part {
    const u8* codes;
    const u8* scales;
    // Null where they follow from the scales.
    const u8* biases;
    // Blocks + 1 indices into `residuals`, or null.
    const u32* residual_first;
    const Residual* residuals;
    u32 rows;
    // Its first row in the weight.
    u32 first_row;
    // Blocks of the parts before it in the launch.
    u32 first_block;
    // A value of `Codes`.
    u32 format;
    // Columns that share a scale: 32, 64 or 128; 0 for dense.
    u32 group;
    // Groups of a row, padded to whole records of GROUP columns.
    u32 groups;
    // 16-byte units of codes in a row, padded to whole records when packed.
    u32 units;
    // Values of `ParamType`.
    u32 scale_type;
    u32 bias_type;
    // Half of what the stored scale is multiplied by.
    float factor;
    // Twice the code whose weight is zero: 1, 2, 16, 256 for 1, 2, 4, 8 bits.
    u32 center;
    u32 reserved;
};

// Rows of a tile of `Prepared::tiles`, and what goes with a record of them beside the codes: scales, and the bits of 1.5 * 2^23
// plus 64 times the sum of a row's codes.
constexpr u32 TENS_ROWS = 32;
struct Beside {
    float steps[TENS_ROWS];
    i32 starts[TENS_ROWS];
};

// Activation rows as products read them, `padded` columns each, zeros behind `cols`.
struct Prepared {
    float* floats;
    // Sums of 32 floats.
    float* float_sums;
    // Rounded values; their halves rounded down, with nine bits.
    i8* codes;
    // The lowest bits of 32 values, with nine bits: value e at bit e / 4 + 8 * (e % 4).
    u32* low;
    // The eight binary digits of the values of a record, eight times 128 bits: digit d of value e of the 32 of word w at bit
    // e / 4 + 8 * (e % 4) of word 4 d + w.
    u32* planes;
    // The rounded values once more, in the order of Hopper's matrix units: for each TENS_ROWS rows and record 128 bytes a row.
    // Columns 4 k.. of the 32 of word w stand in word w of the k-th 16 bytes; these are exchanged by the row's number modulo 8.
    u8* tiles;
    // What goes with each of these.
    Beside* beside;
    // One for each GROUP.
    float* scales;
    // Sums of 32 rounded values.
    i32* sums;
    // Sums of the squares of 32 values before they were multiplied with gains. Not null: `1 / rms` of the row, which they give,
    // is still to be taken into the scales. The values as they came are needed where squares leave the range of floats.
    float* squares;
    const float* raw;
    u32 raw_stride;
    float eps;
    u32 cols;
    // A multiple of GROUP.
    u32 padded;
};

// ---- one structure a kernel ----------------------------------------------------------------------------------------

// What `prepare` makes.
enum Prepare : u32 { PREPARE_FLOATS = 1, PREPARE_INT8 = 2, PREPARE_INT9 = 4, PREPARE_PLANES = 8, PREPARE_TILES = 16 };

// What the values are: as they come; normed as a row; normed by blocks of GROUP values, times silu(gate); times sigmoid(gate).
enum Input : u32 { INPUT_PLAIN = 0, INPUT_NORM = 1, INPUT_GATED_NORM = 2, INPUT_SIGMOID = 3 };

struct PrepareParams {
    const u32* rows;
    View x;
    View gate;
    const float* gain;
    Prepared out;
    float eps;
    // Bits of `Prepare`.
    u32 wanted;
    // A value of `Input`.
    u32 input;
    u32 reserved;
};

// A step's inputs by value, and where they go.
constexpr u32 INPUT_UNITS = 240;
struct InputsParams {
    uint4* to;
    u32 units;
    u32 reserved;
    uint4 data[INPUT_UNITS];
};

struct EmbedParams {
    Step step;
    // What the step before sampled.
    const Sampled* sampled;
    float* out;
    u32 cols;
    u32 part_count;
    Part parts[MAX_PARTS];
    // What makes the rows, which are whole groups then, the next product's input, but for their norm; or nothing is wanted.
    PrepareParams next;
};

// add, swiglu (a: gate, b: up), sigmoid_mul (a: x, b: gate), pack (a alone).
struct PointwiseParams {
    // The step's count that says how many rows there are.
    const u32* rows;
    View a;
    View b;
    float* out;
    u32 out_stride;
    u32 reserved;
};

struct SelectRowsParams {
    Step step;
    View x;
    float* out;
    u32 out_stride;
    u32 reserved;
};

// rms_norm, and gated_norm with z.
struct NormParams {
    const u32* rows;
    View x;
    View z;
    const float* gain;
    float* out;
    u32 out_stride;
    float eps;
};

struct RopePair {
    float inv_freq;
    // 0 time, 1 height, 2 width.
    u32 axis;
};

struct RopeParams {
    const u32* rows;
    const u32* positions;
    View x;
    const RopePair* table;
    float* out;
    u32 pairs;
    float attention_factor;
    u32 out_stride;
    u32 reserved;
};

// conv_silu, and the products of one row behind which it stands.
struct ConvParams {
    Step step;
    View x;
    const float* weight;
    // Of this layer in slot 0.
    float* windows;
    // Of this layer in pending area 0: raw inputs, one row of `channels` each.
    float* pending;
    float* out;
    // Floats between slots and between areas.
    u64 slot_stride;
    u64 pending_stride;
    u32 kernel;
    u32 out_stride;
};

enum Epilogue : u32 { EPILOGUE_STORE = 0, EPILOGUE_RESIDUAL = 1, EPILOGUE_SWIGLU = 2 };

struct LinearParams {
    const u32* rows;
    Prepared x;
    View residual;
    float* out;
    u32 out_stride;
    // A value of `Epilogue`. For SWIGLU there are two parts of equal rows: gate and up.
    u32 epilogue;
    u32 part_count;
    // Equal slices of a row, summed up each for itself.
    u32 slices;
    // Where its results go rounded, as the input of the next product; `planes` null: nowhere.
    Prepared next;
    // What they are multiplied with before; null: nothing.
    const float* next_gain;
    // Its first columns are the channels of a convolution of one row, which runs at once; `weight` null: none. Its view of
    // inputs is not looked at.
    ConvParams conv;
    // Whether the kernel behind this one may begin only when this one has all of its input: before, its many weights would stand in
    // the way of that. Otherwise it may once this one has ordered its own weights.
    u32 alone;
    u32 reserved;
    Part parts[MAX_PARTS];
};

enum KvFormat : u32 { KV_F32 = 0, KV_F16 = 1, KV_Q8 = 2, KV_Q4 = 3 };

// kv_append, attention_split, attention_combine and attention_rows.
struct AttentionParams {
    Step step;
    View q;
    View k;
    View v;
    // Page 0 of this layer.
    u8* pages;
    // One partial result for each row, query head and split: maximum, sum, then `dim` values.
    float* partials;
    // Of `attention_one`: for each query head the splits that are done, 0 between kernels.
    u32* counters;
    float* out;
    u64 page_stride;
    u32 out_stride;
    // A value of `KvFormat`.
    u32 format;
    float scale;
    // Splits of SPLIT_PAGES pages that the plan's context has; 0 where `attention_tile` runs.
    u32 splits;
    // Of `attention_one`: 1 where keys are copied to shared memory, 2 where values are, too.
    u32 staged;
    // Of `attention_ring`: a context of up to so many splits is short.
    u32 short_splits;
    // What is made of the results at once, as a product's input, by the kernel that finishes them; `wanted` 0: nothing.
    PrepareParams next;
};

// heads_append: what lies between a projection and attention. Queries and keys are normed and turned, keys and values go to
// the pages.
struct HeadsParams {
    // Its q, k and v are those of the projection.
    AttentionParams attention;
    // Null: no norm.
    const float* q_gain;
    const float* k_gain;
    const RopePair* table;
    float* q_out;
    float q_eps;
    float k_eps;
    u32 pairs;
    float attention_factor;
    u32 q_stride;
    u32 reserved;
};

struct DeltaGatesParams {
    const u32* rows;
    View a;
    View b;
    const float* decay_rate;
    const float* dt_bias;
    float* log_decay;
    float* beta;
};

enum HeadMap : u32 { MAP_GROUPED = 0, MAP_TILED = 1 };

struct DeltaParams {
    Step step;
    View q;
    View k;
    View v;
    // Log decay and beta; or, where `decay_rate` is not null, what they are made of: a and b of `DeltaGatesParams`.
    View log_decay;
    View beta;
    const float* decay_rate;
    const float* dt_bias;
    // Of this layer in slot 0: (heads, key_dim, value_dim).
    float* states;
    // Of this layer in pending area 0: rows of raw keys (key heads, key_dim), values (heads, value_dim), log decays, betas.
    float* pending;
    float* out;
    // Where `delta_make` puts what `delta_rows` reads.
    float* made;
    u64 slot_stride;
    u64 pending_stride;
    // Floats of a pending row.
    u32 pending_row;
    u32 out_stride;
    // A value of `HeadMap`.
    u32 map;
    float eps;
    // Where results are rounded: what makes them the next product's input, behind a gated norm.
    PrepareParams next;
};

// Logits that one block looks at, and what it finds: the largest key above the place that it has counted from the last
// token, the largest logit, the sum of `exp(logit - top)`, whether a logit is no finite number.
constexpr u32 SAMPLE_SHARE = 2048;

struct SampleShare {
    u64 best;
    float top;
    float sum;
    u32 broken;
    u32 reserved;
};

// sample_scan and sample.
struct SampleParams {
    Step step;
    View logits;
    // A word for each logit.
    u32* scratch;
    // Of each row, one after another.
    SampleShare* shares;
    Sampled* sampled;
};

// ---- image models --------------------------------------------------------------------------------------------------

// modulate (a: scale, b: shift, of one row each), gated_add (a: gate of one row, b: y).
struct MixParams {
    const u32* rows;
    View x;
    View a;
    View b;
    float* out;
    u32 out_stride;
    float eps;
};

// Most columns of a group norm.
constexpr u32 MOST_CHANNELS = 1024;

// group_sums, group_norm.
struct GroupNormParams {
    const u32* rows;
    View x;
    const float* gain;
    const float* bias;
    // Sum and sum of squares of each group of each chunk.
    double* partials;
    float* out;
    u32 groups;
    float eps;
    // Rows of a chunk, and how many chunks there are.
    u32 chunk;
    u32 chunks;
};

struct FullAttentionParams {
    const u32* rows;
    View q;
    View k;
    View v;
    float* out;
    u32 out_stride;
    float scale;
    // Keys that are seen at most; with `causal` none behind the row.
    u32 keys;
    u32 causal;
};

// largest_halves, split_halves, full_attention_halves.
struct HalvesParams {
    const u32* rows;
    View q;
    View k;
    View v;
    // Queries, keys and values as halves: [head][row][high halves of `dim` values, low ones].
    uint4* halves[3];
    // [queries, keys, values][query heads][blocks of rows].
    u32* largest;
    // What their products are multiplied with: [queries, keys, values][query heads].
    float* factors;
    float* out;
    u32 out_stride;
    float scale;
    // Of a head, padded, and rows of each head's halves.
    u32 dim;
    u32 padded_rows;
};

struct Conv2dParams {
    // One block of columns.
    View x;
    // Without data: none.
    View residual;
    // Factors, then offsets of the channels; null: none.
    const float* affine;
    const float* bias;
    float* out;
    // Dense.
    Part part;
    // Of the result.
    u32 height;
    u32 width;
    u32 kernel;
    // How often a pixel of the input stands in each direction.
    u32 times;
    u32 channels;
    u32 silu;
    u32 out_stride;
    u32 reserved;
};

// The same numbers stand in `src/params.rs`.
static_assert(sizeof(StepHeader) == 24 && sizeof(Segment) == 36 && sizeof(Tile) == 8, "params.rs");
static_assert(sizeof(Draw) == 40 && sizeof(Adjust) == 16 && sizeof(Sampled) == 8 && sizeof(Step) == 96, "params.rs");
static_assert(sizeof(View) == 24 && sizeof(Residual) == 8 && sizeof(Part) == 88 && sizeof(Prepared) == 104, "params.rs");
static_assert(sizeof(InputsParams) == 3856 && sizeof(EmbedParams) == 1008, "params.rs");
static_assert(sizeof(PointwiseParams) == 72 && sizeof(SelectRowsParams) == 136, "params.rs");
static_assert(sizeof(NormParams) == 80 && sizeof(RopePair) == 8 && sizeof(RopeParams) == 72, "params.rs");
static_assert(sizeof(PrepareParams) == 184 && sizeof(LinearParams) == 1160 && sizeof(AttentionParams) == 416,
              "params.rs");
static_assert(sizeof(ConvParams) == 176 && sizeof(DeltaGatesParams) == 88 && sizeof(DeltaParams) == 480, "params.rs");
static_assert(sizeof(HeadsParams) == 472 && sizeof(SampleParams) == 144 && sizeof(SampleShare) == 24, "params.rs");
static_assert(sizeof(MixParams) == 96 && sizeof(GroupNormParams) == 80 && sizeof(FullAttentionParams) == 104, "params.rs");
static_assert(sizeof(Conv2dParams) == 192 && sizeof(HalvesParams) == 144, "params.rs");
