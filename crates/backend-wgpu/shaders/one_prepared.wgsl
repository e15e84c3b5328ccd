// The input of a product of one row, as `prepare` has left it in the scratch memory.

// Vectors of sixteen integers of a thread.
const QUADS: u32 = (COLS / 16u + THREADS - 1u) / THREADS;

// What a thread brings, on its way.
struct Brought {
    values: array<vec4<u32>, QUADS>,
    pieces: vec4<i32>,
    scale: f32,
}

fn ask(t: u32) -> Brought {
    var brought: Brought;
    for (var i = 0u; i < QUADS; i++) {
        brought.values[i] = prepared[p.values / 4u + min(t + i * THREADS, COLS / 16u - 1u)];
    }
    let record = min(t, RECORDS - 1u);
    brought.pieces = bitcast<vec4<i32>>(prepared[p.sums / 4u + record]);
    brought.scale = bitcast<f32>(prepared_words[p.scales + record]);
    return brought;
}

fn bring(brought: Brought, t: u32) {
    for (var i = 0u; i < QUADS; i++) {
        if (t + i * THREADS < COLS / 16u) {
            inputs[t + i * THREADS] = brought.values[i];
        }
    }
    if (t < RECORDS) {
        let pieces = brought.pieces;
        factors[t] = vec2<f32>(brought.scale, f32(pieces.x + pieces.y + pieces.z + pieces.w));
    }
    workgroupBarrier();
}
