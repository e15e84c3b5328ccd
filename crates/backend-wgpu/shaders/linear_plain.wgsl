// Where results of products go that nobody else reads before the dispatch has ended.

@group(0) @binding(6) var<storage, read_write> arena: array<f32>;

fn after(block: u32, t: u32) {
}
