// What products bind whose input lies prepared in the scratch memory.

@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> side: array<u32>;
@group(0) @binding(3) var<storage, read> prepared: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> prepared_words: array<u32>;
@group(0) @binding(5) var<storage, read> step: array<u32>;
@group(0) @binding(6) var<storage, read_write> arena: array<f32>;
