// A key or value of one head and token, which stands in `stored`, into its page: `KvFormat::round` of the ops crate.

const THREADS: u32 = 64u;

var<workgroup> stored: array<f32, DIM>;

struct BlockScale {
    scale: f32,
    minimum: f32,
    inverse: f32,
    // Scale, and above it the minimum, as f16.
    bits: u32,
}

// Scale and minimum of a block; none where a value is not finite.
fn block_scale(block: u32) -> BlockScale {
    var least = stored[block * KV_BLOCK];
    var most = least;
    var all_finite = true;
    for (var i = 0u; i < KV_BLOCK; i++) {
        let x = stored[block * KV_BLOCK + i];
        all_finite = all_finite && is_finite(x);
        least = min(least, x);
        most = max(most, x);
    }
    if (!all_finite) {
        return BlockScale(0.0, 0.0, 0.0, 0x7e007e00u);
    }
    var minimum = 0.0;
    var bits = 0u;
    var largest = max(-least, most);
    if (FORMAT == 3u) {
        bits = half_bits(least);
        minimum = half_of(bits, 0u);
        largest = most - minimum;
    }
    let scale_bits = half_bits(quotient(largest, select(127.0, 15.0, FORMAT == 3u)));
    let scale = half_of(scale_bits, 0u);
    var inverse = 0.0;
    if (scale > 0.0 && is_finite(scale)) {
        inverse = quotient(1.0, scale);
    }
    return BlockScale(scale, minimum, inverse, scale_bits | (bits << 16u));
}

// A value as its code; what is no number becomes 0, and its scale says it.
fn code_of(x: f32, s: BlockScale) -> u32 {
    let y = (x - s.minimum) * s.inverse;
    let r = round(select(0.0, y, is_finite(y)));
    return bitcast<u32>(i32(select(clamp(r, -127.0, 127.0), clamp(r, 0.0, 15.0), FORMAT == 3u)));
}

// The codes of four values from `first` on, in the bytes of a word.
fn four_codes(first: u32, s: BlockScale) -> u32 {
    var word = 0u;
    for (var i = 0u; i < 4u; i++) {
        word |= (code_of(stored[first + i], s) & 0xffu) << (8u * i);
    }
    return word;
}

fn code_word(w: u32) -> u32 {
    if (FORMAT == 0u) {
        return bitcast<u32>(stored[w]);
    }
    if (FORMAT == 1u) {
        return half_bits(stored[2u * w]) | (half_bits(stored[2u * w + 1u]) << 16u);
    }
    let first = w * PER_WORD;
    let s = block_scale(first / KV_BLOCK);
    if (FORMAT == 2u) {
        return four_codes(first, s);
    }
    return four_codes(first, s) | (four_codes(first + 4u, s) << 4u);
}

// A workgroup of THREADS writes what all of its threads have put into `stored`.
fn store_head(pages: Pages, row: u32, is_value: bool, head: u32, t: u32) {
    let segment = step[STEP_SEGMENT] + step[step[STEP_ROW_SEGMENT] + row] * SEGMENT_WORDS;
    let position = step[segment + SEGMENT_PAST] + row - step[segment + SEGMENT_FIRST_ROW];
    let page = step[step[STEP_PAGES] + step[segment + SEGMENT_FIRST_PAGE] + position / PAGE_ROWS];
    let token = position % PAGE_ROWS;
    let to = head_at(pages, page, is_value, head);
    for (var w = t; w < CODE_WORDS; w += THREADS) {
        cache[to + select(key_word(token, w), token * CODE_WORDS + w, is_value)] = code_word(w);
    }
    for (var w = t; w < SCALE_WORDS; w += THREADS) {
        var word = 0u;
        if (FORMAT == 3u) {
            word = block_scale(w).bits;
        } else {
            word = block_scale(2u * w).bits & 0xffffu;
            if (2u * w + 1u < KV_BLOCKS) {
                word |= block_scale(2u * w + 1u).bits << 16u;
            }
        }
        cache[to + scale_word(is_value, token, w)] = word;
    }
}
