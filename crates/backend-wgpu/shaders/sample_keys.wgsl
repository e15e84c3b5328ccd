// Logits of one piece of a row, and words of a draw and of a piece's result.
const CHUNK: u32 = 4096u;
const PARTIAL_WORDS: u32 = 5u;
const DRAW_WORDS: u32 = 8u;
const DRAW_UNIFORM: u32 = 0u;
const DRAW_TEMPERATURE: u32 = 1u;
const DRAW_TOP_P: u32 = 2u;
const DRAW_MIN_P: u32 = 3u;
const DRAW_TOP_K: u32 = 4u;
const DRAW_ADJUST_FIRST: u32 = 5u;
const DRAW_ADJUST_COUNT: u32 = 6u;
const DRAW_MASK: u32 = 7u;
// No logit has this key.
const MASKED: u32 = 0u;

// Larger logits have larger keys, the two zeros the same.
fn key_of(logit: f32) -> u32 {
    let bits = select(bitcast<u32>(logit), 0u, logit == 0.0);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) != 0u);
}

fn logit_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key >> 31u) != 0u));
}

// Of keys with their tokens: the larger key, the lower token.
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}
