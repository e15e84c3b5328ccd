//! The formats against the plain words of their descriptions, written a second time and differently here.

use onebit_quant::float::{f16_to_f32, f32_to_f16};
use onebit_quant::formats::BLOCKS;
use onebit_quant::{Exactness, Format, GgufType, Matrix, Packed, ParamType, QuantError, pack, quantize, reencode};
use proptest::prelude::*;

const PARAMS: [ParamType; 3] = [ParamType::F16, ParamType::BF16, ParamType::F32];

fn affine(bits: u32, group: u32) -> Format {
    Format::affine(bits, group, ParamType::F16, ParamType::F16).unwrap()
}

/// Weight `e` of one GGUF block, from the layout diagrams.
fn block_weight(format: Format, b: &[u8], e: usize) -> f32 {
    let half = |at: usize| f16_to_f32(u16::from_le_bytes([b[at], b[at + 1]]));
    match format {
        Format::Q1_0 => {
            if b[2 + e / 8] & (1 << (e % 8)) != 0 {
                half(0)
            } else {
                -half(0)
            }
        }
        Format::Q2_0G64 | Format::Q2_0G128 | Format::Pq2_0 => {
            let code = (b[2 + e / 4] >> (2 * (e % 4))) & 3;
            (f32::from(code) - 1.0) * half(0)
        }
        Format::Ptq1_0 => {
            let (byte, digit) = match e {
                0..80 => (e % 16, e / 16),
                80..120 => (16 + (e - 80) % 8, (e - 80) / 8),
                _ => (24 + (e - 120) % 2, (e - 120) / 2),
            };
            let scaled = u32::from(b[byte]) * 3u32.pow(digit as u32) % 256;
            ((scaled * 3 / 256) as f32 - 1.0) * half(26)
        }
        Format::Q4_0 => (f32::from(nibble(&b[2..], e)) - 8.0) * half(0),
        Format::Q4_1 => f32::from(nibble(&b[4..], e)) * half(0) + half(2),
        Format::Q8_0 => f32::from(b[2 + e] as i8) * half(0),
        _ => unreachable!(),
    }
}

fn nibble(bytes: &[u8], e: usize) -> u8 {
    if e < 16 { bytes[e] & 15 } else { bytes[e - 16] >> 4 }
}

/// A finite binary16, subnormals and negatives included.
fn finite_half() -> impl Strategy<Value = u16> {
    (0..0x7c00u16, any::<bool>()).prop_map(|(m, negative)| m | if negative { 0x8000 } else { 0 })
}

fn block_format() -> impl Strategy<Value = Format> {
    (0..BLOCKS.len()).prop_map(|i| BLOCKS[i].format)
}

