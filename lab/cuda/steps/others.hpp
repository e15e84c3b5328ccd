// The kernels between the products.
#pragma once

namespace {

// One row of one sequence behind `past` tokens.
Step one_row(u32 past) {
    Step s;
    std::memset(&s, 0, sizeof(s));
    s.header = pointer<StepHeader>(upload(std::vector<StepHeader>{{1, 1, 1, 1}}));
    s.tokens = pointer<u32>(upload(std::vector<u32>{17}));
    s.carried = pointer<u32>(upload(std::vector<u32>{NONE}));
    s.positions = pointer<u32>(upload(std::vector<u32>{past, past, past}));
    s.row_segment = pointer<u32>(upload(std::vector<u32>{0}));
    s.logit_rows = pointer<u32>(upload(std::vector<u32>{0}));
    s.segments = pointer<Segment>(upload(std::vector<Segment>{{0, 1, past, 0, 0, 0, 0, 0, 0}}));
    s.tiles = pointer<Tile>(upload(std::vector<Tile>{{0, 0}}));
    std::vector<u32> pages(past / 64 + 1);
    for (u32 i = 0; i < pages.size(); ++i) pages[i] = i;
    s.pages = pointer<u32>(upload(pages));
    Draw draw;
    std::memset(&draw, 0, sizeof(draw));
    draw.top_p = 1.0f;
    draw.mask_first = NONE;
    s.draws = pointer<Draw>(upload(std::vector<Draw>{draw}));
    return s;
}

// Rates of decay: what a delta rule keeps fades.
std::vector<float> rates(size_t n) {
    std::vector<float> v = floats(n);
    for (float& x : v) x = -std::fabs(x);
    return v;
}

void line(const char* what, u32 n, const std::function<void(u32)>& one) {
    const double us = replay([&] {
        for (u32 i = 0; i < n; ++i) one(i);
    }) / n;
    std::printf("%-44s %.2f us\n", what, us);
    std::fflush(stdout);
}

// `attention_ring` as the backend launches it, for a plan of so many splits; where there is such a kernel.
bool has_ring(u32 heads, u32 kv_heads, u32 dim) { return (dim == 256 && heads == 6 * kv_heads) || (dim == 128 && heads == 4 * kv_heads); }
Shape attention_ring(const std::string& format, u32 heads, u32 kv_heads, u32 dim, u32 splits, AttentionParams& p) {
    const u32 group = heads / kv_heads, piece = format == "q8" ? 64 * 68 : 32 * 128, most = 228 << 10;
    const u32 needed = group * dim * 4 + 4 * (2 * (piece + 8) + group * (64 + 2 + 8) * 4), room = most / (needed + 1024);
    const u32 each = std::min(std::max((kv_heads * splits + 131) / 132, 2u), room);
    p.short_splits = std::min(each < room ? 4u : format == "q8" ? 16u : 40u, splits);
    const std::string name = "attention_ring_" + format + "_d" + std::to_string(dim) + "_h" + std::to_string(group);
    return {name, {1, kv_heads * std::max(splits, 2 * p.short_splits), 1}, 128, (most / each - 1024) / 128 * 128, 1};
}

// Joining the splits of one row.
Shape combine(u32 heads, u32 dim) { return {"attention_combine_few", {1, heads, (dim + 127) / 128}, 256, 0, 1}; }

View view(Bytes at, u32 stride, u32 heads, u32 dim) { return {pointer<float>(at), stride, heads, dim, dim}; }

void time_attention(const char* model, u32 heads, u32 kv_heads, u32 dim, u32 past, u32 layers, bool q8 = false) {
    const Step step = one_row(past);
    const u32 splits = (past + 1 + 255) / 256, width = (heads + 2 * kv_heads) * dim;
    const u64 page_bytes = u64(2) * kv_heads * 64 * (q8 ? dim / 32 * 34 : dim * 2);
    const std::string format = q8 ? "q8" : "f16";
    const u32 pages = past / 64 + 1;
    std::vector<u16> halves(1 << 20);
    for (u16& h : halves) h = u16((random_word() & 0x8000) | 13 << 10 | (random_word() & 1023));
    const Bytes cache = allocate(page_bytes * pages * layers);
    for (u64 done = 0; done < page_bytes * pages * layers; done += halves.size() * 2) {
        CALL(cuMemcpyHtoD, cache + done, halves.data(), std::min<u64>(halves.size() * 2, page_bytes * pages * layers - done));
    }
    const Bytes qkv = upload(floats(width)), q = upload(floats(heads * dim)), out = allocate(heads * dim * 4);
    const Bytes partials = allocate(size_t(heads) * splits * (dim + 2) * 4), gain = upload(floats(dim));
    const auto params = [&](u32 layer) {
        AttentionParams p;
        std::memset(&p, 0, sizeof(p));
        p.step = step;
        p.q = view(q, heads * dim, heads, dim);
        p.k = view(qkv + heads * dim * 4, width, kv_heads, dim);
        p.v = view(qkv + (heads + kv_heads) * dim * 4, width, kv_heads, dim);
        p.pages = pointer<u8>(cache + layer * page_bytes * pages);
        p.partials = pointer<float>(partials);
        p.out = pointer<float>(out);
        p.page_stride = page_bytes;
        p.out_stride = heads * dim;
        p.format = q8 ? KV_Q8 : KV_F16;
        p.scale = 1.0f / 16;
        p.splits = splits;
        return p;
    };
    std::vector<RopePair> table;
    for (u32 i = 0; i < 32; ++i) table.push_back({std::pow(1e-6f, i / 32.0f), 0});
    const Bytes pairs = upload(table);
    const auto name = [&](const char* what) {
        static char text[100];
        std::snprintf(text, sizeof(text), "%s %s %s, %u tokens", model, q8 ? "q8" : "f16", what, past);
        return text;
    };
    const u32 n = 10 * layers, group = heads / kv_heads;
    line(name("heads_append"), n, [&](u32 i) {
        HeadsParams p;
        std::memset(&p, 0, sizeof(p));
        p.attention = params(i % layers);
        p.attention.q = view(qkv, width, heads, dim);
        p.q_gain = p.k_gain = pointer<float>(gain);
        p.table = pointer<RopePair>(pairs);
        p.q_out = pointer<float>(q);
        p.q_eps = p.k_eps = 1e-6f;
        p.pairs = 32;
        p.attention_factor = 1;
        p.q_stride = heads * dim;
        launch(Shape{"heads_append_" + format, {1, (heads + 2 * kv_heads + 3) / 4, 1}, 128, 0, 1}, p, i == 0);
    });
    // What makes the results the next product's input.
    Input next(heads * dim);
    PrepareParams rounded = preparation(next, heads * dim, false);
    rounded.input = INPUT_SIGMOID;
    rounded.gate = view(qkv, width, heads, dim);
    for (u32 together : {1u, group % 3 == 0 ? 3u : 2u, 4u}) {
        if (heads * splits <= 1024 && together != 1) continue;
        char what[60];
        std::snprintf(what, sizeof(what), "attention_split h%u", together);
        const std::string kernel = "attention_split_" + format + "_d" + std::to_string(dim) + "_h" + std::to_string(together);
        const u32 passes = kv_heads * ((group + together - 1) / together);
        line(name(what), n, [&](u32 i) { launch(Shape{kernel, {1, passes, splits}, 128, 0, 1}, params(i % layers), i == 0); });
    }
    if (splits > 1 && has_ring(heads, kv_heads, dim)) {
        line(name("attention_ring"), n, [&](u32 i) {
            AttentionParams p = params(i % layers);
            const Shape ring = attention_ring(format, heads, kv_heads, dim, splits, p);
            launch(ring, p, i == 0);
        });
    }
    for (bool rounds : {false, true}) {
        if (splits == 1) continue;
        line(name(rounds ? "combine, rounds" : "combine"), n, [&](u32 i) {
            AttentionParams p = params(i % layers);
            if (rounds) p.next = rounded;
            launch(combine(heads, dim), p, i == 0);
        });
    }
}

// `attention_one` as the backend launches it, for a plan of so many splits.
Shape attention_one(const std::string& format, u32 heads, u32 dim, u32 planned, AttentionParams& p) {
    const u32 bytes = 4 * 64 * (format == "q8" ? dim / 32 * 34 : 2 * dim);
    p.staged = std::min((227 * 1024 - 17 * 1024) / bytes, 2u);
    const u32 threads = 128 * number("PAGE_WARPS", dim > 64 ? 2 : 1);
    return {"attention_one_" + format + "_d" + std::to_string(dim), {1, heads, std::min(planned, 132 / heads)}, threads, p.staged * bytes, 1};
}

// Attention as one kernel against several.
void check_attention(u32 heads, u32 kv_heads, u32 dim, u32 past, u32 planned, bool q8) {
    const u32 splits = std::max((past + 256) / 256, planned), width = (heads + 2 * kv_heads) * dim, q_width = heads * dim;
    const u64 page_bytes = u64(2) * kv_heads * 64 * (q8 ? dim / 32 * 34 : dim * 2);
    const std::string format = q8 ? "q8" : "f16";
    std::vector<u16> halves(page_bytes / 2 * (past / 64 + 1));
    for (u16& h : halves) h = u16((random_word() & 0x8000) | 13 << 10 | (random_word() & 1023));
    const Step step = one_row(past);
    const Bytes qkv = upload(floats(width)), gain = upload(floats(dim)), q = allocate(q_width * 4), y = allocate(q_width * 4);
    const Bytes partials = allocate(size_t(heads) * splits * (dim + 2) * 4), counters = allocate(heads * 4);
    std::vector<RopePair> table;
    for (u32 i = 0; i < 32; ++i) table.push_back({std::pow(1e-6f, i / 32.0f), 0});
    const Bytes pairs = upload(table);
    Input in[2] = {Input(q_width), Input(q_width)};
    Bytes pages[2];
    set_rows(1);
    for (u32 way = 0; way < 2; ++way) {
        pages[way] = upload(halves);
        HeadsParams h;
        std::memset(&h, 0, sizeof(h));
        AttentionParams& p = h.attention;
        p.step = step;
        p.q = view(qkv, width, heads, dim);
        p.k = view(qkv + q_width * 4, width, kv_heads, dim);
        p.v = view(qkv + (heads + kv_heads) * dim * 4, width, kv_heads, dim);
        p.pages = pointer<u8>(pages[way]);
        p.partials = pointer<float>(partials);
        p.counters = pointer<u32>(counters);
        p.out = pointer<float>(y);
        p.out_stride = q_width;
        p.page_stride = page_bytes;
        p.format = q8 ? KV_Q8 : KV_F16;
        p.scale = 1.0f / 16;
        p.splits = splits;
        h.q_gain = h.k_gain = pointer<float>(gain);
        h.table = pointer<RopePair>(pairs);
        h.q_out = pointer<float>(q);
        h.q_eps = h.k_eps = 1e-6f;
        h.pairs = 32;
        h.attention_factor = 1;
        h.q_stride = q_width;
        PrepareParams next = preparation(in[way], q_width, false);
        next.input = INPUT_SIGMOID;
        next.gate = view(qkv, width, heads, dim);
        if (way == 0) {
            launch(Shape{"heads_append_" + format, {1, (heads + 2 * kv_heads + 3) / 4, 1}, 128, 0, 1}, h, true);
            p.q = view(q, q_width, heads, dim);
            launch(Shape{"attention_split_" + format + "_d" + std::to_string(dim) + "_h1", {1, heads, splits}, 128, 0, 1}, p, true);
            if (splits > 1) launch(combine(heads, dim), p, true);
            next.x = view(y, q_width, heads, dim);
            launch(prepare(q_width), next, true);
        } else {
            p.next = next;
            const Shape shape = attention_one(format, heads, dim, splits, p);
            // Twice: the counters must be as they were.
            launch(shape, h, true);
            launch(shape, h, false);
        }
        CALL(cuStreamSynchronize, stream);
    }
    size_t wrong = 0;
    const auto compare = [&](auto a, auto b) { for (size_t i = 0; i < a.size(); ++i) wrong += a[i] != b[i]; };
    compare(download<u16>(pages[0], halves.size()), download<u16>(pages[1], halves.size()));
    compare(download<u32>(Bytes(in[0].x.planes), q_width / 4), download<u32>(Bytes(in[1].x.planes), q_width / 4));
    compare(download<u32>(Bytes(in[0].x.scales), q_width / 128), download<u32>(Bytes(in[1].x.scales), q_width / 128));
    compare(download<u32>(Bytes(in[0].x.sums), q_width / 32), download<u32>(Bytes(in[1].x.sums), q_width / 32));
    std::printf("check attention %s %ux%u behind %u, %u splits planned: %zu differ\n", format.c_str(), heads, dim, past, splits, wrong);
    for (Bytes at : {pages[0], pages[1]}) CALL(cuMemFree, at);
}

// `attention_ring` against `attention_split`, for a plan of so many splits.
void check_ring(u32 heads, u32 kv_heads, u32 dim, u32 past, u32 planned, bool q8) {
    const u32 splits = std::max((past + 256) / 256, planned), width = kv_heads * dim, q_width = heads * dim;
    const u64 page_bytes = u64(2) * kv_heads * 64 * (q8 ? dim / 32 * 34 : dim * 2);
    const std::string format = q8 ? "q8" : "f16";
    std::vector<u16> halves(page_bytes / 2 * (past / 64 + 1));
    for (u16& h : halves) h = u16((random_word() & 0x8000) | 13 << 10 | (random_word() & 1023));
    const size_t words = size_t(heads) * splits * (dim + 2);
    const Bytes pages = upload(halves), q = upload(floats(q_width)), partials = allocate(words * 4);
    AttentionParams p;
    std::memset(&p, 0, sizeof(p));
    p.step = one_row(past);
    p.q = view(q, q_width, heads, dim);
    p.k = p.v = view(0, width, kv_heads, dim);
    p.pages = pointer<u8>(pages);
    p.partials = pointer<float>(partials);
    p.page_bytes = page_bytes;
    p.format = q8 ? KV_Q8 : KV_F16;
    p.scale = 1.0f / 16;
    p.splits = splits;
    const std::string split = "attention_split_" + format + "_d" + std::to_string(dim) + "_h1";
    launch(Shape{split, {1, heads, splits}, 128, 0, 1}, p, true);
    CALL(cuStreamSynchronize, stream);
    const auto wanted = download<u32>(partials, words);
    CALL(cuMemsetD32, partials, 0, words);
    const Shape ring = attention_ring(format, heads, kv_heads, dim, splits, p);
    launch(ring, p, true);
    CALL(cuStreamSynchronize, stream);
    const auto got = download<u32>(partials, words);
    size_t wrong = 0;
    for (size_t i = 0; i < words; ++i) wrong += got[i] != wanted[i];
    std::printf("check attention_ring %s %ux%u behind %u, %u splits planned: %zu differ\n", format.c_str(), heads, dim, past, splits, wrong);
    for (Bytes at : {pages, q, partials}) CALL(cuMemFree, at);
}

void time_others() {
    std::printf("== kernels between the products\n");
    set_rows(1);
    for (u32 cols : {2048u, 5120u, 6144u}) {
        Input in(cols);
        char what[60];
        for (bool norm : {true, false}) {
            std::snprintf(what, sizeof(what), "prepare %u%s", cols, norm ? " norm" : "");
            line(what, 200, [&](u32 i) { launch(prepare(cols), preparation(in, cols, norm), i == 0); });
        }
    }
    {
        Input in(6144);
        PrepareParams p = preparation(in, 6144, true);
        p.input = INPUT_GATED_NORM;
        p.x = p.gate = view(in.floats, 6144, 48, 128);
        line("prepare 6144 gated norm", 200, [&](u32 i) { launch(prepare(6144), p, i == 0); });
    }
    {
        const Step step = one_row(70);
        const u32 channels = 10240, heads = 48, layers = 48;
        const u64 floats_of_layer = heads * 128 * 128 + 3 * channels;
        const Bytes slot = allocate(floats_of_layer * layers * 4), x = upload(floats(16480)), out = allocate(channels * 4);
        const Bytes weight = upload(floats(channels * 4)), y = allocate(6144 * 4), small = upload(rates(48));
        line("conv_silu 10240", 4 * layers, [&](u32 i) {
            ConvParams p;
            std::memset(&p, 0, sizeof(p));
            p.step = step;
            p.x = view(x, 16480, 1, channels);
            p.weight = pointer<float>(weight);
            p.windows = pointer<float>(slot + (i % layers * floats_of_layer + heads * 128 * 128) * 4);
            p.out = pointer<float>(out);
            p.slot_stride = floats_of_layer * layers;
            p.kernel = 4;
            p.out_stride = channels;
            launch(Shape{"conv_silu", {channels / 128, 1, 1}, 128, 0, 1}, p, i == 0);
        });
        Input in(6144);
        PrepareParams rounded = preparation(in, 6144, true);
        rounded.input = INPUT_GATED_NORM;
        rounded.x = view(y, 6144, 48, 128);
        rounded.gate = view(x + 10240 * 4, 16480, 1, 6144);
        const auto params = [&](u32 i) {
            DeltaParams p;
            std::memset(&p, 0, sizeof(p));
            p.step = step;
            p.q = view(out, channels, 16, 128);
            p.k = view(out + 2048 * 4, channels, 16, 128);
            p.v = view(out + 4096 * 4, channels, 48, 128);
            p.log_decay = view(x, 16480, 1, 48);
            p.beta = view(x + 192, 16480, 1, 48);
            p.decay_rate = p.dt_bias = pointer<float>(small);
            p.states = pointer<float>(slot + i % layers * floats_of_layer * 4);
            p.out = pointer<float>(y);
            p.slot_stride = floats_of_layer * layers;
            p.out_stride = 6144;
            p.eps = 1e-6f;
            return p;
        };
        const Shape rule = {"gated_delta_k128", {4, heads, 1}, 128, 0, 1};
        line("gated_delta 48 heads", 4 * layers, [&](u32 i) { launch(rule, params(i), i == 0); });
        line("gated_delta 48 heads, prepare", 4 * layers, [&](u32 i) {
            launch(rule, params(i), i == 0);
            launch(prepare(6144), rounded);
        });
    }
    time_attention("27b", 24, 4, 256, 70, 16);
    time_attention("27b", 24, 4, 256, 600, 16);
    time_attention("27b", 24, 4, 256, 32700, 16);
    time_attention("27b", 24, 4, 256, 32700, 16, true);
    time_attention("8b", 32, 8, 128, 70, 36);
    time_attention("8b", 32, 8, 128, 32700, 12);
    time_attention("1.7b", 16, 8, 128, 70, 28);
    for (u32 vocab : {248320u, 151936u}) {
        SampleParams p;
        std::memset(&p, 0, sizeof(p));
        p.step = one_row(70);
        p.logits = view(upload(floats(vocab)), vocab, 1, vocab);
        p.scratch = pointer<u32>(allocate(vocab * 4));
        p.sampled = pointer<Sampled>(allocate(64));
        char what[60];
        std::snprintf(what, sizeof(what), "sample %u", vocab);
        p.shares = pointer<SampleShare>(allocate(vocab));
        line(what, 20, [&](u32 i) {
            launch(Shape{"sample_scan", {(vocab + SAMPLE_SHARE - 1) / SAMPLE_SHARE, 1, 1}, 256, 0, 1}, p, i == 0);
            launch(Shape{"sample", {1, 1, 1}, 1024, 0, 1}, p);
        });
    }
}

}  // namespace
