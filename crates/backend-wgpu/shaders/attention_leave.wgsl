// Splits that are joined by whoever comes behind attention.

@group(0) @binding(5) var<storage, read_write> partials: array<f32>;

fn has_all_splits(row: u32, head: u32, splits: u32, t: u32) -> bool {
    return false;
}