proptest! {
    #[test]
    fn every_block_format_decodes_as_its_diagram_says(
        format in block_format(), rows in 1usize..4, blocks in 1usize..4, seed in any::<u64>(), d in finite_half(), m in finite_half(),
    ) {
        let block = format.block().unwrap();
        let mut bytes = noise(seed, rows * blocks * block.bytes + 1);
        for b in bytes[1..].chunks_exact_mut(block.bytes) {
            let at = if format == Format::Ptq1_0 { 26 } else { 0 };
            b[at..at + 2].copy_from_slice(&d.to_le_bytes());
            if format == Format::Q4_1 {
                b[2..4].copy_from_slice(&m.to_le_bytes());
            }
        }
        // From the second byte on, so that nothing is aligned.
        let cols = blocks * block.elements;
        let matrix = Matrix::new(format, rows, cols, &bytes[1..], &[], &[]).unwrap();
        prop_assert_eq!(matrix.bytes(), format.matrix_bytes(rows, cols).unwrap());
        for row in 0..rows {
            let mut got = vec![0.0; cols];
            matrix.decode_row(row, &mut got);
            for (c, got) in got.iter().enumerate() {
                let b = &bytes[1 + (row * blocks + c / block.elements) * block.bytes..][..block.bytes];
                prop_assert_eq!(*got, block_weight(format, b, c % block.elements), "{} row {} column {}", format, row, c);
            }
        }
    }

    #[test]
    fn mlx_triplets_decode_as_the_word_rule_says_in_any_pairing_of_types(
        bits in prop::sample::select(vec![1u32, 2, 4, 8]), group in prop::sample::select(vec![32u32, 64, 128]),
        s in 0usize..3, b in 0usize..3, rows in 1usize..4, groups in 1usize..4, seed in any::<u64>(),
    ) {
        let (scale, bias) = (PARAMS[s], PARAMS[b]);
        let format = Format::affine(bits, group, scale, bias).unwrap();
        let cols = groups * group as usize;
        let codes = noise(seed, rows * cols * bits as usize / 8 + 1);
        let (mut scales, mut biases) = (vec![0u8], vec![0u8, 0, 0]);
        for i in 0..rows * groups {
            // Negative scales are normal in 2, 4 and 8 bit packs.
            scale.write((i as f32 - 2.5) * 0.37, &mut scales);
            bias.write((i as f32 - 1.5) * -0.11, &mut biases);
        }
        let m = Matrix::new(format, rows, cols, &codes[1..], &scales[1..], &biases[3..]).unwrap();
        let mut got = vec![0.0; cols];
        for row in 0..rows {
            m.decode_row(row, &mut got);
            let words: Vec<u32> = codes[1 + row * cols * bits as usize / 8..][..cols * bits as usize / 8]
                .chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
            for (c, &got) in got.iter().enumerate() {
                let per_word = 32 / bits as usize;
                let code = (u64::from(words[c / per_word]) >> (bits as usize * (c % per_word))) & ((1 << bits) - 1);
                let at = row * groups + c / group as usize;
                let want = scale.read(&scales[1..], at) * code as f32 + bias.read(&biases[3..], at);
                prop_assert_eq!(got, want);
            }
        }
    }

    #[test]
    fn packing_and_unpacking_return_the_same_codes(format in block_format(), seed in any::<u64>(), d in finite_half()) {
        let block = format.block().unwrap();
        let cols = 2 * block.elements;
        let below = u16::from(block.max_code) + 1;
        let codes: Vec<u8> = noise(seed, 3 * cols).iter().map(|&c| (u16::from(c) % below) as u8).collect();
        let d = f16_to_f32(d);
        let scales = vec![block.scale_of_d * d; 6];
        let biases = vec![block.bias_of_d.map_or(0.25, |f| f * d); 6];
        let packed = pack(format, 3, cols, &codes, &scales, &biases).unwrap();
        let m = packed.as_matrix();
        let mut got = vec![0u8; block.elements];
        for row in 0..3 {
            for g in 0..2 {
                let group = m.group(row, g, &mut got);
                prop_assert_eq!((group.scale, group.bias), (scales[0], biases[0]));
                prop_assert_eq!(&got[..], &codes[row * cols + g * block.elements..][..block.elements]);
            }
        }
    }

    #[test]
    fn binary_weights_travel_between_mlx_and_gguf_without_change(seed in any::<u64>(), d in 0u16..0x7800) {
        let bytes = gguf_blocks(Format::Q1_0, 2, 3, seed, d);
        let source = Matrix::new(Format::Q1_0, 2, 384, &bytes, &[], &[]).unwrap();
        let mlx = reencode(&source, affine(1, 128), Exactness::Exact).unwrap();
        prop_assert_eq!(mlx.moved, 0);
        // The sixteen code bytes of a block are the four words of the group.
        for (block, words) in bytes.chunks_exact(18).zip(mlx.matrix.codes.chunks_exact(16)) {
            prop_assert_eq!(&block[2..], words);
        }
        same_weights(&source, &mlx.matrix.as_matrix());
        let back = reencode(&mlx.matrix.as_matrix(), Format::Q1_0, Exactness::Exact).unwrap();
        prop_assert_eq!(&back.matrix.codes, &bytes);
    }

    #[test]
    fn ternary_weights_travel_through_every_spelling_without_change(seed in any::<u64>(), d in finite_half()) {
        let digits: Vec<u8> = noise(seed, 2 * 256).iter().map(|b| b % 3).collect();
        let d = f16_to_f32(d);
        let start = pack(Format::Pq2_0, 2, 256, &digits, &[d; 4], &[-d; 4]).unwrap();
        let spellings =
            [affine(2, 128), Format::Q2_0G64, Format::Ptq1_0, Format::Q2_0G128, affine(2, 64), affine(2, 32), Format::Pq2_0];
        let mut at = start.clone();
        for to in spellings {
            let next = reencode(&at.as_matrix(), to, Exactness::Exact).unwrap().matrix;
            same_weights(&at.as_matrix(), &next.as_matrix());
            at = next;
        }
        prop_assert_eq!(at, start);
    }

    #[test]
    fn rounding_quantisers_stay_within_half_a_step(values in prop::collection::vec(-4.0f32..4.0, 128)) {
        for (format, steps) in [(Format::Q4_0, 8.0), (Format::Q4_1, 15.0), (Format::Q8_0, 127.0)] {
            let packed = quantize(format, 1, 128, &values).unwrap();
            let mut got = vec![0.0; 128];
            packed.as_matrix().decode_row(0, &mut got);
            for (x, y) in values.chunks(32).zip(got.chunks(32)) {
                let top = x.iter().fold(0.0f32, |a, v| a.max(v.abs()));
                let span = x.iter().fold(f32::MIN, |a, &v| a.max(v)) - x.iter().fold(f32::MAX, |a, &v| a.min(v));
                let step = if format == Format::Q4_1 { span / steps } else { top / steps };
                // Half a step; binary16 rounding of d (2^-11 relative, times the largest code) and of m; Q4_0 clips
                // the far end, one step beyond its last code.
                let clip = if format == Format::Q4_0 { step / 2.0 } else { 0.0 };
                let bound = step / 2.0 + clip + (steps * step + top) * 2f32.powi(-10) + 1e-6;
                for (x, y) in x.iter().zip(y) {
                    prop_assert!((x - y).abs() <= bound, "{format}: {x} became {y}, bound {bound}");
                }
            }
        }
    }

    #[test]
    fn rows_cut_out_of_a_matrix_decode_as_before(format in block_format(), seed in any::<u64>(), from in 0usize..4, len in 0usize..3) {
        let cols = 2 * format.group();
        let bytes = gguf_blocks(format, 6, 2, seed, 0x3555);
        let whole = Matrix::new(format, 6, cols, &bytes, &[], &[]).unwrap();
        let part = whole.slice_rows(from..from + len);
        prop_assert_eq!(part.rows, len);
        let (mut a, mut b) = (vec![0.0; cols], vec![0.0; cols]);
        for r in 0..len {
            part.decode_row(r, &mut a);
            whole.decode_row(from + r, &mut b);
            prop_assert_eq!(&a, &b);
        }
    }
}

