//! The symmetry rule on the numbers that packs really hold.

use onebit_quant::float::f16_to_f32;
use onebit_quant::{Format, Packed, ParamType, Symmetry, pack, quantize};
use proptest::prelude::*;

/// A matrix of 10 rows with 20 groups of 32: 200 groups, so that two may deviate.
fn matrix(bits: u32, kind: ParamType, number: impl Fn(usize) -> (f32, f32)) -> Packed {
    let format = Format::affine(bits, 32, kind, kind).unwrap();
    let (scales, biases): (Vec<f32>, Vec<f32>) = (0..200).map(number).unzip();
    pack(format, 10, 640, &[0; 6400], &scales, &biases).unwrap()
}

#[test]
fn derived_biases_are_exact_with_zeros_of_either_sign() {
    for (bits, factor) in [(1, 0.5), (2, 1.0)] {
        let m = matrix(bits, ParamType::F16, |i| {
            let scale = (i as f32 - 100.0) * 0.125;
            (scale, -factor * scale)
        });
        assert_eq!(m.as_matrix().symmetry(), Symmetry::Exact);
        for (scale, bias) in [(0.0, 0.0), (0.0, -0.0), (-0.0, 0.0), (-0.0, -0.0)] {
            assert_eq!(matrix(bits, ParamType::F16, |_| (scale, bias)).as_matrix().symmetry(), Symmetry::Exact);
        }
    }
}

#[test]
fn rounding_of_subnormal_scales_is_listed_and_adds_up_to_the_stored_weights() {
    let step = f16_to_f32(1);
    // Odd multiples of the smallest step have no half in binary16; the writer rounded to even.
    let m = matrix(1, ParamType::F16, |i| match i {
        45 => (3.0 * step, -2.0 * step),
        199 => (step, -0.0),
        _ => (0.5, -0.25),
    });
    let Symmetry::Rounding(list) = m.as_matrix().symmetry() else { panic!("{:?}", m.as_matrix().symmetry()) };
    let places: Vec<_> = list.iter().map(|r| (r.row, r.group, r.value)).collect();
    assert_eq!(places, [(2, 5, -0.5 * step), (9, 19, 0.5 * step)]);
    for residual in list {
        let group = m.as_matrix().group(residual.row, residual.group, &mut [0; 32]);
        for code in [0.0, 1.0] {
            let derived = group.scale / 2.0 * (2.0 * code - 1.0) + residual.value;
            assert_eq!(derived, group.scale * code + group.bias);
        }
    }
}

#[test]
fn more_than_one_percent_is_affine() {
    let off = |limit: usize| matrix(1, ParamType::F16, move |i| (0.5, if i < limit { 0.0 } else { -0.25 }));
    assert!(matches!(off(2).as_matrix().symmetry(), Symmetry::Rounding(list) if list.len() == 2));
    assert_eq!(off(3).as_matrix().symmetry(), Symmetry::Affine);
    // In a matrix of fewer than a hundred groups even one is more than 1%.
    let format = Format::affine(1, 32, ParamType::F16, ParamType::F16).unwrap();
    let small = pack(format, 1, 64, &[0; 64], &[0.5, 0.5], &[-0.25, -0.125]).unwrap();
    assert_eq!(small.as_matrix().symmetry(), Symmetry::Affine);
}

#[test]
fn numbers_that_are_not_finite_derive_nothing() {
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut m = matrix(1, ParamType::F32, |_| (0.5, -0.25));
        m.scales[40..44].copy_from_slice(&special.to_le_bytes());
        assert_eq!(m.as_matrix().symmetry(), Symmetry::Affine);
        m.biases[40..44].copy_from_slice(&(-special).to_le_bytes());
        assert_eq!(m.as_matrix().symmetry(), Symmetry::Affine);
    }
}

#[test]
fn wider_codes_are_affine_unless_the_format_derives_the_bias() {
    for bits in [4, 8] {
        assert_eq!(matrix(bits, ParamType::F16, |_| (0.5, -4.0)).as_matrix().symmetry(), Symmetry::Affine);
    }
    for (format, want) in [
        (Format::Q1_0, Symmetry::Exact),
        (Format::Q4_0, Symmetry::Exact),
        (Format::Q8_0, Symmetry::Exact),
        (Format::Q4_1, Symmetry::Affine),
        (Format::F16, Symmetry::Exact),
    ] {
        let m = quantize(format, 1, 128, &[0.25; 128]).unwrap();
        assert_eq!(m.as_matrix().symmetry(), want, "{format}");
    }
}

proptest! {
    /// Whatever the writer rounded, kernel form and stored form agree.
    #[test]
    fn exact_and_listed_groups_reconstruct_the_stored_weights(bits in 1u32..3, scales in prop::collection::vec(0u16..0x0800, 200)) {
        let factor = if bits == 1 { 0.5 } else { 1.0 };
        let m = matrix(bits, ParamType::F16, |i| {
            let scale = f16_to_f32(scales[i]);
            (scale, ParamType::F16.round(-factor * scale))
        });
        let list = match m.as_matrix().symmetry() {
            Symmetry::Exact => Vec::new(),
            Symmetry::Rounding(list) => list,
            Symmetry::Affine => return Ok(()),
        };
        for i in 0..200 {
            let (row, g) = (i / 20, i % 20);
            let r = list.iter().find(|r| (r.row, r.group) == (row, g)).map_or(0.0, |r| r.value);
            let group = m.as_matrix().group(row, g, &mut [0; 32]);
            prop_assert_eq!(-factor * group.scale + r, group.bias);
        }
    }
}
