// What every product has: its constants, and how its columns are cut.
//
// A workgroup has a block of 32 rows of the weight, a row a lane, and up to ROWS rows of activations. Its SLICES have an equal
// share of the columns each, of which the first ones have a record more where it is not a whole number (of dense weights the last
// ones have less); their sums are added in ascending order. So a result depends on the width of the weight alone, not on ROWS nor
// on what a device thinks of subgroups, of which none are used.

struct Params {
    residual: View,
    // Records of 128 columns of a row, or units where dense.
    records: u32,
    // 16-byte units of codes of a row.
    units: u32,
    groups: u32,
    // Words of the prepared input: values, scales, sums; and values from row to row.
    values: u32,
    scales: u32,
    sums: u32,
    padded: u32,
    // Rows of this part, and where its first one goes.
    rows: u32,
    out: u32,
    out_stride: u32,
    // Columns that come before this part's in the residual.
    first_row: u32,
    // Words of `side`: biases behind the scales, then the list of residuals.
    biases: u32,
    residual_first: u32,
    residuals: u32,
    factor: f32,
    // Rows of activations, as `row_count` takes it.
    count: u32,
    // Of the convolution behind it, where it does that too: its first row of the weight, its channels, where results go, and
    // floats between slots.
    conv_row: u32,
    channels: u32,
    conv_out: u32,
    conv_stride: u32,
    slot_stride: u32,
    // Of products of one row: blocks of a workgroup; and where they make their input themselves, the norm's constant, the limit of
    // rounded values, and what they make it of.
    each: u32,
    eps: f32,
    limit: f32,
    x: View,
}

@group(0) @binding(0) var<uniform> p: Params;

const LANES: u32 = 32u;
const THREADS: u32 = LANES * SLICES;

// The first record of a slice; of the one behind the last, the end.
fn record_of(slice: u32) -> u32 {
    return slice * (p.records / SLICES) + min(slice, p.records % SLICES);
}
