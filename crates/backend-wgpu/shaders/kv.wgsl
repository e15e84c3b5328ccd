// How keys and values lie in pages. FORMAT: 0 f32, 1 f16, 2 integers of eight bits, 3 of four, in blocks of 32 values. Counted in
// words of four bytes:
//
//   page    [k | v][head]: codes of 64 tokens, then their scales
//   codes   of keys    [unit of four words][64 tokens][four words], so that neighbouring threads, a token each, read neighbours
//           of values  [64 tokens][words]
//   scales  of keys    [word][64 tokens], of values [64 tokens][word]
//
// A word of four-bit codes has four values in the lower halves of its bytes, and the next four in the upper ones. A word of
// scales has two f16: scales of two neighbouring blocks (eight bits), or scale and minimum of one.

// Values of a word.
const PER_WORD: u32 = select(select(select(1u, 2u, FORMAT == 1u), 4u, FORMAT == 2u), 8u, FORMAT == 3u);
const KV_BLOCK: u32 = 32u;
const KV_BLOCKS: u32 = DIM / KV_BLOCK;
// Words of a token.
const CODE_WORDS: u32 = DIM / PER_WORD;
const SCALE_WORDS: u32 = select(select(0u, (KV_BLOCKS + 1u) / 2u, FORMAT == 2u), KV_BLOCKS, FORMAT == 3u);

struct Pages {
    page_words: u32,
    head_words: u32,
    heads: u32,
    dim: u32,
}

// Word where a head's keys or values of a page begin.
fn head_at(pages: Pages, page: u32, is_value: bool, head: u32) -> u32 {
    return page * pages.page_words + (select(0u, pages.heads, is_value) + head) * pages.head_words;
}

// Place of word `w` of a token's key.
fn key_word(token: u32, w: u32) -> u32 {
    return ((w / 4u) * PAGE_ROWS + token) * 4u + w % 4u;
}

// Place of word `w` of the scales of a token, behind where a head's keys or values begin.
fn scale_word(is_value: bool, token: u32, w: u32) -> u32 {
    return CODE_WORDS * PAGE_ROWS + select(w * PAGE_ROWS + token, token * SCALE_WORDS + w, is_value);
}