/// Deterministic bytes (xorshift64*).
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
        })
        .collect()
}

/// Random codes with one given scale.
fn gguf_blocks(format: Format, rows: usize, blocks: usize, seed: u64, d: u16) -> Vec<u8> {
    let block = format.block().unwrap();
    let mut bytes = noise(seed, rows * blocks * block.bytes);
    let at = if format == Format::Ptq1_0 { 26 } else { 0 };
    for b in bytes.chunks_exact_mut(block.bytes) {
        b[at..at + 2].copy_from_slice(&d.to_le_bytes());
        if format == Format::Q4_1 {
            b[2..4].copy_from_slice(&0x3c00u16.to_le_bytes());
        }
    }
    bytes
}

fn same_weights(a: &Matrix<'_>, b: &Matrix<'_>) {
    let (mut x, mut y) = (vec![0.0; a.cols], vec![0.0; b.cols]);
    for row in 0..a.rows {
        a.decode_row(row, &mut x);
        b.decode_row(row, &mut y);
        assert_eq!(x, y, "row {row}: {} against {}", a.format, b.format);
    }
}

fn mlx_1bit(scales: &[f32], biases: &[f32]) -> Packed {
    let (rows, groups) = (2, scales.len() / 2);
    pack(affine(1, 128), rows, groups * 128, &vec![1; rows * groups * 128], scales, biases).unwrap()
}

#[test]
fn a_bias_that_does_not_follow_is_refused_with_row_and_group() {
    let m = mlx_1bit(&[0.5, 0.5, 0.5, 0.5], &[-0.25, -0.25, -0.25, -0.125]);
    let error = reencode(&m.as_matrix(), Format::Q1_0, Exactness::AllowSubnormalStep).unwrap_err();
    assert!(matches!(error, QuantError::NotExact { row: 1, group: 1, .. }), "{error}");
    assert_eq!(error.to_string(), "row 1, group 1 has no exact form in Q1_0: its bias does not follow from its scale");
}

