// The partial result of some tokens: the largest score, and sums of weights relative to it.
struct Partial {
    largest: f32,
    sum: f32,
    values: vec2<f32>,
}

fn nothing() -> Partial {
    return Partial(-LARGEST, 0.0, vec2<f32>());
}

fn join(a: Partial, b: Partial) -> Partial {
    let largest = max(a.largest, b.largest);
    let left = exponential(a.largest - largest);
    let right = exponential(b.largest - largest);
    return Partial(
        largest,
        fma(b.sum, right, a.sum * left),
        fma(b.values, vec2<f32>(right), a.values * left),
    );
}
