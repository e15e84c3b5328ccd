// Causal softmax attention over pages, 256 tokens (a split) at a time: a thread a token for the scores, then a thread two
// values of the result. With SPLIT a workgroup has one split and leaves a partial result, which is joined with the others by
// `attention_combine` or by what prepares the product behind it; else it has all splits of its row and joins them itself, in
// the same order: the bits are the same. With OWN the last token is not in the pages yet, but in workgroup memory.

const SPLIT_TOKENS: u32 = 256u;
const PAIRS: u32 = DIM / 2u;
// Threads that share two values have every PARTS-th token.
const PARTS: u32 = 256u / PAIRS;
// Units of a key, and of them and of tokens those that are on their way together.
const UNITS: u32 = CODE_WORDS / 4u;
const UNIT_BATCH: u32 = select(4u, 8u, UNITS % 8u == 0u);
const TOKEN_BATCH: u32 = min(16u, (PAGE_ROWS + PARTS - 1u) / PARTS);

// The last token's key and value, as units of the pages.
var<workgroup> own_key: array<vec4<u32>, UNITS>;
var<workgroup> own_value: array<vec4<u32>, UNITS>;
var<workgroup> query: array<vec4<f32>, DIM / 4u>;
var<workgroup> weights: array<f32, 256>;
var<workgroup> tree: array<f32, 256>;
var<workgroup> sums: array<vec2<f32>, 256>;

fn four(words: vec4<u32>, which: u32) -> vec4<f32> {
    if (FORMAT == 0u) {
        return bitcast<vec4<f32>>(words);
    }
    let pair = select(words.xy, words.zw, which == 1u);
    return vec4<f32>(unpack2x16float(pair.x), unpack2x16float(pair.y));
}

// Products with the values of a unit of a key, added to four sums.
fn with_unit(sum: vec4<f32>, unit: u32, words: vec4<u32>) -> vec4<f32> {
    let first = fma(query[unit * PER_WORD], four(words, 0u), sum);
    if (FORMAT == 0u) {
        return first;
    }
    return fma(query[unit * PER_WORD + 1u], four(words, 1u), first);
}

// The same of a block of integers, whose keys lie at `at` and whose codes and scales at `head`.
fn with_block(sum: vec4<f32>, block: u32, at: u32, head: u32, token: u32) -> vec4<f32> {
    const VECTORS: u32 = KV_BLOCK / 4u;
    let first = block * VECTORS;
    var products = vec4<f32>();
    if (FORMAT == 2u) {
        let scale = half_of(cached(head + scale_word(false, token, block / 2u)), block % 2u);
        let a = keys[at + 2u * block * PAGE_ROWS];
        let b = keys[at + (2u * block + 1u) * PAGE_ROWS];
        for (var i = 0u; i < 4u; i++) {
            products = fma(query[first + i], vec4<f32>(unpack4xI8(a[i])), products);
        }
        for (var i = 0u; i < 4u; i++) {
            products = fma(query[first + 4u + i], vec4<f32>(unpack4xI8(b[i])), products);
        }
        return fma(products, vec4<f32>(scale), sum);
    }
    let scales = unpack2x16float(cached(head + scale_word(false, token, block)));
    let a = keys[at + block * PAGE_ROWS];
    var queries = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        let low = query[first + 2u * i];
        let high = query[first + 2u * i + 1u];
        products = fma(low, vec4<f32>(unpack4xU8(a[i] & 0x0f0f0f0fu)), products);
        products = fma(high, vec4<f32>(unpack4xU8((a[i] >> 4u) & 0x0f0f0f0fu)), products);
        queries += low + high;
    }
    return fma(queries, vec4<f32>(scales.y), fma(products, vec4<f32>(scales.x), sum));
}

// Two values of a token.
fn value_at(at: u32, token: u32, pair: u32) -> vec2<f32> {
    if (FORMAT == 2u) {
        let word = cached(at + token * CODE_WORDS + pair / 2u) >> (16u * (pair % 2u));
        let block = 2u * pair / KV_BLOCK;
        let scale = half_of(cached(at + scale_word(true, token, block / 2u)), block % 2u);
        return vec2<f32>(unpack4xI8(word).xy) * scale;
    }
    if (FORMAT == 3u) {
        // Of eight values in a word the pair is the first or second of the lower or upper halves.
        let which = pair % 4u;
        let codes = (cached(at + token * CODE_WORDS + pair / 4u) >> (16u * (which % 2u) + 4u * (which / 2u))) & 0x0f0fu;
        let scales = unpack2x16float(cached(at + scale_word(true, token, 2u * pair / KV_BLOCK)));
        return fma(vec2<f32>(unpack4xU8(codes).xy), vec2<f32>(scales.x), vec2<f32>(scales.y));
    }
    if (FORMAT == 0u) {
        let first = at + token * DIM + 2u * pair;
        return vec2<f32>(bitcast<f32>(cached(first)), bitcast<f32>(cached(first + 1u)));
    }
    return unpack2x16float(cached(at + token * PAIRS + pair));
}

// Two values of a word of numbers.
fn own_pair(pair: u32) -> vec2<f32> {
    if (FORMAT == 0u) {
        return bitcast<vec2<f32>>(vec2<u32>(own_value[pair / 2u][2u * (pair % 2u)], own_value[pair / 2u][2u * (pair % 2u) + 1u]));
    }
    return unpack2x16float(own_value[pair / 4u][pair % 4u]);
}

