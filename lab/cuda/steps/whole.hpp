// A whole step of one row as the backend launches it: how its kernels overlap.
#pragma once

namespace {

// `attention_every`: that layer of so many is attention, the others delta rules; 1: all are.
struct Sizes {
    u32 hidden, heads, kv_heads, dim, past, attention_every;
    bool gated;
};

void time_step(Model& model, const Sizes& sizes) {
    const u32 layers = model.layers, splits = std::max((sizes.past + 1 + 255) / 256, number("SPLITS", 1)), q_width = sizes.heads * sizes.dim;
    const u32 kv_width = sizes.kv_heads * sizes.dim, width = q_width * (sizes.gated ? 2 : 1) + 2 * kv_width;
    const Step step = one_row(sizes.past);
    Matrix qkv("qkv", width, sizes.hidden, false, sizes.attention_every == 1 ? 1 : layers / sizes.attention_every);
    const u64 page_bytes = u64(2) * kv_width * 64 * 2;
    const u32 pages = sizes.past / 64 + 1;
    const Bytes counters = allocate(sizes.heads * 4);
    const Bytes cache = allocate(page_bytes * pages * layers), partials = allocate(size_t(q_width + 2 * sizes.heads) * splits * 4);
    const Bytes mixed = upload(floats(20000)), q = upload(floats(q_width)), stream_x = upload(floats(sizes.hidden));
    const Bytes gain = upload(floats(sizes.hidden)), logits = allocate(300000 * 4), conv_out = upload(floats(10240));
    std::vector<RopePair> table;
    for (u32 i = 0; i < 64; ++i) table.push_back({std::pow(1e-6f, i / 64.0f), 0});
    const Bytes pairs = upload(table), conv_weight = upload(floats(4 * 10240)), small = upload(rates(48));
    const u64 slot_floats = 48 * 128 * 128 + 3 * 10240;
    const Bytes slot = allocate(slot_floats * layers * 4);
    Input normed(sizes.hidden), inner(model.weights[3].cols), mixer(q_width);
    const Bytes squares = allocate(sizes.hidden);
    Prepared with_norm = normed.x;
    with_norm.squares = pointer<float>(squares);
    with_norm.raw = pointer<float>(stream_x);
    with_norm.raw_stride = sizes.hidden;
    with_norm.eps = 1e-6f;
    SampleParams sampled;
    std::memset(&sampled, 0, sizeof(sampled));
    const Matrix& head = model.head;
    sampled.step = step;
    sampled.logits = view(logits, head.rows, 1, head.rows);
    sampled.scratch = pointer<u32>(allocate(head.rows * 4));
    sampled.shares = pointer<SampleShare>(allocate(head.rows));
    sampled.sampled = pointer<Sampled>(allocate(64));
    const auto one = [&](bool with_mixers, bool with_products) {
        bool first = true;
        const auto go = [&](const Shape& s, auto p) {
            launch(s, p, first);
            first = false;
        };
        const auto go_stream = [&](const Matrix& w, bool rounds, LinearParams p) {
            multiply(w, 1, rounds, p, first);
            first = false;
        };
        EmbedParams e;
        std::memset(&e, 0, sizeof(e));
        e.step = step;
        e.sampled = sampled.sampled;
        e.out = pointer<float>(stream_x);
        e.cols = sizes.hidden;
        e.part_count = 1;
        e.parts[0] = product(head, 0, normed.x, 0, EPILOGUE_STORE, stream_x).parts[0];
        // In kernels of before a block had a whole row.
        const u32 embeds = number("EMBEDS", 1);
        if (embeds == 1) {
            e.next = preparation(normed, sizes.hidden, true);
            e.next.gain = pointer<float>(gain);
            e.next.out = with_norm;
        }
        if (embeds > 0) go(Shape{"embed", {1, embeds == 1 ? (sizes.hidden + 1023) / 1024 : 1, 1}, 256, 0, 1}, e);
        if (embeds != 1) {
            PrepareParams p = preparation(normed, sizes.hidden, true);
            p.x = view(stream_x, sizes.hidden, 1, sizes.hidden);
            p.gain = pointer<float>(gain);
            go(prepare(sizes.hidden), p);
        }
        for (u32 l = 0; l < layers; ++l) {
            const Prepared& x = l == 0 && embeds != 1 ? normed.x : with_norm;
            const bool attends = l % sizes.attention_every == sizes.attention_every - 1;
            const Matrix& in = attends && sizes.attention_every > 1 ? qkv : model.weights[0];
            LinearParams p = product(in, attends && sizes.attention_every > 1 ? l / sizes.attention_every : l, x, mixed, EPILOGUE_STORE, stream_x);
            if (!attends) {
                p.conv.step = step;
                p.conv.x = view(mixed, in.rows, 1, 10240);
                p.conv.weight = pointer<float>(conv_weight);
                p.conv.windows = pointer<float>(slot + (l * slot_floats + 48 * 128 * 128) * 4);
                p.conv.out = pointer<float>(conv_out);
                p.conv.slot_stride = slot_floats * layers;
                p.conv.kernel = 4;
                p.conv.out_stride = 10240;
            }
            p.alone = number("ALONE_in", 0);
            if (with_products) go_stream(in, false, p);
            if (with_mixers && attends) {
                AttentionParams a;
                std::memset(&a, 0, sizeof(a));
                a.step = step;
                a.q = view(q, q_width, sizes.heads, sizes.dim);
                a.k = view(mixed + q_width * 4, width, sizes.kv_heads, sizes.dim);
                a.v = view(mixed + (q_width + kv_width) * 4, width, sizes.kv_heads, sizes.dim);
                a.pages = pointer<u8>(cache + l * page_bytes * pages);
                a.partials = pointer<float>(partials);
                a.page_bytes = page_bytes;
                a.format = KV_F16;
                a.scale = 0.0625f;
                a.splits = splits;
                a.counters = pointer<u32>(counters);
                a.next = preparation(mixer, q_width, false);
                a.next.input = sizes.gated ? INPUT_SIGMOID : INPUT_PLAIN;
                a.next.gate = view(mixed, width, sizes.heads, sizes.dim);
                HeadsParams h;
                std::memset(&h, 0, sizeof(h));
                h.attention = a;
                h.attention.q = view(mixed, width, sizes.heads, sizes.dim);
                h.q_gain = h.k_gain = pointer<float>(gain);
                h.table = pointer<RopePair>(pairs);
                h.q_out = pointer<float>(q);
                h.q_eps = h.k_eps = 1e-6f;
                h.pairs = sizes.gated ? 32 : sizes.dim / 2;
                h.attention_factor = 1;
                h.q_stride = q_width;
                // A head at a time where there is little to do: one kernel.
                const u32 group = sizes.heads / sizes.kv_heads, turns = (group + 3) / 4, together = (group + turns - 1) / turns;
                if (sizes.heads * splits <= 1024) {
                    const Shape all = attention_one("f16", sizes.heads, sizes.dim, splits, h.attention);
                    go(all, h);
                } else {
                    const u32 passes = sizes.kv_heads * ((group + together - 1) / together);
                    go(Shape{"heads_append_f16", {1, (sizes.heads + 2 * sizes.kv_heads + 3) / 4, 1}, 128, 0, 1}, h);
                    const std::string split = "attention_split_f16_d" + std::to_string(sizes.dim) + "_h" + std::to_string(together);
                    if (has_ring(sizes.heads, sizes.kv_heads, sizes.dim)) {
                        const Shape ring = attention_ring("f16", sizes.heads, sizes.kv_heads, sizes.dim, splits, a);
                        go(ring, a);
                    } else {
                        go(Shape{split, {1, passes, splits}, 128, 0, 1}, a);
                    }
                    go(combine(sizes.heads, sizes.dim), a);
                }
            } else if (with_mixers) {
                DeltaParams d;
                std::memset(&d, 0, sizeof(d));
                d.step = step;
                d.q = view(conv_out, 10240, 16, 128);
                d.k = view(conv_out + 2048 * 4, 10240, 16, 128);
                d.v = view(conv_out + 4096 * 4, 10240, 48, 128);
                d.log_decay = view(mixed + 16384 * 4, 16480, 1, 48);
                d.beta = view(mixed + 16432 * 4, 16480, 1, 48);
                d.decay_rate = d.dt_bias = pointer<float>(small);
                d.states = pointer<float>(slot + l * slot_floats * 4);
                d.slot_stride = slot_floats * layers;
                d.eps = 1e-6f;
                d.out = pointer<float>(q);
                d.out_stride = 6144;
                PrepareParams rounded = preparation(mixer, 6144, true);
                rounded.input = INPUT_GATED_NORM;
                rounded.x = view(q, 6144, 48, 128);
                rounded.gate = view(mixed + 10240 * 4, 16480, 48, 128);
                d.next = rounded;
                if (number("ROUNDS", 1) == 1) {
                    go(Shape{"gated_delta_rounds", {1, 48, 1}, 512, 0, 1}, d);
                } else {
                    go(Shape{"gated_delta_k128", {4, 48, 1}, 128, 0, 1}, d);
                    // Blocks that do nothing but take room.
                    Shape behind = prepare(6144);
                    behind.grid[1] = std::max(behind.grid[1], number("PREPARE_BLOCKS", 0));
                    behind.shared = 1024 * number("PAD_prepare", 0);
                    go(behind, rounded);
                }
            }
            if (!with_products) continue;
            LinearParams o = product(model.weights[1], l, mixer.x, stream_x, EPILOGUE_RESIDUAL, stream_x);
            o.next = with_norm;
            o.next_gain = pointer<float>(gain);
            o.alone = number("ALONE_out", 1);
            go_stream(model.weights[1], true, o);
            LinearParams g = product(model.weights[2], l, with_norm, 0, EPILOGUE_STORE, stream_x);
            g.next = inner.x;
            g.alone = number("ALONE_gate_up", 0);
            go_stream(model.weights[2], true, g);
            LinearParams down = product(model.weights[3], l, inner.x, stream_x, EPILOGUE_RESIDUAL, stream_x);
            down.alone = number("ALONE_down", 0);
            down.next = with_norm;
            down.next_gain = pointer<float>(gain);
            go_stream(model.weights[3], true, down);
        }
        if (!with_products) return;
        go_stream(head, false, product(head, 0, with_norm, logits, EPILOGUE_STORE, stream_x));
        go(Shape{"sample_scan", {(head.rows + SAMPLE_SHARE - 1) / SAMPLE_SHARE, 1, 1}, 256, 0, 1}, sampled);
        go(Shape{"sample", {1, 1, 1}, 1024, 0, 1}, sampled);
    };
    // The same step again and again, from the same states.
    const std::vector<float> states = floats(slot_floats * layers);
    CALL(cuMemcpyHtoD, slot, states.data(), states.size() * 4);
    const double all = replay([&] { one(true, true); });
    u64 hash = 1469598103934665603ull;
    for (u32 word : download<u32>(logits, head.rows)) hash = (hash ^ word) * 1099511628211ull;
    double rows[3];
    for (const Between between : {NOTHING, COPIES, PARAMETERS}) rows[between] = in_a_row([&] { one(true, true); }, between);
    const double products = replay([&] { one(false, true); }), mixers = replay([&] { one(true, false); });
    std::printf("%s step behind %u tokens: %.1f us (%.0f a second); without mixers %.1f, mixers alone %.1f\n", model.name.c_str(),
                sizes.past, all, 1e6 / all, products, mixers);
    std::printf("  in a row %.1f, with copies before and behind each step %.1f, with inputs as parameters %.1f; logits %016llx\n", rows[NOTHING],
                rows[COPIES], rows[PARAMETERS], hash);
    std::fflush(stdout);
}

}  // namespace