#[test]
fn a_subnormal_bias_moves_only_when_asked() {
    // Three half-steps of binary16: -scale/2 is not representable and was rounded to an even step.
    let step = f16_to_f32(1);
    let m = mlx_1bit(&[3.0 * step, 0.5], &[-2.0 * step, -0.25]);
    assert!(reencode(&m.as_matrix(), Format::Q1_0, Exactness::Exact).is_err());
    let done = reencode(&m.as_matrix(), Format::Q1_0, Exactness::AllowSubnormalStep).unwrap();
    assert_eq!(done.moved, 1);
    let (mut x, mut y) = (vec![0.0; 128], vec![0.0; 128]);
    m.as_matrix().decode_row(0, &mut x);
    done.matrix.as_matrix().decode_row(0, &mut y);
    assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= step));
}

#[test]
fn the_fourth_code_has_no_place_in_five_per_byte() {
    let mut codes = vec![1u8; 256];
    codes[128 + 77] = 3;
    let m = pack(Format::Q2_0G64, 1, 256, &codes, &[0.5; 4], &[-0.5; 4]).unwrap();
    let error = reencode(&m.as_matrix(), Format::Ptq1_0, Exactness::Exact).unwrap_err();
    assert!(matches!(error, QuantError::NotExact { row: 0, group: 1, .. }), "{error}");
}

#[test]
fn halves_with_different_scales_do_not_collapse() {
    let m = pack(Format::Q2_0G64, 1, 128, &[2; 128], &[0.5, 0.25], &[-0.5, -0.25]).unwrap();
    let error = reencode(&m.as_matrix(), Format::Q2_0G128, Exactness::Exact).unwrap_err();
    assert!(error.to_string().contains("different scales"), "{error}");
    let error = reencode(&m.as_matrix(), affine(2, 128), Exactness::Exact).unwrap_err();
    assert!(matches!(error, QuantError::NotExact { row: 0, group: 0, .. }));
}

#[test]
fn other_widths_and_unrepresentable_numbers_are_refused() {
    let m = mlx_1bit(&[0.5, 0.5], &[-0.25, -0.25]);
    assert!(matches!(reencode(&m.as_matrix(), Format::Pq2_0, Exactness::Exact), Err(QuantError::NoConversion { .. })));
    assert!(matches!(reencode(&m.as_matrix(), Format::F32, Exactness::Exact), Err(QuantError::NoConversion { .. })));
    // d = 40000 fits binary16, the MLX scale 2d does not.
    let big = gguf_blocks(Format::Q1_0, 1, 1, 7, f32_to_f16(40000.0));
    let source = Matrix::new(Format::Q1_0, 1, 128, &big, &[], &[]).unwrap();
    assert!(matches!(reencode(&source, affine(1, 128), Exactness::Exact), Err(QuantError::NotExact { .. })));
    let wide = Format::affine(1, 128, ParamType::F32, ParamType::F16).unwrap();
    same_weights(&source, &reencode(&source, wide, Exactness::Exact).unwrap().matrix.as_matrix());
    assert!(matches!(quantize(Format::Ptq1_0, 1, 128, &[0.0; 128]), Err(QuantError::NoConversion { .. })));
    assert!(matches!(pack(affine(2, 32), 1, 32, &[4; 32], &[1.0], &[0.0]), Err(QuantError::NotExact { .. })));
}

#[test]
fn four_and_eight_bits_travel_between_containers() {
    let values: Vec<f32> = noise(5, 256).iter().map(|&b| f32::from(b) / 64.0 - 2.0).collect();
    for (format, bits) in [(Format::Q4_0, 4), (Format::Q4_1, 4), (Format::Q8_0, 8)] {
        let source = quantize(format, 2, 128, &values).unwrap();
        // -128 d needs no more bits than d; -8 d neither.
        let mlx = reencode(&source.as_matrix(), affine(bits, 32), Exactness::Exact).unwrap().matrix;
        same_weights(&source.as_matrix(), &mlx.as_matrix());
        assert_eq!(reencode(&mlx.as_matrix(), format, Exactness::Exact).unwrap().matrix, source);
    }
}

