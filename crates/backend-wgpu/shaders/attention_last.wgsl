// Splits that are joined by the last workgroup of a row and query head.

@group(0) @binding(5) @coherent var<storage, read_write> partials: array<f32>;
@group(0) @binding(7) var<storage, read_write> ahead: array<atomic<u32>>;

// Every thread of a workgroup that has left a split comes here.
fn has_all_splits(row: u32, head: u32, splits: u32, t: u32) -> bool {
    return comes_last(p.counters + row * p.q.heads + head, splits, t);
}