fn weighted(sum: vec2<f32>, value: vec2<f32>, token: u32, is_seen: bool) -> vec2<f32> {
    if (is_seen) {
        return fma(vec2<f32>(weights[token]), value, sum);
    }
    return sum;
}

// Of one query head and row, whose query stands in `query`; `pages` is where the step names its pages. The first threads have two
// values each.
fn attend(wg: vec3<u32>, t: u32, tokens: u32, pages: u32) -> Partial {
    let kv_head = wg.x / (p.q.heads / p.pages.heads);
    let pair = t % PAIRS;
    let part = t / PAIRS;
    var whole = nothing();
    var from_ = 0u;
    var end = tokens;
    if (SPLIT) {
        from_ = wg.z * SPLIT_TOKENS;
        end = min(tokens, from_ + SPLIT_TOKENS);
    }
    for (var base = from_; base < end; base += SPLIT_TOKENS) {
        workgroupBarrier();
        let count = min(tokens - base, SPLIT_TOKENS);
        // Those of them that are in the pages.
        let held = select(count, count - 1u, OWN && base + count == tokens);
        var score = -LARGEST;
        if (t < held) {
            let page = step[pages + (base + t) / PAGE_ROWS];
            let head_words = head_at(p.pages, page, false, kv_head);
            let at = head_words / 4u + t % PAGE_ROWS;
            var sum = vec4<f32>();
            for (var block = 0u; FORMAT >= 2u && block < KV_BLOCKS; block++) {
                sum = with_block(sum, block, at, head_words, t % PAGE_ROWS);
            }
            for (var unit = 0u; FORMAT < 2u && unit < UNITS; unit += UNIT_BATCH) {
                var words = array<vec4<u32>, UNIT_BATCH>();
                for (var i = 0u; i < UNIT_BATCH; i++) {
                    words[i] = keys[at + (unit + i) * PAGE_ROWS];
                }
                for (var i = 0u; i < UNIT_BATCH; i++) {
                    sum = with_unit(sum, unit + i, words[i]);
                }
            }
            score = ((sum.x + sum.y) + (sum.z + sum.w)) * p.scale;
        } else if (OWN && t < count) {
            var sum = vec4<f32>();
            for (var unit = 0u; unit < UNITS; unit++) {
                sum = with_unit(sum, unit, own_key[unit]);
            }
            score = ((sum.x + sum.y) + (sum.z + sum.w)) * p.scale;
        }
        // A score that is none goes past the comparison, and into every weight.
        tree[t] = score;
        // So that it is a rounded number below, whatever else a compiler could make of its last product.
        weights[t] = score;
        workgroupBarrier();
        for (var i = 128u; i > 0u; i /= 2u) {
            if (t < i) {
                tree[t] = max(tree[t], tree[t + i]);
            }
            workgroupBarrier();
        }
        let largest = tree[0];
        workgroupBarrier();
        let weight = select(0.0, exponential(weights[t] - largest), t < count);
        weights[t] = weight;
        tree[t] = weight;
        workgroupBarrier();
        for (var i = 128u; i > 0u; i /= 2u) {
            if (t < i) {
                tree[t] += tree[t + i];
            }
            workgroupBarrier();
        }
        var value = vec2<f32>();
        if (part < PARTS) {
            // Page by page; what lies behind the last token has no weight.
            for (var first = 0u; first < held; first += PAGE_ROWS) {
                let page = step[pages + (base + first) / PAGE_ROWS];
                let at = head_at(p.pages, page, true, kv_head);
                let last = min(held - first, PAGE_ROWS) - 1u;
                for (var i = part; i <= last; i += TOKEN_BATCH * PARTS) {
                    var read = array<vec2<f32>, TOKEN_BATCH>();
                    for (var j = 0u; j < TOKEN_BATCH; j++) {
                        read[j] = value_at(at, min(i + j * PARTS, last), pair);
                    }
                    for (var j = 0u; j < TOKEN_BATCH; j++) {
                        let token = i + j * PARTS;
                        value = weighted(value, read[j], first + token, token <= last);
                    }
                }
            }
        }
        if (OWN && held < count && part == held % PAGE_ROWS % PARTS) {
            value = weighted(value, own_pair(pair), held, true);
        }
        sums[t] = value;
        workgroupBarrier();
        if (part == 0u) {
            for (var i = 1u; i < PARTS; i++) {
                value += sums[i * PAIRS + pair];
            }
            whole = join(whole, Partial(largest, tree[0], value));
        }
    }
    return whole;
}

// The result, or that of a split, where it goes.
fn leave(wg: vec3<u32>, t: u32, tokens: u32, whole: Partial) {
    let head = wg.x;
    let row = wg.y;
    let pair = t;
    if (t >= PAIRS || (SPLIT && wg.z * SPLIT_TOKENS >= tokens)) {
        return;
    }
    if (SPLIT) {
        let at = p.partials + ((row * p.q.heads + head) * p.splits + wg.z) * (DIM + 2u);
        if (pair == 0u) {
            partials[at] = whole.largest;
            partials[at + 1u] = whole.sum;
        }
        partials[at + 2u + 2u * pair] = whole.values.x;
        partials[at + 3u + 2u * pair] = whole.values.y;
        return;
    }
    let out = p.out + row * p.out_stride + head * DIM + 2u * pair;
    arena[out] = whole.values.x / whole.sum;
    arena[out + 1u] = whole.values.y / whole.sum;
}