#[test]
fn dense_types_round_trip() {
    let values: Vec<f32> = (0..64).map(|i| (i as f32 - 31.0) * 0.125).collect();
    for format in [Format::F32, Format::F16, Format::BF16] {
        let packed = quantize(format, 4, 16, &values).unwrap();
        let m = Matrix::new(format, 4, 16, &packed.codes, &[], &[]).unwrap();
        let mut row = vec![0.0; 16];
        for r in 0..4 {
            m.decode_row(r, &mut row);
            assert_eq!(row, values[r * 16..][..16]);
        }
        assert_eq!((m.groups_per_row(), format.group(), format.is_packed()), (0, 1, false));
    }
}

#[test]
fn wrong_lengths_and_overflowing_shapes_are_errors() {
    let q = Format::Q1_0;
    assert!(matches!(Matrix::new(q, 1, 100, &[0; 18], &[], &[]), Err(QuantError::Columns { cols: 100, .. })));
    assert!(matches!(Matrix::new(q, 1, 0, &[], &[], &[]), Err(QuantError::Columns { .. })));
    assert!(matches!(
        Matrix::new(q, 2, 128, &[0; 35], &[], &[]),
        Err(QuantError::Length { part: "codes", wanted: 36, got: 35, .. })
    ));
    assert!(matches!(Matrix::new(q, 1, 128, &[0; 18], &[0; 2], &[]), Err(QuantError::Length { part: "scales", .. })));
    assert!(matches!(Matrix::new(q, usize::MAX, 128, &[], &[], &[]), Err(QuantError::Overflow { .. })));
    let cols = usize::MAX / 128 * 128;
    assert!(Matrix::new(Format::F32, 1, cols, &[], &[], &[]).is_err());
    assert!(q.matrix_bytes(usize::MAX, cols).is_err());
    let odd = Format::Affine { bits: 3, group: 128, scale: ParamType::F16, bias: ParamType::F16 };
    assert!(matches!(
        Matrix::new(odd, 1, 128, &[0; 48], &[0; 2], &[0; 2]),
        Err(QuantError::UnsupportedAffine { bits: 3, .. })
    ));
    for (bits, group) in [(3, 64), (0, 64), (16, 64), (1, 16), (1, 256), (257, 32)] {
        assert!(Format::affine(bits, group, ParamType::F16, ParamType::F16).is_err());
    }
}

#[test]
fn ids_names_and_sizes_are_those_of_the_files() {
    assert_eq!(Format::from_gguf_id(42), Ok(GgufType::Q2_0));
    for format in [Format::F32, Format::F16, Format::BF16].into_iter().chain(BLOCKS.iter().map(|b| b.format)) {
        let id = format.gguf_id().unwrap();
        if id != 42 {
            assert_eq!(Format::from_gguf_id(id), Ok(GgufType::Format(format)));
        }
    }
    let error = Format::from_gguf_id(9999).unwrap_err().to_string();
    assert!(error.contains("9999") && error.contains("143 (PTQ1_0)") && error.contains("42 (Q2_0)"), "{error}");
    assert_eq!(affine(1, 128).gguf_id(), None);
    assert_eq!(affine(1, 128).to_string(), "MLX affine 1-bit g128 F16");
    let pair = Format::affine(4, 64, ParamType::BF16, ParamType::F32).unwrap();
    assert_eq!(pair.to_string(), "MLX affine 4-bit g64 BF16/F32");
    for (format, bpw) in [
        (affine(1, 128), 1.25),
        (affine(2, 128), 2.25),
        (Format::Q1_0, 1.125),
        (Format::Q2_0G64, 2.25),
        (Format::Pq2_0, 2.125),
        (Format::Ptq1_0, 1.75),
        (Format::Q4_0, 4.5),
        (Format::Q4_1, 5.0),
        (Format::Q8_0, 8.5),
        (Format::BF16, 16.0),
    ] {
        assert_eq!(format.bits_per_weight(), bpw, "{format}");
        let bytes = format.matrix_bytes(256, 1024).unwrap();
        assert_eq!(bytes as f64 * 8.0 / (256.0 * 1024.0), bpw, "{format}");
    }
}
