// Keys and values of the step into the pages, a word a thread: x counts words of all heads, y rows, z keys and values.

struct Params {
    k: View,
    v: View,
    pages: Pages,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> arena: array<f32>;
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

@compute @workgroup_size(128)
fn append(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let words = p.pages.dim / PER_WORD;
    let index = wg.x * 128u + t;
    let head = index / words;
    let w = index % words;
    let row = wg.y;
    let is_value = wg.z == 1u;
    if (head >= p.pages.heads) {
        return;
    }
    let segment = step[STEP_SEGMENT] + step[step[STEP_ROW_SEGMENT] + row] * SEGMENT_WORDS;
    let position = step[segment + SEGMENT_PAST] + row - step[segment + SEGMENT_FIRST_ROW];
    let page = step[step[STEP_PAGES] + step[segment + SEGMENT_FIRST_PAGE] + position / PAGE_ROWS];
    let token = position % PAGE_ROWS;
    let c = head * p.pages.dim + w * PER_WORD;
    var from_ = place(p.k, row, c);
    var at = key_word(token, w);
    if (is_value) {
        from_ = place(p.v, row, c);
        at = token * words + w;
    }
    var word = 0u;
    if (FORMAT == 0u) {
        word = bitcast<u32>(arena[from_]);
    } else {
        word = half_bits(arena[from_]) | (half_bits(arena[from_ + 1u]) << 16u);
    }
    cache[head_at(p.pages, page, is_value, head) + at] = word;
}
