// Second part of the choice of a token, one workgroup a row. The rule stands at `Draw` in the ops crate.
//
// Nothing is sorted. A cut at a rank or at a share of the weights is found by histograms, first over the distance to the
// best logit, then over the bytes of the keys inside the bin where the cut lies. Weights are summed as integers of 64 bits,
// kept as two words, so that the order of the sums cannot matter.

struct Params {
    logits: View,
    vocab: u32,
    keys: u32,
    partials: u32,
    chunks: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> arena: array<f32>;
@group(0) @binding(3) var<storage, read> scratch: array<u32>;
@group(0) @binding(4) var<storage, read_write> sampled: array<u32>;

const BINS: u32 = 512u;
// Bins of one unit of the exponent; what lies further down is one bin.
const BINS_A_UNIT: f32 = 16.0;
// The best token's weight: sums of 2^22 tokens fit 64 bits.
const WEIGHT_ONE: f32 = 4398046511104.0;
const WORD: f32 = 4294967296.0;
const EVERYTHING: vec2<u32> = vec2<u32>(NONE, NONE);
// Pieces of a row, of which the host makes no more.
const MOST_CHUNKS: u32 = 256u;
const LANES: u32 = 32u;
const TEAMS: u32 = THREADS / LANES;

var<workgroup> counts: array<atomic<u32>, BINS>;
var<workgroup> lows: array<atomic<u32>, BINS>;
var<workgroup> highs: array<atomic<u32>, BINS>;
var<workgroup> pieces: array<vec2<u32>, THREADS>;
var<workgroup> found_bin: u32;
var<workgroup> count_above: u32;
var<workgroup> weight_above: vec2<u32>;
var<workgroup> range_first: u32;
var<workgroup> range_end: u32;
var<workgroup> rest: vec2<u32>;
var<workgroup> cut_key: u32;
var<workgroup> cut_last: u32;
var<workgroup> cut_weight: vec2<u32>;
var<workgroup> shared_best: vec2<u32>;
var<workgroup> chunk_tops: array<f32, MOST_CHUNKS>;
var<workgroup> chunk_sums: array<f32, MOST_CHUNKS>;
var<workgroup> top: f32;
var<workgroup> total: f32;
var<workgroup> broken: u32;

// ---- numbers of two words, the lower one first ----

fn plus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn minus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn below(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn is_zero(a: vec2<u32>) -> bool {
    return (a.x | a.y) == 0u;
}

// The whole part of a number that is not negative and below 2^64.
fn whole(x: f32) -> vec2<u32> {
    let high = u32(x / WORD);
    return vec2<u32>(u32(fma(f32(high), -WORD, x)), high);
}

fn number(a: vec2<u32>) -> f32 {
    return fma(f32(a.y), WORD, f32(a.x));
}

// The upper word of a product of two words.
fn upper_product(a: u32, b: u32) -> u32 {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let middle = ah * bl + ((al * bl) >> 16u);
    return ah * bh + (middle >> 16u) + (((middle & 0xffffu) + al * bh) >> 16u);
}

fn times(a: vec2<u32>, b: u32) -> vec2<u32> {
    return vec2<u32>(a.x * b, a.y * b + upper_product(a.x, b));
}

// ---- weights relative to that of the best token ----

struct Rule {
    keys: u32,
    best: f32,
    temperature: f32,
    min_p: f32,
}

fn relative(rule: Rule, key: u32) -> f32 {
    return exponential(-quotient(rule.best - logit_of(key), rule.temperature));
}

fn weight(rule: Rule, key: u32) -> vec2<u32> {
    return whole(relative(rule, key) * WEIGHT_ONE);
}

fn bin_of(rule: Rule, key: u32) -> u32 {
    return u32(min((rule.best - logit_of(key)) / rule.temperature * BINS_A_UNIT, f32(BINS - 1u)));
}

fn clear(bins: u32, t: u32) {
    workgroupBarrier();
    for (var i = t; i < bins; i += THREADS) {
        atomicStore(&counts[i], 0u);
        atomicStore(&lows[i], 0u);
        atomicStore(&highs[i], 0u);
    }
    workgroupBarrier();
}

fn add(bin: u32, count: u32, w: vec2<u32>) {
    atomicAdd(&counts[bin], count);
    let before = atomicAdd(&lows[bin], w.x);
    let high = w.y + select(0u, 1u, before + w.x < before);
    if (high != 0u) {
        atomicAdd(&highs[bin], high);
    }
}

// Where counts and weights, summed up from bin 0 on, first reach what is wanted; the sums before that bin stay in
// `count_above` and `weight_above`. BINS where they do not.
fn find_bin(bins: u32, count: u32, wanted: vec2<u32>, t: u32) -> u32 {
    workgroupBarrier();
    if (t == 0u) {
        found_bin = BINS;
        var c = count_above;
        var w = weight_above;
        for (var i = 0u; i < bins; i++) {
            let next_count = c + atomicLoad(&counts[i]);
            let next = plus(w, vec2<u32>(atomicLoad(&lows[i]), atomicLoad(&highs[i])));
            if (next_count >= count && !below(next, wanted)) {
                found_bin = i;
                count_above = c;
                weight_above = w;
                break;
            }
            c = next_count;
            w = next;
        }
    }
    return workgroupUniformLoad(&found_bin);
}

// What a token counts in a walk: 1 if it has the cut's key, or its weight if it is left.
fn value(rule: Rule, i: u32, ties: bool) -> vec2<u32> {
    let key = scratch[rule.keys + i];
    if (ties) {
        return vec2<u32>(select(0u, 1u, key == cut_key), 0u);
    }
    let is_in = key > cut_key || (key == cut_key && key != MASKED && i <= cut_last);
    if (!is_in || relative(rule, key) < rule.min_p) {
        return vec2<u32>();
    }
    return weight(rule, key);
}

// Adds up `pieces` of every team of LANES threads, into the piece of its first one.
fn add_teams(t: u32) {
    workgroupBarrier();
    for (var i = LANES / 2u; i > 0u; i /= 2u) {
        if (t % LANES < i) {
            pieces[t] = plus(pieces[t], pieces[t + i]);
        }
        workgroupBarrier();
    }
}

// The sum of the values of all tokens.
fn sum_of(rule: Rule, ties: bool, t: u32) -> vec2<u32> {
    var sum = vec2<u32>();
    for (var i = t; i < p.vocab; i += THREADS) {
        sum = plus(sum, value(rule, i, ties));
    }
    workgroupBarrier();
    pieces[t] = sum;
    add_teams(t);
    var all = pieces[0];
    for (var team = 1u; team < TEAMS; team++) {
        all = plus(all, pieces[team * LANES]);
    }
    workgroupBarrier();
    return all;
}

// The first token at which values, summed up in ascending order of tokens, exceed `goal`: the range of tokens becomes one
// of its TEAMS parts until a thread has one token.
fn walk(rule: Rule, ties: bool, goal: vec2<u32>, t: u32) -> u32 {
    workgroupBarrier();
    if (t == 0u) {
        range_first = 0u;
        range_end = p.vocab;
        rest = goal;
    }
    loop {
        let first = workgroupUniformLoad(&range_first);
        let end = workgroupUniformLoad(&range_end);
        if (end - first <= THREADS) {
            break;
        }
        let size = (end - first + TEAMS - 1u) / TEAMS;
        let from_ = min(first + t / LANES * size, end);
        var sum = vec2<u32>();
        for (var i = from_ + t % LANES; i < min(from_ + size, end); i += LANES) {
            sum = plus(sum, value(rule, i, ties));
        }
        pieces[t] = sum;
        add_teams(t);
        if (t == 0u) {
            var team = 0u;
            while (team + 1u < TEAMS && !below(rest, pieces[team * LANES])) {
                rest = minus(rest, pieces[team * LANES]);
                team++;
            }
            range_first = min(first + team * size, end);
            range_end = min(range_first + size, end);
        }
        workgroupBarrier();
    }
    let first = range_first;
    let end = range_end;
    workgroupBarrier();
    pieces[t] = vec2<u32>();
    if (first + t < end) {
        pieces[t] = value(rule, first + t, ties);
    }
    workgroupBarrier();
    if (t == 0u) {
        var i = 0u;
        while (first + i + 1u < end && !below(rest, pieces[i])) {
            rest = minus(rest, pieces[i]);
            i++;
        }
        range_first = first + i;
    }
    return workgroupUniformLoad(&range_first);
}

// The shortest row of most probable tokens that has `count` tokens and the weight `wanted` together: sets the cut.
fn cut(rule: Rule, count: u32, wanted: vec2<u32>, t: u32) {
    workgroupBarrier();
    if (t == 0u) {
        count_above = 0u;
        weight_above = vec2<u32>();
    }
    clear(BINS, t);
    // Most tokens are in the last bin: a thread adds up its own first.
    var far_count = 0u;
    var far = vec2<u32>();
    for (var i = t; i < p.vocab; i += THREADS) {
        let key = scratch[rule.keys + i];
        if (key != MASKED) {
            let bin = bin_of(rule, key);
            if (bin == BINS - 1u) {
                far_count++;
                far = plus(far, weight(rule, key));
            } else {
                add(bin, 1u, weight(rule, key));
            }
        }
    }
    if (far_count > 0u) {
        add(BINS - 1u, far_count, far);
    }
    let bin = find_bin(BINS, count, wanted, t);
    if (bin == BINS) {
        if (t == 0u) {
            cut_key = MASKED;
            cut_last = NONE;
            cut_weight = EVERYTHING;
        }
        workgroupBarrier();
        return;
    }
    // The bytes of the key, the highest first; larger ones have lower bins.
    var prefix = 0u;
    for (var byte = 0u; byte < 4u; byte++) {
        let shift = 24u - 8u * byte;
        clear(256u, t);
        for (var i = t; i < p.vocab; i += THREADS) {
            let key = scratch[rule.keys + i];
            if (key == MASKED || bin_of(rule, key) != bin) {
                continue;
            }
            if (byte > 0u && (key >> (shift + 8u)) != (prefix >> (shift + 8u))) {
                continue;
            }
            add(255u - ((key >> shift) & 255u), 1u, weight(rule, key));
        }
        prefix |= (255u - find_bin(256u, count, wanted, t)) << shift;
    }
    // Tokens that share this key: the lowest ids as far as they are needed. There are at most as many as the vocabulary
    // has, so the quotient is found by halves.
    let each = weight(rule, prefix);
    var ties = 0u;
    if (count > count_above) {
        ties = count - count_above;
    }
    if (below(weight_above, wanted) && !is_zero(each)) {
        let lacking = minus(wanted, weight_above);
        var low = 0u;
        var high = p.vocab;
        while (high - low > 1u) {
            let middle = (low + high) / 2u;
            if (below(times(each, middle), lacking)) {
                low = middle;
            } else {
                high = middle;
            }
        }
        ties = max(ties, high);
    }
    let reached = plus(weight_above, times(each, ties));
    workgroupBarrier();
    if (t == 0u) {
        cut_key = prefix;
    }
    let last = walk(rule, true, vec2<u32>(ties - 1u, 0u), t);
    if (t == 0u) {
        cut_last = last;
        cut_weight = reached;
    }
    workgroupBarrier();
}

@compute @workgroup_size(THREADS)
fn sample(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let r = wg.x;
    let draw = step[STEP_DRAWS] + r * DRAW_WORDS;
    // Each piece's results at once, then joined in order.
    for (var c = t; c < p.chunks; c += THREADS) {
        let at = p.partials + (r * p.chunks + c) * PARTIAL_WORDS;
        chunk_tops[c] = bitcast<f32>(scratch[at]);
        chunk_sums[c] = bitcast<f32>(scratch[at + 1u]);
        atomicStore(&counts[c], scratch[at + 2u]);
        atomicStore(&lows[c], scratch[at + 3u]);
        atomicStore(&highs[c], scratch[at + 4u]);
    }
    workgroupBarrier();
    if (t == 0u) {
        top = -LARGEST;
        broken = 0u;
        var best = vec2<u32>(MASKED, NONE);
        for (var c = 0u; c < p.chunks; c++) {
            top = max(top, chunk_tops[c]);
            broken |= atomicLoad(&counts[c]);
            best = better(best, vec2<u32>(atomicLoad(&lows[c]), atomicLoad(&highs[c])));
        }
        var sum = 0.0;
        for (var c = 0u; c < p.chunks; c++) {
            sum = fma(chunk_sums[c], exponential(chunk_tops[c] - top), sum);
        }
        total = sum;
        shared_best = best;
        cut_key = MASKED;
        cut_last = NONE;
        cut_weight = EVERYTHING;
    }
    let best = workgroupUniformLoad(&shared_best);
    let is_broken = workgroupUniformLoad(&broken) != 0u;
    var token = best.y;
    let rule = Rule(
        p.keys + r * p.vocab,
        logit_of(best.x),
        bitcast<f32>(step[draw + DRAW_TEMPERATURE]),
        bitcast<f32>(step[draw + DRAW_MIN_P]),
    );
    if (rule.temperature > 0.0 && best.x != MASKED && !is_broken) {
        let top_k = step[draw + DRAW_TOP_K];
        let top_p = bitcast<f32>(step[draw + DRAW_TOP_P]);
        if (top_k > 0u && top_k < p.vocab) {
            cut(rule, top_k, vec2<u32>(), t);
        }
        if (top_p < 1.0) {
            // The share is of all that top-k left, whatever min-p will drop.
            let everything = Rule(rule.keys, rule.best, rule.temperature, 0.0);
            let left = sum_of(everything, false, t);
            var share = whole(ceil(top_p * number(left)));
            if (below(left, share)) {
                share = left;
            }
            cut(rule, 1u, share, t);
        }
        let left = sum_of(rule, false, t);
        // uniform * left, of which uniform has 32 binary digits; the best token has a weight, so there is one to find.
        let uniform_ = step[draw + DRAW_UNIFORM];
        let low = upper_product(left.x, uniform_);
        let goal = plus(vec2<u32>(low, 0u), vec2<u32>(left.y * uniform_, upper_product(left.y, uniform_)));
        token = walk(rule, false, goal, t);
    }
    if (t == 0u) {
        if (is_broken || best.x == MASKED) {
            sampled[2u * r] = NONE;
            sampled[2u * r + 1u] = bitcast<u32>(not_a_number());
        } else {
            let raw = arena[p.logits.offset + r * p.logits.row_stride + token];
            let bounded = select(-LARGEST, raw, is_finite(raw));
            sampled[2u * r] = token;
            sampled[2u * r + 1u] = bitcast<u32>(bounded - top - logarithm(total));
        }
    }
}
